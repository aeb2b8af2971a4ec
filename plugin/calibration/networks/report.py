"""Report of a quantized network: a row for each layer, with the error of its output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...numerics.element_types import Array


@dataclass(frozen=True)
class LayerReport:
    """One layer, or one operation that computes with integers.

    Attributes:
        name: the name in the model.
        operation: the operation of StableHLO.
        shape: the shape of the weight; that of the result for an operation without one.
        computes: ``int8``, ``f32`` or the bits of a weight with float activations, ``w4``.
        result: ``int8`` or ``f32``.
        why_float: the reason why a layer stays float; "" for others.
        sqnr: signal to quantization noise of the output, in decibels; None if it was not measured.
    """

    name: str
    operation: str
    shape: tuple[int, ...]
    computes: str
    result: str
    why_float: str = ""
    sqnr: float | None = None


class NoiseMeter:
    """Signal and noise of tensors, over several calls."""

    def __init__(self, count: int) -> None:
        self._signal = np.zeros(count)
        self._noise = np.zeros(count)

    def add(self, floats: Sequence[Array], quantized: Sequence[Array]) -> None:
        """Add the tensors of a call."""
        for index, (real, other) in enumerate(zip(floats, quantized, strict=True)):
            wide = np.asarray(real, np.float64)
            self._signal[index] += np.square(wide).sum()
            self._noise[index] += np.square(np.asarray(other, np.float64) - wide).sum()

    def sqnr(self, index: int) -> float:
        """Return the ratio in decibels; infinite without noise."""
        signal, noise = self._signal[index], self._noise[index]
        if not noise:
            return math.inf
        return 10 * math.log10(signal / noise) if signal else -math.inf
