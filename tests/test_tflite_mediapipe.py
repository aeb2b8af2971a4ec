"""Operators of MediaPipe, beside NumPy: LiteRT has no kernels of them."""

from __future__ import annotations

import numpy as np
import pytest

from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import InputError, UnsupportedError
from subquant.importers.tflite import Interpreter
from subquant.importers.tflite.reading.model import read_tflite
from subquant.runtime import Device, Executable
from tflite_builder import Array, f32, one_operator

_SAME, _VALID = 1, 2


def transposed(
    images: Array, filters: Array, bias: Array, strides: tuple[int, int], padding: int
) -> Array:
    """Each pixel adds the filters, times its value, to the result that begins with the bias."""
    count, height, width, _ = images.shape
    features, rows, columns, _ = filters.shape
    cuts = [0, 0]
    if padding == _SAME:
        cuts[0] = max(0, rows - (height - 1) % strides[0] - 1)
        cuts[1] = max(0, columns - (width - 1) % strides[1] - 1)
    whole = np.zeros((count, strides[0] * (height - 1) + rows,
                      strides[1] * (width - 1) + columns, features))  # fmt: skip
    for y in range(height):
        for x in range(width):
            part = np.einsum("nc,frsc->nrsf", images[:, y, x].astype(float), filters)
            top, left = y * strides[0], x * strides[1]
            whole[:, top : top + rows, left : left + columns] += part
    top, left = cuts[0] // 2, cuts[1] // 2
    bottom, right = whole.shape[1] - (cuts[0] - top), whole.shape[2] - (cuts[1] - left)
    return whole[:, top:bottom, left:right] + bias


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
    expected = transposed(images, filters, bias, strides, padding)
    options = np.array([padding, strides[1], strides[0]], "<i4").tobytes()
    data = model(shape, filters, bias, options, expected.shape)
    result = Interpreter(read_tflite(data)).run(0, [images])[0]
    np.testing.assert_allclose(result, expected, atol=1e-5)
    function = Executable(compile_to_bytes(data), cpu).main
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
