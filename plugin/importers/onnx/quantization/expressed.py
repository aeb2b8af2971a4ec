"""Reals as integers and scales, as long as that is exact: what DequantizeLinear gives.

A `Quantized` is the storage with its parameters, a `ScaledSum` what products and sums of such are.
Both become floats where an operator wants floats; QuantizeLinear rounds a `ScaledSum` from its
integers, so that quantize-dequantize pairs around an operator are integer arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from ....dialects.grids import exact
from ....numerics.array_functions import convert, is_known
from ....numerics.block_form import BlockForm, quantize
from ....numerics.element_types import F32, I32, I64, AnyArray, Array, DType, ElementType
from ....numerics.parameters import ExpressedType, StorageType
from ....numerics.requantization import Term, requantize
from ..reading.model import element_of

__all__ = [
    "ExpressedValue",
    "Lift",
    "Quantized",
    "ScaledSum",
    "ScaledTerm",
    "clamped",
    "requantize_sum",
    "rounded",
]

Lift: TypeAlias = Callable[[Array, ElementType], AnyArray]
"""Makes an array a value of the program, if one is written."""

_MOST_TERMS = 4
_STEPS = StorageType(32, True, -(1 << 17), 1 << 17)
"""Steps from the zero point: every storage type of up to 16 bits is inside."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """``(storage - zero_point) * scale``, block by block.

    Args:
        storage: integers.
        type: of them, ONNX's name.
        scales: floats of the shape ``ceil(shape / block_sizes)``.
        zero_points: integers of the same shape; None for 0.
        block_sizes: for each axis.
    """

    storage: AnyArray
    type: str
    scales: AnyArray
    zero_points: AnyArray
    block_sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.storage.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the reals."""
        found: DType = np.dtype(self.scales.dtype)
        return found

    @property
    def is_per_tensor(self) -> bool:
        """There is one scale."""
        return bool(math.prod(self.scales.shape) == 1)

    @property
    def broadcasts(self) -> bool:
        """Each axis has one scale, or one for each index."""
        extents = zip(self.scales.shape, self.shape, strict=True)
        return all(n in (1, extent) for n, extent in extents)

    def dequantize(self, lift: Lift) -> AnyArray:
        """Floats."""
        element = element_of(self.type)
        is_signed = element.kind == "int"
        if is_known(self.storage):
            storage, held = lift(self.storage, element), StorageType(element.bits, is_signed)
        else:  # a byte for each integer
            low, high = StorageType(element.bits, is_signed).type_range
            width = self.storage.dtype.itemsize * 8
            storage, held = self.storage, StorageType(width, is_signed, low, high)
        zero_points = self.zero_points
        if zero_points is not None and is_known(zero_points):
            zero_points = lift(zero_points, held.element) if zero_points.any() else None
        if element.bits > 8 and self.dtype.itemsize < 4:  # differences that f16 cannot hold
            form = BlockForm(
                storage, held, self.block_sizes, convert(self.scales, F32), zero_points
            )
            wide = form.dequantize(ExpressedType.of_dtype(F32.dtype))
            return convert(wide, ElementType.of_dtype(self.dtype))
        form = BlockForm(storage, held, self.block_sizes, self.scales, zero_points)
        return form.dequantize(ExpressedType.of_dtype(self.dtype))

    def centered(self) -> tuple[AnyArray, int]:
        """``storage - zero_point`` of what broadcasts, and its greatest magnitude."""
        low, high = StorageType(*_form(self.type)).type_range
        if is_known(self.storage) and self.storage.size:
            low, high = int(self.storage.min()), int(self.storage.max())
        zero_points = self.zero_points
        if zero_points is None or (is_known(zero_points) and not zero_points.any()):
            dtype = {"UINT8": np.int16, "UINT16": np.int32}.get(self.type)
            return self.storage if dtype is None else self.storage.astype(dtype), max(-low, high)
        bits = element_of(self.type).bits
        wide = np.int16 if bits <= 8 else np.int32 if bits <= 16 else np.int64
        if is_known(zero_points):
            bound = max(int(zero_points.max()) - low, high - int(zero_points.min()), 0)
        else:
            bound = high - low if not is_known(self.storage) else 1 << bits
        return self.storage.astype(wide) - zero_points.astype(wide), bound

    def moved(self, move: Callable[[AnyArray], AnyArray]) -> Quantized | None:
        """Elements in other places; None where they do not have one scale."""
        if not self.is_per_tensor:
            return None
        storage = move(self.storage)
        ones = (1,) * len(storage.shape)
        zero_points = None if self.zero_points is None else self.zero_points.reshape(ones)
        scales = self.scales.reshape(ones)
        return Quantized(storage, self.type, scales, zero_points, tuple(storage.shape))

    def transposed(self, order: Sequence[int]) -> Quantized:
        """The axes in another order."""
        planes = [self.storage, self.scales, self.zero_points]
        storage, scales, zero_points = (
            None if plane is None else plane.transpose(*order) for plane in planes
        )
        sizes = tuple(self.block_sizes[axis] for axis in order)
        return Quantized(storage, self.type, scales, zero_points, sizes)

    def sum(self) -> ScaledSum | None:
        """The same as a sum of one term; None where scales do not broadcast."""
        if not self.broadcasts or self.dtype != np.float32:
            return None
        value, bound = self.centered()
        return ScaledSum((ScaledTerm(value, bound, factor_of(self.scales)),))


def _form(type_: str) -> tuple[int, bool]:
    element = element_of(type_)
    return element.bits, element.kind == "int"


def factor_of(scales: AnyArray) -> AnyArray:
    """Scales as fractions if they are known, else as f32."""
    if not is_known(scales):
        return scales.astype(np.float32)
    if not (np.isfinite(scales) & (scales != 0)).all():  # which are left to floats
        return np.asarray(scales, np.float32)
    return exact(scales)


def _is_exact(factor: AnyArray) -> bool:
    return is_known(factor) and factor.dtype == object


def product_of(left: AnyArray, right: AnyArray) -> AnyArray:
    """The product of two factors."""
    if _is_exact(left) and _is_exact(right):
        return np.asarray(left * right, object)
    return _float(left) * _float(right)


def _float(factor: AnyArray) -> AnyArray:
    return factor.astype(np.float32) if _is_exact(factor) else factor


@dataclass(frozen=True, eq=False)
class ScaledTerm:
    """``value * factor``.

    Args:
        value: integers.
        bound: their greatest magnitude.
        factor: fractions, or f32; has as many axes as the value, and broadcasts.
    """

    value: AnyArray
    bound: int
    factor: AnyArray

    def real(self) -> AnyArray:
        """As f32."""
        return convert(self.value, F32) * _float(self.factor)


@dataclass(frozen=True, eq=False)
class ScaledSum:
    """A sum of scaled integers, between bounds.

    Rounding keeps the order of reals, so that bounds are rounded apart from the sum.

    Args:
        terms: of the sum.
        dtype: of the reals.
        low, high: f32; what is beyond is that one.
    """

    terms: tuple[ScaledTerm, ...]
    dtype: DType = np.dtype(np.float32)  # noqa: RUF009
    low: float = -math.inf
    high: float = math.inf

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return np.broadcast_shapes(*(term.value.shape for term in self.terms))

    @property
    def is_exact(self) -> bool:
        """All factors are known."""
        return all(_is_exact(term.factor) for term in self.terms)

    def broadcast_to(self, shape: tuple[int, ...]) -> ScaledSum:
        """The same for each index of further axes."""
        rank = len(shape)
        terms = []
        for term in self.terms:
            padded = (1,) * (rank - len(term.value.shape))
            value = term.value.reshape((*padded, *term.value.shape))
            factor = term.factor.reshape((*padded, *term.factor.shape))
            terms.append(ScaledTerm(np.broadcast_to(value, shape), term.bound, factor))
        return replace(self, terms=tuple(terms))

    @property
    def is_plain(self) -> bool:
        """There are no bounds."""
        return self.low == -math.inf and self.high == math.inf

    def bounded(self, low: float | None, high: float | None) -> ScaledSum | None:
        """What is beyond reals becomes these; None for one that is no number."""
        found = [
            -math.inf if low is None else float(low),
            math.inf if high is None else float(high),
        ]
        if any(map(math.isnan, found)):
            return None
        least, most = (max(bound, found[0]) for bound in (self.low, self.high))
        return replace(self, low=min(least, found[1]), high=min(most, found[1]))

    def dequantize(self, lift: Lift) -> AnyArray:
        """Floats: each term is rounded, and each sum."""
        first, *others = (term.real() for term in self.terms)
        for each in others:
            first = first + each
        if self.low > -math.inf:
            first = np.maximum(first, np.float32(self.low))
        return first if self.high == math.inf else np.minimum(first, np.float32(self.high))

    def plus(self, other: ScaledSum) -> ScaledSum | None:
        """The sum of two; None for too many terms, or bounds.

        A bias in the units of the other: ONNX has them equal, and files their product as f32.
        """
        if not self.is_plain or not other.is_plain:
            return None
        if len(self.terms) == len(other.terms) == 1:
            (left,), (right,) = self.terms, other.terms
            if _is_exact(left.factor) and _is_exact(right.factor):
                near = np.broadcast_arrays(_float(left.factor), _float(right.factor))
                if (near[0] == near[1]).all():
                    bound = left.bound + right.bound
                    wide = I64 if bound >= 1 << 31 else I32
                    value = convert(left.value, wide) + convert(right.value, wide)
                    return ScaledSum((ScaledTerm(value, bound, left.factor),))
        terms = (*self.terms, *other.terms)
        return ScaledSum(terms) if len(terms) <= _MOST_TERMS else None

    def times(self, other: ScaledSum) -> ScaledSum | None:
        """The product of two; None for several terms, bounds, or beyond 31 bits."""
        if len(self.terms) != 1 or len(other.terms) != 1:
            return None
        if not self.is_plain or not other.is_plain:
            return None
        (left,), (right,) = self.terms, other.terms
        bound = left.bound * right.bound
        if bound >= 1 << 31:
            return None
        value = convert(left.value, I32) * convert(right.value, I32)
        return ScaledSum((ScaledTerm(value, bound, product_of(left.factor, right.factor)),))

    def negated(self) -> ScaledSum:
        """The sum of the negated terms."""
        terms = []
        for term in self.terms:
            wide = convert(term.value, I64 if term.bound >= 1 << 31 else I32)
            terms.append(ScaledTerm(-wide, term.bound, term.factor))
        return replace(self, terms=tuple(terms), low=-self.high, high=-self.low)

    def clamped_below(self) -> ScaledSum | None:
        """What is negative becomes 0: of the integers of one term, else of the reals."""
        if len(self.terms) != 1 or not self.is_exact or not self.is_plain or not self._ascends:
            return self.bounded(0.0, None)
        (term,) = self.terms
        return ScaledSum((ScaledTerm(np.maximum(term.value, 0), term.bound, term.factor),))

    def leaky(self, alpha: float) -> ScaledSum | None:
        """What is negative times ``alpha``: a term of its own; None for several terms or bounds."""
        if len(self.terms) != 1 or not self.is_exact or not self.is_plain or not self._ascends:
            return None
        slope = Fraction(float(np.float32(alpha))) if math.isfinite(alpha) else None
        if not slope:
            return None if slope is None else self.clamped_below()
        (term,) = self.terms
        below = np.asarray(term.factor * slope, object)
        return ScaledSum(
            (
                ScaledTerm(np.maximum(term.value, 0), term.bound, term.factor),
                ScaledTerm(np.minimum(term.value, 0), term.bound, below),
            )
        )

    @property
    def _ascends(self) -> bool:
        """Greater integers are greater reals."""
        return all((term.factor > 0).all() for term in self.terms if _is_exact(term.factor))


ExpressedValue: TypeAlias = AnyArray
"""An array, or a real as integers and scales: a `Quantized` or a `ScaledSum`."""


def rounded(real: AnyArray, scales: AnyArray, block_sizes: Sequence[int]) -> AnyArray:
    """``round_half_even(real / scale)`` as i32, saturating beyond every storage type."""
    expressed = ExpressedType.of_dtype(real.dtype)
    return quantize(real, scales.astype(real.dtype), block_sizes, _STEPS, expressed)


def clamped(steps: AnyArray, zero_points: AnyArray, type_: str) -> AnyArray:
    """Steps plus zero points as a storage type; ONNX adds them after rounding."""
    element = element_of(type_)
    low, high = StorageType(*_form(type_)).type_range
    if zero_points is not None and not (is_known(zero_points) and not np.any(zero_points)):
        steps = steps + convert(zero_points, I32)
    return np.minimum(np.maximum(steps, low), high).astype(element.dtype)


def requantize_sum(total: ScaledSum, scale: AnyArray) -> AnyArray:
    """``round_half_even(total / scale)``: from integers where all scales are known.

    Args:
        total: the sum.
        scale: f32 of one element, or one for each axis.

    Returns:
        Integers of 32 bits, saturating beyond every storage type.
    """
    rank = len(total.shape)
    target = factor_of(scale.reshape((1,) * rank) if math.prod(scale.shape) == 1 else scale)
    if not total.is_exact or not _is_exact(target):
        whole = total.dequantize(lambda array, element: array)
        grid = _float(target)
        sizes = [n if extent == 1 else 1 for n, extent in zip(whole.shape, grid.shape, strict=True)]
        return rounded(whole, grid, sizes)
    terms = [
        Term(convert(term.value, I64 if term.bound >= 1 << 31 else I32), term.bound,
             np.asarray(term.factor / target, object))
        for term in total.terms
    ]  # fmt: skip
    found = requantize(terms, np.zeros((1,) * rank, np.int64), _STEPS)
    limit = 1 << 17
    if total.is_plain:
        return convert(np.minimum(np.maximum(found.value, -limit), limit), I32)
    ends = [
        np.array(
            [_steps(bound, step, limit) for step in target.reshape(-1)], found.value.dtype
        ).reshape(target.shape)
        for bound in (total.low, total.high)
    ]
    least, most = np.minimum(*ends), np.maximum(*ends)
    return convert(np.minimum(np.maximum(found.value, least), most), I32)


def _steps(bound: float, scale: Fraction, limit: int) -> int:
    """A bound in steps of a scale, rounded to the nearest, ties to even, within limits."""
    if math.isinf(bound):
        return limit if (bound > 0) == (scale > 0) else -limit
    return min(max(round(Fraction(bound) / scale), -limit), limit)
