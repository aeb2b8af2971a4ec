"""Recurrent operators without gates, and SVDF, whose state is kept in tensors that are variables.

Sources: LiteRT, ``basic_rnn.cc``, ``unidirectional_sequence_rnn.cc``,
``bidirectional_sequence_rnn.cc``, ``RnnBatchStep`` of ``internal/kernel_utils.cc``, ``svdf.cc``,
``reference/svdf.h``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import contract, convert, over_time
from ....numerics.element_types import I32, AnyArray
from ..arithmetic import requantization
from ..call import Call, kernel
from . import dynamic_range

__all__ = ["by_time", "products", "without_time"]


# -- what recurrent operators have in common ------------------------------------------------------


def products(call: Call, values: AnyArray, index: int) -> AnyArray:
    """Products of values ``[..., depth]`` with the weights ``[features, depth]`` of an input."""
    weights = call.input(index)
    if values.shape[-1:] != weights.shape[1:]:
        raise call.error(f"has weights of shape {list(weights.shape)} for {list(values.shape)}")
    if dynamic_range.is_hybrid(call, weights):
        return dynamic_range.of_rows(call, values, weights)
    return contract(values, call.reals(weights, values), ((len(values.shape) - 1,), (1,)))


def by_time(call: Call, index: int, *, time_major: bool) -> AnyArray:
    """An input ``[B, T, I]``, or one step ``[B, I]``, as ``[T, B, I]``."""
    value = call.input(index).value
    if value.ndim not in (2, 3):
        raise call.error(f"has an input of shape {list(value.shape)}")
    if value.ndim == 2:
        return value[None]
    rows = value if time_major else value.transpose(1, 0, 2)
    if not rows.shape[0]:
        raise call.error("has no time steps")
    return rows


def without_time(results: AnyArray, rank: int, *, time_major: bool) -> AnyArray:
    """``[T, B, O]`` as the input of a rank was."""
    if rank == 2:
        return results.reshape(results.shape[1:])
    return results if time_major else results.transpose(1, 0, 2)


# -- RNN ------------------------------------------------------------------------------------------


@kernel("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(call: Call) -> AnyArray:
    """``state = activation(bias + weights * input + recurrent * state)``."""
    time_major = bool(getattr(call.options, "time_major", False))
    rows = by_time(call, 0, time_major=time_major)
    results = _passed(call, rows, 1, 4)
    return without_time(results, len(call.input(0).shape), time_major=time_major)


@kernel("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(call: Call) -> list[AnyArray]:
    """Two of them, of which one goes backwards; in two outputs, or side by side in one."""
    time_major, has_more = bool(call.options.time_major), call.optional(9) is not None
    rows = by_time(call, 0, time_major=time_major)
    more = by_time(call, 9, time_major=time_major) if has_more else None
    crossed = call.optional(10) is not None
    found = []
    for first, state, extra in ((1, 4, 10), (5, 8, 11)):
        backwards = first == 5
        given = more if backwards and more is not None and not crossed else rows
        beside = (extra, more) if crossed and more is not None else None
        found.append(_passed(call, given, first, state, beside, backwards=backwards))
    merged = [np.concatenate(found, axis=-1)] if call.options.merge_outputs else found
    return [without_time(each, 3, time_major=time_major) for each in merged]


def _passed(
    call: Call,
    rows: AnyArray,
    first: int,
    state: int,
    more: tuple[int, AnyArray] | None = None,
    *,
    backwards: bool = False,
) -> AnyArray:
    """The states after each step.

    Args:
        call: the operator.
        rows: ``[T, B, I]``.
        first: the input that is the weights; the recurrent ones and the bias follow.
        state: the input that is the state, a variable.
        more: the input that is weights of other rows, and these.
        backwards: from the last step to the first.
    """
    if not call.input(0).is_float:
        raise call.error(f"of {call.input(0).tensor.type} is not lowered", UnsupportedError)
    bias, units = call.input(first + 2), call.input(first).shape[:1]
    if bias.shape != units:
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {list(units)} units")
    before = bias.value + products(call, rows, first)
    if more is not None:
        before = before + products(call, more[1], more[0])

    def step(last: AnyArray, given: AnyArray) -> Sequence[AnyArray]:
        return [call.activated(given + products(call, last, first + 1))]

    steps = np.flip(before, (0,)) if backwards else before
    (after,), results = over_time(step, [call.input(state).value], [steps])
    call.assign(state, after)
    return np.flip(results, (0,)) if backwards else results


# -- SVDF -----------------------------------------------------------------------------------------


@kernel("SVDF")
def svdf(call: Call) -> AnyArray:
    """A filter over features, and one over the last steps, of which each call adds one.

    The state is ``[B, filters * memory]``; each call drops its oldest column.
    """
    operand, features, times = call.input(0), call.input(1), call.input(2)
    bias, state = call.optional(3), call.input(4)
    rank = call.options.rank
    filters, memory = times.shape if len(times.shape) == 2 else (0, 0)
    if rank < 1 or not filters or filters % rank or len(operand.shape) != 2:
        raise call.error(f"has {filters} filters of rank {rank}")
    if bias is not None and bias.shape != (filters // rank,):
        raise call.error(f"has a bias of shape {list(bias.shape)} for {filters // rank} units")
    batch = operand.shape[0]
    columns = state.value.reshape((batch, filters, memory))

    def moved(latest: AnyArray) -> AnyArray:
        return np.concatenate([columns[:, :, 1:], latest.reshape((batch, filters, 1))], axis=2)

    if operand.is_float:
        if dynamic_range.is_hybrid(call, features):
            latest = dynamic_range.of_rows(call, operand.value, features)
        else:
            latest = contract(operand.value, call.reals(features, operand.value), ((1,), (1,)))
        kept = moved(latest)
        by_filter = (kept * call.reals(times, kept)).sum(axis=2, dtype=np.float32)
        total = by_filter.reshape((batch, filters // rank, rank)).sum(axis=2, dtype=np.float32)
        call.assign(4, kept)
        return call.activated(total if bias is None else total + bias.value)
    if call.activation != "RELU":
        raise call.error(
            f"has the option fused_activation_function = {call.activation}", UnsupportedError
        )
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    scales = [call.symmetric_scale(each) for each in (features, times, state)]
    matrix = call.constant(1)
    product = contract(operand.value, matrix, ((1,), (1,)), dtype=np.int32)
    offset = -x.zero_point * matrix.astype(np.int64).sum(axis=1)
    product = product + offset.astype(np.int32)
    latest = requantization.scaled(product, np.float64(x.scale * scales[0] / scales[2]))
    kept = moved(requantization.narrowed(latest, -32768, 32767, np.dtype(np.int16)))
    weights = call.constant(2).astype(np.int32)
    by_filter = (convert(kept, I32) * weights).sum(axis=2, dtype=np.int32)
    total = by_filter.reshape((batch, filters // rank, rank)).sum(axis=2, dtype=np.int32)
    if bias is not None:
        total = total + bias.value
    call.assign(4, kept)
    total = requantization.scaled(total, np.float64(scales[2] * scales[1] / y.scale)) + y.zero_point
    return requantization.narrowed(total, -128, 127, np.dtype(np.int8))
