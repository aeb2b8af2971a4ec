"""Read record: accounts for every item of a model file; an item that nobody read is an error.

A reader passes the items of a file (tensors, properties, attributes, option fields, configuration
keys) to a `ReadRecord`, and looks them up in the mappings that it returns. Each lookup of a value
is recorded. `ReadRecord.finish` raises an error that names the other items. Items that cannot
change a result are listed as exempt::

    record = ReadRecord(Place("model.gguf"))
    tensors = record.track("tensor", file_tensors)
    properties = record.track(
        "property", file_properties, [Irrelevant("general.author", "describes the file")]
    )
    weight = tensors["output.weight"]     # recorded
    record.finish()                       # raises UnsupportedError for everything else

All readers use this class, so that a reader which forgets an item refuses the file and does not
compute other numbers than the file asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ..errors import Place, UnsupportedError, counted, printable, quoted

Item = TypeVar("Item")

_MAX_NAMES = 5
"""The number of unread items that an error names; it counts the others."""
_MAX_VALUE_LENGTH = 40
"""The number of characters of a value that an error quotes."""


@dataclass(frozen=True)
class Irrelevant:
    """Items of a file that cannot change a result.

    Args:
        pattern: matches the names of the items, as `fnmatch.fnmatchcase`.
        reason: why the items cannot change a result, as a clause without a subject.
        values: the only values with which the items are irrelevant; any value if it is empty.
    """

    pattern: str
    reason: str
    values: tuple[Any, ...] = ()

    def matches(self, name: str, value: Any) -> bool:
        """Return True if an item of this name and value cannot change a result."""
        if not fnmatchcase(name, self.pattern):
            return False
        return not self.values or any(
            type(value) is type(each) and value == each for each in self.values
        )


class TrackedItems(Mapping[str, Item]):
    """A mapping that records which of its values were looked up.

    ``items[name]``, ``items.get(name)``, ``items.values()`` and ``items.items()`` record each value
    that they give. ``name in items``, ``len`` and iteration over names record nothing.
    """

    def __init__(self, items: Mapping[str, Item]) -> None:
        self.untracked = items
        """The mapping itself: its lookups are not recorded (for listings)."""
        self.names_read: set[str] = set()
        """The names whose values were looked up."""

    def __getitem__(self, name: str) -> Item:
        value = self.untracked[name]
        self.names_read.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.untracked

    def __iter__(self) -> Iterator[str]:
        return iter(self.untracked)

    def __len__(self) -> int:
        return len(self.untracked)


class ReadRecord:
    """Collects the tracked mappings of one file, or of one part of it, and checks them together.

    Args:
        place: of the file, for the error.
        subject: the owner of the items, for the error: ``node 3 (Conv)``. The file itself if it is
            empty.
    """

    def __init__(self, place: Place | None, subject: str = "") -> None:
        self._place, self._subject = place, subject
        self._tracked: list[tuple[str, TrackedItems[Any], Sequence[Irrelevant]]] = []

    def track(
        self, kind: str, items: Mapping[str, Item], irrelevant: Sequence[Irrelevant] = ()
    ) -> TrackedItems[Item]:
        """Return a mapping whose lookups are recorded.

        `kind` is the file format's noun for one item: ``tensor``, ``attribute``. The `irrelevant`
        items need not be looked up.
        """
        tracked = TrackedItems(items)
        self._tracked.append((kind, tracked, irrelevant))
        return tracked

    def unread(self) -> list[tuple[str, str, Any]]:
        """Return kind, name and value of the items that matter and were not looked up."""
        return [
            (kind, name, value)
            for kind, tracked, irrelevant in self._tracked
            for name, value in tracked.untracked.items()
            if name not in tracked.names_read
            and not any(each.matches(name, value) for each in irrelevant)
        ]

    def finish(self, advice: str = "") -> None:
        """Check that every item was looked up, or cannot change a result.

        Args:
            advice: a way out for the user, for the end of the message.

        Raises:
            UnsupportedError: there are other items; the message names them.
        """
        unread = self.unread()
        if not unread:
            return
        names = ", ".join(_described(*each) for each in unread[:_MAX_NAMES])
        if len(unread) > _MAX_NAMES:
            names += f" and {counted(len(unread) - _MAX_NAMES, 'other item')}"
        subject = f"{self._subject} " if self._subject else ""
        advice = f"; {advice}" if advice else ""
        raise UnsupportedError(
            f"{subject}has the {names}, which subquant does not use: the results could be wrong "
            f"without {'it' if len(unread) == 1 else 'them'}{advice}",
            self._place,
        )


def _described(kind: str, name: str, value: Any) -> str:
    """Return an item for a message: a short value is shown, a tensor's elements are not."""
    if isinstance(value, (bool, int, float, str)):
        text = printable(repr(value))
        if len(text) <= _MAX_VALUE_LENGTH:
            return f"{kind} {quoted(name)} = {text}"
    return f"{kind} {quoted(name)}"
