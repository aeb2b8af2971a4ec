"""LSTM, GRU and RNN: a loop over time steps for each direction.

The products of the inputs with W are one contraction before the loop; a step of the loop has the
products of the state with R. A sequence ends at its length: later outputs are 0, and the final
state is that of the length. The reverse direction reverses each sequence within its length.

f16 and bf16 are computed in f32, and rounded once, in the results.

Sources: ONNX, LSTM 22, GRU 22, RNN 22. ONNX Runtime decides where the specification is silent: how
alpha and beta are assigned to activation functions; ``clip`` does not change the cell state; the
final states of an empty sequence are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from ....numerics.array_functions import convert, is_known, over_time, take
from ....numerics.convolutions import contract
from ....numerics.element_types import F32, I32, AnyArray, ElementType
from ..call import Call, importer
from .activations import Function, functions_of

Step = Callable[..., Sequence[AnyArray]]
"""The function takes the gates' products of an input and the states, and returns the states."""


_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class Products(Protocol):
    """The products with W and R of a layer, of the gates side by side."""

    gates: int
    hidden: int
    directions: int

    def of_inputs(self, layer: Layer, direction: int) -> AnyArray:
        """Return ``X W'``, ``[T, B, gates * hidden]``."""

    def of_states(self, direction: int, first: int, last: int) -> Function:
        """Return the function ``H R'`` of the gates from first to last, which a loop calls."""


class FloatProducts:
    """Products with float weights: W is ``[D, gates * H, I]`` and R ``[D, gates * H, H]``.

    `element` is the type of the accumulators.
    """

    def __init__(self, call: Call, gates: int, element: ElementType) -> None:
        self.gates = gates
        self._weights, self._recurrent = (convert(call.array(n), element) for n in (1, 2))
        shapes = [tuple(side.shape) for side in (self._weights, self._recurrent)]
        if any(len(shape) != 3 for shape in shapes):
            raise call.error(f"has W and R of shapes {[list(shape) for shape in shapes]}")
        self.directions, self.hidden = shapes[1][0], shapes[1][2]
        expected = (self.directions, gates * self.hidden)
        if any(shape[:2] != expected for shape in shapes):
            raise call.error(f"has W and R of shapes {[list(shape) for shape in shapes]}")

    def of_inputs(self, layer: Layer, direction: int) -> AnyArray:
        """One contraction of all steps."""
        weights, dtype = self._weights[direction], layer.element.dtype
        return contract(layer.inputs, weights, ((2,), (1,)), dtype=dtype)

    def of_states(self, direction: int, first: int, last: int) -> Function:
        """A contraction of one step, with the weights transposed before the loop.

        This halves the time of one row with 512 x 128.
        """
        rows = self._recurrent[direction][first * self.hidden : last * self.hidden]
        weights = rows.transpose(1, 0)
        return lambda state: contract(state, weights, ((1,), (0,)), dtype=state.dtype)


class Layer:
    """The operands that all recurrent operators have, checked.

    Args:
        call: the node. Inputs 0, 3, 4 and 5 are X, B, sequence_lens and initial_h.
        products: the products with its weights.
        element: the type of the computation.
        functions: the names of the default activation functions of a direction.
    """

    def __init__(
        self, call: Call, products: Products, element: ElementType, functions: Sequence[str]
    ) -> None:
        self.call, self.products, self.element = call, products, element
        self.is_batch_first = bool(call.attribute("layout", 0))
        inputs = convert(call.array(0), element)
        if len(inputs.shape) != 3:
            raise call.error(f"has X of shape {list(inputs.shape)}, expected three dimensions")
        self.inputs = inputs.transpose(1, 0, 2) if self.is_batch_first else inputs
        self.steps, self.batch = self.inputs.shape[:2]
        if not self.steps:
            raise call.unsupported("has no time steps")
        name = call.attribute("direction", "forward")
        if len(_DIRECTIONS.get(name, ())) != products.directions:
            raise call.error(f"has the direction {name!r}, and weights of {products.directions}")
        self.is_reverse = _DIRECTIONS[name]
        size = call.attribute("hidden_size", products.hidden)
        if size != products.hidden:
            raise call.error(f"has the hidden_size {size}, and R for one of {products.hidden}")
        self.functions = functions_of(call, functions, products.directions, element.dtype.type)
        self.lengths = self._lengths()

    def _lengths(self) -> AnyArray:
        """Return the lengths of the sequences as int32; None where each is as long as X."""
        if self.call.optional(4) is None:
            return None
        lengths = self.call.array(4)
        if tuple(lengths.shape) != (self.batch,):
            raise self.call.error(
                f"has sequence_lens of shape {list(lengths.shape)}, expected [{self.batch}]"
            )
        if is_known(lengths):
            if ((lengths < 0) | (lengths > self.steps)).any():
                raise self.call.error(f"has sequence_lens outside of 0 to {self.steps}")
            if (lengths == self.steps).all():
                return None
        return convert(lengths, I32)

    def weights(self, index: int, count: int) -> AnyArray:
        """Return an input ``[D, count * H]`` as ``[D, count, H]``; None if it is absent."""
        if self.call.optional(index) is None:
            return None
        value = convert(self.call.array(index), self.element)
        shape = (self.products.directions, count * self.products.hidden)
        if tuple(value.shape) != shape:
            raise self.call.error(
                f"has {self.call.input(index)} of shape {list(value.shape)}, expected {list(shape)}"
            )
        return value.reshape((shape[0], count, self.products.hidden))

    def state(self, index: int) -> AnyArray:
        """Return an initial state ``[D, B, H]``, 0 if it is absent."""
        shape = (self.products.directions, self.batch, self.products.hidden)
        if self.call.optional(index) is None:
            return np.zeros(shape, self.element.dtype)
        value = convert(self.call.array(index), self.element)
        if self.is_batch_first:
            value = value.transpose(1, 0, 2)
        if tuple(value.shape) != shape:
            raise self.call.error(f"has {self.call.input(index)} for states of {list(value.shape)}")
        return value

    @cached_property
    def clipped(self) -> Function:
        """The bound of the operands of activation functions."""
        bound = self.call.attribute("clip")
        if bound is None:
            return lambda x: x
        if not bound > 0:
            raise self.call.error(f"has the clip {bound}, expected more than 0")
        high = self.element.dtype.type(bound)
        return lambda x: np.minimum(np.maximum(x, -high), high)

    def bias(self) -> AnyArray:
        """Return B as ``[D, 2, gates, H]``, 0 if it is absent."""
        gates, hidden = self.products.gates, self.products.hidden
        bias = self.weights(3, 2 * gates)
        if bias is None:
            bias = np.zeros((self.products.directions, 2 * gates, hidden), self.element.dtype)
        return bias.reshape((self.products.directions, 2, gates, hidden))

    def input_products(self, bias: AnyArray) -> list[AnyArray]:
        """Return the products of the inputs of each direction, plus the sum of both biases."""
        return [
            self.products.of_inputs(self, n) + (bias[n, 0] + bias[n, 1]).reshape(-1)
            for n in range(self.products.directions)
        ]

    def compute(
        self, before: Sequence[AnyArray], states: Sequence[AnyArray], step_of: Callable[[int], Step]
    ) -> list[AnyArray]:
        """Compute the results: the outputs of all steps, and each final state.

        Args:
            before: the products of the inputs of each direction, ``[T, B, ...]``.
            states: the initial states, ``[D, B, H]``; the first one is the output.
            step_of: returns the step of a direction.
        """
        steps = [step_of(n) for n in range(self.products.directions)]
        outputs, final_states = [], []
        for n, step in enumerate(steps):
            rows = self._reversed(before[n]) if self.is_reverse[n] else before[n]
            final, ys = self._direction(rows, [state[n] for state in states], step)
            outputs.append(self._reversed(ys) if self.is_reverse[n] else ys)
            final_states.append(final)
        axis = 2 if self.is_batch_first else 1
        if self.is_batch_first:
            outputs = [each.transpose(1, 0, 2) for each in outputs]
        results = [np.stack(outputs, axis)]
        results += [np.stack(each, axis - 1) for each in zip(*final_states, strict=True)]
        target = ElementType.of_dtype(np.dtype(self.call.array(0).dtype))
        return [convert(result, target) for result in results]

    def _direction(
        self, rows: AnyArray, states: Sequence[AnyArray], step: Step
    ) -> tuple[list[AnyArray], AnyArray]:
        """Return the final states of one direction, and the outputs of all steps."""
        if self.lengths is None:
            return over_time(lambda *values: step(values[-1], *values[:-1]), states, [rows])
        lengths, zero = self.lengths.reshape((self.batch, 1)), self.element.dtype.type(0)
        has_outputs = bool(self.call.node.outputs[0])

        def masked(output: AnyArray, *values: AnyArray) -> list[AnyArray]:
            *states, row, index = values
            is_inside = index < lengths
            operand = output if has_outputs else states[0]  # its range matters if quantized
            after = [
                np.where(is_inside, new, old)
                for new, old in zip(step(row, operand, *states[1:]), states, strict=True)
            ]
            return [np.where(is_inside, after[0], zero), *after]

        indices = np.arange(self.steps, dtype=np.int32)
        (_, *final), outputs = over_time(masked, [states[0], *states], [rows, indices])
        return [np.where(lengths > 0, each, zero) for each in final], outputs

    def _reversed(self, rows: AnyArray) -> AnyArray:
        """Reverse ``[T, B, ...]``, each sequence within its length."""
        if self.lengths is None:
            return np.flip(rows, (0,))
        index = np.arange(self.steps, dtype=np.int32).reshape((self.steps, 1))
        lengths = np.minimum(self.lengths.reshape((1, self.batch)), np.int32(self.steps))
        index = np.where(index < lengths, lengths - np.int32(1) - index, index)
        flat = index * np.int32(self.batch) + np.arange(self.batch, dtype=np.int32)
        whole = rows.reshape((self.steps * self.batch, *rows.shape[2:]))
        return take(whole, flat.reshape(-1), 0).reshape(rows.shape)


def float_layer(call: Call, gates: int, functions: Sequence[str]) -> Layer:
    """Return a layer with float weights, computed in the type of X, and in f32 for f16 and bf16."""
    element = ElementType.of_dtype(np.dtype(call.array(0).dtype))
    element = F32 if element.bits < F32.bits else element
    return Layer(call, FloatProducts(call, gates, element), element, functions)


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
