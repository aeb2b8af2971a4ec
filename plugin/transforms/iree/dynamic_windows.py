"""``reduce_window`` of dynamic shapes, as the reduction of a tensor of windows.

IREE 3.13 takes some of floats with a dynamic batch, and refuses those of integers, and those of
windows along dynamic axes. The operand is padded and dilated before; a loop nest then reads each
element of each window, and ``reduce``, with the body of the ``reduce_window``, reduces the axes of
the windows, the last ones. IREE fuses the two::

    %r = "stablehlo.reduce_window"(%x, %lowest) {window_dimensions = array<i64: 1, 2, 2, 1>, ...}
        : (tensor<?x4x4x2xi8>, tensor<i8>) -> tensor<?x2x2x2xi8>

becomes ::

    %w = linalg.generic (b, i, j, c, p, q) ins(%x at (b, i * 2 + p, j * 2 + q, c)) {
      linalg.yield %x
    } -> tensor<?x2x2x2x2x2xi8>
    %r = stablehlo.reduce(%w init: %lowest) ... across dimensions = [4, 5]

Source: StableHLO specification, ``reduce_window`` and ``reduce``.
"""

from __future__ import annotations

from ... import emit
from ..._mlir import Operation, Rewriter, Value, ir
from ...dialects.windows import window_padding, window_steps
from ...emit import linalg, stablehlo
from ...emit.operation import integers, with_shape
from ..base import NoMatch
from .dynamic_contractions import window_count

__all__ = ["expand_dynamic_window"]


def expand_dynamic_window(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``reduce_window`` of a dynamic shape as a ``reduce`` of its windows."""
    if all(value.type.has_static_shape for value in (*op.operands, *op.results)):
        return NoMatch("has a static shape")
    count = len(op.results)
    rank = op.operands[0].type.rank
    starts = list(op.operands)[count:]
    windows = [
        _windows(op, _padded(op, operand, start))
        for operand, start in zip(list(op.operands)[:count], starts, strict=True)
    ]
    axes = list(range(rank, windows[0].type.rank))
    kept = [list(map(int, value.type.shape))[:rank] for value in windows]
    reduced = emit.create(
        "stablehlo.reduce",
        [*windows, *starts],
        [with_shape(value.type, shape) for value, shape in zip(windows, kept, strict=True)],
        {"dimensions": integers(axes)},
        regions=1,
    )
    op.regions[0].blocks[0].append_to(reduced.regions[0])
    results = zip(reduced.results, op.results, strict=True)
    rewriter.replace_op(op, [linalg.cast(value, result.type) for value, result in results])
    return None


def _padded(op: Operation, operand: Value, start: Value) -> Value:
    """The operand with initial values around and between its elements."""
    rank = operand.type.rank
    padding = window_padding(op, rank)
    between = [step - 1 for step in window_steps(op, "base_dilations", rank)]
    if not (padding.any() or any(between)):
        return operand
    low, high = (list(map(int, padding[:, side])) for side in (0, 1))
    return stablehlo.pad(operand, low, high, between, start)


def _windows(op: Operation, operand: Value) -> Value:
    """The elements of each window, along axes after those of the operand."""
    rank = operand.type.rank
    sizes, strides, within = (
        window_steps(op, name, rank)
        for name in ("window_dimensions", "window_strides", "window_dilations")
    )
    extents = [
        window_count((operand, axis), sizes[axis], strides[axis], within[axis])
        for axis in range(rank)
    ]
    inner = [axis for axis in range(rank) if sizes[axis] != 1]
    loops = rank + len(inner)
    places = [ir.AffineExpr.get_dim(axis) * strides[axis] for axis in range(rank)]
    for number, axis in enumerate(inner):
        places[axis] = places[axis] + ir.AffineExpr.get_dim(rank + number) * within[axis]
    shape: list[linalg.Extent] = [*extents, *(sizes[axis] for axis in inner)]
    # The reduction takes the extents of its loops from this tensor, of which it reads nothing.
    of_window = linalg.empty([sizes[axis] for axis in inner], operand.type.element_type)
    maps = [
        ir.AffineMap.get(loops, 0, places),
        ir.AffineMap.get(loops, 0, [ir.AffineExpr.get_dim(n) for n in range(rank, loops)]),
        linalg.identity_map(loops),
    ]
    output = linalg.empty(shape, operand.type.element_type)
    return linalg.generic([operand, of_window], output, maps, lambda element, *_: element)
