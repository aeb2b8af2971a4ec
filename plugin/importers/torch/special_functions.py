"""Decompositions of special functions that torch-mlir 20261001 lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor

_ERFC_BELOW_2 = (
    *(2.326819970068386e-2, -1.387039388740657e-1, 3.687424674597105e-1, -5.824733027278666e-1),
    *(6.210004621745983e-1, -4.944515323274145e-1, 3.404879937665872e-1, -2.741127028184656e-1),
    5.638259427386472e-1,
)
_ERFC_FROM_2 = (
    *(-1.047766399936249e1, 1.297719955372516e1, -7.495518717768503, 2.921019019210786),
    *(-1.015265279202700, 4.218463358204948e-1, -2.820767439740514e-1, 5.641895067754075e-1),
)
"""Coefficients of polynomials of ``1 / x**2``, the highest power first."""


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


def _erfc(values: Tensor) -> Any:
    """Compute ``1 - erf(x)`` with a small relative error for large x, too.

    From 1 on it is ``exp(-x**2) / x * P(1 / x**2)``. The square is split, since the error of a
    rounded exponent grows with it: ``x**2 = h**2 + (x - h) * (x + h)``, where h has 12 bits and its
    square is exact.

    Source: Cephes, ``single/ndtrf.c``.
    """
    if values.dtype in (torch.float16, torch.bfloat16):
        return torch.special.erfc(values.to(torch.float32)).to(values.dtype)
    if values.dtype != torch.float32:
        return NotImplemented
    x = torch.clamp(values.abs(), 1.0, 12.0)  # erfc(12) is 0 in f32
    head = torch.round(x * 256.0) * (1 / 256)
    exponential = torch.exp(-head * head) * torch.exp((head - x) * (head + x))
    reciprocal = 1.0 / x
    square = reciprocal * reciprocal
    polynomial = torch.where(
        x < 2.0, _polynomial(square, _ERFC_BELOW_2), _polynomial(square, _ERFC_FROM_2)
    )
    tail = exponential * reciprocal * polynomial
    tail = torch.where(values < 0.0, 2.0 - tail, tail)
    return torch.where(values.abs() >= 1.0, tail, 1.0 - torch.erf(values))  # NaN: 1 - erf(NaN)


def _hypot(left: Tensor, right: Tensor) -> Any:
    """Compute ``sqrt(x**2 + y**2)`` without overflow, as ``m * sqrt(1 + (n / m)**2)``."""
    x, y = left.abs(), right.abs()
    largest, least = torch.maximum(x, y), torch.minimum(x, y)
    ratio = least / torch.where(largest > 0.0, largest, torch.ones_like(largest))
    length = largest * torch.sqrt(1.0 + ratio * ratio)
    is_infinite = torch.logical_or(torch.isinf(x), torch.isinf(y))
    return torch.where(is_infinite, torch.full_like(length, torch.inf), length)


def special_functions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.erfc.default: _erfc,
        aten.special_erfc.default: _erfc,
        aten.hypot.default: _hypot,
    }
