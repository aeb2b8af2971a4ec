"""Trees of named tensors, and their archives.

A `Theta` is a tree whose leaves are tensors: ``theta("blk", 0)`` is a part of it, and
``theta.tensor("blk.0.attn_q.weight")`` a leaf. Modules take their tensors from one, so parameters
are made, changed and saved apart from the model that uses them. A `Dataset` is a theta with the
model's properties.

An archive (`subquant.formats.irpa`) holds the arrays of all tensors under their global names, and
two blobs of JSON, as sharktank writes them, so that either side opens the other's files:

    __SHARK_DATASET__             the properties, and "SHARK_DATASET_VERSION": 1
    __SHARK_INFERENCE_TENSORS__   for each tensor its record (`InferenceTensor.record`)

Packed tensors are written as the planes of their layouts, one tensor after the other, so that no
more than one is unpacked at a time. An archive without the blobs, such as
``iree-convert-parameters`` writes, is a data set of primitive tensors without properties.

Source: "Direct quantization with sharktank", ``Theta`` and ``Dataset``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ..core.mapped_files import mappings_of, release_pages
from ..core.read_record import ReadRecord
from ..core.strict_json import Json, JsonObject, is_deep, parse_object, shown
from ..errors import InputError, Place, SubquantError, UnsupportedError, UsageError
from ..formats.irpa import Archive, Entry
from ..formats.irpa_writer import create_archive
from ..layouts.tensors import InferenceTensor, PrimitiveTensor, QuantizedTensor, tensor_from_record

_PROPERTIES = "__SHARK_DATASET__"
_TENSORS = "__SHARK_INFERENCE_TENSORS__"
_RANKS = "__SHARK_SHARD_RANKS__"
_VERSION = "SHARK_DATASET_VERSION"
_MOST_LEVELS = 100
"""Levels of a tree (parts of a name between dots), at most; deeper names are refused."""

Transform = Callable[[InferenceTensor], InferenceTensor | Iterable[InferenceTensor] | None]
"""Function from a tensor to its replacement: a tensor, several, or none."""

Tree: TypeAlias = "dict[str, InferenceTensor | Tree]"
"""Tensors and parts of the tree by name."""


class Theta:
    """A tree of tensors; names have dots between the levels.

    Args:
        tensors: with their names, or under the names they get in this tree. A tensor keeps its own
            name, which is the one it has in archives.

    Raises:
        InputError: two tensors have the same name, or one has the name of a level or more than
            100 levels.
    """

    def __init__(self, tensors: Iterable[InferenceTensor] | Mapping[str, InferenceTensor]) -> None:
        if isinstance(tensors, Mapping):
            named = list(tensors.items())
        else:
            named = [(tensor.name, tensor) for tensor in tensors]
        self._tree: Tree = {}
        for name, tensor in named:
            *levels, last = name.split(".")
            if len(levels) > _MOST_LEVELS:
                raise InputError(
                    f"{shown(name)} has {len(levels)} levels, expected at most {_MOST_LEVELS}"
                )
            node = self._tree
            for level in levels:
                below = node.setdefault(level, {})
                if not isinstance(below, dict):
                    raise InputError(f"{shown(name)} is below the name of another tensor")
                node = below
            if last in node:
                other = "a level of the tree" if isinstance(node[last], dict) else "two tensors"
                raise InputError(f"{shown(name)} is the name of {other}")
            node[last] = tensor

    def __call__(self, *path: str | int) -> Any:
        """The tensor, or the part of the tree, at a path: ``theta("blk", 0)``, ``theta("blk.0")``.

        Raises:
            InputError: nothing is there.
        """
        match = self._find(path)
        if match is None:
            raise InputError(self._missing(path))
        return match

    def tensor(self, *path: str | int) -> InferenceTensor:
        """The tensor at a path.

        Raises:
            InputError: no tensor is there.
        """
        match = self._find(path)
        if not isinstance(match, InferenceTensor):
            raise InputError(self._missing(path))
        return match

    def optional_tensor(self, *path: str | int) -> InferenceTensor | None:
        """The tensor at a path, None if there is none."""
        match = self._find(path)
        return match if isinstance(match, InferenceTensor) else None

    @property
    def keys(self) -> list[str]:
        """The names of the first level."""
        return list(self._tree)

    def flatten(self) -> dict[str, InferenceTensor]:
        """All tensors by their path in this tree, in order."""
        return dict(_leaves(self._tree, ""))

    def transform(self, *functions: Transform) -> Theta:
        """Return the tree of tensors that the functions make, one after the other."""
        tensors: list[InferenceTensor] = list(self.flatten().values())
        for function in functions:
            outputs: list[InferenceTensor] = []
            for tensor in tensors:
                result = function(tensor)
                if isinstance(result, InferenceTensor):
                    outputs.append(result)
                elif result is not None:
                    outputs.extend(result)
            tensors = outputs
        return Theta(tensors)

    def renamed(self) -> Theta:
        """The same tree, with each tensor named by its path."""
        return Theta(tensor.with_name(path) for path, tensor in self.flatten().items())

    def __contains__(self, path: str) -> bool:
        return self._find((path,)) is not None

    def __len__(self) -> int:
        return len(self.flatten())

    def __repr__(self) -> str:
        return f"Theta({len(self)} tensors: {', '.join(self.keys[:8])})"

    def _find(self, path: tuple[str | int, ...]) -> InferenceTensor | Theta | None:
        node: InferenceTensor | Tree = self._tree
        for level in ".".join(map(str, path)).split(".") if path else []:
            if not isinstance(node, dict) or level not in node:
                return None
            node = node[level]
        if not isinstance(node, dict):
            return node
        part = Theta([])
        part._tree = node
        return part

    def _missing(self, path: tuple[str | int, ...]) -> str:
        name = ".".join(map(str, path))
        parent = self._find(tuple(name.split(".")[:-1]))
        names = parent.keys if isinstance(parent, Theta) else self.keys
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        return f"no tensor is named '{name}'; there are: {listed or 'none'}"


def _leaves(tree: Tree, prefix: str) -> Iterator[tuple[str, InferenceTensor]]:
    for name, child in tree.items():
        if isinstance(child, dict):
            yield from _leaves(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


class Dataset:
    """Properties and tensors of a model.

    Raises:
        InputError: the properties nest more than 100 levels.
    """

    def __init__(self, properties: Mapping[str, Json], theta: Theta) -> None:
        self.properties = dict(properties)
        if is_deep(self.properties):
            raise InputError("the properties are nested too deeply")
        self.theta = theta

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        on_tensor: Callable[[int, int, InferenceTensor], None] | None = None,
    ) -> None:
        """Write an archive, whole or not at all.

        Args:
            on_tensor: called before a tensor is written with its number, from 0, the number of
                tensors, and the tensor as it is written.

        Raises:
            InputError: names are not unique, properties are not JSON, or the file cannot be
                written.
        """
        properties = _to_json({**self.properties, _VERSION: 1}, "the properties")
        tensors = list(self.theta.flatten().values())
        records: JsonObject = {}
        try:
            with create_archive(path) as archive:
                for number, tensor in enumerate(tensors):
                    if tensor.name in records:
                        raise InputError(f"two tensors are named {shown(tensor.name)}")
                    stored = tensor.stored_arrays
                    if isinstance(tensor, QuantizedTensor):
                        tensor = tensor.to_planar()
                    if on_tensor is not None:
                        on_tensor(number, len(tensors), tensor)
                    for name, array in tensor.arrays.items():
                        archive.add_tensor(name, array)
                    records[tensor.name] = tensor.record
                    release_pages(mappings_of(stored))
                archive.add_blob(_PROPERTIES, properties)
                archive.add_blob(_TENSORS, _to_json(records, "the records of the tensors"))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot write '{os.fspath(path)}': {reason}") from None

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Dataset:
        """Open an archive. Its arrays are views of the file, which stays mapped.

        Raises:
            InputError: it cannot be read, or is not valid.
            UnsupportedError: it needs a newer version, or is spread over several files.
        """
        archive = Archive(path)
        location = Place(archive.path)
        if _PROPERTIES not in archive and _TENSORS not in archive:
            arrays = [PrimitiveTensor(entry.array(), name) for name, entry in archive.items()]
            return Dataset({}, _tree(arrays, archive.path))
        for blob in (_PROPERTIES, _TENSORS):
            if blob not in archive:
                raise InputError(
                    f"the archive has no entry '{blob}'; it may be truncated", location
                )
        unread = ReadRecord(location)
        entries = unread.track("entry", archive)
        properties = _blob(entries, _PROPERTIES, archive.path)
        version = properties.pop(_VERSION, 1)
        if version != 1:
            raise UnsupportedError(
                f"the data set is of version {shown(version)}; only 1 can be read", location
            )
        if _RANKS in archive:
            raise UnsupportedError(
                "the archive is one of several files of a sharded data set; save it whole", location
            )
        tensors = [
            _tensor(entries, name, record, archive.path)
            for name, record in _blob(entries, _TENSORS, archive.path).items()
        ]
        theta = _tree(tensors, archive.path)
        unread.finish("write the archive again without")
        return Dataset(properties, theta)

    def __repr__(self) -> str:
        return f"Dataset({len(self.properties)} properties, {self.theta!r})"


def _tree(tensors: Iterable[InferenceTensor], file: str) -> Theta:
    try:
        return Theta(tensors)
    except InputError as error:
        raise InputError(error.message, Place(file)) from None


def _blob(entries: Mapping[str, Entry], name: str, file: str) -> JsonObject:
    data = entries[name].content()
    return parse_object(data, f"entry '{name}'", file, is_part=True, has_any_number=True)


def _tensor(entries: Mapping[str, Entry], name: str, record: Json, file: str) -> InferenceTensor:
    raw = record.get("raw_tensors") if isinstance(record, dict) else None
    what, location = f"tensor {shown(name)}", Place(file)
    if not isinstance(raw, dict) or not isinstance(record.get("type_name"), str):
        raise InputError(f"the record of {what} has no type or no arrays", location)
    for key in raw.values():
        if not isinstance(key, str) or key not in entries:
            raise InputError(f"{what} has the array {shown(key)}, which is not there", location)
    arrays = {key: entries[key].array() for key in raw.values()}
    unread = ReadRecord(location, what)
    try:
        tensor = tensor_from_record(name, unread.track("key", record), arrays)
    except SubquantError as error:  # also the usage error of a layout that nobody has
        kind = InputError if isinstance(error, UsageError) else type(error)
        reason = error.message if error.message.isprintable() else shown(error.message, 1000)
        reason = reason if reason.startswith(what) else f"{what} is not valid: {reason}"
        raise kind(reason, location) from None
    unread.finish("write the archive again without")
    return tensor


def _to_json(value: Json, what: str) -> bytes:
    try:
        # Without white space and escapes: the words of a tokenizer are several megabytes.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} cannot be written as JSON: {error}") from None
