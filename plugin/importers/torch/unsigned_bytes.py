"""Operators of u8 and booleans in i32: torch-mlir 20261001 lowers them as those of i8 and i1.

The maximum of u8 begins with 128, the byte of the least i8, that of booleans with true, the least
i1, and quotients of u8 keep an unresolved conversion. A number that booleans are compared with
becomes a boolean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _in_i32(operator: Any, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return an operator whose operands of u8 or booleans are widened; the result is narrow again.

    Args:
        operator: the operator.
        otherwise: its decomposition for other types.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        types = {each.dtype for each in args if isinstance(each, torch.Tensor)}
        is_narrow = types in ({torch.uint8}, {torch.bool})
        if not is_narrow or any(isinstance(each, float) for each in args):
            return NotImplemented if otherwise is None else otherwise(*args, **kwargs)
        [dtype] = types
        wide = [each.to(torch.int32) if isinstance(each, torch.Tensor) else each for each in args]
        return operator(*wide, **kwargs).to(dtype)

    return decomposed


def _compared(operator: Any) -> Callable[..., Any]:
    """Return a comparison of booleans or u8 with a number, in a common type.

    An integer that u8 is compared with wraps, as in PyTorch.
    """

    def decomposed(values: torch.Tensor, number: Any) -> Any:
        if values.dtype not in (torch.bool, torch.uint8):
            return NotImplemented
        if isinstance(number, (float, torch.SymFloat)):
            return operator(values.to(torch.float32), number)
        wrapped = number & 255 if values.dtype == torch.uint8 and type(number) is int else number
        return operator(values.to(torch.int64), wrapped)

    return decomposed


def _has_nonzero(operator: Any) -> Callable[..., Any]:
    """Return ``any`` or ``all`` of u8, which PyTorch returns as u8."""

    def decomposed(values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if values.dtype != torch.uint8:
            return NotImplemented
        return operator(values != 0, *args, **kwargs).to(torch.uint8)

    return decomposed


def unsigned_operators(
    table: dict[Any, Callable[..., Any]],
) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator; those of `table` apply to other types."""
    aten = torch.ops.aten
    widened = [
        *(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        aten.abs.default,
        *(aten.floor_divide.default, aten.floor_divide.Scalar),
        *(aten.div.Tensor_mode, aten.div.Scalar_mode),
        *(aten.remainder.Tensor, aten.remainder.Scalar, aten.fmod.Tensor, aten.fmod.Scalar),
    ]
    compared = [getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge")]
    nonzero = [
        getattr(packet, overload)
        for packet in (aten.any, aten.all)
        for overload in ("default", "dim", "dims")
    ]
    return {
        **{each: _in_i32(each, table.get(each)) for each in widened},
        **{each: _compared(each) for each in compared},
        **{each: _has_nonzero(each) for each in nonzero},
    }
