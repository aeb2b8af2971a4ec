"""Tables of i64 constants that a device without 64-bit integers reads, on Vulkan.

IREE 3.13 writes a constant tensor of a few bytes into the dispatches that read it, and there has no
pairs of 32-bit words for one of 64-bit integers: it refuses the program ("failed to legalize
unresolved target materialization"). A constant behind a barrier is a buffer, for which it has::

    %c = arith.constant dense<[689016250, 987172627]> : tensor<2xi64>
    %d = "util.optimization_barrier"(%c) : (tensor<2xi64>) -> tensor<2xi64>
"""

from __future__ import annotations

from ..._mlir import Operation, ir
from ...dialects.quant import element_type
from ...emit import linalg
from ..base import named

__all__ = ["load_wide_constants"]


def load_wide_constants(module: Operation) -> bool:
    """Put each table of 64-bit integers behind a barrier; return True if there are any."""
    is_changed = False
    for op in named(module, ["arith.constant", "stablehlo.constant"]):
        table = op.results[0]
        users = [(use.owner, use.operand_number) for use in table.uses]
        if not _is_table(op) or all(user.name == linalg.BARRIER for user, _ in users):
            continue
        with ir.InsertionPoint.after(op), op.location:
            loaded = linalg.behind_barrier(table)
        for user, number in users:
            user.operands[number] = loaded
        is_changed = True
    return is_changed


def _is_table(op: Operation) -> bool:
    """True for a constant of several 64-bit integers that are not all equal."""
    attribute, type_ = op.attributes["value"], op.results[0].type
    if not isinstance(type_, ir.RankedTensorType):
        return False
    element = element_type(type_)
    is_wide = isinstance(element, ir.IntegerType) and element.width == 64
    return is_wide and not (isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat)
