"""Real TensorFlow Lite models beside LiteRT's reference kernels, at every layer.

The wake-word models are PyPI's ``pymicro-wakeword``. The others are public: a folder of them is
named by the environment variable SUBQUANT_MODELS, in subfolders by repository.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from devices import ON_DEVICES
from litert import Ours, compare, model_bytes
from programs import LONG
from subquant.runtime import Device
from test_tosa_models import WORDS, model_file

INTEGER = (
    "mlperf-tiny/ad01_int8",
    "mlperf-tiny/kws_ref_model",
    "mlperf-tiny/pretrainedResnet_quant",
    "tflite-micro/hello_world_int8",
    "tflite-micro/micro_speech_quantized",
    "tflite-micro/trained_lstm_int8",
    "ai-edge-quantizer/mnist_quantized",
    "ai-edge-quantizer/blockwise_i4rangedvalues_fc",
)
"""Models whose integers LiteRT's kernels and ours compute, with the floats around them."""


def model(name: str) -> bytes:
    folder = os.environ.get("SUBQUANT_MODELS")
    if not folder:
        pytest.skip("no folder of models: set SUBQUANT_MODELS")
    return model_bytes(Path(folder) / f"{name}.tflite")


@pytest.mark.parametrize("name", INTEGER)
def test_numpy_equals_litert(name: str) -> None:
    assert compare(model(name), None, 5) > 0


@ON_DEVICES
@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.share(12)
def test_devices_equal_litert(name: str, device: Device, device_name: str) -> None:
    """100 inputs are compared on Vulkan with ``scripts/test --long``."""
    assert compare(model(name), device, 100 if LONG or not device.is_vulkan else 3) > 0


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.share(4)
def test_variables_are_kept_from_call_to_call(name: str, cpu: Device) -> None:
    data = model_file(name).read_bytes()
    assert compare(data, None, 5) > 0
    assert compare(data, cpu, 40) > 0


@pytest.mark.skipif(
    not LONG, reason="5 s; operators with 8-bit activations are compared one by one"
)
def test_dynamic_range(cpu: Device) -> None:
    """With 8-bit activations to the bit as LiteRT; with floats those of the weights' reals."""
    data = model("mlperf-tiny/model_ToyCar_quant")
    assert compare(data, None, 20, activations="int8", tolerance=0) > 0
    assert compare(data, cpu, 100, activations="int8", tolerance=0) > 0
    exact, compiled = Ours(data, None), Ours(data, cpu)
    rows = np.random.default_rng(0).normal(size=(1, 640)).astype(np.float32)
    for left, right in zip(exact([rows]).values(), compiled([rows]).values(), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-5 * np.abs(left).max())


# -- where LiteRT answers zeros -------------------------------------------------------------------


def test_int4_blocks_of_a_language_model(cpu: Device) -> None:
    """LiteRT's reference kernel answers 0 for every row; the weights say otherwise."""
    ours = Ours(model("litert/qwen_fc_blockwise_quantized"), cpu)
    weights = ours.model.subgraphs[0].tensors[1]
    assert weights.quantization is not None
    blocks = weights.data.reshape(1024, 32, 32) * weights.quantization.scales[..., None]
    x = np.random.default_rng(0).normal(size=(1, 1, 1024)).astype(np.float32)
    (result,) = ours([x]).values()
    expected = x.astype(np.float64).reshape(-1) @ blocks.reshape(1024, 1024).T.astype(np.float64)
    np.testing.assert_allclose(result.reshape(-1), expected, rtol=0, atol=1e-5)


def test_16_bit_activations_with_8_bit_weights(cpu: Device) -> None:
    """LiteRT takes the scales of the columns for a scale of 0."""
    ours = Ours(model("litert/static_w8_a16_quantized_q_einsum"), cpu)
    tensors = ours.model.subgraphs[0].tensors
    x, w, y = tensors[0].quantization, tensors[1].quantization, tensors[5].quantization
    assert x is not None
    assert w is not None
    assert y is not None
    rows = np.random.default_rng(0).integers(-32768, 32768, (8, 100, 128)).astype(np.int16)
    total = rows.reshape(800, 128).astype(np.int64) @ tensors[1].data.astype(np.int64)
    factors = np.float64(x.scale) * w.scales.astype(np.float64) / np.float64(y.scale)
    exact = np.clip(total * factors, -32768, 32767)
    # A multiplier of 15 bits is 2**-16 off, and the result is rounded.
    np.testing.assert_allclose(ours([rows])[5], exact, rtol=2**-15, atol=0.5)
