"""Pooling kernel: the greatest element, or the sum, of each window of images, for each channel.

    result[n, y, x, c] = reduce over i, j of operand[n, s * y + i - p, s * x + j - p, c]

with strides ``s`` and padding ``p``, which is left out. Images are NHWC, and vectors have channels.
IREE 3.13 has the loops of a convolution for it, and no whole vectors of channels: a 5x5 maximum of
20x20x128 elements takes 1.4 ms, and less than 0.1 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel, items_per_workgroup
from ...emit.linalg import DimSize
from ...emit.vectors import Vectors, load, loop, quotient, remainder, store, workgroup_range
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, I32, ElementType
from ..conv_geometry import ConvAxis
from .concatenate import for_vectors

_MAX_VECTORS = 4
"""Vectors of channels that are reduced together: each has an accumulator."""
_INT8_MACS_PER_VECTOR_BYTE = 2
"""int8 MACs that take about as long as reducing a byte of a vector."""


@dataclass(frozen=True)
class PoolingKernel:
    """The reduction of windows of images.

    Attributes:
        images: N.
        vertical, horizontal: the spatial axes, without dilation. Each window has an element that is
            no padding.
        channels: C.
        element: the type of the images: F32, I8 or U8.
        is_sum: the result has the sums, i32 for bytes; else the greatest elements.
        zero_point: it is subtracted from each byte of a sum.
        lanes: the f32 lanes of a vector.
    """

    images: int
    vertical: ConvAxis
    horizontal: ConvAxis
    channels: int
    element: ElementType
    is_sum: bool
    zero_point: int
    lanes: int

    @property
    def result_element(self) -> ElementType:
        """The type of the result."""
        return I32 if self.is_sum and self.element != F32 else self.element

    @property
    def result_shape(self) -> list[int]:
        """N, H, W and C of the result."""
        return [self.images, self.vertical.outputs, self.horizontal.outputs, self.channels]

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the images and the result, flattened."""
        pixels = self.images * self.vertical.size * self.horizontal.size
        operand = Binding((pixels * self.channels,), self.element)
        result = Binding((math.prod(self.result_shape),), self.result_element)
        macs = self._rows * self._macs_per_row
        return Kernel("pooling", [operand, result], self._workgroups, self._body, 0, macs=macs)

    @property
    def _rows(self) -> int:
        """The rows of the result, over all images."""
        return self.images * self.vertical.outputs

    @property
    def _macs_per_row(self) -> int:
        """The int8 MACs that take about as long as a row of the result."""
        reduced = self.horizontal.outputs * self.vertical.taps * self.horizontal.taps
        bytes_ = self.channels * self.result_element.bits // 8
        return reduced * bytes_ * _INT8_MACS_PER_VECTOR_BYTE

    @property
    def _workgroups(self) -> int:
        return -(-self._rows // items_per_workgroup(self._rows, self._macs_per_row))

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        operand, result = memories
        first, end = workgroup_range(scalar(workgroup), self._workgroups, self._rows)
        vertical, horizontal = self.vertical, self.horizontal

        def reduce_row(index: Value) -> None:
            row = scalar(index)
            image, y = quotient(row, vertical.outputs), remainder(row, vertical.outputs)
            first_row = image * vertical.size + y * vertical.stride - vertical.pad_low

            def reduce_pixel(column: Value) -> None:
                x = scalar(column)
                window = _Window(
                    *_taps(vertical, y),
                    *_taps(horizontal, x),
                    first_row * horizontal.size + x * horizontal.stride - horizontal.pad_low,
                )
                start = (row * horizontal.outputs + x) * self.channels
                for_vectors(
                    self.channels,
                    self._vector_lanes * _MAX_VECTORS,
                    lambda channel, lanes: self._reduce(
                        operand, window, channel, lanes, result, start
                    ),
                )

            loop(0, horizontal.outputs, 1, reduce_pixel)

        loop(first.value, end.value, 1, reduce_row)

    @property
    def _vector_lanes(self) -> int:
        """The lanes of a vector of the result."""
        return self.lanes * 32 // self.result_element.bits

    def _reduce(
        self,
        operand: Value,
        window: _Window,
        channel: ArrayLike,
        lanes: int,
        result: Value,
        start: ArrayLike,
    ) -> None:
        """Reduce a window for `lanes` channels from `channel` on, and store the results."""
        width = min(lanes, self._vector_lanes)
        offsets = range(0, lanes, width)
        initial = [Vectors(width).known(self._initial, self.result_element) for _ in offsets]

        def add_row(index: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
            pixel = window.first_pixel + scalar(index) * self.horizontal.size

            def add_pixel(number: Value, *accumulators: ArrayLike) -> list[ArrayLike]:
                first = (pixel + scalar(number)) * self.channels + channel
                elements = [
                    load(operand, [(first + offset).value], width, self.element)
                    for offset in offsets
                ]
                return [
                    self._reduced(accumulator, each)
                    for accumulator, each in zip(accumulators, elements, strict=True)
                ]

            return loop(window.left, window.right, 1, add_pixel, accumulators)

        accumulators = loop(window.top, window.bottom, 1, add_row, initial)
        for offset, accumulator in zip(offsets, accumulators, strict=True):
            store(accumulator, result, [(start + channel + offset).value])

    @property
    def _initial(self) -> float | int:
        """The number that accumulators start with."""
        if self.is_sum:
            return 0.0 if self.element == F32 else 0
        return -math.inf if self.element == F32 else int(np.iinfo(self.element.dtype).min)

    def _reduced(self, accumulator: ArrayLike, elements: ArrayLike) -> ArrayLike:
        if not self.is_sum:
            return np.maximum(accumulator, elements)
        if self.element == F32:
            return accumulator + elements
        wide = convert(elements, I32)
        return accumulator + (wide - self.zero_point if self.zero_point else wide)


@dataclass(frozen=True)
class _Window:
    """The elements of a window that are no padding.

    Attributes:
        top, bottom, left, right: half-open ranges of its rows and columns.
        first_pixel: the pixel of its first row and column, which may be padding.
    """

    top: int | Value
    bottom: int | Value
    left: int | Value
    right: int | Value
    first_pixel: ArrayLike


def _taps(axis: ConvAxis, output: ArrayLike) -> tuple[int | Value, int | Value]:
    """The half-open range of an output pixel's taps that are no padding."""
    if axis.min_taps_inside == axis.taps:
        return 0, axis.taps
    first, end = axis.taps_inside(output)
    return first.value, end.value
