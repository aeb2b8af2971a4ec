"""Expressed (dequantized) values as integers and scales, as long as that is exact.

DequantizeLinear returns a `Quantized`: storage with its parameters. Products and sums of quantized
operands are a `ScaledSum`. Both become floats where an operator needs floats. QuantizeLinear rounds
a `ScaledSum` from its integers, so quantize-dequantize pairs around an operator are integer
arithmetic.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from ....dialects.grids import exact
from ....numerics.array_functions import convert, is_known
from ....numerics.block_form import BlockForm
from ....numerics.element_types import F32, I32, I64, AnyArray, Array, DType, ElementType
from ....numerics.parameters import ExpressedType, StorageType
from ..reading.model import element_of

Lift: TypeAlias = Callable[[Array, ElementType], AnyArray]
"""The function makes an array a value of the program, if one is written."""

_MAX_TERMS = 4
"""Terms of a `ScaledSum`, at most: `subquant.requantize` sums as many. Of more, there is none."""


def accumulator_type(bound: int) -> ElementType:
    """The narrower of i32 and i64 that holds integers up to a magnitude."""
    return I64 if bound >= 1 << 31 else I32


def storage_type_of(type_: str) -> StorageType:
    """The storage type of ONNX's name of an integer type."""
    element = element_of(type_)
    return StorageType(element.bits, element.kind == "int")


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized tensor, ``(storage - zero_point) * scale`` block by block.

    Args:
        storage: integers.
        type: ONNX's name of the storage type.
        scales: floats of the shape ``ceil(shape / block_sizes)``.
        zero_points: integers of the same shape; None for 0.
        block_sizes: the block size along each axis.
    """

    storage: AnyArray
    type: str
    scales: AnyArray
    zero_points: AnyArray
    block_sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimension sizes."""
        return tuple(self.storage.shape)

    @property
    def dtype(self) -> DType:
        """The expressed dtype."""
        dtype: DType = np.dtype(self.scales.dtype)
        return dtype

    @property
    def is_per_tensor(self) -> bool:
        """True for one scale."""
        return bool(math.prod(self.scales.shape) == 1)

    @property
    def broadcasts(self) -> bool:
        """True if each axis has one scale, or one scale for each index."""
        sizes = zip(self.scales.shape, self.shape, strict=True)
        return all(n in (1, size) for n, size in sizes)

    def dequantize(self, lift: Lift) -> AnyArray:
        """Compute the expressed values as floats."""
        element = element_of(self.type)
        storage, storage_type = self.storage, storage_type_of(self.type)
        if is_known(storage):
            storage = lift(storage, element)
        else:  # a byte for each integer
            width = storage.dtype.itemsize * 8
            storage_type = StorageType(width, storage_type.signed, *storage_type.type_range)
        zero_points = self.zero_points
        if zero_points is not None and is_known(zero_points):
            zero_points = lift(zero_points, storage_type.element) if zero_points.any() else None
        needs_f32 = element.bits > 8 and self.dtype.itemsize < 4  # f16 cannot hold the differences
        scales = convert(self.scales, F32) if needs_f32 else self.scales
        form = BlockForm(storage, storage_type, self.block_sizes, scales, zero_points)
        if not needs_f32:
            return form.dequantize(ExpressedType.of_dtype(self.dtype))
        values = form.dequantize(ExpressedType.of_dtype(F32.dtype))
        return convert(values, ElementType.of_dtype(self.dtype))

    def centered(self) -> tuple[AnyArray, int]:
        """``storage - zero_point`` and its greatest magnitude; the scales must broadcast."""
        low, high = storage_type_of(self.type).type_range
        if is_known(self.storage) and self.storage.size:
            low, high = int(self.storage.min()), int(self.storage.max())
        zero_points = self.zero_points
        if zero_points is None or (is_known(zero_points) and not zero_points.any()):
            dtype = {"UINT8": np.int16, "UINT16": np.int32}.get(self.type)
            return self.storage if dtype is None else self.storage.astype(dtype), max(-low, high)
        bits = element_of(self.type).bits
        signed = np.int16 if bits <= 8 else np.int32 if bits <= 16 else np.int64
        if is_known(zero_points):
            bound = max(int(zero_points.max()) - low, high - int(zero_points.min()), 0)
        else:
            bound = high - low if not is_known(self.storage) else 1 << bits
        return self.storage.astype(signed) - zero_points.astype(signed), bound

    def moved(self, move: Callable[[AnyArray], AnyArray]) -> Quantized | None:
        """Move elements to other positions; None for several scales."""
        if not self.is_per_tensor:
            return None
        storage = move(self.storage)
        ones = (1,) * len(storage.shape)
        zero_points = None if self.zero_points is None else self.zero_points.reshape(ones)
        scales = self.scales.reshape(ones)
        return Quantized(storage, self.type, scales, zero_points, tuple(storage.shape))

    def transposed(self, order: Sequence[int]) -> Quantized:
        """Reorder the axes."""
        planes = [self.storage, self.scales, self.zero_points]
        storage, scales, zero_points = (
            None if plane is None else plane.transpose(*order) for plane in planes
        )
        sizes = tuple(self.block_sizes[axis] for axis in order)
        return Quantized(storage, self.type, scales, zero_points, sizes)

    def as_sum(self) -> ScaledSum | None:
        """The same values as a sum of one term; None where scales do not broadcast."""
        if not self.broadcasts or self.dtype != np.float32:
            return None
        value, bound = self.centered()
        return ScaledSum.of(value, bound, scale_factor(self.scales))


def scale_factor(scales: AnyArray) -> AnyArray:
    """Constant scales as fractions, others as f32."""
    if not is_known(scales):
        return scales.astype(np.float32)
    if not (np.isfinite(scales) & (scales != 0)).all():  # float arithmetic handles these
        return np.asarray(scales, np.float32)
    return exact(scales)


def is_exact_factor(factor: AnyArray) -> bool:
    """True for constant fractions."""
    return is_known(factor) and factor.dtype == object


def scale_product(left: AnyArray, right: AnyArray) -> AnyArray:
    """The product of two scale factors."""
    if is_exact_factor(left) and is_exact_factor(right):
        return np.asarray(left * right, object)
    return as_float(left) * as_float(right)


def as_float(factor: AnyArray) -> AnyArray:
    """A factor as f32."""
    return factor.astype(np.float32) if is_exact_factor(factor) else factor


@dataclass(frozen=True, eq=False)
class ScaledTerm:
    """Scaled integers, ``value * factor``; the integers' greatest magnitude is `bound`.

    The factor, of fractions or f32, has as many axes as the value, and broadcasts.
    """

    value: AnyArray
    bound: int
    factor: AnyArray


@dataclass(frozen=True, eq=False)
class ScaledSum:
    """A sum of scaled integers, clamped to the f32 bounds `low` and `high`.

    Rounding is monotone, so the bounds are rounded separately from the sum. `dtype` is the
    expressed dtype.
    """

    terms: tuple[ScaledTerm, ...]
    dtype: DType = np.dtype(np.float32)  # noqa: RUF009
    low: float = -math.inf
    high: float = math.inf

    @staticmethod
    def of(value: AnyArray, bound: int, factor: AnyArray) -> ScaledSum:
        """A sum of one term."""
        return ScaledSum((ScaledTerm(value, bound, factor),))

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimension sizes."""
        return np.broadcast_shapes(*(term.value.shape for term in self.terms))

    @property
    def is_exact(self) -> bool:
        """True if all factors are constant."""
        return all(is_exact_factor(term.factor) for term in self.terms)

    @property
    def is_unbounded(self) -> bool:
        """True without bounds."""
        return self.low == -math.inf and self.high == math.inf

    @property
    def _is_one_increasing_term(self) -> bool:
        """True for one term without bounds whose value increases with its integer."""
        is_one = len(self.terms) == 1 and self.is_exact and self.is_unbounded
        return is_one and bool((self.terms[0].factor > 0).all())

    def broadcast_to(self, shape: tuple[int, ...]) -> ScaledSum:
        """Repeat the sum for each index of further axes."""
        terms = []
        for term in self.terms:
            ones = (1,) * (len(shape) - len(term.value.shape))
            value = term.value.reshape((*ones, *term.value.shape))
            factor = term.factor.reshape((*ones, *term.factor.shape))
            terms.append(ScaledTerm(np.broadcast_to(value, shape), term.bound, factor))
        return replace(self, terms=tuple(terms))

    def channels_last(self) -> ScaledSum:
        """Move axis 1 of a sum of one term to the end."""
        (term,) = self.terms
        order = (0, *range(2, len(term.value.shape)), 1)
        return ScaledSum.of(term.value.transpose(order), term.bound, term.factor.transpose(order))

    def bounded(self, low: float | None, high: float | None) -> ScaledSum | None:
        """Clamp to bounds, of which the upper one is applied last; None for a NaN."""
        lower = -math.inf if low is None else float(low)
        upper = math.inf if high is None else float(high)
        if math.isnan(lower) or math.isnan(upper):
            return None
        least, greatest = (max(bound, lower) for bound in (self.low, self.high))
        return replace(self, low=min(least, upper), high=min(greatest, upper))

    def dequantize(self, lift: Lift) -> AnyArray:
        """Compute floats; each term is rounded, and each partial sum."""
        products = [convert(term.value, F32) * as_float(term.factor) for term in self.terms]
        total = functools.reduce(operator.add, products)
        if self.low > -math.inf:
            total = np.maximum(total, np.float32(self.low))
        return total if self.high == math.inf else np.minimum(total, np.float32(self.high))

    def plus(self, other: ScaledSum) -> ScaledSum | None:
        """Add two sums; None for too many terms, or bounds.

        Terms with equal f32 factors are one term: ONNX requires the scale of a bias to be the
        product of the scales of its operands, and files have that product rounded to f32.
        """
        if not self.is_unbounded or not other.is_unbounded:
            return None
        if len(self.terms) == len(other.terms) == 1:
            (left,), (right,) = self.terms, other.terms
            if is_exact_factor(left.factor) and is_exact_factor(right.factor):
                factors = np.broadcast_arrays(as_float(left.factor), as_float(right.factor))
                if (factors[0] == factors[1]).all():
                    bound = left.bound + right.bound
                    type_ = accumulator_type(bound)
                    value = convert(left.value, type_) + convert(right.value, type_)
                    return ScaledSum.of(value, bound, left.factor)
        terms = (*self.terms, *other.terms)
        return ScaledSum(terms) if len(terms) <= _MAX_TERMS else None

    def times(self, other: ScaledSum) -> ScaledSum | None:
        """Multiply two sums; None for several terms, bounds, or products beyond 31 bits."""
        if not len(self.terms) == len(other.terms) == 1:
            return None
        if not self.is_unbounded or not other.is_unbounded:
            return None
        (left,), (right,) = self.terms, other.terms
        bound = left.bound * right.bound
        if bound >= 1 << 31:
            return None
        value = convert(left.value, I32) * convert(right.value, I32)
        return ScaledSum.of(value, bound, scale_product(left.factor, right.factor))

    def negated(self) -> ScaledSum:
        """Negate each term."""
        terms = []
        for term in self.terms:
            value = convert(term.value, accumulator_type(term.bound))
            terms.append(ScaledTerm(-value, term.bound, term.factor))
        return replace(self, terms=tuple(terms), low=-self.high, high=-self.low)

    def rectified(self) -> ScaledSum | None:
        """Clamp negative values to 0: as integers for one term, else by a bound."""
        if not self._is_one_increasing_term:
            return self.bounded(0.0, None)
        (term,) = self.terms
        return ScaledSum.of(np.maximum(term.value, 0), term.bound, term.factor)

    def leaky(self, alpha: float) -> ScaledSum | None:
        """Multiply negative values by alpha, as a second term; None for several terms or bounds."""
        if not self._is_one_increasing_term:
            return None
        slope = Fraction(float(np.float32(alpha))) if math.isfinite(alpha) else None
        if not slope:
            return None if slope is None else self.rectified()
        (term,) = self.terms
        negative_factor = np.asarray(term.factor * slope, object)
        positive = ScaledTerm(np.maximum(term.value, 0), term.bound, term.factor)
        return ScaledSum(
            (positive, ScaledTerm(np.minimum(term.value, 0), term.bound, negative_factor))
        )


ExpressedValue: TypeAlias = AnyArray
"""The type is an array, or integers and scales: a `Quantized` or a `ScaledSum`."""
