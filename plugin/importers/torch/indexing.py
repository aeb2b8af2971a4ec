"""Decompositions of indexing operators that torch-mlir 20261001 lacks.

Source of the semantics: `aten/src/ATen/native` of PyTorch 2.13, the files that functions name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .dynamic_axes import is_dynamic, take

Tensor: TypeAlias = torch.Tensor


def _slice_scatter(
    values: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Join a slice with the elements around it; with a step select between both, by position.

    torch-mlir writes a scatter of each element of the slice, which is slower, and its
    canonicalization of a step does not end.
    """
    size = values.shape[dim]
    if any(isinstance(each, torch.SymInt) for each in (size, start, end)) or not source.numel():
        return NotImplemented
    sliced = range(size)[slice(start, end, step)]
    if step == 1:
        head = values.narrow(dim, 0, sliced.start)
        tail = values.narrow(dim, sliced.stop, size - sliced.stop)
        return torch.cat([head, source.to(values.dtype), tail], dim)
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
    outer = [axis for axis in range(rank) if axis not in (dim1 % rank, dim2 % rank)]
    matrices = values.permute([*outer, dim1 % rank, dim2 % rank])
    if is_dynamic(rows, columns):
        count = rows - abs(offset)
        if not statically_known_true(rows == columns) or not statically_known_true(count >= 0):
            return NotImplemented
        indices = [torch.arange(count) + max(shift, 0) for shift in (-offset, offset)]
        return torch.ops.aten.index.Tensor(matrices, [*[None] * len(outer), *indices])
    flat = matrices.reshape([*matrices.shape[:-2], rows * columns])
    start = offset if offset >= 0 else -offset * columns
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    positions = start + torch.arange(max(count, 0)) * (columns + 1)
    return flat.index_select(-1, positions)


def _diagonal_scatter(
    values: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Any:
    """Select between a tensor and the elements of a diagonal, by position."""
    axes = dim1 % values.dim(), dim2 % values.dim()
    rows, columns = (values.shape[axis] for axis in axes)
    if any(isinstance(size, torch.SymInt) for size in (rows, columns)) or not source.numel():
        return NotImplemented
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    position = torch.clamp(row if offset >= 0 else column, max=source.shape[-1] - 1)
    spread = source.index_select(-1, position.reshape(-1)).unflatten(-1, tuple(position.shape))
    if offset < 0:
        spread = spread.unsqueeze(-2)
    matrices = values.movedim(axes, (-2, -1))
    return torch.where(column - row == offset, spread, matrices).movedim((-2, -1), axes)


def _as_strided_scatter(
    values: Tensor,
    source: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Any:
    """Write elements at the positions that strides name, as ``fill_diagonal_`` does."""
    if not values.is_contiguous() or any(isinstance(n, torch.SymInt) for n in (*size, *stride)):
        return NotImplemented
    positions = torch.full((), storage_offset or 0, dtype=torch.int64)
    for count, step in zip(size, stride, strict=True):
        positions = positions[..., None] + torch.arange(count) * step
    flat = values.reshape(-1).index_copy(0, positions.reshape(-1), source.reshape(-1))
    return flat.reshape(values.shape)


def _unfold(values: Tensor, dimension: int, size: int, step: int) -> Any:
    """Take the windows of an axis by index; their elements are the last axis."""
    if not values.dim():
        return values.reshape(1)[:size]
    axis = dimension % values.dim()
    starts = torch.arange((values.shape[axis] - size) // step + 1) * step
    positions = starts[:, None] + torch.arange(size)
    if is_dynamic(values.shape[axis]):
        return take(values, axis, positions).movedim(axis + 1, -1)
    windows = values.index_select(axis, positions.reshape(-1))
    return windows.unflatten(axis, tuple(positions.shape)).movedim(axis + 1, -1)


def _equal(values: Tensor, other: Tensor) -> Any:
    """Compare a tensor with itself: NaN differs, and torch-mlir folds the comparison to true."""
    if values is not other or not values.is_floating_point():
        return NotImplemented
    return torch.logical_not(torch.isnan(values))


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


def _shifted(sign: int) -> Callable[..., Any]:
    """Return ``fftshift`` or ``ifftshift``: a rotation by half of the size, down or up."""

    def decomposed(values: Tensor, dim: Sequence[int] | None = None) -> Any:
        axes = [*range(values.dim())] if dim is None else [axis % values.dim() for axis in dim]
        return torch.roll(values, [sign * (values.shape[axis] // 2) for axis in axes], axes)

    return decomposed


def _masked_scatter(values: Tensor, mask: Tensor, source: Tensor) -> Any:
    """Expand the values and the mask to one shape, which torch-mlir does not."""
    if values.shape == mask.shape:
        return NotImplemented
    return torch.masked_scatter(*torch.broadcast_tensors(values, mask), source)


def _put(values: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """Write elements at flat positions."""
    flat = values.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(values.shape)


def _take(values: Tensor, index: Tensor) -> Any:
    """Read elements at flat positions; of negative ones from the end."""
    flat = values.reshape(-1)
    positions = index.reshape(-1)
    positions = torch.where(positions < 0, positions + flat.shape[0], positions)
    return flat.index_select(0, positions).reshape(index.shape)


def _nonzero_static(values: Tensor, *, size: int, fill_value: int = -1) -> Any:
    """The positions of the first elements that are not 0, ``[size, rank]``."""
    if is_dynamic(*values.shape):
        return NotImplemented
    rank, count = values.dim(), values.numel()
    if not rank or not size or not count:
        return torch.full((size, rank), fill_value, dtype=torch.int64)
    is_nonzero = (values != 0).reshape(-1)
    rows = torch.cumsum(is_nonzero.to(torch.int64), 0) - 1
    rows = torch.where(torch.logical_and(is_nonzero, rows < size), rows, size)  # a row for others
    flat = torch.full((size + 1,), -1, dtype=torch.int64)
    flat = flat.scatter(0, rows, torch.arange(count))[:size]
    columns, rest = [], flat
    for extent in reversed(values.shape):
        columns.append(torch.remainder(rest, extent))
        rest = torch.div(rest, extent, rounding_mode="floor")
    positions = torch.stack(columns[::-1], 1)
    return torch.where(flat[:, None] < 0, fill_value, positions)


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
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.as_strided_scatter.default: _as_strided_scatter,
        aten.unfold.default: _unfold,
        aten.eq.Tensor: _equal,
        aten.slice.Tensor: _slice,
        aten._cdist_forward.default: _cdist,
        aten.clamp.default: _clamp,
        aten.masked_scatter.default: _masked_scatter,
        aten.put.default: _put,
        aten.take.default: _take,
        aten.nonzero_static.default: _nonzero_static,
        aten.narrow_copy.default: torch.narrow,
        aten.unbind_copy.int: torch.unbind,
        aten.fft_fftshift.default: _shifted(1),
        aten.fft_ifftshift.default: _shifted(-1),
    }
