"""Models of benchmarks for ONNX Runtime have the results of the exported modules of PyTorch.

It needs torchao beside PyTorch.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torchao")
pytest.importorskip("onnx")

import subquant
from programs import load_script
from subquant.importers.onnx import Interpreter
from subquant.importers.onnx.reading.reader import read_onnx

modules = load_script("benchmarks.modules")


@pytest.mark.parametrize("method", ["XNNPACK", "X86"])
@pytest.mark.parametrize(("kind", "width"), [("BERT", 24), ("ViT", 16)])
def test_models_of_one_layer(kind: str, width: int, method: str) -> None:
    """The ONNX model in NumPy, and the compiled program, are near eager PyTorch.

    One layer: a rounding error makes a step of a quantization, which others make larger.
    """
    encoder = modules.quantized_module(kind, width, 2, 1, method)
    model = read_onnx(encoder.onnx)
    [name] = [each.name for each in model.inputs]
    [in_numpy] = Interpreter(model).run({name: encoder.x})
    compiled = np.asarray(subquant.compile(encoder.program).main(encoder.x))
    scale = np.abs(encoder.exact).max()
    for result in (in_numpy, compiled):
        difference = np.abs(result - encoder.exact)
        assert np.median(difference) < 1e-6 * scale
        assert difference.max() < 0.05 * scale
