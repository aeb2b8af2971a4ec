"""Large constants of a module as parameters: in an archive that the runtime maps, not in the code.

It is done after the passes of a compilation, so that whatever became of a weight there, packed or
corrected, is what the archive has. Before::

    %w = stablehlo.constant dense<...> : tensor<768x768xi8>

After::

    util.global private @model.w = #flow.parameter.named<"model"::"w"> : tensor<768x768xi8>
    %w = util.global.load @model.w : tensor<768x768xi8>

A name is that of the constant's location, for a node of a model the node; equal constants are one
entry. Splats stay, and what is smaller than 1 KiB.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from .._mlir import Operation, in_context_of, ir
from ..dialects.dense import array_of_dense
from ..emit.operation import create, value
from ..errors import InputError
from ..formats.irpa import ArchiveWriter, create_archive
from ..transforms.base import named

__all__ = ["SCOPE", "SMALLEST", "move_constants"]

SCOPE = "model"
"""The scope of the parameters."""

SMALLEST = 1024
"""Bytes from which on a constant is moved."""

_CONSTANTS = ("arith.constant", "stablehlo.constant")
_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def move_constants(module: ir.Module, path: str | os.PathLike[str]) -> int:
    """Write large constants of a module to an archive, and have the module read them from there.

    Args:
        module: after the passes of a compilation; changed in place.
        path: the ``.irpa`` file, which is written whole or not at all.

    Returns:
        How many bytes of constants were moved.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with create_archive(path) as archive, in_context_of(module.operation):
            mover = _Mover(module, archive)
            for op in named(module.operation, ("util.global",)):
                mover.move_initial_value(op)
            for op in named(module.operation, _CONSTANTS):
                mover.move(op)
            return mover.size
    except OSError as error:
        raise InputError(f"cannot write '{os.fspath(path)}': {error.strerror or error}") from None


class _Mover:
    def __init__(self, module: ir.Module, archive: ArchiveWriter) -> None:
        self._module, self._archive = module, archive
        self._symbols = {
            op.operation.attributes["sym_name"].value
            for op in module.body.operations
            if "sym_name" in op.operation.attributes
        }
        self._globals: dict[ir.Attribute, str] = {}
        self._names: set[str] = set()
        self.size = 0

    def move(self, op: Operation) -> None:
        """Replace a constant by a load of a parameter."""
        attribute: Any = op.attributes["value"]
        if not _is_large(attribute):
            return
        if attribute not in self._globals:
            self._globals[attribute] = self._define(op, attribute)
        symbol = {"global": ir.FlatSymbolRefAttr.get(self._globals[attribute])}
        with ir.InsertionPoint(op), op.location:
            loaded = value("util.global.load", [], attribute.type, symbol)
        op.results[0].replace_all_uses_with(loaded)
        op.erase()

    def move_initial_value(self, op: Operation) -> None:
        """Have a global that is not stored to begin as a parameter."""
        attributes = op.attributes
        if "is_mutable" in attributes or "initial_value" not in attributes:
            return
        initial: Any = attributes["initial_value"]
        if _is_large(initial):
            attributes["initial_value"] = self._parameter(attributes["sym_name"].value, initial)

    def _define(self, op: Operation, attribute: Any) -> str:
        location = op.location
        match = _NAME.match(str(location))
        parameter = self._parameter(match.group(1) if match else "", attribute)
        symbol = _unused("parameter", self._symbols)
        attributes = {
            "sym_name": ir.StringAttr.get(symbol),
            "sym_visibility": ir.StringAttr.get("private"),
            "type": ir.TypeAttr.get(attribute.type),
            "initial_value": parameter,
        }
        with ir.InsertionPoint.at_block_begin(self._module.body), location:
            create("util.global", attributes=attributes)
        return symbol

    def _parameter(self, wanted: str, attribute: Any) -> ir.Attribute:
        """Write the elements, and return what names them."""
        plain = re.sub(r"[^A-Za-z0-9_:/-]+", ".", wanted).strip(".")
        name = _unused(plain or "constant", self._names)
        array = array_of_dense(attribute)
        element = str(attribute.type.element_type)
        if element.startswith("i"):
            array = array.astype(f"<i{_BYTES[element]}")
        self._archive.add_tensor(name, array)
        self.size += array.nbytes
        return ir.Attribute.parse(f'#flow.parameter.named<"{SCOPE}"::"{name}"> : {attribute.type}')


def _is_large(attribute: Any) -> bool:
    if not isinstance(attribute, ir.DenseElementsAttr) or attribute.is_splat:
        return False
    count = int(np.prod([int(n) for n in attribute.type.shape], dtype=np.int64))
    return count * _BYTES.get(str(attribute.type.element_type), 0) >= SMALLEST


def _unused(name: str, taken: set[str]) -> str:
    """A name that is not taken, which it is then."""
    found, number = name, 1
    while found in taken:
        found, number = f"{name}.{number}", number + 1
    taken.add(found)
    return found
