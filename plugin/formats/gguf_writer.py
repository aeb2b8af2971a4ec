"""Writer of GGUF files: with the properties of another file, or with new ones.

Properties are copied as bytes, except ``general.alignment``, the properties of parts (``split.*``),
and two that say how tensors are stored: ``general.file_type``, llama.cpp's name of a file, and
``general.quantization_version``.

Source: docs/gguf.md of ggml, "File Structure".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..core.files import open_atomically
from ..core.mapped_files import mappings_of, release_pages
from ..errors import InputError
from ..layouts import GgmlTensor, InferenceTensor, PrimitiveTensor
from ..layouts.ggml import PRIMITIVE_TYPES
from ..numerics.element_types import Array
from .gguf import GGML_TYPES, MAGIC

_FILE_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q3_K": 11, "Q4_K": 14, "Q5_K": 16,
    "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip
"""llama.cpp's number of a file most of whose tensors have a type (``llama_ftype``)."""
_QUANTIZATION_VERSION = 2
"""The version of GGML's blocks (``GGML_QNT_VERSION``)."""
_VERSION = 3
_U32, _STRING, _ARRAY = 4, 8, 9
"""GGUF's numbers of value types: unsigned integers of 32 bits, strings, arrays."""
_ALIGNMENT = 32
"""Alignment of tensors in bytes, the format's default."""
_NUMBERS = {name: number for number, name in GGML_TYPES.items()}
_DTYPES = {dtype: name for name, dtype in PRIMITIVE_TYPES.items()}


def write_gguf(
    path: str | os.PathLike[str],
    properties: Mapping[str, bytes],
    tensors: Sequence[InferenceTensor],
    ggml_type: str,
    on_tensor: Callable[[int, int, str], None] = lambda number, count, name: None,
) -> None:
    """Write a GGUF file, whole or not at all.

    Args:
        properties: the result of `gguf.property_bytes`.
        tensors: in the order of the file.
        ggml_type: the type of most tensors.
        on_tensor: called before each tensor with its number, from 0, their count, and its name.

    Raises:
        InputError: a tensor has no type of GGML, or the file cannot be written.
    """
    header_properties = {
        key: data
        for key, data in properties.items()
        if key != "general.alignment" and not key.startswith("split.")
    }
    header_properties["general.file_type"] = u32_property(
        "general.file_type", _FILE_TYPES[ggml_type]
    )
    header_properties["general.quantization_version"] = u32_property(
        "general.quantization_version", _QUANTIZATION_VERSION
    )
    write_tensors(path, list(header_properties.values()), tensors, on_tensor)


def write_tensors(
    path: str | os.PathLike[str],
    properties: Sequence[bytes],
    tensors: Sequence[InferenceTensor],
    on_tensor: Callable[[int, int, str], None] = lambda number, count, name: None,
) -> None:
    """Write properties, each its key, type and value, and tensors; see `write_gguf`."""
    infos, offset = [], 0
    for tensor in tensors:
        infos.append(_info(tensor, offset))
        offset += _aligned(_bytes_of(tensor).nbytes)
    counts = struct.pack("<IQQ", _VERSION, len(tensors), len(properties))
    header = b"".join([MAGIC, counts, *properties, *infos])
    try:
        with open_atomically(path) as file:
            file.write(header.ljust(_aligned(len(header)), b"\0"))
            for number, tensor in enumerate(tensors):
                on_tensor(number, len(tensors), tensor.name)
                data = _bytes_of(tensor)
                file.write(data.data)
                release_pages(mappings_of([data]))
                file.write(bytes(_aligned(data.nbytes) - data.nbytes))
    except OSError as error:
        raise InputError(f"cannot write '{os.fspath(path)}': {error.strerror or error}") from None


def _info(tensor: InferenceTensor, offset: int) -> bytes:
    """Return the header entry of a tensor: name, extents from the contiguous axis on, type, offset.

    Raises:
        InputError: GGML has no such type.
    """
    if isinstance(tensor, GgmlTensor):
        kind = tensor.ggml_type
    elif isinstance(tensor, PrimitiveTensor) and tensor.array.dtype in _DTYPES:
        kind = _DTYPES[tensor.array.dtype]
    else:
        raise InputError(f"tensor '{tensor.name}' has no type of GGML; write an .irpa archive")
    extents = tensor.shape[::-1]
    values = struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, _NUMBERS[kind], offset)
    return _string(tensor.name) + values


def _bytes_of(tensor: InferenceTensor) -> Array:
    array = tensor.raw if isinstance(tensor, GgmlTensor) else tensor.stored_arrays[0]
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def u32_property(key: str, value: int) -> bytes:
    """Return a property with an unsigned integer of 32 bits."""
    return _string(key) + struct.pack("<II", _U32, value)


def string_property(key: str, value: str) -> bytes:
    """Return a property with a string."""
    return _string(key) + struct.pack("<I", _STRING) + _string(value)


def strings_property(key: str, values: Sequence[str]) -> bytes:
    """Return a property with an array of strings."""
    header = struct.pack("<IIQ", _ARRAY, _STRING, len(values))
    return _string(key) + header + b"".join(map(_string, values))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
