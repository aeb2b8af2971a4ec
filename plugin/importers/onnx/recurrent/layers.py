"""LSTM, GRU and RNN: a loop over time steps for each direction.

Sources: ONNX, LSTM 22, GRU 22, RNN 22.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....numerics.element_types import AnyArray
from ..call import Call, importer
from .layer import Layer, Step, float_layer

LSTM_FUNCTIONS = ("sigmoid", "tanh", "tanh")
"""The default activation functions f, g and h of an LSTM."""


@importer("LSTM")
def lstm(call: Call) -> list[AnyArray]:
    """LSTM-22: ``X, W, R, B, sequence_lens, initial_h, initial_c, P`` to ``Y, Y_h, Y_c``."""
    return lstm_of(float_layer(call, 4, LSTM_FUNCTIONS))


def lstm_of(layer: Layer) -> list[AnyArray]:
    """Compute an LSTM; its gates are in the order input, output, forget, cell."""
    products, clipped = layer.products, layer.clipped
    bias, peepholes = layer.bias(), layer.weights(7, 3)
    one = layer.element.dtype.type(1)
    couples_gates = bool(layer.call.attribute("input_forget", 0))

    def step_of(n: int) -> Step:
        f, g, h = layer.functions[n]
        of_states = products.of_states(n, 0, 4)
        peephole = (None,) * 3 if peepholes is None else tuple(peepholes[n, k] for k in range(3))

        def activated(total: AnyArray, cell: AnyArray, weight: AnyArray) -> AnyArray:
            return f(clipped(total if weight is None else total + cell * weight))

        def step(row: AnyArray, state: AnyArray, cell: AnyArray) -> Sequence[AnyArray]:
            total = row + of_states(state)
            gates = total.reshape((layer.batch, 4, products.hidden))
            opening = activated(gates[:, 0], cell, peephole[0])
            forget = one - opening if couples_gates else activated(gates[:, 2], cell, peephole[2])
            cell = forget * cell + opening * g(clipped(gates[:, 3]))
            return [activated(gates[:, 1], cell, peephole[1]) * h(cell), cell]

        return step

    before = layer.input_products(bias)
    return layer.compute(before, [layer.state(5), layer.state(6)], step_of)


@importer("GRU")
def gru(call: Call) -> list[AnyArray]:
    """GRU-22: ``X, W, R, B, sequence_lens, initial_h``; the gates are update, reset, hidden.

    With ``linear_before_reset`` the reset gate scales the products of the state with R and their
    bias; without it, the state.
    """
    layer = float_layer(call, 3, ("sigmoid", "tanh"))
    products, clipped, bias = layer.products, layer.clipped, layer.bias()
    one = layer.element.dtype.type(1)
    is_linear_first = bool(call.attribute("linear_before_reset", 0))

    def step_of(n: int) -> Step:
        f, g = layer.functions[n]
        count = 3 if is_linear_first else 2
        of_states = products.of_states(n, 0, count)
        of_hidden = None if is_linear_first else products.of_states(n, 2, 3)

        def step(row: AnyArray, state: AnyArray) -> Sequence[AnyArray]:
            inputs = row.reshape((layer.batch, 3, products.hidden))
            total = of_states(state).reshape((layer.batch, count, products.hidden))
            update, reset = (f(clipped(inputs[:, k] + total[:, k])) for k in (0, 1))
            if of_hidden is None:
                hidden = reset * (total[:, 2] + bias[n, 1, 2])
            else:
                hidden = of_hidden(reset * state)
            hidden = g(clipped(inputs[:, 2] + hidden))
            return [(one - update) * hidden + update * state]

        return step

    before = []
    for n in range(products.directions):
        extra = bias[n, 0] + bias[n, 1]
        if is_linear_first:
            extra = np.concatenate([extra[:2], bias[n, 0, 2:]])
        before.append(products.of_inputs(layer, n) + extra.reshape(-1))
    return layer.compute(before, [layer.state(5)], step_of)


@importer("RNN")
def rnn(call: Call) -> list[AnyArray]:
    """RNN-22: ``X, W, R, B, sequence_lens, initial_h`` to ``Y, Y_h``."""
    layer = float_layer(call, 1, ("tanh",))

    def step_of(n: int) -> Step:
        (f,) = layer.functions[n]
        of_states = layer.products.of_states(n, 0, 1)
        return lambda row, state: [f(layer.clipped(row + of_states(state)))]

    return layer.compute(layer.input_products(layer.bias()), [layer.state(5)], step_of)
