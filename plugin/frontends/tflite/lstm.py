"""Recurrent operators, whose state is kept in tensors that are variables.

Time steps are a loop in the program; what does not depend on the state is computed before it, for
all of them at once.

Sources: LiteRT, ``unidirectional_sequence_lstm.cc``, ``lstm_eval.cc``, ``svdf.cc``,
``reference/svdf.h``, ``reference/portable_tensor_utils.cc``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UnsupportedError
from ...formats.tflite_schema import ACTIVATIONS
from ...numerics import litert, litert_16
from ...numerics.array_functions import contract, convert, over_time
from ...numerics.element_types import I32, AnyArray, Array
from . import hybrid
from .call import Call, Operand, kernel

__all__: list[str] = []

_INPUT, _FORGET, _CELL, _OUTPUT = range(4)  # gates, in the order of the operator's inputs

# The first input of each kind; the next ones are of the other gates.
_WEIGHTS, _RECURRENT, _PEEPHOLE, _BIAS, _PROJECTION, _PROJECTION_BIAS = 1, 5, 9, 12, 16, 17
_STATE, _CELL_STATE, _NORM = 18, 19, 20


@kernel("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(call: Call) -> AnyArray:
    """``[B, T, I]``, or ``[T, B, I]`` where the operator says so; both states are variables."""
    operand, options = call.input(0), call.options
    if len(operand.shape) not in (2, 3):
        raise call.error(f"has an input of shape {list(operand.shape)}")
    if options.diagonal_recurrent_tensors:
        raise call.error("has diagonal recurrent weights", UnsupportedError)
    if any(call.optional(_NORM + gate) is not None for gate in range(4)):
        raise call.error("has layer normalization", UnsupportedError)
    rows = operand.value
    if len(operand.shape) == 2:
        rows = rows[None]
    elif not options.time_major:
        rows = rows.transpose(1, 0, 2)
    if not rows.shape[0]:
        raise call.error("has no time steps")
    lstm = (_FloatLstm if operand.is_float else _IntegerLstm)(call)
    state, cell = call.input(_STATE), call.input(_CELL_STATE)
    before = lstm.before(rows)
    (after, cells), results = over_time(lstm.step, [state.value, cell.value], before)
    call.assign(_STATE, after)
    call.assign(_CELL_STATE, cells)
    if len(operand.shape) == 2:
        return results.reshape(results.shape[1:])
    return results if options.time_major else results.transpose(1, 0, 2)


@dataclass(frozen=True, eq=False)
class _Lstm(ABC):
    """What the two arithmetics have in common."""

    call: Call

    @property
    def gates(self) -> list[int]:
        """Those that are computed: without weights, the input gate is one less the forget gate."""
        first = _INPUT if self.call.optional(_WEIGHTS + _INPUT) is not None else _FORGET
        return list(range(first, 4))

    def peephole(self, gate: int) -> Operand | None:
        """The weights of the cell's state in a gate."""
        if gate == _CELL:
            return None
        return self.call.optional(_PEEPHOLE + {_INPUT: 0, _FORGET: 1, _OUTPUT: 2}[gate])

    def before(self, rows: AnyArray) -> list[AnyArray]:
        """What each gate has of the input, ``[T, B, cells]``."""
        return [self.weighted(gate, rows) for gate in self.gates]

    @abstractmethod
    def weighted(self, gate: int, rows: AnyArray) -> AnyArray:
        """The same of one gate."""


class _FloatLstm(_Lstm):
    """Floats; integer weights are their reals."""

    def _weights(self, index: int, beside: AnyArray) -> AnyArray:
        return self.call.reals(self.call.input(index), beside)

    def weighted(self, gate: int, rows: AnyArray) -> AnyArray:
        product = contract(rows, self._weights(_WEIGHTS + gate, rows), ((2,), (1,)))
        return product + self.call.input(_BIAS + gate).value

    def step(self, state: AnyArray, cell: AnyArray, *before: AnyArray) -> Sequence[AnyArray]:
        call = self.call
        of_input = dict(zip(self.gates, before, strict=True))

        def gate(number: int, cell: AnyArray) -> AnyArray:
            weights = self._weights(_RECURRENT + number, state)
            total = of_input[number] + contract(state, weights, ((1,), (1,)))
            peephole = self.peephole(number)
            if peephole is not None:
                total = total + call.reals(peephole, state) * cell
            return self._activated(total) if number == _CELL else _logistic(total)

        forget = gate(_FORGET, cell)
        given = gate(_INPUT, cell) if _INPUT in of_input else np.float32(1) - forget
        cells = forget * cell + gate(_CELL, cell) * given
        cells = _clipped(cells, call.options.cell_clip)
        result = gate(_OUTPUT, cells) * self._activated(cells)
        if call.optional(_PROJECTION) is not None:
            result = contract(result, self._weights(_PROJECTION, result), ((1,), (1,)))
            bias = call.optional(_PROJECTION_BIAS)
            result = result if bias is None else result + bias.value
            result = _clipped(result, call.options.proj_clip)
        return [result, cells]

    def _activated(self, values: AnyArray) -> AnyArray:
        number = self.call.options.fused_activation_function
        name = ACTIVATIONS[number] if 0 <= number < len(ACTIVATIONS) else str(number)
        if name in ("TANH", "NONE", "RELU", "RELU6"):
            return self.call.activated(values)
        raise self.call.error(f"has the activation function {name}", UnsupportedError)


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
        return self.call.per_tensor(self.call.input(index).tensor).scale

    @property
    def cell_exponent(self) -> int:
        """The scale of the cell's state is this power of two."""
        exponent = litert.power_of_two(self._scale(_CELL_STATE))
        if exponent is None or not -15 <= exponent <= -9:
            raise self.call.error(
                f"needs a scale of the cell's state that is a power of two from 2**-15 to 2**-9, "
                f"got {self._scale(_CELL_STATE)}"
            )
        return exponent

    def _factor(self, weights: int, activations: int) -> np.float64:
        """Of a product in units of a gate."""
        return np.float64(self._scale(weights) * self._scale(activations) / np.float32(2.0**-12))

    def _products(
        self, values: AnyArray, weights: int, zero_point: int, bias: Array | None = None
    ) -> AnyArray:
        """Sums of centered products in 32 bits, and the bias."""
        matrix = self.call.known(weights)
        offset = -zero_point * matrix.astype(np.int64).sum(axis=1)
        if bias is not None:
            offset = offset + bias
        product = contract(values, matrix, ((values.ndim - 1,), (1,)), dtype=np.int32)
        return product + offset.astype(np.int32) if offset.any() else product

    def weighted(self, gate: int, rows: AnyArray) -> AnyArray:
        call = self.call
        zero_point = call.per_tensor(call.input(0).tensor).zero_point
        bias = call.known(_BIAS + gate)
        total = self._products(rows, _WEIGHTS + gate, zero_point, bias)
        return _short(litert.scaled(total, self._factor(_WEIGHTS + gate, 0)))

    def step(self, state: AnyArray, cell: AnyArray, *before: AnyArray) -> Sequence[AnyArray]:
        call, exponent = self.call, self.cell_exponent
        of_input = dict(zip(self.gates, before, strict=True))
        wide = convert(cell, I32)

        def gate(number: int, cell: AnyArray) -> AnyArray:
            zero_point = call.per_tensor(call.input(_STATE).tensor).zero_point
            total = self._products(state, _RECURRENT + number, zero_point)
            total = of_input[number] + litert.scaled(
                total, self._factor(_RECURRENT + number, _STATE)
            )
            total = _short(total)
            peephole = self.peephole(number)
            if peephole is not None:
                scale = np.float32(2.0**exponent * np.float64(self._scale_of(peephole)) / 2.0**-12)
                product = cell * convert(peephole.value, I32)
                total = _short(total + litert.scaled(product, np.float64(scale)))
            return litert_16.tanh(total, 3) if number == _CELL else litert_16.logistic(total)

        forget = gate(_FORGET, wide)
        given = gate(_INPUT, wide) if _INPUT in of_input else 32767 - forget
        kept = litert.divided(forget * wide, 15)
        cells = _short(kept + _short(litert.divided(given * gate(_CELL, wide), 30 + exponent)))
        clip = _quantized_clip(call.options.cell_clip, self._scale(_CELL_STATE), 32767)
        cells = np.minimum(np.maximum(cells, -clip), clip) if clip else cells
        result = self._result(gate(_OUTPUT, cells) * litert_16.tanh(cells, 15 + exponent))
        return [result, cells.astype(np.int16)]

    def _scale_of(self, operand: Operand) -> np.float32:
        return self.call.per_tensor(operand.tensor).scale

    def _result(self, products: AnyArray) -> AnyArray:
        """The new state, of products with 30 fractional bits; projected where there are weights."""
        call = self.call
        hidden = call.operator.intermediates[4] if len(call.operator.intermediates) > 4 else None
        if hidden is None:
            raise call.error("has no scale of its hidden state (intermediate 4)")
        found = call.per_tensor(hidden)
        factor = np.float32(2.0**-15 / np.float64(found.scale) * 2.0**-15)
        total = litert.scaled(products, np.float64(factor))
        if call.optional(_PROJECTION) is None:
            return litert.narrowed(total + found.zero_point, -128, 127, np.dtype(np.int8))
        # LiteRT takes the zero point with the other sign, twice.
        values = litert.narrowed(total - found.zero_point, -128, 127, np.dtype(np.int8))
        bias = None
        if call.optional(_PROJECTION_BIAS) is not None:
            bias = call.known(_PROJECTION_BIAS)
        total = self._products(values, _PROJECTION, -found.zero_point, bias)
        state = call.per_tensor(call.input(_STATE).tensor)
        factor = np.float32(self._scale(_PROJECTION) * found.scale / state.scale)
        total = litert.scaled(total, np.float64(factor)) + state.zero_point
        result = litert.narrowed(total, -128, 127, np.dtype(np.int8))
        clip = _quantized_clip(call.options.proj_clip, call.per_tensor(call.output).scale, 127)
        return np.minimum(np.maximum(result, -clip), clip) if clip else result


def _short(values: AnyArray) -> AnyArray:
    return np.minimum(np.maximum(values, -32768), 32767)


def _quantized_clip(clip: float, scale: np.float32, most: int) -> int:
    if clip <= 0:
        return 0
    return int(min(np.float32(clip) / scale, np.float32(most)))


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
    batch = operand.shape[0]
    columns = state.value.reshape((batch, filters, memory))

    def moved(latest: AnyArray) -> AnyArray:
        return np.concatenate([columns[:, :, 1:], latest.reshape((batch, filters, 1))], axis=2)

    if operand.is_float:
        if hybrid.is_hybrid(call, features):
            latest = hybrid.of_rows(call, operand.value, features)
        else:
            latest = contract(operand.value, call.reals(features, operand.value), ((1,), (1,)))
        kept = moved(latest)
        by_filter = (kept * call.reals(times, kept)).sum(axis=2, dtype=np.float32)
        total = by_filter.reshape((batch, filters // rank, rank)).sum(axis=2, dtype=np.float32)
        call.assign(4, kept)
        return call.activated(total if bias is None else total + bias.value)
    if call.activation != "RELU":
        raise call.error(f"has the activation function {call.activation}", UnsupportedError)
    x, y = call.per_tensor(operand.tensor), call.per_tensor(call.output)
    scales = [call.per_tensor(each.tensor).scale for each in (features, times, state)]
    matrix = call.known(1)
    product = contract(operand.value, matrix, ((1,), (1,)), dtype=np.int32)
    offset = -x.zero_point * matrix.astype(np.int64).sum(axis=1)
    product = product + offset.astype(np.int32)
    latest = litert.scaled(product, np.float64(x.scale * scales[0] / scales[2]))
    kept = moved(_short(latest).astype(np.int16))
    weights = call.known(2).astype(np.int32)
    by_filter = (convert(kept, I32) * weights).sum(axis=2, dtype=np.int32)
    total = by_filter.reshape((batch, filters // rank, rank)).sum(axis=2, dtype=np.int32)
    if bias is not None:
        total = total + bias.value
    call.assign(4, kept)
    total = litert.scaled(total, np.float64(scales[2] * scales[1] / y.scale)) + y.zero_point
    return litert.narrowed(total, -128, 127, np.dtype(np.int8))
