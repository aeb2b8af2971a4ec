"""Decompositions of poolings that torch-mlir 20261001 lowers wrongly or not at all.

With ``ceil_mode`` a window may begin inside the padded input and end outside; torch-mlir counts
windows as without it. The input is padded until no window ends outside.

Source of sizes and counts: ``aten/src/ATen/native/Pool.h`` and ``AvgPoolKernel.cpp`` of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True)
class _Axis:
    """The windows of a pooling along one axis.

    Args:
        size: the input's size.
        kernel, stride, padding, dilation: the parameters of the pooling along this axis.
        ceil_mode: True if a last window that ends outside the padded input counts.
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    ceil_mode: bool

    @property
    def windows(self) -> int:
        """The number of windows; the last one begins inside the input or its left padding."""
        span = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        count = (span + (self.stride - 1 if self.ceil_mode else 0)) // self.stride + 1
        if self.ceil_mode and (count - 1) * self.stride >= self.size + self.padding:
            count -= 1
        return count

    @property
    def right_padding(self) -> int:
        """The padding with which the last window ends inside, at least `padding`."""
        end = (self.windows - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return max(self.padding, end - self.size - self.padding)

    def counts(self, like: Tensor, *, with_padding: bool) -> Tensor:
        """Return the number of elements of each window, of shape [windows]."""
        start = torch.arange(self.windows, device=like.device) * self.stride - self.padding
        end = torch.clamp(start + self.kernel, max=self.size + self.padding)
        if not with_padding:
            start, end = torch.clamp(start, min=0), torch.clamp(end, max=self.size)
        return (end - start).to(like.dtype)


def _axes(
    values: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> list[_Axis]:
    """Return the axes of a pooling; parameters of one number hold for all axes."""
    rank = len(kernel)
    parameters = [
        list(each) if len(each) == rank else list(each) * rank
        for each in (values.shape[-rank:], kernel, stride or kernel, padding, dilation)
    ]
    return [
        _Axis(size, window, step, pad, dilate, ceil_mode)
        for size, window, step, pad, dilate in zip(*parameters, strict=True)
    ]


def _pad(values: Tensor, axes: Sequence[_Axis], number: float) -> Tensor:
    """Pad values with a number until the last window of each axis ends inside."""
    sides = [side for axis in reversed(axes) for side in (axis.padding, axis.right_padding)]
    return torch.constant_pad_nd(values, sides, number)


def max_pool_with_indices(
    values: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> Any:
    """Pool padded values along two or three axes; indices are those of the values unpadded.

    torch-mlir takes strides that are left out for 1, not for the sizes of the kernel, and has no
    indices of three axes.
    """
    axes = _axes(values, kernel, stride, padding, dilation, ceil_mode)
    rank = len(axes)
    if rank == 3 and not any(isinstance(axis.size, torch.SymInt) for axis in axes):
        return _pooled_volume(values, axes), _volume_indices(values, axes)
    operator = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices").default
    if not ceil_mode:
        return NotImplemented if stride else operator(values, kernel, kernel, padding, dilation)
    padded = _pad(values, axes, _lowest(values))
    steps = [axis.stride for axis in axes], [0] * rank, [axis.dilation for axis in axes]
    pooled, offsets = operator(padded, kernel, *steps)
    return pooled, _unpadded(offsets, padded, axes)


def _unpadded(offsets: Tensor, padded: Tensor, axes: Sequence[_Axis]) -> Tensor:
    """Convert flat indices of padded values to those of the values."""
    indices, scale = torch.zeros_like(offsets), 1
    for number, axis in reversed(list(enumerate(axes))):
        size = int(padded.shape[number - len(axes)])
        indices = indices + (offsets % size - axis.padding) * scale
        offsets, scale = offsets // size, scale * axis.size
    return indices


def _pooled_volume(values: Tensor, axes: Sequence[_Axis]) -> Tensor:
    """Take the maxima of windows of three axes: of planes, then along the first axis."""
    padded = _pad(values, axes, _lowest(values))
    depth, height, width = axes

    def pooled(images: Tensor, *sides: _Axis) -> Tensor:
        parameters = (
            [getattr(each, name) for each in sides] for name in ("kernel", "stride", "dilation")
        )
        kernel, stride, dilation = parameters
        return torch.max_pool2d(images, kernel, stride, 0, dilation)

    planes = pooled(padded.flatten(0, -4), height, width).unflatten(0, padded.shape[:-3])
    line = replace(depth, kernel=1, stride=1, dilation=1)
    volumes = planes.flatten(-2).reshape(-1, 1, planes.shape[-3], math.prod(planes.shape[-2:]))
    return pooled(volumes, depth, line).reshape(*padded.shape[:-3], -1, *planes.shape[-2:])


def _volume_indices(values: Tensor, axes: Sequence[_Axis]) -> Tensor:
    """Return the flat index of the maximum of each window of three axes."""
    padded = _pad(values, axes, _lowest(values))
    windows = [
        torch.arange(axis.windows)[:, None] * axis.stride
        + torch.arange(axis.kernel) * axis.dilation
        for axis in axes
    ]
    return _unpadded(_maxima(padded, windows)[1], padded, axes)


def avg_pool(
    values: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Sum padded values along one to three axes, and divide by the element count of each window.

    torch-mlir drops a divisor of three axes. Sums of integers are divided toward zero.
    """
    if not values.is_floating_point():
        floats = values.to(torch.float64)
        divisor = () if len(kernel) == 1 else (divisor_override,)
        average = getattr(torch.nn.functional, f"avg_pool{len(kernel)}d")
        mean = average(floats, kernel, stride, padding, ceil_mode, count_include_pad, *divisor)
        return torch.trunc(mean).to(values.dtype)
    if not ceil_mode and divisor_override is None:
        return NotImplemented
    axes = _axes(values, kernel, stride, padding, (1,), ceil_mode)
    rank = len(axes)
    operator = getattr(torch.ops.aten, f"avg_pool{rank}d").default
    strides = [axis.stride for axis in axes]
    mean = operator(_pad(values, axes, 0.0), kernel, strides, [0] * rank)
    total = mean * float(math.prod(axis.kernel for axis in axes))
    if divisor_override is not None:
        return total / divisor_override
    for number, axis in enumerate(axes):
        counts = axis.counts(values, with_padding=count_include_pad)
        total = total / counts.reshape(-1, *[1] * (rank - 1 - number))
    return total


def adaptive_avg_pool(values: Tensor, sizes: Sequence[int]) -> Any:
    """Average along one axis after the other: windows are boxes.

    torch-mlir takes the windows of a dynamic axis for equal ones, without a message, and refuses
    windows of unlike widths or distances.
    """
    extents = values.shape[-len(sizes) :]
    if len(sizes) == 2 and all(map(_has_equal_windows, extents, sizes)):
        return NotImplemented
    dtype = values.dtype
    for axis, count in zip(range(-len(sizes), 0), sizes, strict=True):
        size = values.shape[axis]
        if isinstance(size, torch.SymInt):
            is_inside, elements = _dynamic_windows(values.to(torch.float32), axis, count)
            total = torch.where(is_inside, elements, 0.0).sum(-1)
            means = total / is_inside.to(torch.float32).sum(-1)
            values = means.movedim(-1, axis).to(dtype)
            continue
        windows = _averaged_windows(size, count)
        averages = [values.narrow(axis, start, end - start) for start, end in windows]
        values = torch.cat([part.mean(axis, keepdim=True) for part in averages], axis)
    return values


def _averaged_windows(size: int, count: int) -> list[tuple[int, int]]:
    """Return the start and the end of each window: those of `_adaptive_windows`."""
    return [(n * size // count, -(-(n + 1) * size // count)) for n in range(count)]


def _has_equal_windows(size: Any, count: int) -> bool:
    """True if the windows of a static axis have one width and one distance."""
    if isinstance(size, torch.SymInt):
        return False
    windows, stride = _averaged_windows(size, count), size // count
    width = windows[0][1] if windows else 0
    return all(each == (n * stride, n * stride + width) for n, each in enumerate(windows))


def adaptive_max_pool(values: Tensor, sizes: Sequence[int]) -> Any:
    """Take the maxima of windows of different sizes along two or three axes, and their indices."""
    rank = len(sizes)
    extents = values.shape[-rank:]
    if any(isinstance(size, torch.SymInt) for size in extents):
        return _dynamic_maxima(values, sizes)
    pairs = list(zip(extents, sizes, strict=True))
    if rank == 2 and not any(size % count for size, count in pairs):
        return NotImplemented  # equal windows, which torch-mlir lowers
    return _maxima(values, [_adaptive_windows(*pair) for pair in pairs])


def _adaptive_windows(size: int, count: int) -> Tensor:
    """Return the positions of the elements of each window, ``[count, width]``.

    Window ``n`` has those from ``floor(n * size / count)`` to ``ceil((n + 1) * size / count)``. A
    window that is smaller than others repeats its last element.
    """
    scaled = torch.arange(count) * size
    starts = torch.div(scaled, count, rounding_mode="floor")
    ends = torch.div(scaled + (size + count - 1), count, rounding_mode="floor")
    width = max(-(-(n + 1) * size // count) - n * size // count for n in range(count))
    return torch.minimum(starts[:, None] + torch.arange(width), ends[:, None] - 1)


def _dynamic_windows(values: Tensor, axis: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the elements of windows of a dynamic axis: a mask, and the axis moved to the end.

    Returns:
        The mask ``[count, size]``, and a view ``[..., 1, size]``.
    """
    size = values.shape[axis]
    scaled = torch.arange(count)[:, None] * size
    starts = torch.div(scaled, count, rounding_mode="floor")
    ends = torch.div(scaled + (size + count - 1), count, rounding_mode="floor")
    positions = torch.arange(size)
    is_inside = torch.logical_and(positions >= starts, positions < ends)
    return is_inside, values.movedim(axis, -1).unsqueeze(-2)


def _dynamic_maxima(values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Take the maxima along one axis after the other, from the last, and their flat indices."""
    rank, lowest = len(sizes), _lowest(values)
    indices, stride = torch.zeros_like(values, dtype=torch.int64), 1
    for axis in range(-1, -rank - 1, -1):
        extent = values.shape[axis]
        is_inside, elements = _dynamic_windows(values, axis, sizes[axis])
        elements = torch.where(is_inside, elements, lowest)
        position = torch.argmax(elements, -1)
        values = torch.amax(elements, -1).movedim(-1, axis)
        indices = torch.gather(indices.movedim(axis, -1), -1, position) + position * stride
        indices, stride = indices.movedim(-1, axis), stride * extent
    return values, indices


def _lowest(values: Tensor) -> float:
    """Return the least number of the type of a tensor."""
    lowest: float = torch.iinfo(values.dtype).min if not values.is_floating_point() else -torch.inf
    return lowest


def _maxima(values: Tensor, windows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Take the maxima of windows, each the product of positions of axes, and their flat indices."""
    rank, lead = len(windows), values.dim() - len(windows)
    indices = torch.zeros([1] * (2 * rank), dtype=torch.int64)
    for axis, table in enumerate(windows):
        shape = [1] * (2 * rank)
        shape[2 * axis : 2 * axis + 2] = table.shape
        indices = indices * values.shape[lead + axis] + table.reshape(shape)
    elements = values
    for axis, table in reversed(list(enumerate(windows))):
        elements = elements.index_select(lead + axis, table.reshape(-1))
        elements = elements.unflatten(lead + axis, tuple(table.shape))
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]  # windows, then their elements
    moved = [*range(lead), *[lead + axis for axis in order]]
    elements = elements.permute(moved).flatten(lead + rank)
    indices = indices.permute(order).flatten(rank).expand(elements.shape)
    position = torch.argmax(elements, -1, keepdim=True)
    return tuple(torch.gather(each, -1, position).squeeze(-1) for each in (elements, indices))
