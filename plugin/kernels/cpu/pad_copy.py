"""The kernel that copies pictures with what is around them, as another kernel reads them.

IREE fills the result, copies each line of the picture into it, and widens it: three times over the
memory. With AVX2 it takes twenty times as long where the number of positions is no power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import Extent, constant_index
from ...emit.vectors import Vectors, load, loop, quotient, remainder, store, when
from ...numerics.element_types import I8
from ..conv_geometry import ConvAxis
from ..isa.registry import INSTRUCTION_SETS
from ..kernel import Binding, Kernel
from ..workgroups import workgroup_range

__all__ = ["PadCopyKernel"]


@dataclass(frozen=True)
class PadCopyKernel:
    """What is copied.

    Args:
        images: how many pictures there are.
        lines, windows: the two axes of each, with what is outside.
        channels: of a position.
        missing: channels that are added to these.
        outside: what is there, i8.
        instructions: a name in `INSTRUCTION_SETS`.
        is_widened: whether what these multiply is written (`InstructionSet.multiplicands`), or i8.
        workgroups: how many share the lines.
    """

    images: int
    vertical: ConvAxis
    horizontal: ConvAxis
    channels: int
    missing: int
    outside: int
    instructions: str
    is_widened: bool
    workgroups: int

    @property
    def shape(self) -> list[int]:
        """The extents of the result."""
        axes = self.vertical, self.horizontal
        whole = [axis.pad_low + axis.size + axis.pad_high for axis in axes]
        return [self.images, *whole, self.channels + self.missing]

    @property
    def given(self) -> int:
        """How many integers pictures have."""
        return self.images * self.vertical.size * self.horizontal.size * self.channels

    def kernel(self) -> Kernel:
        """The kernel: its bindings are the pictures, and the result."""
        element = INSTRUCTION_SETS[self.instructions].multiplicand_type if self.is_widened else I8
        bindings = [Binding((self.given,), I8), Binding((int(np.prod(self.shape)),), element)]
        products = 8 * math.prod(self.shape)
        return Kernel("padded_pictures", bindings, self.workgroups, self._body, 0, macs=products)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        count = self.images * self.shape[1]
        begin, end = workgroup_range(scalar(number), self.workgroups, count)
        loop(begin.value, end.value, 1, lambda line: self._line(memories, scalar(line)))

    def _line(self, memories: Sequence[Value], number: ArrayLike) -> None:
        _, whole, positions, width = self.shape
        image, line = quotient(number, whole), remainder(number, whole)
        self.write_line(memories[0], memories[1], image, line, number * (positions * width))

    def write_line(
        self, given: Value, result: Value, image: ArrayLike, line: ArrayLike, start: ArrayLike
    ) -> None:
        """Write a line of a picture with what is around it.

        Args:
            given: the pictures.
            result: memory of one axis.
            image, line: which one; lines outside of the picture are counted.
            start: where it is written to.
        """
        axis, (_, _, positions, width) = self.horizontal, self.shape

        def copy(source: ArrayLike) -> None:
            first = self._fill_around(result, start)
            if not self.missing:
                self._copy(given, source, result, first, axis.size * width)
                return

            def of_position(position: Value) -> None:
                at = first + scalar(position) * width
                place = source + scalar(position) * self.channels
                self._copy(given, place, result, at, self.channels)
                self._fill(result, at + self.channels, self.missing)

            loop(0, axis.size, 1, of_position)

        self._of_line(image, line, copy, lambda: self._fill(result, start, positions * width))

    def write_begin(
        self,
        given: Value,
        result: Value,
        image: ArrayLike,
        line: ArrayLike,
        start: ArrayLike,
        length: int,
    ) -> None:
        """Write the begin of a line of a picture, and what is around the line.

        Args:
            given, result, image, line, start: as of `write_line`.
            length: how many integers of the line.
        """
        first = self._fill_around(result, start)
        self._of_line(
            image,
            line,
            lambda source: self._copy(given, source, result, first, length),
            lambda: self._fill(result, first, length),
        )

    def write_vector(
        self,
        given: Value,
        result: Value,
        image: ArrayLike,
        line: ArrayLike,
        start: ArrayLike,
        offset: ArrayLike,
    ) -> None:
        """Write a vector of a line of a picture.

        Args:
            given, result, image, line, start: as of `write_line`.
            offset: its place in the line, without what is around.
        """
        first = start + self.horizontal.pad_low * self.shape[-1] + offset
        target = INSTRUCTION_SETS[self.instructions]
        lanes = target.lanes * target.k_pack
        self._of_line(
            image,
            line,
            lambda source: self._copy(given, source + offset, result, first, lanes),
            lambda: self._fill(result, first, lanes),
        )

    def _fill_around(self, result: Value, start: ArrayLike) -> ArrayLike:
        """Write what is around a line that begins at a place, and return where the line itself is.

        Args:
            result, start: as of `write_line`.
        """
        axis, width = self.horizontal, self.shape[-1]
        first = start + axis.pad_low * width
        self._fill(result, start, axis.pad_low * width)
        self._fill(result, first + axis.size * width, axis.pad_high * width)
        return first

    def _of_line(
        self,
        image: ArrayLike,
        line: ArrayLike,
        copy: Callable[[ArrayLike], None],
        fill: Callable[[], None],
    ) -> None:
        """Do the one with where a line of a picture is, or the other where there is none."""
        lines, line = self.vertical, line - self.vertical.pad_low
        source = (image * lines.size + line) * (self.horizontal.size * self.channels)
        if self.shape[1] == lines.size:
            copy(source)
        else:
            when((line >= 0) & (line < lines.size), lambda: copy(source), fill)

    def _copy(
        self, given: Value, source: ArrayLike, result: Value, target: ArrayLike, length: int
    ) -> None:
        def write(offset: ArrayLike, lanes: int) -> None:
            found = load(given, [(source + offset).value], lanes, I8)
            store(self._factors(found), result, [(target + offset).value])

        self._in_vectors(length, write)

    def _fill(self, result: Value, target: ArrayLike, length: int) -> None:
        def write(offset: ArrayLike, lanes: int) -> None:
            outside = self._factors(Vectors(lanes).known(self.outside, I8))
            store(outside, result, [(target + offset).value])

        self._in_vectors(length, write)

    def _factors(self, given: ArrayLike) -> ArrayLike:
        return (
            INSTRUCTION_SETS[self.instructions].multiplicands(given) if self.is_widened else given
        )

    def _in_vectors(self, length: int, write: Callable[[ArrayLike, int], None]) -> None:
        """Write so many elements: the last vector may share some with the one before."""
        target = INSTRUCTION_SETS[self.instructions]
        lanes = target.lanes * target.k_pack
        while lanes > length > 0:
            lanes //= 2
        if not length:
            return
        loop(0, length // lanes * lanes, lanes, lambda at: write(scalar(at), lanes))
        if length % lanes:
            write(scalar(constant_index(length - lanes)), lanes)
