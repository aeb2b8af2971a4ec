"""The steps of integer arithmetic as operations: what ``subquant.requantize`` and the like say.

Reading and checking them; `subquant.emit.casts` writes them. The attribute ``scales`` of a
requantization has for each term a dense f64 attribute, or an array of several whose product counts:
the product of two scales of f64 is no f64 number. Each has rank 0, or one dimension for each axis:
1, or a number of blocks that divides the extent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core._mlir import Operation, Value, ir
from ..numerics.element_types import AnyArray, Array
from ..numerics.parameters import StorageType
from ..numerics.requantization import Requantization, Rounded, Term, requantize
from .dense import array_of_dense
from .grids import exact, grids_of, spread
from .quant import element_type, is_quantized, parameters_of, raising
from .subquant import ZERO_POINTS_AFTER_ROUNDING


@dataclass(frozen=True)
class RequantizedSum:
    """Terms of a ``subquant.requantize`` in steps of the result, and its zero points as a grid."""

    terms: list[Term]
    zero_points: Array
    storage: StorageType
    zero_points_after_rounding: bool

    def rounded(self, values: Sequence[AnyArray], requantization: Requantization) -> Rounded:
        """Round the sum of the terms with other values, plus the zero points; not saturated."""
        terms = [replace(t, value=value) for t, value in zip(self.terms, values, strict=True)]
        return requantize(
            terms,
            self.zero_points,
            self.storage,
            requantization,
            zero_points_after_rounding=self.zero_points_after_rounding,
        )


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
        factors = [spread(exact(array_of_dense(factor)), shape) for factor in _factors_of(scale)]
        multiplier = 1 / scales
        for factor in sorted(factors, key=np.size):  # fractions are slow: scalars first
            multiplier = multiplier * factor
        terms.append(Term(value, int(bound), multiplier))
    after_rounding = ZERO_POINTS_AFTER_ROUNDING in op.attributes
    return RequantizedSum(terms, zero_points, parameters.storage, after_rounding)


def _factors_of(scale: ir.Attribute) -> list[ir.DenseElementsAttr]:
    return list(scale) if isinstance(scale, ir.ArrayAttr) else [scale]


# -- verification ---------------------------------------------------------------------------------


def requantized_type(op: Operation) -> ir.RankedTensorType:
    """The type of the result of a ``subquant.requantize`` as a quantized tensor."""
    type_ = op.operands[0].type
    quantized = op.attributes["quantized_type"].value
    return ir.RankedTensorType.get(list(type_.shape), quantized, type_.encoding)


@raising
def check_requantize(op: Operation) -> Iterator[str]:
    """The broken rules of a ``subquant.requantize``."""
    terms = list(op.operands)
    yield from _integer_problems(terms)
    type_, result = terms[0].type, op.results[0].type
    quantized = getattr(op.attributes["quantized_type"], "value", None)
    if quantized is None or not is_quantized(quantized) or isinstance(quantized, ir.ShapedType):
        yield (
            "attribute 'quantized_type' must be a quantized type, got "
            f"'{op.attributes['quantized_type']}'"
        )
        return
    parameters = parameters_of(requantized_type(op), op)
    assert parameters is not None  # it is quantized
    if parameters.granularity == "sub-channel" and not type_.has_static_shape:
        yield f"attribute 'quantized_type' has blocks, and operands of '{type_}' no static shape"
    expected = ir.RankedTensorType.get(list(type_.shape), quantized.storage_type, type_.encoding)
    if result != expected:
        yield f"result must have the type '{expected}', got '{result}'"
    bounds, scales = op.attributes["bounds"], op.attributes["scales"]
    count = len(terms)
    if not isinstance(bounds, ir.DenseI64ArrayAttr) or len(bounds) != count:
        yield f"attribute 'bounds' must be array<i64: ...> with {count} entries, got '{bounds}'"
    if any(int(bound) < 0 for bound in bounds):
        yield f"bounds must not be negative, got '{bounds}'"
    if not isinstance(scales, ir.ArrayAttr) or len(scales) != count:
        yield f"attribute 'scales' must be an array of {count} dense attributes, got '{scales}'"
    for factor in itertools.chain.from_iterable(map(_factors_of, scales)):
        yield from _factor_problems(factor, type_)


def _factor_problems(scale: ir.Attribute, type_: ir.RankedTensorType) -> Iterator[str]:
    dense = isinstance(scale, ir.DenseElementsAttr)
    if not dense or not isinstance(scale.type.element_type, ir.F64Type):
        yield f"scales must be dense f64 attributes, got '{scale}'"
    array = array_of_dense(scale)
    shape = [0 if type_.is_dynamic_dim(a) else int(n) for a, n in enumerate(type_.shape)]
    if array.ndim and not (
        array.ndim == len(shape)
        and all(n == 1 or (n and m and not m % n) for n, m in zip(array.shape, shape, strict=True))
    ):
        shown = "x".join(map(str, array.shape))
        yield (
            f"scales of the shape {shown} must have rank 0, or for each axis of '{type_}' its "
            "extent, 1, or a number of blocks that divides it"
        )
    flat = array.reshape(-1)
    if not all(math.isfinite(x) and x != 0 for x in flat) or len({x > 0 for x in flat}) > 1:
        yield f"scales of one term must be finite, not 0 and of one sign, got '{scale}'"


def _integer_problems(values: Sequence[Value]) -> Iterator[str]:
    type_ = values[0].type
    is_wide = isinstance(type_, ir.RankedTensorType) and str(element_type(type_)) in ("i32", "i64")
    if not is_wide or any(value.type != type_ for value in values):
        types = ", ".join(f"'{value.type}'" for value in values)
        yield f"operands must be ranked tensors of i32 or i64, all of one type, got {types}"


@raising
def check_saturate(op: Operation) -> Iterator[str]:
    """The broken rules of a ``subquant.saturate``."""
    yield from _integer_problems(list(op.operands))
    type_, result, bounds = op.operands[0].type, op.results[0].type, op.attributes["range"]
    if not isinstance(bounds, ir.DenseI64ArrayAttr) or len(bounds) != 2:
        yield f"attribute 'range' must be array<i64: minimum, maximum>, got '{bounds}'"
    element = element_type(result)
    width = element.width if isinstance(element, ir.IntegerType) else 0
    expected = ir.RankedTensorType.get(list(type_.shape), element, type_.encoding)
    if not 2 <= width <= min(32, element_type(type_).width) or result != expected:
        yield (
            f"result must be a tensor like '{type_}' with a storage type of 2 to 32 bits, got "
            f"'{result}'"
        )
    low, high = (int(bound) for bound in bounds)
    if not -(1 << (width - 1)) <= low <= high < 1 << width or high - low >= 1 << width:
        yield f"range {low}:{high} must be one that '{element}' can hold, signed or unsigned"


@raising
def check_subtract_zero_point(op: Operation) -> Iterator[str]:
    """The broken rules of a ``subquant.subtract_zero_point``."""
    source, result = op.operands[0].type, op.results[0].type
    parameters = parameters_of(source, op)
    if parameters is None or not isinstance(source, ir.RankedTensorType):
        yield f"operand must be a quantized ranked tensor, got '{source}'"
        return
    storage = parameters.storage
    wide = parameters.greatest_difference >= 1 << 31 or (storage.width == 32 and not storage.signed)
    if parameters.granularity == "sub-channel" and not source.has_static_shape:
        yield f"operand has blocks and no static shape, got '{source}'"
    integer = ir.IntegerType.get_signless(64 if wide else 32)
    expected = ir.RankedTensorType.get(list(source.shape), integer, source.encoding)
    if result != expected:
        yield f"result must have the type '{expected}', got '{result}'"
