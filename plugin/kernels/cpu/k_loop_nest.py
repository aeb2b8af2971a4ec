"""Loop nest over K of a register tile of a convolution: taps, and the k-packs of a pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.linalg import constant_index
from ...emit.vectors import loop, quotient

MAX_UNROLL = 8
"""k-packs that are unrolled in a loop over K, at most; more make the code larger."""

Slot: TypeAlias = Callable[[ArrayLike, int], None]
"""A function that emits other work between multiplications: of a slot's number, and their count."""


class KStep(Protocol):
    """A register tile, which adds the products of one k-pack at a time."""

    @property
    def is_backwards(self) -> ArrayLike | None:
        """True where the loops go through K backwards; None if they never do."""
        ...

    def add_k_pack(
        self, number: ArrayLike, position: ArrayLike, accumulators: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """Add the products of a k-pack of the weight with the activations at a position."""
        ...


@dataclass(frozen=True)
class KLoopNest:
    """The loops over taps and k-packs, in the order in which the weight is packed.

    Args:
        tile: the register tile.
        loops: of each loop, from the outermost, the count of iterations, and their distance in the
            activations in k-packs.
        rows: the iterations of the outermost loop, fewer than its count if padding is skipped.
        unroll: k-packs that are unrolled, at most.
        total: the k-packs of all iterations.
        slot: emits other work after the unrolled k-packs; None for none.
    """

    tile: KStep
    loops: Sequence[tuple[int, int]]
    rows: ArrayLike
    unroll: int
    total: int
    slot: Slot | None

    def emit(
        self,
        level: int,
        done: ArrayLike,
        number: ArrayLike,
        position: ArrayLike,
        accumulators: Sequence[ArrayLike],
    ) -> Sequence[ArrayLike]:
        """Emit the loops from a level on, after `done` k-packs.

        `number` and `position` are the first k-pack in the weight and in the activations.
        """
        (count, distance), *inner = self.loops[level:]
        inner_k_packs = math.prod(each for each, _ in inner)
        if count * inner_k_packs <= self.unroll:
            k_packs = []
            indices = np.ndindex(*(each for each, _ in self.loops[level:]))
            for offset, index in enumerate(indices):
                distances = zip(index, self.loops[level:], strict=True)
                k_packs.append((number + offset, position + sum(i * d for i, (_, d) in distances)))
            return self._unrolled(done, k_packs, accumulators)
        step = 1
        if not inner:
            step = next(n for n in range(self.unroll, 0, -1) if count % n == 0)

        def body(iteration: Value, *carried: ArrayLike) -> Sequence[ArrayLike]:
            index = order = scalar(iteration)
            if self.tile.is_backwards is not None:
                size = scalar(constant_index(count)) if level else self.rows
                index = np.where(self.tile.is_backwards, size - step - order, order)
            if inner:
                return self.emit(
                    level + 1,
                    done + order * inner_k_packs,
                    number + index * inner_k_packs,
                    position + index * distance,
                    carried,
                )
            k_packs = [(number + index + n, position + index + n) for n in range(step)]
            return self._unrolled(done + order, k_packs, carried)

        return loop(0, count if level else self.rows.value, step, body, accumulators)

    def _unrolled(
        self,
        done: ArrayLike,
        k_packs: Sequence[tuple[ArrayLike, ArrayLike]],
        initial: Sequence[ArrayLike],
    ) -> list[ArrayLike]:
        accumulators = list(initial)
        for number, position in k_packs:
            accumulators = self.tile.add_k_pack(number, position, accumulators)
        if self.slot is not None:
            size = len(k_packs)
            self.slot(quotient(done, size), self.total // size)
        return accumulators
