"""Folders of checkpoints that libraries wrote, and copies of them with changes, for tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from subquant.formats.safetensors import DTYPES, read_safetensors
from subquant.layouts import InferenceTensor, LookupBlockScaledLayout, QuantizedTensor
from subquant.numerics.array_functions import unpack_bits
from subquant.numerics.element_types import Array

FOLDERS = Path(__file__).parent / "data" / "huggingface"
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def write_safetensors(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays of any type of the format, 8-bit floats too."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {})}
    data = b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Checkpoint:
    """The configuration, arrays and metadata of a folder, to be changed and written again."""

    def __init__(self, name: str) -> None:
        folder = FOLDERS / name
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        file = read_safetensors(folder / "model.safetensors")
        self.arrays, self.metadata = dict(file.tensors), dict(file.metadata)

    @property
    def quantization(self) -> dict[str, Any]:
        """The ``quantization_config``."""
        config: dict[str, Any] = self.config["quantization_config"]
        return config

    def set(self, path: str, value: object) -> None:
        """Set a value of the quantization, below keys with dots between them."""
        *parents, key = path.split(".")
        settings = self.quantization
        for parent in parents:
            settings = settings[parent]
        settings[key] = value

    def replace(self, arrays: Mapping[str, Array | None]) -> None:
        """Replace arrays; None removes one."""
        merged = {**self.arrays, **arrays}
        self.arrays = {name: array for name, array in merged.items() if array is not None}

    def write(self, folder: Path) -> Path:
        """Write the folder."""
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", self.arrays, self.metadata)
        return folder


def digest(tensor: InferenceTensor) -> str:
    """Return the SHA-256 of a tensor's values as little-endian float32.

    Tables of integers have no negative zero, which the 4-bit floats have as the index 8.
    """
    if isinstance(tensor, QuantizedTensor):
        layout = tensor.unpack()
        values = np.asarray(layout.dequant(np.float32))
        if isinstance(layout, LookupBlockScaledLayout) and not layout.has_float_table:
            indices = unpack_bits(layout.planes["qs"], 4).reshape(layout.shape)
            values = np.where(indices == 8, np.copysign(values, np.float32(-1)), values)
    else:
        values = tensor.array.astype(np.float32)  # type: ignore[attr-defined]
    return hashlib.sha256(np.ascontiguousarray(values, "<f4").tobytes()).hexdigest()
