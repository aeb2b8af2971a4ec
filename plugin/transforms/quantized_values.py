"""Quantized values as seen by the lowerings of StableHLO: storage, exact scales, differences.

A quantized value and its storage are connected by ``subquant.scast``, which later passes remove.
Scales are exact rationals (`fractions.Fraction`): what an operation does to integers is decided
from these, and rounded only where it is written into the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .._mlir import ir
from ..dialects.quant import (
    element_type,
    expressed_mlir_type,
    parameters_of,
    storage_mlir_type,
)
from ..errors import UnsupportedError
from ..numerics.element_types import Array
from ..numerics.parameters import ExpressedType, QuantizationParameters
from .arithmetic import CastArithmetic, Division
from .base import Builder
from .requantization import Requantization, Term, requantize, resize, spread_blocks
from .requantize_operation import emit_requantize, is_expressible
from .tensor_builder import TensorBuilder

__all__ = [
    "Operand",
    "as_quantized",
    "check_scales",
    "dequantize",
    "dequantize_as",
    "dequantize_blocks",
    "finish",
    "float_type",
    "quantize",
    "quantize_blocks",
    "same_values",
    "scale_grid",
    "split_blocks",
    "stored",
    "zero_point_grid",
]

_SCASTS = ("quant.scast", "subquant.scast")


def stored(value: Any) -> Any:
    """The storage of a quantized tensor, through a ``subquant.scast`` if it is not at hand."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.operation.name in _SCASTS:
        return owner.operation.operands[0]
    parameters = parameters_of(value.type)
    assert parameters is not None  # callers have looked
    type_ = _with_element(value.type, storage_mlir_type(parameters.storage))
    return Builder().op("subquant.scast", [value], type_)


def as_quantized(value: Any, type_: ir.Type) -> Any:
    """A storage tensor as a value of a quantized tensor type (of a compatible shape)."""
    parameters = parameters_of(type_)
    assert parameters is not None  # callers have looked
    b = Builder()
    expected = _with_element(type_, storage_mlir_type(parameters.storage))
    if value.type != expected:
        value = b.op("tensor.cast", [value], expected)
    return b.op("subquant.scast", [value], type_)


def _with_element(type_: Any, element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(type_.shape), element, type_.encoding)


# -- parameters as grids --------------------------------------------------------------------------


def scale_grid(
    parameters: QuantizationParameters, rank: int, axes: Mapping[int, int] | None = None
) -> Array:
    """The exact scales: an object array of shape (), or with one dimension for each axis.

    Args:
        parameters: per-tensor or per-axis.
        rank: of the tensor that the grid is for.
        axes: where each axis of the quantized tensor is found in that tensor; by default the same.
    """
    return _grid(parameters, rank, axes, _exact(parameters.scales))


def zero_point_grid(
    parameters: QuantizationParameters, rank: int, axes: Mapping[int, int] | None = None
) -> Array:
    """The zero points, an int64 array of the form of `scale_grid`."""
    return _grid(parameters, rank, axes, parameters.zero_points)


def _exact(values: Array) -> Array:
    flat = [Fraction(float(value)) for value in np.asarray(values).reshape(-1)]
    return np.array(flat, object).reshape(np.shape(values))


def _grid(
    parameters: QuantizationParameters, rank: int, axes: Mapping[int, int] | None, values: Array
) -> Array:
    if not parameters.axes:
        return values.reshape(())
    axis = parameters.axes[0]
    shape = [1] * rank
    shape[axis if axes is None else axes[axis]] = values.size
    return values.reshape(shape)


def _grids_of(parameters: QuantizationParameters, b: TensorBuilder) -> tuple[Array, Array]:
    """Scales and zero points as grids of a builder's shape, of any granularity."""
    if parameters.granularity != "sub-channel":
        return scale_grid(parameters, b.rank), zero_point_grid(parameters, b.rank)
    scales, zero_points = parameters.grids(b.rank)
    return _exact(spread_blocks(scales, b.shape)), spread_blocks(zero_points, b.shape)


def same_values(left: QuantizationParameters, right: QuantizationParameters) -> bool:
    """True if the same storage values stand for the same reals, whatever axis is quantized."""
    return (
        left.storage == right.storage
        and left.expressed == right.expressed
        and np.array_equal(left.scales.reshape(-1), right.scales.reshape(-1))
        and np.array_equal(left.zero_points.reshape(-1), right.zero_points.reshape(-1))
    )


# -- integers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """A quantized operand of an elementwise formula: its storage and what that stands for."""

    value: Any
    parameters: QuantizationParameters
    known_bound: int | None = None

    @staticmethod
    def of(value: Any, op: Any, known_bound: int | None = None, *, blocks: bool = False) -> Operand:
        """The operand for a quantized value; UnsupportedError for sub-channel types.

        Args:
            value: the quantized value.
            op: the operation that errors name.
            known_bound: a bound on the differences that is less than the storage's.
            blocks: accept sub-channel types (of blocks that divide a static shape).
        """
        parameters = parameters_of(value.type, op)
        assert parameters is not None  # callers have looked
        if parameters.granularity == "sub-channel" and not blocks:
            raise UnsupportedError(
                f"has an operand or result of the sub-channel type '{element_type(value.type)}', "
                "which StableHLO does not have; dequantize it first (quant.dcast)",
                op,
            )
        return Operand(stored(value), parameters, known_bound)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.value.type.shape)

    @property
    def bound(self) -> int:
        """The greatest magnitude of storage value minus zero point."""
        bound = self.parameters.greatest_difference
        return bound if self.known_bound is None else min(bound, self.known_bound)

    def scales(self) -> Array:
        """The exact scales, as a grid of this operand's axes."""
        return scale_grid(self.parameters, self.rank)

    @property
    def difference_type(self) -> ir.IntegerType:
        """i32, or i64 where a difference or the storage itself would overflow i32."""
        storage = self.parameters.storage
        wide = self.bound >= 1 << 31 or (storage.width == 32 and not storage.signed)
        return ir.IntegerType.get_signless(64 if wide else 32)

    def widened(self, b: Builder, least: int = 32) -> Any:
        """The storage values as signed integers of at least `least` bits."""
        storage = self.parameters.storage
        wide = b.i64 if least > 32 or (storage.width == 32 and not storage.signed) else b.i32
        if storage.width == wide.width:
            return self.value
        return b.op("arith.extsi" if storage.signed else "arith.extui", [self.value], wide)

    def difference(self, b: TensorBuilder) -> Any:
        """Storage value minus zero point, as i32, or i64 where i32 would overflow."""
        value = self.widened(b, self.difference_type.width)
        _, zero_points = _grids_of(self.parameters, b)
        if not zero_points.any():
            return value
        zero = b.grid(zero_points, element_type(value.type))
        return b.op("arith.subi", [value, zero], value.type)

    def term(self, b: TensorBuilder, factor: Array | int) -> Term:
        """``(storage - zero point) * scale * factor`` as a term of a requantization."""
        return Term(self.difference(b), self.bound, self.scales() * factor)

    def requantized(self, target: QuantizationParameters, requantization: Requantization) -> Any:
        """Storage values of other parameters that are nearest to the same reals."""
        if self.parameters == target:
            return self.value
        b = TensorBuilder(self.value)
        return finish(b, [self.term(b, 1)], target, requantization)


def finish(
    b: TensorBuilder,
    terms: list[Term],
    target: QuantizationParameters,
    requantization: Requantization,
) -> Any:
    """Requantize a sum of terms, whose multipliers are in units of the reals, to `target`."""
    widest = max(element_type(term.value.type).width for term in terms)
    type_ = b.i64 if widest == 64 else b.i32
    terms = [Term(resize(b, t.value, type_), t.bound, t.multiplier) for t in terms]
    if requantization.leaves == "requantize" and is_expressible(terms):
        return emit_requantize(b, terms, target)
    scales, zero_points = _grids_of(target, b)
    scaled = [Term(term.value, term.bound, term.multiplier / scales) for term in terms]
    return requantize(b, scaled, zero_points, target.storage, requantization)


# -- reals ----------------------------------------------------------------------------------------


def dequantize(value: Any, op: Any, division: Division) -> Any:
    """The reals of a quantized tensor, in the expressed type."""
    operand = Operand.of(value, op)
    b = TensorBuilder(operand.value)
    return dequantize_as(b, operand, operand.parameters, op, division)


def dequantize_as(
    b: TensorBuilder,
    operand: Operand,
    parameters: QuantizationParameters,
    op: Any,
    division: Division,
) -> Any:
    """The reals of an operand's storage under other parameters of the same storage type."""
    check_scales(parameters, op)
    scale, zero_point = _float_grids(parameters, operand.rank)
    arithmetic = CastArithmetic(parameters.storage, parameters.expressed, division=division)
    return arithmetic.dequantize(b, operand.value, scale, zero_point)


def quantize(value: Any, target: QuantizationParameters, op: Any, division: Division) -> Any:
    """The storage values of a tensor of reals of the target's expressed type."""
    check_scales(target, op)
    b = TensorBuilder(value)
    scale, zero_point = _float_grids(target, b.rank)
    arithmetic = CastArithmetic(target.storage, target.expressed, division=division)
    return arithmetic.quantize(b, value, scale, zero_point)


def dequantize_blocks(
    value: Any, parameters: QuantizationParameters, op: Any, division: Division
) -> Any:
    """As `dequantize`, for storage that `split_blocks` has split."""
    check_scales(parameters, op)
    b = TensorBuilder(value)
    scales, zero_points = _split_grids(parameters, value)
    arithmetic = CastArithmetic(parameters.storage, parameters.expressed, division=division)
    return arithmetic.dequantize(b, value, scales, zero_points)


def quantize_blocks(
    value: Any, parameters: QuantizationParameters, op: Any, division: Division
) -> Any:
    """As `quantize`, for reals that `split_blocks` has split."""
    check_scales(parameters, op)
    b = TensorBuilder(value)
    scales, zero_points = _split_grids(parameters, value)
    arithmetic = CastArithmetic(parameters.storage, parameters.expressed, division=division)
    return arithmetic.quantize(b, value, scales, zero_points)


def split_blocks(
    value: Any, parameters: QuantizationParameters, op: Any
) -> tuple[Any, Callable[[Any], Any]]:
    """Split each axis of a tensor into (block number, position in block).

    Returns:
        The reshaped tensor of twice the rank, and what gives a tensor of its shape the first shape
        back.

    Raises:
        UnsupportedError: a shape that is not static, or a ragged last block.
    """
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise UnsupportedError(
            f"casts a value of '{type_}', expected a tensor of a static shape for StableHLO's "
            "operations; leave it to lower-quant-casts",
            op,
        )
    shape = [int(n) for n in type_.shape]
    split: list[int] = []
    for extent, block in zip(shape, parameters.block_shape(shape), strict=True):
        if block and extent % block:
            raise UnsupportedError(
                f"has a ragged last block ({extent} elements in blocks of {block}); leave it to "
                "lower-quant-casts",
                op,
            )
        split += [extent // block, block] if block else [1, extent]
    b = Builder()
    reshaped = b.op(
        "stablehlo.reshape", [value], ir.RankedTensorType.get(split, type_.element_type)
    )

    def restore(result: Any) -> Any:
        back = ir.RankedTensorType.get(shape, result.type.element_type, type_.encoding)
        return b.op("stablehlo.reshape", [result], back)

    return reshaped, restore


def _split_grids(parameters: QuantizationParameters, value: Any) -> tuple[Array, Array]:
    """Scales and zero points with size 1 along each position in a block."""
    rank = len(value.type.shape) // 2
    if parameters.granularity == "per-tensor":
        return parameters.scales.astype(np.float64), parameters.zero_points
    scales, zero_points = parameters.grids(rank)
    shape = [n for count in scales.shape for n in (count, 1)]
    return scales.astype(np.float64).reshape(shape), zero_points.reshape(shape)


def _float_grids(parameters: QuantizationParameters, rank: int) -> tuple[Any, Any]:
    if parameters.granularity == "per-tensor":
        return float(parameters.scales), int(parameters.zero_points)
    scales = _grid(parameters, rank, None, parameters.scales.astype(np.float64))
    return scales, zero_point_grid(parameters, rank)


def float_type(type_: Any) -> ir.Type:
    """A quantized tensor type with its expressed type in place of the quantized one."""
    parameters = parameters_of(type_)
    assert parameters is not None  # callers have looked
    return _with_element(type_, expressed_mlir_type(parameters.expressed))


def check_scales(parameters: QuantizationParameters, op: Any) -> None:
    """Refuse scales that IREE's runtimes, which flush subnormal floats to zero, would get wrong.

    With a scale of more than twice the least normal number, no product is subnormal, and a
    subnormal value quantizes as zero does. f16 is computed from f32 values and is not flushed.
    """
    expressed = parameters.expressed
    least = 2 * expressed.smallest_normal
    if expressed is not ExpressedType.F16 and (parameters.scales <= least).any():
        found = float(parameters.scales.min())
        raise UnsupportedError(
            f"has the scale {found:g}, expected more than {least:g}: IREE's runtimes flush "
            f"subnormal {expressed.value} values to zero; use a wider expressed type",
            op,
        )
