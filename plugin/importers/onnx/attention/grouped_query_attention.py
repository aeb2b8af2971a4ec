"""ONNX Runtime's GroupQueryAttention: attention with a cache of keys and values.

``total_sequence_length`` must be constant: it is the length of the present keys and values, if it
is more than that of the past. ``seqlens_k`` may be computed: in a step after the prompt it says
where new keys are put. Keys after the end of a sequence are 0 in the present, and not attended.

Source: ONNX Runtime, ``ContribOperators.md``, ``group_query_attention.cc``,
``gqa_attention_base.h``.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import F32, I32, AnyArray
from ..call import Call, importer
from ..elementwise.float_operands import as_input_type, float_input, optional_float, refuse_inputs
from ..movement.gather import rows_of
from .attention import attend, merge_heads, positions, split_heads, sum_of_biases
from .key_value_cache import CacheFormat, present
from .rotary import rotated

_REFUSED_INPUTS = ((14, "q_norm_weight"), (15, "k_norm_weight"), (16, "query_seqlens"))
"""Inputs that are refused where present: number and name in ONNX Runtime's schema."""


@importer("com.microsoft.GroupQueryAttention")
def group_query_attention(call: Call) -> list[AnyArray]:
    """GroupQueryAttention-1: queries, keys, values, the past and its lengths.

    The inputs are ``query, key, value, past_key, past_value, seqlens_k, total_sequence_length,
    cos_cache, sin_cache, position_ids, attention_bias, head_sink, k_scale, v_scale``. The results
    are ``output, present_key, present_value, output_qk``.
    """
    refuse_inputs(call, *_REFUSED_INPUTS)
    if call.attribute("sliding_window_cache", 0):
        raise call.unsupported("has a sliding cache (sliding_window_cache)")
    for name in ("qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon"):
        call.attribute(name)  # the inputs are refused
    query, key, value = _sides(call)
    batch, _, length, width = query.shape
    lengths = convert(call.array(5), I32)
    if lengths.size != batch:
        raise call.error(f"has seqlens_k of shape {list(lengths.shape)} for {batch} sequences")
    lengths = lengths.reshape(-1) + np.int32(1)
    total = int(call.constant_scalar(6))
    is_prompt = length == total
    if total < length or (not is_prompt and length > 1 and batch > 1):
        raise call.error(
            f"has {length} new of {total} keys in each of {batch} sequences, expected all of them "
            "new, one new one, or one sequence"
        )
    starts = np.zeros(batch, np.int32) if is_prompt else lengths - np.int32(length)
    if call.attribute("do_rotary", 0):
        query, key = _rotated(call, query, key, None if is_prompt else starts)
    else:
        call.attribute("rotary_interleaved", 0)  # without do_rotary, as the inputs
        for index in (7, 8, 9):
            call.optional(index)
    forms = [
        CacheFormat.of(call, letter, scale, key.shape[1], width)
        for letter, scale in (("k", 12), ("v", 13))
    ]
    presents = [
        present(call, index, form, side, starts, total)
        for index, form, side in zip((3, 4), forms, (key, value), strict=True)
    ]
    cache_length = presents[0].shape[2]
    biases = [
        _allowed(call, query, starts, lengths, cache_length),
        _added(call, query, total, cache_length),
    ]
    keys, values = (form.dequantize(cache) for form, cache in zip(forms, presents, strict=True))
    attended = attend(
        query,
        keys,
        values,
        call.attribute("scale", 0.0) or 1 / math.sqrt(width),
        bias=sum_of_biases(*biases),
        softcap=call.attribute("softcap", 0.0),
        sinks=_sinks(call, query.shape[1]),
    )
    results = [as_input_type(call, 0, merge_heads(attended.result)), *presents]
    stage = call.attribute("qk_output", 0)
    if stage not in (0, 1, 2):
        raise call.error(f"has qk_output = {stage}, expected 0 to 2")
    if stage:
        is_attended = biases[0] == np.float32(0)
        chosen = np.where(is_attended, attended.biased, np.float32(0))
        chosen = chosen if stage == 1 else attended.probabilities
        results.append(as_input_type(call, 0, chosen[..., :total]))
    return results


def _sides(call: Call) -> list[AnyArray]:
    """Return queries, keys and values by heads, ``[B, N or G, S, H]``."""
    heads, groups = call.integer("num_heads"), call.integer("kv_num_heads")
    if heads < 1 or groups < 1 or heads % groups:
        raise call.error(f"has {heads} heads of queries and {groups} of keys")
    query, key, value = (optional_float(call, index, F32) for index in range(3))
    if (key is None) != (value is None):
        raise call.error("has one of key and value, expected both or a packed query")
    if key is None:
        packed = split_heads(call, query, heads + 2 * groups, "the packed query")
        bounds = [0, heads, heads + groups, heads + 2 * groups]
        return [packed[:, a:b] for a, b in itertools.pairwise(bounds)]
    sides = [
        split_heads(call, side, count, name)
        for side, count, name in (
            (query, heads, "the query"), (key, groups, "the key"), (value, groups, "the value")
        )
    ]  # fmt: skip
    shapes = [(side.shape[0], *side.shape[2:]) for side in sides]
    if len({*shapes}) != 1:
        raise call.error(f"has operands of shapes {[list(side.shape) for side in sides]} by heads")
    return sides


def _rotated(call: Call, query: AnyArray, key: AnyArray, starts: AnyArray) -> list[AnyArray]:
    """Rotate queries and keys by the angles of their positions.

    A prompt has no starts: its positions start at the first of ``position_ids``, or at 0.
    """
    batch, _, length, width = query.shape
    steps = np.arange(length, dtype=np.int32).reshape((1, -1))
    position_ids = None
    if call.optional(9) is not None:
        position_ids = convert(call.array(9), I32)
        if tuple(position_ids.shape) != (batch, length):
            raise call.error(f"has position_ids of shape {list(position_ids.shape)}")
    if starts is None:
        first = np.int32(0) if position_ids is None else position_ids[:1, :1]
        position_ids = np.broadcast_to(first + steps, (batch, length))
    elif position_ids is None:
        position_ids = starts.reshape((batch, 1)) + steps
    caches = [
        rows_of(call, float_input(call, index, F32), position_ids, name)
        for index, name in ((7, "cos_cache"), (8, "sin_cache"))
    ]
    if caches[0].shape != caches[1].shape or 2 * caches[0].shape[-1] > width:
        raise call.error(f"has angles of shapes {[list(c.shape) for c in caches]} for {width}")
    interleaved = bool(call.attribute("rotary_interleaved", 0))
    return [
        rotated(side.transpose(0, 2, 1, 3), *caches, is_interleaved=interleaved).transpose(
            0, 2, 1, 3
        )
        for side in (query, key)
    ]


def _allowed(
    call: Call, query: AnyArray, starts: AnyArray, lengths: AnyArray, cache_length: int
) -> AnyArray:
    """Return a bias that is -inf for keys that a query does not attend to."""
    batch, _, length, _ = query.shape
    rows = positions(query, length).reshape((1, 1, length, 1)) + starts.reshape((batch, 1, 1, 1))
    columns = positions(query, cache_length).reshape((1, 1, 1, cache_length))
    allowed = columns < lengths.reshape((batch, 1, 1, 1))
    window = call.attribute("local_window_size", -1)
    causal = call.attribute("causal", 1)
    if causal not in (0, 1) or window == 0 or (window > 0 and not causal):
        raise call.unsupported(f"has the window {window} and causal = {causal}")
    if causal:
        allowed = allowed & (columns <= rows)
    if window > 0:
        allowed = allowed & (columns > rows - np.int32(min(window, 1 << 30)))
    return np.where(allowed, np.float32(0), np.float32(-np.inf))


def _added(call: Call, query: AnyArray, total: int, cache_length: int) -> AnyArray:
    """Return the input ``attention_bias``, 0 after the last key; None if it is absent."""
    bias = optional_float(call, 10, F32)
    if bias is None:
        return None
    expected = (*query.shape[:3], total)
    if (
        bias.ndim != 4
        or bias.shape[2:] != expected[2:]
        or any(n not in (1, m) for n, m in zip(bias.shape[:2], expected[:2], strict=True))
    ):
        raise call.error(f"has attention_bias of shape {list(bias.shape)} for {list(expected)}")
    return (
        np.pad(bias, ((0, 0), (0, 0), (0, 0), (0, cache_length - total)))
        if cache_length > total
        else bias
    )


def _sinks(call: Call, heads: int) -> AnyArray:
    """Return the input ``head_sink``, 0 for a smooth softmax without it, None for no sinks."""
    sinks = optional_float(call, 11, F32)
    is_smooth = call.attribute("smooth_softmax", -1) == 1
    if sinks is None and is_smooth:
        return np.zeros(heads, np.float32)
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise call.error(f"has head_sink of shape {list(sinks.shape)}, expected [{heads}]")
    return sinks
