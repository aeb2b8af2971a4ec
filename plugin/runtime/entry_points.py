"""The ways into a function of an executable, of which a device may know quicker ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..iree_hooks.sync_entries import BOUND, MEMORY, RECORD, REPLAY, UNFENCED

__all__ = ["Entry", "entries_of"]


@dataclass(frozen=True)
class Entry:
    """How a function is called (`subquant.iree_hooks.sync_entries`).

    Args:
        run: takes the arguments, and returns the results.
        memory: takes the arguments, and returns memory for the results; None if there is none.
        bound: takes the arguments and that memory, and computes the results there.
        record: takes the same, and returns commands that do so; None if there is none.
        replay: takes these commands, and executes them.
    """

    run: Any
    memory: Any = None
    bound: Any = None
    record: Any = None
    replay: Any = None


def entries_of(module: Any, handles: list[Any]) -> list[Entry]:
    """Return how functions are called on a device that runs at once what is submitted."""
    names = frozenset(module.function_names)

    def found(handle: Any, suffix: str) -> Any:
        name = handle.name + suffix
        return module.lookup_function(name) if name in names else None

    others = (MEMORY, BOUND, RECORD, REPLAY)
    return [
        Entry(found(each, UNFENCED) or each, *(found(each, other) for other in others))
        for each in handles
    ]
