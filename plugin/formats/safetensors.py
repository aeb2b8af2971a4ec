"""Read safetensors files: checked by the library `safetensors`, and memory-mapped.

A file is the length of its header (8 bytes, little-endian), the header (JSON), and the data. The
header maps names to ``{"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}``, with offsets
from the start of the data; ``__metadata__`` maps strings to strings.

PyPI's ``safetensors`` validates a file: it bounds the header (100 MB), and checks dtypes, shapes,
and that the tensors cover the data, one after the other. Checks that version 0.8.0 lacks are here:

* Arrays are views of the mapped file. The library copies: the last element of a tensor of 1 GB took
  2 GB and 1.9 s, and takes less than 64 MB here.
* Its NumPy side raises AttributeError for each 8-bit float, and gives no offsets to read them by.
* It takes the last of two tensors of one name, where other readers take the first: two tools would
  see two models. It takes a space before the header. The format forbids both.
* It passes over keys of a tensor's description that it does not know.
* It does not look at values: a BOOL of 7 is neither True nor False to NumPy.
* It takes shapes that no NumPy array has: 65 dimensions, or 2**126 elements beside an extent of 0.

Source: the format's description in the repository huggingface/safetensors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from ..core.files import open_input, regular_file_size, wrong_download
from ..core.read_record import ReadRecord
from ..core.strict_json import Json, parse_object, shown
from ..errors import InputError, Place, UnsupportedError
from ..numerics.element_types import Array, DType

DTYPES: dict[str, DType] = {
    name: np.dtype(getattr(ml_dtypes, dtype, dtype))
    for name, dtype in {
        "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
        "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16",
        "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
        "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
        "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    }.items()
}  # fmt: skip
"""NumPy's dtypes by the names of the format."""


@dataclass(frozen=True)
class SafetensorsFile:
    """The contents of a file.

    Attributes:
        tensors: read-only arrays by name, in the order of the header. They are views of the mapped
            file, which must not change while they are used; some may be unaligned.
    """

    path: str
    metadata: dict[str, str]
    tensors: dict[str, Array]


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Map a file and check all of its header.

    Raises:
        InputError: the file cannot be read, or breaks the format.
        UnsupportedError: a tensor has elements that NumPy has no type for.
    """
    location = Place(str(path))
    regular_file_size(path)
    try:
        with safe_open(path, framework="np"):
            mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        with open_input(path) as file:
            advice = wrong_download(file.read(64))
        raise InputError(
            f"not a safetensors file, or truncated, or damaged: {shown(reason, 300)[1:-1]}{advice}",
            location,
        ) from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from None
    data_start = 8 + int.from_bytes(mapped[:8].tobytes(), "little")
    text = mapped[8:data_start].tobytes()
    if not text.startswith(b"{"):
        raise InputError(f"the header begins with {shown(text[:1])}, expected '{{'", location)
    header = parse_object(text, "the header", str(path), is_part=True)  # no name is there twice
    metadata = header.pop("__metadata__", None) or {}
    data = mapped[data_start:]
    tensors = {name: _array(name, entry, data, location) for name, entry in header.items()}
    return SafetensorsFile(str(path), metadata, tensors)


def _array(name: str, entry: Mapping[str, Json], data: Array, location: Place) -> Array:
    """The view of a tensor whose description the library has checked."""
    record = ReadRecord(location, f"tensor {shown(name)}")
    keys = record.track("key", entry)
    kind, shape, (start, end) = keys["dtype"], keys["shape"], keys["data_offsets"]
    record.finish()
    if kind not in DTYPES:
        raise UnsupportedError(
            f"tensor {shown(name)} has elements of {kind}, expected one of: {', '.join(DTYPES)}; "
            "store elements narrower than a byte as U8",
            location,
        )
    part = data[start:end]
    if kind == "BOOL" and part.size and part.max() > 1:
        raise InputError(
            f"tensor {shown(name)} of BOOL has the byte {part.max()}, expected 0 or 1", location
        )
    try:
        return part.view(DTYPES[kind]).reshape(shape)
    except ValueError:
        raise InputError(
            f"tensor {shown(name)} has the shape {shown(shape)}, which no array has", location
        ) from None
