"""Operators of MediaPipe, beside NumPy: LiteRT has no kernels of them."""

from __future__ import annotations

import numpy as np
import pytest

from devices import compile_for
from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import InputError, UnsupportedError
from subquant.importers.tflite import Interpreter
from subquant.importers.tflite.reading.model import read_tflite
from subquant.runtime import Device
from test_tosa import transposed
from tflite_builder import Array, f32, one_operator

_SAME, _VALID = 1, 2


def paddings(padding: int, sizes: Array, extents: Array, strides: Array) -> list[int]:
    """Negative padding that cuts each side of the result."""
    cuts = np.maximum(0, sizes - (extents - 1) % strides - 1) * (padding == _SAME)
    first = cuts // 2
    return (-np.stack([first, cuts - first], 1)).reshape(-1).tolist()


def model(
    images: tuple[int, ...], filters: Array, bias: Array, options: bytes, result: tuple[int, ...]
) -> bytes:
    return one_operator("Convolution2DTransposeBias", [f32(*images), filters, bias], [f32(*result)],
                        custom=options)  # fmt: skip


CASES = [
    ((2, 3, 4, 5), (2, 2), (2, 2), _SAME), ((1, 3, 4, 5), (3, 3), (2, 2), _SAME),
    ((1, 5, 3, 2), (4, 3), (2, 1), _SAME), ((1, 3, 4, 5), (3, 2), (2, 3), _VALID),
    ((1, 2, 2, 1), (1, 1), (2, 2), _SAME), ((1, 3, 3, 2), (4, 4), (2, 2), _VALID),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "sizes", "strides", "padding"), CASES)
def test_transposed_convolutions_with_a_bias(
    shape: tuple[int, ...],
    sizes: tuple[int, int],
    strides: tuple[int, int],
    padding: int,
    cpu: Device,
) -> None:
    rng = np.random.default_rng(0)
    filters = rng.normal(size=(3, *sizes, shape[3])).astype(np.float32)
    bias = rng.normal(size=3).astype(np.float32)
    images = rng.normal(size=shape).astype(np.float32)
    cuts = paddings(padding, np.array(sizes), np.array(shape[1:3]), np.array(strides))
    expected = transposed(images.astype(float), filters, bias, strides, cuts)
    options = np.array([padding, strides[1], strides[0]], "<i4").tobytes()
    data = model(shape, filters, bias, options, expected.shape)
    result = Interpreter(read_tflite(data)).run(0, [images])[0]
    np.testing.assert_allclose(result, expected, atol=1e-5)
    function = compile_for(data, cpu).main
    np.testing.assert_allclose(np.asarray(function(images)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ([1, 2, 2, 1], UnsupportedError, "has options beyond padding and strides"),
        ([3, 2, 2], InputError, r"has the padding 3 and the strides \(2, 2\)"),
        ([1], InputError, r"has the padding 1 and the strides \(0, 0\)"),
    ],
)
def test_other_options_are_refused(options: list[int], kind: type[Exception], message: str) -> None:
    filters, bias = np.ones((3, 2, 2, 5), np.float32), np.ones(3, np.float32)
    data = model((1, 3, 4, 5), filters, bias, np.array(options, "<i4").tobytes(), (1, 6, 8, 3))
    with pytest.raises(kind, match=message):
        compile_to_bytes(data)
