"""Elementwise loops with the parameters of each element's block.

An axis is *whole* (one block), *unit* (blocks of size 1), *split* (blocks that divide a static
size) or *ragged* (any other).

Split axes are expanded to (block number, position in block), so that parameters are indexed by
plain dimensions. With a ragged axis the loop body extracts the parameters at ``index floordiv
block`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ....core._mlir import Value, ir
from ....emit import linalg
from ....emit.operation import is_dynamic, tensor_type

AxisKind = Literal["whole", "unit", "split", "ragged"]


@dataclass(frozen=True)
class BlockAxes:
    """The kind and the block size (None for one block) of each axis."""

    kinds: tuple[AxisKind, ...]
    sizes: tuple[int | None, ...]

    @staticmethod
    def of(
        type_: ir.RankedTensorType, sizes: Sequence[int | None], counts: Sequence[int | None]
    ) -> BlockAxes:
        """Choose the kinds by the sizes of blocks (None for one block) and by their numbers.

        A dynamic number of blocks is None.
        """
        kinds: list[AxisKind] = []
        for size, count, dim in zip(sizes, counts, map(int, type_.shape), strict=True):
            if size is None or count == 1:
                kinds.append("whole")
            elif size == 1:
                kinds.append("unit")
            elif not is_dynamic(dim) and dim % size == 0:
                kinds.append("split")
            else:
                kinds.append("ragged")
        return BlockAxes(tuple(kinds), tuple(sizes))

    @staticmethod
    def all_whole(rank: int) -> BlockAxes:
        """One block."""
        kinds: list[AxisKind] = ["whole"] * rank
        return BlockAxes(tuple(kinds), (None,) * rank)

    @property
    def in_blocks(self) -> list[int]:
        """The axes that are not whole."""
        return [axis for axis, kind in enumerate(self.kinds) if kind != "whole"]


def map_by_block(
    source: Value,
    axes: BlockAxes,
    parameters: Sequence[Value],
    element: ir.Type,
    body: Callable[..., Value],
) -> Value:
    """Apply `body` to every element of a tensor with the parameters of its block.

    Args:
        source: a ranked tensor.
        axes: the kinds and block sizes of its axes.
        parameters: tensors with one dimension for each axis that is not whole.
        element: the element type of the result.
        body: emits the result of a scalar of the source and one of each parameter tensor.
    """
    groups: list[list[int]] = []  # for each axis, the dimensions of the loops that it becomes
    loops: list[int | Value] = []  # the size of each loop
    blocks: list[tuple[int, int]] = []  # for each axis in blocks: a loop, and its steps in a block
    for axis, (kind, size) in enumerate(zip(axes.kinds, axes.sizes, strict=True)):
        static = int(source.type.shape[axis])
        dim = linalg.dim(source, axis) if is_dynamic(static) else static
        first = len(loops)
        if kind == "split":
            assert size is not None and isinstance(dim, int)  # what makes an axis split
            loops += [dim // size, size]
        else:
            loops.append(dim)
        groups.append(list(range(first, len(loops))))
        if kind != "whole":
            blocks.append((first, size or 1) if kind == "ragged" else (first, 1))
    expanded = linalg.expand(source, groups, loops)
    output = linalg.empty(loops, element)
    every = linalg.identity_map(len(loops))
    if "ragged" in axes.kinds:
        result = linalg.generic(
            [expanded],
            output,
            [every, every],
            lambda number, _: body(number, *_extracted(parameters, blocks)),
        )
    else:
        of_block = ir.AffineMap.get(
            len(loops), 0, [ir.AffineExpr.get_dim(loop) for loop, _ in blocks]
        )
        result = linalg.generic(
            [expanded, *parameters],
            output,
            [every, *[of_block] * len(parameters), every],
            lambda *elements: body(*elements[:-1]),
        )
    return linalg.collapse(result, groups)


def _extracted(tensors: Sequence[Value], blocks: Sequence[tuple[int, int]]) -> list[Value]:
    """In a loop body: the element of each tensor for the loops' block."""
    indices = [linalg.block_of(linalg.loop_index(loop), size) for loop, size in blocks]
    return [linalg.extract(tensor, indices) for tensor in tensors]


def without_whole_axes(tensor: Value, axes: BlockAxes) -> Value:
    """Remove the whole axes (of one block, as checked before) of a parameter tensor."""
    blocked, type_ = axes.in_blocks, tensor.type
    if len(blocked) == type_.rank:
        return tensor
    shape: list[int | None] = [
        1 if axis not in blocked else None if is_dynamic(size) else size
        for axis, size in enumerate(map(int, type_.shape))
    ]
    tensor = linalg.cast(tensor, tensor_type(shape, type_.element_type))
    groups: list[list[int]] = [[] for _ in blocked]
    for axis in range(type_.rank if blocked else 0):  # with the next blocked axis, or the last
        following = sum(other < axis for other in blocked)
        groups[min(following, len(blocked) - 1)].append(axis)
    return linalg.collapse(tensor, groups)
