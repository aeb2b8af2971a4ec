"""GGUF models in several files, as llama.cpp's ``gguf-split`` writes them.

Each part has the properties ``split.no`` (its number, from 0), ``split.count`` (the number of
parts) and ``split.tensors.count`` (the number of tensors in all parts), and a name that ends in
``-00001-of-00003.gguf``, where numbers start at 1. The first part has the model's properties. A
model is read from all of its parts, whichever of them is given, or not at all.

Source: llama.cpp, ``tools/gguf-split`` and ``llama-model-loader.cpp``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ..core.strict_json import Json, JsonObject, shown
from ..errors import InputError, Place, counted

if TYPE_CHECKING:
    from ..layouts.tensors import InferenceTensor

Contents: TypeAlias = "tuple[JsonObject, dict[str, InferenceTensor]]"
"""Properties and tensors of a file or of a model."""

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_NUMBER, _COUNT, _TENSORS = _KEYS = ("split.no", "split.count", "split.tensors.count")
_OF_A_FILE = ("general.alignment",)
"""Properties that each part has for itself."""


def part_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of a model, given it or one part: the parts that exist, in order, or it."""
    name = os.fspath(path)
    match = _NAME.fullmatch(name)
    if match is None:
        return [name]
    stem, _, count = match.groups()
    numbers = range(1, min(int(count), 1 << 16) + 1)
    files = [_part_name(stem, number, int(count)) for number in numbers]
    return [file for file in files if file == name or os.path.exists(file)]


def without_part_number(name: str) -> str:
    """Return the name of a file without ``-00001-of-00003`` before its suffix."""
    match = _NAME.fullmatch(name)
    return name if match is None else f"{match[1]}.gguf"


def read_parts(path: str | os.PathLike[str], read: Callable[[str], Contents]) -> Contents:
    """Read a model, without ``split.*``, from its file or from all parts, given any.

    Raises:
        InputError: a part is missing, or does not fit the others.
        SubquantError: as `read`.
    """
    file = os.fspath(path)
    properties, tensors = read(file)
    if not any(key in properties for key in _KEYS):
        return properties, tensors
    number, count, total = _numbers(properties, file)
    contents = {file: (properties, tensors)}
    if count > 1:
        match = _NAME.fullmatch(file)
        if match is None or (int(match[2]), int(match[3])) != (number + 1, count):
            raise InputError(
                f"is part {number + 1} of {count} of a model, and the other parts are found by "
                f"names that end in -{number + 1:05}-of-{count:05}.gguf; name the parts so, or "
                "merge them with llama.cpp's gguf-split --merge",
                Place(file),
            )
        contents = {}
        for index in range(count):
            part = _part_name(match[1], index + 1, count)
            if part != file and not os.path.exists(part):
                raise InputError(
                    f"is part {number + 1} of {count} of a model, and part {index + 1} is not "
                    f"there: '{part}'; put all parts into one folder",
                    Place(file),
                )
            contents[part] = (properties, tensors) if part == file else read(part)
            numbers = _numbers(contents[part][0], part)
            for key, own, other in zip(_KEYS, numbers, (index, count, total), strict=True):
                if own != other:
                    raise InputError(
                        f"property '{key}' is {own}, expected {other} as the other parts say",
                        Place(part),
                    )
    return _merged(contents, total)


def _part_name(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def _numbers(properties: Mapping[str, Json], file: str) -> tuple[int, int, int]:
    """The three properties, checked."""
    for key in _KEYS:
        value = properties.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            text = "missing" if key not in properties else shown(value)
            raise InputError(
                f"property '{key}' is {text}, expected an integer of at least 0", Place(file)
            )
    number, count = properties[_NUMBER], properties[_COUNT]
    if number >= count:
        raise InputError(
            f"property '{_NUMBER}' is {number}, expected less than the {_COUNT} of {count}",
            Place(file),
        )
    return number, count, properties[_TENSORS]


def _merged(contents: Mapping[str, Contents], total: int) -> Contents:
    """The model of all parts, by their names."""
    first = next(iter(contents))
    properties = {key: value for key, value in contents[first][0].items() if key not in _KEYS}
    tensors: dict[str, InferenceTensor] = {}
    for file, (part_properties, part_tensors) in contents.items():
        for key, value in part_properties.items():
            if key in (*_KEYS, *_OF_A_FILE):
                continue
            if key not in properties or properties[key] != value:
                raise InputError(
                    f"property {shown(key)} is {shown(value)}, and the first part '{first}' has "
                    f"{shown(properties[key]) if key in properties else 'none of that name'}",
                    Place(file),
                )
        for name, tensor in part_tensors.items():
            if name in tensors:
                raise InputError(f"tensor {shown(name)} is in another part, too", Place(file))
            tensors[name] = tensor
    if len(tensors) != total:
        raise InputError(
            f"the model has {counted(len(tensors), 'tensor')} in {counted(len(contents), 'part')}, "
            f"expected {total} by '{_TENSORS}'",
            Place(first),
        )
    return properties, tensors
