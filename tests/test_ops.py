"""Operations: eager beside float64, compiled beside eager, by the implementation that was meant."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES
from ggml_blocks import COMPUTED
from op_cases import (
    UNIT,
    blocks,
    compiled,
    compiled_with,
    exact_product,
    ggml,
    normal,
    on_devices,
    per_row,
    per_tensor,
    ran_as,
    reals,
    rng,
    text_of,
)
from programs import LONG, lowered_text
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import UsageError
from subquant.layouts import (
    DynamicScaledQuantizer,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
    TensorScaledLayout,
)
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.numerics.parameters import ExpressedType
from subquant.ops import (
    Op,
    Ran,
    add,
    compile_function,
    conv2d,
    embedding_lookup,
    linear,
    matmul,
    multiply,
    recorded,
    rms_norm,
    silu,
    subtract,
)
from subquant.runtime import Device
from subquant.weights.quantizing import WeightQuantization, quantize_array

AFFINE: dict[str, tuple[Any, Any]] = {
    "no offsets": (per_tensor(normal((3, 40))), per_tensor(normal((5, 40), 1))),
    "offset of x": (per_tensor(normal((3, 40)), 17), per_row(normal((5, 40), 1))),
    "offset of w": (per_tensor(normal((3, 40))), per_row(normal((5, 40), 1), [1, -2, 3, -4, 5])),
    "both": (per_tensor(normal((2, 3, 40)), -9), per_row(normal((5, 40), 1), [9, 0, 3, -4, 5])),
    "unsigned": (
        per_tensor(normal((3, 40)), 128, np.uint8),
        per_row(normal((5, 40), 1), [100, 128, 3, 255, 0], np.uint8),
    ),
    "square": (per_tensor(normal((6, 6)), 17), per_row(normal((6, 6), 1), [1, -2, 3, -4, 5, 6])),
    "16 bits": (per_tensor(normal((3, 40)), 5, np.int16), per_tensor(normal((5, 40), 1), 3)),
    "offset that is an unsigned scalar": (
        per_tensor(normal((3, 40)), np.uint8(131), np.uint8),
        per_tensor(normal((5, 40), 1)),
    ),
}


def affine_linears() -> dict[str, Any]:
    return {name: (linear, list(operands)) for name, operands in AFFINE.items()}


@on_devices(AFFINE, ("both", "unsigned"))
def test_affine_linear(name: str, device: Device) -> None:
    """Integers exactly: two roundings of the exact value; compiled, the same bits.

    Code that corrects an offset by a sum over the wrong axis fails here, for square operands too.
    """
    x, w = AFFINE[name]
    result = ran_as("affine", linear, x, w)
    np.testing.assert_array_equal(result, exact_product(x, w, lambda qx, qw: qx @ qw.T, (-1,)))
    np.testing.assert_allclose(result, reals(x) @ reals(w).T, rtol=1e-6, atol=1e-6)
    if device.is_vulkan:
        actual = compiled(linear, [x, w], device)
    else:
        actual = compiled_with(affine_linears, name, device)
    np.testing.assert_array_equal(actual, result)


def test_a_long_affine_linear_does_not_overflow() -> None:
    """2**16 products of up to 2**16 need more than 32 bits."""
    length = 1 << 17
    x = TensorScaledLayout((1, length), {
        "d": np.float32(1).reshape(()), "qs": np.full((1, length), -128, np.int8),
        "m": np.array(127, np.int32),
    })  # fmt: skip
    tensor = PlanarQuantizedTensor(x)
    assert linear(tensor, tensor) == [[np.float32(length * 255.0 * 255.0)]]


def check_close(x: Any, w: Any, magnitude: Any, *results: np.ndarray) -> None:
    """Compare with exact sums; `magnitude` is the sum of the terms' magnitudes."""
    exact = reals(x) @ reals(w).T
    for result in results:
        assert (np.abs(result - exact) <= (w.shape[-1] + 4) * UNIT * magnitude).all()


def magnitude_of(x: Any, w: Any) -> np.ndarray:
    """``sum |x| (|d q| + |d z| + |m|)``."""
    form = w.unpack().block_form()
    size, f32 = form.block_sizes[-1], ExpressedType.F32

    def spread(numbers: Any) -> Any:
        return 0 if numbers is None else np.repeat(np.abs(numbers.astype(np.float64)), size, -1)

    scales, offsets = spread(form.real_scales(f32)), spread(form.real_offsets(f32))
    pieces = scales * (np.abs(form.storage.astype(np.float64)) + spread(form.zero_points))
    return np.asarray(np.abs(reals(x)) @ (pieces + offsets).T)


BLOCKS = (*COMPUTED, "dynamic", "zero points")
BLOCKS_ON_VULKAN = ("Q4_1", "Q8_0", "Q4_K", "Q6_K", "zero points")


def block_weight(name: str) -> QuantizedTensor:
    if name in BLOCK_TYPES:
        return ggml(name, (7, 3 * BLOCK_TYPES[name].size))
    if name == "dynamic":
        return blocks(normal((7, 96)))
    return with_zero_points(normal((7, 96)) + np.float32(0.5), 32)


def with_zero_points(values: np.ndarray, size: int) -> QuantizedTensor:
    how = WeightQuantization(4, granularity="block", block_size=size, asymmetric=True)
    return PlanarQuantizedTensor(quantize_array(values, how), "w")


@functools.cache
def block_linears() -> dict[str, Any]:
    tensors = {name: block_weight(name) for name in BLOCKS}
    return {name: (linear, [normal((2, 3, w.shape[1]), 4), w]) for name, w in tensors.items()}


@functools.cache
def block_linears_on_vulkan() -> dict[str, Any]:
    return {name: block_linears()[name] for name in BLOCKS_ON_VULKAN}


@on_devices(BLOCKS, BLOCKS_ON_VULKAN)
def test_linear_with_blocks(name: str, device: Device) -> None:
    """Block by block, eager and compiled, to the bound that `linear` states."""
    x, w = block_linears()[name][1]
    result = ran_as("blocks", linear, x, w)
    assert linear.choose(x, w) == "blocks"
    cases = block_linears_on_vulkan if device.is_vulkan else block_linears
    check_close(x, w, magnitude_of(x, w), result, compiled_with(cases, name, device))
    assert "subquant.dequantize" in text_of(linear, x, w)
    lowered = lowered_text(text_of(linear, x, w))
    count = w.shape[0] * w.shape[1]
    assert count not in sizes_of(lowered, "f32"), "the weights were dequantized"
    layout = w.unpack()
    stored = sum(plane.nbytes for plane in layout.planes.values() if plane.dtype.kind in "iu")
    if stored < count and "table" not in layout.metadata:
        assert count not in sizes_of(lowered, "i8"), "the weights were unpacked"


def sizes_of(text: str, element: str) -> set[int]:
    """Return the number of elements of tensors of a type."""
    shapes = re.findall(rf"tensor<((?:\d+x)*){element}>", text)
    return {int(np.prod([int(n) for n in dims.split("x")[:-1]])) for dims in shapes}


@pytest.mark.long
@ON_DEVICES
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "zero points", "scale for each row"])
@pytest.mark.share(6)
def test_weights_that_a_function_brings_along(name: str, device: Device) -> None:
    """Constants of the program, in as many bytes as they had."""
    x = normal((3, 512), 4)
    if name == "scale for each row":
        w = per_row(normal((256, 512)))
    elif name == "zero points":
        w = with_zero_points(normal((256, 512)), 64)
    else:
        w = ggml(name, (256, 512))

    def function(values: Any) -> Any:
        return linear(values, w)

    check_close(x, w, np.abs(x) @ np.abs(reals(w)).T * 20, compiled(function, [x], device))
    text = text_of(function, x)
    assert "subquant.dequantize" in text
    assert "256x512xf32" not in lowered_text(text)
    stored = sum(plane.nbytes for plane in w.unpack().planes.values())
    assert len(compile_to_bytes(text)) < stored + 32_000  # the program, and that of its threads


@pytest.mark.parametrize("target", ["llvm-cpu", "vulkan"])
def test_the_dispatch_of_a_contraction_reads_planes(target: Any) -> None:
    """Packed storage is unpacked in registers: IREE's loops write no tensor of the integers."""
    x, w = normal((3, 512)), ggml("Q6_K", (64, 512))
    options = CompileOptions(target, kernels="none", iree_flags=("--compile-to=flow",))
    flow = compile_to_bytes(text_of(linear, x, w), options).decode()
    assert "64x32x4x2xi8>" in flow  # the low bits, as the loops take them
    assert not {64 * 512} & (sizes_of(flow, "i8") | sizes_of(flow, "f32"))


FLOATS = ("float", "scale for each row")


@functools.cache
def float_linears() -> dict[str, Any]:
    x, w = normal((3, 256), 4), normal((5, 256))
    return {name: (linear, [x, w if name == "float" else per_row(w)]) for name in FLOATS}


@pytest.mark.parametrize("name", FLOATS)
def test_linear_by_float_values(name: str, cpu: Device) -> None:
    x, w = float_linears()[name][1]
    result = ran_as("dequantized", linear, x, w)
    magnitude = np.abs(x) @ np.abs(reals(w)).T
    check_close(x, w, magnitude, result, compiled_with(float_linears, name, cpu))


def test_bias_and_matmul(cpu: Device) -> None:
    x, w, bias = normal((3, 64), 4), blocks(normal((5, 64))), normal((5,), 7)
    np.testing.assert_array_equal(linear(x, w, bias), linear(x, w) + bias)
    np.testing.assert_array_equal(matmul(x, w, transpose_rhs=True), linear(x, w))
    right = PrimitiveTensor(normal((64, 5), 9))
    np.testing.assert_allclose(matmul(x, right), x @ right.array, rtol=1e-5, atol=1e-5)
    actual = compiled(linear, [x, w, bias], cpu)
    np.testing.assert_allclose(actual, linear(x, w, bias), rtol=1e-5, atol=1e-5)


KINDS = ("affine", "dynamic", "dynamic per row", *COMPUTED, "float")


def random_linear(seed: int) -> tuple[Any, Any, str]:
    """Random shapes and a random pair of layouts, with the implementation that is meant."""
    generator = rng(seed)
    rows = tuple(int(n) for n in generator.integers(1, 6, generator.integers(1, 3)))
    columns = int(generator.integers(1, 12))
    kind = KINDS[seed % len(KINDS)]
    if kind in BLOCK_TYPES:
        depth = BLOCK_TYPES[kind].size * int(generator.integers(1, 3))
    else:
        depth = int(generator.integers(1, 70)) * (32 if kind == "dynamic" else 1)
    x = normal((*rows, depth), seed)
    values = normal((columns, depth), seed + 1)
    if kind == "affine":
        offsets = generator.integers(-30, 30, columns)
        return per_tensor(x, int(generator.integers(-30, 30))), per_row(values, offsets), "affine"
    if kind == "dynamic per row":
        quantizer = DynamicScaledQuantizer(axis=0, dtype=np.int16)
        return per_tensor(x), quantizer.quantize(values, "w"), "affine"
    if kind == "dynamic":
        return x, blocks(values), "blocks"
    if kind == "float":
        return x, values, "dequantized"
    return x, ggml(kind, (columns, depth), seed), "blocks"


SEEDS = range((2 if LONG else 1) * len(KINDS))


@functools.cache
def random_linears() -> dict[str, Any]:
    return {str(seed): (linear, list(random_linear(seed)[:2])) for seed in SEEDS}


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_linear_of_random_shapes_and_layouts(seed: int, cpu: Device) -> None:
    """The implementation that was meant; eager and compiled alike, as `linear` states."""
    x, w, implementation = random_linear(seed)
    result = ran_as(implementation, linear, x, w)
    actual = compiled_with(random_linears, str(seed), cpu)
    if implementation == "affine":
        np.testing.assert_array_equal(actual, result)
        return
    plain = np.abs(reals(x)) @ np.abs(reals(w)).T
    magnitude = magnitude_of(x, w) if implementation == "blocks" else plain
    check_close(x, w, magnitude, result, actual)


@functools.cache
def lookups() -> dict[str, Any]:
    ids = np.array([[3, 0, 10], [3, 3, 7]], np.int32)
    return {name: (embedding_lookup, [ids, ggml(name, (11, 256))]) for name in COMPUTED}


@pytest.mark.long
@pytest.mark.parametrize("name", COMPUTED)
def test_embedding_lookup(name: str, cpu: Device) -> None:
    """Rows of the planes are taken, and nothing else is dequantized; the same bits."""
    ids, table = lookups()[name][1]
    result = ran_as("rows", embedding_lookup, ids, table)
    np.testing.assert_array_equal(result, table.unpack().dequant()[ids])
    np.testing.assert_array_equal(compiled_with(lookups, name, cpu), result)
    text = text_of(embedding_lookup, ids, table)
    assert "11x256xf32" not in text, "the whole table was dequantized"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_embedding_lookup_of_floats(dtype: Any, cpu: Device) -> None:
    """Rows alone are converted."""
    table, ids = normal((9, 4)).astype(dtype), np.array([8, 0, 2], np.int32)
    assert embedding_lookup.choose(ids, table) == "dequantized"
    expected = table[ids].astype(np.float32)
    np.testing.assert_array_equal(embedding_lookup(ids, table), expected)
    np.testing.assert_array_equal(compiled(embedding_lookup, [ids, table], cpu), expected)
    assert ("tensor<9x4xf32>" in text_of(embedding_lookup, ids, table)) == (dtype == np.float32)


def test_normalization_and_elementwise(cpu: Device) -> None:
    """Eager results equal float64, compiled ones to a few units in the last place."""
    x, weight = normal((3, 64)), normal((64,), 1)
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(rms_norm(x, weight), exact, rtol=70 * UNIT)
    np.testing.assert_allclose(compiled(rms_norm, [x, weight], cpu), exact, rtol=70 * UNIT)
    q = per_tensor(normal((3, 64), 5), 3)
    for op, function in ((add, np.add), (subtract, np.subtract), (multiply, np.multiply)):
        result = op(x, q)
        np.testing.assert_array_equal(result, function(x, q.unpack().dequant()))
        np.testing.assert_allclose(compiled(op, [x, q], cpu), result, rtol=0, atol=4 * UNIT * 9)
    exact = x / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(silu(x), exact, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(compiled(silu, [x], cpu), exact, rtol=1e-5, atol=1e-6)


def test_functions_of_several_operations_compile(cpu: Device) -> None:
    """A block of a network: look-up, normalization, two layers, a residual sum."""
    table = ggml("Q4_K", (13, 256))
    up, down = ggml("Q8_0", (64, 256), 1), ggml("Q4_0", (256, 64), 2)
    weight, ids = normal((256,), 3), np.array([1, 5, 12], np.int32)

    def block(i: Any, t: Any, g: Any, u: Any, d: Any) -> Any:
        hidden = embedding_lookup(i, t)
        return add(hidden, linear(silu(linear(rms_norm(hidden, g), u)), d))

    arguments = [ids, table, weight, up, down]
    with recorded() as ran:
        eager = block(*arguments)
    assert [r.implementation for r in ran] == [
        "rows", "dequantized", "blocks", "dequantized", "blocks", "dequantized",
    ]  # fmt: skip
    call = compile_function(block, *arguments, device=cpu)
    assert call.text == text_of(block, *arguments)
    np.testing.assert_allclose(call(*arguments), eager, rtol=1e-4, atol=1e-4 * np.abs(eager).max())


def test_implementations_can_be_added() -> None:
    """A kernel for a special case comes first, and others stay."""
    op = Op("double")
    op.implementation("general", lambda x: True)(lambda x: x * 2)
    op.implementation("integers", lambda x: x.dtype.kind == "i", first=True)(lambda x: x << 1)
    assert op.implementations == ("integers", "general")
    assert op.choose(np.zeros(1)) == "general"
    with recorded() as ran:
        assert op(np.array([3])).tolist() == [6]
    assert ran == [Ran("double", "integers")]
    assert op(np.array([3])).tolist() == [6]
    assert len(ran) == 1
    with pytest.raises(UsageError, match="has an implementation named 'general'"):
        op.implementation("general", lambda x: True)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "linear": (lambda: linear(normal((3, 4)), normal((5, 6))), r"got \(3, 4\) and \(5, 6\)"),
    "bias": (lambda: linear(normal((3, 4)), normal((5, 4)), normal((3,))), r"bias of shape \(5,\)"),
    "matmul": (lambda: matmul(normal((3, 4)), normal((5, 6))), "matmul takes"),
    "channels": (lambda: conv2d(normal((1, 3, 4, 4)), normal((2, 2, 1, 1))), "with 1 groups"),
    "groups": (lambda: conv2d(normal((1, 4, 4, 4)), normal((3, 2, 1, 1)), groups=2), "divisor"),
    "window": (lambda: conv2d(normal((1, 1, 2, 2)), normal((1, 1, 3, 3))), "a window of 3 over 2"),
    "strides": (lambda: conv2d(normal((1, 1, 2, 2)), normal((1, 1, 1, 1)), strides=(0, 1)), "from"),
    "ids": (lambda: embedding_lookup(normal((2,)), normal((2, 2))), "takes integers"),
    "norm": (lambda: rms_norm(normal((2, 3)), normal((2,))), "of the last axis"),
    "shapes": (lambda: add(normal((2,)), normal((3,))), "do not broadcast"),
    "nothing": (lambda: Op("none")(1.0), "none has no implementation for"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_said(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        call()
