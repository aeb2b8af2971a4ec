"""Importers of recurrent operators without gates, and of SVDF; their states are variables.

Sources: LiteRT, ``basic_rnn.cc``, ``unidirectional_sequence_rnn.cc``,
``bidirectional_sequence_rnn.cc``, ``RnnBatchStep`` of ``internal/kernel_utils.cc``, ``svdf.cc``,
``reference/svdf.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, over_time
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, AnyArray
from ..arithmetic.requantization import rescale, saturating_cast
from ..call import Call, importer
from . import dynamic_range

# -- layouts and products of all recurrent operators ----------------------------------------------


def multiply_weights(call: Call, values: AnyArray, index: int) -> AnyArray:
    """Multiply ``[..., I]`` by the weights ``[units, I]`` that are an input."""
    weights = call.input(index)
    if values.shape[-1:] != weights.shape[1:]:
        raise call.error(f"has weights of shape {list(weights.shape)} for {list(values.shape)}")
    if dynamic_range.applies(call, weights):
        return dynamic_range.multiply_rows(call, values, weights)
    return contract(values, call.expressed(weights, values), ((len(values.shape) - 1,), (1,)))


def to_time_major(call: Call, index: int, *, time_major: bool) -> AnyArray:
    """Return an input ``[B, T, I]``, or one time step ``[B, I]``, as ``[T, B, I]``."""
    value = call.input(index).value
    if value.ndim not in (2, 3):
        raise call.error(f"has an input of shape {list(value.shape)}")
    if value.ndim == 2:
        return value[None]
    sequence = value if time_major else value.transpose(1, 0, 2)
    if not sequence.shape[0]:
        raise call.error("has no time steps")
    return sequence


def initial_state(call: Call, index: int, sequence: AnyArray) -> AnyArray:
    """Return a state ``[B, units]``, an input, for a sequence ``[T, B, I]``.

    Raises:
        InputError: the batches differ.
    """
    state = call.input(index)
    if state.shape[:1] != sequence.shape[1:2]:
        raise call.error(
            f"has a state of shape {list(state.shape)} for a batch of {sequence.shape[1]}"
        )
    return state.value


def run_forward(call: Call, run: Callable[[AnyArray], AnyArray]) -> AnyArray:
    """Return the results ``[T, B, O]`` of `run` on input 0, in the layout of that input."""
    time_major = bool(getattr(call.options, "time_major", False))
    results = run(to_time_major(call, 0, time_major=time_major))
    if len(call.input(0).shape) == 2:
        return results.reshape(results.shape[1:])
    return results if time_major else results.transpose(1, 0, 2)


def run_both_directions(
    call: Call,
    auxiliary: int,
    weights: int,
    run: Callable[[bool, AnyArray, AnyArray | None], AnyArray],
) -> list[AnyArray]:
    """Return the results of both directions, concatenated if the options say so.

    Both layers add the auxiliary sequence if it has weights. Without weights, it is the input of
    the backward layer.

    Args:
        auxiliary, weights: the inputs with the auxiliary sequence and its weights.
        run: computes a layer, backward in time or not, of its input and the auxiliary sequence.
    """
    time_major = bool(call.options.time_major)
    sequence = to_time_major(call, 0, time_major=time_major)
    has_auxiliary = call.optional(auxiliary) is not None
    extra = to_time_major(call, auxiliary, time_major=time_major) if has_auxiliary else None
    is_crossed = call.optional(weights) is not None
    source = sequence if extra is None or is_crossed else extra
    extra = extra if is_crossed else None
    results = [run(False, sequence, extra), run(True, source, extra)]
    if call.options.merge_outputs:
        results = [np.concatenate(results, axis=-1)]
    return results if time_major else [each.transpose(1, 0, 2) for each in results]


# -- RNN ------------------------------------------------------------------------------------------


@importer("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN")
def rnn(call: Call) -> AnyArray:
    """Import RNN: ``state = activation(bias + weights * input + recurrent * state)``."""
    return run_forward(call, lambda sequence: _run_rnn(call, sequence, 1, 4))


@importer("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(call: Call) -> list[AnyArray]:
    """Import BIDIRECTIONAL_SEQUENCE_RNN: two layers, one of them backward in time."""

    def run(backward: bool, sequence: AnyArray, auxiliary: AnyArray | None) -> AnyArray:
        first, state, weights = (5, 8, 11) if backward else (1, 4, 10)
        extra = None if auxiliary is None else (weights, auxiliary)
        return _run_rnn(call, sequence, first, state, extra, backward=backward)

    return run_both_directions(call, 9, 10, run)


def _run_rnn(
    call: Call,
    sequence: AnyArray,
    first: int,
    state: int,
    auxiliary: tuple[int, AnyArray] | None = None,
    *,
    backward: bool = False,
) -> AnyArray:
    """Return the states after each time step of ``[T, B, I]``.

    Input `first` has the weights, followed by the recurrent weights and the bias; input `state` is
    a variable. `auxiliary` is the input with the weights of an auxiliary sequence, and this
    sequence.
    """
    call.require_float(call.input(0))
    bias, units = call.input(first + 2), call.input(first).shape[:1]
    if bias.shape != units:
        raise call.error(f"adds {bias} of shape {list(bias.shape)} to {list(units)} units")
    weighted = bias.value + multiply_weights(call, sequence, first)
    if auxiliary is not None:
        weighted = weighted + multiply_weights(call, auxiliary[1], auxiliary[0])

    def step(previous: AnyArray, weighted_input: AnyArray) -> Sequence[AnyArray]:
        return [call.activated(weighted_input + multiply_weights(call, previous, first + 1))]

    steps = np.flip(weighted, (0,)) if backward else weighted
    (last,), results = over_time(step, [initial_state(call, state, sequence)], [steps])
    call.assign(state, last)
    return np.flip(results, (0,)) if backward else results


# -- SVDF -----------------------------------------------------------------------------------------


@importer("SVDF")
def svdf(call: Call) -> AnyArray:
    """Import SVDF: a filter over features, and one over the last time steps.

    The state is ``[B, filters * memory]``. Each call appends a time step and drops the oldest.
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
    history = initial_state(call, 4, operand.value[None]).reshape((batch, filters, memory))

    def append(latest: AnyArray) -> AnyArray:
        return np.concatenate([history[:, :, 1:], latest.reshape((batch, filters, 1))], axis=2)

    if operand.is_float:
        if dynamic_range.applies(call, features):
            latest = dynamic_range.multiply_rows(call, operand.value, features)
        else:
            weights = call.expressed(features, operand.value)
            latest = contract(operand.value, weights, ((1,), (1,)))
        history = append(latest)
        by_filter = (history * call.expressed(times, history)).sum(axis=2, dtype=np.float32)
        total = by_filter.reshape((batch, filters // rank, rank)).sum(axis=2, dtype=np.float32)
        call.assign(4, history)
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
    latest = rescale(product, np.float64(x.scale * scales[0] / scales[2]))
    history = append(saturating_cast(latest, -32768, 32767, np.dtype(np.int16)))
    weights = call.constant(2).astype(np.int32)
    by_filter = (convert(history, I32) * weights).sum(axis=2, dtype=np.int32)
    total = by_filter.reshape((batch, filters // rank, rank)).sum(axis=2, dtype=np.int32)
    if bias is not None:
        total = total + bias.value
    call.assign(4, history)
    total = rescale(total, np.float64(scales[2] * scales[1] / y.scale)) + y.zero_point
    return saturating_cast(total, -128, 127, np.dtype(np.int8))
