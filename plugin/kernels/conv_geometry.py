"""Geometry of convolutions on NHWC activations that are flattened to ``[pixels, C]``.

An output pixel in row ``l`` and column ``m`` reads KH * KW input pixels, its *taps*, at fixed
offsets from the first. A matrix product is a convolution of one row with one tap: its rows M are
pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..emit import ArrayLike
from ..emit.vectors import quotient


@dataclass(frozen=True)
class ConvAxis:
    """A spatial axis of a convolution.

    Args:
        size: input pixels.
        stride: input pixels from an output pixel to the next.
        dilation: input pixels from a tap to the next.
        pad_low, pad_high: padding before and after.
    """

    size: int
    taps: int
    stride: int
    dilation: int
    pad_low: int
    pad_high: int

    @property
    def receptive_field(self) -> int:
        """Input pixels from the first tap to the last, both included."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def outputs(self) -> int:
        """Number of output pixels."""
        padded = self.pad_low + self.size + self.pad_high
        return (padded - self.receptive_field) // self.stride + 1

    def taps_inside(self, output: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
        """Return the half-open range of an output pixel's taps that are no padding.

        It is exact for a dilation of 1.
        """
        first = self.pad_low - output * self.stride
        return np.maximum(first, 0), np.minimum(first + self.size, self.taps)

    @property
    def min_taps_inside(self) -> int:
        """Least number of an output pixel's taps that are no padding; 0 for a dilated axis."""
        first, end = self.taps_inside(np.arange(self.outputs))
        return int((end - first).min()) if self.dilation == 1 else 0

    @property
    def padding_share(self) -> float:
        """Share of padding in the taps of all output pixels."""
        first, end = self.taps_inside(np.arange(self.outputs))
        return 1 - float((end - first).mean()) / self.taps

    @property
    def max_padding_taps(self) -> tuple[int, int]:
        """Greatest numbers of an output pixel's taps in the low and in the high padding."""
        first, end = self.taps_inside(np.arange(self.outputs))
        return int(first.max()), self.taps - int(end.min())


@dataclass(frozen=True)
class ConvGeometry:
    """Input pixels that output pixels read, by their numbers in the flattened activations.

    Args:
        images: batch size N.
        output_rows, output_columns: output pixels of an image.
        input_pixels: of all images, with their padding.
        image_stride, row_stride, column_stride: input pixels from an image, an output row or an
            output column to the next.
        taps: number of taps and their distance in input pixels, for each axis that has several.
    """

    images: int
    output_rows: int
    output_columns: int
    input_pixels: int
    image_stride: int
    row_stride: int
    column_stride: int
    taps: tuple[tuple[int, int], ...]

    @property
    def output_pixels(self) -> int:
        """Number of output pixels of all images: M of the implicit GEMM."""
        return self.images * self.output_rows * self.output_columns

    @property
    def tap_count(self) -> int:
        """Number of taps of an output pixel."""
        return math.prod(count for count, _ in self.taps)

    def first_tap(self, row: ArrayLike, column: ArrayLike) -> ArrayLike:
        """Return the first input pixel of an output pixel, whose row is counted over all images."""
        first = row * self.row_stride + column * self.column_stride
        if self.images == 1:
            return first
        image = quotient(row, self.output_rows)
        return first + image * (self.image_stride - self.output_rows * self.row_stride)
