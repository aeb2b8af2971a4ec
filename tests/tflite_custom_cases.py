"""Detections of objects, and custom operators of LiteRT, with random parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tflite_builder import Graph, Quantized, f32
from tflite_cases import Case, Ends, Rng


def flexbuffer(values: dict[str, object]) -> bytes:
    """A map as FlatBuffers writes it."""
    flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
    return bytes(flexbuffers.Dumps(values))


def detections(graph: Graph, rng: Rng, *, regular: bool, dtype: str = "float32") -> Ends:
    """Boxes of a grid, whose scores differ; as many as are asked for are found."""
    count, kinds, most = 60, int(rng.integers(2, 5)), int(rng.integers(3, 8))
    background = int(rng.integers(0, 2))
    # LiteRT orders equal scores of a box as it happens: of bytes there are some.
    each = 1 if regular or dtype == "uint8" else int(rng.integers(1, 3))
    centers = rng.uniform(0.1, 0.9, (count, 2))
    anchors = np.concatenate([centers, rng.uniform(0.05, 0.2, (count, 2))], axis=1)
    encoding = scoring = None
    if dtype == "uint8":
        encoding, scoring = Quantized(0.02, 128), Quantized(1 / 256, 0)
    boxes, scores = (
        ((1, count, 4), dtype, encoding),
        ((1, count, kinds + background), dtype, scoring),
    )
    if dtype == "uint8":
        stored = np.clip(np.rint(anchors * 256), 0, 255).astype(np.uint8)
        anchor_boxes: Any = ((count, 4), dtype, Quantized(1 / 256, 0), stored)
    else:
        anchor_boxes = anchors.astype(np.float32)
    results = [f32(1, most * each, 4), f32(1, most * each), f32(1, most * each), f32(1)]
    options = {
        "max_detections": most, "max_classes_per_detection": each, "num_classes": kinds,
        "nms_score_threshold": -10.0, "nms_iou_threshold": 0.6, "y_scale": 10.0, "x_scale": 10.0,
        "h_scale": 5.0, "w_scale": 5.0, "use_regular_nms": regular, "detections_per_class": 5,
    }  # fmt: skip
    return graph.apply("TFLite_Detection_PostProcess", [boxes, scores, anchor_boxes], results,
                       custom=flexbuffer(options))  # fmt: skip


def suppression(graph: Graph, rng: Rng, *, soft: bool) -> Ends:
    """The corners of some boxes in the other order."""
    count, most = 40, int(rng.integers(3, 30))
    corners = rng.uniform(0, 0.6, (count, 2))
    sizes = rng.uniform(0.05, 0.4, (count, 2)) * rng.choice([-1, 1], (count, 2))
    data = np.concatenate([corners, corners + sizes], axis=1).astype(np.float32)
    limits = [most, float(rng.uniform(0.2, 0.8)), float(rng.uniform(-1, 1))]
    if soft:
        limits = [most, float(rng.uniform(0.5, 1)), float(rng.uniform(0, 0.5)),
                  float(rng.choice([0.0, 0.3]))]  # fmt: skip
    constants = [
        np.array(each, kind)
        for each, kind in zip(limits, ("int32", *["float32"] * 3), strict=False)
    ]
    results = [((most,), "int32"), *([f32(most)] if soft else []), ((), "int32")]
    name = f"NON_MAX_SUPPRESSION_V{5 if soft else 4}"
    return graph.apply(name, [data, f32(count), *constants], results)


def rotation(graph: Graph, rng: Rng) -> Ends:
    size = 1 << int(rng.integers(0, 9))
    tensor = f32(3, int(rng.integers(1, 3)) * size)
    options = flexbuffer({"hadamard_size": size, "random_binary_vector": [1] * size})
    return graph.apply("aeq.hadamard_rotation", [tensor], [tensor], custom=options)


CASES: dict[str, Case] = {
    **{f"TFLite_Detection_PostProcess-{t}-{'regular' if regular else 'fast'}": partial(
        detections, regular=regular, dtype=t)
       for regular in (False, True) for t in ("float32", "uint8")},
    "NON_MAX_SUPPRESSION_V4-float32": partial(suppression, soft=False),
    "NON_MAX_SUPPRESSION_V5-float32": partial(suppression, soft=True),
    "aeq.hadamard_rotation-float32": rotation,
}  # fmt: skip
