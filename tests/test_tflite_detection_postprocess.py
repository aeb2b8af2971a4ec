"""Detections among as many boxes as real detectors have: IREE's stack holds no row of them."""

from __future__ import annotations

import numpy as np
import pytest

from devices import compile_for
from litert import LiteRt
from subquant.runtime import Device
from tflite_builder import f32, one_operator
from tflite_custom_cases import flexbuffer


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
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 300, (2, 20000)).astype(np.float32)
    rows[1] = -np.inf
    rows[1, [5, 17000]] = 1, np.inf
    order = np.argsort(-rows, axis=1, kind="stable")[:, :40]
    values, indices = compile_for(data, cpu).main(rows)
    np.testing.assert_array_equal(np.asarray(indices), order)
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(rows, order, 1))
