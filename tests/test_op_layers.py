"""Convolutions, and layers that take their tensors from a tree, eager and compiled."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES
from op_cases import (
    UNIT,
    compiled,
    compiled_with,
    exact_product,
    ggml,
    normal,
    per_row,
    per_tensor,
    ran_as,
    reals,
    rng,
)
from programs import examples, share_of
from subquant.errors import UsageError
from subquant.layouts import (
    GgmlTensor,
    PrimitiveTensor,
    StaticScaledQuantizer,
)
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.ops import (
    Conv2d,
    Embedding,
    Linear,
    Ran,
    RmsNorm,
    conv2d,
    embedding_lookup,
    recorded,
    rms_norm,
)
from subquant.runtime import Device
from subquant.weights import Theta

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 7, 8), (4, 3, 3, 2), {}),
    "padded": ((1, 3, 5, 5), (4, 3, 3, 3), {"padding": (1, (0, 2))}),
    "strided": ((1, 3, 9, 8), (4, 3, 3, 3), {"strides": (2, 3), "padding": (1, 1)}),
    "dilated": ((1, 2, 9, 8), (3, 2, 3, 2), {"dilations": (2, 3), "padding": ((2, 1), 0)}),
    "groups": ((1, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": (1, 1)}),
    "depthwise": ((1, 3, 6, 6), (6, 1, 3, 3), {"groups": 3, "padding": (1, 1), "strides": (2, 1)}),
}


def convolved(x: np.ndarray, w: np.ndarray, **options: Any) -> np.ndarray:
    """Loops, in the arrays' type; padded with 0."""
    (sh, sw), (dh, dw) = options.get("strides", (1, 1)), options.get("dilations", (1, 1))
    pads = [(p, p) if isinstance(p, int) else p for p in options.get("padding", (0, 0))]
    groups = options.get("groups", 1)
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    height = (x.shape[2] - (w.shape[2] - 1) * dh - 1) // sh + 1
    width = (x.shape[3] - (w.shape[3] - 1) * dw - 1) // sw + 1
    result = np.zeros((x.shape[0], w.shape[0], height, width), x.dtype)
    for feature in range(w.shape[0]):
        first = feature // (w.shape[0] // groups) * w.shape[1]
        for c, i, j in np.ndindex(*w.shape[1:]):
            part = x[:, first + c, i * dh :, j * dw :]
            part = part[:, : (height - 1) * sh + 1 : sh, : (width - 1) * sw + 1 : sw]
            result[:, feature] += part * w[feature, c, i, j]
    return result


OFFSETS = ("none", "x", "both")


@functools.cache
def affine_convolutions() -> dict[str, Any]:
    actual: dict[str, Any] = {}
    for case, (image, kernel, options) in CONVOLUTIONS.items():
        for offsets in OFFSETS:
            x = per_tensor(normal(image), None if offsets == "none" else -31)
            several = rng(2).integers(-20, 20, kernel[0]) if offsets == "both" else None
            operands = [x, per_row(normal(kernel, 1), several)]
            actual[f"{case} {offsets}"] = functools.partial(conv2d, **options), operands
    return actual


def affine_convolutions_on_devices() -> dict[str, Any]:
    return {name: affine_convolutions()[name] for name in share_of(affine_convolutions(), 2)}


@pytest.mark.long
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("offsets", OFFSETS)
def test_affine_convolution(case: str, offsets: str, cpu: Device) -> None:
    """Integers exactly, beside loops; code that pads with 0 in the place of the offset fails."""
    options = CONVOLUTIONS[case][2]
    x, w = affine_convolutions()[f"{case} {offsets}"][1]
    result = ran_as("affine", conv2d, x, w, **options)
    expected = exact_product(x, w, functools.partial(convolved, **options), (-1, 1, 1))
    np.testing.assert_array_equal(result, expected)
    if f"{case} {offsets}" in affine_convolutions_on_devices():
        actual = compiled_with(affine_convolutions_on_devices, f"{case} {offsets}", cpu)
        np.testing.assert_array_equal(actual, result)


def random_convolution(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes and options that fit together."""
    generator = rng(seed)

    def number(low: int, high: int) -> int:
        return int(generator.integers(low, high))

    groups = number(1, 4)
    kernel = (groups * number(1, 4), number(1, 3), number(1, 4), number(1, 4))
    options = {
        "groups": groups,
        "strides": (number(1, 4), number(1, 4)),
        "dilations": (number(1, 3), number(1, 3)),
        "padding": ((number(0, 3), number(0, 3)), number(0, 3)),
    }
    image = (number(1, 3), groups * kernel[1], number(7, 11), number(7, 11))
    return image, kernel, options


@functools.cache
def random_convolutions() -> dict[str, Any]:
    actual: dict[str, Any] = {}
    for seed in range(examples(6)):
        image, kernel, options = random_convolution(seed)
        x = per_tensor(normal(image, seed), int(rng(seed).integers(-50, 50)))
        w = per_row(normal(kernel, seed + 1), rng(seed).integers(-50, 50, kernel[0]))
        actual[str(seed)] = functools.partial(conv2d, **options), [x, w]
    return actual


@pytest.mark.parametrize("seed", range(examples(6)))
def test_convolutions_of_random_shapes(seed: int, cpu: Device) -> None:
    options = random_convolution(seed)[2]
    x, w = random_convolutions()[str(seed)][1]
    assert conv2d.choose(x, w, **options) == "affine"
    result = conv2d(x, w, **options)
    exact = convolved(reals(x), reals(w), **options)
    np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(compiled_with(random_convolutions, str(seed), cpu), result)


def test_affine_convolution_on_vulkan(vulkan: Device) -> None:
    image, kernel, options = CONVOLUTIONS["padded"]
    x, w = per_tensor(normal(image), 40), per_row(normal(kernel, 1), [3, -3, 1, 0])
    actual = compiled(lambda a, b: conv2d(a, b, **options), [x, w], vulkan)
    np.testing.assert_array_equal(actual, conv2d(x, w, **options))


@functools.cache
def float_convolutions() -> dict[str, Any]:
    return {
        case: (functools.partial(conv2d, **options),
               [normal(image), per_row(normal(kernel, 1)), normal(kernel[:1], 2)])
        for case, (image, kernel, options) in CONVOLUTIONS.items()
    }  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_by_float_values(case: str, cpu: Device) -> None:
    _, kernel, options = CONVOLUTIONS[case]
    x, w, bias = float_convolutions()[case][1]
    result = ran_as("dequantized", conv2d, x, w, bias, **options)
    exact = convolved(reals(x), reals(w), **options) + bias.astype(np.float64).reshape((-1, 1, 1))
    magnitude = convolved(np.abs(reals(x)), np.abs(reals(w)), **options) + np.abs(bias).max()
    bound = (np.prod(kernel[1:]) + 4) * UNIT * magnitude
    actual = compiled_with(float_convolutions, case, cpu)
    assert (np.abs(result - exact) <= bound).all()
    assert (np.abs(actual - exact) <= bound).all()


@pytest.mark.parametrize(
    "quantizer",
    [
        StaticScaledQuantizer(None, np.float32(0.03), 5, name="a.q_input"),
        StaticScaledQuantizer(None, np.float32(0.03), dtype=np.uint8, name="a.q_input"),
        StaticScaledQuantizer(None, np.float32(1e-9), 5, dtype=np.int32, name="a.q_input"),
        StaticScaledQuantizer(None, normal((16,), 2) ** 2 + 0.01, axis=-1, name="a.q_input"),
        StaticScaledQuantizer(None, normal((3, 4), 2) ** 2 + 0.01, block_size=4, name="a.q_input"),
        StaticScaledQuantizer(
            None, normal((3, 4), 2) ** 2 + 0.01, np.arange(12).reshape(3, 4), block_size=4
        ),
    ],
)
@ON_DEVICES
def test_quantizers_are_traced(quantizer: StaticScaledQuantizer, device: Device) -> None:
    """The same storage values, ties and special values included."""
    values = normal((3, 16)) * 3
    halves = (rng(1).integers(-40, 40, 16) + 0.5).astype(np.float32)
    values[0] = halves * np.ravel(quantizer.reciprocal_scale)[0]
    values[1, :4] = [np.nan, np.inf, -np.inf, 3e38]

    def stored(x: Any) -> Any:
        return quantizer.quantize(x).unpack().planes["qs"]

    actual = compiled(stored, [values], device)
    expected = stored(values)
    np.testing.assert_array_equal(actual.view(expected.dtype), expected)


def test_layers_take_their_tensors_from_a_tree(cpu: Device) -> None:
    """A quantized layer from end to end: integers inside, the same compiled."""
    weight, bias = normal((6, 16)), normal((6,), 3)
    theta = Theta(
        [
            per_row(weight, [1, 2, 3, 4, 5, 6]).with_name("a.weight"),
            PrimitiveTensor(bias, "a.bias"),
            PrimitiveTensor(np.full(16, 0.5, np.float32), "a.premul_input"),
            StaticScaledQuantizer(None, np.float32(0.03), 4, name="a.q_input"),
            StaticScaledQuantizer(None, np.float32(0.1), name="a.q_output"),
            PrimitiveTensor(normal((16,), 5), "norm.weight"),
            ggml("Q8_0", (9, 32)).with_name("table.weight"),
        ]
    )
    layer, x = Linear(theta("a")), normal((3, 16), 9)
    with recorded() as ran:
        result = layer(x)
    assert Ran("linear", "affine") in ran
    layout = result.unpack()
    assert layout.planes["qs"].dtype == np.int8
    exact = (x * 0.5).astype(np.float64) @ weight.T + bias
    assert np.abs(layout.dequant() - exact).max() < 0.05 + 16 * (0.015 + 0.02) * 0.5
    actual = compiled(lambda v: layer(v).unpack().planes["qs"], [x], cpu)
    np.testing.assert_array_equal(actual, layout.planes["qs"])
    np.testing.assert_array_equal(
        RmsNorm(theta("norm"), 1e-5)(x), rms_norm(x, theta.tensor("norm.weight"), epsilon=1e-5)
    )
    ids = np.array([8, 1], np.int32)
    rows = theta.tensor("table.weight")
    np.testing.assert_array_equal(Embedding(theta("table"))(ids), embedding_lookup(ids, rows))


@pytest.mark.parametrize("ggml_type", ["Q4_K", "Q8_0"])
def test_embedding_unpacks_only_its_rows(ggml_type: str) -> None:
    """Rows that are not looked up have NaN as their scales; all indices have their rows."""
    block = BLOCK_TYPES[ggml_type]
    raw = np.random.default_rng(0).integers(0, 64, (9, 2 * block.block.itemsize)).astype(np.uint8)
    table = GgmlTensor(raw.reshape(-1), ggml_type, (9, 2 * block.size), "table.weight")
    expected = table.unpack().dequant()[[[8, 0], [0, 3]]]
    raw[[1, 2, 4, 5, 6, 7]] = 255
    actual = Embedding(Theta([table])("table"))(np.array([[8, 0], [0, 3]], np.int32))
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)


def test_convolution_layer(cpu: Device) -> None:
    weight, bias = normal((4, 3, 3, 3)), normal((4,), 1)
    theta = Theta([PrimitiveTensor(weight, "c.weight"), per_tensor(bias).with_name("c.bias")])
    layer, x = Conv2d(theta("c"), padding=(1, 1), strides=(2, 1)), normal((1, 3, 5, 6), 2)
    expected = conv2d(x, weight, padding=(1, 1), strides=(2, 1))
    expected = expected + per_tensor(bias).unpack().dequant().reshape((-1, 1, 1))
    np.testing.assert_array_equal(layer(x), expected)
    np.testing.assert_allclose(compiled(layer, [x], cpu), expected, rtol=1e-5, atol=1e-5)


def test_a_tensor_in_the_place_of_a_quantizer() -> None:
    theta = Theta([PrimitiveTensor(np.ones((2, 2)), "a.weight"), PrimitiveTensor(1.0, "a.q_input")])
    with pytest.raises(UsageError, match=r"tensor 'a.q_input' is .+, expected a quantizer"):
        Linear(theta("a"))(np.ones((1, 2), np.float32))
