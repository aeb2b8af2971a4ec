"""Custom operators: MediaPipe's beside NumPy, and detections among as many boxes as real ones have.

LiteRT has no kernels of MediaPipe's; IREE's stack holds no row of the boxes.
"""

from __future__ import annotations

import numpy as np
import pytest

from devices import compile_for
from litert import LiteRt
from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import InputError, UnsupportedError
from subquant.importers.tflite import Interpreter
from subquant.importers.tflite.reading.model import read_tflite
from subquant.runtime import Device
from test_tosa import transposed
from tflite_builder import Array, f32, one_operator
from tflite_custom_cases import flexbuffer

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
    np.testing.assert_allclose(np.asarray(compile_for(data, cpu).main(images)), expected, atol=1e-5)


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


# -- detections -----------------------------------------------------------------------------------


def detector(boxes: int, kinds: int, most: int, classes: int, *, regular: bool) -> bytes:
    """A model of ``TFLite_Detection_PostProcess`` alone, with anchors in the image."""
    rng = np.random.default_rng(0)
    sides = [rng.uniform(0.1, 0.9, (boxes, 2)), rng.uniform(0.05, 0.2, (boxes, 2))]
    anchors = np.concatenate(sides, 1).astype(np.float32)
    count = most * (1 if regular else classes)
    inputs = [f32(1, boxes, 4), f32(1, boxes, kinds), anchors]
    results = [f32(1, count, 4), f32(1, count), f32(1, count), f32(1)]
    options = {
        "max_detections": most, "max_classes_per_detection": classes, "num_classes": kinds,
        "detections_per_class": 100, "use_regular_nms": regular, "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.6, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    return one_operator("TFLite_Detection_PostProcess", inputs, results,
                        custom=flexbuffer(options))  # fmt: skip


@pytest.mark.parametrize(
    ("boxes", "kinds", "classes", "regular"),
    [(12276, 5, 3, False), (300, 90, 1, True), (9000, 2, 1, True)],
)
def test_many_boxes_fit_the_stack(
    boxes: int, kinds: int, classes: int, regular: bool, cpu: Device
) -> None:
    data, rng = detector(boxes, kinds, 100, classes, regular=regular), np.random.default_rng(1)
    locations = rng.normal(size=(1, boxes, 4)).astype(np.float32)
    scores = rng.permutation(boxes * kinds).reshape(1, boxes, kinds).astype(np.float32)
    scores /= boxes * kinds
    expected = LiteRt(data)([locations, scores])
    results = compile_for(data, cpu).main(locations, scores)
    count = int(expected[3][0])
    assert count > 50
    assert int(np.asarray(results[3])[0]) == count
    for result, right in zip(results[:3], expected[:3], strict=True):
        np.testing.assert_allclose(np.asarray(result)[:, :count], right[:, :count], atol=1e-6)


def test_the_greatest_of_long_rows(cpu: Device) -> None:
    """Equal ones and infinities too."""
    data = one_operator("TOPK_V2", [f32(2, 20000), [40]], [f32(2, 40), ((2, 40), "int32")],
                        "TopKV2Options")  # fmt: skip
    rows = np.random.default_rng(2).integers(0, 300, (2, 20000)).astype(np.float32)
    rows[1] = -np.inf
    rows[1, [5, 17000]] = 1, np.inf
    order = np.argsort(-rows, axis=1, kind="stable")[:, :40]
    values, indices = compile_for(data, cpu).main(rows)
    np.testing.assert_array_equal(np.asarray(indices), order)
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(rows, order, 1))
