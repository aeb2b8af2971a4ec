"""Linear models, support vectors and preprocessing of ``ai.onnx.ml``.

Features are rows ``[N, F]`` of any type of numbers; most operators compute in f32, as ONNX Runtime
does. Texts and maps are not lowered.

Source: ONNX, operators of ``ai.onnx.ml``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....numerics.array_functions import convert, take
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, AnyArray, Array
from ..call import Call, Operand, importer
from ..reading.model import Tensor
from .scores import (
    feature_rows,
    first_greatest,
    floats,
    integer_labels,
    logistic,
    post_transformed,
)


def _linear(call: Call, rows: AnyArray, count: int) -> AnyArray:
    """Compute ``rows @ coefficients + intercepts`` for several targets."""
    weights, bias = floats(call, "coefficients"), floats(call, "intercepts")
    if count < 1 or weights.size != count * rows.shape[1] or bias.size not in (0, count):
        raise call.error(
            f"has {weights.size} coefficients and {bias.size} intercepts for {count} targets of "
            f"{rows.shape[1]} features"
        )
    scores = contract(rows, weights.reshape(count, -1), ([1], [1]))
    return scores + bias if bias.size else scores


@importer("ai.onnx.ml.LinearRegressor")
def linear_regressor(call: Call) -> AnyArray:
    """LinearRegressor-1: weighted sums of the features."""
    scores = _linear(call, feature_rows(call), call.attribute("targets", 1))
    return post_transformed(call, scores, call.attribute("post_transform", "NONE"))


@importer("ai.onnx.ml.LinearClassifier")
def linear_classifier(call: Call) -> list[AnyArray]:
    """LinearClassifier-1: the label with the greatest weighted sum, and all scores."""
    labels = integer_labels(call, "classlabels_ints", "classlabels_strings")
    transform, rows = call.attribute("post_transform", "NONE"), feature_rows(call)
    call.attribute("multi_class", 0)  # describes how the model was trained
    count = floats(call, "coefficients").size // max(rows.shape[1], 1)
    if len(labels) < 2 or count not in (1, len(labels)) or (count == 1 and len(labels) != 2):
        raise call.error(f"has {len(labels)} labels and coefficients for {count} classes")
    scores = _linear(call, rows, count)
    if count > 1:
        best = first_greatest(scores)
        label = take(np.array(labels, np.int64), best, 0)
        return [label, post_transformed(call, scores, transform)]
    if transform not in ("NONE", "LOGISTIC"):
        raise call.unsupported(
            f"has one score for two classes and the post_transform {transform}; give both classes "
            "coefficients"
        )
    own = scores[:, 0]
    label = np.where(own > np.float32(0), np.int64(labels[1]), np.int64(labels[0]))
    both = [np.float32(1) - own, own]
    if transform == "LOGISTIC":
        both = [logistic(-own), logistic(own)]
    return [label, np.stack(both, axis=-1)]


@importer("ai.onnx.ml.Scaler")
def scaler(call: Call) -> AnyArray:
    """Scaler-1: ``(x - offset) * scale``, of all features or of each."""
    value = call.array(0).astype(np.float32)
    scale, offset = floats(call, "scale"), floats(call, "offset")
    width = value.shape[-1] if value.ndim else 1
    if scale.size not in (1, width) or offset.size not in (1, width):
        raise call.error(f"has {scale.size} scales and {offset.size} offsets for {width} features")
    return (value - offset) * scale


@importer("ai.onnx.ml.Normalizer")
def normalizer(call: Call) -> AnyArray:
    """Normalizer-1: rows divided by their greatest element, L1 norm or L2 norm."""
    value, norm = feature_rows(call), call.attribute("norm", "MAX")
    if norm == "L1":
        size = np.abs(value).sum(axis=1, dtype=np.float32, keepdims=True)
    elif norm == "L2":
        size = np.sqrt((value * value).sum(axis=1, dtype=np.float32, keepdims=True))
    else:
        size = value.max(axis=1, keepdims=True)
    is_zero = size == np.float32(0)
    return (value / np.where(is_zero, np.float32(1), size)).reshape(tuple(call.array(0).shape))


@importer("ai.onnx.ml.Binarizer")
def binarizer(call: Call) -> Operand:
    """Binarizer-1: 1 where the input is greater than a threshold, else 0."""
    value = call.array(0)
    limit = np.asarray(call.attribute("threshold", 0.0), value.dtype)
    one, zero = np.ones((), value.dtype), np.zeros((), value.dtype)
    return call.typed(np.where(value > limit, one, zero))


@importer("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(call: Call) -> Operand:
    """ArrayFeatureExtractor-1: elements along the last axis."""
    value, positions = call.array(0), convert(call.array(1), I32).reshape(-1)
    shape = value.shape if value.ndim > 1 else (1, *value.shape)
    result = take(value.reshape(shape), positions, len(shape) - 1)
    return call.typed(result)


@importer("ai.onnx.ml.Imputer")
def imputer(call: Call) -> Operand:
    """Imputer-1: one number, or NaN, replaced by another one, of all features or of each."""
    value = call.array(0)
    is_float = value.dtype.kind == "f"
    names = ("imputed_value_floats", "replaced_value_float", 0.0)
    if not is_float:
        names = ("imputed_value_int64s", "replaced_value_int64", 0)
    replacements = np.array(call.attribute(names[0]) or [], value.dtype)
    old = call.attribute(names[1], names[2])
    width = value.shape[-1] if value.ndim else 1
    if replacements.size not in (1, width):
        raise call.error(f"has {replacements.size} values for {width} features")
    is_old = (
        value != value if is_float and math.isnan(old) else value == np.asarray(old, value.dtype)
    )
    return call.typed(np.where(is_old, replacements, value))


@importer("ai.onnx.ml.FeatureVectorizer")
def feature_vectorizer(call: Call) -> AnyArray:
    """FeatureVectorizer-1: the columns of all inputs side by side, f32."""
    widths, blocks = call.attribute("inputdimensions", []), []
    for index in range(len(call.inputs)):
        value = call.array(index).astype(np.float32)
        value = value.reshape((1, -1)) if value.ndim == 1 else value
        blocks.append(value.reshape((value.shape[0], -1)))
    if [each.shape[1] for each in blocks] != list(widths):
        raise call.error(f"has the inputdimensions {widths}, and columns of other numbers")
    return np.concatenate(blocks, axis=1)


@importer("ai.onnx.ml.OneHotEncoder")
def one_hot_encoder(call: Call) -> AnyArray:
    """OneHotEncoder-1: 1 at the category of an integer, along a new last axis, else 0."""
    categories = integer_labels(call, "cats_int64s", "cats_strings")
    if not call.attribute("zeros", 1):
        raise call.unsupported(
            "has zeros = 0, which makes an unknown category an error of the call; export it with "
            "zeros = 1"
        )
    value = call.array(0)
    numbers = np.array(categories, np.int64).astype(value.dtype)
    is_it = value[..., None] == numbers
    return convert(is_it, I32).astype(np.float32)


@importer("ai.onnx.ml.LabelEncoder")
def label_encoder(call: Call) -> AnyArray:
    """LabelEncoder-4: the value of a key that a number equals, or a default."""
    if any(call.attribute(name) for name in ("keys_strings", "values_strings", "classes_strings")):
        raise call.unsupported("maps texts, which programs do not have; map them before the call")
    if call.optional(0) is not None and call.attribute("default_string") not in (None, "_Unused"):
        raise call.unsupported("has a text as its default")
    keys, values = _table(call, "keys"), _table(call, "values")
    if keys.size != values.size or not keys.size:
        raise call.error(f"has {keys.size} keys and {values.size} values")
    default = _default(call, values.dtype)
    value = call.array(0)
    own = keys.astype(value.dtype)
    is_key = value[..., None] == own
    if value.dtype.kind == "f" and np.isnan(own).any():
        is_key = is_key | ((value != value)[..., None] & np.isnan(own))
    positions = np.where(is_key, np.arange(keys.size, dtype=np.int32), np.int32(keys.size))
    table = np.concatenate([values, default.reshape(1)])
    position = positions.min(axis=-1)
    return take(table, position.reshape(-1), 0).reshape(tuple(value.shape))


def _table(call: Call, name: str) -> Array:
    tensor = call.attribute(f"{name}_tensor")
    if isinstance(tensor, Tensor):
        return tensor.data.reshape(-1)
    integers, reals = call.attribute(f"{name}_int64s"), floats(call, f"{name}_floats")
    return np.array(integers, np.int64) if integers else reals


def _default(call: Call, dtype: Any) -> Array:
    tensor = call.attribute("default_tensor")
    integer, real = call.attribute("default_int64", -1), call.attribute("default_float", -0.0)
    if isinstance(tensor, Tensor):
        return tensor.data.reshape(-1)[:1].astype(dtype)
    return np.array(real if np.dtype(dtype).kind == "f" else integer, dtype)
