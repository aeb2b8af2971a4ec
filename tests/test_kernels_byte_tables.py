"""Functions of bytes, such as quantized activations: look-ups that equal the arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from devices import main_of
from instruction_sets import EVERY
from integer_programs import drawn
from onnx_models import model, node, text_of
from programs import lowered_text

Array = np.ndarray[Any, Any]
SCALE, ZERO_POINT = 0.043, 11


def _quantized(x: Array, scale: float, zero_point: int) -> Array:
    """Bytes of reals, none of which is near a tie."""
    steps = x / np.float64(np.float32(scale))
    assert (np.abs(np.abs(steps % 1) - 0.5) > 1e-4).all()
    return np.clip(np.rint(steps) + zero_point, -128, 127)


def _real(q: Array, scale: float, zero_point: int) -> Array:
    return (q - zero_point) * np.float64(np.float32(scale))


@dataclass(frozen=True)
class Activation:
    """NumPy's function of an operator, with scale and zero point of the result."""

    compute: Callable[[Array], Array]
    scale: float
    zero_point: int
    attributes: tuple[tuple[str, Any], ...] = ()


_erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "Elu": Activation(lambda x: np.where(x < 0, np.expm1(x), x), 0.0311, -70),
    "Exp": Activation(np.exp, 0.557, -128),
    "Gelu": Activation(lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))), 0.0237, -115),
    "HardSwish": Activation(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 0.0213, -99),
    "Identity": Activation(lambda x: x, 0.0571, 5),
    "LeakyRelu": Activation(
        lambda x: np.where(x < 0, x * np.float32(0.13), x), 0.0317, -80, (("alpha", 0.13),)
    ),
    "Sigmoid": Activation(lambda x: 1 / (1 + np.exp(-x)), 1 / 256, -128),
    "Tanh": Activation(np.tanh, 1 / 128, 0),
}


def _network(shape: tuple[int], dtype: Any = np.int8) -> Any:
    """A model with all activations of a tensor, with ``x * sigmoid(x)``, and with a product.

    Modules without contractions have no kernels.
    """
    constants: dict[str, Array] = {}
    nodes, results, offset = [], {}, 0 if dtype == np.int8 else 128

    def parameters(name: str, scale: float, zero_point: int) -> list[str]:
        constants[f"{name} scale"] = np.array(scale, np.float32)
        constants[f"{name} zero"] = np.array(zero_point + offset, dtype)
        return [f"{name} scale", f"{name} zero"]

    def dequantized(name: str, source: str, scale: float, zero_point: int) -> str:
        inputs = [source, *parameters(source, scale, zero_point)]
        nodes.append(node("DequantizeLinear", inputs, [name]))
        return name

    def quantized(name: str, source: str, scale: float, zero_point: int) -> str:
        inputs = [source, *parameters(name, scale, zero_point)]
        nodes.append(node("QuantizeLinear", inputs, [name]))
        results[name] = np.zeros(shape, dtype)
        return name

    x = dequantized("x real", "x", SCALE, ZERO_POINT)
    for name, each in ACTIVATIONS.items():
        nodes.append(node(name, [x], [f"{name} real"], **dict(each.attributes)))
        quantized(name, f"{name} real", each.scale, each.zero_point)
    sigmoid = ACTIVATIONS["Sigmoid"]
    factor = dequantized("factor", "Sigmoid", sigmoid.scale, sigmoid.zero_point)
    nodes.append(node("Mul", [x, factor], ["Silu real"]))
    quantized("Silu", "Silu real", 0.0271, -101)
    rows = dequantized("rows real", "rows", 0.01, 0)
    constants["w"] = drawn(64, 80, seed=1)
    constants["w scale"], constants["w zero"] = np.array(0.01, np.float32), np.array(0, np.int8)
    nodes.append(node("DequantizeLinear", ["w", "w scale", "w zero"], ["w real"]))
    nodes.append(node("MatMul", [rows, "w real"], ["product"]))
    results["product"] = np.zeros((1, 80), np.float32)
    type_ = "INT8" if dtype == np.int8 else "UINT8"
    inputs = {"x": (type_, shape), "rows": (type_, (1, 64))}
    return model(nodes, inputs, results, constants)


def _expected(q: Array) -> list[Array]:
    """The bytes of all activations, and of ``x * sigmoid(x)``."""
    x = _real(q, SCALE, ZERO_POINT)
    results = [
        _quantized(each.compute(x), each.scale, each.zero_point) for each in ACTIVATIONS.values()
    ]
    sigmoid = ACTIVATIONS["Sigmoid"]
    factor = _real(results[list(ACTIVATIONS).index("Sigmoid")], sigmoid.scale, sigmoid.zero_point)
    return [*results, _quantized(x * factor, 0.0271, -101)]


def _check(q: Array, dtype: Any, **options: Any) -> None:
    offset = 0 if dtype == np.int8 else 128
    rows = np.zeros((1, 64), dtype)
    main = main_of(text_of(_network(q.shape, dtype)), **options)
    *results, _ = main((q + offset).astype(dtype), rows)
    for actual, expected in zip(results, _expected(q), strict=True):
        np.testing.assert_array_equal(actual, expected + offset)


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=["int8", "uint8"])
@pytest.mark.share(7)
def test_look_ups_equal_the_arithmetic(dtype: Any, instructions: str) -> None:
    every = np.concatenate([np.arange(-128, 128), np.arange(14)])  # the last two vectors overlap
    _check(np.random.default_rng(0).permutation(every), dtype, kernels=instructions)


@pytest.mark.parametrize("size", [1, 31])
@pytest.mark.share(2)
def test_less_than_a_vector(size: int) -> None:
    _check(np.linspace(-128, 127, size).astype(np.int64), np.int8, kernels="avx2")


def test_no_arithmetic_is_left() -> None:
    lowered = lowered_text(text_of(_network((270,))), kernels="avx2")
    assert lowered.count("llvm.x86.avx2.pshuf.b") == 16 * (len(ACTIVATIONS) + 1)
    assert not any(name in lowered for name in ("math.", "arith.divf", "subquant.requantize"))


@pytest.mark.parametrize("options", [{"rounding": "toward-zero"}, {"kernels": "none"}], ids=str)
def test_other_roundings_and_no_kernels_have_no_tables(options: dict[str, Any]) -> None:
    assert "byte_table" not in lowered_text(text_of(_network((70000,))), **options)


def _convolutions() -> Any:
    """Two quantized convolutions of images, with LeakyRelu between them."""
    integers = {"xz": 3, "yz": -20, "az": -90, "zz": 1, "wz": 0}
    constants = {name: np.array(number, np.int8) for name, number in integers.items()}
    scales = {"xs": 0.02, "ws": 0.01, "ys": 0.07, "as": 0.05, "zs": 0.3}
    constants |= {name: np.array(number, np.float32) for name, number in scales.items()}
    constants |= {"w": drawn(32, 3, 3, 3), "v": drawn(16, 32, 1, 1, seed=1)}
    x, w, v = (
        node("DequantizeLinear", [name, scale, zero], [f"{name} real"])
        for name, scale, zero in (("x", "xs", "xz"), ("w", "ws", "wz"), ("v", "ws", "wz"))
    )
    nodes = [x, w, v, node("Conv", ["x real", "w real"], ["y real"], pads=[1] * 4)]
    for source, operator, name in (("y real", "LeakyRelu", "y"), ("a real", "Conv", "a")):
        parameters = [f"{name}s", f"{name}z"]
        nodes.append(node("QuantizeLinear", [source, *parameters], [name]))
        nodes.append(node("DequantizeLinear", [name, *parameters], [f"{name} again"]))
        more = {"alpha": 0.13} if operator == "LeakyRelu" else {}
        weight = ["v real"] if operator == "Conv" else []
        result = "a real" if operator == "LeakyRelu" else "z real"
        nodes.append(node(operator, [f"{name} again", *weight], [result], **more))
    nodes.append(node("QuantizeLinear", ["z real", "zs", "zz"], ["z"]))
    inputs = {"x": ("INT8", (1, 3, 20, 20))}
    return model(nodes, inputs, {"z": ("INT8", (1, 16, 20, 20))}, constants)


def test_look_ups_between_convolutions() -> None:
    """The look-up is in the layout of the kernels, which do not compute the function again."""
    text = text_of(_convolutions())
    lowered = lowered_text(text, kernels="avx2", fuse_below_macs=0)
    [call] = re.findall(r"%\d+ = .*@byte_table::@byte_table.*", lowered)
    operand = re.search(r'"flow.dispatch"\((%\d+)', call)
    assert operand is not None
    assert re.search(rf"{operand[1]} = .*@int8_conv", lowered)
    x = drawn(1, 3, 20, 20, seed=2)
    actual, plain = (main_of(text, kernels=kernels)(x) for kernels in ("avx2", "none"))
    np.testing.assert_array_equal(actual, plain)
