"""Zero-point correction: contractions of differences as contractions of storage values.

With storage ``q``, zero points ``z`` and sums over the contracted elements ``k``::

    sum_k (q1[k] - z1) * (q2[k] - z2)
        = dot(q1, q2) - z2 * sum_k q1 - z1 * sum_k q2 + K * z1 * z2

The dot is 8 bits wide if the storage has at most 8 bits. The sums of a constant are computed at
compile time. With style ``inside`` the differences are contracted instead; with ``mixed``, if that
keeps the right operand, usually the larger one, in its storage type.

Two's complement wraps and unwraps, so only the corrected result has to fit the accumulator. A
convolution pads its left operand with ``z1``, which expresses 0; each window is then whole, and
``sum_k q2`` is a constant of the output feature. A right zero point of a convolution is subtracted
first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...core.option_fields import ZeroPoints
from ...dialects.dense import constant_array
from ...dialects.grids import zero_point_grid
from ...dialects.quant import parameters_of
from ...dialects.windows import edge_padding, window_padding, window_steps
from ...emit import ArrayLike, Tensors, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import dense, element_of, integers, is_dynamic, mlir_type
from ...emit.stablehlo_semantics import MOVEMENT
from ...numerics.array_functions import convert
from ...numerics.element_types import I64, AnyArray, Array, ElementType
from ..base import producer_named
from ..quantization.math.contraction import MAX_UNSPLIT_BOUND, Contraction, Side
from ..quantization.math.operands import Operand, difference_of_blocks


def correct_zero_points(op: Operation, style: ZeroPoints) -> Value | None:
    """The accumulator of a contraction of two differences, from their storage.

    None for other operations, blocks, and integers of over 17 bits. `style` is the place of the
    subtraction.
    """
    name = "subquant.subtract_zero_point"
    subtractions = [producer_named(value, name) for value in list(op.operands)[:2]]
    if any(subtraction is None for subtraction in subtractions):
        return None
    quantized = [subtraction.operands[0] for subtraction in subtractions]
    all_parameters = [parameters_of(value.type) for value in quantized]
    if any(each is not None and each.granularity == "sub-channel" for each in all_parameters):
        return None
    left, right = (_Multiplicand(Operand.of(value, op)) for value in quantized)
    if max(left.operand.bound, right.operand.bound) >= MAX_UNSPLIT_BOUND:
        return None
    correction = _Correction(Contraction.of(op), left, right, element_of(op.results[0].type))
    inside = style == "inside" or (style == "mixed" and not right.zero_points.any())
    if correction.contraction.is_window:
        return correction.of_window(inside)
    return correction.of_differences() if inside else correction.of_dot()


@dataclass(frozen=True)
class _Multiplicand:
    """An operand of a contraction as signed integers of 8, 16 or 32 bits.

    Unsigned storage that fills its container is shifted: half of its range is subtracted.
    """

    operand: Operand

    @property
    def shift(self) -> int:
        """The constant that is subtracted from storage values."""
        storage = self.operand.parameters.storage
        if storage.signed or storage.width < storage.container_width:
            return 0
        return 1 << (storage.width - 1)

    @cached_property
    def narrow(self) -> ArrayLike:
        """The storage values less the shift."""
        storage = self.operand.parameters.storage
        container = ElementType.parse(f"i{storage.container_width}")
        narrow: ArrayLike = convert(self.operand.stored, container)
        return narrow ^ -self.shift if self.shift else narrow

    @property
    def zero_points(self) -> Array:
        """The zero points less the shift."""
        return self.operand.parameters.zero_points - self.shift

    def zero_point_grid(self, rank: int, side: Side) -> Array:
        """The zero points less the shift, as a grid of the result."""
        return zero_point_grid(self.operand.parameters, rank, side.to_result) - self.shift

    @property
    def constant(self) -> Array | None:
        """The storage values of a constant operand, less the shift."""
        value = self.operand.stored.value
        movements = []
        while (op := producer_named(value, *MOVEMENT)) is not None:
            movements.append(op)
            value = op.operands[0]
        values = constant_array(value)
        if values is None:
            return None
        for op in reversed(movements):
            values = MOVEMENT[op.name](op, values)
        storage = self.operand.parameters.storage
        return (values if storage.signed else values & ((1 << storage.width) - 1)) - self.shift

    @property
    def difference(self) -> ArrayLike:
        """The operand with its zero point subtracted."""
        return difference_of_blocks(self.operand) if self.zero_points.any() else self.narrow


@dataclass(frozen=True)
class _Correction:
    """One contraction, written on storage values."""

    contraction: Contraction
    left: _Multiplicand
    right: _Multiplicand
    accumulator: ElementType

    def of_differences(self) -> Value:
        """``sum_k (q1[k] - z1) * (q2[k] - z2)`` of differences."""
        return self._contract(self.left.difference, self.right.difference)

    def of_dot(self) -> Value:
        """A dot of the storage, corrected by the sums of both operands over K."""
        contraction = self.contraction
        acc: ArrayLike = tensor(self._contract(self.left.narrow, self.right.narrow))
        form = acc.form
        zero_left = self.left.zero_point_grid(form.rank, contraction.left)
        zero_right = self.right.zero_point_grid(form.rank, contraction.right)
        for side, multiplicand, zero in (
            (contraction.left, self.left, zero_right),
            (contraction.right, self.right, zero_left),
        ):
            if zero.any():
                acc = acc - self._operand_sums(form, side, multiplicand) * zero
        both = zero_left * zero_right
        if both.any():
            acc = acc + self._products(form) * both
        return acc.value

    def of_window(self, inside: bool) -> Value:
        """A convolution: the left operand padded with its zero point, or both centred."""
        op = self.contraction.op
        zero = self.left.zero_points
        is_dynamic_window = op.name == "stablehlo.dynamic_conv"
        if self.right.zero_points.any() or (zero.any() and (is_dynamic_window or inside)):
            return self.of_differences()
        x, y = _common_width(self.left.narrow, self.right.narrow)
        if not zero.any():
            return self._contract(x, y)
        zero_point = emit_stablehlo.constant(int(zero.reshape(-1)[0]), x.value.type.element_type)
        padded, changed = pad_window(op, x.value, zero_point)
        type_ = mlir_type(self.accumulator)
        acc: ArrayLike = tensor(self.contraction.create(padded, y.value, type_, changed))
        weight_sums = self._operand_sums(acc.form, self.contraction.right, self.right)
        return (acc - weight_sums * zero.reshape(-1)[0]).value

    def _contract(self, left: ArrayLike, right: ArrayLike) -> Value:
        x, y = _common_width(left, right)
        return self.contraction.create(x.value, y.value, mlir_type(self.accumulator))

    def _operand_sums(self, form: Tensors, side: Side, multiplicand: _Multiplicand) -> AnyArray:
        """Sums of an operand over its contracted axes, in the result's shape."""

        def integers() -> Value:
            wide: ArrayLike = convert(multiplicand.narrow, self.accumulator)
            return wide.value

        return side.operand_sums(form, multiplicand.constant, integers)

    def _products(self, form: Tensors) -> AnyArray:
        """The number of contracted elements, which may be dynamic."""
        if self.contraction.products is not None:
            return np.int64(self.contraction.products)
        side = self.contraction.left
        total: ArrayLike = None
        for axis in side.contracted:
            size = convert(
                tensor(emit_stablehlo.dimension_size(side.value, axis)), self.accumulator
            )
            total = size if total is None else total * size
        return form.emitted(form.broadcast(total.value))


def _common_width(x: ArrayLike, y: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
    """Sign-extend the narrower of two tensors of integers to the wider one's element type."""
    wide = max((x.element, y.element), key=lambda element: element.bits)
    return convert(x, wide), convert(y, wide)


def pad_window(
    op: Operation, value: Value, zero_point: Value
) -> tuple[Value, dict[str, ir.Attribute]]:
    """Write a convolution's padding and left dilation as a pad with the zero point.

    Args:
        value: the left operand's storage.
        zero_point: a scalar of the storage's element type.

    Returns:
        The padded operand, and the attributes of the convolution that reads it.
    """
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    padding = window_padding(op, len(spatial))
    dilation = window_steps(op, "lhs_dilation", len(spatial))
    if not padding.any() and all(step == 1 for step in dilation):
        return value, {}
    shape = [int(size) for size in value.type.shape]
    low, high, interior = ([0] * len(shape) for _ in range(3))
    for axis, (before, after), step in zip(spatial, padding, dilation, strict=True):
        low[axis], high[axis], interior[axis] = int(before), int(after), step - 1
        if not is_dynamic(shape[axis]):
            inner = (shape[axis] - 1) * step + 1 if shape[axis] else 0
            low[axis], high[axis] = edge_padding(inner, int(before), int(after))
    padded = emit_stablehlo.pad(value, low, high, interior, zero_point)
    none = np.zeros((len(spatial), 2), np.int64)
    return padded, {
        "padding": dense(none, mlir_type(I64)),
        "lhs_dilation": integers([1] * len(spatial)),
    }
