"""Read checkpoints of Hugging Face: safetensors with their ``config.json``.

A checkpoint is a folder with ``config.json`` and ``model.safetensors``, or shards that
``model.safetensors.index.json`` lists, or a single file. The configuration becomes the properties
``meta`` (keys that begin with an underscore) and ``hparams`` (the others), as sharktank splits it.

An index is checked both ways: each tensor it names is in the file it names, and the files have no
others, so none is lost and none is there twice. Its ``total_size`` is not checked: writers disagree
on what it counts.

Where the configuration has a ``quantization_config`` (or the file ``quantize_config.json`` of
AutoGPTQ, or ``quant_config.json`` of AutoAWQ, is there), packed weights become quantized tensors
(`subquant.formats.packed_int4`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError, Place
from ..layouts.tensors import InferenceTensor, PrimitiveTensor
from ..numerics.element_types import Array
from .packed_int4 import packed_int4_form, read_packed_int4
from .safetensors import read_safetensors
from .strict_json import Json, JsonObject, load_json, shown

__all__ = ["read_huggingface", "split_properties"]

_INDEX = ".safetensors.index.json"
_OLD_CONFIGURATIONS = ("quantize_config.json", "quant_config.json")


def read_huggingface(
    path: str | os.PathLike[str],
) -> tuple[JsonObject, dict[str, InferenceTensor]]:
    """Read a checkpoint, with its files mapped.

    Args:
        path: a folder, an index, or a ``.safetensors`` file. The ``config.json`` beside a file is
            read if it is there; a folder must have one.

    Returns:
        Properties, and tensors by name.

    Raises:
        InputError: a file is missing, cannot be read, or does not fit the others.
        UnsupportedError: the weights are quantized in a way that is not supported.
    """
    path = Path(path)
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    source = _weights_of(folder) if is_folder else path
    configuration = folder / "config.json"
    config: JsonObject = {}
    if is_folder or os.path.exists(configuration):
        config = load_json(configuration, "the model's configuration")
    if source.name.endswith(_INDEX):
        arrays = _read_shards(source)
    else:
        arrays = read_safetensors(source).tensors
    quantization, file = _quantization(config, folder)
    if quantization is None:
        tensors: dict[str, InferenceTensor] = {
            name: PrimitiveTensor(array, name) for name, array in arrays.items()
        }
    else:
        form = packed_int4_form(quantization, file)
        tensors = read_packed_int4(arrays, form, str(source))
    return split_properties(config), tensors


def split_properties(config: Mapping[str, Json]) -> JsonObject:
    """Split a configuration into ``meta`` (keys that begin with an underscore) and ``hparams``."""
    return {
        "meta": {key: value for key, value in config.items() if key.startswith("_")},
        "hparams": {key: value for key, value in config.items() if not key.startswith("_")},
    }


def _weights_of(folder: Path) -> Path:
    """The file or index that holds a folder's weights: the model's, else the only one."""
    for name in ("model.safetensors", f"model{_INDEX}"):
        if os.path.exists(folder / name):
            return folder / name
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"cannot read '{folder}': {error.strerror}") from None
    for suffix in (_INDEX, ".safetensors"):
        found = [name for name in names if name.endswith(suffix)]
        if len(found) == 1:
            return folder / found[0]
        if found:
            raise InputError(
                f"'{folder}' holds {len(found)} files *{suffix}, the first {shown(found[0])}; "
                "give the one to read"
            )
    raise InputError(f"'{folder}' holds no weights, expected model.safetensors or model{_INDEX}")


def _quantization(
    config: Mapping[str, Json], folder: Path
) -> tuple[Mapping[str, Json] | None, str]:
    """What says how weights are packed, and the file that does."""
    found = config.get("quantization_config")
    file = str(folder / "config.json")
    if found is not None:
        if not isinstance(found, dict):
            raise InputError(
                f"'quantization_config' must be an object, got {shown(found)}", Place(file)
            )
        return found, file
    for name in _OLD_CONFIGURATIONS:
        if os.path.exists(folder / name):
            return load_json(folder / name, "the quantization's configuration"), str(folder / name)
    return None, ""


def _read_shards(index: Path) -> dict[str, Array]:
    """The arrays of all files that an index names, in its order."""
    place = Place(str(index))
    files = load_json(index, "the index").get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError("the index has no 'weight_map' of tensors and files", place)
    for name, file in files.items():
        if not _is_plain(file):
            raise InputError(
                f"tensor {shown(name)} is said to be in {shown(file)}, expected the name of a "
                ".safetensors file in the folder of the index",
                place,
            )
    arrays: dict[str, Array] = {}
    for file in dict.fromkeys(files.values()):
        shard = read_safetensors(index.parent / file)
        for name, array in shard.tensors.items():
            if files.get(name) != file:
                said = f"to be in {shown(files[name])}" if name in files else "nothing of it"
                raise InputError(
                    f"{shown(file)} holds the tensor {shown(name)}, and the index says {said}",
                    place,
                )
            arrays[name] = array
    missing = [name for name in files if name not in arrays]
    if missing:
        name = missing[0]
        raise InputError(
            f"tensor {shown(name)} is not in {shown(files[name])}, where the index says it is",
            place,
        )
    return {name: arrays[name] for name in files}


def _is_plain(file: object) -> bool:
    """Whether a file's name stays in its folder."""
    if not isinstance(file, str) or not file.endswith(".safetensors") or "\0" in file:
        return False
    return not any(mark in file for mark in ("/", "\\", ":"))
