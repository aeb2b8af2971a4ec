"""Decompositions of the windows of signals.

Source: ``aten/src/ATen/native/TensorFactories.cpp`` of PyTorch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


def _cosines(*coefficients: float) -> Callable[[Tensor], Tensor]:
    """A sum of cosines of multiples of an angle, with alternating signs."""

    def window(phase: Tensor) -> Tensor:
        total = torch.full_like(phase, coefficients[0])
        for number, coefficient in enumerate(coefficients[1:], 1):
            total = total + (-1) ** number * coefficient * torch.cos(phase * (2 * math.pi * number))
        return total

    return window


def _triangle(phase: Tensor) -> Tensor:
    return 1.0 - torch.abs(2.0 * phase - 1.0)


def _sampled(
    window: Callable[[Tensor], Tensor], length: int, dtype: torch.dtype | None, *, periodic: bool
) -> Tensor:
    """The values of a window; one that is not periodic ends with its first value."""
    dtype = dtype or torch.get_default_dtype()
    if length <= 1:
        return torch.ones(length, dtype=dtype)
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    phase = torch.arange(length, dtype=computed) / (length if periodic else length - 1)
    return window(phase).to(dtype)


def _of(window: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def decomposed(
        length: int, periodic: bool = True, *, dtype: torch.dtype | None = None, **_: Any
    ) -> Any:
        return _sampled(window, length, dtype, periodic=periodic)

    return decomposed


def _hamming(
    length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Any:
    return _sampled(_cosines(alpha, beta), length, dtype, periodic=periodic)


def window_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    table = {
        aten.bartlett_window: _of(_triangle),
        aten.blackman_window: _of(_cosines(0.42, 0.5, 0.08)),
        aten.hamming_window: _hamming,
        aten.hann_window: _of(_cosines(0.5, 0.5)),
    }
    return {
        getattr(packet, overload): decomposed
        for packet, decomposed in table.items()
        for overload in packet.overloads()
        if "out" not in overload
    }
