"""Importers of custom operators of LiteRT, its quantizer and MediaPipe; custom options.

Sources: LiteRT, ``hadamard_rotation.cc``, ``detection_postprocess.cc``; MediaPipe,
``transpose_conv_bias.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....core.read_record import Irrelevant
from ....errors import InputError, UnsupportedError
from ....numerics.array_functions import beside, take
from ....numerics.convolutions import convolve_last
from ....numerics.element_types import AnyArray
from ....numerics.ordering import greatest_first
from ...flatbuffer import UNKNOWN
from ..call import Call, custom_importer
from ..reading.flexbuffer import read_map
from .convolutions import spread_images
from .non_max_suppression import suppress


class CustomOptions:
    """Options of a custom operator; one that is neither read nor irrelevant is an error."""

    def __init__(self, call: Call, irrelevant: Sequence[Irrelevant] = ()) -> None:
        try:
            options = read_map(call.operator.custom_options)
        except InputError as error:
            raise call.error(f"has options that cannot be read: {error.message}") from None
        self._call, self._options = call, call.record.custom_options(options, irrelevant)

    def number(self, name: str, default: Any = None) -> float:
        """Return the number that is an option; one without a default must be present."""
        value = self._options.get(name, default)
        if value is None:
            raise self._call.error(f"has no option {name!r}")
        if value is UNKNOWN:
            raise self._call.error(f"has the option {name!r}, which is no number")
        return float(value)


_SAME, _VALID = 1, 2
"""LiteRT's numbers ``kTfLitePaddingSame`` and ``kTfLitePaddingValid``; not tunable."""


@custom_importer("Convolution2DTransposeBias")
def transpose_conv_bias(call: Call) -> AnyArray:
    """Import Convolution2DTransposeBias, with filters ``[OC, KH, KW, C]`` and a bias.

    The options are C's ``TfLiteTransposeConvParams``. The spatial sizes of the result follow from
    the images. The greater half of an odd padding is cropped at the end.
    """
    images, filters, bias = (call.input(index) for index in range(3))
    options = np.frombuffer(call.operator.custom_options[:12].ljust(12, b"\0"), "<i4").tolist()
    padding, strides = options[0], (options[2], options[1])
    if any(call.operator.custom_options[12:]):
        raise call.error("has options beyond padding and strides", UnsupportedError)
    if padding not in (_SAME, _VALID) or min(strides) < 1:
        raise call.error(f"has the padding {padding} and the strides {strides}")
    for operand in (images, filters, bias):
        call.require_float(operand)
    if len(images.shape) != 4 or images.shape[3:] != filters.shape[3:]:
        raise call.error(f"has filters {list(filters.shape)} for images {list(images.shape)}")
    filter_sizes = filters.shape[1:3]
    cropped, result_sizes = [], []
    for length, size, stride in zip(images.shape[1:3], filter_sizes, strides, strict=True):
        crop = max(0, size - (length - 1) % stride - 1) if padding == _SAME else 0
        cropped.append(crop // 2)
        result_sizes.append(stride * (length - 1) + size - crop)
    value = spread_images(
        images.value.astype(np.float32), result_sizes, filter_sizes, strides, cropped, 0.0
    )
    weights = np.flip(filters.value.astype(np.float32), (1, 2)).transpose(1, 2, 3, 0)
    return convolve_last(value, weights) + bias.value.astype(np.float32)


@custom_importer("aeq.hadamard_rotation")
def hadamard_rotation(call: Call) -> AnyArray:
    """Import aeq.hadamard_rotation: blocks of the last axis times a Hadamard matrix / sqrt(n)."""
    operand = call.input(0)
    vector = Irrelevant("random_binary_vector", "is ignored by LiteRT's kernel")
    size = int(CustomOptions(call, [vector]).number("hadamard_size"))
    call.require_float(operand)
    if size < 1 or size & (size - 1) or operand.shape[-1] % size:
        raise call.error(f"has blocks of {size} in rows of {operand.shape[-1]}")
    value, half = operand.value.reshape((-1, size)), 1
    while half < size:
        pairs = value.reshape((-1, size // (2 * half), 2, half))
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        value = np.stack([left + right, left - right], axis=2).reshape((-1, size))
        half *= 2
    return (value * np.float32(1 / np.float32(math.sqrt(size)))).reshape(operand.shape)


# -- detection ------------------------------------------------------------------------------------

_IRRELEVANT = (
    Irrelevant("_output_types", "repeats the types of the results"),
    Irrelevant("_output_quantized", "tells converters that the results may be quantized"),
    Irrelevant("_support_output_type_float_in_quantized_op", "tells converters the same"),
)


@custom_importer("TFLite_Detection_PostProcess")
def detection_postprocess(call: Call) -> list[AnyArray]:
    """Import TFLite_Detection_PostProcess: boxes, classes, scores and the number of objects.

    Entries after the last object are zeros; LiteRT's fast suppression leaves them undefined. Boxes
    are decoded in f32, LiteRT's in f64.
    """
    options = CustomOptions(call, _IRRELEVANT)
    encoded, scores = call.input(0), call.input(1)
    if encoded.shape[0] != 1 or scores.shape[:2] != encoded.shape[:2] or encoded.shape[2] < 4:
        raise call.error(f"has boxes {list(encoded.shape)} and scores {list(scores.shape)}")
    boxes = _decoded_boxes(call, options)
    class_count = int(options.number("num_classes"))
    class_scores = call.expressed(scores, scores.value).reshape(scores.shape[1:])
    offset = scores.shape[2] - class_count
    if not 0 <= offset <= 1 or class_count < 1:
        raise call.error(f"has {class_count} classes and scores of {scores.shape[2]}")
    class_scores = class_scores[:, offset:]
    max_detections = int(options.number("max_detections"))
    if max_detections < 1:
        raise call.error(f"has {max_detections} detections")
    # Both are read: regular suppression uses the first number, fast suppression the second.
    max_per_class = min(int(options.number("detections_per_class", 100)), max_detections)
    classes_per_detection = int(options.number("max_classes_per_detection"))
    max_overlap = np.float32(options.number("nms_iou_threshold"))
    min_score = np.float32(options.number("nms_score_threshold"))
    is_regular = options.number("use_regular_nms", 0)
    if not is_regular and not 1 <= classes_per_detection <= class_scores.shape[1]:
        raise call.error(
            f"has {classes_per_detection} classes of each detection, of {class_scores.shape[1]}"
        )
    if not 0 < max_overlap <= 1:
        raise call.error(f"has the greatest overlap {max_overlap}")
    detections = _Detections(boxes, class_scores, max_overlap, min_score, max_detections)
    if is_regular:
        return detections.regular(max_per_class)
    return detections.fast(classes_per_detection)


def _decoded_boxes(call: Call, options: CustomOptions) -> AnyArray:
    """Return corners ``[boxes, 4]`` of centers and sizes relative to anchors."""
    encoded, anchors = call.input(0), call.input(2)
    values = call.expressed(encoded, encoded.value).reshape(encoded.shape[1:])
    bases = call.expressed(anchors, values)
    if bases.shape != (encoded.shape[1], 4):
        raise call.error(f"has anchors of shape {list(bases.shape)}")
    scales = [np.float32(options.number(f"{name}_scale")) for name in "yxhw"]
    if not all(scales):
        raise call.error("has a scale of 0")
    centers = [values[:, n] / scales[n] * bases[:, n + 2] + bases[:, n] for n in range(2)]
    halves = [
        np.float32(0.5) * np.exp(values[:, n + 2] / scales[n + 2]) * bases[:, n + 2]
        for n in range(2)
    ]
    corners = [center - half for center, half in zip(centers, halves, strict=True)]
    corners += [center + half for center, half in zip(centers, halves, strict=True)]
    return np.stack(corners, axis=1)


@dataclass(frozen=True, eq=False)
class _Detections:
    """Detection by non-maximum suppression of boxes, corners ``[boxes, 4]``.

    Scores are ``[boxes, classes]``; `max_overlap` is the greatest intersection over union.
    """

    boxes: AnyArray
    scores: AnyArray
    max_overlap: np.float32
    min_score: np.float32
    max_detections: int

    def _suppress(self, scores: AnyArray, count: int) -> AnyArray:
        """Return the best boxes of each row ``[rows, boxes]`` of scores, -1 after the last."""
        start = np.where(scores >= self.min_score, scores, np.float32(-np.inf))
        return suppress(self.boxes, start, count, self.max_overlap)[0]

    def fast(self, classes_per_detection: int) -> list[AnyArray]:
        """Suppress boxes by their greatest score, and return the best classes of each."""
        greatest = self.scores.max(axis=1)
        selected = self._suppress(greatest[None], self.max_detections)[0]
        is_selected = selected >= 0
        rows = np.maximum(selected, 0)
        classes = greatest_first(take(self.scores, rows, 0), classes_per_detection)
        class_count = self.scores.shape[1]
        values = take(self.scores.reshape(-1), rows[:, None] * np.int32(class_count) + classes, 0)
        boxes = np.repeat(take(self.boxes, rows, 0), classes_per_detection, axis=0)
        mask = np.repeat(is_selected.astype(np.int32), classes_per_detection, axis=0) != 0
        return _results(boxes, classes.reshape(-1), values.reshape(-1), mask,
                        is_selected.astype(np.int32).sum(dtype=np.int32))  # fmt: skip

    def regular(self, max_per_class: int) -> list[AnyArray]:
        """Suppress the boxes of each class, and return the greatest remaining scores."""
        by_class = self.scores.transpose(1, 0)
        class_count, box_count = by_class.shape
        candidates = class_count * max_per_class
        selected = self._suppress(by_class, max_per_class)
        starts = np.arange(class_count, dtype=np.int32)[:, None] * np.int32(box_count)
        values = take(by_class.reshape(-1), np.maximum(selected, 0) + starts, 0)
        values = np.where(selected >= 0, values, np.float32(-np.inf)).reshape((1, candidates))
        best = greatest_first(values, min(self.max_detections, candidates))[0]
        if best.shape[0] < self.max_detections:
            absent = np.full(self.max_detections - best.shape[0], candidates, np.int32)
            best = np.concatenate([best, beside(best, absent)])
        bounded = np.minimum(best, candidates - 1)
        mask = (take(values[0], bounded, 0) > np.float32(-np.inf)) & (best < candidates)
        boxes = np.maximum(take(selected.reshape(-1), bounded, 0), 0)
        classes = np.repeat(np.arange(class_count, dtype=np.int32), max_per_class)
        classes = take(classes, bounded, 0)
        return _results(take(self.boxes, boxes, 0), classes, take(values[0], bounded, 0), mask,
                        mask.astype(np.int32).sum(dtype=np.int32))  # fmt: skip


def _results(
    boxes: AnyArray, classes: AnyArray, values: AnyArray, mask: AnyArray, count: AnyArray
) -> list[AnyArray]:
    zero = np.float32(0)
    return [
        np.where(mask[:, None], boxes, zero)[None],
        np.where(mask, classes.astype(np.float32), zero)[None],
        np.where(mask, values, zero)[None],
        count.astype(np.float32).reshape((1,)),
    ]
