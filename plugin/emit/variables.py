"""Variables that a program keeps between calls, as IREE has them: ``util.global``."""

from __future__ import annotations

from .._mlir import Value, ir
from .operation import create, value

__all__ = ["define", "load", "store"]


def define(name: str, initial: ir.Attribute) -> None:
    """Define a variable with its first value, a dense attribute or a number."""
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "sym_visibility": ir.StringAttr.get("private"),
        "type": ir.TypeAttr.get(initial.type),
        "is_mutable": ir.UnitAttr.get(),
        "initial_value": initial,
    }
    create("util.global", attributes=attributes)


def load(name: str, type_: ir.Type) -> Value:
    """The value of a variable."""
    return value("util.global.load", [], type_, {"global": ir.FlatSymbolRefAttr.get(name)})


def store(name: str, stored: Value) -> None:
    """Give a variable a value."""
    create("util.global.store", [stored], attributes={"global": ir.FlatSymbolRefAttr.get(name)})
