"""Accumulators of an AMX kernel without AMX, where Linux refuses the tiles to the process."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.vectors import Vectors, bitcast, element_at, load, loop, store
from ...numerics.element_types import I8, I32, U8
from ..isa.base import Accumulator
from .amx_plan import AmxPlan

_K_PACK = 4


class AmxFallback:
    """Computes the accumulators of a unit in memory, one output pixel after the other.

    An activation is ``(x + 128) - 128``: two u8 x s8 dot products, of ``x + 128`` and of 128, are
    subtracted.

    Args:
        plan: the kernel.
        weight, activations: its memrefs.
        accumulators: the memref that is written.
    """

    def __init__(
        self, plan: AmxPlan, weight: Value, activations: Value, accumulators: Value
    ) -> None:
        self._plan, self._weight, self._activations = plan, weight, activations
        self._accumulators = accumulators

    def emit(self, tile: ArrayLike, starts: Sequence[ArrayLike], buffer: ArrayLike) -> None:
        """Emit the loops of a unit.

        Args:
            tile: the number of the weight tile.
            starts: of each activation tile, the index of the first byte that it reads.
            buffer: the first pixel in `accumulators`.
        """
        plan, target = self._plan, self._plan.target
        tiles, stride = plan.tiles, plan.geometry.column_stride * plan.channels
        lanes, k_packs = tiles.lanes, plan.runs.piece // _K_PACK
        half = Vectors(_K_PACK * lanes).known(128, U8)
        zero, columns = Vectors(lanes).known(0, I32), range(0, tiles.nr, lanes)

        def clear(pixel: Value) -> None:
            for column in columns:
                store(zero, self._accumulators, [(buffer + scalar(pixel)).value, column])

        def add_piece(number: ArrayLike, offset: ArrayLike) -> None:
            def add_pixel(index: int, start: ArrayLike, pixel: Value) -> None:
                first = start + offset + scalar(pixel) * stride
                row = (buffer + scalar(pixel) + index * plan.pixels_per_tile).value
                memory = [[row, column] for column in columns]
                initial = [load(self._accumulators, each, lanes, I32) for each in memory]

                def add_k_pack(k_pack: Value, *carried: ArrayLike) -> list[ArrayLike]:
                    position = (first + scalar(k_pack) * _K_PACK).value
                    word = element_at(bitcast(load(self._activations, [position], 4, I8), I32), 0)
                    unsigned = target.broadcast_k_pack(word, U8) ^ 128
                    step, results = (number * k_packs + scalar(k_pack)).value, []
                    for accumulator, column in zip(carried, columns, strict=True):
                        index = [tile.value, step, column * _K_PACK]
                        signed = load(self._weight, index, lanes * _K_PACK, I8)
                        biased = target.add_dot(Accumulator(accumulator), unsigned, signed, 255)
                        bias = target.add_dot(Accumulator(zero), half, signed, 255)
                        results.append(target.i32_of(biased) - target.i32_of(bias))
                    return results

                for accumulator, each in zip(
                    loop(0, k_packs, 1, add_k_pack, initial), memory, strict=True
                ):
                    store(accumulator, self._accumulators, each)

            for index, start in enumerate(starts):
                loop(0, plan.pixels_per_tile, 1, functools.partial(add_pixel, index, start))

        loop(0, plan.tiles_per_unit * plan.pixels_per_tile, 1, clear)
        plan.for_pieces(add_piece)
