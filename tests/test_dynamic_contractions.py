"""Contractions and convolutions of dynamic shapes at several sizes, compared with NumPy.

Sums are of small integers, in f32 too: every order of a sum gives the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from devices import main_of
from programs import LONG, convolution_of, one_operation
from subquant.runtime import Device


@dataclass(frozen=True)
class Elements:
    """Element types of the left and right operand and of the result, and their zero points."""

    left: str
    right: str
    result: str
    dtype: type
    low: int
    high: int
    zero_point: int = 0

    def random(self, shape: Sequence[int], seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(self.low, self.high, shape).astype(self.dtype)


def quantized(storage: str, zero_point: int, low: int, high: int, dtype: type) -> Elements:
    left = f"!quant.uniform<{storage}:f32, 0.5:{zero_point}>"
    right = f"!quant.uniform<{storage}:f32, 0.5>"
    return Elements(left, right, "!quant.uniform<i32:f32, 0.25>", dtype, low, high, zero_point)


ELEMENTS = {
    "f32": Elements("f32", "f32", "f32", np.float32, -9, 10),
    "i8": Elements("i8", "i8", "i32", np.int8, -128, 128),
    "ui8": Elements("ui8", "ui8", "i32", np.uint8, 0, 256),
    "q8": quantized("i8", 3, -128, 128, np.int8),
    "qu8": quantized("u8", 130, 0, 256, np.uint8),
    "q4": quantized("i4", 1, -8, 8, np.int8),
}
OTHERS = [name for name in ELEMENTS if name != "f32"]


def on_devices(names: Iterable[str]) -> list[Any]:
    """Each case with f32 and another element type, some on Vulkan; every pair in the long suite."""
    chosen = []
    for number, name in enumerate(names):
        elements = ELEMENTS if LONG else ("f32", OTHERS[number % len(OTHERS)])
        chosen += [("cpu", element, name) for element in elements]
        if LONG or number % 3 == 0:
            last = list(elements)[-1]
            chosen.append(pytest.param("vulkan", last, name, marks=pytest.mark.vulkan))
    return chosen


EXTENTS = {"m": 3, "n": 4, "k": 8, "a": 2, "b": 5, "c": 6, "u": 1}


def tensor(axes: str, dynamic: str, element: str) -> str:
    return "".join("?x" if axis in dynamic else f"{EXTENTS[axis]}x" for axis in axes) + element


def positions(axes: str, order: str) -> list[int]:
    return [order.index(axis) for axis in axes]


def dot_text(equation: str, dynamic: str, elements: Elements) -> str:
    """A ``dot_general``: shared axes are a batch if the result has them, else contracted."""
    (left, right), result = equation.partition("->")[0].split(","), equation.partition("->")[2]
    batch = "".join(axis for axis in left if axis in right and axis in result)
    summed = "".join(axis for axis in left if axis in right and axis not in result)
    batching = (
        f"batching_dims = {positions(batch, left)} x {positions(batch, right)}, " if batch else ""
    )
    contracting = f"contracting_dims = {positions(summed, left)} x {positions(summed, right)}"
    x, y = tensor(left, dynamic, elements.left), tensor(right, dynamic, elements.right)
    r = tensor(result, dynamic, elements.result)
    return one_operation(f"stablehlo.dot_general %0, %1, {batching}{contracting}", (x, y), r)


DOTS = {
    "bmk,kn->bmn, b dynamic": ("bmk,kn->bmn", "b"),
    "bmk,kn->bmn, m dynamic": ("bmk,kn->bmn", "m"),
    "abmk,kn->abmn, ab dynamic": ("abmk,kn->abmn", "ab"),
    "mk,kn->mn, k dynamic": ("mk,kn->mn", "k"),
    "mk,kn->mn, mnk dynamic": ("mk,kn->mn", "mnk"),
    "mk,ku->mu, m dynamic": ("mk,ku->mu", "m"),
    "uk,kn->un, n dynamic": ("uk,kn->un", "n"),
    "uk,nk->un, n dynamic": ("uk,nk->un", "n"),
    "uk,kn->un, k dynamic": ("uk,kn->un", "k"),
    "mu,un->mn, m dynamic": ("mu,un->mn", "m"),
    "mk,k->m, m dynamic": ("mk,k->m", "m"),
    "k,k->, k dynamic": ("k,k->", "k"),
    "bmk,bkn->bmn, b dynamic": ("bmk,bkn->bmn", "b"),
    "bmk,buk->bmu, bm dynamic": ("bmk,buk->bmu", "bm"),
    "bmk,bnk->bmn, mn dynamic": ("bmk,bnk->bmn", "mn"),
    "mab,abn->mn, m dynamic": ("mab,abn->mn", "m"),
    "mab,nba->mn, mb dynamic": ("mab,nba->mn", "mb"),
    "m,n->mn, m dynamic": ("m,n->mn", "m"),
}


@pytest.mark.parametrize(("device_name", "element", "name"), on_devices(DOTS))
def test_contractions(device: Device, device_name: str, element: str, name: str) -> None:
    elements, (equation, dynamic) = ELEMENTS[element], DOTS[name]
    function = main_of(dot_text(equation, dynamic, elements), device)
    left, right = equation.partition("->")[0].split(",")
    for size in (1, 7) if device_name == "vulkan" else (0, 1, 7):
        extents = EXTENTS | {axis: size + number for number, axis in enumerate(dynamic) if size}
        extents |= dict.fromkeys(dynamic, 0) if not size else {}
        x, y = (
            elements.random([extents[axis] for axis in axes], seed)
            for seed, axes in enumerate((left, right))
        )
        expected = np.einsum(equation, x.astype(np.int64) - elements.zero_point, y.astype(np.int64))
        np.testing.assert_array_equal(function(x, y), expected, err_msg=str(extents))


@dataclass(frozen=True)
class Convolution:
    """A convolution of channels-last images: shapes, of which None is dynamic, and attributes."""

    operand: tuple[int | None, ...]
    kernel: tuple[int | None, ...]
    padding: tuple[tuple[int, int], ...]
    strides: tuple[int, ...] = (1, 1)
    between: tuple[int, ...] = (1, 1)
    within: tuple[int, ...] = (1, 1)
    groups: int = 1
    batch_groups: int = 1

    def text(self, elements: Elements) -> str:
        spatial = ", ".join(str(axis) for axis in range(len(self.strides)))
        known = [0 if n is None else n for n in self.operand]
        shape = list(self.result_shape(known)[:-1])
        taps = [0, *self.kernel[:-2]]
        result = [
            None if None in (self.operand[axis], taps[axis]) else n for axis, n in enumerate(shape)
        ]
        x, k, r = (
            "".join("?x" if n is None else f"{n}x" for n in each) + element
            for each, element in (
                (self.operand, elements.left),
                (self.kernel, elements.right),
                ([*result, self.kernel[-1]], elements.result),
            )
        )
        window = (
            f"stride = {list(self.strides)}, pad = {[list(ends) for ends in self.padding]}, "
            f"lhs_dilate = {list(self.between)}, rhs_dilate = {list(self.within)}"
        )
        numbers = f"[b, {spatial}, f]x[{spatial}, i, o]->[b, {spatial}, f]"
        convolution = convolution_of(numbers, window, self.groups, self.batch_groups)
        return one_operation(convolution, (x, k), r)

    def result_shape(self, shape: Sequence[int], kernel: Sequence[int] = ()) -> list[int]:
        taps = [3 if n is None else n for n in (kernel or self.kernel)]
        spatial = []
        for axis, n in enumerate(shape[1:-1]):
            padded = (n - 1) * self.between[axis] + 1 + sum(self.padding[axis])
            free = padded - (taps[axis] - 1) * self.within[axis] - 1
            spatial.append(free // self.strides[axis] + 1)
        return [shape[0] // self.batch_groups, *(max(n, 0) for n in spatial), taps[-1]]

    def expected(self, x: np.ndarray, k: np.ndarray) -> np.ndarray:
        """The definition: each tap of each group, of the dilated and padded input."""
        extents = [(n - 1) * s + 1 for n, s in zip(x.shape[1:-1], self.between, strict=True)]
        dilated = np.zeros([x.shape[0], *extents, x.shape[-1]], np.int64)
        dilated[(slice(None), *(slice(None, None, s) for s in self.between))] = x
        for axis, (low, high) in enumerate(self.padding, 1):
            ends = [(0, 0)] * x.ndim
            ends[axis] = max(low, 0), max(high, 0)
            dilated = np.pad(dilated, ends)
            inner = slice(max(-low, 0), dilated.shape[axis] - max(-high, 0))
            dilated = dilated[(slice(None),) * axis + (inner,)]
        shape = self.result_shape(x.shape, k.shape)
        out = np.zeros(shape, np.int64)
        groups = self.groups * self.batch_groups
        features, channels, batch = k.shape[-1] // groups, k.shape[-2], shape[0]
        for group, tap in itertools.product(range(groups), np.ndindex(*k.shape[:-2])):
            slices = [
                slice(t * w, t * w + (n - 1) * s + 1, s)
                for t, w, n, s in zip(tap, self.within, shape[1:-1], self.strides, strict=True)
            ]
            part = dilated[(slice(None), *slices)]
            if self.batch_groups > 1:
                part = part[group * batch : (group + 1) * batch]
            else:
                part = part[..., group * channels : (group + 1) * channels]
            own = slice(group * features, (group + 1) * features)
            out[..., own] += part @ k[tap][:, own].astype(np.int64)
        return out


ONE = ((1, 1), (1, 1))
CONVOLUTIONS = {
    "batch": Convolution((None, 6, 6, 2), (3, 3, 2, 3), ONE),
    "batch, one position": Convolution((None, 6, 6, 2), (3, 3, 2, 3), ((0, 0), (0, 0)), (4, 4)),
    "image": Convolution((1, None, None, 2), (3, 3, 2, 3), ONE),
    "height": Convolution((2, None, 6, 2), (3, 3, 2, 3), ONE),
    "batch and image": Convolution((None, None, None, 2), (3, 3, 2, 3), ONE, (2, 2)),
    "cropped": Convolution((1, None, None, 2), (3, 2, 2, 3), ((-1, 2), (0, -1)), (2, 1)),
    "depthwise": Convolution((None, 4, 4, 2), (3, 3, 1, 2), ONE, groups=2),
    "depthwise, two outputs": Convolution((None, 4, 4, 2), (3, 3, 1, 4), ONE, groups=2),
    "depthwise image": Convolution((1, None, None, 3), (3, 3, 1, 3), ONE, (2, 2), groups=3),
    "groups": Convolution((None, 4, 4, 4), (3, 3, 2, 6), ONE, groups=2),
    "groups of the batch": Convolution((None, 4, 4, 2), (3, 3, 2, 6), ONE, batch_groups=2),
    "transposed": Convolution((1, None, None, 2), (3, 3, 2, 3), ((2, 2), (1, 2)), between=(2, 3)),
    "dilated": Convolution((None, None, 7, 2), (3, 3, 2, 3), ONE, within=(2, 2)),
    "one axis": Convolution((1, None, 2), (3, 2, 3), ((1, 1),), (2,), (1,), (1,)),
    "three axes": Convolution(
        (None, None, 4, 3, 2), (2, 2, 2, 1, 2), (*ONE, (0, 1)), (1, 2, 1), (1, 1, 1), (1, 1, 1), 2
    ),
    "kernel": Convolution((1, 7, 7, 2), (None, 3, 2, 3), ONE),
}  # fmt: skip


@pytest.mark.parametrize(("device_name", "element", "name"), on_devices(CONVOLUTIONS))
def test_convolutions(device: Device, device_name: str, element: str, name: str) -> None:
    elements, case = ELEMENTS[element], CONVOLUTIONS[name]
    function = main_of(case.text(elements), device)
    for size in (2, 6):
        shape, kernel = (
            [size + number % 2 * 3 if n is None else n for number, n in enumerate(each)]
            for each in (case.operand, case.kernel)
        )
        x, k = elements.random(shape, 1), elements.random(kernel, 2)
        expected = case.expected(x.astype(np.int64) - elements.zero_point, k)
        if expected.size == 0 and device.is_vulkan:  # some kernels would have no elements to read
            continue
        np.testing.assert_array_equal(function(x, k), expected, err_msg=str(shape))


def test_accumulators_of_fewer_bits_than_the_operands(cpu: Device) -> None:
    """Added up in f32, and rounded once."""
    product = "stablehlo.dot_general %0, %1, contracting_dims = [2] x [0]"
    text = one_operation(product, ("?x2x8xf32", "8x4xf32"), "?x2x4xf16")
    generator = np.random.default_rng(0)
    x = generator.integers(-3000, 3000, (3, 2, 8)).astype(np.float32)
    w = generator.integers(-3, 4, (8, 4)).astype(np.float32)
    np.testing.assert_array_equal(main_of(text, cpu)(x, w), (x @ w).astype(np.float16))


def test_the_dimension_size_of_unsigned_integers(cpu: Device) -> None:
    text = one_operation("stablehlo.get_dimension_size %0, dim = 0", ("?x4xui8",), "i32")
    assert main_of(text, cpu)(np.zeros((3, 4), np.uint8)) == 3
