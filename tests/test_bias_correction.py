"""Bias correction: means of outputs beside float64, with weights that are rounded in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import subquant
from onnx_networks import Network

Array = np.ndarray[Any, Any]


def rounded(weight: Array, axes: tuple[int, ...]) -> Array:
    """The values of int8 with a scale for each index of the other axis, float64."""
    scales = np.abs(weight).max(axes, keepdims=True).astype(np.float64) / 127
    return np.rint(weight / scales) * scales


def product_of(x: Array, weight: Array) -> Array:
    return x.astype(np.float64) @ weight


def convolution_of(x: Array, weight: Array, groups: int) -> Array:
    """A convolution of 3 x 3 with a padding of 1, ``[N, O, H, W]``, in float64."""
    count, _, height, width = x.shape
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (1, 1), (1, 1)])
    outputs = weight.shape[0] // groups
    result = np.zeros((count, weight.shape[0], height, width))
    for group in range(groups):
        own = slice(group * outputs, (group + 1) * outputs)
        inputs = padded[:, group * weight.shape[1] : (group + 1) * weight.shape[1]]
        for i in range(3):
            for j in range(3):
                window = inputs[:, :, i : i + height, j : j + width]
                result[:, own] += np.einsum("nchw,oc->nohw", window, weight[own, :, i, j])
    return result


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((96, 8), 0), ((12, 8, 3, 3), 1), ((12, 4, 3, 3), 2)],
    ids=["product", "convolution", "groups"],
)
@pytest.mark.share(3)
def test_means_of_outputs(shape: tuple[int, ...], groups: int) -> None:
    """The mean error of each channel is a small part of that of the rounded weight alone."""
    net = Network(3)
    weight, bias = net.weight(*shape), net.weight(shape[0] if groups else shape[1])
    if groups:
        result = net.add("Conv", "x", weight, bias, pads=[1, 1, 1, 1], group=groups)
        size: tuple[int, ...] = (4, shape[1] * groups, 12, 12)
    else:
        result = net.add("Add", net.add("MatMul", "x", weight), bias)
        size = (4, shape[0])
    model = net.model({"x": ("FLOAT", size)}, result).SerializeToString()
    x = np.random.default_rng(0).uniform(0, 2, (64, *size[1:])).astype(np.float32)
    x[:, ::3] *= 2
    network = subquant.quantize_network(model, [x], held_out=0, calibration="min-max")
    function = subquant.compile(network.bytecode).main
    actual = np.concatenate([function(x[n : n + 4]) for n in range(0, 64, 4)])
    floats, addend = (net.constants[each].astype(np.float64) for each in (weight, bias))
    if groups:
        expected, moved = (
            convolution_of(x, each, groups) for each in (floats, rounded(floats, (1, 2, 3)))
        )
        expected, moved = (each + addend[:, None, None] for each in (expected, moved))
        axes: tuple[int, ...] = (0, 2, 3)
    else:
        expected, moved = (product_of(x, each) + addend for each in (floats, rounded(floats, (0,))))
        axes = (0,)
    shift, uncorrected = ((each - expected).mean(axes) for each in (actual, moved))
    assert np.linalg.norm(shift) < 0.3 * np.linalg.norm(uncorrected)


@pytest.mark.long
def test_a_bias_for_each_position_stays() -> None:
    """A sum with a table has no bias of channels; its values are those without a correction."""
    net = Network(4)
    table = net.weight(6, 8)
    result = net.add("Add", net.add("MatMul", "x", net.weight(32, 8)), table)
    model = net.model({"x": ("FLOAT", (6, 32))}, result).SerializeToString()
    x = np.random.default_rng(0).uniform(0, 2, (48, 32)).astype(np.float32)
    network = subquant.quantize_network(model, [x], held_out=0)
    result = subquant.compile(network.bytecode).main(x[:6])
    weight, addend = (net.constants[each].astype(np.float64) for each in ("c1", table))
    expected = x[:6] @ weight + addend
    assert np.linalg.norm(result - expected) < 0.02 * np.linalg.norm(expected)
