"""Scores of classical models: labels and transformations of their sums.

Sources: ONNX, ``ai.onnx.ml``; ONNX Runtime, ``ml_common.h``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....numerics.element_types import AnyArray, Array
from ..call import Call
from ..reading.model import Tensor

_NEARLY_ZERO = 1e-7
"""SOFTMAX_ZERO treats scores up to this magnitude as 0."""


def feature_rows(call: Call, *, keeps_f64: bool = False) -> AnyArray:
    """Return the features of each row, f32; f64 stays if `keeps_f64`."""
    value = call.array(0)
    value = value.reshape((1, -1)) if value.ndim == 1 else value
    if value.ndim != 2:
        raise call.error(f"has features of shape {list(value.shape)}, expected [rows, features]")
    return value if keeps_f64 and value.dtype == np.float64 else value.astype(np.float32)


def listed(call: Call, name: str) -> list[Any]:
    """Return an attribute that is a list, or a tensor of its elements; none if it is absent."""
    value = call.attribute(name) or []
    return list(value.data.reshape(-1).tolist() if isinstance(value, Tensor) else value)


def floats(call: Call, name: str) -> Array:
    """Return an attribute that is a list of floats; none if it is absent."""
    return np.array(listed(call, name), np.float32)


def integer_labels(call: Call, integers: str, strings: str) -> list[int]:
    """Return the labels of classes, which must be integers.

    Raises:
        UnsupportedError: they are texts.
    """
    if call.attribute(strings):
        raise call.unsupported(
            "has texts as labels, which programs do not have; train the model with integer labels"
        )
    return listed(call, integers)


def logistic(scores: AnyArray) -> AnyArray:
    """``1 / (1 + exp(-x))``, of the magnitude, as ONNX Runtime computes it."""
    one = np.asarray(1, scores.dtype)
    positive = one / (one + np.exp(-np.abs(scores)))
    return np.where(scores < 0, one - positive, positive)


def first_greatest(scores: AnyArray) -> AnyArray:
    """Return the first position of the greatest element of each row, i32."""
    positions = np.arange(scores.shape[1], dtype=np.int32)
    is_best = scores == scores.max(axis=1, keepdims=True)
    return np.where(is_best, positions, np.int32(scores.shape[1] - 1)).min(axis=1)


def post_transformed(call: Call, scores: AnyArray, name: str) -> AnyArray:
    """Apply a post_transform along the last axis."""
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return logistic(scores)
    if name == "PROBIT":
        return _probit(scores)
    if name not in ("SOFTMAX", "SOFTMAX_ZERO"):
        raise call.unsupported(
            f"has the post_transform {name!r}, which is not lowered; leave it out, and transform "
            "the scores after the call"
        )
    most = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - most)
    if name == "SOFTMAX":
        return powers / powers.sum(axis=-1, dtype=scores.dtype, keepdims=True)
    is_zero = np.abs(scores) <= np.asarray(_NEARLY_ZERO, scores.dtype)
    nonzero_powers = np.where(is_zero, np.zeros((), scores.dtype), powers)
    total = nonzero_powers.sum(axis=-1, dtype=scores.dtype, keepdims=True)
    return np.where(is_zero, scores * np.exp(-most), powers) / total


_A = 0.147
"""The constant of Winitzki's approximation of the inverse error function."""


def _probit(scores: AnyArray) -> AnyArray:
    """``sqrt(2) * erfinv(2 x - 1)`` by Winitzki's approximation, as ONNX Runtime computes it."""
    one, two = (np.asarray(n, scores.dtype) for n in (1, 2))
    centered = two * scores - one
    log = np.log((one - centered) * (one + centered))
    half = np.asarray(2 / (3.14159 * _A), scores.dtype) + np.asarray(0.5, scores.dtype) * log
    root = np.sqrt(half * half - np.asarray(1 / _A, scores.dtype) * log)
    magnitude = np.sqrt(root - half) * np.asarray(1.41421356, scores.dtype)
    return np.where(centered < 0, -magnitude, magnitude)
