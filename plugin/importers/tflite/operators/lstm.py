"""Importers of LSTMs, whose states are variables.

Time steps are a loop in the program. Products that do not depend on the state are computed before
the loop, for all time steps at once.

Sources: LiteRT, ``lstm.cc``, ``unidirectional_sequence_lstm.cc``,
``bidirectional_sequence_lstm.cc``, ``lstm_eval.cc``, ``reference/portable_tensor_utils.cc``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, divide_truncated, over_time, rounded_product
from ....numerics.convolutions import contract
from ....numerics.element_types import I32, I64, AnyArray, Array
from ....numerics.fixed_point import apply_scale
from ..arithmetic.fixed_point_functions import inverse_square_root
from ..arithmetic.fixed_point_functions import logistic as fixed_point_logistic
from ..arithmetic.fixed_point_functions import tanh as fixed_point_tanh
from ..arithmetic.requantization import (
    checked_log2,
    multiplier_and_exponent,
    rescale,
    rescale_by,
    rounding_right_shift,
    saturating_cast,
)
from ..call import Call, importer
from ..operand import Operand
from ..reading.model import Quantization
from ..reading.schema import ACTIVATIONS
from .recurrent import initial_state, multiply_weights, run_both_directions, run_forward

_INPUT, _FORGET, _CELL, _OUTPUT = range(4)  # gates, in the order of the operator's inputs
_TANH = ACTIVATIONS.index("TANH")


@dataclass(frozen=True)
class _InputIndices:
    """The inputs of an LSTM; of four consecutive ones, the first.

    Args:
        weights, recurrent, peephole, bias: the first of one input for each gate.
        projection, projection_bias, state, cell_state: single inputs.
        norm: the first of the layer normalization coefficients; None if the operator has none.
        auxiliary: the first of the weights of an auxiliary sequence; None if it has none.
    """

    weights: int = 1
    recurrent: int = 5
    peephole: int = 9
    bias: int = 12
    projection: int = 16
    projection_bias: int = 17
    state: int = 18
    cell_state: int = 19
    norm: int | None = 20
    auxiliary: int | None = None


_UNIDIRECTIONAL = _InputIndices()
_FORWARD = _InputIndices(state=35, cell_state=36, norm=None, auxiliary=40)
_BACKWARD = _InputIndices(18, 22, 26, 29, 33, 34, 37, 38, None, 44)


@importer("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(call: Call) -> AnyArray:
    """Import LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM, on ``[B, T, I]`` or ``[T, B, I]``."""
    if getattr(call.options, "kernel_type", 0):
        raise call.error("has the basic kernel, with one matrix of weights", UnsupportedError)
    return run_forward(call, lambda sequence: _run_lstm(call, _UNIDIRECTIONAL, sequence))


@importer("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_sequence_lstm(call: Call) -> list[AnyArray]:
    """Import BIDIRECTIONAL_SEQUENCE_LSTM: two layers, one of them backward in time."""
    call.require_float(call.input(0))

    def run(backward: bool, sequence: AnyArray, auxiliary: AnyArray | None) -> AnyArray:
        if not backward:
            return _run_lstm(call, _FORWARD, sequence, auxiliary)
        auxiliary = None if auxiliary is None else np.flip(auxiliary, (0,))
        return np.flip(_run_lstm(call, _BACKWARD, np.flip(sequence, (0,)), auxiliary), (0,))

    return run_both_directions(call, 39, 41, run)


def _run_lstm(
    call: Call, indices: _InputIndices, sequence: AnyArray, auxiliary: AnyArray | None = None
) -> AnyArray:
    """Return the outputs after each time step of ``[T, B, I]``, and assign the states."""
    options = call.options
    for name in ("cell_clip", "proj_clip"):
        if not getattr(options, name) >= 0:
            raise call.error(f"has the option {name} = {getattr(options, name)}")
    if not call.input(0).is_float and options.fused_activation_function not in (0, _TANH):
        raise call.error(
            f"of {call.input(0).tensor.type} has the option fused_activation_function = "
            f"{call.activation}",
            UnsupportedError,
        )
    lstm = (_FloatLstm if call.input(0).is_float else _IntegerLstm)(call, indices)
    lstm.check_shapes()
    states = [initial_state(call, index, sequence) for index in (indices.state, indices.cell_state)]
    weighted = [lstm.weighted_input(gate, sequence, auxiliary) for gate in lstm.gates]
    (state, cell_state), results = over_time(lstm.step, states, weighted)
    call.assign(indices.state, state)
    call.assign(indices.cell_state, cell_state)
    return results


@dataclass(frozen=True, eq=False)
class _Lstm(ABC):
    """Base of the float and the integer LSTM."""

    call: Call
    indices: _InputIndices

    @property
    def gates(self) -> list[int]:
        """The computed gates; without weights, the input gate is 1 minus the forget gate."""
        has_input_gate = self.call.optional(self.indices.weights + _INPUT) is not None
        return list(range(_INPUT if has_input_gate else _FORGET, 4))

    def check_shapes(self) -> None:
        """Refuse weights and biases without an element for each cell and each output."""
        call, indices = self.call, self.indices
        outputs, cells = (call.input(n).shape[-1] for n in (indices.state, indices.cell_state))
        is_diagonal = getattr(call.options, "diagonal_recurrent_tensors", None)
        recurrent = (cells,) if is_diagonal else (cells, outputs)
        reason = "" if is_diagonal is None else f" (diagonal_recurrent_tensors = {is_diagonal})"
        shapes: list[tuple[Operand | None, tuple[int, ...]]] = []
        for gate in self.gates:
            norm = self.norm(gate)
            shapes += [
                (call.input(indices.recurrent + gate), recurrent),
                (call.input(indices.bias + gate), (cells,)),
                (self.peephole(gate), (cells,)),
                (None if norm is None else call.input(norm), (cells,)),
            ]
        if call.optional(indices.projection) is not None:
            shapes.append((call.input(indices.projection), (outputs, cells)))
            shapes.append((call.optional(indices.projection_bias), (outputs,)))
        for operand, shape in shapes:
            if operand is not None and operand.shape != shape:
                raise call.error(
                    f"has {operand} of shape {list(operand.shape)}, expected {list(shape)}{reason}"
                )

    def peephole(self, gate: int) -> Operand | None:
        """Return the weights of the cell state in a gate; None for the cell, or if absent."""
        if gate == _CELL:
            return None
        offset = {_INPUT: 0, _FORGET: 1, _OUTPUT: 2}[gate]
        return self.call.optional(self.indices.peephole + offset)

    def norm(self, gate: int) -> int | None:
        """Return the input of a gate's layer normalization coefficients; None if it is absent."""
        first = self.indices.norm
        if first is None or self.call.optional(first + gate) is None:
            return None
        return first + gate

    @abstractmethod
    def weighted_input(self, gate: int, x: AnyArray, auxiliary: AnyArray | None) -> AnyArray:
        """Return the terms ``[T, B, cells]`` of a gate that do not depend on the state."""


class _FloatLstm(_Lstm):
    """LSTM in f32; integer weights are dequantized."""

    def weighted_input(self, gate: int, x: AnyArray, auxiliary: AnyArray | None) -> AnyArray:
        call, indices = self.call, self.indices
        total = multiply_weights(call, x, indices.weights + gate)
        if self.norm(gate) is None:
            total = call.input(indices.bias + gate).value + total
        if auxiliary is not None and indices.auxiliary is not None:
            total = total + multiply_weights(call, auxiliary, indices.auxiliary + gate)
        return total

    def _normalized(self, total: AnyArray, gate: int) -> AnyArray:
        """Apply layer normalization, and add the bias."""
        norm = self.norm(gate)
        if norm is None:
            return total
        count, one = np.float32(total.shape[-1]), np.float32(1)
        centered = total - total.sum(axis=-1, dtype=np.float32, keepdims=True) / count
        square = (centered * centered).sum(axis=-1, dtype=np.float32, keepdims=True) / count
        scaled = centered * (one / np.sqrt(square + np.float32(1e-8)))
        coefficients = self.call.expressed(self.call.input(norm), total)
        return scaled * coefficients + self.call.input(self.indices.bias + gate).value

    def step(self, state: AnyArray, cell: AnyArray, *inputs: AnyArray) -> Sequence[AnyArray]:
        call, indices = self.call, self.indices
        by_gate, one = dict(zip(self.gates, inputs, strict=True)), np.float32(1)

        def gate(number: int, cell: AnyArray) -> AnyArray:
            weights = call.input(indices.recurrent + number)
            if len(weights.shape) == 1:  # a diagonal
                product = rounded_product(state, call.expressed(weights, state))
            else:
                product = multiply_weights(call, state, indices.recurrent + number)
            total = by_gate[number] + product
            peephole = self.peephole(number)
            if peephole is not None:
                total = total + rounded_product(cell, call.expressed(peephole, state))
            total = self._normalized(total, number)
            return self._activated(total) if number == _CELL else one / (one + np.exp(-total))

        forget_gate = gate(_FORGET, cell)
        input_gate = gate(_INPUT, cell) if _INPUT in by_gate else one - forget_gate
        cell_state = forget_gate * cell + gate(_CELL, cell) * input_gate
        cell_state = _clipped(cell_state, call.options.cell_clip)
        result = gate(_OUTPUT, cell_state) * self._activated(cell_state)
        if call.optional(indices.projection) is not None:
            result = multiply_weights(call, result, indices.projection)
            bias = call.optional(indices.projection_bias)
            result = result if bias is None else result + bias.value
            result = _clipped(result, call.options.proj_clip)
        return [result, cell_state]

    def _activated(self, values: AnyArray) -> AnyArray:
        number = self.call.options.fused_activation_function
        name = ACTIVATIONS[number] if 0 <= number < len(ACTIVATIONS) else str(number)
        if name in ("TANH", "RELU", "RELU6"):
            return self.call.activated(values)
        raise self.call.error(
            f"has the option fused_activation_function = {name}", UnsupportedError
        )


def _clipped(values: AnyArray, bound: float) -> AnyArray:
    limit = np.float32(bound)
    return values if bound <= 0 else np.minimum(np.maximum(values, -limit), limit)


class _IntegerLstm(_Lstm):
    """LSTM with 8-bit activations and weights and 16-bit gates: LiteRT's ``8x8_16``.

    Gates have 12 fractional bits. The accumulators of a gate are rescaled separately, and added
    with saturation. Factors are products and quotients of f32.
    """

    def _scale(self, index: int) -> np.float32:
        """Return the scale of weights, of coefficients, or of the cell state."""
        return self.call.symmetric_scale(self.call.input(index))

    def _cell_exponent(self) -> int:
        """Return the log2 of the cell state's scale."""
        scale = self._scale(self.indices.cell_state)
        exponent = checked_log2(scale)
        if exponent is None or not -15 <= exponent <= -9:
            raise self.call.error(
                "needs a scale of the cell's state that is a power of two from 2**-15 to 2**-9, "
                f"got {scale}"
            )
        return exponent

    def _gate_scale(self, gate: int) -> np.float32:
        """Return the scale of a gate's accumulators: ``2**-12``, or the one before its norm."""
        if self.norm(gate) is None:
            return np.float32(2.0**-12)
        return self._intermediate(gate, "a gate before its norm").scale

    def _intermediate(self, index: int, what: str) -> Quantization:
        intermediates = self.call.operator.intermediates
        tensor = intermediates[index] if index < len(intermediates) else None
        if tensor is None:
            raise self.call.error(f"has no scale of {what} (intermediate {index})")
        return self.call.per_tensor(tensor)

    def _factor(self, weights: int, activations: int, gate: int) -> np.float64:
        """Return the scale of a product in units of a gate."""
        operand = self.call.input(activations).tensor
        product = self._scale(weights) * self.call.per_tensor(operand).scale
        return np.float64(product / self._gate_scale(gate))

    def _accumulate(
        self, values: AnyArray, weights: int, zero_point: int, bias: Array | None = None
    ) -> AnyArray:
        """Multiply centered values by weights in 32 bits, and add the bias."""
        matrix = self.call.constant(weights)
        offset = -zero_point * matrix.astype(np.int64).sum(axis=1)
        if bias is not None:
            offset = offset + bias
        product = contract(values, matrix, ((values.ndim - 1,), (1,)), dtype=np.int32)
        return product + offset.astype(np.int32) if offset.any() else product

    def weighted_input(self, gate: int, x: AnyArray, auxiliary: AnyArray | None) -> AnyArray:
        call, weights = self.call, self.indices.weights + gate
        zero_point = call.per_tensor(call.input(0).tensor).zero_point
        bias = call.constant(self.indices.bias + gate) if self.norm(gate) is None else None
        total = self._accumulate(x, weights, zero_point, bias)
        return _clamp_int16(rescale(total, self._factor(weights, 0, gate)))

    def _normalized(self, total: AnyArray, gate: int) -> AnyArray:
        """Apply layer normalization with 10 more bits; a zero variance is replaced by a bound."""
        norm = self.norm(gate)
        if norm is None:
            return total
        scale, wide, count = self._scale(norm), convert(total, I64), total.shape[-1]
        total = wide.sum(axis=-1, dtype=np.int64, keepdims=True)
        mean = divide_truncated(total * 1024, np.int64(count))
        squares = (wide * wide).sum(axis=-1, dtype=np.int64, keepdims=True)
        scaled = squares * ((1 << 20) // count) - mean * mean
        variance = divide_truncated(scaled, np.int64(1 << 20))
        min_variance = max(1, int(np.float32(10000) * scale))
        variance = np.where(variance < 1, np.int64(min_variance), variance)
        inverse, shift = inverse_square_root(variance)
        rescaled = apply_scale(wide * 1024 - mean, inverse, shift + 31, "gemmlowp")
        coefficients = self.call.constant(norm).astype(np.int64)
        bias = self.call.constant(self.indices.bias + gate).astype(np.int64)
        value = rescaled * coefficients + bias
        value = divide_truncated(np.where(value > 0, value + 512, value - 512), np.int64(1024))
        multiplier, exponent = multiplier_and_exponent(np.float64(scale))
        return convert(_clamp_int16(rescale_by(value, multiplier, exponent + 12)), I32)

    def step(self, state: AnyArray, cell: AnyArray, *inputs: AnyArray) -> Sequence[AnyArray]:
        call, indices, exponent = self.call, self.indices, self._cell_exponent()
        by_gate = dict(zip(self.gates, inputs, strict=True))
        wide = convert(cell, I32)

        def gate(number: int, cell: AnyArray) -> AnyArray:
            weights = indices.recurrent + number
            if len(call.input(weights).shape) != 2:
                raise call.error("has diagonal recurrent weights", UnsupportedError)
            zero_point = call.per_tensor(call.input(indices.state).tensor).zero_point
            total = self._accumulate(state, weights, zero_point)
            factor = self._factor(weights, indices.state, number)
            total = _clamp_int16(by_gate[number] + rescale(total, factor))
            peephole = self.peephole(number)
            if peephole is not None:
                unit = np.float64(self._gate_scale(number))
                peephole_scale = np.float64(call.symmetric_scale(peephole))
                scale = np.float32(2.0**exponent * peephole_scale / unit)
                product = cell * convert(peephole.value, I32)
                total = _clamp_int16(total + rescale(product, np.float64(scale)))
            total = self._normalized(total, number)
            return fixed_point_tanh(total, 3) if number == _CELL else fixed_point_logistic(total)

        forget_gate = gate(_FORGET, wide)
        input_gate = gate(_INPUT, wide) if _INPUT in by_gate else 32767 - forget_gate
        remembered = rounding_right_shift(forget_gate * wide, 15)
        update = rounding_right_shift(input_gate * gate(_CELL, wide), 30 + exponent)
        cell_state = _clamp_int16(remembered + _clamp_int16(update))
        clip = _storage_clip(call.options.cell_clip, self._scale(indices.cell_state), 32767)
        if clip:
            cell_state = np.minimum(np.maximum(cell_state, -clip), clip)
        output_gate = gate(_OUTPUT, cell_state)
        result = self._result(output_gate * fixed_point_tanh(cell_state, 15 + exponent))
        return [result, cell_state.astype(np.int16)]

    def _result(self, products: AnyArray) -> AnyArray:
        """Return the new state of products with 30 fractional bits, projected if configured."""
        call, indices = self.call, self.indices
        hidden = self._intermediate(4, "its hidden state")
        int8 = np.dtype(np.int8)
        factor = np.float32(2.0**-15 / np.float64(hidden.scale) * 2.0**-15)
        total = rescale(products, np.float64(factor))
        if call.optional(indices.projection) is None:
            return saturating_cast(total + hidden.zero_point, -128, 127, int8)
        # LiteRT uses the zero point with the opposite sign, twice.
        values = saturating_cast(total - hidden.zero_point, -128, 127, int8)
        has_bias = call.optional(indices.projection_bias) is not None
        bias = call.constant(indices.projection_bias) if has_bias else None
        total = self._accumulate(values, indices.projection, -hidden.zero_point, bias)
        state = call.per_tensor(call.input(indices.state).tensor)
        factor = np.float32(self._scale(indices.projection) * hidden.scale / state.scale)
        total = rescale(total, np.float64(factor)) + state.zero_point
        result = saturating_cast(total, -128, 127, int8)
        clip = _storage_clip(call.options.proj_clip, call.per_tensor(call.output).scale, 127)
        return np.minimum(np.maximum(result, -clip), clip) if clip else result


def _clamp_int16(values: AnyArray) -> AnyArray:
    return np.minimum(np.maximum(values, -32768), 32767)


def _storage_clip(clip: float, scale: np.float32, greatest: int) -> int:
    """Return a clipping bound in units of a scale; 0 without clipping."""
    return 0 if clip <= 0 else int(min(np.float32(clip) / scale, np.float32(greatest)))
