"""Functions whose results are known when their bodies are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core._mlir import Operation, Value, ir
from .operation import create


def write_function(
    name: str,
    types: Sequence[ir.Type],
    body: Callable[[Sequence[Value]], Sequence[Value]],
    *,
    is_public: bool = True,
) -> Operation:
    """Write a ``func.func`` at the insertion point."""
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(types), [])),
    }
    if not is_public:
        attributes["sym_visibility"] = ir.StringAttr.get("private")
    function = create("func.func", attributes=attributes, regions=1)
    block = function.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        results = body(list(block.arguments))
        create("func.return", results)
    type_ = ir.FunctionType.get(list(types), [result.type for result in results])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    return function
