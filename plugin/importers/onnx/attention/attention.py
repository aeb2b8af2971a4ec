"""Scaled dot-product attention, and the operator Attention of ONNX.

Scores, softmax and products with values are f32 for operands of f16 and bf16 too, and f64 for f64.

Source: ONNX, Attention 25.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass

import numpy as np

from ....numerics.array_functions import beside, convert, tanh
from ....numerics.convolutions import contract
from ....numerics.element_types import F32, F64, I32, AnyArray, ElementType
from ..call import Call, importer
from ..elementwise.float_operands import as_input_type, computing_type, float_input


@dataclass(frozen=True, eq=False)
class Attended:
    """The result of attention, ``[B, N, S, V]``, and its scores at each stage, ``[B, N, S, T]``."""

    result: AnyArray
    scores: AnyArray
    capped: AnyArray
    biased: AnyArray
    probabilities: AnyArray


def attend(
    query: AnyArray,
    key: AnyArray,
    value: AnyArray,
    scale: float,
    *,
    bias: AnyArray = None,
    softcap: float = 0.0,
    sinks: AnyArray = None,
    precision: ElementType | None = None,
) -> Attended:
    """Compute scaled dot-product attention.

    Args:
        query: ``[B, N, S, H]``, f32 or f64.
        key, value: ``[B, G, T, H]`` and ``[B, G, T, V]``, where G divides N: consecutive heads of
            the query share a head.
        scale: the factor of the scores.
        bias: the addend of the scores, four dimensions. A row of only -inf gives 0.
        softcap: the bound of the scores, before the bias; 0 for none.
        sinks: a score for each of N heads that is only in the denominator of the softmax.
        precision: the type of the softmax, if it is not that of the query.
    """
    batch, heads, length, _ = query.shape
    groups, total, width = value.shape[1:]
    kind, dtype = query.dtype.type, query.dtype
    grouped = query.reshape((batch, groups, heads // groups * length, query.shape[3]))
    axes = ((0, 1), (0, 1))
    scores = contract(grouped, key, ((3,), (3,)), axes, dtype) * kind(scale)
    scores = scores.reshape((batch, heads, length, total))
    capped = kind(softcap) * tanh(scores / kind(softcap)) if softcap else scores
    biased = capped if bias is None else capped + bias
    exact = biased if precision is None else convert(biased, precision)
    zero = exact.dtype.type(0)
    highest = exact.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = convert(sinks, ElementType.of_dtype(exact.dtype)).reshape((1, -1, 1, 1))
        highest = np.maximum(highest, sinks)
    if bias is not None:  # -inf less -inf is no number
        highest = np.where(highest == exact.dtype.type(-np.inf), zero, highest)
    powers = np.exp(exact - highest)
    divisor = powers.sum(axis=-1, dtype=exact.dtype, keepdims=True)
    if sinks is not None:
        divisor = divisor + np.exp(sinks - highest)
    if bias is not None:
        divisor = np.where(divisor == zero, exact.dtype.type(1), divisor)
    probabilities = convert(powers / divisor, ElementType.of_dtype(dtype))
    if bias is not None:  # also where a score is no number
        is_masked = bias.max(axis=-1, keepdims=True) == kind(-np.inf)
        probabilities = np.where(is_masked, kind(0), probabilities)
    rows = probabilities.reshape((batch, groups, heads // groups * length, total))
    mixed = contract(rows, value, ((3,), (2,)), axes, dtype)
    return Attended(
        mixed.reshape((batch, heads, length, width)), scores, capped, biased, probabilities
    )


def split_heads(call: Call, x: AnyArray, heads: int, name: str) -> AnyArray:
    """Return ``[B, S, N * H]`` as ``[B, N, S, H]``."""
    if x.ndim != 3 or heads < 1 or x.shape[2] % heads:
        raise call.error(f"has {name} of shape {list(x.shape)} for {heads} heads")
    return x.reshape((*x.shape[:2], heads, x.shape[2] // heads)).transpose(0, 2, 1, 3)


def merge_heads(x: AnyArray) -> AnyArray:
    """Return ``[B, N, S, H]`` as ``[B, S, N * H]``."""
    merged = x.transpose(0, 2, 1, 3)
    return merged.reshape((*merged.shape[:2], -1))


def with_past(call: Call, x: AnyArray, index: int, name: str) -> AnyArray:
    """Concatenate an optional input ``[B, N, P, H]`` and ``[B, N, S, H]``."""
    if call.optional(index) is None:
        return x
    past = convert(call.array(index), ElementType.of_dtype(np.dtype(x.dtype)))
    if past.ndim != 4 or any(past.shape[axis] != x.shape[axis] for axis in (0, 1, 3)):
        raise call.error(f"has {name} of shape {list(past.shape)} before {list(x.shape)}")
    return np.concatenate([past, x], axis=2)


def positions(x: AnyArray, count: int) -> AnyArray:
    """Return int32 from 0 to `count`, as a value of the program of `x` if there is one."""
    return beside(x, np.arange(count, dtype=np.int32))


def window_bias(
    query: AnyArray, total: int, offset: AnyArray, left: int = -1, right: int = -1
) -> AnyArray:
    """Return a bias ``[1 or B, 1, S, total]``, -inf for keys outside a window around each query.

    Args:
        query: ``[B, N, S, H]``.
        total: the number of keys.
        offset: the position of the first query: an integer, or one for each of the batch.
        left, right: the greatest distance of a key before and after its query; -1 for no bound.
    """
    kind, length = query.dtype.type, query.shape[2]
    rows = positions(query, length).reshape((1, 1, length, 1))
    first = np.asarray(offset, np.int32) if isinstance(offset, int) else offset
    rows = rows + first.reshape((-1, 1, 1, 1))
    columns = positions(query, total).reshape((1, 1, 1, total))
    allowed = None
    if right >= 0:
        allowed = columns <= rows + np.int32(min(right, 1 << 30))
    if left >= 0:
        inside = columns >= rows - np.int32(min(left, 1 << 30))
        allowed = inside if allowed is None else allowed & inside
    return None if allowed is None else np.where(allowed, kind(0), kind(-np.inf))


def sum_of_biases(*biases: AnyArray) -> AnyArray:
    """Return the sum of the biases that are not None; None if all are."""
    present = [bias for bias in biases if bias is not None]
    return functools.reduce(operator.add, present) if present else None


def bias_beside_scores(call: Call, bias: AnyArray) -> AnyArray:
    """Return the bias, or a 0 where there is none and output 3 of the node is the scores.

    IREE 3.13 refuses a softmax that is fused with scores that are a result.
    """
    if bias is None and any(call.node.outputs[3:]):
        return np.zeros((1, 1, 1, 1), np.float32)
    return bias


_PRECISIONS = {1: F32, 10: F32, 11: F64, 16: F32}
"""The type of a softmax, by the number of ``softmax_precision``."""


@importer("Attention")
def attention(call: Call) -> list[AnyArray]:
    """Attention-25: ``Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen``.

    The results are ``Y, present_key, present_value, qk_matmul_output``.
    """
    target = computing_type(call)
    query, key, value = (float_input(call, index, target) for index in range(3))
    is_flat = query.ndim == 3
    if is_flat:
        counts = [call.integer(name) for name in ("q_num_heads", *("kv_num_heads",) * 2)]
        query, key, value = (
            split_heads(call, side, count, name)
            for side, count, name in zip((query, key, value), counts, "QKV", strict=True)
        )
    _check_heads(call, query, key, value)
    if not is_flat:  # the shapes have them
        for name, side in (("q_num_heads", query), ("kv_num_heads", key)):
            if call.attribute(name, side.shape[1]) != side.shape[1]:
                raise call.error(
                    f"has {call.attribute(name)} for {name}, and {side.shape[1]} heads"
                )
    has_past = call.optional(4) is not None
    if has_past != (call.optional(5) is not None):
        raise call.error("has one of past_key and past_value, expected both")
    if has_past and call.optional(6) is not None:
        raise call.error("has both past_key and nonpad_kv_seqlen")
    key, value = with_past(call, key, 4, "past_key"), with_past(call, value, 5, "past_value")
    biases = [_mask(call, query, key.shape[2]), *_windows(call, query, key.shape[2])]
    bias = bias_beside_scores(call, sum_of_biases(*biases))
    precision = call.attribute("softmax_precision")
    if precision is not None and precision not in _PRECISIONS:
        raise call.error(f"has the softmax_precision {precision}")
    attended = attend(
        query,
        key,
        value,
        call.attribute("scale", 1 / math.sqrt(query.shape[3])),
        bias=bias,
        softcap=call.attribute("softcap", 0.0),
        precision=_PRECISIONS[precision] if precision == 11 else None,
    )
    result = merge_heads(attended.result) if is_flat else attended.result
    stages = [attended.scores, attended.capped, attended.biased, attended.probabilities]
    mode = call.attribute("qk_matmul_output_mode", 0)
    return [
        as_input_type(call, 0, result),
        as_input_type(call, 1, key),
        as_input_type(call, 2, value),
        as_input_type(call, 0, stages[mode]),
    ]


def _check_heads(call: Call, query: AnyArray, key: AnyArray, value: AnyArray) -> None:
    """Refuse queries, keys and values whose shapes do not agree."""
    shapes = [tuple(side.shape) for side in (query, key, value)]
    if (
        any(len(shape) != 4 or shape[0] != shapes[0][0] for shape in shapes)
        or shapes[1][:3] != shapes[2][:3]
        or shapes[0][3] != shapes[1][3]
        or shapes[0][1] % max(shapes[1][1], 1)
    ):
        raise call.error(
            "has queries, keys and values of shapes "
            f"{', '.join(str(list(shape)) for shape in shapes)} as [batch, heads, length, size]"
        )


def _mask(call: Call, query: AnyArray, total: int) -> AnyArray:
    """Return the attention mask as a bias; keys after its end are masked."""
    if call.optional(3) is None:
        return None
    kind, mask = query.dtype.type, call.array(3)
    if np.dtype(mask.dtype) == np.bool_:
        mask = np.where(mask, kind(0), kind(-np.inf))
    elif np.dtype(mask.dtype).kind not in "fV":
        raise call.unsupported(f"has an attention mask of {mask.dtype.name}")
    if not mask.ndim:
        raise call.error("has attn_mask without dimensions, expected 2 to 4")
    mask = convert(mask, ElementType.of_dtype(query.dtype))
    missing = total - mask.shape[-1]
    shape = (*mask.shape[:-1], total)
    expected = (*query.shape[:3], total)
    if (
        missing < 0
        or len(shape) > 4
        or any(n not in (1, m) for n, m in zip(reversed(shape), reversed(expected), strict=False))
    ):
        raise call.error(f"has attn_mask of shape {list(mask.shape)} for {list(expected)}")
    if missing and mask.shape[-1] == 1 and total > 1:
        raise call.unsupported("has attn_mask of one key, which could be broadcast or padded")
    if missing:
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        mask = np.pad(mask, widths, constant_values=kind(-np.inf))
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def _windows(call: Call, query: AnyArray, total: int) -> list[AnyArray]:
    """Return the biases of causal attention, of windows, and of padded keys."""
    left, right = (call.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    causal = call.attribute("is_causal", 0)
    offset: AnyArray = 0
    padding = None
    if call.optional(4) is not None:
        offset = call.input(4).shape[2]
    if call.optional(6) is not None:
        lengths = convert(call.array(6), I32)
        if tuple(lengths.shape) != (query.shape[0],):
            raise call.error(f"has nonpad_kv_seqlen of shape {list(lengths.shape)}")
        offset = lengths - np.int32(query.shape[2])
        last = lengths.reshape((-1, 1, 1, 1)) - np.int32(1)
        columns = positions(query, total).reshape((1, 1, 1, total))
        kind = query.dtype.type
        padding = np.where(columns <= last, kind(0), kind(-np.inf))
    return [window_bias(query, total, offset, left, 0 if causal else right), padding]
