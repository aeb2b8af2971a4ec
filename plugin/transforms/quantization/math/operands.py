"""Quantized operands of rules: storage, exact scales, differences, expressed values.

Scales are exact rationals (`fractions.Fraction`) until they are written into the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....core._mlir import Operation, Value, ir
from ....dialects.grids import axis_grid, grids_of, scale_grid, zero_point_grid
from ....dialects.quant import element_type, expressed_mlir_type, parameters_of
from ....emit import ArrayLike, Tensors, stored, tensor, value, with_element
from ....emit import stablehlo as emit_stablehlo
from ....emit.casts import Scaled, ScaledSum, requantize
from ....emit.operation import mlir_type
from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.casts import Cast, Division
from ....numerics.element_types import I32, I64, Array, ElementType
from ....numerics.parameters import ExpressedType, QuantizationParameters


def same_values(left: QuantizationParameters, right: QuantizationParameters) -> bool:
    """True if equal storage values express equal values, whatever axis is quantized."""
    return (
        left.storage == right.storage
        and left.expressed == right.expressed
        and np.array_equal(left.scales.reshape(-1), right.scales.reshape(-1))
        and np.array_equal(left.zero_points.reshape(-1), right.zero_points.reshape(-1))
    )


@dataclass(frozen=True)
class Operand:
    """A quantized operand of a formula, and the parameters of its type.

    `implied_bound` bounds its differences below the storage's bound.
    """

    quantized: Value
    parameters: QuantizationParameters
    implied_bound: int | None = None

    @staticmethod
    def of(
        value_: Value, op: Operation, implied_bound: int | None = None, *, blocks: bool = False
    ) -> Operand:
        """The operand for a quantized value of `op`; UnsupportedError for sub-channel types.

        With `blocks` they are accepted; their blocks must divide a static shape.
        """
        parameters = parameters_of(value_.type, op)
        assert parameters is not None  # checked by callers
        if parameters.granularity == "sub-channel" and not blocks:
            raise UnsupportedError(
                f"has an operand or result of the sub-channel type '{element_type(value_.type)}', "
                "which StableHLO does not have; dequantize it first (quant.dcast)",
                op,
            )
        return Operand(value_, parameters, implied_bound)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.quantized.type.shape)

    @property
    def bound(self) -> int:
        """The greatest magnitude of storage value minus zero point."""
        bound = self.parameters.greatest_difference
        return bound if self.implied_bound is None else min(bound, self.implied_bound)

    @cached_property
    def stored(self) -> ArrayLike:
        """The storage values."""
        return tensor(stored(self.quantized), self.parameters.storage.element)

    def widened(self, min_element: ElementType = I32) -> ArrayLike:
        """The storage values as signed integers of at least the width of `min_element`."""
        storage = self.parameters.storage
        wide = I64 if storage.width == 32 and not storage.signed else min_element
        converted: ArrayLike = convert(self.stored, wide)
        return converted

    @property
    def difference_element(self) -> ElementType:
        """i32, or i64 where a difference or the storage itself would overflow i32."""
        storage = self.parameters.storage
        greatest = self.parameters.greatest_difference
        wide = greatest >= 1 << 31 or (storage.width == 32 and not storage.signed)
        return I64 if wide else I32

    @cached_property
    def difference(self) -> ArrayLike:
        """Storage value minus zero point, as ``subquant.subtract_zero_point``."""
        type_ = with_element(self.quantized.type, mlir_type(self.difference_element))
        return tensor(value("subquant.subtract_zero_point", [self.quantized], type_))

    @property
    def real(self) -> ScaledSum:
        """``scale * (storage - zero point)``."""
        scales = axis_grid(self.parameters, self.parameters.scales, self.rank)
        return ScaledSum((Scaled(self.difference, self.bound, (scales.astype(np.float64),)),))

    def scales(self) -> Array:
        """The exact scales, as a grid of this operand's axes."""
        return scale_grid(self.parameters, self.rank)

    def in_parameters(self, target: QuantizationParameters) -> ArrayLike:
        """The storage values of other parameters that are nearest to the expressed values."""
        if self.parameters == target:
            return self.stored
        return tensor(requantize(self.real, target), target.storage.element)


def difference_of_blocks(operand: Operand) -> ArrayLike:
    """Lower ``subquant.subtract_zero_point`` of any granularity with whole blocks."""
    wide = operand.widened(operand.difference_element)
    assert isinstance(wide.form, Tensors)
    _, zero_points = grids_of(operand.parameters, wide.form.shape)
    result: ArrayLike = wide - zero_points if zero_points.any() else wide
    return result


def dequantize(operand: Operand, op: Operation, division: Division) -> ArrayLike:
    """The expressed values of an operand."""
    cast = _checked_cast(operand.parameters, op, division)
    return cast.dequantize(operand.stored, *_grids(operand.parameters, operand.rank))


def quantize(
    expressed: ArrayLike, target: QuantizationParameters, op: Operation, division: Division
) -> ArrayLike:
    """The storage values of a tensor of the target's expressed type."""
    rank = len(expressed.value.type.shape)
    return _checked_cast(target, op, division).quantize(expressed, *_grids(target, rank))


def dequantize_blocks(
    split: ArrayLike, parameters: QuantizationParameters, op: Operation, division: Division
) -> ArrayLike:
    """Dequantize storage that `split_blocks` has split."""
    cast = _checked_cast(parameters, op, division)
    return cast.dequantize(split, *_split_grids(parameters, split))


def quantize_blocks(
    split: ArrayLike, parameters: QuantizationParameters, op: Operation, division: Division
) -> ArrayLike:
    """Quantize expressed values that `split_blocks` has split."""
    cast = _checked_cast(parameters, op, division)
    return cast.quantize(split, *_split_grids(parameters, split))


def _checked_cast(parameters: QuantizationParameters, op: Operation, division: Division) -> Cast:
    check_scales(parameters, op)
    return Cast(parameters.storage, parameters.expressed, division=division)


def _grids(parameters: QuantizationParameters, rank: int) -> tuple[Array, Array]:
    """Scales, rounded to the expressed type, and zero points."""
    return axis_grid(parameters, parameters.scales, rank), zero_point_grid(parameters, rank)


def split_blocks(
    value_: Value, parameters: QuantizationParameters, op: Operation
) -> tuple[Value, Callable[[Value], Value]]:
    """Split each axis of a tensor into (block number, position in block).

    The results are the reshaped tensor of twice the rank, and the inverse reshape of results.

    Raises:
        UnsupportedError: a shape that is not static, or a ragged last block.
    """
    type_ = value_.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise UnsupportedError(
            f"casts a value of '{type_}', expected a tensor of a static shape for StableHLO's "
            "operations; leave it to lower-quant-casts",
            op,
        )
    shape = [int(n) for n in type_.shape]
    split: list[int] = []
    for size, block in zip(shape, parameters.block_shape(shape), strict=True):
        if block and size % block:
            raise UnsupportedError(
                f"has a ragged last block ({size} elements in blocks of {block}); leave it to "
                "lower-quant-casts",
                op,
            )
        split += [size // block, block] if block else [1, size]

    def restore(result: Value) -> Value:
        original = ir.RankedTensorType.get(shape, result.type.element_type, type_.encoding)
        return value("stablehlo.reshape", [result], original)

    return emit_stablehlo.reshape(value_, split), restore


def _split_grids(parameters: QuantizationParameters, split: ArrayLike) -> tuple[Array, Array]:
    """Scales and zero points with size 1 along each position in a block."""
    rank = len(split.value.type.shape) // 2
    if parameters.granularity == "per-tensor":
        return parameters.scales, parameters.zero_points
    scales, zero_points = parameters.grids(rank)
    shape = [n for count in scales.shape for n in (count, 1)]
    return scales.reshape(shape), zero_points.reshape(shape)


def float_type(type_: ir.Type) -> ir.Type:
    """A quantized tensor type with its expressed element type."""
    parameters = parameters_of(type_)
    assert parameters is not None  # checked by callers
    return with_element(type_, expressed_mlir_type(parameters.expressed))


def check_scales(parameters: QuantizationParameters, op: Operation) -> None:
    """Refuse scales that IREE's runtimes get wrong, as they flush subnormal floats to zero.

    With a scale of more than twice the least normal number, no product is subnormal, and a
    subnormal value quantizes as zero does. f16 is computed from f32 values and is not flushed.
    """
    expressed = parameters.expressed
    least = 2 * expressed.smallest_normal
    if expressed is not ExpressedType.F16 and (parameters.scales <= least).any():
        raise UnsupportedError(
            f"has the scale {float(parameters.scales.min()):g}, expected more than {least:g}: "
            f"IREE's runtimes flush subnormal {expressed.value} values to zero; use a wider "
            "expressed type",
            op,
        )
