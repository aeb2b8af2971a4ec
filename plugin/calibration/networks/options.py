"""Options of the quantization of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...core.option_fields import check_choices, option
from ...errors import UsageError

__all__ = ["NetworkQuantization"]


@dataclass(frozen=True)
class NetworkQuantization:
    """Quantization of a network by calibration inputs.

    Raises:
        UsageError: a number out of its range, or a combination that is not supported.
    """

    bits: int = option(8, "Bits of the weights: 8, or 4 with --activations float.")
    block_size: int = option(32, "Weights that share a scale, with --activations float.")
    activations: Literal["static", "float"] = option(
        "static",
        "Of a network: int8 activations with ranges from --inputs, or float activations.",
    )
    calibration: Literal["percentile", "mse", "kl", "min-max"] = option(
        "percentile", "Of a network: the method that chooses the ranges of activations."
    )
    percentile: float = option(
        99.99, "Of a network: the percentage of values within a range of --calibration percentile."
    )
    held_out: float = option(
        0.125,
        "Of a network: the fraction of the inputs that measure the error, and no range; 0 measures "
        "none.",
    )

    def __post_init__(self) -> None:
        check_choices(self)
        if self.activations == "static" and self.bits != 8:
            raise UsageError(
                f"static activations need weights of 8 bits, got {self.bits}; "
                "weights of fewer bits take --activations float"
            )
        if not 2 <= self.bits <= 8:
            raise UsageError(f"weights are quantized to 2 to 8 bits, got {self.bits}")
        if self.block_size < 1:
            raise UsageError(f"a block has at least one element, got {self.block_size}")
        if not 50 < self.percentile <= 100:
            raise UsageError(f"the percentile must be above 50, 100 at most, got {self.percentile}")
        if not 0 <= self.held_out < 1:
            raise UsageError(f"the held-out fraction must be in [0, 1), got {self.held_out}")
