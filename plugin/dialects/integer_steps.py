"""The steps of integer arithmetic as operations: what ``subquant.requantize`` and the like say.

Reading and checking them; `subquant.emit.casts` writes them. The attribute ``scales`` of a
requantization has for each term a dense f64 attribute, or an array of several whose product counts:
the product of two scales of f64 is no f64 number. Each has rank 0, or one dimension for each axis:
1, or a number of blocks that divides the extent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..errors import VerificationError
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType, spread_blocks
from ..numerics.requantization import Term
from .dense import array_of_dense
from .grids import exact, grids_of
from .quant import element_type, is_quantized, parameters_of


@dataclass(frozen=True)
class RequantizedSum:
    """Terms of a ``subquant.requantize`` in steps of the result, and its zero points as a grid."""

    terms: list[Term]
    zero_points: Array
    storage: StorageType


def read_requantize(op: Operation) -> RequantizedSum:
    """Read a verified requantization."""
    parameters = parameters_of(op.attributes["quantized_type"].value, op)
    assert parameters is not None  # verified before
    scales, zero_points = grids_of(parameters, op.operands[0].type.shape)
    terms = []
    for value, scale, bound in zip(
        op.operands, op.attributes["scales"], op.attributes["bounds"], strict=True
    ):
        shape = [int(n) for n in value.type.shape]
        factors = [_spread(exact(array_of_dense(factor)), shape) for factor in _factors_of(scale)]
        multiplier = 1 / scales
        for factor in sorted(factors, key=np.size):  # fractions are slow: scalars first
            multiplier = multiplier * factor
        terms.append(Term(value, int(bound), multiplier))
    return RequantizedSum(terms, zero_points, parameters.storage)


def _factors_of(scale: ir.Attribute) -> list[ir.DenseElementsAttr]:
    return list(scale) if isinstance(scale, ir.ArrayAttr) else [scale]


def _spread(grid: Array, shape: Sequence[int]) -> Array:
    """A number for each index of the axes that have several blocks; one for the others."""
    if not grid.ndim:
        return grid
    counted = [extent if count > 1 else 1 for count, extent in zip(grid.shape, shape, strict=True)]
    sizes = [extent // count for count, extent in zip(grid.shape, counted, strict=True)]
    return spread_blocks(grid, counted, sizes)


# -- verification ---------------------------------------------------------------------------------


def check_requantize(op: Operation) -> ir.Type:
    """Check a ``subquant.requantize`` (VerificationError); return the result's quantized type."""
    terms = list(op.operands)
    type_ = _check_integers(op, terms)
    quantized = getattr(op.attributes["quantized_type"], "value", None)
    if quantized is None or not is_quantized(quantized) or isinstance(quantized, ir.ShapedType):
        raise VerificationError(
            "attribute 'quantized_type' must be a quantized type, got "
            f"'{op.attributes['quantized_type']}'",
            op,
        )
    target = ir.RankedTensorType.get(list(type_.shape), quantized, type_.encoding)
    parameters = parameters_of(target, op)
    assert parameters is not None  # it is quantized
    if parameters.granularity == "sub-channel" and not type_.has_static_shape:
        raise VerificationError(
            f"attribute 'quantized_type' has blocks, and operands of '{type_}' no static shape", op
        )
    result = op.results[0].type
    expected = ir.RankedTensorType.get(list(type_.shape), quantized.storage_type, type_.encoding)
    if result != expected:
        raise VerificationError(f"result must have the type '{expected}', got '{result}'", op)
    bounds = op.attributes["bounds"]
    if not isinstance(bounds, ir.DenseI64ArrayAttr) or len(bounds) != len(terms):
        raise VerificationError(
            f"attribute 'bounds' must be array<i64: ...> with {len(terms)} entries, got '{bounds}'",
            op,
        )
    if any(int(bound) < 0 for bound in bounds):
        raise VerificationError(f"bounds must not be negative, got '{bounds}'", op)
    scales = op.attributes["scales"]
    if not isinstance(scales, ir.ArrayAttr) or len(scales) != len(terms):
        raise VerificationError(
            f"attribute 'scales' must be an array of {len(terms)} dense attributes, got '{scales}'",
            op,
        )
    for scale in scales:
        for factor in _factors_of(scale):
            _check_factor(op, factor, type_)
    return target


def _check_factor(op: Operation, scale: ir.Attribute, type_: ir.RankedTensorType) -> None:
    dense = isinstance(scale, ir.DenseElementsAttr)
    if not dense or not isinstance(scale.type.element_type, ir.F64Type):
        raise VerificationError(f"scales must be dense f64 attributes, got '{scale}'", op)
    array = array_of_dense(scale)
    shape = [0 if type_.is_dynamic_dim(a) else int(n) for a, n in enumerate(type_.shape)]
    if array.ndim and not (
        array.ndim == len(shape)
        and all(n == 1 or (n and m and not m % n) for n, m in zip(array.shape, shape, strict=True))
    ):
        shown = "x".join(map(str, array.shape))
        raise VerificationError(
            f"scales of the shape {shown} must have rank 0, or for each axis of '{type_}' its "
            "extent, 1, or a number of blocks that divides it",
            op,
        )
    flat = array.reshape(-1)
    if not all(math.isfinite(x) and x != 0 for x in flat) or len({x > 0 for x in flat}) > 1:
        raise VerificationError(
            f"scales of one term must be finite, not 0 and of one sign, got '{scale}'", op
        )


def _check_integers(op: Operation, values: Sequence[Value]) -> ir.RankedTensorType:
    type_ = values[0].type
    is_wide = isinstance(type_, ir.RankedTensorType) and str(element_type(type_)) in ("i32", "i64")
    if not is_wide or any(value.type != type_ for value in values):
        types = ", ".join(f"'{value.type}'" for value in values)
        raise VerificationError(
            f"operands must be ranked tensors of i32 or i64, all of one type, got {types}", op
        )
    return type_


def check_saturate(op: Operation) -> None:
    """Raise a located VerificationError if a ``subquant.saturate`` is wrong."""
    type_ = _check_integers(op, list(op.operands))
    result, bounds = op.results[0].type, op.attributes["range"]
    if not isinstance(bounds, ir.DenseI64ArrayAttr) or len(bounds) != 2:
        raise VerificationError(
            f"attribute 'range' must be array<i64: minimum, maximum>, got '{bounds}'", op
        )
    element = element_type(result)
    width = element.width if isinstance(element, ir.IntegerType) else 0
    expected = ir.RankedTensorType.get(list(type_.shape), element, type_.encoding)
    if not 2 <= width <= min(32, element_type(type_).width) or result != expected:
        raise VerificationError(
            f"result must be a tensor like '{type_}' with a storage type of 2 to 32 bits, got "
            f"'{result}'",
            op,
        )
    low, high = (int(bound) for bound in bounds)
    if not -(1 << (width - 1)) <= low <= high < 1 << width or high - low >= 1 << width:
        raise VerificationError(
            f"range {low}:{high} must be one that '{element}' can hold, signed or unsigned", op
        )


def check_subtract_zero_point(op: Operation) -> None:
    """Raise a located VerificationError if a ``subquant.subtract_zero_point`` is wrong."""
    source, result = op.operands[0].type, op.results[0].type
    parameters = parameters_of(source, op)
    if parameters is None or not isinstance(source, ir.RankedTensorType):
        raise VerificationError(f"operand must be a quantized ranked tensor, got '{source}'", op)
    storage = parameters.storage
    wide = parameters.greatest_difference >= 1 << 31 or (storage.width == 32 and not storage.signed)
    if parameters.granularity == "sub-channel" and not source.has_static_shape:
        raise VerificationError(f"operand has blocks and no static shape, got '{source}'", op)
    expected = ir.RankedTensorType.get(
        list(source.shape),
        ir.IntegerType.get_signless(64 if wide else 32),
        source.encoding,
    )
    if result != expected:
        raise VerificationError(f"result must have the type '{expected}', got '{result}'", op)
