"""Formats of calibrated models: packed layers, and the file or folder that has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from ..errors import UsageError
from ..formats.checkpoints.compressed_writer import WRITTEN_BITS, packed_layer, write_compressed
from ..formats.checkpoints.layers import PackedTensor
from ..formats.gguf import property_bytes
from ..formats.gguf_splits import part_files
from ..formats.gguf_writer import write_gguf
from ..formats.kinds import weights_format
from ..layouts import GgmlTensor, PlanarQuantizedTensor, QuantizedTensor
from ..layouts.ggml_encoding import BLOCK_SIZE, ENCODED_TYPES, encode
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from ..weights.quantizing import WeightQuantization, block_layout
from ..weights.theta import Dataset
from .grids import Grid

Output = Literal["archive", "gguf", "checkpoint"]
"""Format of the result: an ``.irpa`` archive, a GGUF file, or a folder of compressed-tensors."""


def packed_tensor(output: Output, name: str, integers: Array, grid: Grid) -> QuantizedTensor:
    """Return a quantized layer as the format of the output stores it."""
    return _PACKED_FOR[output](name, integers, grid)


def archive_tensor(name: str, integers: Array, grid: Grid) -> PlanarQuantizedTensor:
    """Return a quantized layer as archives store it, with scales of float16."""
    return PlanarQuantizedTensor(block_layout(*grid.stored(integers), grid.storage), name)


def gguf_tensor(name: str, integers: Array, grid: Grid) -> GgmlTensor:
    """Return a quantized layer as GGUF files store it: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0."""
    offsets = grid.offsets if grid.kind == "offsets" else None
    stored = integers.astype(grid.storage.dtype)
    return encode(gguf_type(grid.storage), stored, grid.scales, offsets, name)


def checkpoint_tensor(name: str, integers: Array, grid: Grid) -> PackedTensor:
    """Return a quantized layer as a checkpoint of compressed-tensors stores it."""
    return packed_layer(name, *grid.stored(integers), grid.storage.width)


def gguf_type(storage: StorageType) -> str:
    """Return the name of GGML's type for integers; the unsigned ones have offsets."""
    return f"Q{storage.width}_{0 if storage.signed else 1}"


def check_output_format(how: WeightQuantization, output: Output) -> None:
    """Refuse a quantization that the format of the output does not have; UsageError."""
    kind = "asymmetric" if how.asymmetric else "symmetric"
    if output == "gguf":
        name = gguf_type(StorageType(how.bits, not how.asymmetric))
        if name not in ENCODED_TYPES or how.block_size != BLOCK_SIZE:
            raise UsageError(
                f"a .gguf file has no type of {how.bits} {kind} bits in blocks of "
                f"{how.block_size}; expected {', '.join(ENCODED_TYPES)}: 4 or 5 bits, or 8 "
                f"symmetric ones, in blocks of {BLOCK_SIZE}"
            )
    if output == "checkpoint" and how.bits not in WRITTEN_BITS:
        raise UsageError(f"a checkpoint has layers of 4 or 8 bits, got {how.bits}")


_PACKED_FOR: dict[Output, Callable[[str, Array, Grid], QuantizedTensor]] = {
    "archive": archive_tensor,
    "gguf": gguf_tensor,
    "checkpoint": checkpoint_tensor,
}


def check_source(source: str | os.PathLike[str], output: Output) -> None:
    """Refuse a source without the properties that the output's format has; UsageError."""
    kind = weights_format(source)
    if output == "gguf" and kind != "gguf":
        raise UsageError(
            f"a .gguf file is made of a .gguf file, and '{os.fspath(source)}' is none; write an "
            ".irpa archive"
        )
    if output == "checkpoint" and not os.path.isdir(source):
        raise UsageError(
            f"a folder is made of the folder of a checkpoint, and '{os.fspath(source)}' is none; "
            "write an .irpa archive"
        )


def save(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    dataset: Dataset,
    how: WeightQuantization,
    output: Output,
    on_tensor: Callable[[int, int, str], None] = lambda number, count, name: None,
) -> None:
    """Write the result of `calibrated` in the format that it was packed for.

    Raises:
        UsageError: as `check_source`, or the folder exists.
        InputError: the file or folder cannot be written.
    """
    check_source(source, output)
    tensors = list(dataset.theta.flatten().values())
    if output == "gguf":
        properties = property_bytes(part_files(source)[0])
        ggml_type = gguf_type(StorageType(how.bits, not how.asymmetric))
        write_gguf(path, properties, tensors, ggml_type, on_tensor)
    elif output == "checkpoint":
        symmetric = not how.asymmetric
        write_compressed(source, path, tensors, how.bits, how.block_size, is_symmetric=symmetric)
    else:
        dataset.save(path)
