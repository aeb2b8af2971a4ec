"""Decompositions of ``upsample_nearest`` by a whole factor along dynamic axes.

PyTorch's decomposition divides the symbolic size by the size of the result, a quotient that
torch-mlir does not import. With a constant factor, element ``i`` of an axis is element
``floor((i + offset) / factor)`` of the input, computed with the reciprocal of the factor in f32.

Source: ``compute_scales_value`` in ``aten/src/ATen/native/UpSample.h`` of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def resizing_operators(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator; those of `table` apply to static sizes."""
    aten = torch.ops.aten
    operators = {
        **{getattr(aten, f"upsample_nearest{rank}d").vec: 0.0 for rank in (1, 2, 3)},
        **{getattr(aten, f"_upsample_nearest_exact{rank}d").vec: 0.5 for rank in (1, 2, 3)},
    }
    return {each: _nearest(offset, table[each]) for each, offset in operators.items()}


def _nearest(offset: float, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decomposition of an operator; `otherwise` is that of static sizes."""

    def decomposed(
        values: torch.Tensor, sizes: Sequence[Any] | None, factors: Sequence[float] | None
    ) -> Any:
        extents = values.shape[2:]
        is_dynamic = any(isinstance(size, torch.SymInt) for size in extents)
        if not is_dynamic or factors is None or any(factor != int(factor) for factor in factors):
            return otherwise(values, sizes, factors)
        indices: list[torch.Tensor | None] = [None, None]
        for axis, (extent, factor) in enumerate(zip(extents, factors, strict=True)):
            along = torch.arange(extent * int(factor), dtype=torch.float32)
            index = ((along + offset) * (1.0 / factor)).to(torch.int64)
            index = torch.clamp(index, max=extent - 1)
            indices.append(index.reshape([-1] + [1] * (len(extents) - 1 - axis)))
        return torch.ops.aten.index.Tensor(values, indices)

    return decomposed
