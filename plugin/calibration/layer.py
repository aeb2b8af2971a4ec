"""Quantization of one linear layer by the second moments of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..core.option_fields import check_choices, option
from ..errors import UsageError
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from ..weights.grids import Grid, OffsetKind, fit_grid
from ..weights.quantizing import WeightQuantization
from .folding import ScalesOf, awq_scales, smoothquant_scales
from .gptq import gptq, refit_scales
from .moments import InputMoments

_REFITS = 2
"""Rounds of GPTQ, each followed by scales that fit its integers."""

OnLayer = Callable[[int, int, str], None]
"""Called before each layer with its number, from 0, the count of layers, and its name."""

Method = Literal["gptq", "awq", "imatrix", "round", "smoothquant"]
"""Choice of the integers of a layer by its inputs."""


@dataclass(frozen=True)
class Calibration:
    """Quantization of a language model's layers by calibration tokens, beside `WeightQuantization`.

    Raises:
        UsageError: an unknown method, or no tokens.
    """

    method: Literal["gptq", "auto", "awq", "imatrix", "round", "smoothquant"] = option(
        "gptq",
        "With --calibrate: integers by GPTQ, with the bits of each layer by its effect on the "
        "model (auto); to nearest with scales of inputs folded into the layer before (awq), with "
        "block scales weighted by the inputs' squares (imatrix), or without the inputs (round); "
        "weights and inputs of 8 bits, with scales folded into the layer before (smoothquant).",
    )
    bits_average: float | None = option(
        None,
        "Average bits of the elements, with scales and zero points, of --method auto.",
    )
    calibration_tokens: int = option(4096, "With --calibrate: tokens of the text to use.")
    held_out_tokens: int = option(
        1024,
        "With --calibrate: tokens, not used to calibrate, to measure errors and perplexity with; 0 "
        "for none.",
    )
    requantize: bool = option(
        False, "With --calibrate: dequantize layers that are quantized already, and quantize them."
    )
    token_embedding_type: str | None = option(
        None,
        "Type of a language model's table of embeddings: bits, or a type of --gguf-type for a "
        ".gguf output.  [default: as it is with --calibrate or for a .gguf output, else --bits]",
        "TYPE",
    )
    output_tensor_type: str | None = option(
        None, "Type of a language model's output layer, as --token-embedding-type.", "TYPE"
    )
    imatrix: str | None = option(
        None,
        "Scales weighted by an importance matrix of llama.cpp (.gguf or .dat), in place of the "
        "inputs' squares for the text.",
        "FILE",
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if self.calibration_tokens < 1:
            raise UsageError(
                f"--calibration-tokens must be 1 or more, got {self.calibration_tokens}"
            )
        if self.held_out_tokens < 0:
            raise UsageError(f"--held-out-tokens must be 0 or more, got {self.held_out_tokens}")

        if (self.bits_average is not None) != (self.method == "auto"):
            raise UsageError("--method auto and --bits-average go together; give both, or neither")

    @property
    def layer_method(self) -> Method:
        """The choice of the integers of each layer."""
        return "gptq" if self.method == "auto" else self.method

    def scales_of(self, how: WeightQuantization, kind: OffsetKind | None) -> ScalesOf | None:
        """Return the function to the scales that are folded into blocks; None for no folding."""
        if self.method == "smoothquant":
            return smoothquant_scales
        return awq_scales(how, kind) if self.method == "awq" else None


def compared_chunks(chunks: Sequence[Array], calibration: Calibration) -> Sequence[Array]:
    """Return the chunks of calibration tokens that the float model reads beside the quantized one.

    GPTQ needs them. Half of the chunks take half of the time, and cost little: with a share of 0.3
    (`gptq.COMPENSATION`) perplexities of Gemma 3 270M for two books grow by 4.2 and 6.9 % with half
    of them, by 4.7 and 5.9 % with all.
    """
    return chunks[: -(-len(chunks) // 2)] if calibration.layer_method == "gptq" else []


def quantize_layer(
    weight: Array,
    inputs: InputMoments | None,
    how: WeightQuantization,
    method: Method = "gptq",
    kind: OffsetKind | None = None,
    importance: Array | None = None,
) -> tuple[Array, Grid]:
    """Quantize a weight ``[N, K]``, float32; return its integers, and their grid.

    Args:
        inputs: the second moments of the layer's inputs; None to round to nearest.
        kind: the offsets of blocks, as in `fit_grid`.
        importance: weights of the inputs in the search for the grid, float32 ``[K]``; by default
            the diagonal of the moments.

    Raises:
        UsageError: blocks do not divide ``K``.
    """
    storage = StorageType(how.bits, not how.asymmetric)
    if method == "round":
        importance = None
    elif importance is None and inputs is not None:
        importance = np.diag(inputs.matrix)
    grid = fit_grid(weight, how.block_size, storage, importance, kind)
    if inputs is None or method != "gptq":
        return grid.round(weight), grid
    for _ in range(_REFITS):
        integers = gptq(weight, inputs.damped, grid, inputs.factor)
        grid = refit_scales(weight, inputs.damped, grid, integers)
    return integers, grid
