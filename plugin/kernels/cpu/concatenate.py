"""Concatenation kernel: rows of tensors, or slices of them, one behind the other.

A stream concatenates its state and the new frames, and slices the next state out of the result.
IREE copies each tensor by a command of its own, which takes longer than the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import load, loop, store
from ...numerics.element_types import I8

_MAX_VECTOR_BYTES = 64
"""The size of the vectors that copy a tensor; a smaller tensor has smaller ones."""
INT8_MACS_PER_BYTE = 8
"""int8 MACs that take about as long as the copy of a byte."""


class CopiedBytes(NamedTuple):
    """Consecutive bytes of each row of an operand.

    Attributes:
        operand: the number of the operand.
        first: the first byte in a row of the operand.
        size: the number of bytes.
    """

    operand: int
    first: int
    size: int


@dataclass(frozen=True)
class ConcatenateKernel:
    """Rows of a result, each of which has bytes of a row of each operand.

    Attributes:
        rows: the number of rows of the result and of each operand.
        operand_row_bytes: the size of a row of each operand.
        copies: the bytes of a row of the result, in their order.
    """

    rows: int
    operand_row_bytes: tuple[int, ...]
    copies: tuple[CopiedBytes, ...]

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the operands and the result, as bytes."""
        row_bytes = self._row_bytes
        sizes = (*self.operand_row_bytes, row_bytes)
        bindings = [Binding((self.rows * size,), I8) for size in sizes]
        macs = INT8_MACS_PER_BYTE * self.rows * row_bytes
        return Kernel("concatenate", bindings, 1, self._body, 0, macs=macs)

    @property
    def _row_bytes(self) -> int:
        """The size of a row of the result."""
        return sum(each.size for each in self.copies)

    def _body(self, memories: Sequence[Value], _: Value, __: DimSize) -> None:
        *operands, result = memories

        def copy_row(index: Value) -> None:
            row = scalar(index)
            target = row * self._row_bytes
            for number, first, size in self.copies:
                source = row * self.operand_row_bytes[number] + first
                copy_bytes(operands[number], source, result, target, size)
                target = target + size

        loop(0, self.rows, 1, copy_row)


def copy_bytes(source: Value, first: ArrayLike, target: Value, start: ArrayLike, size: int) -> None:
    """Copy `size` bytes of a memref from `first` on to another one from `start` on.

    The last two vectors may overlap.
    """

    def copy(offset: ArrayLike, lanes: int) -> None:
        loaded = load(source, [(first + offset).value], lanes, I8)
        store(loaded, target, [(start + offset).value])

    for_vectors(size, _MAX_VECTOR_BYTES, copy)


def for_vectors(length: int, lanes: int, body: Callable[[ArrayLike, int], None]) -> None:
    """Call a body with the offset and the lanes of vectors that cover a length.

    A shorter length has vectors of fewer `lanes`. The last two vectors may overlap.
    """
    if not length:
        return
    while lanes > length:
        lanes //= 2
    loop(0, length // lanes * lanes, lanes, lambda offset: body(scalar(offset), lanes))
    if length % lanes:
        body(scalar(constant_index(length - lanes)), lanes)
