"""ONNX Runtime's Attention, QAttention and MultiHeadAttention.

A padding mask adds ``mask_filter_value`` to scores. Causal attention excludes keys: their scores
are -inf.

Source: ONNX Runtime, ``ContribOperators.md``, ``attention_cpu_base.h``, ``attention_helper.h``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import F32, I32, AnyArray
from ..call import Call, importer
from ..contraction.matrix_products import matmul, per_row, required_integer_matmul
from ..elementwise.float_operands import as_input_type, float_input, optional_float, refuse_inputs
from .attention import (
    Attended,
    attend,
    bias_beside_scores,
    merge_heads,
    positions,
    split_heads,
    sum_of_biases,
    window_bias,
    with_past,
)


def _mask(call: Call, index: int, query: AnyArray, total: int) -> AnyArray:
    """Return a padding mask as a bias ``[B, 1, S or 1, T]``, None if it is absent.

    It is ``[B, T]`` or ``[B, S, T]``, 0 where a key is masked; or the end of the keys of each
    sequence, ``[B]``, or the ends and the starts, ``[2 * B]``.
    """
    filler = np.float32(call.attribute("mask_filter_value", -10000.0))
    if call.optional(index) is None:
        return None
    mask, (batch, _, length, _) = call.array(index), query.shape
    shape = tuple(mask.shape)
    if shape in ((batch,), (2 * batch,)):
        bounds = convert(mask, I32)
        columns = positions(query, total).reshape((1, 1, 1, total))
        is_present = columns < bounds[:batch].reshape((batch, 1, 1, 1))
        if shape[0] == 2 * batch:
            is_present = is_present & (columns >= bounds[batch:].reshape((batch, 1, 1, 1)))
    elif shape in ((batch, total), (batch, length, total)):
        rows = shape[1] if len(shape) == 3 else 1
        is_present = (convert(mask, I32) > np.int32(0)).reshape((batch, 1, rows, total))
    else:
        raise call.unsupported(
            f"has {call.input(index)} of shape {list(shape)} as the mask of {batch} sequences of "
            f"{length} queries and {total} keys"
        )
    return np.where(is_present, np.float32(0), filler)


def _added(call: Call, index: int, query: AnyArray, total: int) -> AnyArray:
    """Return the input ``attention_bias``, None if it is absent."""
    bias = optional_float(call, index)
    if bias is None:
        return None
    expected = (*query.shape[:3], total)
    if bias.ndim != 4 or any(n not in (1, m) for n, m in zip(bias.shape, expected, strict=True)):
        raise call.error(
            f"has attention_bias of shape {list(bias.shape)}, expected {list(expected)}"
        )
    return bias


def _attended(
    call: Call, query: AnyArray, key: AnyArray, value: AnyArray, length: int, *biases: AnyArray
) -> Attended:
    """Compute attention of ``[B, N, ., H]``, with `length` new keys."""
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(query.shape[3])
    total = key.shape[2]
    causal = None
    if call.attribute("unidirectional", 0) and query.shape[2] > 1:
        if query.shape[2] != length:  # ONNX Runtime masks nothing for one query
            raise call.unsupported(
                f"is causal (unidirectional = 1) with {query.shape[2]} queries and {length} keys"
            )
        causal = window_bias(query, total, total - length, right=0)
    bias = bias_beside_scores(call, sum_of_biases(*biases, causal))
    return attend(query, key, value, scale, bias=bias)


def _split(call: Call, whole: AnyArray) -> list[AnyArray]:
    """Split the last axis into queries, keys and values, by heads."""
    width, heads = whole.shape[-1], call.integer("num_heads")
    sizes = call.attribute("qkv_hidden_sizes") or [width // 3] * 3
    if len(sizes) != 3 or sum(sizes) != width:
        raise call.error(f"splits {width} elements in {list(sizes)}")
    ends = np.cumsum(sizes).tolist()
    return [
        split_heads(call, whole[..., end - size : end], heads, name)
        for end, size, name in zip(ends, sizes, ("queries", "keys", "values"), strict=True)
    ]


def _of_product(
    call: Call, whole: AnyArray, mask: int, past: int, bias: int | None
) -> list[AnyArray]:
    """Return the output and the present keys and values, for a product with bias."""
    if call.attribute("do_rotary", 0):
        raise call.unsupported("turns its operands (do_rotary)")
    if call.attribute("past_present_share_buffer", 0):
        raise call.unsupported(
            "shares a buffer of past and present (past_present_share_buffer = 1)"
        )
    call.attribute("rotary_embedding_dim", 0)  # of do_rotary
    query, key, value = _split(call, whole)
    length = key.shape[2]
    if call.optional(past) is not None:
        before = float_input(call, past, F32)
        expected = (2, *key.shape[:2], before.shape[3] if before.ndim == 5 else 0, key.shape[3])
        if tuple(before.shape) != expected or value.shape != key.shape:
            raise call.error(f"has a past of shape {list(before.shape)} for {list(key.shape)}")
        key, value = (
            np.concatenate([before[n], new], axis=2) for n, new in enumerate((key, value))
        )
    total = key.shape[2]
    biases = [_mask(call, mask, query, total)]
    if bias is not None:
        biases.append(_added(call, bias, query, total))
    results = [merge_heads(_attended(call, query, key, value, length, *biases).result)]
    if call.node.outputs[1:2] not in ((), ("",)):
        if value.shape != key.shape:
            raise call.error("gives keys and values of different sizes as one tensor")
        results.append(np.stack([key, value]))
    return results


@importer("com.microsoft.Attention")
def attention(call: Call) -> list[AnyArray]:
    """Attention-1: ``input, weights, bias, mask_index, past, attention_bias``."""
    refuse_inputs(call, (6, "past_sequence_length"))
    whole = matmul(call, float_input(call, 0, F32), float_input(call, 1, F32), np.dtype(np.float32))
    bias = optional_float(call, 2, F32)
    results = _of_product(call, whole if bias is None else whole + bias, 3, 4, 5)
    return [as_input_type(call, 0, each) for each in results]


@importer("com.microsoft.QAttention")
def quantized_attention(call: Call) -> list[AnyArray]:
    """QAttention-1: ``input, weight, bias``, scales, mask, zero points and ``past``."""
    left, right = per_row(call, 0, 3, 6, rows=True), per_row(call, 1, 4, 7, rows=False)
    total = required_integer_matmul(call, left, right)
    whole = convert(total.dequantize(call.graph.lift), F32) + float_input(call, 2, F32)
    call.with_integers()
    return [as_input_type(call, 2, each) for each in _of_product(call, whole, 5, 8, None)]


def _sides(call: Call, heads: int) -> list[AnyArray]:
    """Return queries, keys and values as ``[B, N, S, H]``, with their bias."""
    query, bias = float_input(call, 0, F32), optional_float(call, 3, F32)
    key, value = (optional_float(call, index, F32) for index in (1, 2))
    if query.ndim == 5 and key is None and value is None:  # [B, S, N, 3, H]
        sides = [query[:, :, :, n].transpose(0, 2, 1, 3) for n in range(3)]
    elif key is not None and key.ndim == 5 and value is None:  # [B, T, N, 2, H]
        sides = [split_heads(call, query, heads, "the query")]
        sides += [key[:, :, :, n].transpose(0, 2, 1, 3) for n in range(2)]
    elif key is None or value is None:
        raise call.error("has no key or no value")
    elif key.ndim == value.ndim == 4:  # of a cross attention, as the past
        sides = [split_heads(call, query, heads, "the query"), key, value]
    else:
        sides = [
            split_heads(call, side, heads, name)
            for side, name in ((query, "the query"), (key, "the key"), (value, "the value"))
        ]
    shapes: list[Sequence[int]] = [side.shape for side in sides]
    if (
        any(tuple(shape[:2]) != (query.shape[0], heads) for shape in shapes)
        or shapes[0][3] != shapes[1][3]
        or shapes[1][2] != shapes[2][2]
    ):
        raise call.error(f"has operands of shapes {[list(shape) for shape in shapes]} by heads")
    if bias is None:
        return sides
    ends = np.cumsum([heads * shape[3] for shape in shapes]).tolist()
    if tuple(bias.shape) != (ends[-1],):
        raise call.error(f"has a bias of shape {list(bias.shape)}, expected [{ends[-1]}]")
    if key is not None and key.ndim == 4:
        raise call.unsupported("has a bias for keys of four dimensions")
    return [
        side + bias[end - heads * side.shape[3] : end].reshape((1, heads, 1, side.shape[3]))
        for side, end in zip(sides, ends, strict=True)
    ]


@importer("com.microsoft.MultiHeadAttention")
def multi_head_attention(call: Call) -> list[Any]:
    """MultiHeadAttention-1: ``query, key, value, bias``, a mask, a bias and the past.

    The inputs are ``query, key, value, bias, key_padding_mask, attention_bias, past_key,
    past_value``. The results are ``output, present_key, present_value, qk``.
    """
    refuse_inputs(call, (8, "past_sequence_length"), (9, "cache_indirection"))
    query, key, value = _sides(call, call.integer("num_heads"))
    length = key.shape[2]
    if (call.optional(6) is None) != (call.optional(7) is None):
        raise call.error("has one of past_key and past_value, expected both")
    key, value = with_past(call, key, 6, "past_key"), with_past(call, value, 7, "past_value")
    total = key.shape[2]
    biases = [_mask(call, 4, query, total), _added(call, 5, query, total)]
    attended = _attended(call, query, key, value, length, *biases)
    results = [merge_heads(attended.result), key, value, attended.biased]
    return [as_input_type(call, 0, each) for each in results]
