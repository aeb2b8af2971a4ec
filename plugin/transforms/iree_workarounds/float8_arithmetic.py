"""Arithmetic on 8-bit floats: conversions by integer arithmetic, the rest in f32.

Symptom: reals just below the least normal become 0, not the least normal; one NaN of f8E4M3FN
becomes -480; conversions from and to f16 are refused.
Cause: IREE's emulation of 8-bit floats.
Test: `tests/test_float8.py::test_iree_still_rounds_below_the_least_normal_to_zero`.

A sum, difference, product, quotient or square root of 8-bit floats in f32, rounded again, is the
exact one rounded once, since f32 has more than twice as many bits.

Before::

    %r = stablehlo.add %x, %y : tensor<4xf8E4M3FN>

After::

    %a = stablehlo.bitcast_convert %x : (tensor<4xf8E4M3FN>) -> tensor<4xi8>
    ...                                              // exponent and mantissa, moved to those of f32
    %r = stablehlo.add %x32, %y32 : tensor<4xf32>
    ...                                              // the nearest code
    %c = stablehlo.bitcast_convert %b : (tensor<4xi8>) -> tensor<4xf8E4M3FN>

Source: StableHLO specification, ``convert``.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import stablehlo
from ...emit.float8 import decode_float8, encode_float8, float8_format
from ...emit.operation import mlir_type, value, with_element
from ...errors import UnsupportedError
from ...numerics.element_types import F32
from ..base import NoMatch, Pattern, Replacement, apply_patterns, named

_CONVERSIONS = ("arith.extf", "arith.truncf", "stablehlo.convert")
_ARITHMETIC = (
    *("abs", "add", "atan2", "cbrt", "ceil", "clamp", "compare", "convolution", "cosine", "divide"),
    *("dot", "dot_general", "exponential", "exponential_minus_one", "floor", "is_finite", "log"),
    *("log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "power"),
    *("reduce_precision", "remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "sign"),
    *("sine", "sqrt", "subtract", "tan", "tanh"),
)


def write_float8(module: Operation) -> bool:
    """Rewrite conversions and arithmetic of 8-bit floats; return True if there were any.

    Raises:
        UnsupportedError: a conversion takes two roundings.
    """
    # Without these operations, 8-bit floats neither come from arguments nor reach results.
    if not any(map(_has_float8, named(module, [*_CONVERSIONS, "stablehlo.bitcast_convert"]))):
        return False
    patterns: dict[str, Pattern] = dict.fromkeys(_CONVERSIONS, _convert)
    patterns |= {f"stablehlo.{name}": _compute_in_f32 for name in _ARITHMETIC}
    apply_patterns(module, patterns)
    return True


def _has_float8(op: Operation) -> bool:
    elements = [element_type(each.type) for each in (*op.operands, *op.results)]
    return any(isinstance(each, ir.FloatType) and each.width == 8 for each in elements)


def _convert(op: Operation) -> Replacement:
    """Rewrite a conversion from or to 8-bit floats; NoMatch for other types.

    Raises:
        UnsupportedError: f64 is rounded to 8 bits, which takes two roundings by f32; or reals
            become powers of two (f8E8M0FNU), which IREE rounds down.
    """
    [operand], [result] = op.operands, op.results
    if str(element_type(result.type)) == "f8E8M0FNU" != str(element_type(operand.type)):
        raise UnsupportedError(
            "rounds to f8E8M0FNU, which IREE does wrongly; compute the exponents as integers, and "
            "convert their bits by bitcast_convert",
            op,
        )
    source, target = float8_format(operand.type), float8_format(result.type)
    if (source is None and target is None) or isinstance(result.type, ir.VectorType):
        return NoMatch("converts no 8-bit floats")
    element = element_type(result.type)
    reals = operand if source is None else decode_float8(operand)
    if target is None:
        return _with_reals(reals, element)
    if element_type(reals.type) == ir.F64Type.get():
        raise UnsupportedError(f"rounds f64 to {element}; convert it to f32 first", op)
    return encode_float8(_with_reals(reals, mlir_type(F32)), element)


def _compute_in_f32(op: Operation) -> Replacement:
    """Give an operation operands of f32 in place of 8-bit floats; NoMatch if it has none."""
    if not _has_float8(op):
        return NoMatch("has no 8-bit floats")
    for index, operand in enumerate(op.operands):
        if float8_format(operand.type):
            op.operands[index] = decode_float8(operand)
    [result] = op.results
    if float8_format(result.type) is None:
        return None
    element, uses = result.type.element_type, list(result.uses)
    result.set_type(with_element(result.type, mlir_type(F32)))
    with ir.InsertionPoint.after(op):
        rounded = encode_float8(result, element)
    for use in uses:
        use.owner.operands[use.operand_number] = rounded
    return None


def _with_reals(operand: Value, element: ir.Type) -> Value:
    """Convert a tensor, or a scalar in a body, to another type; floats of 16 bits round once."""
    if isinstance(operand.type, ir.ShapedType):
        return stablehlo.convert(operand, element)
    if operand.type == element:
        return operand
    is_wider = element.width > operand.type.width
    return value("arith.extf" if is_wider else "arith.truncf", [operand], element)
