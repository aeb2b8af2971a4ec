"""Floats of 4 to 8 bits as codes: tables of their values, and the code of a real.

A code is sign, exponent and mantissa from the highest bit down. With ``m`` bits of mantissa and the
bias ``b``, a magnitude ``v`` has the code nearest to::

    v * 2**(b - 1 + m)                                  below 2**(1 - b), in steps of 2**(1 - b - m)
    (bits of the f32 ``v`` >> (23 - m)) - ((127 - b) << m)    above, rounded to nearest even

which is one sequence of codes: where one ends the next begins.

Sources: ONNX, "Float stored in 8 bits", "4 bit types"; OCP 8-bit floating point specification; OCP
microscaling formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .array_functions import bits_of, convert, is_known, take, truncate
from .element_types import F32, I32, AnyArray, Array


@dataclass(frozen=True)
class SmallFloat:
    """Format of small floats.

    Args:
        dtype: the dtype in ml_dtypes.
        mantissa, bias: mantissa bits and exponent bias.
        greatest: the code of the greatest magnitude.
        nan: the code of NaN; None if there is none.
    """

    dtype: npt.DTypeLike
    mantissa: int
    bias: int
    greatest: int
    nan: int | None = None
    infinity: int | None = None
    sign: int = 0x80

    @property
    def table(self) -> Array:
        """The value of each code, as f32."""
        codes = np.arange(2 * self.sign, dtype=np.uint8)
        return codes.view(self.dtype).astype(np.float32)

    def decode(self, codes: AnyArray, dtype: npt.DTypeLike) -> AnyArray:
        """Codes as reals of a float type that holds them all."""
        return take(self.table.astype(dtype), convert(codes, I32) & (2 * self.sign - 1))

    def compute(self, codes: AnyArray) -> AnyArray:
        """Codes as f32, without a table in a program: by integers and one product.

        The exponent and mantissa of a code are those of f32 from bit ``23 - m`` on; a code without
        an exponent counts steps of the least magnitude.
        """
        if is_known(codes):
            return self.table[np.asarray(codes)]
        m, sign_bit = self.mantissa, self.sign.bit_length() - 1
        code = convert(codes, I32)
        magnitude = code & (self.sign - 1)
        normal = bits_of((magnitude << (23 - m)) + ((127 - self.bias) << 23), F32)
        steps = convert(magnitude, F32) * np.float32(2.0 ** (1 - self.bias - m))
        value = np.where(magnitude < (1 << m), steps, normal)
        if self.infinity is not None:
            value = np.where(magnitude == self.infinity, np.float32(np.inf), value)
            value = np.where(magnitude > self.infinity, np.float32(np.nan), value)
        elif self.nan is not None:
            value = np.where(code == self.nan, np.float32(np.nan), value)
            value = np.where(code == (self.nan | self.sign), np.float32(np.nan), value)
        sign = (code & self.sign) << (31 - sign_bit)
        return bits_of(bits_of(value, I32) | sign, F32)

    def encode(self, reals: AnyArray, saturate: bool = True) -> AnyArray:
        """The nearest codes of f32 reals, ties to even, as uint8.

        Args:
            reals: f32.
            saturate: reals beyond the greatest become that one; else infinity, or NaN where there
                is none. Formats that have neither saturate.
        """
        m = self.mantissa
        bits = bits_of(reals, I32)
        magnitude = bits & 0x7FFFFFFF
        cut = 23 - m
        even = (magnitude >> cut) & 1
        normal = ((magnitude + ((1 << (cut - 1)) - 1) + even) >> cut) - ((127 - self.bias) << m)
        small = bits_of(magnitude, F32) < np.float32(2.0 ** (1 - self.bias))
        steps = np.where(small, bits_of(magnitude, F32), np.float32(0))
        subnormal = truncate(np.rint(steps * np.float32(2.0 ** (self.bias - 1 + m))), I32)
        code = np.where(small, subnormal, normal)
        beyond = self.greatest
        if not saturate and self.nan is not None:
            beyond = self.nan if self.infinity is None else self.infinity
        code = np.where(code > self.greatest, beyond, code)
        is_negative = bits < 0
        if self.nan == self.sign:  # no negative zero, and one NaN
            is_negative = is_negative & (code != 0) & (code != self.sign)
        code = np.where(is_negative, code | self.sign, code)
        nan: AnyArray = self.nan
        if nan is None:  # unspecified: a zero of the other sign, as in ml_dtypes and ONNX's tests
            nan = np.where(is_negative, 0, self.sign)
        code = np.where(magnitude > 0x7F800000, nan, code)
        return code.astype(np.uint8)


@dataclass(frozen=True)
class PowerOfTwo:
    """E8M0: the code ``c`` is ``2**(c - 127)``, 255 is NaN; a scale of the microscaling formats."""

    def decode(self, codes: AnyArray, dtype: npt.DTypeLike) -> AnyArray:
        """Codes as reals of a float type; those that it has not overflow, or are 0."""
        with np.errstate(over="ignore", under="ignore"):
            codes_ = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
            table = codes_.astype(np.float32).astype(dtype)
        return take(table, convert(codes, I32) & 0xFF)

    def encode(self, reals: AnyArray, saturate: bool = True, mode: str = "up") -> AnyArray:
        """Return the codes of f32 magnitudes, as uint8.

        Args:
            reals: f32.
            saturate: True to clamp to the greatest magnitude; else overflow is NaN.
            mode: ``up`` and ``down`` round to a greater or smaller magnitude, ``nearest`` to the
                nearer real, half up.
        """
        bits = bits_of(reals, I32) & 0x7FFFFFFF
        exponent, fraction = bits >> 23, bits & 0x7FFFFF
        if mode == "up":
            exponent = np.where(fraction > 0, exponent + 1, exponent)
        elif mode == "nearest":
            half = np.where(exponent > 0, 0x400000, 0x400001)  # 2**-127 is the code 0
            exponent = np.where(fraction >= half, exponent + 1, exponent)
        code = np.minimum(exponent, 254 if saturate else 255)
        return np.where(bits > 0x7F800000, 255, code).astype(np.uint8)


SMALL_FLOATS: dict[str, SmallFloat | PowerOfTwo] = {
    "FLOAT8E8M0": PowerOfTwo(),
    "FLOAT8E4M3FN": SmallFloat(ml_dtypes.float8_e4m3fn, 3, 7, 0x7E, nan=0x7F),
    "FLOAT8E4M3FNUZ": SmallFloat(ml_dtypes.float8_e4m3fnuz, 3, 8, 0x7F, nan=0x80),
    "FLOAT8E5M2": SmallFloat(ml_dtypes.float8_e5m2, 2, 15, 0x7B, nan=0x7F, infinity=0x7C),
    "FLOAT8E5M2FNUZ": SmallFloat(ml_dtypes.float8_e5m2fnuz, 2, 16, 0x7F, nan=0x80),
    "FLOAT6E2M3": SmallFloat(ml_dtypes.float6_e2m3fn, 3, 1, 0x1F, sign=0x20),
    "FLOAT6E3M2": SmallFloat(ml_dtypes.float6_e3m2fn, 2, 3, 0x1F, sign=0x20),
    "FLOAT4E2M1": SmallFloat(ml_dtypes.float4_e2m1fn, 1, 1, 0x07, sign=0x08),
}
"""Formats by ONNX's names of types."""

FLOAT8_FORMATS = {
    f"f{name.removeprefix('FLOAT')}": each
    for name, each in SMALL_FLOATS.items()
    if name.startswith("FLOAT8") and isinstance(each, SmallFloat)
} | {
    "f8E3M4": SmallFloat(ml_dtypes.float8_e3m4, 4, 3, 0x6F, nan=0x78, infinity=0x70),
    "f8E4M3": SmallFloat(ml_dtypes.float8_e4m3, 3, 7, 0x77, nan=0x7C, infinity=0x78),
    "f8E4M3B11FNUZ": SmallFloat(ml_dtypes.float8_e4m3b11fnuz, 3, 11, 0x7F, nan=0x80),
}
"""Formats of 8 bits by MLIR's names of types; ONNX has only the first four of them."""
