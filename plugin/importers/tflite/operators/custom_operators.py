"""Custom operators of LiteRT and MediaPipe.

Sources: LiteRT, ``detection_postprocess.cc``, ``hadamard_rotation.cc``; MediaPipe,
``transpose_conv_bias.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....core.read_record import Irrelevant
from ....errors import InputError, UnsupportedError
from ....numerics.array_functions import beside, convolve_last, take
from ....numerics.element_types import AnyArray
from ....numerics.ordering import greatest_first
from ...flatbuffer import UNKNOWN
from ..call import Call, custom_kernel
from ..reading.flexbuffer import read_map
from .convolutions import spread_images
from .non_max_suppression import suppressed

__all__: list[str] = []


def _options(call: Call, irrelevant: Sequence[Irrelevant] = ()) -> Mapping[str, Any]:
    """Return the options by name; those that are neither read nor irrelevant are an error."""
    try:
        options = read_map(call.operator.custom_options)
    except InputError as error:
        raise call.error(f"has options that cannot be read: {error.message}") from None
    return call.record.custom_options(options, irrelevant)


def _required(call: Call, options: Mapping[str, Any], name: str) -> float:
    if name not in options:
        raise call.error(f"has no option {name!r}")
    return _number(call, name, options[name])


def _number(call: Call, name: str, value: Any) -> float:
    if value is UNKNOWN:
        raise call.error(f"has the option {name!r}, which is no number")
    return float(value)


# -- detections -----------------------------------------------------------------------------------


_OUTPUT_TYPES = (
    Irrelevant("_output_types", "repeats the types of the results"),
    Irrelevant("_output_quantized", "tells converters that the results may be quantized"),
    Irrelevant("_support_output_type_float_in_quantized_op", "tells converters the same"),
)


@custom_kernel("TFLite_Detection_PostProcess")
def detections(call: Call) -> list[AnyArray]:
    """Boxes, classes, scores and the number of objects: the greatest scores that do not overlap.

    Places beyond the number of objects are zeros, which LiteRT leaves as they were with the fast
    suppression. Boxes are decoded in f32, LiteRT's in f64.
    """
    options = _options(call, _OUTPUT_TYPES)
    encoded, given = call.input(0), call.input(1)
    if encoded.shape[0] != 1 or given.shape[:2] != encoded.shape[:2] or encoded.shape[2] < 4:
        raise call.error(f"has boxes {list(encoded.shape)} and scores {list(given.shape)}")
    boxes = _decoded(call, options)
    count = int(_required(call, options, "num_classes"))
    scores = call.reals(given, given.value).reshape(given.shape[1:])
    offset = given.shape[2] - count
    if not 0 <= offset <= 1 or count < 1:
        raise call.error(f"has {count} classes and scores of {given.shape[2]}")
    scores = scores[:, offset:]
    most = int(_required(call, options, "max_detections"))
    if most < 1:
        raise call.error(f"has {most} detections")
    # One suppression reads the first number, the other the second.
    each = min(int(_number(call, "detections_per_class", options.get("detections_per_class", 100))),
               most)  # fmt: skip
    classes = int(_required(call, options, "max_classes_per_detection"))
    if options.get("use_regular_nms", 0):
        return _of_each_class(call, options, boxes, scores, most, each)
    return _of_all_classes(call, options, boxes, scores, most, classes)


def _decoded(call: Call, options: Mapping[str, Any]) -> AnyArray:
    """Corners ``[boxes, 4]``, of centers and sizes relative to anchors."""
    encoded, anchors = call.input(0), call.input(2)
    parts = call.reals(encoded, encoded.value).reshape(encoded.shape[1:])
    bases = call.reals(anchors, parts)
    if bases.shape != (encoded.shape[1], 4):
        raise call.error(f"has anchors of shape {list(bases.shape)}")
    scales = [np.float32(_required(call, options, f"{name}_scale")) for name in "yxhw"]
    if not all(scales):
        raise call.error("has a scale of 0")
    centers = [parts[:, n] / scales[n] * bases[:, n + 2] + bases[:, n] for n in range(2)]
    halves = [
        np.float32(0.5) * np.exp(parts[:, n + 2] / scales[n + 2]) * bases[:, n + 2]
        for n in range(2)
    ]
    corners = [center - half for center, half in zip(centers, halves, strict=True)]
    corners += [center + half for center, half in zip(centers, halves, strict=True)]
    return np.stack(corners, axis=1)


def _suppressed(
    call: Call, options: Mapping[str, Any], boxes: AnyArray, scores: AnyArray, count: int
) -> AnyArray:
    """The best boxes of each row of scores, those that overlap a better one left out.

    Args:
        call: the operator.
        options: of it.
        boxes: ``[boxes, 4]``.
        scores: ``[rows, boxes]``.
        count: how many boxes of each row.

    Returns:
        int32 ``[rows, count]``, -1 after the last.
    """
    limit = np.float32(_required(call, options, "nms_iou_threshold"))
    least = np.float32(_required(call, options, "nms_score_threshold"))
    if not 0 < limit <= 1:
        raise call.error(f"has the greatest overlap {limit}")
    start = np.where(scores >= least, scores, np.float32(-np.inf))
    return suppressed(boxes, start, count, limit)[0]


def _of_all_classes(
    call: Call,
    options: Mapping[str, Any],
    boxes: AnyArray,
    scores: AnyArray,
    most: int,
    classes: int,
) -> list[AnyArray]:
    """Boxes by the greatest score of each, with the `classes` greatest ones of it."""
    if classes < 1 or classes > scores.shape[1]:
        raise call.error(f"has {classes} classes of each detection, of {scores.shape[1]}")
    greatest = scores.max(axis=1)
    found = _suppressed(call, options, boxes, greatest[None], most)[0]
    is_found = found >= 0
    rows = np.maximum(found, 0)
    kinds = greatest_first(take(scores, rows, 0), classes)
    width = scores.shape[1]
    values = take(scores.reshape(-1), rows[:, None] * np.int32(width) + kinds, 0)
    repeated = np.repeat(take(boxes, rows, 0), classes, axis=0)
    shown = np.repeat(is_found.astype(np.int32), classes, axis=0) != 0
    return _results(call, repeated, kinds.reshape(-1), values.reshape(-1), shown,
                    is_found.astype(np.int32).sum(dtype=np.int32))  # fmt: skip


def _of_each_class(
    call: Call,
    options: Mapping[str, Any],
    boxes: AnyArray,
    scores: AnyArray,
    most: int,
    each: int,
) -> list[AnyArray]:
    """The greatest scores of those that are left of each class."""
    rows = scores.transpose(1, 0)
    kinds, extent = rows.shape
    found = _suppressed(call, options, boxes, rows, each)
    starts = np.arange(kinds, dtype=np.int32)[:, None] * np.int32(extent)
    values = take(rows.reshape(-1), np.maximum(found, 0) + starts, 0)
    values = np.where(found >= 0, values, np.float32(-np.inf)).reshape((1, kinds * each))
    best = greatest_first(values, min(most, kinds * each))[0]
    if best.shape[0] < most:
        missing = np.full(most - best.shape[0], kinds * each, np.int32)
        best = np.concatenate([best, beside(best, missing)])
    inside = np.minimum(best, kinds * each - 1)
    shown = (take(values[0], inside, 0) > np.float32(-np.inf)) & (best < kinds * each)
    taken = np.maximum(take(found.reshape(-1), inside, 0), 0)
    of_class = take(np.repeat(np.arange(kinds, dtype=np.int32), each), inside, 0)
    return _results(call, take(boxes, taken, 0), of_class, take(values[0], inside, 0), shown,
                    shown.astype(np.int32).sum(dtype=np.int32))  # fmt: skip


def _results(
    call: Call,
    boxes: AnyArray,
    kinds: AnyArray,
    values: AnyArray,
    shown: AnyArray,
    count: AnyArray,
) -> list[AnyArray]:
    zero = np.float32(0)
    return [
        np.where(shown[:, None], boxes, zero)[None],
        np.where(shown, kinds.astype(np.float32), zero)[None],
        np.where(shown, values, zero)[None],
        count.astype(np.float32).reshape((1,)),
    ]


# -- transposed convolutions ----------------------------------------------------------------------

_SAME, _VALID = 1, 2


@custom_kernel("Convolution2DTransposeBias")
def transpose_conv_bias(call: Call) -> AnyArray:
    """Input 0 convolved with the filters ``[F, KH, KW, C]`` of input 1, transposed, and input 2.

    The options are C's ``TfLiteTransposeConvParams``. The result has the extents that the images
    have; of an uneven padding the greater part is cut at the end.
    """
    images, filters, bias = (call.input(index) for index in range(3))
    options = np.frombuffer(call.operator.custom_options[:12].ljust(12, b"\0"), "<i4").tolist()
    padding, strides = options[0], (options[2], options[1])
    if any(call.operator.custom_options[12:]):
        raise call.error("has options beyond padding and strides", UnsupportedError)
    if padding not in (_SAME, _VALID) or min(strides) < 1:
        raise call.error(f"has the padding {padding} and the strides {strides}")
    if not all(each.is_float for each in (images, filters, bias)):
        raise call.error(f"of {images.tensor.type} is not lowered", UnsupportedError)
    if len(images.shape) != 4 or images.shape[3:] != filters.shape[3:]:
        raise call.error(f"has filters {list(filters.shape)} for images {list(images.shape)}")
    sizes = filters.shape[1:3]
    cuts = [
        max(0, size - (extent - 1) % stride - 1) if padding == _SAME else 0
        for extent, size, stride in zip(images.shape[1:3], sizes, strides, strict=True)
    ]
    extents = [
        stride * (extent - 1) + size - cut
        for extent, size, stride, cut in zip(images.shape[1:3], sizes, strides, cuts, strict=True)
    ]
    value = spread_images(
        images.value.astype(np.float32), extents, sizes, strides, [cut // 2 for cut in cuts], 0.0
    )
    kernels = np.flip(filters.value.astype(np.float32), (1, 2)).transpose(1, 2, 3, 0)
    return convolve_last(value, kernels) + bias.value.astype(np.float32)


# -- rotations ------------------------------------------------------------------------------------


@custom_kernel("aeq.hadamard_rotation")
def hadamard_rotation(call: Call) -> AnyArray:
    """Blocks of the last axis times a Hadamard matrix, whose rows have the length 1; of floats."""
    operand = call.input(0)
    vector = Irrelevant("random_binary_vector", "is ignored by LiteRT's kernel")
    size = int(_required(call, _options(call, [vector]), "hadamard_size"))
    if not operand.is_float:
        raise call.error(f"of {operand.tensor.type} is not lowered", UnsupportedError)
    if size < 1 or size & (size - 1) or operand.shape[-1] % size:
        raise call.error(f"has blocks of {size} in rows of {operand.shape[-1]}")
    value, half = operand.value.reshape((-1, size)), 1
    while half < size:
        pairs = value.reshape((-1, size // (2 * half), 2, half))
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        value = np.stack([left + right, left - right], axis=2).reshape((-1, size))
        half *= 2
    return (value * np.float32(1 / np.float32(math.sqrt(size)))).reshape(operand.shape)
