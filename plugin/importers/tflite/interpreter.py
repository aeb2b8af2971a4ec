"""Interpreters of TensorFlow Lite models, on NumPy arrays."""

from __future__ import annotations

import numpy as np

from ...errors import UnsupportedError
from ...numerics.casts import dequantize, quantize
from ...numerics.element_types import AnyArray, Array, ElementType
from ..options import AS_IN_FILE, ImportOptions
from .call import Call
from .graph_evaluator import GraphEvaluator
from .operand import is_quantized, quantization_parameters
from .reading.model import Model, Tensor


def initial_value(like: Tensor) -> Array:
    """Return the value of a variable before any assignment: zero points."""
    element = ElementType.parse(like.element)
    zero_point = 0 if like.quantization is None else like.quantization.zero_point
    return np.full(like.shape, zero_point, element.dtype)


class Interpreter(GraphEvaluator):
    """Computes a model with NumPy; exact semantics computes in NumPy's floats."""

    def __init__(self, model: Model, options: ImportOptions = AS_IN_FILE) -> None:
        super().__init__(model, options)
        self.variables: dict[str, Array] = {}
        for graph in model.subgraphs:
            for operator in graph.operators:
                if operator.name == "CALL_ONCE":
                    self.run(operator.options.init_subgraph_index, [])  # type: ignore[attr-defined]

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """Return the value of a variable."""
        value = self.variables.get(variable)
        return initial_value(like) if value is None else value

    def write(self, variable: str, value: AnyArray) -> None:
        """Assign a value to a variable."""
        self.variables[variable] = np.asarray(value)

    def dequantize(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """Return the expressed f32 values of storage."""
        return dequantize(np.asarray(storage), quantization_parameters(tensor))

    def quantize(self, value: AnyArray, tensor: Tensor) -> AnyArray:
        """Return the storage nearest to f32 values."""
        return quantize(np.asarray(value), quantization_parameters(tensor))


class FloatInterpreter(Interpreter):
    """Computes a quantized model in f32: only its constants are rounded.

    The values of quantized tensors are their expressed values.
    """

    def _compute(self, call: Call) -> list[AnyArray]:
        if call.operator.name == "BITCAST" and is_quantized(call.input(0).tensor):
            raise call.error(
                "reads the bits of storage, which expressed values do not have", UnsupportedError
            )
        return self._compute_floats(call, is_dequantized=False)

    def _check_type(self, call: Call, tensor: Tensor, value: AnyArray) -> None:
        """Accept f32 for each quantized tensor."""

    def transfer(self, value: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the expressed values of a tensor."""
        return self.expressed(value, source)

    def dequantize(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """Return the expressed values of a constant; computed values are floats already."""
        return storage if storage.dtype.kind == "f" else super().dequantize(storage, tensor)

    def expressed(self, value: Array, tensor: Tensor) -> Array:
        """Return the expressed values of an argument."""
        return np.asarray(self.dequantize(value, tensor)) if is_quantized(tensor) else value

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """Return the expressed values of a variable."""
        return self.expressed(super().read(variable, like), like)
