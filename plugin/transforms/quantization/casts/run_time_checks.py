"""Run-time checks (``cf.assert``) of dynamic block counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .... import emit
from ....core._mlir import Operation, Value
from ....emit import linalg
from ....emit.linalg import name_and_place


def check_block_count(
    op: Operation, axis: int, extent: Value, size: int, count: int, *, ragged: bool
) -> None:
    """Check that an axis has `count` blocks of a size; with `ragged` the last may be shorter.

    `extent` is the size of the axis as an ``index``.
    """
    dimension = f"{name_and_place(op)}: dimension {axis} must be"
    blocks = f"({count} blocks of {size}"
    if ragged:
        holds = emit.scalar(linalg.block_count(extent, size)) == count
        least, most = size * (count - 1) + 1, size * count
        message = f"{dimension} {least} to {most} at run time {blocks}, the last may be shorter)"
    else:
        holds = emit.scalar(extent) == size * count
        message = f"{dimension} {size * count} at run time {blocks})"
    linalg.check(holds.value, message)


def check_parameter_extents(
    op: Operation, source: Value, parameters: Mapping[str, Value], sizes: Sequence[int]
) -> None:
    """Check that parameter tensors, by name, have ``ceil(extent / size)`` entries on each axis."""
    for name, tensor in parameters.items():
        for axis, size in enumerate(sizes):
            if not source.type.is_dynamic_dim(axis) and not tensor.type.is_dynamic_dim(axis):
                continue
            count = linalg.block_count(linalg.dim(source, axis), size)
            holds = emit.scalar(linalg.dim(tensor, axis)) == emit.scalar(count)
            linalg.check(
                holds.value,
                f"{name_and_place(op)}: {name.replace('_', ' ')} must have one entry for each "
                f"block of {size} along dimension {axis} at run time",
            )
