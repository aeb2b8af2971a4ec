"""Byte table kernel: a function of bytes, looked up in a table of its 256 values.

    result[i] = table[operand[i]]

Vectors of bytes are looked up by shuffles of 16 bytes (`InstructionSet.byte_lookup`). With AVX-512
that takes 20 cycles for 64 bytes, and a division of as many f32 alone takes 40. Tensors of less
than a vector are looked up byte by byte, as are all where no instruction shuffles bytes.

`subquant.kernels.fusion.byte_functions` finds the functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import scalar
from ...emit.kernel import Binding, Kernel, items_per_workgroup
from ...emit.linalg import DimSize
from ...emit.operation import index_type, value
from ...emit.vectors import load, load_element, loop, store, store_element, workgroup_range
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import I8, I32, U8, Array
from ..isa.base import InstructionSet

_INT8_MACS_PER_BYTE = 64
"""int8 MACs that take about as long as the look-up of a byte."""


@dataclass(frozen=True)
class ByteTableKernel:
    """A look-up of a number of bytes in a table of 256 bytes.

    Attributes:
        size: the number of bytes.
    """

    size: int
    target: InstructionSet

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the operand, the table and the result."""
        bytes_ = Binding((self.size,), I8)
        table = Binding((16, self._lanes), U8) if self._uses_shuffles else Binding((256,), U8)
        macs = self.size * _INT8_MACS_PER_BYTE
        bindings = [bytes_, table, bytes_]
        return Kernel("byte_table", bindings, self._workgroups, self._body, 0, macs=macs)

    def table_operand(self, table: Array) -> Array:
        """Return the table's operand, u8, of the 256 values as bytes."""
        if not self._uses_shuffles:
            return table.view(np.uint8)
        return np.tile(self.target.byte_table_rows(table), self._lanes // 16)

    @property
    def _lanes(self) -> int:
        """The bytes of a vector."""
        return self.target.lanes * 4

    @property
    def _uses_shuffles(self) -> bool:
        return bool(self.target.shuffle_intrinsic) and self.size >= self._lanes

    @property
    def _items(self) -> int:
        """The vectors, or the bytes, that the workgroups share."""
        return -(-self.size // self._lanes) if self._uses_shuffles else self.size

    @property
    def _workgroups(self) -> int:
        items = self._items
        macs = -(-self.size * _INT8_MACS_PER_BYTE // items)
        return -(-items // items_per_workgroup(items, macs))

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        operand, table, result = memories
        first, end = workgroup_range(scalar(workgroup), self._workgroups, self._items)
        if not self._uses_shuffles:

            def look_up_byte(index: Value) -> None:
                code = convert(bits_of(load_element(operand, [index]), U8), I32)
                entry = value("arith.index_cast", [code.value], index_type())
                store_element(load_element(table, [entry]), result, [index])

            loop(first.value, end.value, 1, look_up_byte)
            return
        lanes = self._lanes
        rows = [load(table, [row, 0], lanes, U8) for row in range(16)]

        def look_up(index: Value) -> None:
            start = scalar(index) * lanes
            if self.size % lanes:  # the last two vectors overlap
                start = np.minimum(start, self.size - lanes)
            indices = load(operand, [start.value], lanes, I8)
            store(self.target.byte_lookup(rows, indices), result, [start.value])

        loop(first.value, end.value, 1, look_up)
