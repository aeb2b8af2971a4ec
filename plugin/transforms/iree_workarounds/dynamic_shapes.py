"""``dynamic_pad``, ``_reshape``, ``_gather`` and ``_conv``, and a ``pad`` that IREE refuses.

A ``pad`` of a dynamic shape is refused that adds elements between others, or takes some away. A pad
is a loop over the result, each element of which is read or the padding value. A reshape is one of
all elements in a row, whose number is checked at run time. The sizes of a gather's slices are the
extents of its result, so that it is a ``gather`` where those are known. A convolution whose padding
is known at run time is a pad, and one without padding.

Source: StableHLO specification, the operations' own sections.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, stablehlo
from ...dialects.windows import window_steps
from ...emit import Formula, linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import INDEX, attributes_of, integers, is_dynamic, tensor_type
from ..base import NoMatch
from ..quantization.casts.run_time_checks import name_and_place
from .dynamic_broadcasts import entry_of_shape
from .unsigned_integers import bits_as, signless

__all__ = [
    "expand_dynamic_conv",
    "expand_dynamic_gather",
    "expand_dynamic_pad",
    "expand_dynamic_reshape",
    "expand_pad",
    "is_refused_pad",
]


def expand_dynamic_pad(op: Operation, rewriter: Rewriter) -> None:
    """Write a ``dynamic_pad`` as a loop nest."""
    rank = op.operands[0].type.rank
    low, high, between = (
        [_index(entry_of_shape(number, axis)) for axis in range(rank)] for number in op.operands[2:]
    )
    rewriter.replace_op(op, [_padded(op, low, high, between)])


def expand_pad(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``pad`` of a dynamic shape as a loop nest, if IREE refuses it."""
    if not is_refused_pad(op):
        return NoMatch("has a static shape, or adds elements at the ends only")
    low, high, between = (
        list(map(int, op.attributes[name]))
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    rewriter.replace_op(op, [_padded(op, low, high, between)])
    return None


def is_refused_pad(op: Operation) -> bool:
    """True for a ``pad`` of a dynamic shape between elements, or that takes elements away."""
    if op.operands[0].type.has_static_shape and op.results[0].type.has_static_shape:
        return False
    ends = [*op.attributes["edge_padding_low"], *op.attributes["edge_padding_high"]]
    return any(op.attributes["interior_padding"]) or min(ends, default=0) < 0


def _padded(
    op: Operation,
    low: Sequence[Formula | int],
    high: Sequence[Formula | int],
    between: Sequence[Formula | int],
) -> Value:
    """Element ``i`` is that at ``(i - low) / (interior + 1)``, where that is one.

    Unsigned integers are taken as their bits: IREE extracts signless ones alone.
    """
    operand, padding = (bits_as(value, signless(value.type)) for value in list(op.operands)[:2])
    target, rank = signless(op.results[0].type), operand.type.rank
    sizes = [_index(linalg.dim(operand, axis)) for axis in range(rank)]
    extents: list[linalg.Extent] = []
    for axis, extent in enumerate(map(int, target.shape)):
        inner: Formula = np.maximum(sizes[axis] - 1, 0) * between[axis]
        whole: Formula = low[axis] + high[axis] + sizes[axis] + inner
        extents.append(np.maximum(whole, 0).value if is_dynamic(extent) else extent)
    filling = linalg.extract(padding, [])

    def element(_: Value) -> Value:
        is_inside: Formula = True
        positions: list[Formula] = []
        for axis in range(rank):
            distance = _index(linalg.loop_index(axis)) - low[axis]
            step = between[axis] + 1
            steps = linalg.constant_index(step) if isinstance(step, int) else step.value
            quotient, rest = (
                _index(emit.value(name, [distance.value, steps], distance.value.type))
                for name in ("arith.divsi", "arith.remsi")
            )
            is_element = (distance >= 0) & (rest == 0) & (quotient < sizes[axis])
            positions.append(np.where(is_element, quotient, 0))
            is_inside = is_element if axis == 0 else is_inside & is_element
        read = linalg.extract(operand, [position.value for position in positions])
        if not rank:
            return read
        return emit.value("arith.select", [is_inside.value, read, filling], read.type)

    output = linalg.empty(extents, target.element_type, target.encoding)
    padded = linalg.generic([], output, [linalg.identity_map(rank)], element)
    return bits_as(padded, op.results[0].type)


def expand_dynamic_reshape(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """The elements in a row, in another shape."""
    operand, shape = op.operands
    target = signless(op.results[0].type)
    if target.has_static_shape or not operand.type.rank:
        return NoMatch("has a result of a known shape")
    operand = bits_as(operand, signless(operand.type))
    source = operand.type
    flat = linalg.collapse(operand, [list(range(source.rank))])
    flat = linalg.cast(flat, tensor_type([None], target.element_type))
    extents = [_index(entry_of_shape(shape, axis)) for axis in range(target.rank)]
    count = extents[0]
    for extent in extents[1:]:
        count = count * extent
    linalg.check(
        (_index(linalg.dim(flat, 0)) == count).value,
        f"{name_and_place(op)}: the shape must have as many elements as the operand",
    )
    sizes: list[linalg.Extent] = [
        extent.value if is_dynamic(int(known)) else int(known)
        for extent, known in zip(extents, target.shape, strict=True)
    ]
    expanded = linalg.expand(flat, [list(range(target.rank))], sizes)
    rewriter.replace_op(op, [bits_as(linalg.cast(expanded, target), op.results[0].type)])
    return None


def expand_dynamic_gather(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """A ``gather`` of slices as long as the result's offset axes."""
    operand, indices, _ = op.operands
    result = op.results[0].type
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    single = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = iter(sorted(numbers.offset_dims))
    sizes = [
        1 if axis in single else int(result.shape[next(offsets)])
        for axis in range(operand.type.rank)
    ]
    if any(is_dynamic(size) for size in sizes):
        return NoMatch("has slices of an unknown size")
    attributes = {**attributes_of(op), "slice_sizes": integers(sizes)}
    gathered = emit.value("stablehlo.gather", [operand, indices], result, attributes)
    rewriter.replace_op(op, [gathered])
    return None


def expand_dynamic_conv(op: Operation, rewriter: Rewriter) -> None:
    """A ``convolution`` of the operand, dilated and padded with zeros before."""
    operand, kernel, padding = op.operands
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial, rank = list(numbers.input_spatial_dimensions), operand.type.rank
    dilations = window_steps(op, "lhs_dilation", len(spatial))
    between = [0] * rank
    for axis, dilation in zip(spatial, dilations, strict=True):
        between[axis] = dilation - 1
    element = padding.type.element_type
    low, high = (_by_axis(padding, side, spatial, rank) for side in (0, 1))
    shape = [int(extent) for extent in operand.type.shape]
    padded = emit.value(
        "stablehlo.dynamic_pad",
        [
            operand,
            emit_stablehlo.zero_of(operand.type.element_type),
            *(low, high, emit_stablehlo.constant(np.array(between), element)),
        ],
        tensor_type(
            [None if axis in spatial else extent for axis, extent in enumerate(shape)],
            operand.type.element_type,
        ),
    )
    left_out = ("padding", "lhs_dilation")
    attributes = {name: each for name, each in attributes_of(op).items() if name not in left_out}
    result = op.results[0].type
    rewriter.replace_op(
        op, [emit.value("stablehlo.convolution", [padded, kernel], result, attributes)]
    )


def _by_axis(padding: Value, side: int, spatial: Sequence[int], rank: int) -> Value:
    """One side of a window's padding, for each axis of the operand."""
    zero = emit_stablehlo.constant(np.zeros(1), padding.type.element_type)
    entries = [zero] * rank
    for number, axis in enumerate(spatial):
        entry = emit_stablehlo.slice_(padding, [number, side], [number + 1, side + 1])
        entries[axis] = emit_stablehlo.reshape(entry, [1])
    return emit_stablehlo.concatenate(entries, 0)


def _index(value: Value) -> Formula:
    return emit.scalar(value, INDEX)
