"""Decompositions of sorts, extremes, medians and counts that torch-mlir 20261001 lacks.

Source of the semantics: `aten/src/ATen/native` of PyTorch 2.13, the files that functions name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from .dynamic_axes import is_dynamic, running_reduction

Tensor: TypeAlias = torch.Tensor


def _stable_sort(
    values: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> Any:
    """Sort; the lowering is stable."""
    return torch.ops.aten.sort.default(values, dim, descending)


def _position_of(reduced: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return ``argmax`` or ``argmin`` by ``amax`` or ``amin``: the first NaN counts.

    torch-mlir compares u8 with the least i8.
    """

    def decomposed(values: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if not values.dim():
            return torch.zeros((), dtype=torch.int64)
        if not values.is_floating_point() and values.dtype != torch.uint8:
            return NotImplemented
        compared = values if dim is not None else values.reshape(-1)
        extreme = reduced(compared, -1 if dim is None else dim, True)
        is_extreme = compared == extreme
        if values.is_floating_point():
            is_extreme = torch.logical_or(is_extreme, torch.isnan(compared))
        position = torch.argmax(is_extreme.to(torch.int32), -1 if dim is None else dim, keepdim)
        return position.reshape([1] * values.dim()) if dim is None and keepdim else position

    return decomposed


def _extreme_of(
    reduced: Callable[..., Tensor], position: Callable[..., Tensor]
) -> Callable[..., Any]:
    """Return ``max`` or ``min`` along an axis: the extreme and its position."""

    def decomposed(values: Tensor, dim: int, keepdim: bool = False) -> Any:
        if not values.dim():  # ends torch-mlir's process
            return values.clone(), torch.zeros((), dtype=torch.int64)
        if values.dtype == torch.bool:
            extreme, positions = decomposed(values.to(torch.uint8), dim, keepdim)
            return extreme.to(torch.bool), positions
        if not values.is_floating_point() and values.dtype != torch.uint8:
            return NotImplemented
        return reduced(values, dim, keepdim), position(values, dim, keepdim)

    return decomposed


def _reduced_number(values: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """``amax`` or ``amin`` of a number, which ends torch-mlir's process, is the number."""
    return NotImplemented if values.dim() else values.clone()


def _softmax(*, is_logarithm: bool) -> Callable[..., Any]:
    """Return ``softmax`` or ``log_softmax`` of a number, whose lowering does not end."""

    def decomposed(values: Tensor, dim: int, half_to_float: bool) -> Any:
        if values.dim():
            return NotImplemented
        zero = values - values  # NaN for infinities
        return zero if is_logarithm else torch.exp(zero)

    return decomposed


def _running(
    values: Sequence[Tensor], dim: int, combined: Callable[..., Sequence[Tensor]]
) -> Sequence[Tensor]:
    """Scan an axis of static size: step ``n`` joins the results of ranges of ``2**n`` elements.

    Args:
        values: tensors of one shape.
        dim: the axis.
        combined: the results of two adjoining ranges, by those of the earlier and the later one.
    """
    size, length = values[0].shape[dim], 1
    while length < size:
        earlier, later = (
            [each.narrow(dim, start, size - length) for each in values] for start in (0, length)
        )
        joined = combined(earlier, later)
        values = [
            torch.cat([each.narrow(dim, 0, length), result], dim)
            for each, result in zip(values, joined, strict=True)
        ]
        length *= 2
    return values


def _running_extreme(is_extreme: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return ``cummax`` or ``cummin``: the extreme of each beginning of an axis, and its position.

    Of equal elements the last one counts, and NaN is beyond all numbers (``ReduceOps.cpp``).
    """

    def combined(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
        takes_later = is_extreme(later[0], earlier[0])
        if later[0].is_floating_point():
            is_number = torch.logical_not(torch.isnan(earlier[0]))
            takes_later = torch.logical_and(takes_later, is_number)
            takes_later = torch.logical_or(takes_later, torch.isnan(later[0]))
        return [torch.where(takes_later, b, a) for a, b in zip(earlier, later, strict=True)]

    def decomposed(values: Tensor, dim: int) -> Any:
        if not values.dim():
            return values.clone(), torch.zeros((), dtype=torch.int64)
        size = values.shape[dim]
        if isinstance(size, torch.SymInt):
            return NotImplemented
        shape = [-1 if axis == dim % values.dim() else 1 for axis in range(values.dim())]
        positions = torch.arange(size).reshape(shape).expand(values.shape)
        return _running((values, positions), dim, combined)

    return decomposed


def _running_logarithm(values: Tensor, dim: int) -> Any:
    """``logcumsumexp``: torch-mlir exponentiates the elements themselves, without a maximum.

    ``log(exp(a) + exp(b)) = max(a, b) + log1p(exp(-|a - b|))`` (``ReduceOps.cpp``).
    """
    if not values.dim() or is_dynamic(values.shape[dim]):
        return running_reduction(torch.logsumexp, -math.inf)(values, dim)

    def combined(earlier: Sequence[Tensor], later: Sequence[Tensor]) -> Sequence[Tensor]:
        largest = torch.maximum(earlier[0], later[0])
        least = torch.minimum(earlier[0], later[0])
        sum_ = largest + torch.log1p(torch.exp(least - largest))
        is_same_infinity = torch.logical_and(largest == least, torch.isinf(largest))
        return [torch.where(is_same_infinity, largest, sum_)]

    return _running([values], dim, combined)[0]


def _log_of_sum(values: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    """``logsumexp``: ``m + log(sum(exp(x - m)))``, where m is the maximum (``ReduceOps.cpp``).

    That of a number is the number: torch-mlir's process ends with an error.
    """
    floats = values if values.is_floating_point() else values.to(torch.float32)
    if not values.dim():
        return floats.clone()
    largest = torch.amax(floats, dim, True)
    largest = torch.where(torch.isinf(largest), 0.0, largest)
    total = torch.log(torch.sum(torch.exp(floats - largest), dim, True)) + largest
    return total if keepdim else torch.squeeze(total, dim)


def _running_product(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if not values.dim() or is_dynamic(values.shape[dim]):
        return running_reduction(torch.prod, 1)(values, dim, dtype=dtype)
    wide = dtype or (values.dtype if values.is_floating_point() else torch.int64)
    return _running([values.to(wide)], dim, lambda a, b: [a[0] * b[0]])[0]


def _element_of_order(values: Tensor, dim: int, keepdim: bool, position: Any) -> Any:
    """Return the element at a position of the sorted axis, and its index.

    The position is a number, or a tensor ``[..., 1, ...]``.
    """
    ordered, indices = torch.ops.aten.sort.default(values, dim, False)
    if isinstance(position, torch.Tensor):
        element, index = (torch.gather(each, dim, position) for each in (ordered, indices))
    else:
        element, index = (each.narrow(dim, position, 1) for each in (ordered, indices))
    return (element, index) if keepdim else (element.squeeze(dim), index.squeeze(dim))


def _median(*, ignores_nan: bool) -> Callable[..., Any]:
    """Return ``median`` or ``nanmedian``: the lower one of the middle elements (``Sorting.cpp``).

    The median of an axis with NaN is its first NaN.
    """

    def decomposed(values: Tensor, dim: int, keepdim: bool = False) -> Any:
        if not values.dim():
            return values.clone(), torch.zeros((), dtype=torch.int64)
        size = values.shape[dim]
        middle: Any = (size - 1) // 2
        if values.is_floating_point():
            nans = torch.isnan(values).to(torch.int64).sum(dim, keepdim=True)
            if ignores_nan:
                middle = torch.clamp((-nans + (size - 1)) // 2, min=0)
            else:
                middle = torch.where(nans > 0, -nans + size, middle)
        return _element_of_order(values, dim, keepdim, middle)

    return decomposed


def _of_all(along_axis: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of all elements, without the index."""
    return lambda values: along_axis(values.reshape(-1), 0)[0]


def _kth_value(values: Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not values.dim():
        return values.clone(), torch.zeros((), dtype=torch.int64)
    return _element_of_order(values, dim, keepdim, k - 1)


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


def ordering_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    median, nanmedian = (_median(ignores_nan=ignored) for ignored in (False, True))
    return {
        aten.sort.stable: _stable_sort,
        aten._log_softmax.default: _softmax(is_logarithm=True),
        aten._softmax.default: _softmax(is_logarithm=False),
        aten.amax.default: _reduced_number,
        aten.amin.default: _reduced_number,
        aten.argmax.default: _position_of(torch.amax),
        aten.argmin.default: _position_of(torch.amin),
        aten.max.dim: _extreme_of(torch.amax, torch.argmax),
        aten.min.dim: _extreme_of(torch.amin, torch.argmin),
        aten.cummax.default: _running_extreme(torch.ge),
        aten.cummin.default: _running_extreme(torch.le),
        aten.cumprod.default: _running_product,
        aten.logcumsumexp.default: _running_logarithm,
        aten.logsumexp.default: _log_of_sum,
        aten.median.default: _of_all(median),
        aten.median.dim: median,
        aten.nanmedian.default: _of_all(nanmedian),
        aten.nanmedian.dim: nanmedian,
        aten.kthvalue.default: _kth_value,
        aten.histc.default: _histc,
        aten.searchsorted.Tensor: _searchsorted,
        aten.bucketize.Tensor: _bucketize,
    }
