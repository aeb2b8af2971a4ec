"""Operators of integers and booleans, in the type that PyTorch promotes them to.

torch-mlir 20261001 lowers operators of u8 and booleans as those of i8 and i1: the maximum of u8
begins with 128, the byte of the least i8, that of booleans with true, the least i1, and quotients
of u8 keep an unresolved conversion. It compares u8 with i8 as i8, a boolean with a number as
booleans, and does not convert the operands of clamps and shifts. Here operands are converted first,
and u8 and booleans computed in i32.

Source: ``c10/core/ScalarType.h`` of PyTorch (``promoteTypes``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

_Table = dict[Any, Callable[..., Any]]
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)
_IN_I32 = (torch.uint8, torch.bool)


def _promoted(
    operator: Any, otherwise: Callable[..., Any] | None = None, *, compares: bool = False
) -> Callable[..., Any]:
    """Return an elementwise operator that converts operands to their common type.

    Args:
        operator: the operator.
        otherwise: its decomposition for operands that need no conversion.
        compares: whether results are booleans, and not of the common type.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        is_exact = kwargs.get("rounding_mode", "") is None
        if is_exact:
            return NotImplemented if otherwise is None else otherwise(*args, **kwargs)
        numbers = [each for each in args if isinstance(each, _NUMBERS)]
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        _, common = elementwise_dtypes(*tensors, *numbers, type_promotion_kind=kind)
        computed = torch.int32 if common in _IN_I32 else common
        if all(each.dtype == computed for each in tensors):
            return NotImplemented if otherwise is None else otherwise(*args, **kwargs)
        converted = [
            each.to(computed) if isinstance(each, torch.Tensor) else _wrapped(each, common)
            for each in args
        ]
        result = operator(*converted, **kwargs)
        return result if compares else result.to(common)

    return decomposed


def _wrapped(number: Any, dtype: torch.dtype) -> Any:
    """Return an integer or boolean as the type of a tensor wraps it; others as they are."""
    if not isinstance(number, int) or dtype.is_floating_point or dtype == torch.bool:
        return number
    limits = torch.iinfo(dtype)
    return (int(number) - limits.min) % (1 << limits.bits) + limits.min


def _in_i32(operator: Any, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return an operator of one tensor that computes u8 and booleans in i32."""

    def decomposed(values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if values.dtype not in _IN_I32:
            return NotImplemented if otherwise is None else otherwise(values, *args, **kwargs)
        return operator(values.to(torch.int32), *args, **kwargs).to(values.dtype)

    return decomposed


def _of_bytes(operator: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return an operator that wraps a negative number for u8.

    The sum of booleans is ``or``; torch-mlir adds constants modulo 2.
    """

    def decomposed(left: Any, right: Any, **kwargs: Any) -> Any:
        is_sum = operator is torch.ops.aten.add.Tensor and kwargs.get("alpha", 1) == 1
        if is_sum and torch.result_type(left, right) == torch.bool:
            number = torch.full((), right) if isinstance(right, bool) else right
            return torch.logical_or(left, number)
        is_negative = type(right) is int and right < 0
        if is_negative and isinstance(left, torch.Tensor) and left.dtype == torch.uint8:
            return operator(left, _wrapped(right, torch.uint8), **kwargs)
        return NotImplemented if otherwise is None else otherwise(left, right, **kwargs)

    return decomposed


def _in_f32(operator: Any, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function that computes integers in f32, the type of its results."""

    def decomposed(values: torch.Tensor) -> Any:
        if values.dtype.is_floating_point:
            return NotImplemented if otherwise is None else otherwise(values)
        return operator(values.to(torch.float32))

    return decomposed


def _of_finite(answer: bool, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a predicate of floats that has one answer for integers."""

    def decomposed(values: torch.Tensor) -> Any:
        if values.dtype.is_floating_point:
            return NotImplemented if otherwise is None else otherwise(values)
        return torch.full_like(values, answer, dtype=torch.bool)

    return decomposed


def _has_nonzero(operator: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return ``any`` or ``all`` of u8, which PyTorch returns as u8."""

    def decomposed(values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if values.dtype != torch.uint8:
            return NotImplemented if otherwise is None else otherwise(values, *args, **kwargs)
        return operator(values != 0, *args, **kwargs).to(torch.uint8)

    return decomposed


def integer_operators(table: _Table) -> _Table:
    """Return the decompositions by operator; those of `table` apply to other types."""
    aten = torch.ops.aten
    widened = [
        *(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        aten.abs.default,
    ]
    promoted = [
        *(aten.floor_divide.default, aten.floor_divide.Scalar),
        *(aten.div.Tensor_mode, aten.div.Scalar_mode),
        *(aten.remainder.Tensor, aten.remainder.Scalar, aten.fmod.Tensor, aten.fmod.Scalar),
        *(aten.bitwise_left_shift.Tensor, aten.bitwise_right_shift.Tensor),
        *(aten.clamp.default, aten.clamp.Tensor),
        *(aten.clamp_min.default, aten.clamp_min.Tensor),
        *(aten.clamp_max.default, aten.clamp_max.Tensor),
    ]
    compared = [
        getattr(getattr(aten, name), overload)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Scalar", "Tensor")
    ]
    wrapped = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor]
    nonzero = [
        getattr(packet, overload)
        for packet in (aten.any, aten.all)
        for overload in ("default", "dim", "dims")
    ]
    return {
        **{each: _in_i32(each, table.get(each)) for each in widened},
        **{each: _promoted(each, table.get(each)) for each in promoted},
        **{each: _promoted(each, table.get(each), compares=True) for each in compared},
        **{each: _has_nonzero(each, table.get(each)) for each in nonzero},
        **{each: _of_bytes(each, table.get(each)) for each in wrapped},
        aten.erf.default: _in_f32(aten.erf.default, table.get(aten.erf.default)),
        aten.isfinite.default: _of_finite(True, table.get(aten.isfinite.default)),
        aten.isinf.default: _of_finite(False, table.get(aten.isinf.default)),
    }
