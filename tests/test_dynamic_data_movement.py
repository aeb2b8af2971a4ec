"""Windows, pads, gathers, updates, reversals and reductions of dynamic shapes, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from devices import main_of
from programs import LONG, one_operation
from subquant.runtime import Device

ELEMENTS = {
    "i8": ("i8", np.int8),
    "f32": ("f32", np.float32),
    "ui8": ("ui8", np.uint8),
    "q8": ("!quant.uniform<i8:f32, 0.5:3>", np.int8),
    "i4": ("i4", np.int8),
    "i32": ("i32", np.int32),
}


def on_devices(names: Sequence[str]) -> list[Any]:
    """Each case with two element types, one on Vulkan; all with all of them in the long suite."""
    chosen = []
    for number, name in enumerate(names):
        start = number % len(ELEMENTS)
        elements = list(ELEMENTS)[start:] + list(ELEMENTS)[:start]
        elements = elements if LONG else elements[:2]
        chosen += [("cpu", element, name) for element in elements]
        on_vulkan = elements if LONG else elements[1:]
        chosen += [
            pytest.param("vulkan", element, name, marks=pytest.mark.vulkan) for element in on_vulkan
        ]
    return chosen


def shaped(*extents: int | None) -> str:
    return "".join("?x" if n is None else f"{n}x" for n in extents)


def random(shape: Sequence[int], element: str, seed: int = 0) -> np.ndarray:
    low, high = (-8, 8) if element == "i4" else (0, 100) if element == "ui8" else (-100, 100)
    return np.random.default_rng(seed).integers(low, high, shape).astype(ELEMENTS[element][1])


WINDOWS: dict[str, tuple[Any, ...]] = {
    # Shape of the operand; sizes, strides, padding; dilations of the operand and of the window.
    "batch": ((None, 4, 4, 2), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1,) * 4, (1,) * 4),
    "image": (
        (1, None, None, 2), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 0), (0, 0)), (1,) * 4,
        (1,) * 4,
    ),
    "batch and channels": (
        (None, 5, None), (1, 2, 1), (1, 1, 1), ((0, 0),) * 3, (1,) * 3, (1, 2, 1),
    ),
    "cumulative": ((None, 5), (1, 5), (1, 1), ((0, 0), (4, 0)), (1, 1), (1, 1)),
    "dilated": ((None, 5), (1, 3), (1, 1), ((0, 0), (0, 0)), (1, 2), (1, 1)),
    "cropped": ((None, None), (2, 2), (1, 1), ((-1, 1), (0, -1)), (1, 1), (1, 1)),
}  # fmt: skip


def pool_text(name: str, element: str, function: str) -> str:
    shape, sizes, strides, padding, between, within = WINDOWS[name]
    type_ = ELEMENTS[element][0]
    result = [None if n is None else m for n, m in zip(shape, pool_shape(name, shape), strict=True)]
    z = f"tensor<{type_}>"
    operation = f""""stablehlo.reduce_window"(%0, %1) ({{
  ^bb0(%a: {z}, %b: {z}):
    {BODIES[function].replace("ELEMENT", z)}
    stablehlo.return %c : {z}
  }}) {{window_dimensions = array<i64: {str(sizes)[1:-1]}>,
        window_strides = array<i64: {str(strides)[1:-1]}>,
        base_dilations = array<i64: {str(between)[1:-1]}>,
        window_dilations = array<i64: {str(within)[1:-1]}>,
        padding = dense<{[list(ends) for ends in padding]}> : tensor<{len(shape)}x2xi64>}}"""
    return one_operation(operation, (shaped(*shape) + type_, type_), shaped(*result) + type_)


def pool_shape(name: str, shape: Sequence[int | None]) -> list[int]:
    _, sizes, strides, padding, between, within = WINDOWS[name]
    return [
        (((n or 9) - 1) * between[a] + 1 + sum(padding[a]) - (sizes[a] - 1) * within[a] - 1)
        // strides[a]
        + 1
        for a, n in enumerate(shape)
    ]


def placed(
    x: np.ndarray, fill: Any, low: Sequence[int], high: Sequence[int], between: Sequence[int]
) -> np.ndarray:
    """The specification's ``pad``: where each element goes, if that is inside."""
    shape = [
        max(n - 1, 0) * b + n + before + after
        for n, b, before, after in zip(x.shape, between, low, high, strict=True)
    ]
    out = np.full(shape, fill, x.dtype)
    for index in np.ndindex(*x.shape):
        position = tuple(
            before + i * (b + 1) for i, b, before in zip(index, between, low, strict=True)
        )
        if all(0 <= at < n for at, n in zip(position, shape, strict=True)):
            out[position] = x[index]
    return out


BODIES = {
    "maximum": "%c = stablehlo.maximum %a, %b : ELEMENT",
    "add": "%c = stablehlo.add %b, %a : ELEMENT",
    "greater": """%p = stablehlo.compare GT, %a, %b : (ELEMENT, ELEMENT) -> tensor<i1>
    %c = stablehlo.select %p, %a, %b : tensor<i1>, ELEMENT""",
}


@pytest.mark.long
@pytest.mark.parametrize("function", BODIES)
@pytest.mark.parametrize(("device_name", "element", "name"), on_devices([*WINDOWS]))
def test_windows(device: Device, device_name: str, element: str, name: str, function: str) -> None:
    if (function == "add" and element in ("q8", "i4")) or (
        function == "greater" and element == "q8"
    ):
        return  # i4 wraps, and quantized values are neither added nor chosen so
    shape, sizes, strides, padding, between, within = WINDOWS[name]
    run_windows = main_of(pool_text(name, element, function), device)
    combine: Any = np.add if function == "add" else np.maximum
    for size in (3, 6):
        extents = [size + number if n is None else n for number, n in enumerate(shape)]
        x = random(extents, element)
        z = np.array(0 if function == "add" else (1 if element == "ui8" else -7), x.dtype)
        low, high = ([ends[side] for ends in padding] for side in (0, 1))
        padded = placed(x, z, low, high, [step - 1 for step in between])
        expected = np.full(pool_shape(name, extents), z, x.dtype)
        for tap in np.ndindex(*sizes):
            part = padded[
                tuple(
                    slice(t * w, t * w + (n - 1) * s + 1, s)
                    for t, w, n, s in zip(tap, within, expected.shape, strides, strict=True)
                )
            ]
            expected = combine(expected, part)
        np.testing.assert_array_equal(run_windows(x, z), expected, err_msg=str(extents))


PADS = {
    "ends": ((None, 4), (1, 0), (2, 3), (0, 0)),
    "between": ((None, 4), (0, 1), (0, -1), (0, 1)),
    "between, dynamic": ((None, None), (1, 0), (0, 2), (2, 1)),
    "negative": ((None, 4), (0, -1), (0, -2), (0, 0)),
    "negative, dynamic": ((None, None, 2), (-1, 1, 0), (1, -2, 0), (0, 0, 0)),
}


@pytest.mark.parametrize(("device_name", "element", "name"), on_devices([*PADS]))
def test_pads(device: Device, device_name: str, element: str, name: str) -> None:
    shape, low, high, between = PADS[name]
    type_ = ELEMENTS[element][0]
    extents = [
        None if n is None else n + (n - 1) * b + before + after
        for n, b, before, after in zip(shape, between, low, high, strict=True)
    ]
    operation = f"stablehlo.pad %0, %1, low = {[*low]}, high = {[*high]}, interior = {[*between]}"
    operands = shaped(*shape) + type_, type_
    pad = main_of(one_operation(operation, operands, shaped(*extents) + type_), device)
    for size in (3, 5):
        x = random([size + number if n is None else n for number, n in enumerate(shape)], element)
        z = np.array(7, x.dtype)
        np.testing.assert_array_equal(pad(x, z), placed(x, z, low, high, between))


def rows(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    return x[np.clip(i, 0, len(x) - 1)]


FIRST = "collapsed_slice_dims = [0], start_index_map = [0], "
SECOND = "collapsed_slice_dims = [1], start_index_map = [1], "
GATHERS: dict[str, tuple[str, str, str, str, str, Callable[..., np.ndarray]]] = {
    # Operand, indices, result, dimension numbers, slice sizes, NumPy's formula.
    "rows, one component": (
        "12x16", "?x1", "?x16",
        "offset_dims = [1], " + FIRST + "index_vector_dim = 1",
        "1, 16", lambda x, i: rows(x, i[:, 0]),
    ),
    "rows": (
        "12x16", "?x?", "?x?x16",
        "offset_dims = [2], " + FIRST + "index_vector_dim = 2",
        "1, 16", rows,
    ),
    "rows of a dynamic table": (
        "?x16", "3x1", "3x16",
        "offset_dims = [1], " + FIRST + "index_vector_dim = 1",
        "1, 16", lambda x, i: rows(x, i[:, 0]),
    ),
    "elements": (
        "12x16", "?x2", "?",
        "collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 1",
        "1, 1", lambda x, i: x[np.clip(i[:, 1], 0, 11), np.clip(i[:, 0], 0, 15)],
    ),
    "columns": (
        "12x16", "?x1", "12x?",
        "offset_dims = [0], " + SECOND + "index_vector_dim = 1",
        "12, 1", lambda x, i: x[:, np.clip(i[:, 0], 0, 15)],
    ),
    "slices": (
        "12x16", "?x1", "?x3x16",
        "offset_dims = [1, 2], start_index_map = [0], index_vector_dim = 1",
        "3, 16", lambda x, i: np.stack([x[s : s + 3] for s in np.clip(i[:, 0], 0, 9)]),
    ),
    "batches": (
        "?x16", "?x3x1", "?x3",
        "collapsed_slice_dims = [1], operand_batching_dims = [0], "
        "start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2",
        "1, 1", lambda x, i: np.take_along_axis(x, np.clip(i[..., 0], 0, 15), 1),
    ),
    "index vectors first": (
        "12x16", "1x?", "?x16",
        "offset_dims = [1], " + FIRST + "index_vector_dim = 0",
        "1, 16", lambda x, i: rows(x, i[0]),
    ),
}  # fmt: skip


def sizes_of(shape: str, size: int) -> list[int]:
    return [size if n == "?" else int(n) for n in shape.split("x")]


@pytest.mark.parametrize(("device_name", "element", "name"), on_devices([*GATHERS]))
def test_gathers(device: Device, device_name: str, element: str, name: str) -> None:
    """Positions beyond an end are clamped."""
    operand, indices, result, numbers, sizes, expected = GATHERS[name]
    type_ = ELEMENTS[element][0]
    index = "ui8" if name == "slices" else "i32"
    operation = f""""stablehlo.gather"(%0, %1) {{
      dimension_numbers = #stablehlo.gather<{numbers}>, slice_sizes = array<i64: {sizes}>}}"""
    operands = f"{operand}x{type_}", f"{indices}x{index}"
    gather = main_of(one_operation(operation, operands, f"{result}x{type_}"), device)
    for size in (1, 5):
        x = random(sizes_of(operand, size), element)
        low = 0 if index == "ui8" else -3
        dtype = np.uint8 if index == "ui8" else np.int32
        i = np.random.default_rng(1).integers(low, 20, sizes_of(indices, size)).astype(dtype)
        np.testing.assert_array_equal(gather(x, i), expected(x, i.astype(np.int64)))


@pytest.mark.parametrize(("device_name", "element", "name"), on_devices(["batch", "one row"]))
def test_updates(device: Device, device_name: str, element: str, name: str) -> None:
    """Start indices are clamped, and the argument stays as it is."""
    rows_, type_ = "?" if name == "batch" else "1", ELEMENTS[element][0]
    x, u = f"tensor<?x4x{type_}>", f"tensor<{rows_}x2x{type_}>"
    text = f"""
func.func @main(%x: {x}, %u: {u}, %i: tensor<i32>, %j: tensor<i8>) -> {x} {{
  %k = stablehlo.convert %j : (tensor<i8>) -> tensor<i32>
  %0 = stablehlo.dynamic_update_slice %x, %u, %i, %k
      : ({x}, {u}, tensor<i32>, tensor<i32>) -> {x}
  return %0 : {x}
}}
"""
    update = main_of(text, device)
    for size, i, j in ((3, 0, 1), (6, 9, -1), (6, 2, 3)):
        x = random([size, 4], element)
        u = random([size - 1 if rows_ == "?" else 1, 2], element, 1)
        expected = x.copy()
        at = min(max(i, 0), size - len(u)), min(max(j, 0), 2)
        expected[at[0] : at[0] + len(u), at[1] : at[1] + 2] = u
        before = x.copy()
        np.testing.assert_array_equal(update(x, u, np.int32(i), np.int8(j)), expected)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(("device_name", "element", "name"), on_devices(["ui8", "i4", "q8"]))
def test_reversals(device: Device, device_name: str, element: str, name: str) -> None:
    type_ = f"?x3x?x{ELEMENTS[element][0]}"
    text = one_operation('"stablehlo.reverse"(%0) {dimensions = array<i64: 0, 1>}', (type_,), type_)
    reverse = main_of(text, device)
    for size in (1, 4):
        x = random([size, 3, size + 1], element)
        np.testing.assert_array_equal(reverse(x), x[::-1, ::-1])


SUMS = """
func.func @main(%x: tensor<SHAPExi8>) -> (tensor<RESULTi32>, tensor<SHAPExi8>) {
  %z = stablehlo.constant dense<7> : tensor<i32>
  %n = stablehlo.negate %x : tensor<SHAPExi8>
  %w = stablehlo.convert %n : (tensor<SHAPExi8>) -> tensor<SHAPExi32>
  %s = stablehlo.reduce(%w init: %z) applies stablehlo.add across dimensions = AXES
      : (tensor<SHAPExi32>, tensor<i32>) -> tensor<RESULTi32>
  return %s, %n : tensor<RESULTi32>, tensor<SHAPExi8>
}
"""


@pytest.mark.parametrize("device_name", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
@pytest.mark.parametrize(
    ("shape", "axes"), [("?x2x?", (1, 2)), ("?x?x?", (0, 1)), ("?x?x?x?", (0, 2, 3))]
)
def test_reductions_of_tensors_with_other_uses(
    device: Device, device_name: str, shape: str, axes: tuple[int, ...]
) -> None:
    """Neighboring axes of several dynamic extents; see `subquant.transforms.iree_workarounds`."""
    remaining = [n for axis, n in enumerate(shape.split("x")) if axis not in axes]
    text = SUMS.replace("SHAPE", shape).replace("RESULT", "".join(f"{n}x" for n in remaining))
    function = main_of(text.replace("AXES", str(list(axes))), device)
    for size in (2, 5):
        extents = [size + 2 * a if n == "?" else int(n) for a, n in enumerate(shape.split("x"))]
        x = random(extents, "i8")
        totals, negated = function(x)
        np.testing.assert_array_equal(totals, 7 - x.astype(np.int32).sum(axes))
        np.testing.assert_array_equal(negated, -x)
