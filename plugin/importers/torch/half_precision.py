"""Arithmetic on f16 and bf16 that PyTorch does in f32: products with numbers, means, norms.

PyTorch multiplies and divides f16 by numbers as f32, and rounds the result; torch-mlir rounds the
number: ``x * -1e9`` would be ``0 * -inf``, NaN. In sums both round the number. A mean or norm is
rounded once; torch-mlir rounds sums and squares, which may overflow: norms of f16 values of 300
would be 0. So are functions that torch-mlir writes as several operations: GELU of negative f16
numbers had errors of 300 units in the last place, and running sums grew apart.

Source: ``aten/src/ATen/native/cpu/BinaryOpsKernel.cpp`` of PyTorch 2.13, "opmath".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

_HALVES = (torch.float16, torch.bfloat16)
_FUNCTIONS = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "elu",
        "erfc",
        "erfinv",
        "expm1",
        "gelu",
    ),
    *("hypot", "leaky_relu", "log10", "log1p", "log2", "logaddexp", "rsqrt", "sigmoid"),
)
"""Functions of each element of which torch-mlir rounds each step."""


def half_operators(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator; those of `table` apply to other types."""
    aten = torch.ops.aten
    with_numbers = [
        getattr(packet, overload)
        for packet in (aten.mul, aten.div)
        for overload in ("Tensor", "Scalar")
    ]
    rounded_once = [
        *(aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default),
        *(aten.cosine_similarity.default, aten.linalg_vector_norm.default),
        *(aten.mean.default, aten.mean.dim, aten._fused_rms_norm.default),
        aten.rms_norm.default,
        aten.native_layer_norm.default,
        *(aten._softmax.default, aten._log_softmax.default, aten._adaptive_avg_pool2d.default),
        *(aten.std.correction, aten.var.correction, aten.var_mean.correction),
        *(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default),
        *(getattr(aten, name).default for name in _FUNCTIONS),
    ]
    return {
        **{each: _with_number_in_f32(each) for each in with_numbers},
        **{each: _in_f32(each, table.get(each)) for each in rounded_once},
        aten.reciprocal.default: _reciprocal,
    }


def _with_number_in_f32(operator: Any) -> Callable[..., Any]:
    """Return an operator of two operands that computes in f32 where a number would be rounded."""

    def decomposed(left: Any, right: Any) -> Any:
        result = torch.result_type(left, right)
        if result not in _HALVES or not any(_is_rounded(each, result) for each in (left, right)):
            return NotImplemented
        return operator(_as_f32(left), _as_f32(right)).to(result)

    return decomposed


def _in_f32(operator: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return an operator that computes f16 and bf16 in f32, and rounds the results once.

    `otherwise` is its decomposition for other types; None if torch-mlir lowers it.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype") or args[0].dtype
        if dtype not in _HALVES or args[0].dtype not in _HALVES:
            return NotImplemented if otherwise is None else otherwise(*args, **kwargs)
        options = {name: each for name, each in kwargs.items() if name != "dtype"}
        results = operator(*map(_as_f32, args), **options)
        return pytree.tree_map(lambda each: each.to(dtype), results)

    return decomposed


def _reciprocal(values: torch.Tensor) -> Any:
    """Return the reciprocals of integers, which torch-mlir does not lower, as f32."""
    if values.dtype.is_floating_point or values.dtype.is_complex:
        return NotImplemented
    return torch.reciprocal(_as_f32(values))


def _is_rounded(operand: Any, dtype: torch.dtype) -> bool:
    """Return True for a number, or a tensor of one element, that would be rounded to `dtype`."""
    if isinstance(operand, torch.Tensor):
        return bool(operand.dim() == 0 and operand.dtype != dtype)
    if not isinstance(operand, (int, float)) or dtype not in _HALVES:
        return False
    dtype_of_numpy = np.float16 if dtype == torch.float16 else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        return float(np.asarray(operand, dtype_of_numpy)) != operand


def _as_f32(operand: Any) -> Any:
    return operand.to(torch.float32) if isinstance(operand, torch.Tensor) else operand
