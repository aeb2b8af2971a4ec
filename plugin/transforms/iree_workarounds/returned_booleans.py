"""Truth values that are returned, and are used as integers of 8 bits as well (llvm-cpu).

IREE 3.13 stores truth values in bytes. Where one dispatch writes them behind a sum, and the same as
integers of 8 bits, it takes the one for the other, and refuses what it has then made ("write
affecting operations on global resources are restricted"). So the integers, of conversions or of a
choice between constants, are made of truth values that another dispatch has written
(`emit.linalg.apart`)::

    %t = stablehlo.compare GT, %sum, %y : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %i = stablehlo.convert %t : (tensor<8xi1>) -> tensor<8xi8>
    return %t, %i : tensor<8xi1>, tensor<8xi8>

becomes ::

    %t = stablehlo.compare GT, %sum, %y : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %u = "iree_tensor_ext.compute_barrier.start"(%t) : (tensor<8xi1>) -> tensor<8xi1>
    %i = stablehlo.convert %u : (tensor<8xi1>) -> tensor<8xi8>
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.stablehlo import of_category
from ...emit import linalg
from ...emit.operation import all_behind
from ..base import named

__all__ = ["separate_truths"]

_CONVERT, _RESHAPE, _SELECT = "stablehlo.convert", "stablehlo.reshape", "stablehlo.select"
_IN_PLACE = frozenset(
    (
        *of_category("elementwise-unary", "elementwise-binary", "elementwise-ternary"),
        *of_category("comparison", "generation", "data-movement"),
    )
)
"""What is computed element by element, or only moved."""


def separate_truths(module: Operation) -> bool:
    """Have integers of 8 bits made of returned truth values in other dispatches; True if some are.

    Args:
        module: with functions.
    """
    is_changed = False
    for op in named(module, ["func.return"]):
        for value in op.operands:
            if element_type(value.type) != ir.IntegerType.get_signless(1):
                continue
            truths = value
            while not isinstance(truths.owner, ir.Block) and truths.owner.name == _RESHAPE:
                truths = truths.owner.operation.operands[0]
            found = _bytes_of(truths)
            if not found or all_behind(truths, _is_in_place):
                continue
            with ir.InsertionPoint.after(truths.owner.operation), truths.owner.location:
                apart = linalg.apart(truths)
            for user, number in found:
                user.operands[number] = apart
            is_changed = True
    return is_changed


def _bytes_of(truths: Value) -> list[tuple[Operation, int]]:
    """Who makes integers of 8 bits of truth values, by conversions, and by which operand."""
    return [
        (use.owner, use.operand_number)
        for use in truths.uses
        if _converts(use.owner) or (use.owner.name == _SELECT and use.operand_number == 0)
        if _makes_bytes(use.owner)
    ]


def _makes_bytes(op: Operation) -> bool:
    """True for a conversion to integers of 8 bits, or one from which others make such."""
    if op.name == _SELECT and not all(_is_known(each) for each in list(op.operands)[1:]):
        return False
    [result] = op.results
    element = element_type(result.type)
    if isinstance(element, ir.IntegerType) and element.width == 8:
        return True
    return any(_converts(use.owner) and _makes_bytes(use.owner) for use in result.uses)


def _converts(op: Operation) -> bool:
    return op.name in (_CONVERT, _RESHAPE)


def _is_known(value: Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "stablehlo.constant"


def _is_in_place(value: Value) -> bool | None:
    """True where nothing behind a value counts, False where it is a sum, None to go on."""
    if isinstance(value.owner, ir.Block):
        return True
    return None if value.owner.operation.name in _IN_PLACE else False
