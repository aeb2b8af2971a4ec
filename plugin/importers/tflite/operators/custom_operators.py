"""Importers of custom operators of MediaPipe and of LiteRT's quantizer; custom options.

Sources: LiteRT, ``hadamard_rotation.cc``; MediaPipe, ``transpose_conv_bias.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....core.read_record import Irrelevant
from ....errors import InputError, UnsupportedError
from ....numerics.convolutions import convolve_last
from ....numerics.element_types import AnyArray
from ...flatbuffer import UNKNOWN
from ..call import Call, custom_importer
from ..reading.flexbuffer import read_map
from .convolutions import spread_images


class CustomOptions:
    """The options of a custom operator; an option that is neither read nor irrelevant is an error.

    Args:
        call: the operator.
        irrelevant: options that need not be read.
    """

    def __init__(self, call: Call, irrelevant: Sequence[Irrelevant] = ()) -> None:
        try:
            options = read_map(call.operator.custom_options)
        except InputError as error:
            raise call.error(f"has options that cannot be read: {error.message}") from None
        self._call, self._options = call, call.record.custom_options(options, irrelevant)

    def required(self, name: str) -> float:
        """Return the number that is an option, which must be present."""
        if name not in self._options:
            raise self._call.error(f"has no option {name!r}")
        return self.get(name)

    def get(self, name: str, default: Any = None) -> float:
        """Return the number that is an option."""
        value = self._options.get(name, default)
        if value is UNKNOWN:
            raise self._call.error(f"has the option {name!r}, which is no number")
        return float(value)


_SAME, _VALID = 1, 2


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
    size = int(CustomOptions(call, [vector]).required("hadamard_size"))
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
