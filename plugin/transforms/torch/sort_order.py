"""Sort floats in PyTorch's order: stable, and NaN above all numbers.

torch-mlir compares by ``<`` or ``>``, with which NaN has no position. Before::

    %0:2 = "stablehlo.sort"(%x, %own) <{is_stable = false}> ({
      %1 = stablehlo.compare LT, %a, %b

After::

    %0:2 = "stablehlo.sort"(%x, %own) <{is_stable = true}> ({
      %1 = stablehlo.compare LT, %a, %b
      %2 = %1 | (%b != %b & %a == %a)

Source: ``KeyValueCompAsc`` and ``KeyValueCompDesc`` in ``SortingUtils.h`` of PyTorch.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...emit import stablehlo as emit_stablehlo
from ...emit.operation import value
from ..base import named, walk


def order_sorts(module: Operation) -> None:
    """Make sorts stable, and complete their comparison of floats."""
    for op in named(module, ("stablehlo.sort",)):
        op.attributes["is_stable"] = ir.BoolAttr.get(True)
        for compare in walk(op):
            if compare.name == "stablehlo.compare":
                _order_nan(compare)


def _order_nan(compare: Operation) -> None:
    """Add the comparison with NaN to ``LT`` or ``GT`` of floats."""
    left, right = compare.operands
    if not isinstance(left.type.element_type, ir.FloatType):
        return
    direction = str(compare.attributes["comparison_direction"])
    nan, number = (right, left) if " LT" in direction else (left, right)
    end = list(compare.block.operations)[-1]
    with ir.InsertionPoint(end), compare.location:
        is_nan, is_number = _with_itself("NE", nan), _with_itself("EQ", number)
        is_beyond = value("stablehlo.and", [is_nan, is_number], is_nan.type)
        ordered = value("stablehlo.or", [compare.results[0], is_beyond], is_nan.type)
    end.operands[0] = ordered


def _with_itself(direction: str, operand: Value) -> Value:
    type_ = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    return emit_stablehlo.compare(direction, "FLOAT", operand, operand, type_)
