"""The cores of this machine, and the part of them that one of several tasks has."""

from __future__ import annotations

from ...isolation.limits import available_cores

__all__ = ["available_cores", "cores_of_each"]


def cores_of_each(tasks: int) -> int | None:
    """Return how many cores each of the tasks that this machine does at a time may take.

    Returns:
        Their part, which is one at least; None for one task alone, which may take all.
    """
    return max(available_cores() // tasks, 1) if tasks > 1 else None
