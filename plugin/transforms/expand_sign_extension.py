"""``expand-sign-extension``: write sign extension so that IREE's SPIR-V backend keeps the sign.

IREE 3.13 rewrites ``extsi`` of a vector that was loaded as wider words into shifts and masks that
are right for ``extui`` only: the sign is lost in every vectorized matmul of i8 on Vulkan. The same
with ``extui``, exclusive-or and subtraction has no such rewrite. ``sitofp`` from a narrow type is
written as a sign extension and ``sitofp`` from i32.

Before::

    %w = arith.extsi %x : i8 to i32

After::

    %u = arith.extui %x : i8 to i32
    %f = arith.xori %u, %c128 : i32
    %w = arith.subi %f, %c128 : i32

StableHLO, TOSA, named linalg and element-wise operations on narrow integers are written as
``linalg.generic`` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import ir
from ..dialects.quant import element_type
from .base import Builder, ModulePass, make_loops_explicit, walk

__all__ = ["ExpandSignExtension"]


@dataclass(frozen=True)
class ExpandSignExtension(ModulePass):
    """Rewrite every sign extension from 16 bits or fewer."""

    name: ClassVar[str] = "expand-sign-extension"

    def run(self, module: ir.Operation) -> None:
        """Rewrite `module`."""
        operations = walk(module)
        if make_loops_explicit(operations, _is_narrow):
            operations = walk(module)
        for op in [op for op in operations if op.name in ("arith.extsi", "arith.sitofp")]:
            if _is_narrow(op.operands[0].type):
                with ir.InsertionPoint(op), op.location:
                    _expand(op)


def _is_narrow(type_: ir.Type) -> bool:
    element = element_type(type_)
    return isinstance(element, ir.IntegerType) and 1 < element.width <= 16


def _expand(op: Any) -> None:
    b = Builder()
    source, target = op.operands[0], op.results[0].type
    sign = b.constant(1 << (source.type.width - 1), b.i32)
    unsigned = b.op("arith.extui", [source], b.i32)
    value = b.op("arith.subi", [b.op("arith.xori", [unsigned, sign], b.i32), sign], b.i32)
    if op.name == "arith.sitofp":
        value = b.op("arith.sitofp", [value], target)
    elif target.width > 32:
        value = b.op("arith.extsi", [value], target)
    elif target.width < 32:
        value = b.op("arith.trunci", [value], target)
    op.results[0].replace_all_uses_with(value)
    op.erase()
