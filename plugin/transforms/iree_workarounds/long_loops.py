"""Long sums in parts, and how long the loops are that remain (Vulkan).

Mesa's llvmpipe ends the loops of an invocation without a word when they have run 65,535 times,
all of them together. IREE has one invocation add up what a reduction or contraction adds up for an
element of its result, and often what is made of it as well. So a reduction of more than `_MOST`
elements, which would keep a GPU idle too, is written as one of parts of at most so many, and one of
their results; a contraction likewise::

    %r = stablehlo.reduce(%x init: %zero) ... across dimensions = [0] : tensor<70000xf32>

becomes ::

    %parts = stablehlo.reshape %x : tensor<10x7000xf32>
    %sums = stablehlo.reduce(%parts init: %zero) ... across dimensions = [1] : tensor<10xf32>
    %r = stablehlo.reduce(%sums init: %zero) ... across dimensions = [0]

An axis that has no such divisor is padded with the initial value, which the specification lets a
reduction take any number of times; a contracted one with zeros, on both sides.

Source: StableHLO specification, ``reduce``; Mesa 22.3, ``LP_MAX_TGSI_LOOP_ITERATIONS``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type, is_quantized
from ...dialects.windows import dot_axes
from ...emit import linalg, stablehlo
from ...emit.operation import integers, is_dynamic, tensor_type
from ..base import NoMatch

__all__ = [
    "LOOPS",
    "Iterations",
    "iterations_of",
    "split_dot",
    "split_reduce",
]

_MOST = 1 << 13
"""Of the elements of a part; several loops over a part may be in one invocation."""
_MOST_PRODUCTS = 1 << 15
"""Of the products of a part, which are alone in an invocation."""
_MOST_OF_SEVERAL = 1 << 12
"""The same where an invocation has several elements of the result: no vector divides its rows."""
_VECTOR = 4
_PRODUCTS = (
    "linalg.batch_matmul",
    "linalg.batch_matvec",
    "linalg.dot",
    "linalg.matmul",
    "linalg.matvec",
    "linalg.vecmat",
)
"""What adds up products along the last axis of its left operand."""
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
"""The operations of which `iterations_of` knows something."""


# -- splitting ------------------------------------------------------------------------------------


def split_reduce(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Reduce the parts of the longest axis, and then their results."""
    count = len(op.results)
    inputs, starts = list(op.operands)[:count], list(op.operands)[count:]
    shape = [int(extent) for extent in inputs[0].type.shape]
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    parts = _parts([shape[axis] for axis in axes], _MOST)
    if parts is None:
        return NoMatch("reduces few elements, or an unknown number")
    number, size = parts
    axis = max(axes, key=shape.__getitem__)
    split = [
        linalg.behind_barrier(_split(value, axis, number, size, start))
        for value, start in zip(inputs, starts, strict=True)
    ]
    first = _reduced(op, split, starts, [other + (other >= axis) for other in axes])
    place = axis - sum(other < axis for other in axes)
    second = _reduced(op, first, starts, [place])
    rewriter.replace_op(op, second)
    return None


def _reduced(
    op: Operation, inputs: Sequence[Value], starts: Sequence[Value], axes: Sequence[int]
) -> list[Value]:
    """The reduction of other operands with a copy of the body, behind a barrier."""
    types = [
        tensor_type(_extents(value, axes), element_type(result.type))
        for value, result in zip(inputs, op.results, strict=True)
    ]
    copied = op.clone()
    created = emit.like(
        copied, [*inputs, *starts], types, {"dimensions": integers(axes)}, take_bodies=True
    )
    copied.erase()
    return [linalg.behind_barrier(result) for result in created.results]


def split_dot(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Contract the parts of the longest axis as a batch, and add up."""
    if is_quantized(op.operands[1].type):
        return NoMatch("is quantized: legalize-quant-to-math is for it")
    contracted, batch = dot_axes(op)
    left, right = op.operands
    row = int(op.results[0].type.shape[-1]) if len(op.results[0].type.shape) else 1
    most = _MOST_OF_SEVERAL if row % _VECTOR and row > _VECTOR else _MOST_PRODUCTS
    parts = _parts([int(left.type.shape[axis]) for axis in contracted[0]], most)
    if parts is None:
        return NoMatch("contracts short axes, or those of unknown extent")
    number, size = parts
    extents = [int(left.type.shape[axis]) for axis in contracted[0]]
    position = max(range(len(extents)), key=extents.__getitem__)
    operands, batching, contracting = [], [], []
    for value, own_contracted, own_batch in zip((left, right), contracted, batch, strict=True):
        axis = own_contracted[position]
        zero = stablehlo.zero_of(element_type(value.type))
        operands.append(_split(value, axis, number, size, zero))
        batching.append([axis, *(other + (other > axis) for other in own_batch)])
        contracting.append([other + (other >= axis) for other in own_contracted])
    result = op.results[0].type
    element = result.element_type
    wide = ir.F32Type.get() if isinstance(element, (ir.F16Type, ir.BF16Type)) else element
    type_ = tensor_type([number, *_extents(op.results[0])], wide)
    sums = stablehlo.dot_general(operands[0], operands[1], type_, contracting, batching)
    total = stablehlo.reduce(linalg.behind_barrier(sums), [0])
    rewriter.replace_op(op, [stablehlo.convert(total, element)])
    return None


def _extents(value: Value, without: Sequence[int] = ()) -> list[int | None]:
    """The extents of the other axes, None where they are dynamic."""
    shape = [int(extent) for axis, extent in enumerate(value.type.shape) if axis not in without]
    return [None if is_dynamic(extent) else extent for extent in shape]


def _parts(extents: Sequence[int], most: int) -> tuple[int, int] | None:
    """In how many parts of which size the longest axis is cut; None where it need not be."""
    if any(is_dynamic(extent) for extent in extents) or math.prod(extents) <= most:
        return None
    longest = max(extents)
    others = math.prod(extents) // longest
    largest = max(most // others, 1)
    least = -(-longest // largest)
    if least >= longest or least < 2:
        return None
    # A divisor needs no padding.
    number = next((n for n in range(least, 4 * least + 1) if longest % n == 0), least)
    return number, -(-longest // number)


def _split(value: Value, axis: int, number: int, size: int, filling: Value) -> Value:
    """A tensor with an axis as two, of `number` parts of a size."""
    shape = [int(extent) for extent in value.type.shape]
    missing = number * size - shape[axis]
    if missing:
        none = [0] * len(shape)
        high = [missing if other == axis else 0 for other in range(len(shape))]
        value = stablehlo.pad(value, none, high, fill=filling)
    groups = [
        [other] if other < axis else [axis, axis + 1] if other == axis else [other + 1]
        for other in range(len(shape))
    ]
    extents: list[linalg.Extent] = [
        linalg.dim(value, other) if is_dynamic(extent) else extent
        for other, extent in enumerate(shape)
    ]
    extents[axis : axis + 1] = [number, size]
    if all(isinstance(extent, int) for extent in extents):
        return stablehlo.reshape(value, [int(n) for n in extents if isinstance(n, int)])
    return linalg.expand(value, groups, extents)


# -- what is left ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Iterations:
    """How often loops run: a known number, times extents that are known at run time.

    With such extents it is a bound: loops that IREE cannot join, because it does not know how long
    they are, run inside one another, and each counts, at most as often as the innermost.
    """

    known: int
    unknown: tuple[tuple[Value, int], ...] = ()


def iterations_of(op: Operation) -> Iterations:
    """How many iterations an operation needs for one element of its result."""
    if op.name == "stablehlo.sort":  # each element with each, by one invocation
        axis = int(op.attributes["dimension"].value)  # as `stable_sort` leaves it
        found = _product([(op.operands[0], axis)])
        return Iterations(found.known * max(found.known - 1, 1), found.unknown * 2)
    if op.name == "stablehlo.reduce_window":
        return Iterations(math.prod(int(n) for n in op.attributes["window_dimensions"]))
    if op.name == "stablehlo.convolution":
        kernel = op.operands[1]  # whose last axis is the result's features, see `convolutions`
        return _product([(kernel, axis) for axis in range(kernel.type.rank - 1)])
    if op.name in ("linalg.reduce", "stablehlo.reduce"):
        return _product([(op.operands[0], int(axis)) for axis in op.attributes["dimensions"]])
    if op.name in ("stablehlo.dot", "stablehlo.dot_general"):
        return _product([(op.operands[0], axis) for axis in dot_axes(op)[0][0]])
    if op.name in _PRODUCTS:
        return _product([(op.operands[0], op.operands[0].type.rank - 1)])
    return _reduced_by_loops(op)


def _product(axes: Sequence[tuple[Value, int]]) -> Iterations:
    """The product of the extents of some axes."""
    extents = [int(tensor.type.shape[axis]) for tensor, axis in axes]
    known = math.prod(extent for extent in extents if not is_dynamic(extent))
    unknown = tuple(each for each, n in zip(axes, extents, strict=True) if is_dynamic(n))
    return Iterations(known * len(axes) if unknown else known, unknown)


def _reduced_by_loops(op: Operation) -> Iterations:
    """The product of the extents of the loops of a loop nest that reduce."""
    reduces = ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
    found: dict[int, tuple[Value, int]] = {}
    for operand, map_ in zip(op.operands, op.attributes["indexing_maps"], strict=True):
        if not isinstance(operand.type, ir.ShapedType):
            continue
        for axis, expr in enumerate(map_.value.results):
            if not isinstance(expr, ir.AffineDimExpr) or not reduces[expr.position]:
                continue
            is_known = not is_dynamic(int(operand.type.shape[axis]))
            if is_known or expr.position not in found:
                found[expr.position] = operand, axis
    return _product(list(found.values())) if any(reduces) else Iterations(0)
