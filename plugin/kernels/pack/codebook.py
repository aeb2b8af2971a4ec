"""Codebooks: 4-bit integers that are indices of a table of 16 bytes, two in a byte.

GGML's IQ4_NL has one (`subquant.layouts.lookup`). In a program, its entries are gathered::

    %c = "subquant.unpack"(%b) {bits = array<i64: 4>, ...} : (tensor<64x8xi8>) -> tensor<64x16xi8>
    %n = stablehlo.convert %c : (tensor<64x16xi8>) -> tensor<64x16xi32>
    %q = "stablehlo.gather"(%table, %n) ... : (tensor<16xi8>, tensor<64x16xi32>) -> tensor<64x16xi8>

A kernel loads the indices and looks them up by a shuffle instruction. For targets without one, the
compiler looks them up, and the packed weight has 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.subquant import UNPACK
from ...emit.constant_values import bytes_of, constant_elements
from ...emit.gathers import AxisGather
from ...emit.operation import producer_named, producer_of
from ...emit.parameters import ModuleGlobals
from ...emit.stablehlo_semantics import reshape_source
from ...numerics.array_functions import take
from ...numerics.element_types import U8, AnyArray, Array
from ...numerics.packed_integers import unpack_planes


@dataclass(frozen=True)
class Codebook:
    """A table of bytes, and the indices of the integers of a weight.

    `plane` has the bytes of indices, the operand of `subquant.unpack`.
    """

    INDEX_BITS: ClassVar[int] = 4

    table: tuple[int, ...]
    plane: Value
    shape: tuple[int, ...]

    @classmethod
    def of(cls, storage: Value, module_globals: ModuleGlobals) -> Codebook | None:
        """Match integers that are gathered from a codebook, or return None."""
        gathered = gathered_indices(storage, module_globals)
        if gathered is None or str(storage.type.element_type) != "i8":
            return None
        table, plane = gathered
        shape = tuple(int(size) for size in storage.type.shape)
        return cls(tuple(int(entry) & 255 for entry in table), plane, shape)

    def indices(self, module_globals: ModuleGlobals) -> AnyArray:
        """Return the indices, uint8, in the shape of the integers."""
        return unpacked_indices(self.plane, module_globals).reshape(self.shape)

    def shifted(self, offset: int) -> tuple[int, ...]:
        """Return the table plus an offset of 0 or 128, as bytes."""
        return tuple(entry ^ offset for entry in self.table)

    def entries(self, offset: int, module_globals: ModuleGlobals) -> AnyArray:
        """Return the integers plus an offset of 0 or 128, uint8."""
        return take(np.array(self.shifted(offset), U8.dtype), self.indices(module_globals))


def gathered_indices(storage: Value, module_globals: ModuleGlobals) -> tuple[Array, Value] | None:
    """Match elements that are gathered from 16 entries; return these, and the bytes of indices."""
    bits = Codebook.INDEX_BITS
    gather = producer_named(reshape_source(storage), "stablehlo.gather")
    if gather is None:
        return None
    axis_gather = AxisGather.of(gather)
    if axis_gather is None or not axis_gather.is_of_elements:
        return None
    table = constant_elements(gather.operands[0], module_globals)
    if table is None or table.size != 1 << bits:
        return None
    unpack = producer_of(reshape_source(axis_gather.indices))
    while unpack is not None and unpack.name in ("stablehlo.and", "stablehlo.convert"):
        element = unpack.results[0].type.element_type
        if not isinstance(element, ir.IntegerType) or element.width < 8:
            return None
        if unpack.name == "stablehlo.and":
            mask = constant_elements(unpack.operands[1], module_globals)
            if mask is None or (~mask & ((1 << bits) - 1)).any():
                return None
        unpack = producer_of(reshape_source(unpack.operands[0]))
    if unpack is None or unpack.name != UNPACK:
        return None
    # A 4-bit result would be signed in StableHLO, and half of the indices negative.
    has_8_bits = unpack.results[0].type.element_type.width == 8
    if [int(each) for each in unpack.attributes["bits"]] != [bits] or not has_8_bits:
        return None
    # Reshapes keep the order of the bytes only if the last axis fills bytes.
    if not storage.type.rank or int(storage.type.shape[-1]) % 2:
        return None
    return table, unpack.operands[0]


def unpacked_indices(plane: Value, module_globals: ModuleGlobals) -> AnyArray:
    """Return the indices of a tensor of bytes, uint8, in their order."""
    return unpack_planes(bytes_of(plane, module_globals), [Codebook.INDEX_BITS])
