"""Quantize and dequantize: between reals and storage values.

Numeric contract, for an element ``x`` with scale ``s`` and zero point ``z`` of its block:

* quantize: ``clamp(round_half_even(x / s + z), storage min, storage max)``. Division and addition
  are computed in the expressed type, each rounded to nearest even (``z`` is converted to the
  expressed type first). Infinities saturate, NaN gives 0 clamped to the storage range.
* dequantize: ``(q - z) * s + o``. The subtraction is exact in a wider integer; its result is
  converted to the expressed type (f16, bf16: through f32), then multiplied in the expressed type;
  an offset ``o``, which only ``subquant.dequantize`` has, is added to the rounded product.

How it is computed, on NumPy's arrays and on the values of a program alike (`Cast`):

* The clamp comes before the conversion, so that the conversion never leaves the integer type (the
  bounds are integers: clamping before or after rounding gives the same). It is written with
  comparisons and choices, which treat NaN the same on every target; NaN is then replaced. The
  clamp uses the outermost floats inside the storage range; a storage type that has more bits than
  the float (i32 in f32) gets its exact bounds by a choice after the conversion.
* The subtraction is i32, or i64 where 32-bit storage would overflow.
* f16 is computed in f16. bf16 is computed in f32 and rounded after each operation by integer
  arithmetic on the bits, because IREE removes a ``truncf`` followed by an ``extf``.
* Vulkan allows a division to be off by 2.5 units in the last place, and SwiftShader is: a tie then
  goes the wrong way. With ``division="exact"`` the f32 quotient is corrected to the nearest one by
  integer arithmetic.

Sources: sub-channel RFC, appendix "Lowering qcast and dcast"; StableHLO specification,
``uniform_quantize`` and ``uniform_dequantize``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..core.option_fields import Rounding
from ..errors import UsageError
from .array_functions import (
    bits_of,
    bits_rounded_to_bf16,
    both,
    convert,
    is_known,
    is_zero,
    truncate,
)
from .element_types import BF16, F16, F32, F64, I32, I64, U32, AnyArray, Array, ElementType
from .parameters import ExpressedType, QuantizationParameters, StorageType, spread_blocks

__all__ = [
    "Cast",
    "Division",
    "dequantize",
    "dequantize_blocks",
    "exact_quotient",
    "is_masked",
    "quantize",
    "quantize_blocks",
]

Division = Literal["native", "exact", "deferred"]


@dataclass(frozen=True)
class Cast:
    """The formulas of one pair of types, over arrays.

    Args:
        storage, expressed: the types.
        rounding: ``"toward-zero"`` repeats the operations of upstream's ``lower-quant-ops``
            instead: values that leave the storage type are undefined there; in NumPy they saturate.
        division: ``"native"`` where the target's division is correctly rounded, else ``"exact"``
            (not for f64, whose division is always the target's), or ``"deferred"``: a division of
            f32 for which a later pass (``expand-stablehlo``) writes the exact quotient.
    """

    storage: StorageType
    expressed: ExpressedType
    rounding: Rounding = "nearest-even"
    division: Division = "native"

    # -- quantize ---------------------------------------------------------------------------------

    def quantize(self, value: AnyArray, scale: AnyArray, zero_point: AnyArray = 0) -> AnyArray:
        """Return storage values.

        Args:
            value: reals of the expressed type.
            scale: numbers, an array, or a value of a type that is not wider.
            zero_point: integers, an array, or a value of an integer type that is not wider than the
                storage type.
        """
        quotient = self._quotient(value, scale)
        if not is_zero(zero_point):
            quotient = self._rounded(quotient + self._real_of_integer(zero_point))
        if self.expressed is ExpressedType.F16:
            quotient = convert(quotient, F32)
        if self.rounding == "toward-zero":
            return self._truncated(quotient)
        return self._saturated(quotient)

    def _quotient(self, value: AnyArray, scale: AnyArray) -> AnyArray:
        """``value / scale``, rounded to the expressed type."""
        if self.division == "native" or self.expressed is ExpressedType.F64:
            return self._rounded(convert(value, self._work) / convert(scale, self._work))
        # A quotient rounded to f32 and then to f16 or bf16 is the one rounded once: f32 has more
        # than twice their bits.
        x, y = convert(value, F32), convert(convert(scale, self._work), F32)
        quotient = exact_quotient(x, y) if self.division == "exact" else x / y
        if self.expressed is ExpressedType.F16:
            return convert(quotient, F16)
        return self._rounded(quotient)

    def _saturated(self, quotient: AnyArray) -> AnyArray:
        storage = self.storage
        low, high = self._float_bounds
        below, above = quotient < low, quotient > high
        clamped = np.where(above, high, np.where(below, low, quotient))
        nan = quotient != quotient
        of_nan = min(max(0.0, low), high)
        number = np.where(nan, of_nan, np.rint(clamped))
        unsigned32 = not storage.signed and storage.width == 32
        integer = truncate(number, U32 if unsigned32 else I32)
        if low != storage.minimum:
            integer = np.where(below, storage.minimum, integer)
        if high != storage.maximum:
            integer = np.where(above, storage.maximum, integer)
        exact_of_nan = min(max(0, storage.minimum), storage.maximum)
        if of_nan != exact_of_nan:
            integer = np.where(nan, exact_of_nan, integer)
        return convert(integer, storage.element)

    @cached_property
    def _float_bounds(self) -> tuple[float, float]:
        """The outermost floats of the compute type inside the storage range."""
        dtype = self.expressed.compute_dtype
        bounds = []
        for bound, inward in ((self.storage.minimum, np.inf), (self.storage.maximum, -np.inf)):
            rounded = np.asarray(bound, np.float64).astype(dtype)
            outside = float(rounded) < bound if inward > 0 else float(rounded) > bound
            bounds.append(float(np.nextafter(rounded, dtype.type(inward)) if outside else rounded))
        return bounds[0], bounds[1]

    def _truncated(self, quotient: AnyArray) -> AnyArray:
        """Round toward zero as upstream: undefined outside the type, clamped to narrower bounds."""
        storage = self.storage
        integer = truncate(quotient, I32 if storage.signed else U32)
        if storage.is_narrowed or is_known(quotient):
            integer = np.minimum(np.maximum(integer, storage.minimum), storage.maximum)
        return convert(integer, storage.element)

    # -- dequantize -------------------------------------------------------------------------------

    def dequantize(
        self,
        stored: AnyArray,
        scale: AnyArray,
        zero_point: AnyArray = 0,
        offset: AnyArray | None = None,
    ) -> AnyArray:
        """Return expressed values."""
        if self.rounding == "toward-zero":
            real = self._real_of_integer(stored)
            if not is_zero(zero_point):
                real = self._rounded(real - self._real_of_integer(zero_point))
        else:
            real = self._real(self.difference(stored, zero_point))
        result = self._rounded(real * convert(scale, self._work))
        if offset is not None:
            result = self._rounded(result + convert(offset, self._work))
        return convert(result, BF16) if self.expressed is ExpressedType.BF16 else result

    def difference(self, stored: AnyArray, zero_point: AnyArray = 0) -> AnyArray:
        """``stored - zero_point``, exact: i32, or i64 where 32-bit storage would overflow."""
        storage, symmetric = self.storage, is_zero(zero_point)
        fits = storage.width < 32 or (storage.signed and symmetric)
        wide = I32 if fits else I64
        integer = convert(stored, wide)
        return integer if symmetric else integer - convert(zero_point, wide)

    # -- pieces -----------------------------------------------------------------------------------

    @cached_property
    def _work(self) -> ElementType:
        """The type that operations are computed in: f32 for bf16, else the expressed type."""
        return F32 if self.expressed is ExpressedType.BF16 else self.expressed.element

    def _real_of_integer(self, integer: AnyArray) -> AnyArray:
        """A storage value or zero point as the nearest real."""
        return self._real(convert(integer, I64 if self._is_wide(integer) else I32))

    def _is_wide(self, integer: AnyArray) -> bool:
        if self.storage.signed:
            return False
        return self.storage.width == 32 and (is_known(integer) or integer.element.bits == 32)

    def _real(self, integer: AnyArray) -> AnyArray:
        """Convert i32 or i64 to the work type: f16 and bf16 through f32."""
        if self.expressed is ExpressedType.F64:
            return convert(integer, F64)
        single = convert(integer, F32)
        return (
            convert(single, F16) if self.expressed is ExpressedType.F16 else self._rounded(single)
        )

    def _rounded(self, value: AnyArray) -> AnyArray:
        """Round an f32 to the nearest bf16 (ties to even); other types pass."""
        return round_to_bf16(value) if self.expressed is ExpressedType.BF16 else value


def round_to_bf16(value: AnyArray) -> AnyArray:
    """Round an f32 to the nearest bf16 (ties to even), which is an f32 of 8 significant bits."""
    rounded = bits_of(bits_rounded_to_bf16(value) & -0x10000, F32)
    return np.where(value != value, value, rounded)


def _quotient_of_target(value: AnyArray, divisor: AnyArray) -> AnyArray:
    """Return the target's f32 quotient."""
    return value / divisor


def exact_quotient(value: AnyArray, scale: AnyArray) -> AnyArray:
    """The f32 nearest to ``value / scale`` on a device whose division is only nearly right.

    With 24-bit significands ``x`` and ``s``, ``x`` doubled if it is less than ``s``, the quotient's
    significand is ``m = x * 2**23 / s`` in ``[2**23, 2**24)``. The device's division gives ``m``
    within a few units; the remainder ``x * 2**23 - m * s`` then fits 32 bits, so wrapping
    arithmetic gives it exactly, and with it the floor and the rounding. Zeros, infinities, NaN,
    subnormals and results outside the normal range are left to the device: they quantize the same
    whatever their last bits are.
    """

    def significand(real: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
        bits = bits_of(real, I32)
        return bits, (bits >> 23) & 0xFF, (bits & 0x7FFFFF) | (1 << 23)

    bits, exponent, x = significand(value)
    scale_bits, scale_exponent, s = significand(scale)
    less = x < s
    x = np.where(less, x << 1, x)
    exponent_field = exponent - scale_exponent + 127 - less
    ratio = _quotient_of_target(convert(x, F32), convert(s, F32))
    m = truncate(ratio * float(1 << 23), I32)
    remainder = (x << 23) - m * s
    # The device's quotient of the remainder is within one of the floor.
    step = truncate(_quotient_of_target(convert(remainder, F32), convert(s, F32)), I32)
    m, remainder = m + step, remainder - step * s
    below = remainder < 0
    m, remainder = np.where(below, m - 1, m), np.where(below, remainder + s, remainder)
    beyond = remainder >= s
    m, remainder = np.where(beyond, m + 1, m), np.where(beyond, remainder - s, remainder)
    up = (remainder << 1) + (m & 1) >= s + 1
    m = np.where(up, m + 1, m)
    # Adding the significand without its leading bit lets a carry reach the exponent.
    magnitude = (exponent_field << 23) + (m - (1 << 23))
    exact = bits_of(magnitude | ((bits ^ scale_bits) & -(1 << 31)), F32)
    normal = exponent >= 1
    for condition in (
        exponent < 255,
        scale_exponent >= 1,
        scale_exponent < 255,
        exponent_field >= 1,
        exponent_field < 254,
    ):
        normal = both(normal, condition)
    return np.where(normal, exact, value / scale)


# -- in NumPy -------------------------------------------------------------------------------------


def quantize_blocks(
    values: npt.ArrayLike,
    scales: npt.ArrayLike,
    zero_points: npt.ArrayLike | None,
    block_shape: Sequence[int],
    storage: StorageType,
    expressed: ExpressedType,
    rounding: Rounding = "nearest-even",
) -> Array:
    """Quantize to the shape of `values` with arrays of scales and zero points; see the module.

    Args:
        values: reals, any shape; converted to the expressed type.
        scales, zero_points: shape ``ceil(values.shape / block_shape)``. Scales may be of a narrower
            floating-point type: they are widened to the expressed type, which is exact.
        rounding: ``"nearest-even"``, or ``"toward-zero"`` for the arithmetic of upstream's
            ``lower-quant-ops``. Values that leave the storage type are undefined there; here they
            saturate.
    """
    with np.errstate(all="ignore"):
        reals = np.asarray(values).astype(expressed.dtype)
        scale = _spread(scales, expressed.dtype, reals.shape, block_shape)
        zero_point = _spread(zero_points, np.int64, reals.shape, block_shape)
        return np.asarray(Cast(storage, expressed, rounding).quantize(reals, scale, zero_point))


def dequantize_blocks(
    stored: npt.ArrayLike,
    scales: npt.ArrayLike,
    zero_points: npt.ArrayLike | None,
    block_shape: Sequence[int],
    expressed: ExpressedType,
    offsets: npt.ArrayLike | None = None,
) -> Array:
    """Dequantize to the shape of `stored` with arrays of scales and zero points; see the module.

    Args:
        stored: storage values, any integer dtype and shape.
        scales, zero_points: shape ``ceil(stored.shape / block_shape)``.
        offsets: of the shape of `scales`, and like them not wider than `expressed`; None for none.
    """
    with np.errstate(all="ignore"):
        integers = np.asarray(stored).astype(np.int64)
        blocks, dtype = (integers.shape, block_shape), expressed.dtype
        scale, zero_point = _spread(scales, dtype, *blocks), _spread(zero_points, np.int64, *blocks)
        offset = None if offsets is None else _spread(offsets, dtype, *blocks)
        cast = Cast(_WIDEST, expressed)
        return np.asarray(cast.dequantize(integers, scale, zero_point, offset))


_WIDEST = StorageType(32, signed=False)
"""For storage values of any type: differences are taken in i64."""


def _spread(
    numbers: npt.ArrayLike | None,
    dtype: npt.DTypeLike,
    shape: Sequence[int],
    block_shape: Sequence[int],
) -> Array | int:
    """Return for each element the scale or zero point of its block; 0 for no numbers."""
    if numbers is None:
        return 0
    return spread_blocks(np.asarray(numbers).astype(dtype), shape, block_shape)


def quantize(
    values: npt.ArrayLike,
    parameters: QuantizationParameters,
    rounding: Rounding = "nearest-even",
) -> Array:
    """Quantize an array: the reference for ``quant.qcast`` and ``subquant.qcast``.

    Args:
        values: reals of a shape whose block grid is the scales' shape.
        rounding: as in `quantize_blocks`.

    Returns:
        Storage values of ``parameters.storage.dtype``, shape of `values`.

    Raises:
        UsageError: the shape does not fit the scales, or the values are no numbers.
    """
    array = _array_of(values, "iuf", "numbers")
    scales, zero_points = _checked_grids(parameters, array.shape)
    return quantize_blocks(
        array,
        scales,
        zero_points,
        parameters.block_shape(array.shape),
        parameters.storage,
        parameters.expressed,
        rounding,
    )


def dequantize(stored: npt.ArrayLike, parameters: QuantizationParameters) -> Array:
    """Dequantize an array: the reference for ``quant.dcast`` and ``subquant.dcast``.

    Args:
        stored: storage values, integers of a shape whose block grid is the scales' shape.

    Returns:
        Reals of the expressed type, shape of `stored`.

    Raises:
        UsageError: the shape does not fit the scales, or the values are no integers.
    """
    array = _array_of(stored, "iu", "integers")
    scales, zero_points = _checked_grids(parameters, array.shape)
    block_shape = parameters.block_shape(array.shape)
    return dequantize_blocks(array, scales, zero_points, block_shape, parameters.expressed)


def is_masked(values: object) -> bool:
    """Return True for a masked array; `numpy.ma`, which only they need, is not imported here."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(values, ma.MaskedArray)


def _array_of(values: npt.ArrayLike, kinds: str, what: str) -> Array:
    """Return an argument as an array; UsageError for other values, and for a mask."""
    if is_masked(values):
        raise UsageError("expected an array without a mask; fill it: x.filled(0)")
    array = np.asarray(values)
    is_bf16 = array.dtype == BF16.dtype and "f" in kinds
    if array.dtype.kind not in kinds and not is_bf16 and array.size:
        raise UsageError(f"expected {what}, got an array of {array.dtype}")
    return array


def _checked_grids(
    parameters: QuantizationParameters, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    if parameters.granularity == "per-tensor":
        return parameters.scales, parameters.zero_points
    scales, zero_points = parameters.grids(len(shape))
    expected = parameters.grid_shape(shape)
    if scales.shape != expected:
        raise UsageError(
            f"a tensor of shape {shape} has {expected} blocks, got scales of shape {scales.shape}"
        )
    return scales, zero_points
