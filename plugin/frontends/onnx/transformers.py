"""ONNX Runtime's operators of transformers: normalizations, activations, attention.

They are formulas of floats, of operands that may be dequantized; sums are f32, also of f16.

Source: ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...numerics.array_functions import contract, convert, take
from ...numerics.element_types import F32, I32, AnyArray, ElementType
from .call import Call, Operand, Typed, kernel
from .contractions import matmul, per_row, summed_product
from .reals import Quantized

__all__: list[str] = []


def _wide(call: Call, index: int) -> AnyArray:
    """An input as f32."""
    return convert(call.array(index), F32)


def _optional(call: Call, index: int) -> AnyArray:
    return None if call.optional(index) is None else _wide(call, index)


def _like(call: Call, index: int, value: AnyArray) -> AnyArray:
    """A result of the type of an input."""
    return convert(value, ElementType.of_dtype(np.dtype(call.array(index).dtype)))


def _refuse(call: Call, *inputs: tuple[int, str]) -> None:
    """Raise UnsupportedError for inputs that are there."""
    for index, name in inputs:
        if call.optional(index) is not None:
            raise call.error(f"has {call.input(index)} as {name}", UnsupportedError)


# -- activations ----------------------------------------------------------------------------------


def _sigmoid(x: AnyArray) -> AnyArray:
    one = np.float32(1)
    return one / (one + np.exp(-x))


def _gelu(call: Call, x: AnyArray) -> AnyArray:
    scaled = x * np.float32(math.sqrt(0.5))
    (found,) = call.graph.apply(call, "Erf", [Operand("", "FLOAT", scaled)])
    return x * np.float32(0.5) * (np.float32(1) + found.value)


@kernel("com.microsoft.Gelu", "com.microsoft.BiasGelu")
def gelu(call: Call) -> AnyArray:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` of ``X``, or of ``A + B``."""
    x, bias = _wide(call, 0), _optional(call, 1)
    return _like(call, 0, _gelu(call, x if bias is None else x + bias))


@kernel("com.microsoft.FastGelu")
def fast_gelu(call: Call) -> AnyArray:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` of ``X + bias``."""
    x, bias = _wide(call, 0), _optional(call, 1)
    x = x if bias is None else x + bias
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return _like(call, 0, x * np.float32(0.5) * (np.float32(1) + np.tanh(inner)))


@kernel("com.microsoft.QuickGelu")
def quick_gelu(call: Call) -> AnyArray:
    """``x * sigmoid(alpha * x)``."""
    x = _wide(call, 0)
    return _like(call, 0, x * _sigmoid(np.float32(call.attribute("alpha", 1.702)) * x))


@kernel("com.microsoft.BiasAdd")
def bias_add(call: Call) -> AnyArray:
    """``X + bias + skip``."""
    return call.array(0) + call.array(1) + call.array(2)


_ACTIVATIONS: dict[str, Callable[[AnyArray, float], AnyArray]] = {
    "": lambda x, alpha: x,
    "Relu": lambda x, alpha: np.maximum(x, np.float32(0)),
    "Tanh": lambda x, alpha: np.tanh(x),
    "Sigmoid": lambda x, alpha: _sigmoid(x),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, x * np.float32(alpha), x),
}


def _activated(call: Call, value: AnyArray, alpha: float) -> AnyArray:
    name = call.attribute("activation", "")
    if name not in _ACTIVATIONS:
        raise call.error(f"has the activation {name!r}", UnsupportedError)
    return _ACTIVATIONS[name](value, alpha)


# -- products -------------------------------------------------------------------------------------


@kernel("com.microsoft.FusedMatMul")
def fused_matmul(call: Call) -> Any:
    """``alpha * A @ B``, with the last two axes exchanged, or the first moved before the last."""
    sides = []
    for index, letter in ((0, "A"), (1, "B")):
        value = call.input(index).value
        order = list(range(len(value.shape)))
        if call.attribute(f"transBatch{letter}", 0) and len(order) > 2:
            order = [*order[1:-1], 0, order[-1]]
        if call.attribute(f"trans{letter}", 0) and len(order) > 1:
            order[-2:] = [order[-1], order[-2]]
        is_quantized = isinstance(value, Quantized)
        sides.append(
            value.transposed(order) if is_quantized else call.floats(value).transpose(order)
        )
    alpha = np.float32(call.attribute("alpha", 1.0))
    total = None
    if all(isinstance(side, Quantized) for side in sides) and alpha == 1:
        total = summed_product(call, sides[0], sides[1])
    if total is not None:
        return total
    call.with_floats("an operand is float, or alpha is not 1")
    left, right = (call.floats(side) for side in sides)
    product = matmul(call, left, right, np.dtype(left.dtype))
    return product if alpha == 1 else product * alpha.astype(left.dtype)


@kernel("com.microsoft.FusedGemm")
def fused_gemm(call: Call) -> AnyArray:
    """``Gemm`` and an activation."""
    attributes = {
        name: call.attribute(name, default)
        for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))
    }
    inputs = [call.optional(index) for index in range(3)]
    (found,) = call.graph.apply(call, "Gemm", inputs, **attributes)
    return _activated(call, call.floats(found.value), call.attribute("activation_alpha", 0.01))


@kernel("com.microsoft.FusedConv")
def fused_conv(call: Call) -> AnyArray:
    """``Conv``, the sum with ``Z``, and an activation."""
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {name: call.attribute(name) for name in names if name in call.node.attributes}
    inputs = [call.optional(index) for index in range(3)]
    (found,) = call.graph.apply(call, "Conv", inputs, **attributes)
    value = call.floats(found.value)
    if call.optional(3) is not None:
        value = value + call.array(3)
    parameters = call.attribute("activation_params")
    if call.attribute("activation", "") == "LeakyRelu" and parameters:
        return _activated(call, value, float(parameters[0]))
    if parameters:
        raise call.error("has the attribute 'activation_params' for another activation than "
                         "LeakyRelu, which is not lowered", UnsupportedError)  # fmt: skip
    return _activated(call, value, 0.01)


# -- normalizations -------------------------------------------------------------------------------


def _normalized(
    x: AnyArray, gain: AnyArray, bias: AnyArray, epsilon: float, *, is_centered: bool
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Along the last axis; also the mean, and the inverse of the deviation."""
    count = np.float32(x.shape[-1])
    mean = x.sum(axis=-1, dtype=np.float32, keepdims=True) / count
    centered = x - mean if is_centered else x
    square = (centered * centered).sum(axis=-1, dtype=np.float32, keepdims=True) / count
    inverse = np.float32(1) / np.sqrt(square + np.float32(epsilon))
    found = centered * inverse * gain
    return found if bias is None else found + bias, mean, inverse


@kernel("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def simplified_layer_normalization(call: Call) -> list[AnyArray]:
    """``x / sqrt(mean(x**2) + epsilon) * scale`` along the last axis."""
    x = _wide(call, 0)
    if call.axis("axis", x.ndim, -1) != x.ndim - 1:
        raise call.error("normalizes along several axes", UnsupportedError)
    found, _, inverse = _normalized(
        x, _wide(call, 1), None, call.attribute("epsilon", 1e-5), is_centered=False
    )
    return [_like(call, 0, found), inverse]


@kernel("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def skip_layer_normalization(call: Call) -> list[AnyArray]:
    """Of ``input + skip + bias``, with ``gamma``, and ``beta`` where the mean is subtracted."""
    is_centered = "Simplified" not in call.node.operator
    beta = _optional(call, 3) if is_centered else None
    bias = _optional(call, 4 if is_centered else 3)
    x = _wide(call, 0) + _wide(call, 1)
    x = x if bias is None else x + bias
    found, mean, inverse = _normalized(
        x, _wide(call, 2), beta, call.attribute("epsilon", 1e-12), is_centered=is_centered
    )
    return [_like(call, 0, found), mean, inverse, _like(call, 0, x)]


@kernel("com.microsoft.EmbedLayerNormalization")
def embed_layer_normalization(call: Call) -> list[Any]:
    """The sum of embeddings of words, positions and segments, normalized; the lengths of rows."""
    words = call.array(0)
    if len(words.shape) != 2:
        raise call.error(f"has input_ids of shape {list(words.shape)}")
    batch, length = words.shape
    positions = np.arange(length, dtype=np.int32)
    if call.optional(8) is not None:
        positions = call.array(8)
    total = _rows(call, 2, words) + _rows(call, 3, positions)
    if call.optional(1) is not None:
        total = total + _rows(call, 4, call.array(1))
    found, _, _ = _normalized(
        total, _wide(call, 5), _wide(call, 6), call.attribute("epsilon", 1e-12), is_centered=True
    )
    lengths: AnyArray = np.zeros(batch, np.int32)
    if call.optional(7) is not None:
        lengths = convert(call.array(7), I32).sum(axis=1, dtype=np.int32)
    return [found, Typed("INT32", lengths), total]


def _rows(call: Call, index: int, indices: AnyArray) -> AnyArray:
    table = _wide(call, index)
    found = take(table, convert(indices, I32).reshape(-1), 0)
    return found.reshape((*indices.shape, table.shape[-1]))


# -- attention ------------------------------------------------------------------------------------


@kernel("com.microsoft.RotaryEmbedding")
def rotary_embedding(call: Call) -> AnyArray:
    """Pairs of elements of each head turned by the angles of their positions."""
    x, positions = _wide(call, 0), call.array(1)
    shape = tuple(x.shape)
    if call.attribute("is_packed_batching", 0):
        raise call.error("has packed batches", UnsupportedError)
    size = 2 * call.input(2).shape[-1]
    if len(shape) == 3:
        heads = call.attribute("num_heads", 0) or shape[2] // size
        x = x.reshape((*shape[:2], heads, shape[2] // heads))
    else:
        x = x.transpose(0, 2, 1, 3)
    batch, length, heads, width = x.shape
    turned = call.attribute("rotary_embedding_dim", 0) or width
    if turned != size or turned > width:
        raise call.error(f"turns {turned} of {width} elements, and has angles of {size}")
    if positions.size == 1:  # of the first element
        positions = positions.reshape(1, 1) + np.arange(length, dtype=np.int64).reshape(1, -1)
    places = np.broadcast_to(positions, (batch, length))
    cos, sin = (
        _rows(call, index, places).reshape((batch, length, 1, size // 2)) for index in (2, 3)
    )
    rest = x[..., turned:]
    x = x[..., :turned]
    if call.attribute("interleaved", 0):
        pairs = x.reshape((*x.shape[:-1], turned // 2, 2))
        low, high = (pairs[..., n : n + 1].reshape((*x.shape[:-1], turned // 2)) for n in (0, 1))
    else:
        low, high = x[..., : turned // 2], x[..., turned // 2 :]
    parts = [low * cos - high * sin, low * sin + high * cos]
    if call.attribute("interleaved", 0):
        ones = [part.reshape((*part.shape, 1)) for part in parts]
        found = np.concatenate(ones, axis=-1).reshape(x.shape)
    else:
        found = np.concatenate(parts, axis=-1)
    if turned < width:
        found = np.concatenate([found, rest], axis=-1)
    found = found.reshape(shape) if len(shape) == 3 else found.transpose(0, 2, 1, 3)
    return _like(call, 0, found)


def _attended(call: Call, sides: Sequence[AnyArray], heads: int, added: AnyArray) -> AnyArray:
    """Attention of ``[batch, length, heads * size]``, with what is added to the scores."""
    query, key, value = (
        side.reshape((*side.shape[:2], heads, side.shape[2] // heads)).transpose(0, 2, 1, 3)
        for side in sides
    )
    batch, (length, size) = ((0, 1), (0, 1)), query.shape[-2:]
    scores = contract(query, key, ((3,), (3,)), batch, np.float32)
    scores = scores * np.float32(call.attribute("scale", 0.0) or 1 / math.sqrt(size))
    if added is not None:
        scores = scores + added
    if call.attribute("unidirectional", 0):
        past = np.arange(length)[:, None] >= np.arange(scores.shape[-1])[None]
        filler = np.float32(call.attribute("mask_filter_value", -10000.0))
        scores = np.where(np.broadcast_to(past, scores.shape), scores, filler)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = exps / exps.sum(axis=-1, dtype=np.float32, keepdims=True)
    mixed = contract(shares, value, ((3,), (2,)), batch, np.float32).transpose(0, 2, 1, 3)
    return mixed.reshape((*mixed.shape[:2], heads * value.shape[-1]))


def _masked(call: Call, index: int) -> AnyArray:
    """What is added to scores: the filler where a mask of rows is 0."""
    if call.optional(index) is None:
        return None
    mask = call.array(index)
    if len(mask.shape) != 2:
        raise call.error(
            f"has {call.input(index)} of shape {list(mask.shape)} as the mask, expected two "
            "dimensions",
            UnsupportedError,
        )
    filler = np.float32(call.attribute("mask_filter_value", -10000.0))
    kept = convert(convert(mask, I32), F32)
    return ((np.float32(1) - kept) * filler).reshape((mask.shape[0], 1, 1, mask.shape[1]))


def _split(call: Call, whole: AnyArray) -> list[AnyArray]:
    """Queries, keys and values, side by side in the last axis."""
    width = whole.shape[-1]
    sizes = call.attribute("qkv_hidden_sizes", [width // 3] * 3)
    if len(sizes) != 3 or sum(sizes) != width:
        raise call.error(f"splits {width} elements in {list(sizes)}")
    ends = np.cumsum(sizes).tolist()
    return [whole[..., end - size : end] for end, size in zip(ends, sizes, strict=True)]


@kernel("com.microsoft.Attention")
def attention(call: Call) -> AnyArray:
    """``input, weights, bias, mask_index``, and ``attention_bias``."""
    _refuse(call, (4, "past"), (6, "past_sequence_length"))
    if call.attribute("do_rotary", 0):
        raise call.error("turns its operands", UnsupportedError)
    x = _wide(call, 0)
    whole = matmul(call, x, _wide(call, 1), np.dtype(np.float32))
    bias = _optional(call, 2)
    added, other = _masked(call, 3), _optional(call, 5)
    added = other if added is None else added if other is None else added + other
    parts = _split(call, whole if bias is None else whole + bias)
    return _like(call, 0, _attended(call, parts, call.integer("num_heads"), added))


@kernel("com.microsoft.QAttention")
def quantized_attention(call: Call) -> AnyArray:
    """As ``Attention``, of a product of integers: ``input, weight, bias, scales, mask, zeros``."""
    _refuse(call, (8, "past"))
    if call.attribute("do_rotary", 0):
        raise call.error("turns its operands", UnsupportedError)
    left, right = per_row(call, 0, 3, 6, rows=True), per_row(call, 1, 4, 7, rows=False)
    total = summed_product(call, left, right)
    if total is None:
        raise call.error("has scales along the dimension that is summed", UnsupportedError)
    whole = total.reals(call.graph.lift) + _wide(call, 2)
    call.with_integers()
    return _attended(call, _split(call, whole), call.integer("num_heads"), _masked(call, 5))


@kernel("com.microsoft.MultiHeadAttention")
def multi_head_attention(call: Call) -> AnyArray:
    """``query, key, value, bias, key_padding_mask, attention_bias``, each of three dimensions."""
    _refuse(call, (6, "past_key"), (7, "past_value"), (8, "past_sequence_length"),
            (9, "cache_indirection"))  # fmt: skip
    if call.optional(1) is None or call.optional(2) is None:
        raise call.error("has its keys packed with its queries", UnsupportedError)
    sides = [_wide(call, index) for index in range(3)]
    if any(side.ndim != 3 for side in sides):
        raise call.error(f"has operands of {[side.ndim for side in sides]} dimensions, expected 3",
                         UnsupportedError)  # fmt: skip
    bias = _optional(call, 3)
    if bias is not None:
        starts = np.cumsum([0, *(side.shape[-1] for side in sides)]).tolist()
        sides = [
            side + bias[start:end]
            for side, start, end in zip(sides, starts[:-1], starts[1:], strict=True)
        ]
    added, other = _masked(call, 4), _optional(call, 5)
    added = other if added is None else added if other is None else added + other
    return _like(call, 0, _attended(call, sides, call.integer("num_heads"), added))
