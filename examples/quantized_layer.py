"""Write an ONNX model of one layer, quantized by ONNX Runtime, and an input for it.

python examples/quantized_layer.py layer.onnx x.npy
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class Inputs(CalibrationDataReader):
    """Calibration data for the ranges of activations."""

    def __init__(self, *inputs: np.ndarray) -> None:
        self._inputs = iter([{"x": each} for each in inputs])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next input, or None."""
        return next(self._inputs, None)


def float_layer(weight: np.ndarray) -> onnx.ModelProto:
    """Return a model of ``y = x @ weight`` for any batch."""
    k, n = weight.shape
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", k])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", n])
    node = helper.make_node("MatMul", ["x", "weight"], ["y"], name="layer")
    constants = [numpy_helper.from_array(weight, "weight")]
    graph = helper.make_graph([node], "layer", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("--break", action="store_true", dest="is_broken", help="lose a name")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 16)).astype(np.float32)
    np.save(arguments.input, x)
    logging.disable(logging.WARNING)  # ONNX Runtime recommends its own preparation
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "float.onnx")
        onnx.save(float_layer(rng.normal(size=(16, 4)).astype(np.float32)), source)
        quantize_static(
            source,
            arguments.model,
            Inputs(x),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    model = onnx.load(arguments.model)
    kinds = [node.op_type for node in model.graph.node]
    counts = [f"{kinds.count(kind)} x {kind}" for kind in ("DequantizeLinear", "QuantizeLinear")]
    print(f"MatMul between {' and '.join(counts)}")
    if arguments.is_broken:
        (node,) = (node for node in model.graph.node if node.op_type == "MatMul")
        node.input[1] = "weights"
        onnx.save(model, arguments.model)


if __name__ == "__main__":
    main()
