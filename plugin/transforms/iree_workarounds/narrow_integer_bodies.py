"""``sort`` and ``scatter`` of integers of 16 bits or fewer, in i32 (Vulkan).

Symptom: IREE refuses them.
Cause: operations on narrow integers are written as loops there (`explicit_loops`), and IREE 3.13
refuses loops over one element in the bodies of ``sort`` and ``scatter``.
Test: none; tests/test_stablehlo_rare_forms.py covers it.

Operands, results and bodies hold the numbers in i32: sign-extended, or zero-extended if they are
unsigned. Results that may leave the range of the narrow type are wrapped after each operation.

Source: StableHLO specification, ``sort`` and ``scatter``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense
from ...dialects.quant import element_type
from ...emit import stablehlo
from ...emit.operation import mlir_type, parse_attribute, with_element
from ...numerics.element_types import I32
from ..base import NoMatch, Replacement
from .expand_sign_extension import is_narrow

_IN_RANGE = frozenset(
    f"stablehlo.{name}"
    for name in ("and", "clamp", "maximum", "minimum", "or", "remainder", "return", "select", "xor")
)
"""Operations whose results stay in the range of their operands."""
_WRAPPED = frozenset(
    f"stablehlo.{name}" for name in ("abs", "add", "divide", "multiply", "negate", "subtract")
)
"""Operations whose results may leave the range, and are right modulo its size."""
_REWRITTEN = ("stablehlo.compare", "stablehlo.constant", "stablehlo.convert")


def widen_narrow_body(op: Operation) -> Replacement:
    """Rewrite a ``sort`` or ``scatter`` of narrow integers as one of i32."""
    indices = (len(op.operands) // 2,) if op.name == "stablehlo.scatter" else ()
    values = [v for number, v in enumerate(op.operands) if number not in indices]
    if not any(is_narrow(value.type) for value in values):
        return NoMatch("has no narrow integers")
    block = op.regions[0].blocks[0]
    body = [operation.operation for operation in block.operations]
    if not all(_is_supported(operation) for operation in body):
        return NoMatch("has a body with other operations")
    operands = [
        value if number in indices else stablehlo.convert(value, element_type(_wide(value.type)))
        for number, value in enumerate(op.operands)
    ]
    created = emit.like(op, operands, [_wide(result.type) for result in op.results])

    def wide_body(*arguments: Value) -> list[Value]:
        wide = dict(zip(block.arguments, arguments, strict=True))
        for operation in body[:-1]:
            wide[operation.results[0]] = _in_32_bits(operation, wide)
        return [wide[value] for value in body[-1].operands]

    types = [_wide(argument.type) for argument in block.arguments]
    stablehlo.fill_body(created.regions[0], types, wide_body)
    return [
        stablehlo.convert(value, element_type(old.type))
        for value, old in zip(created.results, op.results, strict=True)
    ]


def _is_supported(operation: Operation) -> bool:
    """True for operations that `_in_32_bits` handles, or without narrow integers."""
    if len(operation.regions) or len(operation.results) > 1:
        return False
    values = (*operation.operands, *operation.results)
    if not any(is_narrow(value.type) for value in values):
        return True
    return operation.name in _IN_RANGE or operation.name in (*_WRAPPED, *_REWRITTEN)


def _wide(type_: ir.Type) -> ir.Type:
    return with_element(type_, mlir_type(I32)) if is_narrow(type_) else type_


def _in_32_bits(operation: Operation, wide: Mapping[Value, Value]) -> Value:
    """Emit an operation of a body on wide values."""
    result = operation.results[0].type
    operands = [wide[value] for value in operation.operands]
    if operation.name == "stablehlo.constant" and is_narrow(result):
        numbers = array_of_dense(operation.attributes["value"])  # signed
        return _wrapped(stablehlo.constant(numbers, mlir_type(I32)), result)
    if operation.name == "stablehlo.convert":
        converted = stablehlo.convert(operands[0], element_type(_wide(result)))
        return _wrapped(converted, result) if is_narrow(result) else converted
    changed = {}
    if operation.name == "stablehlo.compare" and is_narrow(operation.operands[0].type):
        changed["compare_type"] = parse_attribute("#stablehlo<comparison_type SIGNED>")
    value = emit.like(operation, operands, [_wide(result)], changed).results[0]
    may_leave = operation.name in _WRAPPED and is_narrow(result)
    return _wrapped(value, result) if may_leave else value


def _wrapped(value: Value, narrow: ir.Type) -> Value:
    """The low bits of an i32, sign-extended, or zero-extended for an unsigned type."""
    element = element_type(narrow)
    number = emit.tensor(value)
    low: emit.ArrayLike = number & ((1 << element.width) - 1)
    if not element.is_unsigned:
        sign = 1 << (element.width - 1)
        low = (low ^ sign) - sign
    return low.value
