"""Workgroup counts of CPU kernels, and the range of items of each workgroup.

IREE 3.13 reserves workgroups for a thread one at a time, or eight at a time where there are eight
for each thread (``iree_hal_cmd_dispatch_tiles_per_reservation``).
"""

from __future__ import annotations

import math

from ..emit import ArrayLike
from ..emit.vectors import quotient

_WORKGROUPS_PER_RESERVATION = 8
MAX_LARGE_WORKGROUPS = 2 * _WORKGROUPS_PER_RESERVATION - 1
"""Up to this count, two threads reserve workgroups one at a time.

Of 16 workgroups each of two threads would reserve half, and the thread that wakes up first would
wait for the other.
"""
_MIN_SMALL_WORKGROUPS = 16 * _WORKGROUPS_PER_RESERVATION
"""With this count or more, workgroups are reserved eight at a time, in 16 reservations."""
_MIN_MACS_PER_SMALL_WORKGROUP = 1 << 16
"""A small workgroup has at least this many int8 MACs; reserving it takes 0.1 us."""
_MIN_MACS_TO_SHARE = 1 << 19
"""A kernel with fewer int8 MACs has one workgroup for each tile."""
_MACS_PER_WORKGROUP_START = 1 << 15
"""Starting a workgroup takes as long as this many int8 MACs: 0.1 us with two threads (Zen 4)."""
_HALO_WEIGHT = 4
"""Halo recomputation counts this many times as much as threads that wait."""
_WORKGROUP_MULTIPLE = 4
"""Counts of this size or more are rounded down to a multiple, which 2 or 4 threads share evenly."""


def items_per_workgroup(items: int, macs: int, calls: int = 1) -> int:
    """Return the number of a kernel's items that a workgroup has.

    There are `MAX_LARGE_WORKGROUPS` or fewer, or `_MIN_SMALL_WORKGROUPS` or more of them.

    Args:
        items: the number of independent items.
        macs: the int8 MACs that take about as long as an item.
        calls: the workgroups are multiplied by this number.
    """
    small = items * calls // _MIN_SMALL_WORKGROUPS
    if small * macs >= _MIN_MACS_PER_SMALL_WORKGROUP:
        return small
    return -(-items // max(1, MAX_LARGE_WORKGROUPS // calls))


def workgroups_per_tile(macs: int, tiles: int = 1, halo_macs: int = 0) -> int:
    """Return the number of workgroups that share the output pixels of each weight tile.

    With ``n`` workgroups that each cost a time ``c``, threads wait for the last one for up to
    ``1 / n`` of the whole time ``t``: ``n * c + t / n`` is least for ``n = sqrt(t / c)``.

    Args:
        macs: the int8 MACs of all tiles.
        tiles: the number of weight tiles.
        halo_macs: the int8 MACs that take as long as the halo that each workgroup recomputes.
    """
    if macs < _MIN_MACS_TO_SHARE:
        return 1
    workgroups = math.isqrt(macs // (_MACS_PER_WORKGROUP_START + _HALO_WEIGHT * halo_macs))
    share = max(1, workgroups // tiles)
    multiple = _WORKGROUP_MULTIPLE // math.gcd(tiles, _WORKGROUP_MULTIPLE)
    while multiple > share:
        multiple //= 2
    return share // multiple * multiple


def workgroup_range(
    workgroup: ArrayLike, workgroups: int, items: int
) -> tuple[ArrayLike, ArrayLike]:
    """Return the range ``[first, end)`` of a workgroup's items, which differ in size by 1 at most.

    Args:
        workgroup: the number of the workgroup.
        workgroups: the number of workgroups.
        items: the number of items.
    """
    first, end = (quotient(number * items, workgroups) for number in (workgroup, workgroup + 1))
    return first, end
