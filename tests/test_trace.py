"""Functions on arrays and their compiled traces give the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from devices import ON_DEVICES, compile_for
from subquant.core._mlir import ir
from subquant.emit.trace import trace
from subquant.errors import UnsupportedError, UsageError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.layouts import (
    BlockAffineLayout,
    BlockScaledI4Layout,
    BlockScaledLayout,
    QuantizedLayout,
    TensorScaledLayout,
)
from subquant.numerics.array_functions import (
    divide_truncated,
    over_time,
    repeat_while,
    rounded_product,
    take,
)
from subquant.numerics.convolutions import contract, convolve
from subquant.runtime import Device
from together import Together

Function = Callable[..., Any]


def stored(array: np.ndarray) -> np.ndarray:
    """Unsigned integers as the module has them."""
    return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "u" else array


def bits(array: np.ndarray) -> np.ndarray:
    """The bits, every NaN as one."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "iub":
        return stored(array)
    array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.view(f"i{array.dtype.itemsize}")


def trace_of(function: Function, arrays: list[np.ndarray]) -> ir.Module:
    return trace(function, [(array.shape, array.dtype) for array in arrays])


def on_device(function: Function, arrays: list[np.ndarray], device: Device) -> Any:
    main = compile_for(trace_of(function, arrays), device).main
    return main(*[stored(array) for array in arrays])


def test_division_by_an_argument(cpu: Device) -> None:
    """Both sides are computed; towards zero, as C++ divides."""
    arrays = [np.array([7, -7, 100, -1], np.int32), np.array([2, 2, 9, 3], np.int32)]
    np.testing.assert_array_equal(on_device(divide_truncated, arrays, cpu), [3, -3, 11, 0])


BYTES = np.arange(24).astype(np.uint8).reshape(3, 8)
SCALES = np.array([[[0.3], [0.1]], [[2.0], [3.0]]])
OFFSETS = np.array([[[0.5], [1.0]], [[0.0], [-3.0]]])
NIBBLES = np.array([[[0x01, 0xF8], [0x7F, 0x90]], [[0xAA, 0x55], [0, 0xFF]]], np.uint8)
LAYOUTS = {
    "per tensor": TensorScaledLayout(
        (3, 8), {"d": np.float32(0.3).reshape(()), "qs": BYTES.astype(np.int8) - np.int8(12)}),
    "per axis, offsets": TensorScaledLayout(
        (3, 8), {"d": np.array([[0.3], [0.01], [7.0]], np.float32), "qs": BYTES * 10,
                 "m": np.array([[128], [0], [3]], np.int32)}),
    "sub-channel, ragged": BlockAffineLayout(
        (3, 8), {"d": np.array([[0.3, 0.2, 0.1], [1, 2, 3]], np.float16), "qs": BYTES % 16,
                 "z": np.array([[8, 7, 0], [15, 3, 1]], np.int32)},
        {"block_shape": [2, 3], "storage": "u4"}),
    "blocks of f64": BlockScaledLayout(
        (2, 8), {"d": SCALES, "qs": np.arange(16).astype(np.int16).reshape(2, 2, 4) * 1000,
                 "m": OFFSETS}),
    "unsigned nibbles": BlockScaledI4Layout(
        (2, 8), {"d": SCALES.astype(np.float16), "qs": NIBBLES, "m": OFFSETS.astype(np.float16)},
        {"signed": False}),
}  # fmt: skip


def dequantization(layout: QuantizedLayout) -> str:
    """A program of the planes."""

    def dequantized(*planes: Any) -> Any:
        return layout.with_planes(dict(zip(layout.planes, planes, strict=True))).dequant()

    return str(trace_of(dequantized, list(layout.planes.values())))


@functools.cache
def dequantizations() -> Together:
    return Together({name: dequantization(layout) for name, layout in LAYOUTS.items()})


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, cpu: Device) -> None:
    """With the planes as arguments, to the bits that NumPy gives."""
    layout = LAYOUTS[name]
    with np.errstate(all="ignore"):
        expected = layout.dequant()
    actual = dequantizations().function(name, cpu)(*[stored(p) for p in layout.planes.values()])
    np.testing.assert_array_equal(bits(actual), bits(expected))


X = np.random.default_rng(0).normal(0, 3, (2, 3, 4)).astype(np.float32)
Q = np.random.default_rng(1).integers(-128, 128, (2, 3, 4)).astype(np.int8)
U = np.random.default_rng(2).integers(0, 256, (2, 3, 4)).astype(np.uint8)
W = np.random.default_rng(3).integers(0, 65536, (2, 3, 4)).astype(np.uint16)

FUNCTIONS: dict[str, tuple[Function, list[np.ndarray]]] = {
    "arithmetic": (lambda x: ((x * 2 + 1) / (np.abs(x) + 3), 1 - x, -x * x), [X]),
    "bare numbers keep the dtype": (lambda q: (q + 1) * 3 - 2, [Q]),
    "unsigned widens with zeros": (lambda u: u.astype(np.int32) - 128, [U]),
    "unsigned to a wider unsigned": (lambda u: u.astype(np.uint16) * 257, [U]),
    "unsigned to float": (lambda u: u.astype(np.float32) / 255, [U]),
    "unsigned 16 bits": (lambda w: w.astype(np.float32) * (w >> 9).astype(np.float32), [W]),
    "float to unsigned": (lambda x: np.abs(x * 10).astype(np.uint8), [X]),
    "integers wrap": (lambda w, q: (w.astype(np.int8), q.astype(np.uint8), q.astype(np.uint16)),
                      [W, Q]),
    "shifts": (lambda u, q: (u >> 3, q >> 3, u << 2, (u & 15) | 32, u ^ 255), [U, Q]),
    "mixed dtypes": (lambda u, q: (u + q, u.astype(np.int32) * q), [U, Q]),
    "unsigned order": (lambda u: (np.maximum(u, 200), u > 127, np.minimum(u, U[::-1].copy())), [U]),
    "comparisons": (lambda x, q: (x >= 0.5, q == 3, np.where(q > 0, x, -x)), [X, Q]),
    "booleans": (lambda q: (q.astype(np.bool_), (q > 0).astype(np.int32)), [Q]),
    "rounding": (lambda x: (np.rint(x), np.floor(x)), [X]),
    "indices": (lambda x: (x[0], x[..., 1], x[:, None, 1:3, ::2], x[-1, :, -2], x[:, 2:2]), [X]),
    "shapes": (lambda x: (x.T, x.transpose(1, 0, 2), x.reshape(-1, 4), x.reshape((6, 4)).T), [X]),
    "joins": (lambda x: (np.concatenate([x, X], 1), np.stack([x, -x], -1), np.repeat(x, 3, axis=1)),
              [X]),
    "take": (lambda u: (take(np.arange(256, dtype=np.float32) ** 2, u), np.take(u, U[0] % 3, 1)),
             [U]),
    "sums of integers": (lambda q, u: (q.sum(-1, np.int32), u.sum((0, 2), np.int32, keepdims=True)),
                         [Q, U]),
    "greatest": (lambda x, q: (x.max(), x.max(1), q.max((0, 1), keepdims=True)), [X, Q]),
    "means": (lambda x: (x.mean(), x.mean((0, 2)), x.mean(1, keepdims=True)), [(X * 8).round()]),
    "choices": (lambda x, q: (np.where(Q[:, :1] > 0, x, 1), np.clip(q, -5, 100), ~q, ~(q > 3)),
                [X, Q]),
    "arrays without elements": (lambda x: (x[:, 2:2] + 1, np.concatenate([x[:0], x])), [X]),
    "wide unsigned order": (lambda w: (w.astype(np.uint64) << 49 > np.uint64(1) << np.uint64(63),
                                       np.maximum(w.astype(np.uint32) << 16, 1 << 31)), [W]),
    "padding": (lambda x: np.pad(x, [(1, 0), (0, 0), (2, 3)], constant_values=-1), [X]),
    "broadcasting": (lambda x: (x * x[:, :1], x + x[0, 0]), [X]),
    "a loop": (
        lambda q: tuple(
            repeat_while(lambda n, _: n < 100, lambda n, q: (n * 2 + 1, q * n.astype(np.int8)),
                         [np.abs(q[0, 0].max()).astype(np.int32), q])
        ),
        [Q],
    ),
    "steps over time": (
        lambda w, q: (lambda last, each: (*last, each))(
            *over_time(lambda s, t, x, y: (s * x + y.astype(np.int8), t + s),
                       [q[0], Q[1]], [q, W[:, 0]])
        ),
        [W, Q],
    ),
}  # fmt: skip


@functools.cache
def compiled_functions() -> Together:
    return Together({name: str(trace_of(*FUNCTIONS[name])) for name in FUNCTIONS})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, cpu: Device) -> None:
    """The same bits on arrays, compiled, and on StableHLO's interpreter."""
    function, arrays = FUNCTIONS[name]
    expected = function(*arrays)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    arguments = [stored(array) for array in arrays]
    completed = compiled_functions().function(name, cpu).invoke(arguments)
    interpreted = InterpretedModule(trace_of(function, arrays))["main"].invoke(arguments)
    assert len(completed) == len(expected) == len(interpreted)
    for want, got, other in zip(expected, completed, interpreted, strict=True):
        assert got.shape == want.shape
        assert got.dtype == stored(np.asarray(want)).dtype
        np.testing.assert_array_equal(bits(got), bits(want))
        np.testing.assert_array_equal(bits(other), bits(want))


def test_a_product_and_a_sum_may_be_rounded_once(cpu: Device) -> None:
    """At most half a unit in the last place of the product from NumPy's two roundings."""

    def function(x: Any) -> Any:
        return x * x[:, :1] + x[0, 0]

    expected, actual = function(X), on_device(function, [X], cpu)
    product = np.abs(X * X[:, :1]).astype(np.float64)
    rounding = np.maximum(product, np.abs(expected)) * 2.0**-24
    assert (np.abs(actual.astype(np.float64) - expected) <= 2 * rounding).all()


@ON_DEVICES
def test_a_rounded_product_is_rounded_before_a_sum(device: Device, device_name: str) -> None:
    """Fused and separate roundings differ for these values; zeros keep their signs."""
    x, y, z = np.random.default_rng(7).normal(size=(3, 2000)).astype(np.float32)
    x[:3], z[:3] = 0, -0.0
    once = (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(np.float32)
    expected = x * y + z
    assert (once != expected).mean() > 0.1

    def function(x: Any, y: Any, z: Any) -> Any:
        return rounded_product(x, y) + z

    np.testing.assert_array_equal(bits(function(x, y, z)), bits(expected))
    np.testing.assert_array_equal(bits(on_device(function, [x, y, z], device)), bits(expected))


@ON_DEVICES
def test_contractions(device: Device, device_name: str) -> None:
    """Integers exactly; floats in any order, so to a bound of the sum of magnitudes."""
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(2, 3, 4, 5)), generator.normal(size=(4, 6, 2))
    x, y = x.astype(np.float32), y.astype(np.float32)

    def floats(a: Any, b: Any) -> Any:
        return contract(a, b, ((2,), (0,)), ((0,), (2,)))

    expected = np.einsum("bikj,knb->bijn", x.astype(np.float64), y)
    magnitude = np.einsum("bikj,knb->bijn", np.abs(x).astype(np.float64), np.abs(y))
    for actual in (floats(x, y), on_device(floats, [x, y], device)):
        assert (np.abs(actual - expected) <= magnitude * 4 * 2.0**-24).all()
    q = generator.integers(-128, 128, (7, 9)).astype(np.int8)
    u = generator.integers(0, 256, (5, 9)).astype(np.uint8)

    def integers(a: Any, b: Any) -> Any:
        return contract(a, b, ((1,), (1,)), dtype=np.int32)

    required = q.astype(np.int64) @ u.T.astype(np.int64)
    np.testing.assert_array_equal(integers(q, u), required)
    np.testing.assert_array_equal(on_device(integers, [q, u], device), required)


REFUSED: dict[str, tuple[Function, str]] = {
    "function": (lambda x: np.cumsum(x, axis=0), "np.cumsum cannot be written"),
    "ufunc": (lambda x: np.hypot(x, x), "np.hypot cannot be written"),
    "reduction of a ufunc": (np.add.reduce, "with these options cannot be written"),
    "negative step": (lambda x: x[::-1], "negative steps"),
    "an array as index": (lambda x: x[np.array([0])], "index of type ndarray"),
    "a loop of other dtypes": (
        lambda x: repeat_while(lambda x: x.max() < 9, lambda x: [x.astype(np.float64)], [x]),
        r"a loop makes float64 of shape \[2, 3, 4\] of a value that is float32",
    ),
    "strings": (lambda x: x + np.array("a"), "str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_traced_is_said(case: str) -> None:
    function, message = REFUSED[case]
    with pytest.raises((UnsupportedError, TypeError), match=message):
        trace_of(function, [X])


def test_too_many_indices() -> None:
    with pytest.raises(UsageError, match="an index of 4 entries into an array of 3 axes"):
        trace_of(lambda x: x[0, 0, 0, 0], [X])


@pytest.mark.parametrize(
    ("shapes", "axes", "batch", "subscripts"),
    [
        (((3, 4), (4, 5)), ((1,), (0,)), ((), ()), "ab,bc->ac"),
        (((2, 3, 4), (4, 2, 5)), ((2,), (0,)), ((0,), (1,)), "abc,cad->abd"),
        (((3, 4, 5), (5, 3, 2)), ((0, 2), (1, 0)), ((), ()), "abc,cad->bd"),
    ],
)
def test_contractions_of_arrays(shapes: Any, axes: Any, batch: Any, subscripts: str) -> None:
    left, right = (np.arange(np.prod(shape)).reshape(shape) - 7 for shape in shapes)
    actual = contract(left, right, axes, batch, np.int64)
    np.testing.assert_array_equal(actual, np.einsum(subscripts, left, right))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_contractions_of_the_greatest_integers(dtype: Any) -> None:
    """Odd sums beyond 2**24, and beyond 2**31 in int64."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    left, right = np.full((2, 4099), high, dtype), np.full((3, 4099), low or high, dtype)
    left[0, ::2], right[1, 5] = low, 1
    expected = np.einsum("ik,jk->ij", left.astype(np.int64), right.astype(np.int64))
    actual = contract(left, right, ((1,), (1,)), dtype=np.int64)
    np.testing.assert_array_equal(actual, expected)
    images, kernels = left[None, :, None, :64], right[:, None, None, :9]
    convolved = convolve(images, np.repeat(kernels, 2, axis=1), dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(left[:, :64].astype(np.int64), 9, axis=1)
    np.testing.assert_array_equal(
        convolved[0, :, 0], np.einsum("coi,fi->fo", windows, right[:, :9].astype(np.int64))
    )
