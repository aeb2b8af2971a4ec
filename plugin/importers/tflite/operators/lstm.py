"""LSTMs, whose states are kept in tensors that are variables.

Time steps are a loop in the program; what does not depend on the state is computed before it, for
all of them at once.

Sources: LiteRT, ``lstm.cc``, ``unidirectional_sequence_lstm.cc``,
``bidirectional_sequence_lstm.cc``, ``lstm_eval.cc``, ``reference/portable_tensor_utils.cc``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import (
    contract,
    convert,
    divide_truncated,
    over_time,
    rounded_product,
)
from ....numerics.element_types import I32, I64, AnyArray, Array
from ....numerics.fixed_point import apply_scale
from ..arithmetic import int16_functions, requantization
from ..call import Call, Operand, kernel
from ..reading.model import Tensor
from ..reading.schema import ACTIVATIONS
from .recurrent import by_time, products, without_time

__all__: list[str] = []

_INPUT, _FORGET, _CELL, _OUTPUT = range(4)  # gates, in the order of the operator's inputs
_TANH = ACTIVATIONS.index("TANH")


@dataclass(frozen=True)
class _Inputs:
    """The first input of each kind; the next ones are of the other gates.

    Args:
        weights, recurrent, peephole, bias: of each gate.
        projection, projection_bias, state, cell_state: alone.
        norm: of coefficients of layer normalization; None where there are none.
        more: of the weights of other rows; None where there are none.
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
    more: int | None = None


_ONE = _Inputs()
_FORWARD = _Inputs(state=35, cell_state=36, norm=None, more=40)
_BACKWARD = _Inputs(18, 22, 26, 29, 33, 34, 37, 38, None, 44)


@kernel("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(call: Call) -> AnyArray:
    """``[B, T, I]``, or ``[T, B, I]`` where the operator says so; both states are variables."""
    if getattr(call.options, "kernel_type", 0):
        raise call.error("has the basic kernel, with one matrix of weights", UnsupportedError)
    time_major = bool(getattr(call.options, "time_major", False))
    rows = by_time(call, 0, time_major=time_major)
    results = _passed(call, _ONE, rows)
    return without_time(results, len(call.input(0).shape), time_major=time_major)


@kernel("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_sequence_lstm(call: Call) -> list[AnyArray]:
    """Two of them, of which one goes backwards; in two outputs, or side by side in one.

    Other rows (input 39) are of both with weights of their own, or else what the second one has.
    """
    time_major = bool(call.options.time_major)
    if not call.input(0).is_float:
        raise call.error(f"of {call.input(0).tensor.type} is not lowered", UnsupportedError)
    rows = by_time(call, 0, time_major=time_major)
    more = by_time(call, 39, time_major=time_major) if call.optional(39) is not None else None
    is_crossed = call.optional(41) is not None
    forward = _passed(call, _FORWARD, rows, more if is_crossed else None)
    other = rows if is_crossed or more is None else more
    turned = None if more is None or not is_crossed else np.flip(more, (0,))
    backward = np.flip(_passed(call, _BACKWARD, np.flip(other, (0,)), turned), (0,))
    found = [forward, backward]
    merged = [np.concatenate(found, axis=-1)] if call.options.merge_outputs else found
    return [without_time(each, 3, time_major=time_major) for each in merged]


def _passed(call: Call, inputs: _Inputs, rows: AnyArray, more: AnyArray | None = None) -> AnyArray:
    """The outputs after each step of ``[T, B, I]``; the states are kept."""
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
    lstm = (_FloatLstm if call.input(0).is_float else _IntegerLstm)(call, inputs)
    lstm.check_shapes()
    states = [call.input(inputs.state).value, call.input(inputs.cell_state).value]
    (after, cells), results = over_time(lstm.step, states, lstm.before(rows, more))
    call.assign(inputs.state, after)
    call.assign(inputs.cell_state, cells)
    return results


@dataclass(frozen=True, eq=False)
class _Lstm(ABC):
    """What the two arithmetics have in common."""

    call: Call
    inputs: _Inputs

    @property
    def gates(self) -> list[int]:
        """Those that are computed: without weights, the input gate is one less the forget gate."""
        first = _INPUT if self.call.optional(self.inputs.weights + _INPUT) is not None else _FORGET
        return list(range(first, 4))

    def check_shapes(self) -> None:
        """Check that weights and biases have an element for each cell and each output."""
        call, inputs = self.call, self.inputs
        outputs, cells = (call.input(n).shape[-1] for n in (inputs.state, inputs.cell_state))
        is_diagonal = getattr(call.options, "diagonal_recurrent_tensors", None)
        recurrent = (cells,) if is_diagonal else (cells, outputs)
        reason = "" if is_diagonal is None else f" (diagonal_recurrent_tensors = {is_diagonal})"
        shapes: list[tuple[Operand | None, tuple[int, ...]]] = []
        for gate in self.gates:
            norm = self.norm(gate)
            shapes += [
                (call.input(inputs.recurrent + gate), recurrent),
                (call.input(inputs.bias + gate), (cells,)),
                (self.peephole(gate), (cells,)),
                (None if norm is None else call.input(norm), (cells,)),
            ]
        if call.optional(inputs.projection) is not None:
            shapes.append((call.input(inputs.projection), (outputs, cells)))
            shapes.append((call.optional(inputs.projection_bias), (outputs,)))
        for operand, shape in shapes:
            if operand is not None and operand.shape != shape:
                raise call.error(
                    f"has {operand} of shape {list(operand.shape)}, expected {list(shape)}{reason}"
                )

    def peephole(self, gate: int) -> Operand | None:
        """The weights of the cell's state in a gate."""
        if gate == _CELL:
            return None
        return self.call.optional(self.inputs.peephole + {_INPUT: 0, _FORGET: 1, _OUTPUT: 2}[gate])

    def norm(self, gate: int) -> int | None:
        """The input that is a gate's coefficients of layer normalization, if it has them."""
        place = self.inputs.norm
        if place is None or self.call.optional(place + gate) is None:
            return None
        return place + gate

    def before(self, rows: AnyArray, more: AnyArray | None) -> list[AnyArray]:
        """What each gate has of the input, and of other rows, ``[T, B, cells]``."""
        return [self.weighted(gate, rows, more) for gate in self.gates]

    @abstractmethod
    def weighted(self, gate: int, rows: AnyArray, more: AnyArray | None) -> AnyArray:
        """The same of one gate."""


class _FloatLstm(_Lstm):
    """Floats; integer weights are their reals."""

    def weighted(self, gate: int, rows: AnyArray, more: AnyArray | None) -> AnyArray:
        call, inputs = self.call, self.inputs
        total = products(call, rows, inputs.weights + gate)
        if self.norm(gate) is None:
            total = call.input(inputs.bias + gate).value + total
        if more is not None and inputs.more is not None:
            total = total + products(call, more, inputs.more + gate)
        return total

    def _recurrent(self, state: AnyArray, gate: int) -> AnyArray:
        """Products of the state; weights of one axis are a diagonal."""
        index = self.inputs.recurrent + gate
        weights = self.call.input(index)
        if len(weights.shape) == 1:
            return rounded_product(state, self.call.reals(weights, state))
        return products(self.call, state, index)

    def _normalized(self, total: AnyArray, gate: int) -> AnyArray:
        """Each row less its mean, by its deviation, times coefficients, and the bias."""
        norm = self.norm(gate)
        if norm is None:
            return total
        count, one = np.float32(total.shape[-1]), np.float32(1)
        centered = total - total.sum(axis=-1, dtype=np.float32, keepdims=True) / count
        square = (centered * centered).sum(axis=-1, dtype=np.float32, keepdims=True) / count
        scaled = centered * (one / np.sqrt(square + np.float32(1e-8)))
        coefficients = self.call.reals(self.call.input(norm), total)
        return scaled * coefficients + self.call.input(self.inputs.bias + gate).value

    def step(self, state: AnyArray, cell: AnyArray, *before: AnyArray) -> Sequence[AnyArray]:
        call = self.call
        of_input = dict(zip(self.gates, before, strict=True))

        def gate(number: int, cell: AnyArray) -> AnyArray:
            total = of_input[number] + self._recurrent(state, number)
            peephole = self.peephole(number)
            if peephole is not None:
                total = total + rounded_product(cell, call.reals(peephole, state))
            total = self._normalized(total, number)
            return self._activated(total) if number == _CELL else _logistic(total)

        forget = gate(_FORGET, cell)
        given = gate(_INPUT, cell) if _INPUT in of_input else np.float32(1) - forget
        cells = forget * cell + gate(_CELL, cell) * given
        cells = _clipped(cells, call.options.cell_clip)
        result = gate(_OUTPUT, cells) * self._activated(cells)
        if call.optional(self.inputs.projection) is not None:
            result = products(call, result, self.inputs.projection)
            bias = call.optional(self.inputs.projection_bias)
            result = result if bias is None else result + bias.value
            result = _clipped(result, call.options.proj_clip)
        return [result, cells]

    def _activated(self, values: AnyArray) -> AnyArray:
        number = self.call.options.fused_activation_function
        name = ACTIVATIONS[number] if 0 <= number < len(ACTIVATIONS) else str(number)
        if name in ("TANH", "RELU", "RELU6"):
            return self.call.activated(values)
        raise self.call.error(
            f"has the option fused_activation_function = {name}", UnsupportedError
        )


def _logistic(values: AnyArray) -> AnyArray:
    one = np.float32(1)
    return one / (one + np.exp(-values))


def _clipped(values: AnyArray, bound: float) -> AnyArray:
    limit = np.float32(bound)
    return values if bound <= 0 else np.minimum(np.maximum(values, -limit), limit)


class _IntegerLstm(_Lstm):
    """8-bit activations and weights, 16-bit gates with 12 fractional bits: LiteRT's ``8x8_16``.

    A gate's sums of products are scaled, each apart, and added with saturation. Factors are
    products and quotients of f32.
    """

    def _scale(self, index: int) -> np.float32:
        """The scale of weights, of coefficients, or of the cell's state."""
        return self.call.symmetric_scale(self.call.input(index))

    @property
    def cell_exponent(self) -> int:
        """The scale of the cell's state is this power of two."""
        scale = self._scale(self.inputs.cell_state)
        exponent = requantization.power_of_two(scale)
        if exponent is None or not -15 <= exponent <= -9:
            raise self.call.error(
                f"needs a scale of the cell's state that is a power of two from 2**-15 to 2**-9, "
                f"got {scale}"
            )
        return exponent

    def _gate_scale(self, gate: int) -> np.float32:
        """Of the sums of a gate: 12 fractional bits, or what intermediates say before a norm."""
        if self.norm(gate) is None:
            return np.float32(2.0**-12)
        return self.call.per_tensor(self._intermediate(gate, "a gate before its norm")).scale

    def _intermediate(self, index: int, what: str) -> Tensor:
        found = self.call.operator.intermediates
        if index >= len(found) or found[index] is None:
            raise self.call.error(f"has no scale of {what} (intermediate {index})")
        return found[index]  # type: ignore[return-value]

    def _factor(self, weights: int, activations: int, gate: int) -> np.float64:
        """Of a product in units of a gate."""
        operand = self.call.input(activations).tensor
        product = self._scale(weights) * self.call.per_tensor(operand).scale
        return np.float64(product / self._gate_scale(gate))

    def _products(
        self, values: AnyArray, weights: int, zero_point: int, bias: Array | None = None
    ) -> AnyArray:
        """Sums of centered products in 32 bits, and the bias."""
        matrix = self.call.constant(weights)
        offset = -zero_point * matrix.astype(np.int64).sum(axis=1)
        if bias is not None:
            offset = offset + bias
        product = contract(values, matrix, ((values.ndim - 1,), (1,)), dtype=np.int32)
        return product + offset.astype(np.int32) if offset.any() else product

    def weighted(self, gate: int, rows: AnyArray, more: AnyArray | None) -> AnyArray:
        call, weights = self.call, self.inputs.weights + gate
        zero_point = call.per_tensor(call.input(0).tensor).zero_point
        bias = call.constant(self.inputs.bias + gate) if self.norm(gate) is None else None
        total = self._products(rows, weights, zero_point, bias)
        return _short(requantization.scaled(total, self._factor(weights, 0, gate)))

    def _normalized(self, total: AnyArray, gate: int) -> AnyArray:
        """Layer normalization with 10 more bits; the variance has a bound in place of 0."""
        norm = self.norm(gate)
        if norm is None:
            return total
        scale, wide, count = self._scale(norm), convert(total, I64), total.shape[-1]
        mean = _cut(wide.sum(axis=-1, dtype=np.int64, keepdims=True) * 1024, count)
        squares = (wide * wide).sum(axis=-1, dtype=np.int64, keepdims=True)
        variance = _cut(squares * ((1 << 20) // count) - mean * mean, 1 << 20)
        least = max(1, int(np.float32(10000) * scale))
        variance = np.where(variance < 1, np.int64(least), variance)
        inverse, shift = requantization.inverse_square_root(variance)
        rescaled = apply_scale(wide * 1024 - mean, inverse, shift + 31, "gemmlowp")
        coefficients = self.call.constant(norm).astype(np.int64)
        bias = self.call.constant(self.inputs.bias + gate).astype(np.int64)
        value = rescaled * coefficients + bias
        value = _cut(np.where(value > 0, value + 512, value - 512), 1024)
        multiplier, exponent = requantization.multiplier_and_exponent(np.float64(scale))
        return convert(_short(requantization.scaled_by(value, multiplier, exponent + 12)), I32)

    def step(self, state: AnyArray, cell: AnyArray, *before: AnyArray) -> Sequence[AnyArray]:
        call, exponent = self.call, self.cell_exponent
        of_input = dict(zip(self.gates, before, strict=True))
        wide = convert(cell, I32)

        def gate(number: int, cell: AnyArray) -> AnyArray:
            weights = self.inputs.recurrent + number
            if len(call.input(weights).shape) != 2:
                raise call.error("has diagonal recurrent weights", UnsupportedError)
            zero_point = call.per_tensor(call.input(self.inputs.state).tensor).zero_point
            total = self._products(state, weights, zero_point)
            factor = self._factor(weights, self.inputs.state, number)
            total = _short(of_input[number] + requantization.scaled(total, factor))
            peephole = self.peephole(number)
            if peephole is not None:
                unit = np.float64(self._gate_scale(number))
                scale = np.float32(2.0**exponent * np.float64(self._scale_of(peephole)) / unit)
                product = cell * convert(peephole.value, I32)
                total = _short(total + requantization.scaled(product, np.float64(scale)))
            total = self._normalized(total, number)
            return (
                int16_functions.tanh(total, 3)
                if number == _CELL
                else int16_functions.logistic(total)
            )

        forget = gate(_FORGET, wide)
        given = gate(_INPUT, wide) if _INPUT in of_input else 32767 - forget
        kept = requantization.divided(forget * wide, 15)
        cells = _short(
            kept + _short(requantization.divided(given * gate(_CELL, wide), 30 + exponent))
        )
        clip = _quantized_clip(call.options.cell_clip, self._scale(self.inputs.cell_state), 32767)
        cells = np.minimum(np.maximum(cells, -clip), clip) if clip else cells
        result = self._result(gate(_OUTPUT, cells) * int16_functions.tanh(cells, 15 + exponent))
        return [result, cells.astype(np.int16)]

    def _scale_of(self, operand: Operand) -> np.float32:
        return self.call.symmetric_scale(operand)

    def _result(self, products: AnyArray) -> AnyArray:
        """The new state, of products with 30 fractional bits; projected where there are weights."""
        call = self.call
        found = call.per_tensor(self._intermediate(4, "its hidden state"))
        factor = np.float32(2.0**-15 / np.float64(found.scale) * 2.0**-15)
        total = requantization.scaled(products, np.float64(factor))
        if call.optional(self.inputs.projection) is None:
            return requantization.narrowed(total + found.zero_point, -128, 127, np.dtype(np.int8))
        # LiteRT takes the zero point with the other sign, twice.
        values = requantization.narrowed(total - found.zero_point, -128, 127, np.dtype(np.int8))
        bias = None
        if call.optional(self.inputs.projection_bias) is not None:
            bias = call.constant(self.inputs.projection_bias)
        total = self._products(values, self.inputs.projection, -found.zero_point, bias)
        state = call.per_tensor(call.input(self.inputs.state).tensor)
        factor = np.float32(self._scale(self.inputs.projection) * found.scale / state.scale)
        total = requantization.scaled(total, np.float64(factor)) + state.zero_point
        result = requantization.narrowed(total, -128, 127, np.dtype(np.int8))
        clip = _quantized_clip(call.options.proj_clip, call.per_tensor(call.output).scale, 127)
        return np.minimum(np.maximum(result, -clip), clip) if clip else result


def _cut(dividend: AnyArray, divisor: int) -> AnyArray:
    """Divided towards zero."""
    return divide_truncated(dividend, np.int64(divisor))


def _short(values: AnyArray) -> AnyArray:
    return np.minimum(np.maximum(values, -32768), 32767)


def _quantized_clip(clip: float, scale: np.float32, most: int) -> int:
    if clip <= 0:
        return 0
    return int(min(np.float32(clip) / scale, np.float32(most)))
