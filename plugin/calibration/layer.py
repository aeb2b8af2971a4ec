"""Quantization of one linear layer by the second moments of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.option_fields import check_choices, option
from ..errors import UsageError
from ..formats.checkpoints.compressed_writer import WRITTEN_BITS, packed_layer
from ..formats.checkpoints.layers import PackedTensor
from ..layouts import GgmlTensor, PlanarQuantizedTensor
from ..layouts.ggml_encoding import BLOCK_SIZE, ENCODED_TYPES, encode
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from ..weights.quantizing import WeightQuantization, block_layout
from .gptq import damped, gptq, refit_scales
from .grids import Grid, OffsetKind, fit_grid

Output = Literal["archive", "gguf", "checkpoint"]
"""Format of the result: an ``.irpa`` archive, a GGUF file, or a folder of compressed-tensors."""

_REFITS = 2
"""Rounds of GPTQ, each followed by scales that fit its integers."""


@dataclass(frozen=True)
class Calibration:
    """Quantization of a language model's layers by calibration tokens, beside `WeightQuantization`.

    Raises:
        UsageError: an unknown method, or no tokens.
    """

    method: Literal["gptq", "imatrix"] = option(
        "gptq",
        "With --calibrate: integers by GPTQ, or to nearest with scales weighted by the inputs' "
        "squares.",
    )
    calibration_tokens: int = option(4096, "With --calibrate: tokens of the text to use.")
    requantize: bool = option(
        False, "With --calibrate: dequantize layers that are quantized already, and quantize them."
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if self.calibration_tokens < 1:
            raise UsageError(
                f"--calibration-tokens must be 1 or more, got {self.calibration_tokens}"
            )


def quantize_layer(
    weight: Array,
    moments: Array,
    tokens: int,
    how: WeightQuantization,
    method: Literal["gptq", "imatrix"] = "gptq",
    kind: OffsetKind | None = None,
) -> tuple[Array, Grid]:
    """Quantize a weight ``[N, K]``, float32; return its integers, and their grid.

    Args:
        moments: the sum of ``X^T X`` of the inputs ``X [tokens, K]``, float32.
        kind: the offsets of blocks, as in `fit_grid`.

    Raises:
        UsageError: blocks do not divide ``K``.
    """
    storage = StorageType(how.bits, not how.asymmetric)
    grid = fit_grid(weight, how.block_size, storage, np.diag(moments), kind)
    if method == "imatrix":
        return grid.round(weight), grid
    stable = damped(moments, tokens)
    for _ in range(_REFITS):
        integers = gptq(weight, stable, grid)
        grid = refit_scales(weight, stable, grid, integers)
    return integers, grid


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
