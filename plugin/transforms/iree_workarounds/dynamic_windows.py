"""``reduce_window`` of dynamic shapes as loop nests.

Symptom: IREE refuses windows of integers, and windows along dynamic axes; it takes some of floats
with a dynamic batch (all targets).
Cause: IREE 3.13 has no lowering for these forms.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py.

The operand is padded and dilated first. A body of one operation (a maximum, for example) becomes
the body of a loop nest. Its second input only gives the loops the size of a window::

    %r = "stablehlo.reduce_window"(%x, %lowest) {window_dimensions = array<i64: 1, 2, 2, 1>, ...}
        : (tensor<?x4x4x2xi8>, tensor<i8>) -> tensor<?x2x2x2xi8>

becomes ::

    %r = linalg.generic (b, i, j, c, p, q) ins(%x at (b, i * 2 + p, j * 2 + q, c), %w at (p, q))
        outs(%filled at (b, i, j, c)) {
      %m = arith.maxsi %x, %out
    }

With another body, a loop nest reads the elements of all windows, and ``reduce`` with that body
reduces the axes of the windows.

Source: StableHLO specification, ``reduce_window`` and ``reduce``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.windows import window_padding, window_steps
from ...emit import ArrayLike, linalg
from ...emit.operation import element_of, integers, with_shape
from ..base import NoMatch, Replacement, value_before
from .loop_nests import is_static, pad_and_dilate, window_count

_BITCAST = "stablehlo.bitcast_convert"


def expand_dynamic_window(op: Operation) -> Replacement:
    """Rewrite a ``reduce_window`` of a dynamic shape as loop nests."""
    if is_static(*op.operands, *op.results):
        return NoMatch("has a static shape")
    count = len(op.results)
    rank = op.operands[0].type.rank
    combine = _commutative_body(op)
    if combine is not None:
        operand, start = op.operands
        combined = _WindowLoops(op, _padded(op, operand, start)).combined(start, combine)
        return linalg.cast(combined, op.results[0].type)
    starts = list(op.operands)[count:]
    windows = [
        _WindowLoops(op, _padded(op, operand, start)).elements()
        for operand, start in zip(list(op.operands)[:count], starts, strict=True)
    ]
    axes = list(range(rank, windows[0].type.rank))
    shapes = [list(map(int, value.type.shape))[:rank] for value in windows]
    reduced = emit.create(
        "stablehlo.reduce",
        [*windows, *starts],
        [with_shape(value.type, shape) for value, shape in zip(windows, shapes, strict=True)],
        {"dimensions": integers(axes)},
        regions=1,
    )
    op.regions[0].blocks[0].append_to(reduced.regions[0])
    results = zip(reduced.results, op.results, strict=True)
    return [linalg.cast(value, result.type) for value, result in results]


def _padded(op: Operation, operand: Value, start: Value) -> Value:
    """The operand, padded and dilated with initial values."""
    rank = operand.type.rank
    dilations = window_steps(op, "base_dilations", rank)
    return pad_and_dilate(operand, window_padding(op, rank), dilations, start)


class _WindowLoops:
    """The loops over the windows of a ``reduce_window`` whose operand is padded.

    The first loops are those of the result's axes, the others of the axes along which a window has
    several elements.
    """

    def __init__(self, op: Operation, operand: Value) -> None:
        self.operand, self.rank = operand, operand.type.rank
        sizes, strides, dilations = (
            window_steps(op, name, self.rank)
            for name in ("window_dimensions", "window_strides", "window_dilations")
        )
        self.counts = [
            window_count((operand, axis), sizes[axis], strides[axis], dilations[axis])
            for axis in range(self.rank)
        ]
        inner = [axis for axis in range(self.rank) if sizes[axis] != 1]
        self.sizes = [sizes[axis] for axis in inner]
        self.loops = self.rank + len(inner)
        loop = [ir.AffineExpr.get_dim(number) for number in range(self.loops)]
        positions = [loop[axis] * strides[axis] for axis in range(self.rank)]
        for axis, each in zip(inner, loop[self.rank :], strict=True):
            positions[axis] = positions[axis] + each * dilations[axis]
        self.maps = [
            ir.AffineMap.get(self.loops, 0, positions),
            ir.AffineMap.get(self.loops, 0, loop[self.rank :]),
        ]
        self.element = operand.type.element_type
        # It is never read: it gives the loops their sizes.
        self.window = linalg.empty(self.sizes, self.element)

    def combined(self, start: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """The initial value combined with the elements of each window."""
        output = linalg.filled(self.counts, linalg.extract(start, []))
        loop = [ir.AffineExpr.get_dim(axis) for axis in range(self.rank)]
        maps = [*self.maps, ir.AffineMap.get(self.loops, 0, loop)]
        kinds: list[linalg.Iterator] = ["parallel"] * self.rank
        kinds += ["reduction"] * (self.loops - self.rank)
        return linalg.generic(
            [self.operand, self.window],
            output,
            maps,
            lambda element, _, accumulator: combine(accumulator, element),
            kinds,
        )

    def elements(self) -> Value:
        """The elements of each window, along axes after those of the operand."""
        output = linalg.empty([*self.counts, *self.sizes], self.element)
        maps = [*self.maps, linalg.identity_map(self.loops)]
        return linalg.generic(
            [self.operand, self.window], output, maps, lambda element, *_: element
        )


_COMBINES: dict[str, Callable[[ArrayLike, ArrayLike], ArrayLike]] = {
    "stablehlo.add": np.add,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
}


def _commutative_body(op: Operation) -> Callable[[Value, Value], Value] | None:
    """The function of two scalars that a body of one commutative operation computes, else None."""
    block = op.regions[0].blocks[0]
    inner = [each.operation for each in block.operations]
    computing = [each for each in inner[:-1] if each.name != _BITCAST]
    if len(op.results) != 1 or len(computing) != 1 or computing[0].name not in _COMBINES:
        return None
    [operation] = computing
    type_ = operation.results[0].type
    is_number = isinstance(element_type(type_), (ir.IntegerType, ir.FloatType))
    # `unsigned_integers` reads bits as another type.
    sources = {value_before(value, _BITCAST) for value in operation.operands}
    is_returned = value_before(inner[-1].operands[0], _BITCAST) == operation.results[0]
    if not is_number or not is_returned or sources != set(block.arguments):
        return None
    element, function = element_of(type_), _COMBINES[operation.name]

    def combine(left: Value, right: Value) -> Value:
        result: ArrayLike = function(emit.scalar(left, element), emit.scalar(right, element))
        return result.value

    return combine
