"""Quantized values, their storage, and the integer steps between them.

Quantized values and their storage are connected by ``subquant.scast``, which later passes remove.
A linear expression of expressed values is a `ScaledSum` of integers: rules add, subtract and
multiply them by the formula; ``subquant.requantize`` rounds the result to storage values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..core._mlir import Value, ir
from ..dialects.grids import exact, exact_doubles, exact_product
from ..dialects.quant import SCASTS, parameters_of, storage_mlir_type, type_of
from ..dialects.subquant import MAX_TERMS, REQUANTIZE, ZERO_POINTS_AFTER_ROUNDING
from ..numerics.array_functions import convert
from ..numerics.element_types import I32, I64, Array
from ..numerics.parameters import QuantizationParameters, StorageType
from . import linalg
from .operation import dense, dynamic_dims, integers, producer_named, value, with_element
from .values import ArrayLike

_GREATEST = (1 << 63) - 1
"""The greatest bound that the attribute holds: i64."""


# -- storage --------------------------------------------------------------------------------------


def stored(quantized: Value) -> Value:
    """The storage of a quantized tensor, through a ``subquant.scast`` if it is not at hand."""
    cast = producer_named(quantized, *SCASTS)
    if cast is not None:
        return cast.operands[0]
    parameters = parameters_of(quantized.type)
    assert parameters is not None  # callers have looked
    type_ = with_element(quantized.type, storage_mlir_type(parameters.storage))
    return value("subquant.scast", [quantized], type_)


def as_quantized(storage: Value, type_: ir.Type) -> Value:
    """A storage tensor as a value of a quantized tensor type (of a compatible shape)."""
    parameters = parameters_of(type_)
    assert parameters is not None  # callers have looked
    expected = with_element(type_, storage_mlir_type(parameters.storage))
    return value("subquant.scast", [linalg.cast(storage, expected)], type_)


# -- sums of scaled integers ----------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """``value * product(factors)``: an integer in units of the reals.

    Args:
        value: signed integers of 32 or 64 bits.
        bound: the greatest magnitude that `value` can have.
        factors: f64 arrays of shape (), or with one dimension for each axis (1 where one block
            spans the axis); each of one sign.
    """

    value: ArrayLike
    bound: int
    factors: tuple[Array, ...]

    def times(self, factor: float) -> Scaled:
        """The same integer in other units."""
        return Scaled(self.value, self.bound, (*self.factors, np.array(float(factor))))


_MAX_UNSPLIT_BOUND = 1 << 17
"""Integers from this magnitude on are split in two parts, whose products fit i64."""
_LOWER_BITS = 16
"""The number of bits of the lower of the two parts."""


@dataclass(frozen=True)
class ScaledSum:
    """A real as an exact sum of scaled integers, with Python's operators."""

    terms: tuple[Scaled, ...]

    def __add__(self, other: ScaledSum) -> ScaledSum:
        return ScaledSum(self.terms + other.terms)

    def __neg__(self) -> ScaledSum:
        return ScaledSum(tuple(term.times(-1) for term in self.terms))

    def __sub__(self, other: ScaledSum) -> ScaledSum:
        return self + -other

    def __mul__(self, other: ScaledSum) -> ScaledSum:
        """The products of terms, those of more than 17 bits in two parts: i64 holds all."""
        products = []
        for left in self.terms:
            for right in [part for term in other.terms for part in split(term, keeps_narrow=True)]:
                bound = left.bound * right.bound
                word = I64 if bound >= 1 << 31 else I32
                number = convert(left.value, word) * convert(right.value, word)
                products.append(Scaled(number, bound, left.factors + right.factors))
        return ScaledSum(tuple(products))

    def __abs__(self) -> ScaledSum:
        """The magnitude, of one term with positive factors."""
        (term,) = self.terms
        magnitude = np.maximum(term.value, -term.value)
        return ScaledSum((Scaled(magnitude, term.bound, term.factors),))


def split(term: Scaled, *, keeps_narrow: bool = False) -> list[Scaled]:
    """A term as two, of its upper bits and its lower 16; or as it is, of up to 17 bits."""
    if keeps_narrow and term.bound < _MAX_UNSPLIT_BOUND:
        return [term]
    lower = (1 << _LOWER_BITS) - 1
    upper = Scaled(term.value >> _LOWER_BITS, (term.bound >> _LOWER_BITS) + 1, term.factors)
    return [upper.times(1 << _LOWER_BITS), Scaled(term.value & lower, lower, term.factors)]


def requantize(
    total: ScaledSum, target: QuantizationParameters, *, zero_points_after_rounding: bool = False
) -> Value:
    """Write ``subquant.requantize``: the storage values nearest to a sum of up to four terms."""
    terms = total.terms
    assert len(terms) <= MAX_TERMS  # two operands in two parts each
    word = I64 if any(term.value.element.bits == 64 for term in terms) else I32
    attributes = {
        "scales": ir.ArrayAttr.get([_scales(term.factors) for term in terms]),
        "bounds": integers([min(term.bound, _GREATEST) for term in terms]),
        "quantized_type": ir.TypeAttr.get(type_of(target)),
    }
    if zero_points_after_rounding and target.zero_points.any():
        attributes[ZERO_POINTS_AFTER_ROUNDING] = ir.UnitAttr.get()
    values = [convert(term.value, word).value for term in terms]
    shape = min((v.type for v in values), key=dynamic_dims)  # one type for all
    operands = [linalg.cast(v, shape) for v in values]
    result = with_element(operands[0].type, storage_mlir_type(target.storage))
    return value(REQUANTIZE[len(terms) - 1], operands, result, attributes)


def _scales(factors: Sequence[Array]) -> ir.Attribute:
    """One dense attribute where the product of all factors is exact in f64, else each."""
    f64 = ir.F64Type.get()
    known = exact_product([np.asarray(factor, np.float64) for factor in factors])
    if known is not None:
        return dense(known, f64)
    product: Array = np.array(Fraction(1), object)
    for factor in factors:
        product = np.asarray(product * exact(factor), object)
    doubles = exact_doubles(product)
    if doubles is not None:
        return dense(doubles, f64)
    return ir.ArrayAttr.get([dense(np.asarray(factor, np.float64), f64) for factor in factors])


def saturate(number: ArrayLike, storage: StorageType, bound: int | None = None) -> Value:
    """Write ``subquant.saturate``, or only a conversion where nothing is outside the range.

    Args:
        number: a tensor of signed integers, wider than the storage type.
        bound: the greatest magnitude of `number`, if it is known.
    """
    type_ = storage_mlir_type(storage)
    if bound is not None and storage.minimum <= -bound and bound <= storage.maximum:
        return convert(number, storage.element).value
    limits = {"range": integers([storage.minimum, storage.maximum])}
    return value(
        "subquant.saturate", [number.value], with_element(number.value.type, type_), limits
    )
