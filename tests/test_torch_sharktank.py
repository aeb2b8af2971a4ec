"""sharktank's own examples of layers, rebuilt on `subquant.torch.nn`.

Sources: shark-ai, ``layers/linear_test.py`` and ``ops/qconv_test.py`` in ``sharktank/tests``: their
distributions, scales, offsets and tolerances.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

import subquant.torch  # noqa: E402  (needs torch)
from subquant import ops  # noqa: E402
from subquant.layouts import InferenceTensor, PrimitiveTensor, StaticScaledQuantizer  # noqa: E402
from subquant.torch import nn  # noqa: E402
from subquant.weights.theta import Theta  # noqa: E402


def uniform(shape: tuple[int, ...], axis: int, offset: float = 0.0, seed: int = 0) -> np.ndarray:
    """Uniform numbers, each index of an axis with its own range."""
    rng = np.random.default_rng(seed)
    broadcast = [shape[axis] if each == axis else 1 for each in range(len(shape))]
    numbers = rng.random(shape) * rng.random(broadcast) + rng.random(broadcast) * offset
    return numbers.astype(np.float32)


def tensor_quantizer(values: np.ndarray) -> StaticScaledQuantizer:
    """The i8 quantizer of a whole tensor."""
    return StaticScaledQuantizer(scale=np.float32(127 / np.abs(values.max())), name="q_input")


def channel_quantizer(values: np.ndarray, dtype: Any) -> StaticScaledQuantizer:
    """The quantizer of channels, from the least to the greatest number of each."""
    rows = values.reshape(len(values), -1)
    scale = 255 / (rows.max(axis=1) - rows.min(axis=1))
    offset = np.round(rows.min(axis=1) * scale) + np.iinfo(dtype).min
    return StaticScaledQuantizer(scale=scale, offset=offset.astype(dtype), dtype=dtype, axis=0)


def biases(bias: np.ndarray, x: StaticScaledQuantizer, weight: StaticScaledQuantizer) -> Any:
    """A bias by the names of its kinds: none, of floats, and of i32 in steps of the products."""
    scale = np.broadcast_to(x.scale * weight.scale, bias.shape)
    quantizer = StaticScaledQuantizer(scale=scale, dtype=np.int32, axis=0)
    return {
        "none": [],
        "float": [PrimitiveTensor(bias, "bias")],
        "integers": [quantizer.quantize(bias, "bias")],
    }


def results(module: Any, layer: Any, x: np.ndarray) -> np.ndarray:
    """The result of the layer in NumPy, which the eager and the compiled module compute too.

    A kernel adds a float bias to the product before it is rounded.
    """
    with ops.recorded() as ran:
        expected = np.asarray(layer(x))
    assert [each.implementation for each in ran] == ["affine"]
    inputs = torch.from_numpy(x)
    assert np.array_equal(module.eval()(inputs).numpy(), expected)
    compiled = subquant.torch.compile(module, (inputs,))(inputs).numpy()
    has_bias = layer.optional("bias") is not None
    np.testing.assert_array_max_ulp(compiled, expected, maxulp=1 if has_bias else 0)
    return expected


def dequantized(tensor: InferenceTensor) -> torch.Tensor:
    return torch.from_numpy(np.asarray(tensor.unpack().dequant(), np.float64))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["none", "float", "integers"])
def test_linear_of_a_tensor_and_channels(kind: str) -> None:
    """Its ``testNativeQuant_SymPerTensor_AsymPerAxis0_Dynamic``, and without a quantized bias."""
    x, weight = uniform((4, 8, 128), 0), uniform((16, 128), 0, 0.02, seed=1)
    bias = np.random.default_rng(2).random(16).astype(np.float32) + 5
    of_input, of_weight = tensor_quantizer(x), channel_quantizer(weight, np.uint8)
    biases_of = biases(bias, of_input, of_weight)
    theta = Theta([of_input, of_weight.quantize(weight, "weight"), *biases_of[kind]])
    actual = results(nn.Linear(theta), ops.Linear(theta), x)
    expected = x @ weight.T + (0 if kind == "none" else bias)
    np.testing.assert_allclose(actual, expected, rtol=1e-1, atol=1e-1)


@pytest.mark.parametrize("granularity", ["channels", "tensor"])
@pytest.mark.parametrize("kind", ["none", "float", "integers"])
def test_convolution_of_a_tensor_and_channels(kind: str, granularity: str) -> None:
    """Its ``testInputSymPerTensor_*``: the sum of dequantized operands, within a rounding."""
    x, weight = uniform((4, 8, 16, 16), 1), uniform((8, 8, 4, 4), 0, 0.2, seed=1)
    bias = np.random.default_rng(2).random(8).astype(np.float32) + 5
    of_input = tensor_quantizer(x)
    of_weight = (
        channel_quantizer(weight, np.int8)
        if granularity == "channels"
        else tensor_quantizer(weight)
    )
    stored, of_bias = of_weight.quantize(weight, "weight"), biases(bias, of_input, of_weight)[kind]
    theta = Theta([of_input, stored, *of_bias])
    actual = results(nn.Conv2d(theta, padding=1), ops.Conv2d(theta, padding=((1, 1), (1, 1))), x)
    reference = torch.nn.functional.conv2d(
        dequantized(of_input.quantize(x)), dequantized(stored), padding=1
    )
    for each in of_bias:
        added = torch.from_numpy(each.array) if kind == "float" else dequantized(each)
        reference = reference + added.reshape(1, -1, 1, 1)
    np.testing.assert_allclose(actual, reference.numpy(), rtol=1.3e-6, atol=1e-5)
