"""Batches: cases of a device that are compiled as one module.

IREE's compiler takes most of the time and starts anew for each module, so a module holds several
cases. The batches depend only on the cases of the whole run: not on how many processes
there are, nor on how the run is divided among machines (`shards`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .cases import Case

BATCH = 12
"""The number of cases that are compiled in one module."""


def applies(case: Case, device: str) -> bool:
    """Return True if a case runs on a device."""
    if case.kind != "run":  # the same for every device: done once
        return device == "llvm-cpu"
    return device != "interpreter" or case.program is None or case.program.interpreted


def batches_of(cases: Sequence[Case], device: str) -> list[tuple[Case, ...]]:
    """Return the cases that apply to a device, in batches.

    Cases of one kind are together: what fails, fails together, and executables stay small.
    """
    by_kind: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if applies(case, device):
            group = (case.kind, case.op if case.program is None else "suite")
            by_kind.setdefault(group, []).append(case)
    return [
        tuple(group[start : start + BATCH])
        for group in by_kind.values()
        for start in range(0, len(group), BATCH)
    ]
