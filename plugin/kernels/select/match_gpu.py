"""A block contraction as a kernel for devices of many threads, where it is one that it computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction
from ...emit import linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.linalg import Extent
from ...emit.operation import mlir_type, tensor_type
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ...numerics.parameters import StorageType
from ...signature import MOST_ITERATIONS
from ..gpu.blockwise_gemm import THREAD_N, GpuBlockwiseGemm
from ..gpu.quantize_rows import GpuQuantizeRows
from ..kernel_table import KernelTable
from ..pack.packed_weight import Tiles
from .match_blockwise import Product
from .match_failure import MatchFailure

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OF_THREADS", "SPIRV", "SPIRV_CPU", "ThreadContraction"]

SPIRV, SPIRV_CPU = "spirv", "spirv-cpu"
"""What options call these kernels: those for GPUs, and those for devices that are CPUs."""
OF_THREADS = (SPIRV, SPIRV_CPU)
_THREADS = 32
"""Of a workgroup: GPUs have as many in lockstep, or half or twice as many; llvmpipe has eight."""
_SIDE = 8
"""Threads of a workgroup that have columns of one tile, side by side.

Together they read 128 bytes at a time, which are whole lines of caches, and llvmpipe, which runs as
many together, reads what follows next: a row of 4096 x 4096 integers of 4 bits takes it 2.6 ms, and
5.0 ms where 32 threads have one tile; of 8 bits 3.3 ms and 7.3 ms (two threads of Zen 4).
"""
_MOST_PARTS = 4
"""Tiles that a thread has columns of at most.

With 2, a row of 4096 x 4096 integers takes llvmpipe a tenth longer; with 8 as long.
"""
_AT_ONCE = 4
"""Rows that a thread has at most, or has where their number is not known."""
_WRITTEN_OUT = 8
"""Rows times groups of integers that a word has: so many products are written out.

Where a word has one group, of 8 bits, 8 rows take llvmpipe a fifth less time than 4. With two
groups they take it up to a tenth less, but twice the time to translate: 0.6 s for 0.3.
"""
_LEAST_WORKGROUPS = 8
"""What fewer workgroups are not worth more tiles for: cores, or parts of a GPU, would have none."""
_CODES = StorageType(8, False)
_WORKGROUPS, _MOST_SHARES, _LEAST_STEPS = 1024, 32, 4
"""Workgroups that keep a large GPU busy; shares of a sum at most; and steps of each at least.

One row times 4096 x 4096 integers of 4 bits takes an H200 0.031 ms with 32 shares, 0.076 with 16
and 0.41 with one. On llvmpipe, which is as busy with one, 1024 x 1024 integers take 0.71 ms for
0.42.
"""

_COST_OF_ROWS = 0.5
"""What reading activations costs, in tiles."""


def _at_once(rows: int | None, tiles: Tiles) -> int:
    """How many of so many rows a thread has: as many as the others, or one more."""
    if rows is None:
        return _AT_ONCE
    groups = 8 // tiles.plane_bits[0]
    return -(-rows // -(-rows // max(_AT_ONCE, _WRITTEN_OUT // groups)))


def _parts(tiles: Tiles, groups: int) -> int:
    """How many tiles a thread has columns of, so that few are too many.

    Args:
        tiles: of the weight.
        groups: of rows.
    """
    count = -(-tiles.count // (_THREADS // _SIDE))
    most = max(1, min(_MOST_PARTS, count, count * groups // _LEAST_WORKGROUPS))
    return min(range(most, 0, -1), key=lambda n: -(-count // n) * (n + _COST_OF_ROWS))


def _shares(tiles: Tiles, rows: int, workgroups: int) -> int:
    """How many workgroups have a part each of a sum.

    Of the weight's integers there are twice as many as sums of shares, at least, which are written
    and read once more.

    Args:
        tiles: of the weight.
        rows: of activations.
        workgroups: how many there are if each has the whole sum.
    """
    most = min(
        _MOST_SHARES,
        _WORKGROUPS // workgroups,
        tiles.steps // _LEAST_STEPS,
        tiles.k // (2 * rows),
    )
    return next((n for n in range(most, 1, -1) if tiles.steps % n == 0), 1)


@dataclass(frozen=True)
class ThreadContraction(Product):
    """A contraction as one of `GpuBlockwiseGemm`, whose activations are reals or rounded.

    Its tiles are the same for all numbers of rows: a weight that several functions read, or that is
    a parameter, is laid out once.
    """

    @classmethod
    def of(cls, contraction: BlockContraction, instructions: str = SPIRV) -> Self | MatchFailure:
        """Plan a contraction, or say why the kernel does not compute it."""
        planned = cls.planned(contraction, instructions, THREAD_N * _SIDE, lambda columns: 1)
        if isinstance(planned, MatchFailure):
            return planned
        if planned.batch:
            return MatchFailure("it has batch dimensions")
        tiles = planned.tiles
        if tiles.steps * (1 + tiles.plane_vectors[0]) >= MOST_ITERATIONS:
            return MatchFailure("its columns are longer than the loops of some devices")
        return planned

    @property
    def is_apart(self) -> bool:
        """True: a thread reads vectors of four elements of each."""
        return True

    def emit(self, kernels: KernelTable, result: ir.Type) -> Value:
        """Write the call, and return the result."""
        tiles, contraction = self.tiles, self.contraction
        weight = self.weight(kernels)
        stored = weight.stored
        is_rounded = contraction.activation_type == "int8"
        at_once = _at_once(self.rows, tiles)
        product = GpuBlockwiseGemm(
            tiles,
            _parts(tiles, -(-(self.rows or 1) // at_once)),
            Cast(_CODES, contraction.expressed),
            self.rows,
            stored.scale,
            stored.zero_point,
            stored.offset,
            at_once,
            _THREADS,
            is_rounded,
        )
        if self.instructions == SPIRV and self.rows is not None:
            workgroups = product.kernel().workgroups * -(-self.rows // at_once)
            product = replace(product, split_k=_shares(tiles, self.rows, workgroups))
        activations, extents = self._rows()
        # IREE runs what it knows all operands of on the CPU, which has no such threads.
        activations = linalg.in_separate_dispatch(activations)
        rows: Extent = self.rows if self.rows is not None else linalg.dim(activations, 0)
        given = [activations]
        if is_rounded:
            given = self._rounded(kernels, activations, rows)
        shares = [product.split_k] if product.split_k > 1 else []
        sums = self._called(kernels, product, [*weight.operands, *given], rows, shares)
        if shares:
            sums = emit_stablehlo.reduce(sums, [1])
        return self._result(sums, extents, result)

    def _rounded(self, kernels: KernelTable, activations: Value, rows: Extent) -> list[Value]:
        """Activations as bytes, four to a word, and the scales of their blocks."""
        depth, block = self.tiles.k, self.tiles.block_size
        rounding = GpuQuantizeRows(self.rows, depth, block, _THREADS)
        types = [
            tensor_type([self.rows, depth // 4], mlir_type(I32)),
            tensor_type([self.rows, depth // block], mlir_type(F32)),
        ]
        return kernels.call(rounding, rounding.kernel(), [activations], types, rows)
