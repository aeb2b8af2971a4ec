"""Parameter archive of a compilation: large constants, and the parameters of files of weights.

Constants are moved after the passes, so that the archive has the packed or corrected form of a
weight. Before::

    %w = stablehlo.constant dense<...> : tensor<768x768xi8>

After::

    util.global private @model.w = #flow.parameter.named<"model"::"w"> : tensor<768x768xi8>
    %w = util.global.load @model.w : tensor<768x768xi8>

The name is that of the constant's location, the node for a node of a model; equal constants share
an entry. Splats, and constants smaller than 1 KiB, are not moved.

The passes prepack parameters of files of weights for kernels (`subquant.emit.parameters`),
and write them to the archive one by one. Parameters that the program also reads unpacked, such as
an embedding table that no kernel multiplies with, are copied.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core._mlir import Operation, in_context_of, ir
from ..core.files import writing
from ..core.mapped_files import mappings_of, release_pages
from ..dialects.dense import CONSTANTS, array_of_dense
from ..emit import variables
from ..emit.operation import is_used
from ..emit.parameters import LOAD, ParameterStore, named_parameter, parameter_of
from ..errors import name_of_location
from ..formats.irpa import Archive
from ..formats.irpa_writer import ArchiveWriter, bytes_of, create_archive
from ..layouts import InferenceTensor, find_tensor
from ..numerics.array_pieces import ArrayPieces
from ..numerics.element_types import Array
from ..transforms.base import named
from ..weights.sources import open_weights

SCOPE = "model"
"""The scope of the parameters."""

MIN_MOVED_BYTES = 1024
"""Bytes from which on a constant is moved to the archive; smaller ones stay in the executable."""

_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
"""Bytes of an element."""


@contextmanager
def program_archive(
    path: str | os.PathLike[str], weights: Mapping[str, str | os.PathLike[str]]
) -> Iterator[ProgramArchive]:
    """Write an archive while a program is lowered in this block: whole, or not at all.

    Args:
        path: the ``.irpa`` file; none of the weights.
        weights: files of weights by the scope of their parameters in the program.

    Raises:
        InputError: a file cannot be read, or the archive cannot be written.
    """
    sources = {scope: _Source(file) for scope, file in weights.items()}

    def write(name: str, array: ArrayPieces) -> None:
        archive.add_pieces(name, replace(array, pieces=_releasing(array.pieces, sources.values())))

    with writing(path), create_archive(path) as archive:
        arrays = {scope: source.array for scope, source in sources.items()}
        yield ProgramArchive(archive, ParameterStore(arrays, SCOPE, write))


def _releasing(pieces: Iterable[Array], sources: Collection[_Source]) -> Iterator[Array]:
    """Yield pieces, and release the pages of the sources that a piece was made of after it."""
    for piece in pieces:
        yield piece
        for source in sources:
            source.release_pages()


@dataclass
class ProgramArchive:
    """An archive that is being written, and its sources."""

    archive: ArchiveWriter
    parameters: ParameterStore

    def finish(self, module: ir.Module) -> None:
        """Write the remaining parameters and constants of a module, and let it read them."""
        with in_context_of(module.operation):
            names = _copy_parameters(module, self.archive, self.parameters)
            mover = _Mover(module, self.archive, names)
            for op in named(module.operation, ("util.global",)):
                mover.move_initial_value(op)
            for op in named(module.operation, CONSTANTS):
                mover.move(op)


class _Source:
    """Bytes of the parameters that ``subquant import`` makes of weights, which stay mapped.

    Tensors that are no parameters yet are packed one by one; those of a stack together.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._archive = Archive(path) if os.fspath(path).endswith(".irpa") else {}
        self._arrays_of = functools.lru_cache(1)(self._find_arrays)

    def array(self, name: str) -> Array:
        """Return the bytes of a parameter; KeyError if there is none.

        The pages of parameters before it are released.
        """
        self.release_pages()
        if name in self._archive:
            return bytes_of(self._archive[name].array())
        has_planes = ":" in name and name not in self._tensors
        return bytes_of(self._arrays_of(name.rpartition(":")[0] if has_planes else name)[name])

    def release_pages(self) -> None:
        """Return the pages of its files that were read to the system."""
        release_pages(self._mappings)

    @functools.cached_property
    def _tensors(self) -> dict[str, InferenceTensor]:
        return open_weights(self._path, lists=False).theta.flatten()

    @functools.cached_property
    def _mappings(self) -> list[mmap.mmap]:
        tensors = self._tensors.values() if not self._archive else ()
        stored = [array for tensor in tensors for array in tensor.stored_arrays]
        return mappings_of([*stored, *(entry.data for entry in self._archive.values())])

    def _find_arrays(self, name: str) -> dict[str, Array]:
        return find_tensor(name, self._tensors).arrays


def _copy_parameters(
    module: ir.Module, archive: ArchiveWriter, parameters: ParameterStore
) -> set[str]:
    """Write the given parameters that a module still reads; return the names in the archive."""
    for op in named(module.operation, (LOAD,)):
        if not is_used(op.results[0]):
            op.erase()
    uses = named(module.operation, (LOAD, "util.global.store", "util.global.address"))
    read = {op.attributes["global"].value for op in uses}
    names = set(parameters.written)
    copied: dict[tuple[str, str], str] = {}
    for op in named(module.operation, ("util.global",)):
        parameter = parameter_of(op)
        if parameter is None or parameter.scope not in parameters.arrays:
            continue
        if parameter.scope == parameters.scope and parameter.name in parameters.written:
            continue
        if op.attributes["sym_name"].value not in read:
            op.erase()
            continue
        key = parameter.scope, parameter.name
        if key not in copied:
            copied[key] = _unused(parameter.name, names)
            archive.add_tensor(copied[key], parameters.array(parameter, op))
        name = copied[key]
        op.attributes["initial_value"] = named_parameter(parameters.scope, name, parameter.type)
    return names


class _Mover:
    def __init__(self, module: ir.Module, archive: ArchiveWriter, names: set[str]) -> None:
        self._module, self._archive = module, archive
        self._symbols = {
            op.operation.attributes["sym_name"].value
            for op in module.body.operations
            if "sym_name" in op.operation.attributes
        }
        self._globals: dict[ir.Attribute, str] = {}
        self._names = {*names, *(f"{level}." for name in names for level in _levels(name))}

    def move(self, op: Operation) -> None:
        """Replace a constant by a load of a parameter."""
        attribute: Any = op.attributes["value"]
        if not _is_large(attribute):
            return
        if attribute not in self._globals:
            self._globals[attribute] = self._define(op, attribute)
        with ir.InsertionPoint(op), op.location:
            loaded = variables.load(self._globals[attribute], attribute.type)
        op.results[0].replace_all_uses_with(loaded)
        op.erase()

    def move_initial_value(self, op: Operation) -> None:
        """Replace the initial value of an immutable global by a parameter."""
        attributes = op.attributes
        if "is_mutable" in attributes or "initial_value" not in attributes:
            return
        initial: Any = attributes["initial_value"]
        if _is_large(initial):
            attributes["initial_value"] = self._parameter(attributes["sym_name"].value, initial)

    def _define(self, op: Operation, attribute: Any) -> str:
        location = op.location
        parameter = self._parameter(name_of_location(location), attribute)
        symbol = _unused("parameter", self._symbols)
        with ir.InsertionPoint.at_block_begin(self._module.body), location:
            variables.define(symbol, parameter, is_mutable=False)
        return symbol

    def _parameter(self, preferred: str, attribute: Any) -> ir.Attribute:
        """Write the elements, and return the attribute that names them."""
        plain = re.sub(r"[^A-Za-z0-9_:/-]+", ".", preferred).strip(".")
        name = _unused(plain or "constant", self._names)
        array = array_of_dense(attribute)
        element = str(attribute.type.element_type)
        if element.startswith("i"):
            array = array.astype(f"<i{_BYTES[element]}")
        self._archive.add_tensor(name, array)
        return named_parameter(SCOPE, name, attribute.type)


def _is_large(attribute: Any) -> bool:
    if not isinstance(attribute, ir.DenseElementsAttr) or attribute.is_splat:
        return False
    count = int(np.prod([int(n) for n in attribute.type.shape], dtype=np.int64))
    return count * _BYTES.get(str(attribute.type.element_type), 0) >= MIN_MOVED_BYTES


def _unused(name: str, used_names: set[str]) -> str:
    """Return a name that is not in a set, and add it to the set.

    Readers of archives take dots for levels (`subquant.weights.theta`): no tensor is below another.
    The set has levels with a dot at their end.
    """
    candidate, number = name, 1
    while {candidate, f"{candidate}.", *_levels(candidate)} & used_names:
        candidate, number = f"{name.replace('.', '_')}_{number}", number + 1
    used_names.update([candidate, *(f"{level}." for level in _levels(candidate))])
    return candidate


def _levels(name: str) -> list[str]:
    """Return the levels above a name: ``a`` and ``a.b`` for ``a.b.c``."""
    return [name[:index] for index, character in enumerate(name) if character == "."]
