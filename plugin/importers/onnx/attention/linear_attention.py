"""Operators with a state as input and output: linear attention, causal convolution, caches.

Sources: ONNX, CausalConvWithState 27, LinearAttention 27, TensorScatter 24; ONNX Runtime,
``ContribOperators.md``.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import (
    convert,
    divide_truncated,
    is_known,
    over_time,
    put_slice,
    take,
)
from ....numerics.convolutions import contract
from ....numerics.element_types import F32, I32, AnyArray
from ..call import Call, Operand, importer
from ..elementwise.activations import sigmoid
from ..elementwise.float_operands import as_input_type, element_type, float_input, optional_float
from .attention import positions


@importer("CausalConvWithState", "com.microsoft.CausalConvWithState")
def causal_conv_with_state(call: Call) -> list[AnyArray]:
    """CausalConvWithState-27: ``input, weight, bias, past_state`` to ``output, present_state``.

    Each channel ``[B, C, L]`` is convolved with its k elements, after ``k - 1`` elements of the
    state.
    """
    for name, value in (("ndim", 1), ("dilation", 1), ("channels_last", 0), ("state_window", 0),
                        ("state_update_capacity", 0), ("state_channels_last", -1),
                        ("state_length", 0), ("input_channel_offset", 0),
                        ("input_channels", 0)):  # fmt: skip
        if call.node.operator.startswith("com.") and call.attribute(name, value) != value:
            raise call.unsupported(f"has {name} = {call.attribute(name)}")
    activation = call.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise call.error(f"has the activation {activation!r}, expected 'none', 'silu' or 'swish'")
    x, weight = float_input(call, 0, F32), float_input(call, 1, F32)
    bias = optional_float(call, 2, F32)
    if x.ndim != 3 or weight.ndim != 3 or tuple(weight.shape[:2]) != (x.shape[1], 1):
        raise call.error(f"convolves {list(x.shape)} with weights of shape {list(weight.shape)}")
    batch, channels, length = x.shape
    count = weight.shape[2]
    state = _past_state(call, (batch, channels, count - 1))
    padded = np.concatenate([state, x], axis=2) if count > 1 else x
    total = None
    for tap in range(count):
        product = padded[:, :, tap : tap + length] * weight[:, :, tap].reshape((1, channels, 1))
        total = product if total is None else total + product
    if bias is not None:
        if tuple(bias.shape) != (channels,):
            raise call.error(f"has a bias of shape {list(bias.shape)} for {channels} channels")
        total = total + bias.reshape((1, channels, 1))
    if activation != "none":
        total = total * sigmoid(total)
    present = padded[:, :, length:]
    return [as_input_type(call, 0, total), as_input_type(call, 0, present)]


_RULES = {
    "linear": (False, False), "gated": (True, False), "delta": (False, True),
    "gated_delta": (True, True),
}  # fmt: skip
"""Two flags by update rule: the state decays; the value is corrected by that of the state."""


@importer("LinearAttention", "com.microsoft.LinearAttention")
def linear_attention(call: Call) -> list[AnyArray]:
    """LinearAttention-27: ``query, key, value, past_state, decay, beta``.

    The state of each head of keys is ``[K, V]``, f32 in the loop over time.
    """
    if call.node.operator.startswith("com.") and call.attribute("state_window", 0):
        raise call.unsupported("has a window of states")
    rule = call.attribute("update_rule", "gated_delta")
    if rule not in _RULES:
        raise call.error(f"has the update_rule {rule!r}, expected one of {', '.join(_RULES)}")
    decays, corrects = _RULES[rule]
    for index, name, is_expected in ((4, "decay", decays), (5, "beta", corrects)):
        if (call.optional(index) is not None) != is_expected:
            word = "without" if is_expected else "with"
            raise call.error(f"has the update_rule {rule!r} {word} the input {name}")
    heads, groups = call.integer("q_num_heads"), call.integer("kv_num_heads")
    if groups < 1 or heads < 1 or heads % groups:
        raise call.unsupported(f"has {heads} heads of queries and {groups} of keys")
    query, key, value = (
        _by_time(call, index, count) for index, count in ((0, heads), (1, groups), (2, groups))
    )
    length, batch, _, width = query.shape
    size = value.shape[3]
    if key.shape != (length, batch, groups, width) or value.shape[:2] != key.shape[:2]:
        raise call.error("has queries, keys and values of shapes "
                         f"{[list(side.shape) for side in (query, key, value)]}")  # fmt: skip
    if not length:
        raise call.unsupported("has no time steps")
    sequences = [query.reshape((length, batch, groups, heads // groups, width)), key, value]
    if decays:
        shape = call.input(4).shape
        if shape not in ((batch, length, groups), (batch, length, groups * width)):
            raise call.error(
                f"has decay of shape {list(shape)}, expected {[batch, length, groups]} or "
                f"{[batch, length, groups * width]}"
            )
        decay = _by_time(call, 4, groups)
        sequences.append(np.exp(decay).reshape((length, batch, groups, decay.shape[3], 1)))
    if corrects:
        shape = call.input(5).shape
        if shape not in ((batch, length, 1), (batch, length, groups)):
            raise call.error(
                f"has beta of shape {list(shape)}, expected {[batch, length, groups]} or "
                f"{[batch, length, 1]}"
            )
        sequences.append(_by_time(call, 5, shape[2]))
    state = _past_state(call, (batch, groups, width, size))
    axes = (0, 1)

    def step(output: AnyArray, state: AnyArray, *inputs: AnyArray) -> list[AnyArray]:
        q, k, v, *rest = inputs
        if decays:
            state = state * rest.pop(0)
        if corrects:
            stored = contract(k, state, ((2,), (2,)), (axes, axes))
            v = rest.pop(0) * (v - stored)
        state = state + k.reshape((*k.shape, 1)) * v.reshape((batch, groups, 1, size))
        return [contract(q, state, ((3,), (2,)), (axes, axes)), state]

    start = np.zeros((batch, groups, heads // groups, size), np.float32)
    (_, state), outputs = over_time(step, [start, state], sequences)
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(width)
    result = outputs.transpose(1, 0, 2, 3, 4).reshape((batch, length, heads * size))
    target = element_type(call, 0 if call.optional(3) is None else 3)
    return [as_input_type(call, 0, result * np.float32(scale)), convert(state, target)]


def _past_state(call: Call, shape: tuple[int, ...]) -> AnyArray:
    """Return the state of input 3, 0 if it is absent."""
    state = optional_float(call, 3, F32)
    if state is None:
        return np.zeros(shape, np.float32)
    if tuple(state.shape) != shape:
        raise call.error(f"has past_state of shape {list(state.shape)}, expected {list(shape)}")
    return state


def _by_time(call: Call, index: int, heads: int) -> AnyArray:
    """Return an input ``[B, T, heads * n]`` as ``[T, B, heads, n]``."""
    value = float_input(call, index, F32)
    if value.ndim != 3 or value.shape[2] % heads:
        raise call.error(f"has {call.input(index)} of shape {list(value.shape)} for {heads} heads")
    batch, length, width = value.shape
    return value.reshape((batch, length, heads, width // heads)).transpose(1, 0, 2, 3)


@importer("TensorScatter")
def tensor_scatter(call: Call) -> Operand:
    """TensorScatter-24: ``past_cache, update, write_indices``: the updated cache."""
    cache, update = call.array(0), call.array(1)
    axis = call.axis("axis", cache.ndim, -2)
    mode = call.attribute("mode", "linear")
    shapes = [list(cache.shape), list(update.shape)]
    cache_length, count = (shape[axis] for shape in shapes)
    if (
        axis == 0
        or len(shapes[0]) != len(shapes[1])
        or count > cache_length
        or any(n != m for a, (n, m) in enumerate(zip(*shapes, strict=True)) if a != axis)
    ):
        raise call.error(f"writes {shapes[1]} along dimension {axis} of {shapes[0]}")
    batch = shapes[0][0]
    starts: AnyArray = np.zeros(batch, np.int32)
    if call.optional(2) is not None:
        starts = convert(call.array(2), I32)
        if tuple(starts.shape) != (batch,):
            raise call.error(f"has write_indices of shape {list(starts.shape)}")
    is_outside = is_known(starts) and (
        (starts < 0).any() or (mode == "linear" and (starts > cache_length - count).any())
    )
    if is_outside:
        raise call.error(f"writes {count} elements of {cache_length} at {starts.tolist()}")
    rows, origin = [], [np.int32(0)] * cache.ndim
    for n in range(batch):
        item, own, start = cache[n : n + 1], update[n : n + 1], starts[n].reshape(())
        if mode == "linear":
            rows.append(put_slice(item, own, [*origin[:axis], start, *origin[axis + 1 :]]))
        else:
            rows.append(_written_circularly(item, own, start, axis))
    return call.typed(rows[0] if batch == 1 else np.concatenate(rows, axis=0))


def _written_circularly(cache: AnyArray, update: AnyArray, start: AnyArray, axis: int) -> AnyArray:
    """Return the cache with the update at a start, which wraps around at the end."""
    cache_length, count = cache.shape[axis], update.shape[axis]
    first = start - divide_truncated(start, np.int32(cache_length)) * np.int32(cache_length)
    indices = positions(cache, cache_length) - first
    indices = np.where(indices < np.int32(0), indices + np.int32(cache_length), indices)
    rows = take(update, np.minimum(indices, np.int32(count - 1)), axis)
    shape = tuple(cache_length if a == axis else 1 for a in range(cache.ndim))
    return np.where((indices < np.int32(count)).reshape(shape), rows, cache)
