"""ONNX models of exported PyTorch modules, quantized ones included.

Quantizations of `quantized_decomposed` become QuantizeLinear and DequantizeLinear with the same
scales; activations are unsigned, which is ONNX Runtime's faster way: the same values, 128 higher.
A linear layer is a MatMul with the transposed weight, and an Add: ONNX Runtime fuses both, and the
quantizations around them. Attention is its two products, with a softmax between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
_OPSET = 21


@dataclass(frozen=True)
class _Weight:
    """A dequantized weight: its integers, and a scale for each index of the axis 0."""

    integers: Array
    scales: Array


class _Writer:
    """Nodes and initializers of a model, and the value of each node of an exported graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.value_of: dict[Any, str | Array | _Weight] = {}

    def constant(self, array: Array) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def name_of(self, node: Any) -> str:
        """Return the value of a node, an array as an initializer."""
        value = self.value_of[node]
        if isinstance(value, _Weight):
            raise NotImplementedError(f"{node} is a quantized weight of an unknown operator")
        if not isinstance(value, str):
            self.value_of[node] = value = self.constant(value)
        return value

    def weight(self, node: Any, axis: int, order: Sequence[int]) -> str:
        """Return a weight with permuted axes, `axis` of which are the output channels."""
        value = self.value_of[node]
        if isinstance(value, _Weight):
            integers = self.constant(value.integers.transpose(order))
            zero_points = self.constant(np.zeros(value.scales.shape, np.int8))
            scales = self.constant(value.scales)
            return self.add("DequantizeLinear", integers, scales, zero_points, axis=axis)
        assert not isinstance(value, str)
        return self.constant(value.transpose(order))

    def step_and_zero(self, scale: float, zero_point: int, dtype: torch.dtype) -> list[str]:
        """Return the scale and the unsigned zero point of activations."""
        shifted = zero_point + (128 if dtype == torch.int8 else 0)
        return [self.constant(np.float32(scale)), self.constant(np.array(shifted, np.uint8))]


def _quantize(w: _Writer, node: Any) -> str:
    x, scale, zero_point, _, _, dtype = node.args
    return w.add("QuantizeLinear", w.name_of(x), *w.step_and_zero(scale, zero_point, dtype))


def _dequantize(w: _Writer, node: Any) -> str:
    x, scale, zero_point, _, _, dtype = node.args
    value = w.value_of[x]
    if not isinstance(value, (str, _Weight)) and value.dtype == np.int8:
        w.value_of[x] = (value.astype(np.int32) + 128).astype(np.uint8)
    return w.add("DequantizeLinear", w.name_of(x), *w.step_and_zero(scale, zero_point, dtype))


def _dequantize_channels(w: _Writer, node: Any) -> _Weight:
    integers, scales, zero_points = (w.value_of[each] for each in node.args[:3])
    assert not isinstance(integers, (str, _Weight))
    if node.args[3] != 0 or np.any(zero_points):
        raise NotImplementedError(f"{node} has zero points, or scales of another axis than 0")
    return _Weight(integers, np.asarray(scales, np.float32))


def _linear(w: _Writer, node: Any) -> str:
    x, weight, bias = node.args
    product = w.add("MatMul", w.name_of(x), w.weight(weight, 1, [1, 0]))
    return w.add("Add", product, w.name_of(bias))


def _convolve(w: _Writer, node: Any) -> str:
    x, weight, bias, strides = node.args
    kernel = w.weight(weight, 0, [0, 1, 2, 3])
    return w.add("Conv", w.name_of(x), kernel, w.name_of(bias), strides=list(strides))


def _normalize(w: _Writer, node: Any) -> str:
    x, _, scale, bias, *epsilon = node.args
    inputs = (w.name_of(each) for each in (x, scale, bias))
    return w.add("LayerNormalization", *inputs, axis=-1, epsilon=float([*epsilon, 1e-5][0]))


def _attend(w: _Writer, node: Any) -> str:
    query, key, value = (w.name_of(each) for each in node.args)
    scale = w.constant(np.float32(node.args[0].meta["val"].shape[-1] ** -0.5))
    keys = w.add("Transpose", key, perm=[0, 1, 3, 2])
    scores = w.add("Mul", w.add("MatMul", query, keys), scale)
    return w.add("MatMul", w.add("Softmax", scores, axis=-1), value)


def _transpose(w: _Writer, node: Any) -> str:
    x, *pair = node.args
    order = [*range(node.meta["val"].dim())]
    first, second = (axis % len(order) for axis in pair)
    order[first], order[second] = second, first
    return w.add("Transpose", w.name_of(x), perm=order)


def _select(w: _Writer, node: Any) -> str:
    x, axis, index = node.args
    return w.add("Gather", w.name_of(x), w.constant(np.array(index, np.int64)), axis=axis)


def _in_shape(operator: str) -> Callable[[_Writer, Any], str]:
    """Return the writer of an operator whose second input is the shape of its result."""

    def write(w: _Writer, node: Any) -> str:
        shape = w.constant(np.array(node.meta["val"].shape, np.int64))
        return w.add(operator, w.name_of(node.args[0]), shape)

    return write


def _copy(w: _Writer, node: Any) -> str:
    if node.meta["val"].shape != node.args[0].meta["val"].shape:
        raise NotImplementedError(f"{node} is no copy")
    return w.name_of(node.args[0])


_WRITERS: dict[str, Callable[[_Writer, Any], str | _Weight]] = {
    "aten.add.Tensor": lambda w, node: w.add("Add", *map(w.name_of, node.args)),
    "aten.cat.default": lambda w, n: w.add("Concat", *map(w.name_of, n.args[0]), axis=n.args[1]),
    "aten.clone.default": _copy,
    "aten.conv2d.default": _convolve,
    "aten.embedding.default": lambda w, node: w.add("Gather", *map(w.name_of, node.args)),
    "aten.expand.default": _in_shape("Expand"),
    "aten.flatten.using_ints": _in_shape("Reshape"),
    "aten.gelu.default": lambda w, node: w.add("Gelu", w.name_of(node.args[0])),
    "aten.layer_norm.default": _normalize,
    "aten.linear.default": _linear,
    "aten.reshape.default": _in_shape("Reshape"),
    "aten.scaled_dot_product_attention.default": _attend,
    "aten.select.int": _select,
    "aten.slice.Tensor": _copy,
    "aten.transpose.int": _transpose,
    "aten.view.default": _in_shape("Reshape"),
    "quantized_decomposed.dequantize_per_channel.default": _dequantize_channels,
    "quantized_decomposed.dequantize_per_tensor.default": _dequantize,
    "quantized_decomposed.quantize_per_tensor.default": _quantize,
}


def onnx_model(program: Any) -> bytes:
    """Return the model of an exported program with one input and one result.

    Raises:
        NotImplementedError: the program has an operator that the encoders do not have.
    """
    signature, w = program.graph_signature, _Writer()
    tensors = {**program.constants, **program.state_dict}
    tensor_of_input = {
        spec.arg.name: tensors[spec.target]
        for spec in signature.input_specs
        if spec.target is not None
    }
    ends = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in tensor_of_input:
            w.value_of[node] = tensor_of_input[node.name].detach().numpy()
        elif node.op == "placeholder":
            w.value_of[node] = node.name
            example = node.meta["val"]
            element = TensorProto.INT64 if example.dtype == torch.int64 else TensorProto.FLOAT
            ends.append(helper.make_tensor_value_info(node.name, element, example.shape))
        elif node.op == "output":
            [result] = node.args[0]
            shape = result.meta["val"].shape
            name = w.name_of(result)
            ends.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        elif str(node.target) in _WRITERS:
            w.value_of[node] = _WRITERS[str(node.target)](w, node)
        else:
            raise NotImplementedError(f"no writer of {node.target}")
    graph = helper.make_graph(w.nodes, "module", ends[:1], ends[1:], w.initializers)
    opsets = [helper.make_opsetid("", _OPSET)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return model
