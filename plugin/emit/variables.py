"""Variables that a program keeps between calls: IREE's ``util.global``.

A large variable, such as a key-value cache, is updated in place if a function loads it, writes a
slice (``stablehlo.dynamic_update_slice``, ``tensor.insert_slice``), and stores the result: IREE
3.13 writes only the slice, and readers of the result read the variable's memory. It copies the
whole variable if the old value is read after the update.

A donated argument that is returned is updated in place as well, but each one costs 7 us a call: a
token's 36 caches, with attention to 4 keys, take 45 us as variables and 290 us as arguments,
whether they have 512 rows or 16,384 (one thread). Variables belong to the loaded executable,
though. A position that is an argument of type ``i32``, not ``tensor<i32>``, is not read back from
the device: 41 us instead of 46.

Variables that start with equal values are kept apart by the pass ``separate-variables``.
"""

from __future__ import annotations

from ..core._mlir import Operation, Value, ir
from .operation import create, value
from .parameters import LOAD

STORE = "util.global.store"


def define(name: str, initial: ir.Attribute, *, is_mutable: bool = True) -> None:
    """Define a variable, or a constant, by its first value: elements, a number or a parameter."""
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "sym_visibility": ir.StringAttr.get("private"),
        "type": ir.TypeAttr.get(initial.type),
        "initial_value": initial,
    } | ({"is_mutable": ir.UnitAttr.get()} if is_mutable else {})
    create("util.global", attributes=attributes)


def load(name: str, type_: ir.Type) -> Value:
    """The value of a variable."""
    return value(LOAD, [], type_, {"global": ir.FlatSymbolRefAttr.get(name)})


def store(name: str, stored: Value) -> Operation:
    """Give a variable a value; return the operation."""
    attributes = {"global": ir.FlatSymbolRefAttr.get(name)}
    return create(STORE, [stored], attributes=attributes)
