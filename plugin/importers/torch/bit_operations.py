"""Decompositions of shifts and masks, with which programs unpack integers from words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _by_number(operator: Any) -> Callable[..., Any]:
    """Return the operator of two tensors, with a number as the second one."""

    def decomposed(left: torch.Tensor, right: int) -> Any:
        dtype = torch.result_type(left, right)  # i64 for booleans
        return operator(left, torch.full((), right, dtype=dtype, device=left.device))

    return decomposed


def _of_one_shape(operator: Any) -> Callable[..., Any]:
    """Return the operator of two tensors, broadcast before: torch-mlir does not."""

    def decomposed(left: torch.Tensor, right: torch.Tensor) -> Any:
        is_static = all(isinstance(size, int) for size in (*left.shape, *right.shape))
        if left.shape == right.shape or (is_static and not right.ndim):
            return NotImplemented
        return operator(*torch.broadcast_tensors(left, right))

    return decomposed


def bit_operations() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    right_by_number = _by_number(torch.bitwise_right_shift)
    left_by_number = _by_number(torch.bitwise_left_shift)
    return {
        aten.bitwise_or.Scalar: _by_number(torch.bitwise_or),
        aten.bitwise_xor.Scalar: _by_number(torch.bitwise_xor),
        aten.bitwise_right_shift.Tensor: _of_one_shape(torch.bitwise_right_shift),
        aten.bitwise_right_shift.Tensor_Scalar: right_by_number,
        aten.bitwise_left_shift.Tensor: _of_one_shape(torch.bitwise_left_shift),
        aten.bitwise_left_shift.Tensor_Scalar: left_by_number,
        aten.__rshift__.Tensor: torch.bitwise_right_shift,
        aten.__rshift__.Scalar: right_by_number,
        aten.__lshift__.Tensor: torch.bitwise_left_shift,
        aten.__lshift__.Scalar: left_by_number,
    }
