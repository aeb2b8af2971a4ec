"""How weights lie in memory for a kernel: in tiles, in the order in which they are read.

A tile has ``columns`` columns of the weight, a lane of a vector for each, and all that is summed
over, block after block. In a *step* of some of these integers, a *group* of four (or of what an
instruction multiplies in a lane) is a word of each lane, and the integers of groups at a distance
share bytes: of a plane of ``bits``, field ``f`` of vector ``v`` is that of group ``f * vectors +
v``::

    bytes[tile, step, v, part, lane, i] = sum_f integer[column, k] << (bits * f)
    column = tile * columns + part * lanes + lane
    k = step * length + (f * vectors + v) * group + i

Each vector of a second plane, which has the higher bits and fewer vectors, follows that of the
first with its number. So vectors lie in the order in which a product reads them first, group after
group: memory is read up to a third faster than where parts or planes are apart (Zen 4; integers of
8 and 5 bits). Scales, zero points and offsets lie as ``[tile, block, part, lane]``, or between the
steps of their tile (`subquant.kernels.pack.packed_weight`). Columns after the last have zeros.

The functions take NumPy's arrays and values of programs alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ...numerics.element_types import AnyArray
from ...numerics.packed_integers import PLANE_BITS

__all__ = ["Piece", "Tiles"]


class Piece(NamedTuple):
    """What a plane has of the integers of a group.

    Attributes:
        plane: its number.
        vector: the number of the vector that they are in, among those of the plane.
        bits: of each.
        stored: the number of the first of these bits in its byte.
        low: the number of the first of these bits in its integer.
    """

    plane: int
    vector: Any
    bits: int
    stored: Any
    low: int


_Place = TypeVar("_Place", int, Any)


@dataclass(frozen=True)
class Tiles:
    """The layout of a weight.

    Args:
        bits: of an integer, 2 to 6 or 8.
        block: how many integers share a scale; 4 times a power of two.
        columns: how many columns the weight has.
        depth: how many integers a column has, a multiple of `block`.
        lanes: columns in a vector.
        parts: vectors of columns in a tile.
        group: integers of a column that are side by side.

    Attributes:
        VERSION: another one for each change of the layout, of which archives have weights.
    """

    VERSION: ClassVar[int] = 3

    bits: int
    block: int
    columns: int
    depth: int
    lanes: int
    parts: int
    group: int = 4

    def __str__(self) -> str:
        """What people read: the lanes, the vectors and the group, and the bits and the block."""
        return f"{self.lanes}x{self.parts}x{self.group}-u{self.bits}-{self.block}"

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """The bits of an integer in each plane."""
        return PLANE_BITS.get(self.bits, (8,))

    @property
    def step(self) -> int:
        """How many integers of a column fill whole vectors: those of a block, or 32 of them."""
        least = 8 * self.group // min(self.plane_bits)
        return max(least, min(self.block, 32))

    @property
    def steps(self) -> int:
        """How many steps a column has."""
        return self.depth // self.step

    @property
    def vectors(self) -> list[int]:
        """How many vectors a step has in each plane."""
        return [self.step // self.group * bits // 8 for bits in self.plane_bits]

    @property
    def width(self) -> int:
        """How many columns a tile has."""
        return self.lanes * self.parts

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return -(-self.columns // self.width)

    @property
    def step_bytes(self) -> int:
        """Bytes of a step of a tile."""
        return self.parts * sum(self.vectors) * self.lanes * self.group

    def place(self, plane: int, vector: _Place) -> _Place:
        """The number of a vector in a step.

        Args:
            plane: that it is of.
            vector: its number among those of its plane, times `parts`, and its part.
        """
        if plane:
            return 2 * vector + 1
        between = self.parts * sum(self.vectors[1:])
        if isinstance(vector, int):
            return vector + min(vector, between)
        return vector + np.minimum(vector, between) if between else vector

    def pieces(
        self,
        number: _Place,
        field: int = 0,
        divided: Callable[[_Place, int], tuple[_Place, _Place]] = divmod,
    ) -> list[Piece]:
        """What planes have of the integers of a group of a step.

        Args:
            number: of the group, or of its vector in the first plane.
            field: of that vector, which the group is.
            divided: the quotient and the remainder of a number.
        """
        found, low, vectors = [], 0, self.vectors
        for plane, (bits, count) in enumerate(zip(self.plane_bits, vectors, strict=True)):
            more, vector = divided(number, count)
            own = more + field * (vectors[0] // count)
            found.append(Piece(plane, vector, bits, own * bits, low))
            low += bits
        return found

    def accepts(self) -> bool:
        """True if steps and blocks are of such lengths that one is whole in the other."""
        fits = self.step % self.block == 0 or self.block % self.step == 0
        return (
            self.block % self.group == 0
            and fits
            and self.depth % math.lcm(self.step, self.block) == 0
        )

    def pack(self, integers: AnyArray) -> AnyArray:
        """Lay out integers.

        Args:
            integers: uint8, ``columns x depth``, less than ``2**bits``.

        Returns:
            uint8, ``count x steps x step_bytes``.
        """
        padded = _padded(integers, self.count * self.width)
        low, planes = 0, []
        for bits, vectors in zip(self.plane_bits, self.vectors, strict=True):
            fields = 8 // bits
            shape = (self.count, self.parts, self.lanes, self.steps, fields, vectors, self.group)
            part = padded if len(self.plane_bits) == 1 else (padded >> low) & (2**bits - 1)
            apart = part.reshape(shape).transpose((0, 3, 5, 1, 2, 6, 4))
            joined = apart[..., 0]
            for field in range(1, fields):
                joined = joined | (apart[..., field] << (bits * field))
            size = self.lanes * self.group
            planes.append(joined.reshape((self.count, self.steps, vectors * self.parts, size)))
            low += bits
        whole = planes[0]
        if len(planes) == 2:
            both = planes[1].shape[2]
            pairs = np.stack([planes[0][:, :, :both], planes[1]], axis=3)
            pairs = pairs.reshape((self.count, self.steps, 2 * both, -1))
            whole = np.concatenate([pairs, planes[0][:, :, both:]], axis=2)
        return whole.reshape((self.count, self.steps, self.step_bytes))

    def pack_parameters(self, parameters: AnyArray, blocks: int = 1) -> AnyArray:
        """Lay out what each block has, or every so many blocks.

        Args:
            parameters: ``columns x depth / (block * blocks)``.
            blocks: how many share one.

        Returns:
            ``count x depth / (block * blocks) x parts * lanes``.
        """
        padded = _padded(parameters, self.count * self.width)
        count = self.depth // self.block // blocks
        of_tiles = padded.reshape((self.count, self.width, count))
        return of_tiles.transpose((0, 2, 1))


def _padded(rows: AnyArray, count: int) -> AnyArray:
    missing = count - rows.shape[0]
    return rows if not missing else np.pad(rows, ((0, missing), (0, 0)))
