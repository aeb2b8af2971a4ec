"""DynamicQuantizeLSTM: an LSTM of integer weights whose operands are quantized in the loop.

X is quantized once, over the steps up to the longest sequence length; the state is quantized in
each step. Both are quantized as DynamicQuantizeLinear does, with one range for the whole batch.
ONNX Runtime has a range for each part of a batch that a thread computes, so this is its result with
one thread. The range takes 0 for sequences that have ended, or their final states without output Y.

Source: ONNX Runtime, ``dynamic_quantize_lstm.cc``, ``uni_directional_lstm.cc``, ``ComputeGemm`` of
``rnn_helpers.cc``.
"""

from __future__ import annotations

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.convolutions import contract
from ....numerics.element_types import F32, I16, I32, AnyArray
from ..call import Call, importer
from ..quantization.quantize_linear import dynamically_quantized
from .activations import Function
from .layer import LSTM_FUNCTIONS, Layer, lstm_of


@importer("com.microsoft.DynamicQuantizeLSTM")
def dynamic_quantize_lstm(call: Call) -> list[AnyArray]:
    """DynamicQuantizeLSTM-1: operands of LSTM, and parameters of W and R."""
    layer = Layer(call, _QuantizedProducts(call), F32, LSTM_FUNCTIONS)
    call.with_integers()
    return lstm_of(layer)


class _QuantizedProducts:
    """Products of integers: W is ``[D, I, 4 * H]`` and R ``[D, H, 4 * H]``.

    Inputs 8 to 11 of the node are scale and zero point of W, and of R, for each direction or for
    each of its columns.
    """

    gates = 4

    def __init__(self, call: Call) -> None:
        shapes = [call.input(n).shape for n in (1, 2)]
        if any(len(shape) != 3 for shape in shapes):
            raise call.error(f"has W and R of shapes {[list(shape) for shape in shapes]}")
        self.directions, self.hidden = shapes[1][:2]
        if any((s[0], s[2]) != (self.directions, 4 * self.hidden) for s in shapes):
            raise call.error(f"has W and R of shapes {[list(shape) for shape in shapes]}")
        depth = call.input(0).shape[-1:]
        if depth != shapes[0][1:2]:
            raise call.error(f"has W of shape {list(shapes[0])} for inputs of {list(depth)}")
        self._weights, self._scales = [], []
        for index, first in ((1, 8), (2, 10)):
            storage = convert(call.array(index), I16)
            zero_point = convert(self._parameter(call, first + 1), I16)
            self._weights.append(storage - zero_point)
            self._scales.append(convert(self._parameter(call, first), F32))

    def _parameter(self, call: Call, index: int) -> AnyArray:
        """Return scales or zero points as ``[D, 1, 4 * H]`` or ``[D, 1, 1]``."""
        value = call.array(index)
        if tuple(value.shape) not in ((self.directions,), (self.directions, 4 * self.hidden)):
            raise call.unsupported(
                f"has {call.input(index)} of shape {list(value.shape)}, expected "
                f"[{self.directions}] or [{self.directions}, {4 * self.hidden}]"
            )
        return value.reshape((self.directions, 1, value.size // self.directions))

    def of_inputs(self, layer: Layer, direction: int) -> AnyArray:
        """One contraction of all steps; those after the longest sequence are 0."""
        rows = layer.inputs
        if layer.lengths is not None:
            indices = np.arange(layer.steps, dtype=np.int32).reshape((layer.steps, 1, 1))
            is_inside = indices < layer.lengths.max()
            rows = np.where(is_inside, rows, np.float32(0))
        return self._product(rows, 0, direction)

    def of_states(self, direction: int, first: int, last: int) -> Function:
        """A contraction of one step, of all gates."""
        return lambda state: self._product(state, 1, direction)

    def _product(self, real: AnyArray, side: int, direction: int) -> AnyArray:
        """Quantize an operand, multiply it with W or R, and scale the accumulators."""
        storage, scale, zero_point = (each.value for each in dynamically_quantized(real))
        centered = convert(storage, I16) - convert(zero_point, I16)
        axes = ((len(real.shape) - 1,), (0,))
        total = contract(centered, self._weights[side][direction], axes, dtype=np.int32)
        factor = (scale * self._scales[side][direction]).reshape(-1)
        return convert(convert(total, I32), F32) * factor
