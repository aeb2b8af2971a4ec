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


def floor_divide(left: Any, right: Any) -> Any:
    """Divide floats and round down: the quotient is that of a multiple of the divisor.

    ``1.0 // 0.1`` is 9, because the float 0.1 is more than a tenth; the quotient, rounded, is 10.

    Halves are computed in f32 if the divisor is one number, and else rounded at each step.

    Source: ``div_floor_floating`` in ``c10/util/generic_math.h``.
    """
    if isinstance(right, (torch.SymInt, torch.SymFloat)):
        return NotImplemented
    dtype = torch.result_type(left, right)
    if not dtype.is_floating_point:
        return NotImplemented
    is_number = isinstance(right, (int, float))
    computed = dtype
    if dtype in (torch.float16, torch.bfloat16) and (is_number or right.numel() == 1):
        computed = torch.float32
    dividend, divisor = (
        each.to(computed)
        if isinstance(each, torch.Tensor)
        else torch.full((), each, dtype=computed)
        for each in (left, right)
    )
    ratio = dividend / divisor
    if is_number and abs(math.frexp(right)[0]) == 0.5:  # a power of two, whose quotient is exact
        return torch.where(torch.isinf(dividend), math.nan, torch.floor(ratio)).to(dtype)
    rest = torch.fmod(dividend, divisor)
    quotient = (dividend - rest) / divisor
    is_above = torch.logical_and(rest != 0, (divisor < 0) != (rest < 0))
    quotient = torch.where(is_above, quotient - 1, quotient)
    rounded = torch.floor(quotient)
    rounded = torch.where(quotient - rounded > 0.5, rounded + 1, rounded)
    rounded = torch.where(quotient == 0, ratio * 0.0, rounded)  # with the sign of the ratio
    return torch.where(divisor == 0, ratio, rounded).to(dtype)


def _digamma(values: Tensor) -> Any:
    """The derivative of the logarithm of gamma; infinite at 0, with the other sign."""
    floats = values if values.is_floating_point() else values.to(torch.float32)
    return torch.where(floats == 0, -1.0 / floats, torch.polygamma(0, floats))


def _reduced(reduce: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return ``all`` or ``any`` along several axes, by those along one."""

    def decomposed(values: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        axes = range(values.dim()) if dim is None else [axis % values.dim() for axis in dim]
        for axis in sorted(axes, reverse=True):
            values = reduce(values, axis, keepdim)
        return values

    return decomposed


def _sum_of_products(
    values: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """``addbmm`` of integers; of floats PyTorch decomposes it."""
    total = torch.bmm(left, right).sum(0).to(values.dtype)
    return (values if beta == 1 else values * beta) + (total if alpha == 1 else total * alpha)


def _with_sign_of(values: Tensor, number: float) -> Any:
    return torch.copysign(values, torch.full((), number, dtype=torch.float32))


def _angle(values: Tensor) -> Any:
    """The angle of reals: pi of negative numbers, else 0."""
    floats = values if values.is_floating_point() else values.to(torch.float32)
    angle = torch.where(floats < 0, math.pi, torch.zeros_like(floats))
    return torch.where(torch.isnan(floats), floats, angle)


def elementwise_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.addbmm.default: _sum_of_products,
        aten.all.dims: _reduced(torch.all),
        aten.angle.default: _angle,
        aten.any.dims: _reduced(torch.any),
        aten.clamp.Tensor: _clamp,
        aten.clamp_max.Tensor: lambda values, most: _clamp(values, None, most),
        aten.clamp_min.Tensor: _clamp,
        aten.copysign.Scalar: _with_sign_of,
        aten.digamma.default: _digamma,
        aten.floor_divide.Scalar: floor_divide,
        aten.floor_divide.default: floor_divide,
        aten.fmax.default: _ignoring_nan(torch.maximum),
        aten.fmin.default: _ignoring_nan(torch.minimum),
        aten.isclose.default: _is_close,
    }
