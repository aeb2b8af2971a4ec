"""Decompositions of indexing, ordering and counting operators that torch-mlir 20261001 lacks.

Source of the semantics: `aten/src/ATen/native` of PyTorch 2.13, the files that functions name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


def _slice_scatter(
    values: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Select between a tensor and the elements of its slice with a step, by position.

    torch-mlir's canonicalization of a step does not end.
    """
    size = values.shape[dim]
    if step == 1 or isinstance(size, torch.SymInt) or not source.numel():
        return NotImplemented
    sliced = range(size)[slice(start, end, step)]
    axis = [-1 if each == dim % values.dim() else 1 for each in range(values.dim())]
    distance = torch.arange(size) - sliced.start
    is_inside = torch.logical_and(distance >= 0, distance < len(sliced) * step)
    is_sliced = torch.logical_and(is_inside, torch.remainder(distance, step) == 0)
    rows = torch.clamp(torch.div(distance, step, rounding_mode="floor"), 0, len(sliced) - 1)
    return torch.where(is_sliced.reshape(axis), source.index_select(dim, rows), values)


def _index_put(
    values: Tensor, indices: Sequence[Tensor | None], source: Tensor, accumulate: bool = False
) -> Any:
    """Select by a mask if it is the only index, and the source is one element."""
    masks = [index for index in indices if index is not None]
    if len(masks) != 1 or masks[0].dtype != torch.bool or source.dim():
        return NotImplemented
    mask, before = masks[0], len(indices) - 1
    if indices[-1] is None:
        before = next(n for n, index in enumerate(indices) if index is not None)
    after = values.dim() - before - mask.dim()
    written = values + source if accumulate else source.to(values.dtype)
    return torch.where(mask.reshape(*mask.shape, *[1] * after), written, values)


def _diagonal(values: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Slice flat matrices with a step of a row and an element."""
    rank = values.dim()
    rows, columns = values.shape[dim1], values.shape[dim2]
    if any(isinstance(size, torch.SymInt) for size in (rows, columns)):
        return NotImplemented
    outer = [axis for axis in range(rank) if axis not in (dim1 % rank, dim2 % rank)]
    matrices = values.permute([*outer, dim1 % rank, dim2 % rank])
    flat = matrices.reshape([*matrices.shape[:-2], rows * columns])
    start = offset if offset >= 0 else -offset * columns
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    positions = start + torch.arange(max(count, 0)) * (columns + 1)
    return flat.index_select(-1, positions)


def _unfold(values: Tensor, dimension: int, size: int, step: int) -> Any:
    """Take the windows of an axis by index; their elements are the last axis."""
    if not values.dim() or isinstance(values.shape[dimension], torch.SymInt):
        return NotImplemented
    axis = dimension % values.dim()
    starts = torch.arange(0, values.shape[axis] - size + 1, step)
    positions = starts[:, None] + torch.arange(size)
    windows = values.index_select(axis, positions.reshape(-1))
    return windows.unflatten(axis, tuple(positions.shape)).movedim(axis + 1, -1)


def _stable_sort(
    values: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    """Sort; the lowering is stable."""
    return torch.ops.aten.sort.default(values, dim, descending)


def _equal(values: Tensor, other: Tensor) -> Any:
    """Compare a tensor with itself: NaN differs, and torch-mlir folds the comparison to true."""
    if values is not other or not values.is_floating_point():
        return NotImplemented
    return torch.logical_not(torch.isnan(values))


def _position_of(reduced: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return ``argmax`` or ``argmin`` of floats by ``amax`` or ``amin``: the first NaN counts."""

    def decomposed(values: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if not values.is_floating_point():
            return NotImplemented
        compared = values if dim is not None else values.reshape(-1)
        extreme = reduced(compared, -1 if dim is None else dim, True)
        is_extreme = torch.logical_or(compared == extreme, torch.isnan(compared))
        position = torch.argmax(is_extreme.to(torch.int32), -1 if dim is None else dim, keepdim)
        return position.reshape([1] * values.dim()) if dim is None and keepdim else position

    return decomposed


def _extreme_of(
    reduced: Callable[..., Tensor], position: Callable[..., Tensor]
) -> Callable[..., Any]:
    """Return ``max`` or ``min`` of floats along an axis: the extreme and its position."""

    def decomposed(values: Tensor, dim: int, keepdim: bool = False) -> Any:
        if not values.is_floating_point():
            return NotImplemented
        return reduced(values, dim, keepdim), position(values, dim, keepdim)

    return decomposed


def _slice(
    values: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Write an empty slice as an empty tensor, which torch-mlir does not."""
    size = values.shape[dim]
    if any(isinstance(each, torch.SymInt) for each in (*values.shape, start, end)):
        return NotImplemented
    if len(range(size)[slice(start, end, step)]):
        return NotImplemented
    shape = list(values.shape)
    shape[dim] = 0
    return torch.zeros(shape, dtype=values.dtype, device=values.device)


def _histc(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count elements by bins of equal width (``HistogramKernel.cpp``)."""
    if min == max:
        return NotImplemented  # the range of the values
    flat = values.reshape(-1)
    is_inside = (flat >= min) & (flat <= max)
    scaled = (flat - min) * bins / (max - min)
    position = torch.clamp(torch.trunc(scaled), 0, bins - 1)
    in_bin = position[:, None] == torch.arange(bins, dtype=position.dtype)
    return (in_bin & is_inside[:, None]).sum(0).to(values.dtype)


def _searchsorted(
    boundaries: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """Count the boundaries below each value; NaN is above all (``Bucketization.cpp``)."""
    if sorter is not None or boundaries.dim() != 1:
        return NotImplemented
    above = torch.gt if right or side == "right" else torch.ge
    is_above = above(boundaries, values[..., None])
    counts = torch.logical_not(is_above).sum(-1)
    return counts.to(torch.int32) if out_int32 else counts


def _bucketize(
    values: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Any:
    return _searchsorted(boundaries, values, out_int32=out_int32, right=right)


def _cdist(left: Tensor, right: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Compute norms of differences."""
    difference = (left[..., :, None, :] - right[..., None, :, :]).abs()
    if p == 0:
        return (difference != 0).sum(-1).to(left.dtype)
    if p == 1:
        return difference.sum(-1)
    if p == 2:
        return torch.sqrt((difference * difference).sum(-1))
    if p == math.inf:
        return difference.amax(-1)
    return difference.pow(p).sum(-1).pow(1 / p)


def _clamp(values: Tensor, min: Any = None, max: Any = None) -> Any:
    """Clamp integers by floats as floats, in the type of the result."""
    bounds = [bound for bound in (min, max) if isinstance(bound, float)]
    if values.is_floating_point() or not bounds:
        return NotImplemented
    return torch.clamp(values.to(torch.get_default_dtype()), min, max)


def indexing_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.slice_scatter.default: _slice_scatter,
        aten.index_put.default: _index_put,
        aten.diagonal.default: _diagonal,
        aten.unfold.default: _unfold,
        aten.sort.stable: _stable_sort,
        aten.eq.Tensor: _equal,
        aten.argmax.default: _position_of(torch.amax),
        aten.argmin.default: _position_of(torch.amin),
        aten.max.dim: _extreme_of(torch.amax, torch.argmax),
        aten.min.dim: _extreme_of(torch.amin, torch.argmin),
        aten.slice.Tensor: _slice,
        aten.histc.default: _histc,
        aten.searchsorted.Tensor: _searchsorted,
        aten.bucketize.Tensor: _bucketize,
        aten._cdist_forward.default: _cdist,
        aten.clamp.default: _clamp,
    }
