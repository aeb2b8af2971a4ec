"""LiteRT with XNNPACK, which it uses by default: an interpreter a copy of the weights."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from ..blocks import planes_of
from . import Array, Case, Unsupported


def describe() -> dict[str, str]:
    """Return the name and the version."""
    return {"name": "LiteRT", "version": version("ai-edge-litert")}


class Interpreters:
    """Interpreters of one model, each of which packs the weights into memory of its own."""

    def __init__(
        self, model: bytes, x: Array, threads: int, copies: int, notes: dict[str, Any]
    ) -> None:
        self._interpreters = []
        for _ in range(copies):
            interpreter = Interpreter(model_content=model, num_threads=threads)
            interpreter.allocate_tensors()
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
            self._interpreters.append(interpreter)
        self._last = self._interpreters[0]
        operators = [each["op_name"] for each in self._last._get_ops_details()]
        path = "XNNPACK" if "DELEGATE" in operators else "LiteRT's kernels"
        self.notes = {**notes, "path": path, "bytes": len(model)}

    def call(self, copy: int) -> None:
        """Compute the case once: see `Prepared`."""
        self._last = self._interpreters[copy]
        self._last.invoke()

    def result(self) -> Array:
        """Return the result: see `Prepared`."""
        result: Array = self._last.get_tensor(self._last.get_output_details()[0]["index"])
        return result


class Graph:
    """A model of one operator."""

    def __init__(self) -> None:
        self._graph = schema.SubGraphT()
        self._graph.tensors, self._graph.operators = [], []
        self._whole = schema.ModelT()
        self._whole.version, self._whole.subgraphs = 3, [self._graph]
        self._whole.operatorCodes, self._whole.buffers = [], [schema.BufferT()]

    def tensor(
        self,
        shape: tuple[int, ...],
        element: str,
        quantization: Any = None,
        data: Array | None = None,
    ) -> int:
        """Add a tensor; return its number."""
        tensor = schema.TensorT()
        tensor.shape, tensor.hasRank = [int(n) for n in shape], True
        tensor.type = getattr(schema.TensorType, element)
        tensor.name = f"tensor{len(self._graph.tensors)}".encode()
        tensor.quantization = quantization
        tensor.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            tensor.buffer = len(self._whole.buffers)
            self._whole.buffers.append(buffer)
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def model(
        self, name: str, inputs: list[int], output: int, options: str, number: int, **values: Any
    ) -> bytes:
        """Add the operator in its version `number`; return the file."""
        code, operator = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), number
        self._whole.operatorCodes.append(code)
        operator.opcodeIndex, operator.inputs, operator.outputs = 0, inputs, [output]
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        operator.builtinOptions = getattr(schema, f"{options}T")()
        for key, value in values.items():
            setattr(operator.builtinOptions, key, value)
        self._graph.operators.append(operator)
        self._graph.inputs, self._graph.outputs = inputs[:1], [output]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self._whole.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def _affine(scales: Any, zero_point: int = 0, axis: int = 0) -> Any:
    quantization = schema.QuantizationParametersT()
    quantization.scale = np.atleast_1d(np.asarray(scales, np.float32))
    quantization.zeroPoint = np.full(quantization.scale.shape, zero_point, np.int64)
    quantization.quantizedDimension = axis
    return quantization


def _blockwise(scales: int, size: int) -> Any:
    quantization, blocks = schema.QuantizationParametersT(), schema.BlockwiseQuantizationT()
    blocks.scales, blocks.zeroPoints, blocks.blockSize = scales, -1, size
    quantization.detailsType = schema.QuantizationDetails.BlockwiseQuantization
    quantization.details, quantization.quantizedDimension = blocks, 0
    return quantization


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Interpreters:
    """Prepare a case: see `benchmarks.peers`."""
    if case["kind"] == "network":
        raise Unsupported("it does not read ONNX")
    if case["kind"] == "model":
        data = Path(case["file"]).read_bytes()
        return Interpreters(data, arrays["x"], threads, copies, {})
    if case["kind"] == "block matmul":
        model = _block_matmul(case, arrays)
        # a scale and a zero point a row, 255 steps
        notes = {"activations": {"block": case["depth"], "steps": 255}}
        return Interpreters(model, arrays["x"], threads, copies, notes)
    return Interpreters(_integers(case, arrays), arrays["x"], threads, copies, {})


def _block_matmul(case: Case, arrays: dict[str, Array]) -> bytes:
    planes, x = planes_of(case["format"], arrays["weights"]), arrays["x"]
    if planes is None or planes.bits != 4 or planes.zero_points is not None:
        raise Unsupported("its blocks have 4 bits and no zero points")
    signed = planes.storage ^ 8  # two's complement of storage - 8
    graph, shape = Graph(), planes.storage.shape
    operand = graph.tensor(x.shape, "FLOAT32")
    scales = graph.tensor(planes.scales.shape, "FLOAT16", data=planes.scales)
    packed = signed[:, ::2] | signed[:, 1::2] << 4
    weights = graph.tensor(shape, "INT4", _blockwise(scales, 32), packed)
    result = graph.tensor((len(x), shape[0]), "FLOAT32")
    return graph.model(
        "FULLY_CONNECTED", [operand, weights, -1], result, "FullyConnectedOptions", 12,
        asymmetricQuantizeInputs=True,
    )  # fmt: skip


def _integers(case: Case, arrays: dict[str, Array]) -> bytes:
    x, w, bias, w_scales = (arrays[name] for name in ("x", "w", "bias", "w_scales"))
    name, options, number = "FULLY_CONNECTED", "FullyConnectedOptions", 4
    values: dict[str, int] = {}
    axis = 0
    if case["kind"] == "int8 convolution":
        name, options, number = "CONV_2D", "Conv2DOptions", 3
        values = {"strideH": case["strides"][0], "strideW": case["strides"][1]}
        values["padding"] = schema.Padding.SAME
        w = w.transpose(3, 0, 1, 2)
        if case["groups"] > 1:
            name, options, axis = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", 3
            w, values["depthMultiplier"] = w.transpose(3, 1, 2, 0), 1
    graph = Graph()
    operand = graph.tensor(x.shape, "INT8", _affine(case["x_scale"], case["x_zero_point"]))
    weights = graph.tensor(w.shape, "INT8", _affine(w_scales, axis=axis), w)
    accumulator = _affine(w_scales * np.float32(case["x_scale"]))
    bias_tensor = graph.tensor(bias.shape, "INT32", accumulator, bias)
    result = graph.tensor(
        tuple(case["result"]), "INT8", _affine(case["y_scale"], case["y_zero_point"])
    )
    return graph.model(name, [operand, weights, bias_tensor], result, options, number, **values)
