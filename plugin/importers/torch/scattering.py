"""Decompositions of scatters and bags that torch-mlir 20261001 lacks.

A sum of elements at indices is ``scatter_add``; extremes and products with the values are
`transforms/torch/direct_operators.py`'s.

Source of the semantics: ``ScatterGatherKernel.cpp`` and ``EmbeddingBag.cpp`` in
``aten/src/ATen/native`` of PyTorch 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor

_MEAN, _MAX = 1, 2
"""PyTorch's numbers of the reductions of a bag; 0 is the sum."""


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else int(torch.iinfo(dtype).min)


def _highest(dtype: torch.dtype) -> float:
    return math.inf if dtype.is_floating_point else int(torch.iinfo(dtype).max)


_IDENTITIES: dict[str, Callable[[torch.dtype], float]] = {
    "amax": _lowest,
    "amin": _highest,
    "prod": lambda dtype: 1,
}
"""The number that changes no result."""


def _scatter_reduce(
    values: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Reduce the elements of a source that an index assigns to a position of an axis."""
    sizes = (*values.shape, *index.shape, *source.shape)
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return NotImplemented
    if not values.dim():
        scalar, own_index, element = (each.reshape(1) for each in (values, index, source))
        result = torch.scatter_reduce(
            scalar, 0, own_index, element, reduce, include_self=include_self
        )
        return result.reshape(())
    dim = dim % values.dim()
    if not index.numel():
        return values.clone()
    is_narrower = source.shape != index.shape
    for axis, size in enumerate(index.shape):
        source = source.narrow(axis, 0, size)
        rest = values.shape[axis] - size
        if axis != dim and rest:  # the index leaves the end of this axis out
            head = torch.scatter_reduce(
                values.narrow(axis, 0, size), dim, index, source, reduce, include_self=include_self
            )
            return torch.cat([head, values.narrow(axis, size, rest)], axis)
    if reduce in _IDENTITIES and include_self:
        if not is_narrower:
            return NotImplemented
        return torch.scatter_reduce(values, dim, index, source, reduce)
    ones = torch.ones(source.shape, dtype=torch.int64)
    counts = torch.zeros(values.shape, dtype=torch.int64).scatter_add(dim, index, ones)
    if not include_self:
        identity = _IDENTITIES[reduce](values.dtype) if reduce in _IDENTITIES else 0
        values = torch.where(counts > 0, torch.full_like(values, identity), values)
    if reduce in _IDENTITIES:
        return torch.scatter_reduce(values, dim, index, source, reduce)
    total = values.scatter_add(dim, index, source)
    if reduce == "sum":
        return total
    divisor = torch.clamp(counts + int(include_self), min=1).to(values.dtype)
    mode = None if values.is_floating_point() else "floor"
    return torch.div(total, divisor, rounding_mode=mode)


_NAMES = {"add": "sum", "multiply": "prod"}
"""The names of ``scatter_reduce`` for the reductions of ``scatter``."""


def _scatter(values: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    return torch.scatter_reduce(values, dim, index, source, _NAMES[reduce])


def _scatter_number(values: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Any:
    source = torch.full(index.shape, value, dtype=values.dtype)
    return torch.scatter_reduce(values, dim, index, source, _NAMES[reduce])


def _index_reduce(
    values: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Reduce whole slices, by an index of one axis."""
    if not values.dim():
        return NotImplemented
    shape = [-1 if axis == dim % values.dim() else 1 for axis in range(values.dim())]
    wide = index.to(torch.int64).reshape(shape).expand(source.shape)
    return torch.scatter_reduce(values, dim, wide, source, reduce, include_self=include_self)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Reduce the rows of a table by bags, which begin at offsets; an empty bag is 0.

    Returns:
        The results ``[bags, D]``, the bag of each index, the number of rows of each bag, and
        positions of maxima, which only gradients use and which are 0 here.
    """
    positions = torch.arange(indices.shape[0])
    is_counted = indices != padding_idx
    if include_last_offset:  # it is the end of the last bag
        is_counted = torch.logical_and(is_counted, positions < offsets[-1])
        offsets = offsets[:-1]
    bags = torch.arange(offsets.shape[0])
    bag_of = (positions[:, None] >= offsets).to(torch.int64).sum(1) - 1
    is_in_bag = torch.logical_and(bag_of == bags[:, None], is_counted)  # [bags, indices]
    counts = is_in_bag.to(torch.int64).sum(1)
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    zero = torch.zeros((), dtype=rows.dtype)
    if mode == _MAX:
        lowest = torch.full((), _lowest(rows.dtype), dtype=rows.dtype)
        largest = torch.where(is_in_bag[..., None], rows, lowest).amax(1)
        result = torch.where(counts[:, None] > 0, largest, zero)
    else:
        rows = torch.where(is_counted[:, None], rows, zero)
        targets = bag_of[:, None].expand(rows.shape)
        result = torch.zeros(bags.shape[0], weight.shape[1], dtype=rows.dtype)
        result = result.scatter_add(0, targets, rows)
        if mode == _MEAN:
            result = result / torch.clamp(counts, min=1)[:, None].to(rows.dtype)
    return result, bag_of, counts, torch.zeros_like(counts)


def scattering_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.scatter_reduce.two: _scatter_reduce,
        aten.scatter.reduce: _scatter,
        aten.scatter.value_reduce: _scatter_number,
        aten.index_reduce.default: _index_reduce,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
    }
