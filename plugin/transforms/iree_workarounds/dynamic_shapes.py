"""``dynamic_pad``, ``_reshape``, ``_gather`` and ``_conv``, and ``pad`` of dynamic shapes.

Symptom: IREE refuses ``dynamic_pad``, ``dynamic_reshape`` to unknown sizes, ``dynamic_gather``,
``dynamic_conv`` whose padding is no constant, and a ``pad`` of a dynamic shape with interior or
negative padding (all targets).
Cause: IREE 3.13 has no lowering for these forms.
Test: `test_forms_that_are_still_refused` in tests/test_iree_limits.py (``pad``).

* A pad is a loop nest over the result; each element is one of the operand or the padding value.
* A reshape goes through a flat tensor, whose element count is checked at run time.
* The slice sizes of a gather are the sizes of its result: it is a ``gather`` where they are static.
* A convolution whose padding is known at run time is a pad, and a convolution without padding.

Source: StableHLO specification, sections of the operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ... import emit
from ...core._mlir import Operation, Value, stablehlo
from ...dialects.windows import pad_amounts, window_steps
from ...emit import ArrayLike, linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.linalg import name_and_place
from ...emit.operation import attributes_of, integers, is_dynamic, tensor_type
from ..base import NoMatch, Replacement
from .dynamic_broadcasts import entry_of_shape
from .loop_nests import elements_nest, index_scalar, is_static
from .unsigned_integers import bits_as, signless


def expand_dynamic_pad(op: Operation) -> Value:
    """Rewrite a ``dynamic_pad`` as a loop nest."""
    rank = op.operands[0].type.rank
    low, high, interior = (
        [index_scalar(entry_of_shape(shape, axis)) for axis in range(rank)]
        for shape in op.operands[2:]
    )
    return _padded(op, low, high, interior)


def expand_pad(op: Operation) -> Replacement:
    """Rewrite a ``pad`` of a dynamic shape as a loop nest, if IREE refuses it."""
    if not is_refused_pad(op):
        return NoMatch("has a static shape, or adds elements at the ends only")
    low, high, interior = (each.tolist() for each in pad_amounts(op))
    return _padded(op, low, high, interior)


def is_refused_pad(op: Operation) -> bool:
    """True for a ``pad`` of a dynamic shape with interior or negative padding."""
    if is_static(op.operands[0], op.results[0]):
        return False
    edges = [*op.attributes["edge_padding_low"], *op.attributes["edge_padding_high"]]
    return any(op.attributes["interior_padding"]) or min(edges, default=0) < 0


def _padded(
    op: Operation,
    low: Sequence[ArrayLike | int],
    high: Sequence[ArrayLike | int],
    interior: Sequence[ArrayLike | int],
) -> Value:
    """Emit the pad: element ``i`` is the operand's at ``(i - low) / (interior + 1)``, if any.

    Unsigned integers are read as their bits: IREE extracts elements of signless integers only.
    """
    operand, padding = (bits_as(value, signless(value.type)) for value in list(op.operands)[:2])
    target, rank = signless(op.results[0].type), operand.type.rank
    sizes = [index_scalar(linalg.dim(operand, axis)) for axis in range(rank)]
    result_sizes: list[linalg.DimSize] = []
    for axis, size in enumerate(map(int, target.shape)):
        inner: ArrayLike = np.maximum(sizes[axis] - 1, 0) * interior[axis]
        whole: ArrayLike = low[axis] + high[axis] + sizes[axis] + inner
        result_sizes.append(np.maximum(whole, 0).value if is_dynamic(size) else size)
    fill = linalg.extract(padding, [])

    def element() -> Value:
        is_inside: ArrayLike = True
        positions: list[ArrayLike] = []
        for axis in range(rank):
            offset = index_scalar(linalg.loop_index(axis)) - low[axis]
            step = interior[axis] + 1
            divisor = linalg.constant_index(step) if isinstance(step, int) else step.value
            quotient, remainder = (
                index_scalar(emit.value(name, [offset.value, divisor], offset.value.type))
                for name in ("arith.divsi", "arith.remsi")
            )
            is_element = (offset >= 0) & (remainder == 0) & (quotient < sizes[axis])
            positions.append(np.where(is_element, quotient, 0))
            is_inside = is_element if axis == 0 else is_inside & is_element
        read = linalg.extract(operand, [position.value for position in positions])
        if not rank:
            return read
        return emit.value("arith.select", [is_inside.value, read, fill], read.type)

    return bits_as(elements_nest(result_sizes, target, element), op.results[0].type)


def expand_dynamic_reshape(op: Operation) -> Replacement:
    """Rewrite a ``dynamic_reshape`` as a reshape of a flat tensor."""
    operand, shape = op.operands
    target = signless(op.results[0].type)
    if target.has_static_shape or not operand.type.rank:
        return NoMatch("has a static result, or a scalar operand")
    operand = bits_as(operand, signless(operand.type))
    flat = linalg.collapse(operand, [list(range(operand.type.rank))])
    flat = linalg.cast(flat, tensor_type([None], target.element_type))
    entries = [index_scalar(entry_of_shape(shape, axis)) for axis in range(target.rank)]
    linalg.check(
        (index_scalar(linalg.dim(flat, 0)) == math.prod(entries[1:], start=entries[0])).value,
        f"{name_and_place(op)}: the shape must have as many elements as the operand",
    )
    sizes: list[linalg.DimSize] = [
        entry.value if is_dynamic(int(size)) else int(size)
        for entry, size in zip(entries, target.shape, strict=True)
    ]
    expanded = linalg.expand(flat, [list(range(target.rank))], sizes)
    return bits_as(linalg.cast(expanded, target), op.results[0].type)


def expand_dynamic_gather(op: Operation) -> Replacement:
    """Rewrite a ``dynamic_gather`` as a ``gather`` if its result's offset axes are static."""
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
        return NoMatch("has slices of a dynamic size")
    attributes = {**attributes_of(op), "slice_sizes": integers(sizes)}
    return emit.value("stablehlo.gather", [operand, indices], result, attributes)


def expand_dynamic_conv(op: Operation) -> Value:
    """Rewrite a ``dynamic_conv`` as a ``convolution`` of the dilated and padded operand."""
    operand, kernel, padding = op.operands
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial, rank = list(numbers.input_spatial_dimensions), operand.type.rank
    dilations = window_steps(op, "lhs_dilation", len(spatial))
    interior = [0] * rank
    for axis, dilation in zip(spatial, dilations, strict=True):
        interior[axis] = dilation - 1
    element = padding.type.element_type
    low, high = (_by_axis(padding, side, spatial, rank) for side in (0, 1))
    shape = [int(size) for size in operand.type.shape]
    padded = emit.value(
        "stablehlo.dynamic_pad",
        [
            operand,
            emit_stablehlo.zero_of(operand.type.element_type),
            *(low, high, emit_stablehlo.constant(np.array(interior), element)),
        ],
        tensor_type(
            [None if axis in spatial else size for axis, size in enumerate(shape)],
            operand.type.element_type,
        ),
    )
    attributes = attributes_of(op)
    for name in ("padding", "lhs_dilation"):
        attributes.pop(name, None)
    result = op.results[0].type
    return emit.value("stablehlo.convolution", [padded, kernel], result, attributes)


def _by_axis(padding: Value, side: int, spatial: Sequence[int], rank: int) -> Value:
    """One side of a window's padding, for each axis of the operand."""
    zero = emit_stablehlo.constant(np.zeros(1), padding.type.element_type)
    entries = [zero] * rank
    for number, axis in enumerate(spatial):
        entry = emit_stablehlo.slice_(padding, [number, side], [number + 1, side + 1])
        entries[axis] = emit_stablehlo.reshape(entry, [1])
    return emit_stablehlo.concatenate(entries, 0)
