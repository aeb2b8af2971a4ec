"""Products of 8-bit integers with rows that are counted at run time, as calls of a kernel.

A workgroup has a tile of the weight, and goes through the rows, several at once, then through those
that are left, one by one::

    result[m, n] = first[n] + sum_k factor(x[m, k]) * weight[n, k]

with factors of activations as `Instructions.factors` says, and what their excess adds taken from
``first``. Sums are of i32, and wrap as those of IREE's loops do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import Formula, linalg, scalar, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.linalg import Extent
from ...emit.operation import mlir_type, tensor_type
from ...emit.vectors import load, load_element, loop, quotient
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, AnyArray
from ..constant_values import is_invariant
from ..cpu.n_tail import store_columns
from ..isa.instructions import INSTRUCTIONS, Instructions
from ..kernel_table import Binding, Kernel, KernelTable
from ..pack.tiles import Tiles
from .match_failure import IS_SMALL, NOT_INT8, MatchFailure
from .operands import LEAST_PRODUCTS, array_of, has_elements, laid_out, matrix_axes

__all__ = ["DynamicGemm", "RowContraction"]

_WRITTEN_OUT = 8
"""Groups that are written out at most."""


@dataclass(frozen=True)
class RowContraction:
    """A product of matrices of i8 with a number of rows that is not known.

    Attributes:
        activations, weight: i8.
        of_activations, of_weight: the order of axes that makes them ``rows x depth`` and ``columns
            x depth``.
    """

    activations: Value
    weight: Value
    of_activations: list[int]
    of_weight: list[int]

    @staticmethod
    def has_dynamic_rows(op: Operation) -> bool:
        """True for products whose left operand has a dynamic shape."""
        type_ = op.operands[0].type
        is_ranked = isinstance(type_, ir.RankedTensorType)
        return op.name == "stablehlo.dot_general" and is_ranked and not type_.has_static_shape

    @classmethod
    def of(cls, op: Operation) -> RowContraction | MatchFailure:
        """Read a ``stablehlo.dot_general``."""
        if not has_elements(op, "i8", "i8", "i32"):
            return NOT_INT8
        found = cls.of_shape(op)
        if not isinstance(found, MatchFailure) and not is_invariant(found.weight):
            return MatchFailure("its weight is not known, and its rows may be few")
        return found

    @classmethod
    def of_shape(cls, op: Operation) -> RowContraction | MatchFailure:
        """Read a contraction whose operands may become i8."""
        activations, weight = op.operands[:2]
        if not isinstance(weight.type, ir.RankedTensorType) or not weight.type.has_static_shape:
            return MatchFailure("its weight has a dynamic shape")
        axes = matrix_axes(op)
        if isinstance(axes, MatchFailure):
            return axes
        if activations.type.is_dynamic_dim(axes[0][1]):
            return MatchFailure("it sums over a dynamic dimension")
        # Of each row: how many there are is not known.
        if int(np.prod(weight.type.shape)) < LEAST_PRODUCTS:
            return IS_SMALL
        return cls(activations, weight, *axes)

    def emit(self, library: KernelTable, result: ir.Type, instructions: str) -> Value:
        """Write the call, and return its result.

        Args:
            library: the kernels of the module.
            result: the type of the sums.
            instructions: a name in `INSTRUCTIONS`.
        """
        target = INSTRUCTIONS[instructions]
        columns, depth = (int(self.weight.type.shape[axis]) for axis in self.of_weight)
        missing = -depth % target.taps
        parts = target.parts(columns, target.most_columns)
        tiles = Tiles(8, target.taps, columns, depth + missing, target.lanes, parts, target.taps)
        width = tiles.count * tiles.width
        how = (tiles, self.of_weight, target.excess)

        def rows() -> AnyArray:
            weight = array_of(self.weight).transpose(self.of_weight)
            return np.pad(weight, [(0, 0), (0, missing)]) if missing else weight

        def first() -> AnyArray:
            sums = convert(rows(), I32).sum(1, dtype=np.int32) * np.int32(-target.excess)
            if width != columns:
                sums = np.pad(sums, [(0, width - columns)])
            return sums.reshape((tiles.count, tiles.width))

        given = target.factors(tensor(self.activations)).value
        given = emit_stablehlo.transpose(given, self.of_activations)
        if missing:
            given = emit_stablehlo.pad(given, [0, 0], [0, missing])
        product = DynamicGemm(tiles, instructions)
        operands = [
            laid_out(library, [self.weight], str(tiles), how, lambda: tiles.pack(rows()), I8),
            laid_out(library, [self.weight], str(tiles), (*how, "first"), first, I32),
            given,
        ]
        type_ = tensor_type([None, columns], mlir_type(I32))
        [sums] = library.call(product, product.kernel(), operands, [type_], linalg.dim(given, 0))
        return linalg.cast(sums, result)


@dataclass(frozen=True)
class DynamicGemm:
    """What is computed, and with what.

    Args:
        tiles: how the weight lies in memory.
        instructions: a name in `INSTRUCTIONS`.
    """

    tiles: Tiles
    instructions: str

    @property
    def target(self) -> Instructions:
        """What is multiplied with."""
        return INSTRUCTIONS[self.instructions]

    def kernel(self) -> Kernel:
        """The kernel.

        Its bindings are the weight, what sums begin with, factors of activations, and the result.
        """
        tiles = self.tiles
        bindings = [
            Binding((tiles.count, tiles.steps, tiles.step_bytes), I8),
            Binding((tiles.count, tiles.width), I32),
            Binding((None, tiles.steps), I32),
            Binding((None, tiles.columns), I32),
        ]
        return Kernel("row_product", bindings, tiles.count, self._body, None)

    def _body(self, memories: Sequence[Value], tile: Value, rows: Extent) -> None:
        at_once = self.target.windows_at_once(self.tiles.parts)
        whole = (quotient(scalar(rows), at_once) * at_once).value
        loop(0, whole, at_once, lambda row: self._write(memories, tile, row, at_once))
        loop(whole, rows, 1, lambda row: self._write(memories, tile, row, 1))

    def _write(self, memories: Sequence[Value], tile: Value, row: Value, count: int) -> None:
        """Compute and write some rows of a tile."""
        weight, first, activations, result = memories
        tiles, target = self.tiles, self.target
        parts, lanes, length = tiles.parts, tiles.lanes, tiles.lanes * target.taps
        numbers = [(scalar(row) + number).value if number else row for number in range(count)]
        begin = [load(first, [tile, part * lanes], lanes, I32) for part in range(parts)]
        step = next(n for n in range(_WRITTEN_OUT, 0, -1) if tiles.steps % n == 0)

        def add(position: Value, *so_far: Formula) -> list[Formula]:
            sums = list(so_far)
            for offset in range(step):
                group = (scalar(position) + offset).value if offset else position
                stored = [
                    convert(load(weight, [tile, group, part * length], length, I8), target.factor)
                    for part in range(parts)
                ]
                for index, number in enumerate(numbers):
                    element = load_element(activations, [number, group])
                    factors = target.spread(element, target.factor)
                    for part, column in enumerate(stored):
                        place = index * parts + part
                        sums[place] = target.add_factors(sums[place], factors, column)
            return sums

        sums = loop(0, tiles.steps, step, add, begin * count)
        for index, total in enumerate(sums):
            number, part = divmod(index, parts)
            column = scalar(tile) * tiles.width + part * lanes
            store_columns(total, result, [numbers[number]], tiles.columns, column, tiles.width)
