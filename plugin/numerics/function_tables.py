"""Functions of quantized values as tables: for each storage value the result's storage value.

Where storage has 8 bits a function of one operand has 256 results. They are computed here, once, in
float64 from the exact reals, rounded to nearest even (with the near ties of `requantization`) and
saturated: the same on every target, whatever its ``tanh`` is. Up to 65,536 entries are used (two
operands of 8 bits, or one of 16).

``ceil``, ``floor`` and the roundings are not continuous: ``10 * 0.1`` is a little more than 1 with
the f32 nearest to 0.1, and its ceiling 2. StableHLO dequantizes to the expressed type first, where
the product is 1; so do these tables for such functions. ``power`` jumps to NaN where
a negative base has an exponent beside an integer, and so does ``log_plus_one`` below -1.

Source: StableHLO specification, "dequantize_op_quantize" and the functions' own sections.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .element_types import Array
from .parameters import QuantizationParameters
from .requantization import TIE_BITS

_MAX_BITS = 16
"""Bits of all operands of a function that is a table, at most: 65,536 entries."""


UNARY_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "round_nearest_afz": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "round_nearest_even": np.rint,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
BINARY_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "atan2": np.arctan2,
    "divide": np.divide,
    "power": np.power,
    "remainder": np.fmod,
}
_NOT_CONTINUOUS = (
    *("ceil", "floor", "round_nearest_afz", "round_nearest_even"),
    *("log_plus_one", "power", "remainder"),
)
"""Functions that jump, to another value or to NaN, at reals that scales meet."""


def fits_table(*operands: QuantizationParameters) -> bool:
    """True if a table over these per-tensor operands has at most 65,536 entries."""
    return (
        all(operand.granularity == "per-tensor" for operand in operands)
        and sum(operand.storage.width for operand in operands) <= _MAX_BITS
    )


def unary_table(
    name: str, operand: QuantizationParameters, result: QuantizationParameters
) -> Array:
    """The results for the operand's integers from the least of its type on."""
    reals = _reals(operand, name)
    with np.errstate(all="ignore"):
        return _quantized(UNARY_FUNCTIONS[name](reals), result)


def binary_table(
    name: str,
    left: QuantizationParameters,
    right: QuantizationParameters,
    result: QuantizationParameters,
) -> Array:
    """The results for all pairs, the right operand's integer running fastest."""
    reals = np.meshgrid(_reals(left, name), _reals(right, name), indexing="ij")
    with np.errstate(all="ignore"):
        return _quantized(BINARY_FUNCTIONS[name](*reals), result).reshape(-1)


def reduce_precision_table(
    exponent_bits: int,
    mantissa_bits: int,
    operand: QuantizationParameters,
    result: QuantizationParameters,
) -> Array:
    """The results of ``reduce_precision``, whose rounding is not continuous either."""
    reals = _reals(operand, "floor")
    return _quantized(_reduce_precision(reals, exponent_bits, mantissa_bits), result)


def _reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Round to a float of fewer bits; subnormals become 0, overflow infinity.

    More bits than those of f64 change nothing: 12 of an exponent have all of its numbers as normal.
    """
    exponent_bits, mantissa_bits = min(exponent_bits, 12), min(mantissa_bits, 52)
    mantissa, exponent = np.frexp(x)  # 0.5 <= |mantissa| < 1
    scale = 2.0 ** (mantissa_bits + 1)
    rounded = np.ldexp(np.rint(mantissa * scale) / scale, exponent)
    bias = (1 << (exponent_bits - 1)) - 1
    least = np.ldexp(1.0, 1 - bias)
    with np.errstate(over="ignore"):
        greatest = np.ldexp(2.0 - 2.0**-mantissa_bits, bias)
    rounded = np.where(np.abs(rounded) < least, np.copysign(0.0, x), rounded)
    return np.where(np.abs(rounded) > greatest, np.copysign(np.inf, x), rounded)


def _reals(parameters: QuantizationParameters, name: str) -> Array:
    scale, zero_point = float(parameters.scales), int(parameters.zero_points)
    storage = parameters.storage
    low, high = storage.type_range
    reals = (np.arange(low, high + 1, dtype=np.int64) - zero_point).astype(np.float64) * scale
    if name in _NOT_CONTINUOUS:
        with np.errstate(over="ignore"):
            reals = reals.astype(parameters.expressed.dtype).astype(np.float64)
    return reals


def _quantized(reals: Array, parameters: QuantizationParameters) -> Array:
    storage = parameters.storage
    with np.errstate(over="ignore"):
        shifted = reals / float(parameters.scales) + int(parameters.zero_points)
    clamped = np.clip(shifted, storage.minimum, storage.maximum)
    below = np.floor(clamped)
    is_tie = np.abs(clamped - below - 0.5) <= 2.0**-TIE_BITS
    rounded = np.where(is_tie, below + below % 2, np.rint(clamped))
    of_nan = min(max(0, storage.minimum), storage.maximum)
    return np.where(np.isnan(reals), of_nan, rounded).astype(np.int64)
