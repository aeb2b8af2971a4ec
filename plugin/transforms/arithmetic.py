"""The scalar arithmetic of quantize and dequantize, emitted as ``arith`` and ``math`` operations.

One function a formula; each repeats the NumPy reference in `subquant.quantization` step by step:

* quantize: ``q = integer(round_half_even(clamp(x / s + z)))``. The clamp comes before the
  conversion, so that the conversion never leaves the integer type. It is written with comparisons
  and selects, which treat NaN the same on every target; NaN is then replaced by 0 (clamped). The
  clamp uses the outermost floats inside the storage range; a storage type that has more bits than
  the float (i32 in f32) gets its exact bounds by a select after the conversion.
* dequantize: ``x = float(q - z) * s + o``. The subtraction is i32, or i64 where 32-bit storage
  would overflow; ``o`` is 0 but for ``subquant.dequantize``.

Vulkan allows a division to be off by 2.5 units in the last place, and SwiftShader is: a tie then
goes the wrong way. With ``division="exact"`` the f32 quotient is corrected to the nearest one by
integer arithmetic (`CastArithmetic._exact_quotient`).

f16 is computed in f16. bf16 is computed in f32 and rounded after each operation by integer
arithmetic on the bits, because IREE removes a ``truncf`` followed by an ``extf``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .._mlir import ir
from ..dialects.quant import element_type, expressed_mlir_type
from ..numerics.casts import Rounding
from ..numerics.parameters import ExpressedType, StorageType
from .base import Builder

__all__ = ["CastArithmetic", "Division"]

Division = Literal["native", "exact"]

_OGT, _OLT, _UNO = 2, 4, 14  # arith.cmpf predicates
_SLT, _SGE = 2, 5  # arith.cmpi predicates
_ULP_HALF_BF16 = 0x7FFF


@dataclass(frozen=True)
class CastArithmetic:
    """Emits the scalar operations of one cast at the current insertion point.

    Args:
        storage, expressed: the types of the cast.
        rounding: as in `subquant.numerics.casts.quantize_blocks`; ``"toward-zero"`` repeats the
            operations of upstream's ``lower-quant-ops`` instead.
        division: ``"native"`` where the target's division is correctly rounded, else ``"exact"``
            (not for f64, whose division is always the target's).
    """

    storage: StorageType
    expressed: ExpressedType
    rounding: Rounding = "nearest-even"
    division: Division = "native"

    # -- quantize ---------------------------------------------------------------------------------

    def quantize(self, b: Builder, value: Any, scale: Any, zero_point: Any | int) -> Any:
        """Emit quantize.

        Args:
            b: the builder.
            value: a value of the expressed type.
            scale: a float (a compile-time constant), a value of a type that is not wider, or an
                array for a builder that has `grid`.
            zero_point: an int, a value of an integer type that is not wider than the storage, or an
                array as above.

        Returns:
            A value of the storage type.
        """
        quotient = self._quotient(b, value, scale)
        if not _is_zero(zero_point):
            shifted = b.op(
                "arith.addf",
                [quotient, self._zero_point_as_float(b, zero_point)],
                self._work_type(b),
            )
            quotient = self._round(b, shifted)
        if self.expressed is ExpressedType.F16:
            quotient = b.op("arith.extf", [quotient], b.f32)
        if self.rounding == "toward-zero":
            return self._convert_toward_zero(b, quotient)
        return self._saturate(b, quotient)

    def _quotient(self, b: Builder, value: Any, scale: Any) -> Any:
        """``value / scale``, rounded to the expressed type."""
        if self.division == "native" or self.expressed is ExpressedType.F64:
            operands = [self._widen(b, value), self._scale(b, scale)]
            return self._round(b, b.op("arith.divf", operands, self._work_type(b)))
        # A quotient rounded to f32 and then to f16 or bf16 is the one rounded once: f32 has more
        # than twice their bits.
        single = [
            operand if element_type(operand.type) == b.f32 else b.op("arith.extf", [operand], b.f32)
            for operand in (value, self._scale(b, scale))
        ]
        quotient = self._exact_quotient(b, *single)
        if self.expressed is ExpressedType.F16:
            return b.op("arith.truncf", [quotient], self._work_type(b))
        return self._round(b, quotient)

    def _exact_quotient(self, b: Builder, value: Any, scale: Any) -> Any:
        """The f32 nearest to ``value / scale`` on a device whose division is only nearly right.

        With 24-bit significands ``x`` and ``s``, ``x`` doubled if it is less than ``s``, the
        quotient's significand is ``m = x * 2**23 / s`` in ``[2**23, 2**24)``. The device's division
        gives ``m`` within a few units; the remainder ``x * 2**23 - m * s`` then fits 32 bits, so
        wrapping arithmetic gives it exactly, and with it the floor and the rounding. Zeros,
        infinities, NaN, subnormals and results outside the normal range are left to the device:
        they quantize the same whatever their last bits are.
        """
        i32 = b.i32

        def integer(value: int) -> Any:
            return b.constant(value, i32)

        def op(name: str, *operands: Any) -> Any:
            return b.op(f"arith.{name}", list(operands), i32)

        def select(condition: Any, yes: Any, no: Any) -> Any:
            return b.op("arith.select", [condition, yes, no], yes.type)

        def as_float(value: Any) -> Any:
            return b.op("arith.sitofp", [value], b.f32)

        def parts(value: Any) -> tuple[Any, Any, Any]:
            bits = b.op("arith.bitcast", [value], i32)
            fraction = op("andi", bits, integer(0x7FFFFF))
            exponent = op("andi", op("shrui", bits, integer(23)), integer(0xFF))
            return bits, exponent, op("ori", fraction, integer(1 << 23))

        bits, exponent, x = parts(value)
        scale_bits, scale_exponent, s = parts(scale)
        less = b.compare(_SLT, x, s)
        x = select(less, op("shli", x, integer(1)), x)
        exponent_field = op("addi", op("subi", exponent, scale_exponent), integer(127))
        exponent_field = op("subi", exponent_field, select(less, integer(1), integer(0)))
        ratio = b.op("arith.divf", [as_float(x), as_float(s)], b.f32)
        scaled = b.op("arith.mulf", [ratio, b.constant(float(1 << 23), b.f32)], b.f32)
        m = b.op("arith.fptosi", [scaled], i32)
        remainder = op("subi", op("shli", x, integer(23)), op("muli", m, s))
        # The device's quotient of the remainder is within one of the floor.
        step = b.op("arith.divf", [as_float(remainder), as_float(s)], b.f32)
        step = b.op("arith.fptosi", [step], i32)
        m, remainder = op("addi", m, step), op("subi", remainder, op("muli", step, s))
        below = b.compare(_SLT, remainder, integer(0))
        m = select(below, op("subi", m, integer(1)), m)
        remainder = select(below, op("addi", remainder, s), remainder)
        beyond = b.compare(_SGE, remainder, s)
        m = select(beyond, op("addi", m, integer(1)), m)
        remainder = select(beyond, op("subi", remainder, s), remainder)
        twice = op("shli", remainder, integer(1))
        odd = op("andi", m, integer(1))
        up = b.compare(_SGE, op("addi", twice, odd), op("addi", s, integer(1)))
        m = select(up, op("addi", m, integer(1)), m)
        # Adding the significand without its leading bit lets a carry reach the exponent.
        magnitude = op("shli", exponent_field, integer(23))
        magnitude = op("addi", magnitude, op("subi", m, integer(1 << 23)))
        sign = op("andi", op("xori", bits, scale_bits), integer(-(1 << 31)))
        signed = op("ori", magnitude, sign)
        exact = b.op("arith.bitcast", [signed], b.f32)
        normal = b.compare(_SGE, exponent, integer(1))
        for condition in (
            b.compare(_SLT, exponent, integer(255)),
            b.compare(_SGE, scale_exponent, integer(1)),
            b.compare(_SLT, scale_exponent, integer(255)),
            b.compare(_SGE, exponent_field, integer(1)),
            b.compare(_SLT, exponent_field, integer(254)),
        ):
            normal = b.op("arith.andi", [normal, condition], b.i1)
        native = b.op("arith.divf", [value, scale], b.f32)
        return select(normal, exact, native)

    def _saturate(self, b: Builder, quotient: Any) -> Any:
        storage = self.storage
        float_type = quotient.type
        low, high = self._float_bounds()
        low_constant, high_constant = b.constant(low, float_type), b.constant(high, float_type)
        below = b.compare_float(_OLT, quotient, low_constant)
        above = b.compare_float(_OGT, quotient, high_constant)
        clamped = b.op("arith.select", [below, low_constant, quotient], float_type)
        clamped = b.op("arith.select", [above, high_constant, clamped], float_type)
        rounded = b.op("math.roundeven", [clamped], float_type)
        nan = b.compare_float(_UNO, quotient, quotient)
        of_nan = b.constant(min(max(0.0, low), high), float_type)
        number = b.op("arith.select", [nan, of_nan, rounded], float_type)
        unsigned32 = not storage.signed and storage.width == 32
        name = "arith.fptoui" if unsigned32 else "arith.fptosi"
        integer = b.op(name, [number], b.i32)
        if low != storage.minimum:
            minimum = b.constant(_as_signed32(storage.minimum), b.i32)
            integer = b.op("arith.select", [below, minimum, integer], b.i32)
        if high != storage.maximum:
            maximum = b.constant(_as_signed32(storage.maximum), b.i32)
            integer = b.op("arith.select", [above, maximum, integer], b.i32)
        exact_nan = min(max(0, storage.minimum), storage.maximum)
        if float(min(max(0.0, low), high)) != exact_nan:
            constant = b.constant(_as_signed32(exact_nan), b.i32)
            integer = b.op("arith.select", [nan, constant, integer], b.i32)
        return self._narrow(b, integer)

    def _float_bounds(self) -> tuple[float, float]:
        """The outermost floats of the compute type inside the storage range."""
        dtype = self.expressed.compute_dtype
        bounds = []
        for bound, inward in ((self.storage.minimum, np.inf), (self.storage.maximum, -np.inf)):
            near = np.asarray(bound, np.float64).astype(dtype)
            outside = float(near) < bound if inward > 0 else float(near) > bound
            bounds.append(float(np.nextafter(near, dtype.type(inward)) if outside else near))
        return bounds[0], bounds[1]

    def _convert_toward_zero(self, b: Builder, quotient: Any) -> Any:
        """Upstream's conversion: undefined outside the storage type, clamped to narrower bounds."""
        storage = self.storage
        unsigned = not storage.signed
        integer = b.op("arith.fptoui" if unsigned else "arith.fptosi", [quotient], b.i32)
        if storage.is_narrowed:
            suffix = "ui" if unsigned else "si"
            minimum = b.constant(_as_signed32(storage.minimum), b.i32)
            maximum = b.constant(_as_signed32(storage.maximum), b.i32)
            integer = b.op(f"arith.max{suffix}", [integer, minimum], b.i32)
            integer = b.op(f"arith.min{suffix}", [integer, maximum], b.i32)
        return self._narrow(b, integer)

    def _narrow(self, b: Builder, integer: Any) -> Any:
        if self.storage.width == 32:
            return integer
        return b.op("arith.trunci", [integer], ir.IntegerType.get_signless(self.storage.width))

    # -- dequantize -------------------------------------------------------------------------------

    def dequantize(
        self, b: Builder, stored: Any, scale: Any, zero_point: Any | int, offset: Any = None
    ) -> Any:
        """Emit dequantize.

        Args:
            b: the builder.
            stored: a value of the storage type.
            scale, zero_point: as in `quantize`.
            offset: added to the rounded product: a value of a type that is not wider than the
                expressed type, or None.

        Returns:
            A value of the expressed type.
        """
        if self.rounding == "toward-zero":
            real = self._integer_as_float(b, stored, self.storage.width)
            if not _is_zero(zero_point):
                zero = self._zero_point_as_float(b, zero_point)
                real = self._round(b, b.op("arith.subf", [real, zero], self._work_type(b)))
        else:
            real = self._to_work_float(b, self._difference(b, stored, zero_point))
        product = b.op("arith.mulf", [real, self._scale(b, scale)], self._work_type(b))
        result = self._round(b, product)
        if offset is not None:
            total = b.op("arith.addf", [result, self._widen(b, offset)], self._work_type(b))
            result = self._round(b, total)
        if self.expressed is ExpressedType.BF16:
            return b.op("arith.truncf", [result], expressed_mlir_type(self.expressed))
        return result

    def _difference(self, b: Any, stored: Any, zero_point: Any | int) -> Any:
        storage = self.storage
        symmetric = _is_zero(zero_point)
        fits32 = storage.width < 32 or (storage.signed and symmetric)
        wide = b.i32 if fits32 else b.i64
        integer = self._extend(b, stored, wide)
        if symmetric:
            return integer
        if isinstance(zero_point, int):
            zero = b.constant(zero_point, wide)
        elif isinstance(zero_point, np.ndarray):
            zero = b.grid(zero_point, wide)
        else:
            zero = self._extend(b, zero_point, wide)
        return b.op("arith.subi", [integer, zero], wide)

    # -- pieces -----------------------------------------------------------------------------------

    def _work_type(self, b: Builder) -> ir.Type:
        """The type that operations are computed in: f32 for bf16, else the expressed type."""
        if self.expressed is ExpressedType.BF16:
            return b.f32
        return expressed_mlir_type(self.expressed)

    def _widen(self, b: Builder, value: Any) -> Any:
        """Convert a float that is not wider than the work type to it."""
        work = self._work_type(b)
        return value if element_type(value.type) == work else b.op("arith.extf", [value], work)

    def _scale(self, b: Any, scale: Any) -> Any:
        if isinstance(scale, float):
            return b.constant(scale, self._work_type(b))
        if isinstance(scale, np.ndarray):
            return b.grid(scale, self._work_type(b))
        return self._widen(b, scale)

    def _extend(self, b: Builder, integer: Any, wide: ir.IntegerType) -> Any:
        if element_type(integer.type) == wide:
            return integer
        name = "arith.extsi" if self.storage.signed else "arith.extui"
        return b.op(name, [integer], wide)

    def _zero_point_as_float(self, b: Any, zero_point: Any | int) -> Any:
        if isinstance(zero_point, (int, np.ndarray)):
            with np.errstate(over="ignore"):
                near = np.asarray(zero_point, np.float64).astype(self.expressed.compute_dtype)
                near = near.astype(self.expressed.dtype).astype(np.float64)
            if isinstance(zero_point, int):
                return b.constant(float(near), self._work_type(b))
            return b.grid(near, self._work_type(b))
        return self._integer_as_float(b, zero_point, element_type(zero_point.type).width)

    def _integer_as_float(self, b: Builder, integer: Any, width: int) -> Any:
        wide = b.i32 if width < 32 or self.storage.signed else b.i64
        return self._to_work_float(b, self._extend(b, integer, wide))

    def _to_work_float(self, b: Builder, integer: Any) -> Any:
        """Convert i32 or i64 to the work type, rounded as the reference does (through f32)."""
        if self.expressed is ExpressedType.F64:
            return b.op("arith.sitofp", [integer], b.f64)
        single = b.op("arith.sitofp", [integer], b.f32)
        if self.expressed is ExpressedType.F16:
            return b.op("arith.truncf", [single], self._work_type(b))
        return self._round(b, single)

    def _round(self, b: Builder, value: Any) -> Any:
        """Round an f32 to the nearest bf16 (ties to even); other types pass."""
        if self.expressed is not ExpressedType.BF16:
            return value
        bits = b.op("arith.bitcast", [value], b.i32)
        sixteen = b.constant(16, b.i32)
        last = b.op("arith.shrui", [bits, sixteen], b.i32)
        last = b.op("arith.andi", [last, b.constant(1, b.i32)], b.i32)
        bias = b.op("arith.addi", [last, b.constant(_ULP_HALF_BF16, b.i32)], b.i32)
        bits = b.op("arith.addi", [bits, bias], b.i32)
        bits = b.op("arith.andi", [bits, b.constant(-0x10000, b.i32)], b.i32)
        rounded = b.op("arith.bitcast", [bits], b.f32)
        nan = b.compare_float(_UNO, value, value)
        return b.op("arith.select", [nan, value, rounded], b.f32)


def _is_zero(zero_point: Any) -> bool:
    """True for a zero point that is known to be 0 everywhere."""
    if isinstance(zero_point, np.ndarray):
        return not zero_point.any()
    return isinstance(zero_point, int) and zero_point == 0


def _as_signed32(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
