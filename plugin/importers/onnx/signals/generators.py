"""Operators that compute tensors from constants: Range, ConstantOfShape, EyeLike, windows.

Shapes and bounds must be constant, since a program has static shapes.

Sources: ONNX, Range 27, ConstantOfShape 25, EyeLike 22, Trilu 14, HannWindow 17, HammingWindow 17,
BlackmanWindow 17, MelWeightMatrix 17.
"""

from __future__ import annotations

import math

import numpy as np

from ....numerics.array_functions import convert
from ....numerics.element_types import I64, Array
from ..call import Call, Operand, importer
from ..reading.model import ELEMENTS, Tensor, element_of, is_too_large


@importer("Range")
def range_(call: Call) -> Operand:
    """Range-27: numbers from ``start`` to before ``limit``, in steps of ``delta``, of one type."""
    type_ = call.input(0).type
    start, limit, delta = (call.constant(index).reshape(-1) for index in range(3))
    call.attribute("stash_type", 1)  # the precision of sums of f16, which are computed in f64 here
    if not start.size == limit.size == delta.size == 1 or not delta[0]:
        raise call.error("has bounds that are no single numbers, or the step 0")
    first, last, step = (each[0].item() for each in (start, limit, delta))
    count = max(math.ceil((last - first) / step), 0)
    if is_too_large([count]):
        raise call.unsupported(f"has {count:,} elements, too many")
    numbers = np.arange(count) * step + first
    return Operand(type_, numbers.astype(start.dtype))


@importer("ConstantOfShape")
def constant_of_shape(call: Call) -> Operand:
    """ConstantOfShape-25: one value everywhere; the f32 0 by default."""
    shape = call.constant_list(0)
    value = call.attribute("value")
    if min(shape, default=0) < 0 or is_too_large(shape):
        raise call.error(f"has the shape {shape}")
    if not isinstance(value, Tensor):
        return Operand("FLOAT", np.zeros(shape, np.float32))
    if value.data.size != 1:
        raise call.error(f"has {value.data.size} values, expected one")
    return Operand(value.type, np.full(shape, value.data.reshape(-1)[0]))


@importer("EyeLike")
def eye_like(call: Call) -> Operand:
    """EyeLike-22: ones on a diagonal of a matrix of the input's shape."""
    shape, type_ = call.input(0).shape, call.input(0).type
    if len(shape) != 2:
        raise call.error(f"is like a tensor of {len(shape)} dimensions, expected 2")
    if call.attribute("dtype") is not None:
        type_ = _type_of(call, call.integer("dtype"))
    matrix = np.eye(*shape, k=call.attribute("k", 0))
    return Operand(type_, matrix.astype(element_of(type_).dtype))


def _type_of(call: Call, number: int) -> str:
    """Return ONNX's name of the element type of a number, which programs must have."""
    name = call.element_type_name(number)
    if name not in ELEMENTS or "4E" in name or "6E" in name or "8E" in name:
        raise call.unsupported(f"makes elements of the type {name}")
    return name


@importer("Trilu")
def trilu(call: Call) -> Operand:
    """Trilu-14: the upper or lower triangle of matrices, and 0 elsewhere."""
    value = call.array(0)
    if value.ndim < 2:
        raise call.error(f"is of a tensor of {value.ndim} dimensions, expected 2 or more")
    offset = np.zeros((), np.int64)
    if call.optional(1) is not None:
        offset = convert(call.scalar(1), I64)
    height, width = value.shape[-2:]
    distance = (
        np.arange(width, dtype=np.int64)[None, :] - np.arange(height, dtype=np.int64)[:, None]
    )
    is_inside = distance >= offset if call.attribute("upper", 1) else distance <= offset
    return call.typed(np.where(is_inside, value, np.zeros((), value.dtype)))


_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""``a - b * cos(x) + c * cos(2 * x)``."""


@importer(*_WINDOWS)
def window(call: Call) -> Operand:
    """BlackmanWindow-17, HammingWindow-17, HannWindow-17: a sum of cosines."""
    size, periodic = int(call.constant_scalar(0)), call.attribute("periodic", 1)
    type_ = _type_of(call, call.attribute("output_datatype", 1))
    if size < 0 or is_too_large([size]):
        raise call.error(f"has {size} elements")
    with np.errstate(invalid="ignore"):  # NaN for a symmetric window of one element: no period
        x = 2 * np.pi * np.arange(size) / np.float64(size if periodic else size - 1)
    a, b, c = _WINDOWS[call.node.operator]
    values = a - b * np.cos(x) + c * np.cos(2 * x)
    return Operand(type_, values.astype(element_of(type_).dtype))


@importer("MelWeightMatrix")
def mel_weight_matrix(call: Call) -> Operand:
    """MelWeightMatrix-17: triangular bands on the mel scale, ``[bins, bands]``."""
    bands, length, rate = (int(call.constant_scalar(index)) for index in range(3))
    low, high = (float(call.constant_scalar(index)) for index in (3, 4))
    type_ = _type_of(call, call.attribute("output_datatype", 1))
    if min(bands, length, rate) < 1 or is_too_large([length, bands]):
        raise call.error(f"has {bands} bands of {length} samples at {rate} Hz")
    matrix = _mel_matrix(bands, length, rate, low, high)
    return Operand(type_, matrix.astype(element_of(type_).dtype))


def _mel_matrix(bands: int, length: int, rate: int, low: float, high: float) -> Array:
    """Triangles between three neighboring edges, which are equidistant in mel, as whole bins."""
    ends = [2595 * math.log10(1 + edge / 700) for edge in (low, high)]
    mels = np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 2)) + ends[0]
    edges = 700 * (np.power(10, mels / 2595) - 1)
    bin_numbers = ((length + 1) * edges // rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bands))
    for band in range(bands):
        first, middle, last = bin_numbers[band : band + 3]
        if first == middle:
            matrix[middle, band] = 1
        else:
            for bin_ in range(first, middle + 1):
                matrix[bin_, band] = (bin_ - first) / (middle - first)
        for bin_ in range(middle, last):
            matrix[bin_, band] = (last - bin_) / (last - middle)
    return matrix
