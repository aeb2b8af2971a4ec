"""Error statistics of each tensor that an operator computes, against a reference.

They are the number of equal values, the greatest difference in steps of the scale and as a real
number, and the signal-to-quantization-noise ratio (6 dB are one bit)::

    SQNR = 10 log10 (sum reference**2 / sum (ours - reference)**2)

NaN equals NaN, and an infinity equals itself; neither is part of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..numerics.element_types import Array


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor that an operator computes.

    Args:
        key: the key of the tensor in the values of a call.
        operator, name: the number and the name of the operator.
        tensor, type: the name and the element type in the file.
        scale, zero_point: quantization parameters; a scale of None for unquantized values.
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
    """Error statistics of a tensor.

    Args:
        operator, name, tensor, type: as in `ComparedTensor`.
        elements: the number of compared values, over all calls.
        equal: the number of equal values; against floats, of those within half a step.
        steps: the greatest difference in steps of the scale; None for floats.
        difference: the greatest difference of expressed values; infinite if only one of two values
            is infinite or NaN.
        sqnr: in decibels; infinite if all values are equal.
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


class ErrorStatistics:
    """Accumulates the error statistics of a tensor over calls."""

    def __init__(self, tensor: ComparedTensor) -> None:
        self.tensor = tensor
        self.shape: tuple[int, ...] = ()
        self.elements = self.equal = 0
        self.difference = self.signal = self.noise = 0.0

    def add(self, ours: Array, theirs: Array, *, is_expressed: bool) -> None:
        """Add the values of a call; `theirs` are expressed values, or of the type of `ours`."""
        theirs = theirs.reshape(ours.shape)
        self.shape = ours.shape
        left = self._expressed(ours)
        right = theirs.astype(np.float64) if is_expressed else self._expressed(theirs)
        self.elements += ours.size
        # f64 is too coarse for some 64-bit integers.
        are_integers = ours.dtype == theirs.dtype and ours.dtype.kind in "iu"
        is_equal = ours == theirs if are_integers else left == right
        is_equal = is_equal | (np.isnan(left) & np.isnan(right))
        with np.errstate(all="ignore"):
            noise = np.where(is_equal, 0.0, np.abs(left - right))
            noise[np.isnan(noise)] = np.inf  # only one of both is NaN
            half_step = (self.tensor.scale or 0.0) / 2
            self.equal += int((is_equal | (is_expressed & (noise <= half_step))).sum())
            self.difference = max(self.difference, float(noise.max(initial=0)))
            self.signal += float((right[np.isfinite(right)] ** 2).sum())
            self.noise += float((noise**2).sum())

    def _expressed(self, values: Array) -> Array:
        floats = values.astype(np.float64)
        if self.tensor.scale is None:
            return floats
        return (floats - self.tensor.zero_point) * self.tensor.scale

    def layer(self) -> Layer:
        """Return the statistics."""
        tensor = self.tensor
        sqnr = math.inf
        if self.noise:
            ratio = 0.0 if math.isinf(self.noise) else self.signal / self.noise
            sqnr = 10 * math.log10(ratio) if ratio else -math.inf
        steps = None if tensor.scale is None else self.difference / tensor.scale
        return Layer(
            tensor.operator, tensor.name, tensor.tensor, tensor.type, self.shape, self.elements,
            self.equal, steps, self.difference, sqnr,
        )  # fmt: skip


def compare_tensors(
    tensors: Sequence[ComparedTensor],
    ours: Sequence[Mapping[str, Array]],
    theirs: Sequence[Mapping[str, Array]],
    *,
    is_expressed: bool,
) -> list[Layer]:
    """Compare the values of tensors in each call; `theirs` may be expressed values."""
    statistics = [ErrorStatistics(each) for each in tensors]
    for left, right in zip(ours, theirs, strict=True):
        for each in statistics:
            key = each.tensor.key
            each.add(left[key], right[key], is_expressed=is_expressed)
    return [each.layer() for each in statistics]


# -- formats --------------------------------------------------------------------------------------


def to_json(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Return the layers as JSON; infinite numbers are null, so also the SQNR of equal values."""
    return [
        asdict(layer)
        | {"shape": list(layer.shape)}
        | {
            name: None
            for name in ("steps", "difference", "sqnr")
            if not math.isfinite(getattr(layer, name) or 0)
        }
        for layer in layers
    ]


_MAX_SQNR_DB = 120.0
"""The SQNR in dB that is shown for equal tensors: above every SQNR of f32."""


def to_model_explorer(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return node data for Model Explorer: the SQNR of each output tensor, from red to green.

    Source: Model Explorer, ``node_data_builder.py``.
    """
    results = {
        layer.tensor: {"value": round(min(max(layer.sqnr, -_MAX_SQNR_DB), _MAX_SQNR_DB), 2)}
        for layer in layers
    }
    gradient = [
        {"stop": 0, "bgColor": "#d73027"},
        {"stop": 0.5, "bgColor": "#fee08b"},
        {"stop": 1, "bgColor": "#1a9850"},
    ]
    return {"main": {"name": "SQNR (dB)", "results": results, "gradient": gradient}}
