"""Max pooling: greatest elements of windows and of whole channels.

Sources: ONNX, MaxPool 1 to 22, GlobalMaxPool 22; ONNX Runtime, ``ContribOperators.md``.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import is_known
from ....numerics.element_types import AnyArray
from ..call import Call, Operand, importer
from ..quantization.expressed import ExpressedValue, Quantized
from ..reduction.reductions import greatest
from .pooling_windows import pad_images, pool_geometry, pool_windows, window_elements


@importer("GlobalMaxPool")
def global_max_pool(call: Call) -> Operand:
    """GlobalMaxPool-22: the greatest element of each channel."""
    value = call.array(0)
    return call.typed(greatest(value, tuple(range(2, value.ndim)), True))


@importer("MaxPool")
def max_pool(call: Call) -> ExpressedValue:
    """MaxPool-22: greatest elements of windows; integers with one positive scale stay integers."""
    operand = call.input(0)
    if any(call.node.outputs[1:]):
        return _max_pool_with_indices(call)
    call.attribute("storage_order", 0)  # of the indices
    if isinstance(operand.value, Quantized):
        scales = operand.value.scales
        if is_known(scales) and (np.asarray(scales) > 0).all():
            result = operand.value.moved(lambda storage: _max_pool(call, storage))
            if result is not None:
                return result
            call.with_floats("the operand has several scales")
        else:
            call.with_floats("a scale is an argument, or not above 0")
    return Operand(operand.type, _max_pool(call, call.array(0)))


def _max_pool_with_indices(call: Call) -> list[Operand]:
    """Return the greatest elements, and the index of the first of each in the whole operand.

    With ``storage_order`` 1 the first spatial axis of a channel is the fastest one.
    """
    value = call.array(0)
    geometry = pool_geometry(call, value.shape)
    sizes = value.shape[2:]
    indices = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)
    if call.attribute("storage_order", 0):
        indices = indices.reshape(sizes[::-1]).T
    planes = np.arange(math.prod(value.shape[:2]), dtype=np.int64) * math.prod(sizes)
    numbers = planes.reshape((*value.shape[:2], *(1,) * len(sizes))) + indices
    signed, least = _signed(value)
    images = pad_images(signed, geometry, least, least)
    indices = pad_images(numbers, geometry, -1, -1)  # of padding, which is never greater
    best: AnyArray = None
    index: AnyArray = None
    for part, number in zip(
        window_elements(images, geometry), window_elements(indices, geometry), strict=True
    ):
        if best is None:
            best, index = part, number
            continue
        is_better = (part > best) | ((index < 0) & (number >= 0))
        best, index = np.where(is_better, part, best), np.where(is_better, number, index)
    return [call.typed(best.astype(value.dtype)), Operand("INT64", index)]


def _signed(value: AnyArray) -> tuple[AnyArray, float]:
    """Return floats, or integers as i32 or i64, and their least value."""
    dtype = np.dtype(value.dtype)
    if dtype.kind not in "iu":
        return value, -math.inf
    return value.astype(np.int32 if dtype.itemsize < 4 else dtype), int(np.iinfo(dtype).min)


@importer("com.microsoft.NhwcMaxPool")
def nhwc_max_pool(call: Call) -> Operand:
    """NhwcMaxPool-1: greatest elements of windows of integers, with the channels last."""
    operand = call.input(0)
    value, rank = call.array(0), len(operand.shape)
    result = _max_pool(call, value.transpose(0, rank - 1, *range(1, rank - 1)))
    return Operand(operand.type, result.transpose(0, *range(2, rank), 1))


def _max_pool(call: Call, images: AnyArray) -> AnyArray:
    signed, least = _signed(images)
    return pool_windows(call, signed, least, "maximum").astype(images.dtype)
