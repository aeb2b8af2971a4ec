"""Decompositions of special functions that torch-mlir 20261001 lacks, and of their other names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


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
        aten.special_erfc.default: torch.erfc,
        aten.hypot.default: _hypot,
    }
