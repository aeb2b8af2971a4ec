"""Elementwise operations on cooperative matrices, which the bindings' MLIR prints differently.

``subquant.emit.cooperative`` emits them as casts with the attribute `_KIND`::

    %2 = builtin.unrealized_conversion_cast %0, %1 {subquant.elementwise = "mulf"} : ...

Each becomes ``gpu.subgroup_mma_elementwise mulf %0, %1`` before IREE's first pass.
"""

from __future__ import annotations

from typing import Any

from .hal_operations import descendants

_CAST, _KIND = "builtin.unrealized_conversion_cast", "subquant.elementwise"


def restore_elementwise(ir: Any, module: Any) -> None:
    """Replace the casts of a module; `ir` is IREE's bindings."""
    with module.context:
        for op in [*descendants(module)]:
            if op.name == _CAST and _KIND in op.attributes:
                kind = ir.Attribute.parse(f"#gpu.mma_element_wise<{op.attributes[_KIND].value}>")
                with ir.InsertionPoint(op), op.location:
                    elementwise = ir.Operation.create(
                        "gpu.subgroup_mma_elementwise",
                        results=[op.results[0].type],
                        operands=[*op.operands],
                        attributes={"opType": kind},
                    )
                op.results[0].replace_all_uses_with(elementwise.results[0])
                op.erase()
