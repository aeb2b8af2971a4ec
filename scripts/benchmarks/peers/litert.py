"""LiteRT with XNNPACK, which it uses by default: an interpreter a copy of the weights."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from ..blocks import planes_of
from . import Array, Case, Unsupported

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from tflite_builder import Graph, Quantized, one_operator, schema


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
    packed = signed[:, ::2] | signed[:, 1::2] << 4
    graph, shape = Graph(), planes.storage.shape
    operand = graph.tensor(x.shape, "float32")
    scales = Quantized(planes.scales, block_size=32)
    weights = graph.tensor(shape, "int8", scales, packed, type_name="INT4")
    result = graph.tensor((len(x), shape[0]), "float32")
    results = graph.operator(
        "FULLY_CONNECTED", [operand, weights, -1], [result], "FullyConnectedOptions", 12,
        asymmetricQuantizeInputs=True,
    )  # fmt: skip
    return graph.model([operand], results)


def _integers(case: Case, arrays: dict[str, Array]) -> bytes:
    x, w, bias, w_scales = (arrays[name] for name in ("x", "w", "bias", "w_scales"))
    name, options, number = "FULLY_CONNECTED", "FullyConnectedOptions", 4
    values: dict[str, int] = {}
    axis = 0
    if case["kind"] == "int8 convolution":
        name, options, number = "CONV_2D", "Conv2DOptions", 3
        values = {"strideH": case["strides"][0], "strideW": case["strides"][1]}
        values["padding"] = schema().Padding.SAME
        w = w.transpose(3, 0, 1, 2)
        if case["groups"] > 1:
            name, options, axis = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", 3
            w, values["depthMultiplier"] = w.transpose(3, 1, 2, 0), 1
    accumulator = Quantized(w_scales * np.float32(case["x_scale"]))
    inputs = [
        (x.shape, "int8", Quantized(case["x_scale"], case["x_zero_point"])),
        (w.shape, "int8", Quantized(w_scales, axis=axis), w),
        (bias.shape, "int32", accumulator, bias),
    ]
    result = (case["result"], "int8", Quantized(case["y_scale"], case["y_zero_point"]))
    return one_operator(name, inputs, [result], options, number, **values)
