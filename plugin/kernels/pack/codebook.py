"""Weights whose integers are entries of a table of 16, two of whose numbers are in a byte.

GGML's IQ4_NL has such (`subquant.layouts.lookup`). In a program they are a gather::

    %c = "subquant.unpack"(%b) {bits = array<i64: 4>, ...} : (tensor<64x8xi8>) -> tensor<64x16xi8>
    %n = stablehlo.convert %c : (tensor<64x16xi8>) -> tensor<64x16xi32>
    %q = "stablehlo.gather"(%table, %n) ... : (tensor<16xi8>, tensor<64x16xi32>) -> tensor<64x16xi8>

A kernel reads the numbers, and looks them up in a register where its target has an instruction for
that; for other targets the compiler looks them up, and the weight has 8 bits in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.subquant import UNPACK
from ...emit.gathers import AxisGather
from ...emit.stablehlo_semantics import reshape_source
from ...numerics.array_functions import lookup
from ...numerics.element_types import U8, AnyArray
from ...numerics.packed_integers import unpack_planes
from ..constant_values import constant_elements
from ..select.operands import bytes_of

__all__ = ["Codebook"]


@dataclass(frozen=True)
class Codebook:
    """Integers that are entries of a table.

    Attributes:
        table: its entries, as bytes.
        plane: the bytes that the numbers of entries are in, as `subquant.unpack` takes them.
        shape: of the integers.
        BITS: of a number.
    """

    BITS: ClassVar[int] = 4

    table: tuple[int, ...]
    plane: Value
    shape: tuple[int, ...]

    @classmethod
    def of(cls, storage: Value) -> Codebook | None:
        """Read what a weight is made of, or return None if that is something else."""
        gather = _producer(storage)
        if gather is None or gather.name != "stablehlo.gather":
            return None
        taking = AxisGather.of(gather)
        if taking is None or not taking.is_of_elements:
            return None
        table, unpack = constant_elements(gather.operands[0]), _unpacked(taking.indices)
        is_of_bytes = str(storage.type.element_type) == "i8"
        if table is None or table.size != 1 << Codebook.BITS or unpack is None or not is_of_bytes:
            return None
        shape = tuple(int(extent) for extent in storage.type.shape)
        # The bytes have the same order for all shapes whose last axis fills bytes.
        if not shape or shape[-1] % 2:
            return None
        return cls(tuple(int(entry) & 255 for entry in table), unpack.operands[0], shape)

    def numbers(self) -> AnyArray:
        """The numbers of the entries, uint8, of the shape of the integers."""
        plane = bytes_of(self.plane).reshape((*self.shape[:-1], self.shape[-1] // 2))
        return unpack_planes(plane, [self.BITS])

    def moved(self, zero: int) -> tuple[int, ...]:
        """The table, with entries that are `zero` more, as bytes."""
        return tuple(entry ^ zero for entry in self.table)

    def integers(self, zero: int) -> AnyArray:
        """The entries themselves, `zero` more, uint8."""
        return lookup(np.array(self.moved(zero), U8.dtype), self.numbers())


def _producer(value: Value) -> Operation | None:
    """The operation that computes a value before it is reshaped; None for an argument."""
    owner = reshape_source(value).owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _unpacked(indices: Value) -> Operation | None:
    """What unpacks the numbers of 4 bits that a gather takes, which are made wider at most."""
    op = _producer(indices)
    while op is not None and op.name in ("stablehlo.and", "stablehlo.convert"):
        element = op.results[0].type.element_type
        if not isinstance(element, ir.IntegerType) or element.width < 8:
            return None
        if op.name == "stablehlo.and":
            mask = constant_elements(op.operands[1])
            if mask is None or (~mask & ((1 << Codebook.BITS) - 1)).any():
                return None
        op = _producer(op.operands[0])
    if (
        op is None
        or op.name != UNPACK
        or [int(n) for n in op.attributes["bits"]] != [Codebook.BITS]
    ):
        return None
    # Of integers of 4 bits, which are signed in StableHLO, half would be negative.
    return op if op.results[0].type.element_type.width == 8 else None
