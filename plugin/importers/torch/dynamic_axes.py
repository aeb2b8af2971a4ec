"""Decompositions of paddings, scans and selections along dynamic axes, and of sizes less a tensor.

PyTorch's own decompositions take slices to a dynamic end, or compute a number less a tensor, which
torch-mlir does not lower. Along static axes they remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor
_Size: TypeAlias = int | torch.SymInt


def dynamic_axes_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.pad.default: _pad,
        aten.index_select.default: _index_select,
        aten.cumsum.default: running_reduction(torch.sum, 0),
        aten.rsub.Scalar: _subtract_from,
    }


def is_dynamic(*sizes: _Size) -> bool:
    """True if one of the sizes is known at run time only."""
    return any(isinstance(size, torch.SymInt) for size in sizes)


def take(values: Tensor, axis: int, positions: Tensor) -> Tensor:
    """Return the elements at positions along an axis, of which torch-mlir accepts dynamic ones.

    The axes of `positions` take the place of the axis.
    """
    indices: list[Tensor | None] = [*[None] * (axis % values.dim()), positions]
    result: Tensor = torch.ops.aten.index.Tensor(values, indices)
    return result


def _index_select(values: Tensor, dim: int, index: Tensor) -> Any:
    if not values.dim() or not is_dynamic(*values.shape):
        return NotImplemented
    return take(values, dim, index.reshape(-1))


def _subtract_from(values: Tensor, other: Any, alpha: Any = 1) -> Any:
    """Subtract from a dynamic size: ``-alpha * values + size``."""
    if not is_dynamic(other):
        return NotImplemented
    return values * -alpha + other


_SOURCES: dict[str, Callable[..., Tensor]] = {
    "reflect": lambda position, size: size - 1 - torch.abs(torch.abs(position) - (size - 1)),
    "circular": torch.remainder,
    "replicate": lambda position, size: torch.clamp(torch.clamp(position, min=0), max=size - 1),
}
"""The position that an element outside of an axis of a size repeats, by mode."""

_STATIC = {"reflect": "reflection", "replicate": "replication"}
"""The names of operators of static shapes, by mode."""


def _pad(
    values: Tensor, pad: Sequence[_Size], mode: str = "constant", value: float | None = None
) -> Any:
    """Take the elements that a padding repeats: ``size - 1 - |size - 1 - |position||`` reflects."""
    aten = torch.ops.aten
    if mode == "constant":
        return aten.constant_pad_nd.default(values, pad, 0 if value is None else value)
    if mode in _STATIC and not is_dynamic(*values.shape):
        return getattr(aten, f"{_STATIC[mode]}_pad{len(pad) // 2}d").default(values, pad)
    for number in range(len(pad) // 2):
        before, after = pad[2 * number : 2 * number + 2]
        axis = values.dim() - 1 - number
        size = values.shape[axis]
        positions = torch.arange(before + size + after) - before
        values = take(values, axis, _SOURCES[mode](positions, size))
    return values


def running_reduction(reduce: Callable[..., Tensor], neutral: float) -> Callable[..., Any]:
    """Return a running reduction: that of a square whose elements behind the diagonal are neutral.

    The square is not stored, but the time is quadratic in the size of the axis.
    """

    def decomposed(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        wide = dtype or (values.dtype if values.is_floating_point() else torch.int64)
        if not values.dim():
            return values.to(wide, copy=True)
        if not is_dynamic(values.shape[dim]):
            return NotImplemented
        axis, size = dim % values.dim(), values.shape[dim]
        positions = torch.arange(size)
        is_before = (positions[None, :] <= positions[:, None]).reshape(
            [size, size, *[1] * (values.dim() - 1 - axis)]
        )
        square = torch.where(is_before, values.to(wide).unsqueeze(axis), neutral)
        return reduce(square, axis + 1)

    return decomposed
