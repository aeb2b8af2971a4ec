"""Real ONNX models, as ONNX Runtime quantizes them, beside exact arithmetic at every tensor.

The models are public: a folder of them is named by the environment variable SUBQUANT_MODELS, in
subfolders by repository. ONNX Runtime quantizes them here; they are not compared with it,
because its kernels saturate on some CPUs and fuse other nodes.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from devices import ON_DEVICES
from onnx_models import computed, every_tensor
from onnx_networks import quantized
from onnx_oracle import Oracle
from programs import LONG
from subquant.runtime import Device

MODELS = {
    "mnist": ("ort-examples/mnist.onnx", 13),
    "ultraface": ("ort-examples/Ultraface-RFB-320.onnx", 17),
}
FORMS = ("qdq-u8s8", "qdq-s8s8", "operators", "dynamic")


def folder() -> Path:
    actual = os.environ.get("SUBQUANT_MODELS")
    if not actual:
        pytest.skip("no folder of models: set SUBQUANT_MODELS")
    return Path(actual)


def real_model(name: str) -> onnx.ModelProto:
    path, opset = MODELS[name]
    if not (folder() / path).is_file():
        pytest.skip(f"{path} is not in the folder of models (SUBQUANT_MODELS)")
    proto = onnx.load(folder() / path)
    constants = {each.name for each in proto.graph.initializer}
    inputs = [each for each in proto.graph.input if each.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    for entry in [each for each in proto.opset_import if each.domain]:
        proto.opset_import.remove(entry)
    proto.ir_version = 8
    return onnx.version_converter.convert_version(proto, opset)


def shape_of(proto: onnx.ModelProto) -> list[int]:
    return [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]


@functools.cache
def quantized_model(name: str, form: str) -> onnx.ModelProto:
    """One of the models, quantized in one of the ways that ONNX Runtime has."""
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("the package 'onnxruntime' is not installed (extra 'test')")
    return quantized(real_model(name), form, "s8" if form.startswith("qdq") else "u8")


def blocked_model(name: str) -> onnx.ModelProto:
    """Weights as 8 bits in blocks of input channels (the last may be short), as OpenCV's models."""
    proto = onnx.version_converter.convert_version(real_model(name), 21)
    weights = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    done = set()
    for node in list(proto.graph.node):
        if node.op_type not in ("Conv", "MatMul") or node.input[1] not in weights:
            continue
        of, axis = node.input[1], 1 if node.op_type == "Conv" else 0
        array = weights[of]
        extent = array.shape[axis]
        size = min(extent, 24)
        if of not in done:
            done.add(of)
            starts = np.arange(0, extent, size)
            low = np.minimum(np.minimum.reduceat(array, starts, axis), 0)
            high = np.maximum(np.maximum.reduceat(array, starts, axis), 0)
            scales = (np.maximum(high - low, 1e-6) / 255).astype(np.float32)
            zeros = np.clip(np.rint(-low / scales), 0, 255).astype(np.uint8)
            spread = [np.repeat(p, size, axis).take(range(extent), axis) for p in (scales, zeros)]
            stored = np.clip(np.rint(array / spread[0]) + spread[1], 0, 255).astype(np.uint8)
            names = [f"{of}.{part}" for part in ("stored", "scales", "zeros")]
            for part, plane in zip(names, (stored, scales, zeros), strict=True):
                proto.graph.initializer.append(numpy_helper.from_array(plane, part))
            attributes = {"axis": axis, "block_size": size}
            real = helper.make_node("DequantizeLinear", names, [f"{of}.real"], **attributes)
            proto.graph.node.insert(0, real)
        node.input[1] = f"{of}.real"
    return proto


def drawn(proto: onnx.ModelProto) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).normal(size=shape_of(proto)).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.share(6)
def test_every_tensor_is_exact(name: str, form: str) -> None:
    """With NumPy; integers equal, floats within a part of the greatest."""
    proto = quantized_model(name, form)
    x = {proto.graph.input[0].name: drawn(proto)}
    oracle = Oracle(proto, every_tensor(proto, x))
    oracle(x)
    assert oracle.integers > 10_000


@pytest.mark.parametrize("form", FORMS)
@ON_DEVICES
@pytest.mark.share(8)
def test_devices_compute_mnist(form: str, device: Device) -> None:
    check_device("mnist", form, device)


@pytest.mark.parametrize("form", FORMS)
@ON_DEVICES
def test_devices_compute_ultraface(form: str, device: Device) -> None:
    """It takes a minute for each."""
    if not LONG:
        pytest.skip("of the long suite")
    check_device("ultraface", form, device)


def check_device(name: str, form: str, device: Device) -> None:
    """The results are NumPy's; a float that rounds otherwise moves dynamic parameters."""
    proto = quantized_model(name, form)
    x = drawn(proto)
    expected = computed(proto, None, x)
    assert_close(computed(proto, device, x), expected, 1e-3 if form == "dynamic" else 1e-6)


def assert_close(results: list[Any], expected: list[Any], tolerance: float) -> None:
    """The tolerance is a part of the greatest."""
    for result, reference in zip(results, expected, strict=True):
        bound = tolerance * float(np.abs(reference).max())
        np.testing.assert_allclose(result, reference, rtol=0, atol=bound)


@pytest.mark.parametrize("name", MODELS)
def test_weights_in_blocks(name: str, cpu: Device) -> None:
    """The results equal f64 but for the order of f32 sums."""
    if name == "ultraface" and not LONG:
        pytest.skip("of the long suite")
    proto = blocked_model(name)
    x = drawn(proto)
    feeds = {proto.graph.input[0].name: x}
    ours = every_tensor(proto, feeds)
    Oracle(proto, ours)(feeds, tolerance=1e-4)
    assert_close(computed(proto, cpu, x), [ours[each.name] for each in proto.graph.output], 1e-4)


def test_a_quantized_network_of_torch(cpu: Device) -> None:
    """Gemm between quantize and dequantize, Tanh, parameters through Cast."""
    path = folder() / "shark/QuantizedMLP.onnx"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in the folder of models (SUBQUANT_MODELS)")
    proto = onnx.load(path)
    x = drawn(proto)
    (expected,) = computed(proto, None, x)
    (result,) = computed(proto, cpu, x)
    np.testing.assert_array_equal(result, expected)
    assert len(np.unique(expected)) > 1
