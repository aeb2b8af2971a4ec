"""Operators of u8 in i32: torch-mlir 20261001 lowers them as those of i8, or not at all.

The maximum of u8 begins with 128, the byte of the least i8, and quotients keep an unresolved
conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _in_i32(operator: Any, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return an operator whose operands of u8 are widened, and the result of which is u8.

    Args:
        operator: the operator.
        otherwise: its decomposition for other types.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        types = {each.dtype for each in args if isinstance(each, torch.Tensor)}
        if types != {torch.uint8} or any(isinstance(each, float) for each in args):
            return NotImplemented if otherwise is None else otherwise(*args, **kwargs)
        wide = [each.to(torch.int32) if isinstance(each, torch.Tensor) else each for each in args]
        return operator(*wide, **kwargs).to(torch.uint8)

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
    nonzero = [
        getattr(packet, overload)
        for packet in (aten.any, aten.all)
        for overload in ("default", "dim", "dims")
    ]
    return {
        **{each: _in_i32(each, table.get(each)) for each in widened},
        **{each: _has_nonzero(each) for each in nonzero},
    }
