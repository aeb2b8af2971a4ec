"""Decompositions of ``view`` and ``repeat`` of dynamic shapes, with explicit sizes.

torch-mlir infers a size of -1 by a division, also in its own decomposition of ``repeat``, and the
divisor is 0 for empty tensors. Sizes that the shape takes over need no division.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def reshaping_operators() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    aten = torch.ops.aten
    return {
        aten.view.default: _view,
        aten.repeat.default: _repeat,
        aten.permute_copy.default: torch.permute,
        aten.view_copy.default: torch.reshape,
    }


def _view(values: torch.Tensor, shape: Sequence[Any]) -> Any:
    """View with the inferred size: the quotient of the sizes that are not taken over."""
    if _is_static(values) or not any(statically_known_true(size == -1) for size in shape):
        return NotImplemented
    remaining, divisor = list(values.shape), []
    inferred = next(axis for axis, size in enumerate(shape) if statically_known_true(size == -1))
    for axis, size in enumerate(shape):
        if axis == inferred:
            continue
        equal = (n for n, each in enumerate(remaining) if statically_known_true(each == size))
        index = next(equal, None)
        if index is None:
            divisor.append(size)
        else:
            del remaining[index]
    size = math.prod(remaining)
    if divisor:
        size = size // math.prod(divisor)
    return values.view([size if axis == inferred else each for axis, each in enumerate(shape)])


def _repeat(values: torch.Tensor, repeats: Sequence[Any]) -> Any:
    """Repeat along new axes, each before an axis of the tensor, and join both."""
    if _is_static(values):
        return NotImplemented
    sizes = [*[1] * (len(repeats) - values.dim()), *values.shape]
    pairs = list(zip(repeats, sizes, strict=True))
    spread = values.reshape([each for size in sizes for each in (1, size)])
    expanded = spread.expand([each for pair in pairs for each in pair])
    return expanded.reshape([repeat * size for repeat, size in pairs])


def _is_static(values: torch.Tensor) -> bool:
    return not any(isinstance(size, torch.SymInt) for size in values.shape)
