"""Decompositions of functions of each element that torch-mlir 20261001 lacks or lowers wrongly.

torch-mlir does not broadcast the operands of ``fmax`` and ``fmin``, and the values to tensors of
limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


def _ignoring_nan(extreme: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return ``fmax`` or ``fmin``: of a number and NaN the number."""

    def decomposed(left: Tensor, right: Tensor) -> Any:
        if not (left.is_floating_point() or right.is_floating_point()):
            return extreme(left, right)
        chosen = torch.where(torch.isnan(right), left, extreme(left, right))
        return torch.where(torch.isnan(left), right, chosen)

    return decomposed


def _is_close(
    left: Tensor,
    right: Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Any:
    """Compare ``|x - y| <= atol + rtol * |y|``, or ``x == y``, so that infinities are close.

    Source: ``aten/src/ATen/native/TensorCompare.cpp`` of PyTorch 2.13.
    """
    close = left == right
    if equal_nan and left.is_floating_point():
        close = torch.logical_or(close, torch.logical_and(torch.isnan(left), torch.isnan(right)))
    if not rtol and not atol:
        return close
    if not left.is_floating_point():
        left, right = left.to(torch.float32), right.to(torch.float32)
    allowed = atol + torch.abs(rtol * right)
    error = torch.abs(left - right)
    is_near = torch.logical_and(torch.isfinite(error), error <= allowed)
    return torch.logical_or(close, is_near)


def _clamp(values: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> Any:
    """Limit values by tensors that broadcast with them; NaN where one is NaN."""
    if least is not None:
        values = torch.maximum(values, least)
    return values if most is None else torch.minimum(values, most)


def _angle(values: Tensor) -> Any:
    """The angle of reals: pi of negative numbers, else 0."""
    floats = values if values.is_floating_point() else values.to(torch.float32)
    angle = torch.where(floats < 0, math.pi, torch.zeros_like(floats))
    return torch.where(torch.isnan(floats), floats, angle)


def elementwise_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.angle.default: _angle,
        aten.clamp.Tensor: _clamp,
        aten.clamp_max.Tensor: lambda values, most: _clamp(values, None, most),
        aten.clamp_min.Tensor: _clamp,
        aten.fmax.default: _ignoring_nan(torch.maximum),
        aten.fmin.default: _ignoring_nan(torch.minimum),
        aten.isclose.default: _is_close,
    }
