"""Changes between two runs: outcomes, numbers, added and removed cases, times.

Results are compared by digest, so a change is reported even if both runs pass: a near tie rounded
the other way, a float within its bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from .cases import Outcome

Kind = Literal[
    "regressed", "improved", "other status", "other numbers", "new", "removed", "slower", "faster"
]
"""``regressed``: it passed, and does not; ``improved``: the reverse; ``other status``: another one,
both passing or neither; ``other numbers``: other results, counts or messages with the same status;
``new`` and ``removed``: cases that are in one of the runs only; ``slower`` and ``faster``: see
`changes_between`."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_TIMES = 3.0
"""The ratio of times from which on a case is slower, or faster."""
_SECONDS = 2.0
"""The difference of times below which a case is neither slower nor faster."""


@dataclass(frozen=True)
class Change:
    """A case that changed; an outcome is None if the case is new, or was removed."""

    kind: Kind
    before: Outcome | None
    now: Outcome | None

    @property
    def outcome(self) -> Outcome:
        """The outcome of now, or else that before."""
        outcome = self.now or self.before
        assert outcome is not None
        return outcome

    @property
    def has_other_bits(self) -> bool:
        """True if both runs have results, and these differ."""
        before, now = self.before, self.now
        if before is None or now is None or not before.digest or not now.digest:
            return False
        return before.digest != now.digest

    @property
    def text(self) -> str:
        """The change on one line."""
        before, now = self.before, self.now
        if before is None or now is None:
            status = self.outcome.status
            return f"{status}: {self.outcome.message}" if self.outcome.message else status
        if self.kind in ("slower", "faster"):
            return f"{before.seconds:.1f} -> {now.seconds:.1f} s"
        texts = [] if before.status == now.status else [f"{before.status} -> {now.status}"]
        for name in ("elements", "near_ties", "other_reading"):
            old, new = getattr(before, name), getattr(now, name)
            if old != new:
                texts.append(f"{name.replace('_', ' ')} {old} -> {new}")
        if self.has_other_bits:
            texts.append("other bits")
        if before.message != now.message:
            texts.append(now.message or f"no longer: {before.message}")
        return "; ".join(texts)


def changes_between(before: Sequence[Outcome], now: Sequence[Outcome]) -> tuple[Change, ...]:
    """Return the changed cases in the order of `now`, then the removed ones in that of `before`.

    A case is ``slower`` or ``faster`` if nothing else changed, its time did by `_SECONDS`, and by
    `_TIMES` more than that of all cases of its device that are in both runs: another machine, or
    a cache that is filled, is no change of a case.
    """
    old = {outcome.key: outcome for outcome in before}
    new = {outcome.key: outcome for outcome in now}
    common = [(old[key], new[key]) for key in old.keys() & new.keys()]
    ratios = {
        device: _ratio([pair for pair in common if pair[1].device == device])
        for device in {outcome.device for outcome in now}
    }
    changes = []
    for key, outcome in new.items():
        kind = _kind_of(old[key], outcome, ratios[outcome.device]) if key in old else "new"
        if kind is not None:
            changes.append(Change(kind, old.get(key), outcome))
    changes += [Change("removed", outcome, None) for key, outcome in old.items() if key not in new]
    return tuple(changes)


def _ratio(pairs: Sequence[tuple[Outcome, Outcome]]) -> float:
    """Return the ratio of the total times of the cases that both runs have."""
    before, now = (sum(pair[side].seconds for pair in pairs) for side in (0, 1))
    return now / before if before > 0 and now > 0 else 1.0


def _kind_of(before: Outcome, now: Outcome, ratio: float) -> Kind | None:
    if before.passes != now.passes:
        return "improved" if now.passes else "regressed"
    if before.status != now.status:
        return "other status"
    change = Change("other numbers", before, now)
    if change.text:
        return change.kind
    expected = before.seconds * ratio
    if abs(now.seconds - before.seconds) >= _SECONDS:
        if now.seconds >= max(expected, before.seconds) * _TIMES:
            return "slower"
        if now.seconds * _TIMES <= min(expected, before.seconds):
            return "faster"
    return None
