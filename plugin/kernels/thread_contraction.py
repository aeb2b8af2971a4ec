"""A block contraction as a kernel for devices of many threads, where it is one that it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._mlir import Value, ir
from ..dialects.block_contraction import BlockContraction
from ..emit import linalg
from ..emit.linalg import Extent
from ..emit.operation import mlir_type, tensor_type
from ..emit.rounding import rounded
from ..numerics.casts import Cast
from ..numerics.element_types import F32
from ..numerics.parameters import StorageType
from .contraction import Product
from .executables import Library
from .operands import Refusal
from .thread_product import COLUMNS, ThreadProduct

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SPIRV", "ThreadContraction"]

SPIRV = "spirv"
"""What options call these kernels."""
_THREADS = 32
"""Of a workgroup: GPUs have as many in lockstep, or half or twice as many; llvmpipe has eight."""
_MOST_PARTS = 2
"""Vectors of four columns that a thread has at most."""
_AT_ONCE = 4
"""Rows that a thread has at most: with two parts that makes 32 sums, which fit the registers."""
_MOST_ITERATIONS = 65535
"""After so many Mesa's llvmpipe ends the loops of a thread."""
_CODES = StorageType(8, False)


@dataclass(frozen=True)
class ThreadContraction(Product):
    """A contraction as one of `ThreadProduct`, whose activations are reals or rounded."""

    @classmethod
    def of(cls, contraction: BlockContraction, instructions: str = SPIRV) -> Self | Refusal:
        """Plan a contraction, or say why the kernel does not compute it."""
        lanes = COLUMNS * _THREADS

        def parts(columns: int) -> int:
            return min(_MOST_PARTS, -(-columns // lanes))

        planned = cls.planned(contraction, instructions, lanes, parts)
        if isinstance(planned, Refusal):
            return planned
        tiles = planned.tiles
        if tiles.steps * (1 + tiles.vectors[0]) >= _MOST_ITERATIONS:
            return Refusal("its columns are longer than the loops of some devices")
        return planned

    def emit(self, library: Library, result: ir.Type) -> Value:
        """Write the call, and return the result."""
        tiles, contraction = self.tiles, self.contraction
        weight = self._weight()
        is_rounded = contraction.activation_type == "int8"
        product = ThreadProduct(
            tiles,
            Cast(_CODES, contraction.expressed),
            self.rows,
            weight.scale,
            weight.zero,
            weight.offset,
            _AT_ONCE if self.rows is None else min(_AT_ONCE, self.rows),
            is_rounded,
        )
        activations, extents = self._rows()
        # IREE runs what it knows all operands of on the CPU, which has no such threads.
        activations = linalg.behind_barrier(activations)
        rows: Extent = self.rows if self.rows is not None else linalg.dim(activations, 0)
        given = [activations]
        if is_rounded:
            given = self._rounded(activations, rows)
        [sums] = library.call(
            product,
            product.kernel(),
            [*weight.operands, *given],
            [tensor_type([self.rows, tiles.columns], mlir_type(F32))],
            rows,
        )
        return self._result(sums, extents, result)

    def _rounded(self, activations: Value, rows: Extent) -> list[Value]:
        """Activations as bytes, and the scales of their blocks."""
        extents = [rows, self.tiles.depth // self.tiles.block, self.tiles.block]
        blocks = linalg.expand(activations, [[0], [1, 2]], extents)
        integers, scales = rounded(blocks, extents, [False, False, True], F32, "exact")
        return [linalg.collapse(integers, [[0], [1, 2]]), scales]
