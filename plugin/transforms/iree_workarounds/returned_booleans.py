"""Booleans (i1) that are returned and also used as 8-bit integers (llvm-cpu).

Symptom: "write affecting operations on global resources are restricted".
Cause: IREE 3.13 stores booleans in bytes. Where one dispatch writes booleans of a reduction, and
the same as 8-bit integers, it takes the one for the other, and refuses its own result.
Test: `test_booleans_as_bytes_are_still_refused` in tests/test_iree_limits.py.

The integers, of conversions or of a select between constants, are computed from booleans that
another dispatch has written (`emit.linalg.in_separate_dispatch`).

Before::

    %t = stablehlo.compare GT, %sum, %y : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %i = stablehlo.convert %t : (tensor<8xi1>) -> tensor<8xi8>
    return %t, %i : tensor<8xi1>, tensor<8xi8>

After::

    %t = stablehlo.compare GT, %sum, %y : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %u = "iree_tensor_ext.compute_barrier.start"(%t) : (tensor<8xi1>) -> tensor<8xi1>
    %i = stablehlo.convert %u : (tensor<8xi1>) -> tensor<8xi8>
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.stablehlo import of_category
from ...emit import linalg
from ...emit.operation import all_producers
from ..base import named, producer_named, producer_of, value_before

_CONVERT, _RESHAPE, _SELECT = "stablehlo.convert", "stablehlo.reshape", "stablehlo.select"
_ELEMENTWISE = frozenset(
    (
        *of_category("elementwise-unary", "elementwise-binary", "elementwise-ternary"),
        *of_category("comparison", "generation", "data-movement"),
    )
)
"""Operations that compute element by element, or only move elements."""


def separate_booleans(module: Operation) -> bool:
    """Compute 8-bit integers of returned booleans in other dispatches; False if there are none."""
    is_changed = False
    for op in named(module, ["func.return"]):
        for value in op.operands:
            if element_type(value.type) != ir.IntegerType.get_signless(1):
                continue
            booleans = value_before(value, _RESHAPE)
            producer = producer_of(booleans)
            # The users that make 8-bit integers of booleans, and their operand numbers.
            byte_users = [
                (use.owner, use.operand_number)
                for use in booleans.uses
                if _converts(use.owner) or (use.owner.name == _SELECT and use.operand_number == 0)
                if _makes_bytes(use.owner)
            ]
            if not byte_users or all_producers(booleans, _is_elementwise):
                continue
            with ir.InsertionPoint.after(producer), producer.location:
                separate = linalg.in_separate_dispatch(booleans)
            for user, number in byte_users:
                user.operands[number] = separate
            is_changed = True
    return is_changed


def _makes_bytes(op: Operation) -> bool:
    """True for a conversion to 8-bit integers, also through other conversions."""
    if op.name == _SELECT:
        cases = list(op.operands)[1:]
        if any(producer_named(each, "stablehlo.constant") is None for each in cases):
            return False
    [result] = op.results
    element = element_type(result.type)
    if isinstance(element, ir.IntegerType) and element.width == 8:
        return True
    return any(_converts(use.owner) and _makes_bytes(use.owner) for use in result.uses)


def _converts(op: Operation) -> bool:
    return op.name in (_CONVERT, _RESHAPE)


def _is_elementwise(value: Value) -> bool | None:
    """True where the sources of a value end, False if it is a reduction, None to go on."""
    producer = producer_of(value)
    if producer is None:
        return True
    return None if producer.name in _ELEMENTWISE else False
