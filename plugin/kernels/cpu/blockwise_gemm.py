"""Blockwise GEMM kernel: activations times a block-quantized weight of 2 to 8 bits.

::

    result[m, n] = sum_b row_scale[m, b] * (scale[n, b] * dot[m, n, b]
                                            + offset[n, b] * sum_k x[m, k])
    dot[m, n, b] = sum_k (weight[n, k] - zero[n, b]) * x[m, k]

where ``k`` runs over block ``b``. With int8 activations, ``dot`` is of integers, and exact; with
f32 activations it is of f32, and there is no ``row_scale``; a weight of floats without scales has
one block, and ``result = dot``. Integers that are codebook indices
(`subquant.kernels.pack.codebook`) are looked up first.

Loop nest of a workgroup, which has some weight tiles of NR columns:

* GEMV, M <= MR: for some tiles that are read side by side, K; all rows are in registers.
* GEMM: for one or few tiles, MR rows at a time, K. Where there are many rows, K is cut into panels
  (`UnpackedPanel`) that are unpacked to memory for `_PANEL_ROWS` rows at a time, whose accumulators
  wait in memory from one panel to the next.

`subquant.kernels.cpu.blockwise_tile` has the K loop of a register tile, its initial accumulators
and the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize, constant_index
from ...emit.operation import index_type, value
from ...emit.vectors import (
    Vectors,
    load,
    load_element,
    loop,
    quotient,
    remainder,
    scratch,
    store,
    when,
)
from ...numerics.element_types import F32, I32
from ..epilogue.fused_epilogue import FusedEpilogue
from ..isa.base import InstructionSet
from ..pack.packed_weight import PackedWeight, Tiles
from .activation_layout import ActivationLayout, index_plus
from .amx_blockwise import AmxBlockwise
from .amx_blockwise_plan import AmxBlockwisePlan
from .amx_nest import AmxNest, AmxWorkgroup
from .amx_superblock import AmxSuperblock
from .amx_superblock_plan import AmxSuperblockPlan
from .blockwise_tile import (
    BlockwiseF32Tile,
    BlockwiseOperands,
    BlockwiseTile,
    FloatWeightTile,
    TileNumber,
)
from .weight_reader import UnpackedPanel, WeightReader, weight_bindings

_INT8_MACS_PER_MAC, _INT8_MACS_PER_F32_MAC = 2, 8
"""int8 MACs of `int8_conv` that take about as long as a MAC with int8, and with f32 activations."""
_MIN_ROW_GROUPS_PER_PANEL = 4
"""Groups of MR rows, at least, for which panels are unpacked (AVX2, 16 rows: 3 to 14 % faster)."""
_PANEL_ROWS = 64
"""Rows whose accumulators are in memory together while panels are unpacked."""


@dataclass(frozen=True)
class BlockwiseGemm:
    """Blockwise GEMM for CPUs.

    Args:
        m: M, of all batches; None where it is dynamic.
        mr: MR, the rows of a register tile.
        batches: the number of weights, whose tiles are consecutive; each is multiplied with
            ``M / batches`` rows.
        epilogue: the fused epilogue; only without batches.
        matrices: the number of packed weights, of which each batch reads one: the *choices*, a
            binding, have its number for each batch, which is clamped. None for a weight for each
            batch, in their order.
        activation_block: consecutive k whose int8 activations share a scale; None for those of a
            block of the weight.
    """

    weight: PackedWeight
    target: InstructionSet
    m: int | None
    mr: int
    tiles_per_workgroup: int
    has_f32_activations: bool = False
    batches: int = 1
    epilogue: FusedEpilogue | None = None
    matrices: int | None = None
    activation_block: int | None = None

    @property
    def tiles(self) -> Tiles:
        """The layout of the integers."""
        return self.weight.tiles

    @property
    def tiles_per_iteration(self) -> int:
        """The weight tiles that a register tile has; those of a GEMV if M is dynamic."""
        rows = 1 if self.m is None else self.m // self.batches
        if rows <= self.mr:
            return self.target.tiles_per_gemv(rows, self.tiles.vectors)
        return self.tiles_per_gemm

    @property
    def tiles_per_gemm(self) -> int:
        """The weight tiles that a register tile of MR rows has."""
        if self.has_f32_activations:
            return 1
        return self.target.tiles_per_gemm(self.mr, self.tiles.vectors, self.weight.max_integer)

    @property
    def workgroups_per_batch(self) -> int:
        """The number of workgroups of a weight."""
        return -(-self.tiles.count // self.tiles_per_workgroup)

    @property
    def amx_plan(self) -> AmxBlockwisePlan | AmxSuperblockPlan | None:
        """The plan with AMX tiles; None where there are none."""
        if self.has_f32_activations:
            return None
        m_per_batch = None if self.m is None else self.m // self.batches
        size = self.activation_block or self.tiles.block_size
        plan = AmxSuperblockPlan.of(self.weight, m_per_batch, size, self.target)
        return plan or AmxBlockwisePlan.of(self.weight, m_per_batch, self.target)

    @property
    def activation_layout(self) -> ActivationLayout:
        """The layout of int8 activations."""
        if self.amx_plan is not None:
            return self.amx_plan.activation_layout
        return ActivationLayout(self.tiles.k, self.tiles.block_size)

    def kernel(self) -> Kernel:
        """Build the kernel.

        Bindings: the weight; the choices, if `matrices` is not None; activations, f32 or those of
        `QuantizeRows` (int8 k-packs, and the words of each block); tables of the epilogue; the
        result.
        """
        tiles, layout = self.tiles, self.activation_layout
        activations = [layout.integers(I32), layout.block_words]
        if self.has_f32_activations:
            activations = [Binding((None, tiles.k), F32)]
        matrices = self.batches if self.matrices is None else self.matrices
        all_tiles = replace(tiles, n=matrices * tiles.count * tiles.nr)
        bindings = [
            *weight_bindings(replace(self.weight, tiles=all_tiles)),
            *([] if self.matrices is None else [Binding((self.batches,), I32)]),
            *activations,
            *([] if self.epilogue is None else self.epilogue.bindings(tiles.count * tiles.nr)),
            Binding((None, tiles.n), F32 if self.epilogue is None else self.epilogue.element),
        ]
        workgroups = self.batches * self.workgroups_per_batch
        macs = None
        if self.m is not None:
            cost = _INT8_MACS_PER_F32_MAC if self.has_f32_activations else _INT8_MACS_PER_MAC
            macs = cost * self.m * tiles.n * tiles.k
        return Kernel("blockwise_gemm", bindings, workgroups, self._body, self.m, macs=macs)

    def _body(self, memories: Sequence[Value], workgroup: Value, rows: DimSize) -> None:
        arguments = list(memories)
        weight = WeightReader.take(self.weight, arguments)
        choices = None if self.matrices is None else arguments.pop(0)
        activations, result = arguments[0], arguments[-1]
        blocks, tables = None, arguments[1:-1]
        if not self.has_f32_activations:
            blocks, *tables = tables
        layout = self.activation_layout
        operands = BlockwiseOperands(weight, layout, activations, blocks, tables, result)
        batch, share = workgroup, scalar(workgroup)
        if self.batches > 1:
            batch = quotient(share, self.workgroups_per_batch).value
            share = remainder(share, self.workgroups_per_batch)
            if isinstance(rows, int):
                rows = rows // self.batches
            else:
                rows = quotient(scalar(rows), self.batches).value
        elif self.matrices is not None:
            batch = constant_index(0)
        first = share * self.tiles_per_workgroup
        end = first + self.tiles_per_workgroup
        if self.tiles.count % self.tiles_per_workgroup:
            end = np.minimum(end, self.tiles.count)
        matrix = None
        if choices is not None:
            choice = load_element(choices, [batch])
            in_range = np.minimum(np.maximum(choice, 0), (self.matrices or 1) - 1)
            matrix = value("arith.index_cast", [in_range.value], index_type())
        _Workgroup(self, operands, batch, rows, first, end, matrix).emit()


@dataclass(frozen=True)
class _Workgroup:
    """The loop nest of a workgroup: weight tiles `first` to `end`, and M of the batch in `rows`.

    `matrix` is the number of a chosen weight; None for that of the batch.
    """

    gemm: BlockwiseGemm
    operands: BlockwiseOperands
    batch: Value
    rows: DimSize
    first: ArrayLike
    end: ArrayLike
    matrix: Value | None = None

    def emit(self) -> None:
        """Emit the loops over weight tiles and rows."""
        amx = self._amx()
        if amx is None:
            self._emit_without_tiles(_PanelLoop(self) if self._uses_panels else None)
            return

        def multiply(body: Callable[[TileNumber], None]) -> None:
            self._for_tiles(1, lambda tiles: body(self._tile_numbers(tiles)[0]))

        amx.emit(multiply)
        # Panels for both would not fit scratch memory.
        when(amx.needs_repetition(), lambda: self._emit_without_tiles(None))

    def _amx(self) -> AmxNest | None:
        """The loop nest with AMX; None where there is none."""
        gemm = self.gemm
        if gemm.amx_plan is None:
            return None
        first_row = scalar(self.global_rows(constant_index(0), 1)[0])
        workgroup = AmxWorkgroup(
            gemm.target, gemm.epilogue, self.operands, self.rows, first_row, gemm.batches
        )
        if isinstance(gemm.amx_plan, AmxSuperblockPlan):
            return AmxSuperblock(gemm.amx_plan, workgroup)
        return AmxBlockwise(gemm.amx_plan, workgroup)

    def _emit_without_tiles(self, panels: _PanelLoop | None) -> None:
        gemm, rows = self.gemm, self.rows
        if isinstance(rows, int) and rows <= gemm.mr:
            self._gemv(rows, constant_index(0))
            return
        self._for_tiles(gemm.tiles_per_gemm, lambda tiles: self._gemm(tiles, panels))
        if not isinstance(rows, int):
            loop(self._whole_rows, rows, 1, lambda row: self._gemv(1, row))

    def _gemv(self, count: int, row: Value) -> None:
        """Multiply MR rows or fewer with some tiles that are read side by side."""
        gemm, target = self.gemm, self.gemm.target
        is_float = gemm.weight.floats is not None
        distance = target.prefetch_bytes_float if is_float else target.prefetch_bytes_gemv

        def multiply(tiles: Sequence[Value]) -> None:
            # A register tile of all tiles has more chains of additions of f32, which take 4 cycles.
            groups = [tiles] if gemm.has_f32_activations else [[each] for each in tiles]
            self._multiply(count, row, groups, distance)

        self._for_tiles(target.tiles_per_gemv(count, gemm.tiles.vectors), multiply)

    def _gemm(self, tiles: Sequence[Value], panels: _PanelLoop | None) -> None:
        """Multiply all groups of MR rows with some tiles, and the rest if M is static."""
        rows, mr, first = self.rows, self.gemm.mr, 0
        whole = self._whole_rows
        distance = self.gemm.target.prefetch_bytes_gemm
        if panels is not None:
            first = panels.multiply(self._tile_numbers(tiles), whole)
        if not isinstance(rows, int) or first == 0:
            loop(first, whole, mr, lambda row: self._multiply(mr, row, [tiles], distance))
        if isinstance(rows, int) and whole < rows:
            self._multiply(rows - whole, constant_index(whole), [tiles], distance)

    @property
    def _whole_rows(self) -> DimSize:
        """The rows of whole groups of MR."""
        rows, mr = self.rows, self.gemm.mr
        if isinstance(rows, int):
            return rows - rows % mr
        return (scalar(rows) - remainder(scalar(rows), mr)).value

    @property
    def _uses_panels(self) -> bool:
        """True for many rows of int8 and a weight that has to be unpacked to a panel that fits."""
        gemm, weight, rows = self.gemm, self.gemm.weight, self.rows
        has_few_rows = isinstance(rows, int) and rows < _MIN_ROW_GROUPS_PER_PANEL * gemm.mr
        is_unpacked = weight.tiles.bits == 8 and weight.codebook is None
        if has_few_rows or is_unpacked or gemm.has_f32_activations:
            return False
        return UnpackedPanel.fits(weight, gemm.tiles_per_gemm)

    def _for_tiles(self, count: int, body: Callable[[Sequence[Value]], None]) -> None:
        """Emit a loop over the tiles, ``count`` at a time, and one over the rest."""
        gemm = self.gemm
        rest = self.end - remainder(self.end - self.first, count)
        loop(
            *(self.first.value, rest.value, count),
            lambda tile: body([index_plus(tile, number) for number in range(count)]),
        )
        if gemm.tiles.count % count or gemm.tiles_per_workgroup % count:
            loop(rest.value, self.end.value, 1, lambda tile: body([tile]))

    def _multiply(
        self, count: int, row: Value, groups: Sequence[Sequence[Value]], prefetch_bytes: int
    ) -> None:
        """Emit the K loop of register tiles, one for each group of weight tiles, and the stores."""
        gemm, rows = self.gemm, self.global_rows(row, count)
        tile_class = BlockwiseF32Tile if gemm.has_f32_activations else BlockwiseTile
        if gemm.weight.scale is None:
            tile_class = FloatWeightTile
        register_tiles = [
            tile_class(
                *(self.operands, gemm.target, gemm.epilogue),
                *(self._tile_numbers(tiles), rows, prefetch_bytes),
            )
            for tiles in groups
        ]
        size = len(register_tiles[0].positions)

        def accumulate(record: Value, *carried: ArrayLike) -> list[ArrayLike]:
            accumulators: list[ArrayLike] = []
            for index, each in enumerate(register_tiles):
                own = carried[index * size : (index + 1) * size]
                accumulators += each.accumulate(record, own)
            return accumulators

        initial = [Vectors(gemm.tiles.lanes).known(0.0, F32)] * (size * len(register_tiles))
        accumulators = loop(0, gemm.weight.records, 1, accumulate, initial)
        for index, each in enumerate(register_tiles):
            each.store(accumulators[index * size : (index + 1) * size])

    def _tile_numbers(self, tiles: Sequence[Value]) -> list[TileNumber]:
        """Weight tiles by their numbers among those of all batches, and of this one."""
        if self.gemm.batches == 1 and self.matrix is None:
            return [(tile, tile) for tile in tiles]
        matrix = scalar(self.batch if self.matrix is None else self.matrix)
        first = [matrix * self.gemm.tiles.count + scalar(tile) for tile in tiles]
        return [(all_.value, tile) for all_, tile in zip(first, tiles, strict=True)]

    def global_rows(self, row: Value, count: int) -> list[Value]:
        """The numbers of ``count`` rows of the batch among those of all batches."""
        if self.gemm.batches > 1:
            rows = self.rows if isinstance(self.rows, int) else scalar(self.rows)
            row = (scalar(self.batch) * rows + scalar(row)).value
        return [index_plus(row, number) for number in range(count)]


class _PanelLoop:
    """The loop nest of many rows: for `_PANEL_ROWS` rows, panels of K; for a panel, MR rows.

    It is constructed at the beginning of a kernel, where it allocates a panel and accumulators.
    """

    def __init__(self, workgroup: _Workgroup) -> None:
        gemm = workgroup.gemm
        tiles = gemm.tiles_per_gemm
        self._workgroup, self._gemm, self._operands = workgroup, gemm, workgroup.operands
        layout = UnpackedPanel.layout_of(gemm.weight, tiles)
        self._panel = UnpackedPanel(gemm.weight, layout, gemm.target)
        self._accumulators = scratch([_PANEL_ROWS, tiles * gemm.tiles.nr], F32)

    def multiply(self, tiles: Sequence[TileNumber], rows: DimSize) -> DimSize:
        """Compute and store `rows` rows, a multiple of MR; return how many: all of them, or 0."""
        end = rows
        if not isinstance(rows, int):
            has_many = scalar(rows) >= _MIN_ROW_GROUPS_PER_PANEL * self._gemm.mr
            chosen: ArrayLike = np.where(has_many, scalar(rows), scalar(constant_index(0)))
            end = chosen.value
        loop(0, end, _PANEL_ROWS, lambda first: self._multiply_rows(tiles, first, end))
        return end

    def _multiply_rows(self, tiles: Sequence[TileNumber], first: Value, end: DimSize) -> None:
        gemm, panel, mr = self._gemm, self._panel, self._gemm.mr
        lanes, records = gemm.tiles.lanes, gemm.weight.records
        vectors = range(len(tiles) * gemm.tiles.vectors)
        last = scalar(first) + _PANEL_ROWS
        if not isinstance(end, int) or end % _PANEL_ROWS:
            last = np.minimum(last, end if isinstance(end, int) else scalar(end))

        def positions(row: Value) -> list[tuple[Value, Value]]:
            """The indices of the accumulators of MR rows."""
            own = scalar(row) - scalar(first)
            columns = [constant_index(vector * lanes) for vector in vectors]
            return [((own + offset).value, column) for offset in range(mr) for column in columns]

        def spill(row: Value, accumulators: Sequence[ArrayLike]) -> None:
            for position, accumulator in zip(positions(row), accumulators, strict=True):
                store(accumulator, self._accumulators, position)

        def reload(row: Value) -> list[ArrayLike]:
            return [load(self._accumulators, each, lanes, F32) for each in positions(row)]

        def register_tile(
            row: Value, operands: BlockwiseOperands, numbers: Sequence[TileNumber]
        ) -> BlockwiseTile:
            rows = self._workgroup.global_rows(row, mr)
            return BlockwiseTile(operands, gemm.target, gemm.epilogue, numbers, rows, 0)

        def add_panel(record: Value) -> None:
            start, stop = scalar(record), scalar(record) + panel.records
            if records % panel.records:
                stop = np.minimum(stop, records)
            reader = panel.unpack(self._operands.weight, [tile for tile, _ in tiles], start, stop)
            operands = replace(self._operands, weight=reader)
            own = [(constant_index(index), tile) for index, (_, tile) in enumerate(tiles)]

            def add(row: Value) -> None:
                tile = register_tile(row, operands, own)
                bounds = panel.first_record(start).value, panel.first_record(stop).value

                def accumulate(own_record: Value, *carried: ArrayLike) -> list[ArrayLike]:
                    return tile.accumulate(own_record, carried)

                spill(row, loop(*bounds, 1, accumulate, reload(row)))

            loop(first, last.value, mr, add)

        def clear(row: Value) -> None:
            spill(row, [Vectors(lanes).known(0.0, F32)] * (mr * len(vectors)))

        def write(row: Value) -> None:
            register_tile(row, self._operands, tiles).store(reload(row))

        loop(first, last.value, mr, clear)
        loop(0, records, panel.records, add_panel)
        loop(first, last.value, mr, write)
