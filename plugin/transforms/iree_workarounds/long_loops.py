"""Long reductions and contractions in parts, and the iteration counts of all loops (Vulkan).

Symptom: wrong results, without an error, on Mesa's llvmpipe.
Cause: Mesa ends the loops of an invocation after 65,535 iterations, all of them together. IREE 3.13
has one invocation accumulate an element of a result, and often compute its consumers too.
Test: `test_llvmpipe_still_ends_loops` in tests/test_long_loops.py.

A reduction of more than `_MAX_REDUCED_PER_PART` elements, which would keep a GPU idle too, becomes
one of parts, and one of the results of the parts; a contraction likewise::

    %r = stablehlo.reduce(%x init: %zero) ... across dimensions = [0] : tensor<70000xf32>

becomes ::

    %parts = stablehlo.reshape %x : tensor<10x7000xf32>
    %sums = stablehlo.reduce(%parts init: %zero) ... across dimensions = [1] : tensor<10xf32>
    %r = stablehlo.reduce(%sums init: %zero) ... across dimensions = [0]

An axis without a suitable divisor is padded with the initial value, which a reduction may use any
number of times; a contracted axis with zeros, on both sides.

Source: StableHLO specification, ``reduce``; Mesa 22.3, ``LP_MAX_TGSI_LOOP_ITERATIONS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type, is_quantized
from ...dialects.windows import dot_axes
from ...emit import linalg, stablehlo
from ...emit.operation import integers, is_dynamic, tensor_type
from ..base import NoMatch, Replacement
from .cross_thread_reads import reduction_loops
from .loop_nests import split_axis, with_copied_body

_MAX_REDUCED_PER_PART = 1 << 13
"""Elements of a part of a reduction, at most; several loops of an invocation stay under 65,535."""
_MAX_PRODUCTS_PER_PART = 1 << 15
"""Products of a part of a contraction, at most; an invocation runs no other loop."""
_MAX_PRODUCTS_WITHOUT_VECTORS = 1 << 12
"""Products of a part if an invocation has several elements, as rows fill no vectors."""
_LANES = 4
"""The lanes of a SPIR-V vector, which a row has to fill."""
_PRODUCTS = tuple(
    f"linalg.{name}"
    for name in ("batch_matmul", "batch_matvec", "dot", "matmul", "matvec", "vecmat")
)
"""Operations that accumulate products along the last axis of their left operand."""
LOOPS = (
    *_PRODUCTS,
    "linalg.generic",
    "linalg.reduce",
    "stablehlo.convolution",
    "stablehlo.dot",
    "stablehlo.dot_general",
    "stablehlo.reduce",
    "stablehlo.reduce_window",
    "stablehlo.sort",
)
"""Operations that `iterations_of` supports."""


def split_reduce(op: Operation) -> Replacement:
    """Reduce the parts of the longest axis, and then their results."""
    count = len(op.results)
    inputs, starts = list(op.operands)[:count], list(op.operands)[count:]
    shape = [int(size) for size in inputs[0].type.shape]
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    division = _part_sizes([shape[axis] for axis in axes], _MAX_REDUCED_PER_PART)
    if division is None:
        return NoMatch("reduces few elements, or a dynamic number")
    number, size = division
    axis = max(axes, key=shape.__getitem__)
    split = [
        linalg.with_barrier(_split_into_parts(value, axis, number, size, start))
        for value, start in zip(inputs, starts, strict=True)
    ]
    first = _reduce_copy(op, split, starts, [other + (other >= axis) for other in axes])
    return _reduce_copy(op, first, starts, [axis - sum(a < axis for a in axes)])


def _reduce_copy(
    op: Operation, inputs: Sequence[Value], starts: Sequence[Value], axes: Sequence[int]
) -> list[Value]:
    """The reduction of other operands with a copy of the body, behind a barrier."""
    types = [
        tensor_type(_sizes(value, axes), element_type(result.type))
        for value, result in zip(inputs, op.results, strict=True)
    ]
    created = with_copied_body(op, [*inputs, *starts], types, {"dimensions": integers(axes)})
    return [linalg.with_barrier(result) for result in created.results]


def split_dot(op: Operation) -> Replacement:
    """Contract the parts of the longest axis as a batch, and add up."""
    if is_quantized(op.operands[1].type):
        return NoMatch("is quantized: legalize-quant-to-math lowers it")
    contracted, batch = dot_axes(op)
    left, right = op.operands
    row = int(op.results[0].type.shape[-1]) if len(op.results[0].type.shape) else 1
    is_unvectorized = row % _LANES and row > _LANES
    limit = _MAX_PRODUCTS_WITHOUT_VECTORS if is_unvectorized else _MAX_PRODUCTS_PER_PART
    sizes = [int(left.type.shape[axis]) for axis in contracted[0]]
    division = _part_sizes(sizes, limit)
    if division is None:
        return NoMatch("contracts short axes, or dynamic ones")
    number, size = division
    position = max(range(len(sizes)), key=sizes.__getitem__)
    operands, batching, contracting = [], [], []
    for value, own_contracted, own_batch in zip((left, right), contracted, batch, strict=True):
        axis = own_contracted[position]
        zero = stablehlo.zero_of(element_type(value.type))
        operands.append(_split_into_parts(value, axis, number, size, zero))
        batching.append([axis, *(other + (other > axis) for other in own_batch)])
        contracting.append([other + (other >= axis) for other in own_contracted])
    result = op.results[0].type
    element = result.element_type
    wide = ir.F32Type.get() if isinstance(element, (ir.F16Type, ir.BF16Type)) else element
    type_ = tensor_type([number, *_sizes(op.results[0])], wide)
    partial = stablehlo.dot_general(operands[0], operands[1], type_, contracting, batching)
    total = stablehlo.reduce(linalg.with_barrier(partial), [0])
    return stablehlo.convert(total, element)


def _sizes(value: Value, without: Sequence[int] = ()) -> list[int | None]:
    """The sizes of the other axes; None where they are dynamic."""
    shape = [int(size) for axis, size in enumerate(value.type.shape) if axis not in without]
    return [None if is_dynamic(size) else size for size in shape]


def _part_sizes(sizes: Sequence[int], limit: int) -> tuple[int, int] | None:
    """The number and the size of the parts of the longest axis; None if it need not be split."""
    if any(map(is_dynamic, sizes)) or math.prod(sizes) <= limit:
        return None
    longest = max(sizes)
    max_size = max(limit * longest // math.prod(sizes), 1)
    min_count = -(-longest // max_size)
    if min_count >= longest or min_count < 2:
        return None
    # A divisor needs no padding.
    count = next((n for n in range(min_count, 4 * min_count + 1) if longest % n == 0), min_count)
    return count, -(-longest // count)


def _split_into_parts(value: Value, axis: int, number: int, size: int, fill: Value) -> Value:
    """Split an axis into `number` parts of a size."""
    shape = [int(n) for n in value.type.shape]
    missing = number * size - shape[axis]
    if missing:
        none = [0] * len(shape)
        high = [missing if other == axis else 0 for other in range(len(shape))]
        value = stablehlo.pad(value, none, high, fill=fill)
    if any(map(is_dynamic, shape)):
        return split_axis(value, axis, number)
    return stablehlo.reshape(value, [*shape[:axis], number, size, *shape[axis + 1 :]])


@dataclass(frozen=True)
class Iterations:
    """The iteration count of loops: a static factor times dynamic dimension sizes.

    With dynamic sizes it is an upper bound: IREE cannot join loops of unknown length, so they are
    nested, and each counts at most as often as the innermost.
    """

    static: int
    dynamic: tuple[tuple[Value, int], ...] = ()


def iterations_of(op: Operation) -> Iterations:
    """The number of iterations that an operation needs for one element of its result."""
    if op.name == "stablehlo.sort":  # each element with each, by one invocation
        axis = int(op.attributes["dimension"].value)  # as `stable_sort` leaves it
        length = _product([(op.operands[0], axis)])
        return Iterations(length.static * max(length.static - 1, 1), length.dynamic * 2)
    if op.name == "stablehlo.reduce_window":
        return Iterations(math.prod(int(n) for n in op.attributes["window_dimensions"]))
    if op.name == "stablehlo.convolution":
        kernel = op.operands[1]  # its last axis are the result's features: see `convolutions`
        return _product([(kernel, axis) for axis in range(kernel.type.rank - 1)])
    if op.name in ("linalg.reduce", "stablehlo.reduce"):
        return _product([(op.operands[0], int(axis)) for axis in op.attributes["dimensions"]])
    if op.name in ("stablehlo.dot", "stablehlo.dot_general"):
        return _product([(op.operands[0], axis) for axis in dot_axes(op)[0][0]])
    if op.name in _PRODUCTS:
        return _product([(op.operands[0], op.operands[0].type.rank - 1)])
    return _reduced_by_loops(op)


def _product(axes: Sequence[tuple[Value, int]]) -> Iterations:
    """The product of the sizes of some axes."""
    sizes = [int(tensor.type.shape[axis]) for tensor, axis in axes]
    static = math.prod(size for size in sizes if not is_dynamic(size))
    dynamic = tuple(each for each, size in zip(axes, sizes, strict=True) if is_dynamic(size))
    return Iterations(static * len(axes) if dynamic else static, dynamic)


def _reduced_by_loops(op: Operation) -> Iterations:
    """The product of the sizes of the reduction loops of a loop nest."""
    is_reduction = reduction_loops(op)
    axes: dict[int, tuple[Value, int]] = {}
    for operand, map_ in zip(op.operands, op.attributes["indexing_maps"], strict=True):
        if not isinstance(operand.type, ir.ShapedType):
            continue
        for axis, expr in enumerate(map_.value.results):
            if not isinstance(expr, ir.AffineDimExpr) or not is_reduction[expr.position]:
                continue
            is_static = not is_dynamic(int(operand.type.shape[axis]))
            if is_static or expr.position not in axes:
                axes[expr.position] = operand, axis
    return _product(list(axes.values())) if any(is_reduction) else Iterations(0)
