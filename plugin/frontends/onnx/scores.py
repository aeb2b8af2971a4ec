"""Scores of classical models: labels and transformations of the sums that a model computes.

Sources: ONNX, ``ai.onnx.ml``; ONNX Runtime, ``ml_common.h``.
"""

from __future__ import annotations

import numpy as np

from ...errors import UnsupportedError
from ...numerics.element_types import AnyArray
from .call import Call

__all__ = ["integer_labels", "post_transformed", "texts"]

_NEARLY_ZERO = 1e-7
"""The magnitude up to which SOFTMAX_ZERO takes a score for 0."""


def texts(call: Call, name: str) -> list[str]:
    """Return an attribute that is a list of texts."""
    values = call.attribute(name) or []
    return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in values]


def integer_labels(call: Call, integers: str, strings: str) -> list[int]:
    """Return the labels of classes, which must be integers.

    Raises:
        UnsupportedError: they are texts.
    """
    if texts(call, strings):
        raise call.error(
            "has texts as labels, which programs do not have; train the model with integer labels",
            UnsupportedError,
        )
    return list(call.attribute(integers) or [])


def logistic(scores: AnyArray) -> AnyArray:
    """``1 / (1 + exp(-x))``, of the magnitude, as ONNX Runtime computes it."""
    one = np.asarray(1, scores.dtype)
    positive = one / (one + np.exp(-np.abs(scores)))
    return np.where(scores < 0, one - positive, positive)


def post_transformed(call: Call, scores: AnyArray, name: str) -> AnyArray:
    """Apply a post_transform along the last axis."""
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return logistic(scores)
    if name not in ("SOFTMAX", "SOFTMAX_ZERO"):
        raise call.error(
            f"has the post_transform {name!r}, which is not lowered; leave it out, and transform "
            "the scores after the call",
            UnsupportedError,
        )
    most = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - most)
    if name == "SOFTMAX":
        return powers / powers.sum(axis=-1, dtype=scores.dtype, keepdims=True)
    is_zero = np.abs(scores) <= np.asarray(_NEARLY_ZERO, scores.dtype)
    counted = np.where(is_zero, np.zeros((), scores.dtype), powers)
    total = counted.sum(axis=-1, dtype=scores.dtype, keepdims=True)
    return np.where(is_zero, scores * np.exp(-most), powers) / total
