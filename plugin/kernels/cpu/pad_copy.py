"""Pad-copy kernel: images with their padding (halo) materialized, as convolution kernels read them.

The result is NHWC, flattened, as i8, as multiplicands (`InstructionSet.multiplicands`) or as f32.
IREE's own code passes over memory three times: it fills the result, copies each image row, and
widens it (with AVX2 in twenty times the time, if the number of pixels is no power of two).

Convolution kernels that copy rows to scratch memory use the methods for single rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import Vectors, load, loop, quotient, remainder, store, when, workgroup_range
from ...numerics.element_types import I8, ElementType
from ..conv_geometry import ConvAxis
from ..isa.base import InstructionSet
from .concatenate import INT8_MACS_PER_BYTE, for_vectors


@dataclass(frozen=True)
class PadCopyKernel:
    """Pad-copy of the images of a convolution.

    Args:
        images: N.
        vertical, horizontal: the spatial axes, with their padding.
        channels: C of the input.
        extra_channels: channels that are added, filled with padding.
        writes_multiplicands: the result has multiplicands, and not `element`.
        workgroups: the number of workgroups, which share the rows.
        element: the type of the images, I8 or F32.
    """

    images: int
    vertical: ConvAxis
    horizontal: ConvAxis
    channels: int
    extra_channels: int
    padding_value: int
    target: InstructionSet
    writes_multiplicands: bool
    workgroups: int
    element: ElementType = I8

    @property
    def padded_shape(self) -> list[int]:
        """N, H, W and C of the result."""
        axes = self.vertical, self.horizontal
        sizes = [axis.pad_low + axis.size + axis.pad_high for axis in axes]
        return [self.images, *sizes, self.channels + self.extra_channels]

    @property
    def input_size(self) -> int:
        """The number of input elements."""
        return self.images * self.vertical.size * self.horizontal.size * self.channels

    @property
    def key(self) -> object:
        """A key that is equal for equal code, which has no taps, strides and dilations."""
        vertical, horizontal = (
            replace(axis, taps=1, stride=1, dilation=1) for axis in (self.vertical, self.horizontal)
        )
        return replace(self, vertical=vertical, horizontal=horizontal)

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the images and the result."""
        element = self.target.multiplicand_type if self.writes_multiplicands else self.element
        size = math.prod(self.padded_shape)
        bindings = [Binding((self.input_size,), self.element), Binding((size,), element)]
        macs = INT8_MACS_PER_BYTE * size * self.element.bits // I8.bits
        return Kernel("pad_copy", bindings, self.workgroups, self._body, 0, macs=macs)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        source, result = memories
        _, height, width, channels = self.padded_shape
        first, end = workgroup_range(scalar(workgroup), self.workgroups, self.images * height)

        def copy(index: Value) -> None:
            number = scalar(index)
            image, row = quotient(number, height), remainder(number, height)
            self.copy_row(source, result, image, row, number * (width * channels))

        loop(first.value, end.value, 1, copy)

    # -- rows -------------------------------------------------------------------------------------

    def copy_row(
        self, source: Value, result: Value, image: ArrayLike, row: ArrayLike, start: ArrayLike
    ) -> None:
        """Copy an image row with its padding to the index `start` of a memref of one axis.

        Rows are counted from the first row of padding.
        """
        axis, (_, _, width, channels) = self.horizontal, self.padded_shape

        def copy(first_source: ArrayLike) -> None:
            first = self._fill_sides(result, start)
            if not self.extra_channels:
                self._copy(source, first_source, result, first, axis.size * channels)
                return

            def copy_pixel(pixel: Value) -> None:
                target = first + scalar(pixel) * channels
                own = first_source + scalar(pixel) * self.channels
                self._copy(source, own, result, target, self.channels)
                self._fill(result, target + self.channels, self.extra_channels)

            loop(0, axis.size, 1, copy_pixel)

        self._if_inside(image, row, copy, lambda: self._fill(result, start, width * channels))

    def copy_row_start(
        self,
        source: Value,
        result: Value,
        image: ArrayLike,
        row: ArrayLike,
        start: ArrayLike,
        length: int,
    ) -> None:
        """Copy the first elements of a row, as `copy_row` does, and the padding at its sides."""
        first = self._fill_sides(result, start)
        self._if_inside(
            image,
            row,
            lambda own: self._copy(source, own, result, first, length),
            lambda: self._fill(result, first, length),
        )

    def copy_row_vector(
        self,
        source: Value,
        result: Value,
        image: ArrayLike,
        row: ArrayLike,
        start: ArrayLike,
        offset: ArrayLike,
    ) -> None:
        """Copy a vector of an image row, as for `copy_row`; its `offset` does not count padding."""
        first = start + self.horizontal.pad_low * self.padded_shape[-1] + offset
        lanes = self.target.lanes * self.target.k_pack
        self._if_inside(
            image,
            row,
            lambda own: self._copy(source, own + offset, result, first, lanes),
            lambda: self._fill(result, first, lanes),
        )

    def _fill_sides(self, result: Value, start: ArrayLike) -> ArrayLike:
        """Fill the padding at both sides of a row; return the index of its first pixel."""
        axis, channels = self.horizontal, self.padded_shape[-1]
        first = start + axis.pad_low * channels
        self._fill(result, start, axis.pad_low * channels)
        self._fill(result, first + axis.size * channels, axis.pad_high * channels)
        return first

    def _if_inside(
        self,
        image: ArrayLike,
        row: ArrayLike,
        copy: Callable[[ArrayLike], None],
        fill: Callable[[], None],
    ) -> None:
        """Emit a copy from the index of an image row, or a fill for a row of padding."""
        axis, row = self.vertical, row - self.vertical.pad_low
        source = (image * axis.size + row) * (self.horizontal.size * self.channels)
        if self.padded_shape[1] == axis.size:
            copy(source)
        else:
            when((row >= 0) & (row < axis.size), lambda: copy(source), fill)

    # -- elements ---------------------------------------------------------------------------------

    def _copy(
        self, source: Value, first: ArrayLike, result: Value, target: ArrayLike, length: int
    ) -> None:
        def copy(offset: ArrayLike, lanes: int) -> None:
            vector = load(source, [(first + offset).value], lanes, self.element)
            store(self._converted(vector), result, [(target + offset).value])

        self._for_vectors(length, copy)

    def _fill(self, result: Value, target: ArrayLike, length: int) -> None:
        def fill(offset: ArrayLike, lanes: int) -> None:
            padding = self._converted(Vectors(lanes).known(self.padding_value, self.element))
            store(padding, result, [(target + offset).value])

        self._for_vectors(length, fill)

    def _converted(self, vector: ArrayLike) -> ArrayLike:
        return self.target.multiplicands(vector) if self.writes_multiplicands else vector

    def _for_vectors(self, length: int, body: Callable[[ArrayLike, int], None]) -> None:
        """Call a body with the offset and the lanes of vectors; the last two may overlap."""
        lanes = self.target.lanes * (self.target.k_pack if self.element == I8 else 1)
        for_vectors(length, lanes, body)
