"""Read checkpoints of Hugging Face: safetensors with their ``config.json``.

A checkpoint is a folder with ``config.json`` and ``model.safetensors``, or shards that
``model.safetensors.index.json`` lists, or a single file. The configuration becomes the properties
``meta`` (keys that begin with an underscore) and ``hparams`` (the others), as sharktank splits it.

An index is checked both ways: each tensor it names is in the file it names, the files have no
others, and no shard is left out, so none is lost and none is there twice. Its ``total_size`` is not
checked: writers disagree on its definition. A shard without its index is refused. The
``__metadata__`` of the files goes to the property ``metadata``, without the framework that wrote
them and descriptions of packed tensors.

Where the configuration has a ``quantization_config`` (or the file ``quantize_config.json`` of
AutoGPTQ, or ``quant_config.json`` of AutoAWQ, is there), packed weights become quantized tensors
(`subquant.formats.checkpoints`, by ``quant_method``). Where there are several, they have to say the
same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from ..core.read_record import Irrelevant, ReadRecord, TrackedItems
from ..core.strict_json import Json, JsonObject, load_json, shown
from ..errors import InputError, Place, UnsupportedError
from ..layouts.tensors import InferenceTensor, PrimitiveTensor
from ..numerics.element_types import Array
from .checkpoints.bitsandbytes import BitsAndBytesFormat
from .checkpoints.compressed_tensors import CompressedTensorsFormat
from .checkpoints.fine_grained_fp8 import FineGrainedFp8Format
from .checkpoints.grouped_config import grouped_format
from .checkpoints.layers import CheckpointFormat, Layers
from .checkpoints.torchao import TorchAoFormat
from .safetensors import SafetensorsFile, read_safetensors

_INDEX = ".safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.DOTALL)
_KEY = "quantization_config"
_OLD_CONFIGURATIONS = ("quantize_config.json", "quant_config.json")
_OTHER_KEYS = ("quantization",)
"""Keys by which MLX says that weights are quantized."""
_OTHER_FILES = {
    "adapter_config.json": "describes an adapter, which changes the weights; merge it into the "
    "model with peft: model.merge_and_unload().save_pretrained(folder)",
    "hf_quant_config.json": "says that ModelOpt quantized the weights, which is not supported",
}
"""Files of a folder that say that its weights alone are not the model."""
_OTHER_WEIGHTS = {
    ".bin": "write safetensors with transformers: "
    "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)",
    ".pt": "write safetensors of it",
    ".pth": "write safetensors of it",
    ".gguf": "give the file as the model",
}
"""Ways out of files of weights that are not read, by the ends of their names."""
_OLD_KEY = "compression_config"
"""The key of `_KEY` in older files of compressed-tensors."""

_FORMATS: dict[str, Callable[[Mapping[str, Json], str], CheckpointFormat]] = {
    "gptq": grouped_format,
    "awq": grouped_format,
    "compressed-tensors": CompressedTensorsFormat.of,
    "fp8": FineGrainedFp8Format.of,
    "bitsandbytes": BitsAndBytesFormat.of,
    "torchao": TorchAoFormat.of,
}
"""Readers of configurations by ``quant_method``."""


def read_huggingface(
    path: str | os.PathLike[str],
) -> tuple[JsonObject, dict[str, InferenceTensor]]:
    """Read a checkpoint, with its files mapped.

    Args:
        path: a folder, an index, or a ``.safetensors`` file. The ``config.json`` beside a file is
            read if it is there; a folder must have one.

    Raises:
        InputError: a file is missing, cannot be read, or does not fit the others.
        UnsupportedError: the weights are quantized in a way that is not supported.
    """
    path = Path(path)
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    source = _weights_of(folder) if is_folder else path
    for name, problem in _OTHER_FILES.items():
        if is_folder and os.path.exists(folder / name):
            raise UnsupportedError(problem, Place(str(folder / name)))
    configuration = folder / "config.json"
    config: JsonObject = {}
    if is_folder or os.path.exists(configuration):
        config = load_json(configuration, "the model's configuration")
    if source.name.endswith(_INDEX):
        arrays, files = _read_shards(source)
    else:
        match = _SHARD.fullmatch(source.name)
        if match is not None and int(match["count"]) > 1:
            raise InputError(
                f"is shard {int(match['number'])} of {int(match['count'])}, which is not a whole "
                f"model; give the folder or the index (*{_INDEX}), which names all of them",
                Place(str(source)),
            )
        files = [read_safetensors(source)]
        arrays = files[0].tensors
    packing = _packing(config, folder)
    metadata = TrackedItems({k: value for file in files for k, value in file.metadata.items()})
    if packing is None:
        tensors: dict[str, InferenceTensor] = {
            name: PrimitiveTensor(array, name) for name, array in arrays.items()
        }
    else:
        tensors = packing.read(Layers(arrays, metadata, Place(str(source))))
    return split_properties(config) | metadata_of(files, metadata.names_read), tensors


def metadata_of(files: Iterable[SafetensorsFile], names_read: Collection[str] = ()) -> JsonObject:
    """Return the property ``metadata``, by the names of files; none if there is nothing to tell.

    ``format`` names the framework that wrote a file, which changes no tensor.

    Args:
        names_read: keys that describe packed tensors, which listings of tensors show.
    """
    by_file = {
        os.path.basename(file.path): {
            key: value
            for key, value in file.metadata.items()
            if key != "format" and key not in names_read
        }
        for file in files
    }
    by_file = {name: metadata for name, metadata in by_file.items() if metadata}
    return {"metadata": by_file} if by_file else {}


def split_properties(config: Mapping[str, Json]) -> JsonObject:
    """Split a configuration into ``meta`` (keys that begin with an underscore) and ``hparams``."""
    return {
        "meta": {key: value for key, value in config.items() if key.startswith("_")},
        "hparams": {key: value for key, value in config.items() if not key.startswith("_")},
    }


def _weights_of(folder: Path) -> Path:
    """The file or index that holds a folder's weights: the model's, else the only one."""
    whole, index = folder / "model.safetensors", folder / f"model{_INDEX}"
    if os.path.exists(whole) and os.path.exists(index):
        listed = load_json(index, "the index").get("weight_map")
        if not isinstance(listed, dict) or set(map(str, listed.values())) != {whole.name}:
            raise InputError(
                f"'{folder}' holds {whole.name}, and {index.name} that names other files; give the "
                "one to read"
            )
    for path in (whole, index):
        if os.path.exists(path):
            return path
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputError(f"cannot read '{folder}': {error.strerror}") from None
    for suffix in (_INDEX, ".safetensors"):
        matches = [name for name in names if name.endswith(suffix)]
        if len(matches) == 1:
            return folder / matches[0]
        if matches:
            raise InputError(
                f"'{folder}' holds {len(matches)} files *{suffix}, the first {shown(matches[0])}; "
                "give the one to read"
            )
    other = next((name for name in names if name.endswith(tuple(_OTHER_WEIGHTS))), "")
    advice = f"; {_OTHER_WEIGHTS[os.path.splitext(other)[1]]}" if other else ""
    raise InputError(
        f"'{folder}' holds {shown(other) if other else 'no weights'}, expected model.safetensors "
        f"or model{_INDEX}{advice}"
    )


def _packing(config: Mapping[str, Json], folder: Path) -> CheckpointFormat | None:
    """Return how weights are packed, as all configurations say; None if none does."""
    location = Place(str(folder / "config.json"))
    for key in _OTHER_KEYS:
        if config.get(key):
            raise UnsupportedError(
                f"the key '{key}' says that weights are quantized in a way that is not supported; "
                f"expected a '{_KEY}' with one of: {', '.join(_FORMATS)}",
                location,
            )
    packings: dict[str, CheckpointFormat] = {}
    for label, settings in _quantizations(config, ""):
        if not isinstance(settings, dict):
            raise InputError(f"{label} must be an object, got {shown(settings)}", location)
        if not {"quant_method", "bits", "w_bit"} & {*settings}:
            expected_methods = ", ".join(_FORMATS)
            raise InputError(
                f"{label} has no 'quant_method', expected one of: {expected_methods}", location
            )
        packings[label] = _format(settings, str(folder / "config.json"))
    for name in _OLD_CONFIGURATIONS:
        if os.path.exists(folder / name):
            settings = load_json(folder / name, "the quantization's configuration")
            packings[f"'{name}'"] = _format(settings, str(folder / name))
    if not packings:
        return None
    (first, expected), *further = packings.items()
    for label, packing in further:
        wrong = ["the method"]
        if type(packing) is type(expected):
            pairs = vars(expected).items()
            wrong = [key for key, value in pairs if value != getattr(packing, key)]
        if wrong:
            raise InputError(
                f"{first} and {label} contradict each other about {', '.join(wrong)}; leave the "
                "wrong one out",
                location,
            )
    return expected


def _format(settings: JsonObject, file: str) -> CheckpointFormat:
    """Read a configuration by its method; old files of GPTQ and AWQ have none."""
    method = settings.get("quant_method", "gptq")
    if not isinstance(method, str):
        raise InputError(f"'quant_method' must be a string, got {shown(method)}", Place(file))
    if method.lower() not in _FORMATS:
        raise UnsupportedError(
            f"'quant_method' is {shown(method)}, which is not supported; expected one of: "
            f"{', '.join(_FORMATS)}. Quantize the model with one of them, or save it dequantized",
            Place(file),
        )
    return _FORMATS[method.lower()](settings, file)


def _quantizations(config: Mapping[str, Json], prefix: str) -> Iterator[tuple[str, Json]]:
    """Yield the quantizations of a configuration and of its parts, with their keys."""
    for key in (_KEY, _OLD_KEY):
        if config.get(key) is not None:
            yield f"'{prefix}{key}'", config[key]
    for key, part in config.items():
        if isinstance(part, dict) and key not in (_KEY, _OLD_KEY):
            yield from _quantizations(part, f"{prefix}{key}.")


def _shard_stem(file: str) -> tuple[str, str] | None:
    """Return the part of a name that the shards of a model share, with their number."""
    match = _SHARD.fullmatch(file)
    return None if match is None else (match["stem"], match["count"])


def _read_shards(index: Path) -> tuple[dict[str, Array], list[SafetensorsFile]]:
    """Return the arrays of all files that an index names, in its order, and the files."""
    location = Place(str(index))
    record = ReadRecord(location, "the index")
    irrelevant = Irrelevant("metadata", "counts bytes and names the program that wrote the index")
    keys = record.track("key", load_json(index, "the index"), [irrelevant])
    files = keys.get("weight_map")
    record.finish("write the index again without it")
    if not isinstance(files, dict) or not files:
        raise InputError("the index has no 'weight_map' of tensors and files", location)
    for name, file in files.items():
        # A plain name stays in the folder of the index.
        is_name = isinstance(file, str) and file.endswith(".safetensors")
        if not is_name or any(mark in file for mark in ("/", "\\", ":", "\0")):
            raise InputError(
                f"tensor {shown(name)} is said to be in {shown(file)}, expected the name of a "
                ".safetensors file in the folder of the index",
                location,
            )
    arrays: dict[str, Array] = {}
    shards: list[SafetensorsFile] = []
    listed = dict.fromkeys(files.values())
    for file in listed:
        shard = read_safetensors(index.parent / file)
        shards.append(shard)
        for name, array in shard.tensors.items():
            if files.get(name) != file:
                expected = f"to be in {shown(files[name])}" if name in files else "nothing of it"
                raise InputError(
                    f"{shown(file)} holds the tensor {shown(name)}, and the index says {expected}",
                    location,
                )
            arrays[name] = array
    for name, file in files.items():
        if name not in arrays:
            raise InputError(
                f"tensor {shown(name)} is not in {shown(file)}, where the index says it is",
                location,
            )
    stems = {_shard_stem(file) for file in listed} - {None}
    for other in sorted(os.listdir(index.parent)):
        if other not in listed and _shard_stem(other) in stems:
            raise InputError(
                f"the index has no tensor of {shown(other)}, a shard of the same model; write the "
                "index again, or remove the file",
                location,
            )
    return {name: arrays[name] for name in files}, shards
