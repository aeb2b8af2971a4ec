"""A model beside a reference, tensor by tensor.

Of each tensor that an operator computes: how many storage values are equal, the greatest difference
in steps of its scale and as a real, and the ratio of signal to noise, of which 6 dB are one bit::

    SQNR = 10 log10 (sum reference**2 / sum (ours - reference)**2)

NaN and NaN are equal, and so are infinities of one sign; neither is part of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..numerics.element_types import Array

__all__ = ["Layer", "Sums", "Watched", "compared", "to_json", "to_model_explorer"]


@dataclass(frozen=True)
class Watched:
    """A tensor that is compared.

    Args:
        key: by which calls have it.
        operator: the number of the operator that computes it.
        name: of the operator.
        tensor: its name.
        type: its element type as in the file.
        scale, zero_point: how storage values stand for reals; None where values are reals.
    """

    key: str
    operator: int
    name: str
    tensor: str
    type: str
    scale: float | None = None
    zero_point: int = 0


@dataclass(frozen=True)
class Layer:
    """What one tensor is beside the reference.

    Args:
        operator: the number of the operator that computes it.
        name: of the operator.
        tensor: the name of the tensor.
        type: its element type as in the file.
        shape: its extents.
        elements: how many values were compared, over all calls.
        equal: how many of them are the same; beside reals, how many are within half a step.
        steps: the greatest difference in steps of the scale; None of floats.
        difference: the greatest difference of reals; infinity where one is infinite or no number,
            and the other is not.
        sqnr: in decibels; infinity where all reals are equal.
    """

    operator: int
    name: str
    tensor: str
    type: str
    shape: tuple[int, ...]
    elements: int
    equal: int
    steps: float | None
    difference: float
    sqnr: float


class Sums:
    """What is counted of a tensor.

    Args:
        watched: the tensor.
    """

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.shape: tuple[int, ...] = ()
        self.elements = self.equal = 0
        self.difference = self.signal = self.noise = 0.0

    def add(self, ours: Array, theirs: Array, *, is_real: bool) -> None:
        """Count the values of a call; `theirs` are reals, or what `ours` are."""
        theirs = theirs.reshape(ours.shape)
        self.shape = ours.shape
        left = self._reals(ours)
        right = theirs.astype(np.float64) if is_real else self._reals(theirs)
        self.elements += ours.size
        # Reals of f64 are too coarse for some integers of 64 bits.
        are_integers = ours.dtype == theirs.dtype and ours.dtype.kind in "iu"
        same = ours == theirs if are_integers else left == right
        same = same | (np.isnan(left) & np.isnan(right))
        with np.errstate(all="ignore"):
            noise = np.where(same, 0.0, np.abs(left - right))
            noise[np.isnan(noise)] = np.inf  # one is no number, and the other is
            half_step = (self.watched.scale or 0.0) / 2
            self.equal += int((same | (is_real & (noise <= half_step))).sum())
            self.difference = max(self.difference, float(noise.max(initial=0)))
            self.signal += float((right[np.isfinite(right)] ** 2).sum())
            self.noise += float((noise**2).sum())

    def _reals(self, values: Array) -> Array:
        reals = values.astype(np.float64)
        if self.watched.scale is None:
            return reals
        return (reals - self.watched.zero_point) * self.watched.scale

    def layer(self) -> Layer:
        """The tensor, as it is shown."""
        watched = self.watched
        sqnr = math.inf
        if self.noise:
            ratio = 0.0 if math.isinf(self.noise) else self.signal / self.noise
            sqnr = 10 * math.log10(ratio) if ratio else -math.inf
        steps = None if watched.scale is None else self.difference / watched.scale
        return Layer(
            watched.operator, watched.name, watched.tensor, watched.type, self.shape,
            self.elements, self.equal, steps, self.difference, sqnr,
        )  # fmt: skip


def compared(
    tensors: Sequence[Watched],
    ours: Sequence[Mapping[str, Array]],
    theirs: Sequence[Mapping[str, Array]],
    *,
    is_real: bool = False,
) -> list[Layer]:
    """Compare tensors, which each call has by their keys.

    Args:
        tensors: what to compare.
        ours, theirs: of each call.
        is_real: theirs are reals, whatever ours are.
    """
    sums = [Sums(each) for each in tensors]
    for left, right in zip(ours, theirs, strict=True):
        for each in sums:
            each.add(left[each.watched.key], right[each.watched.key], is_real=is_real)
    return [each.layer() for each in sums]


# -- for other tools ------------------------------------------------------------------------------


def to_json(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """The layers as JSON; what is infinite is null: the SQNR where all values are equal, too."""
    return [
        {
            "operator": layer.operator,
            "name": layer.name,
            "tensor": layer.tensor,
            "type": layer.type,
            "shape": list(layer.shape),
            "elements": layer.elements,
            "equal": layer.equal,
            "steps": _finite(layer.steps),
            "difference": _finite(layer.difference),
            "sqnr": _finite(layer.sqnr),
        }
        for layer in layers
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_BEST = 120.0  # dB, for layers that are equal: more than f32 can differ by


def to_model_explorer(layers: Sequence[Layer]) -> dict[str, Any]:
    """Node data of Model Explorer: the SQNR of each output tensor, red to green.

    Source: Model Explorer, ``node_data_builder.py``.
    """
    results = {
        layer.tensor: {"value": round(min(max(layer.sqnr, -_BEST), _BEST), 2)} for layer in layers
    }
    gradient = [
        {"stop": 0, "bgColor": "#d73027"},
        {"stop": 0.5, "bgColor": "#fee08b"},
        {"stop": 1, "bgColor": "#1a9850"},
    ]
    return {"main": {"name": "SQNR (dB)", "results": results, "gradient": gradient}}
