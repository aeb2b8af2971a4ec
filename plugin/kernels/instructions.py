"""Dot products of small integers, by what a CPU has for them.

A *group* is four integers of a row of activations (int8, from -127 to 127), side by side in one
word, and four integers of each of several columns of the weight (uint8), a column in each lane of a
vector of ``lanes * 4`` bytes. What is added to the sum of each lane is

    sum_i weight[lane, i] * activation[i]

in 32 bits, exactly: each class says how with the instructions of its target, and why nothing
saturates. All give the same sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from ..emit import Formula
from ..emit.vectors import Vectors, broadcast, fence, intrinsic, reread
from ..numerics.array_functions import convert
from ..numerics.element_types import I8, I16, I32, U16, U32, ElementType

__all__ = ["INSTRUCTIONS", "Instructions", "Sum", "instructions_of"]

_GREATEST_ACTIVATION = 127
_I16_MAX = 2**15 - 1


@dataclass(frozen=True)
class Sum:
    """A sum that is being computed, in each lane.

    Attributes:
        words: i32.
        halves: two i16 a lane that are to be added to it, or None.
        room: how many groups may still be added to `halves`.
    """

    words: Formula
    halves: Formula | None = None
    room: int = 0


class Instructions(ABC):
    """What a target multiplies integers with.

    Attributes:
        name: as options of passes spell it.
        features: that a target must have, by LLVM's names.
        lanes: how many columns a vector has.
        at_once: how many rows are computed together.
        most_parts: how many vectors of columns are.
        register: the constraint of inline assembly for one of them; "" where that is not known.
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[int]
    at_once: ClassVar[int] = 4
    most_parts: ClassVar[int] = 1
    register: ClassVar[str] = ""

    def parts(self, columns: int) -> int:
        """How many vectors of columns are computed together, of so many columns."""
        return min(self.most_parts, -(-columns // self.lanes))

    def zero(self) -> Sum:
        """A sum of nothing."""
        return Sum(Vectors(self.lanes).known(0, I32))

    @abstractmethod
    def add(self, total: Sum, weight: Formula, group: Formula, greatest: int) -> Sum:
        """Add the products of a group.

        Args:
            total: what they are added to.
            weight: u8, ``lanes * 4`` of them.
            group: four activations in an i32.
            greatest: of the weight's integers.
        """

    def words(self, total: Sum) -> Formula:
        """The sum as i32."""
        return total.words

    def held(self, total: Sum) -> Sum:
        """The sum, as computed before this place: LLVM's scheduler moves nothing of it behind."""
        if not self.register:
            return total
        if total.halves is not None:
            return replace(total, halves=fence(total.halves, self.register))
        return replace(total, words=fence(total.words, self.register))

    def spread(self, group: Formula, element: ElementType) -> Formula:
        """A group in each lane, read as elements of a type."""
        return reread(broadcast(group, self.lanes), element)


class _DotProduct(Instructions):
    """``vpdpbusd``: four products are added to 32 bits, with no step between that saturates."""

    intrinsic: ClassVar[str]

    def add(self, total: Sum, weight: Formula, group: Formula, greatest: int) -> Sum:
        """One instruction, which reads its group from memory where that is used once."""
        operands = [total.words, weight, self.spread(group, I8)]
        return Sum(intrinsic(self.intrinsic, operands, I32, self.lanes))


class Avx512Vnni(_DotProduct):
    """AVX512-VNNI: 16 columns."""

    name = "avx512vnni"
    features = frozenset(("avx512f", "avx512bw", "avx512vnni"))
    lanes, at_once, most_parts = 16, 6, 2
    intrinsic = "llvm.x86.avx512.vpdpbusd.512"


class AvxVnni(_DotProduct):
    """AVX-VNNI: 8 columns."""

    name = "avxvnni"
    features = frozenset(("avx2", "avxvnni"))
    lanes, at_once = 8, 5
    intrinsic = "llvm.x86.avx512.vpdpbusd.256"


class Avx2(Instructions):
    """AVX2: 8 columns.

    ``vpmaddubsw`` adds two products in 16 bits. They are at most ``2 * greatest * 127``, so that
    ``32767 // (2 * greatest * 127)`` groups are added in 16 bits before ``vpmaddwd`` widens them: 8
    of 4-bit integers (8 * 2 * 15 * 127 = 30,480), 4 of 5 bits, 2 of 6 bits. Of 8-bit integers two
    products do not fit (2 * 255 * 127 = 64,770): these are multiplied in 16 bits by ``vpmaddwd``,
    those at even places and those at odd places apart.

    LLVM's scheduler would move all that is unpacked to the front of a step, and spill it: sums are
    held after every other group, which takes a fifth of the time (128 rows, Zen 3).
    """

    name = "avx2"
    features = frozenset(("avx2",))
    lanes, register = 8, "x"

    def add(self, total: Sum, weight: Formula, group: Formula, greatest: int) -> Sum:
        """Two instructions, or four for integers of 8 bits, and what makes room."""
        room = _I16_MAX // (2 * greatest * _GREATEST_ACTIVATION)
        if not room:
            return self._add_wide(total, weight, group)
        if total.halves is not None and not total.room:
            total = Sum(self.words(total))
        operands = [weight, self.spread(group, I8)]
        products = intrinsic("llvm.x86.avx2.pmadd.ub.sw", operands, I16, 2 * self.lanes)
        if total.halves is None:
            return Sum(total.words, products, room - 1)
        return Sum(total.words, total.halves + products, total.room - 1)

    def _add_wide(self, total: Sum, weight: Formula, group: Formula) -> Sum:
        pairs, integers = self.spread(group, I16), reread(weight, U16)
        words = total.words
        even = ((pairs << 8) >> 8, convert(integers & 255, I16))
        odd = (pairs >> 8, convert(integers >> 8, I16))
        for given, stored in (even, odd):
            words = words + self._pairs(stored, given)
        return Sum(words)

    def words(self, total: Sum) -> Formula:
        """The sum as i32; halves are added in pairs."""
        if total.halves is None:
            return total.words
        ones = total.halves.form.known(1, I16)
        return total.words + self._pairs(total.halves, ones)

    def _pairs(self, left: Formula, right: Formula) -> Formula:
        return intrinsic("llvm.x86.avx2.pmadd.wd", [left, right], I32, self.lanes)


class NeonDotProduct(Instructions):
    """AArch64's ``sdot``, of signed bytes: four columns.

    An integer ``w`` of 8 bits is ``(w - 128) + 128``: the sum of the group times 128 is that of two
    more dot products.
    """

    name = "neon-dotprod"
    features = frozenset(("neon", "dotprod"))
    lanes = 4

    def add(self, total: Sum, weight: Formula, group: Formula, greatest: int) -> Sum:
        """One instruction, or three for integers of 8 bits."""
        given, words = self.spread(group, I8), total.words
        stored = convert(weight, I8)
        if greatest > _GREATEST_ACTIVATION:
            half = given.form.known(64, I8)
            words = self._dot(self._dot(words, half, given), half, given)
            stored = stored ^ -128
        return Sum(self._dot(words, stored, given))

    def _dot(self, words: Formula, left: Formula, right: Formula) -> Formula:
        return intrinsic(
            "llvm.aarch64.neon.sdot.v4i32.v16i8", [words, left, right], I32, self.lanes
        )


class Portable(Instructions):
    """Any target: multiplications of 32 bits, of a byte of each lane's word at a time."""

    name = "portable"
    lanes = 8

    def add(self, total: Sum, weight: Formula, group: Formula, greatest: int) -> Sum:
        """Four multiplications and additions."""
        words = total.words
        integers = reread(weight, U32)
        given = broadcast(group, self.lanes)
        for place in range(4):
            stored = convert((integers >> (8 * place)) & 255, I32)
            words = words + stored * ((given << (24 - 8 * place)) >> 24)
        return Sum(words)


INSTRUCTIONS: dict[str, Instructions] = {
    each.name: each for each in (Avx512Vnni(), AvxVnni(), Avx2(), NeonDotProduct(), Portable())
}
"""By name, the fastest first."""


def instructions_of(features: Collection[str]) -> Instructions:
    """The fastest instructions that a target with some features has."""
    return next(each for each in INSTRUCTIONS.values() if each.features <= set(features))
