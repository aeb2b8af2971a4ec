"""Dot products of small integers, by what a CPU has for them.

A *group* is four integers of a row of activations, side by side in one word, and four integers of
each of several columns of a weight, a column in each lane of a vector of ``lanes * 4`` bytes. Of
the two sides one is signed and one is unsigned. What is added to the sum of each lane is

    sum_i weight[lane, i] * activation[i]

in 32 bits, exactly: each class says how with the instructions of its target, and why nothing
saturates. All give the same sums.

Where both sides are signed bytes that are there at once, as positions of a convolution whose
channels are kept apart, a lane has as many of them as an instruction multiplies (`taps`), widened
to a *factor* before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ...emit import Formula
from ...emit.values import Scalars
from ...emit.vectors import (
    bitcast,
    broadcast,
    constant_vector,
    fma,
    intrinsic,
    scheduling_barrier,
    shuffle_lanes,
    slice_lanes,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I8, I16, I32, U8, U16, U32, ElementType

__all__ = ["INSTRUCTIONS", "Instructions", "Sum", "instructions_of", "names_of", "nearest"]

_GREATEST_SIGNED = 128
_COST_OF_A_TILE = 0.5
"""What reading activations for a tile costs, in vectors of columns."""
_SHIFT = np.float32(1.5 * 2**23)
"""Sums with it have no fraction, of what is less than 2**22."""
_LEAST_WITHOUT_FRACTION, _LEAST_WITHOUT_INTEGER = 2.0**21, 2.0**30
_MAGNITUDE, _AS_IT_IS = 0b1011, 4
"""Of ``vrangeps``: the greater magnitude, without its sign; of AVX-512: the rounding mode."""
_AMD = "-amd"
_REGISTERS = 16
"""Of AVX2."""
_I8_MAX, _I16_MAX, _HALF_BYTE = 2**7 - 1, 2**15 - 1, 15


@dataclass(frozen=True)
class Sum:
    """A sum that is being computed, in each lane.

    Attributes:
        words: i32.
        halves: two i16 a lane that are to be added to it; of each place of 4 bits, the lowest
            first, if there are several.
        room: how many groups may still be added to `halves`.
    """

    words: Formula
    halves: tuple[Formula, ...] = ()
    room: int = 0


def nearest(reals: Formula) -> tuple[Formula, Formula]:
    """The nearest integers of floats of less than 2**22, ties to even: of i32, and as floats.

    Rounded to the unit in the last place of a sum, whose lowest bits are the integer. (IREE writes
    ``math.roundeven`` with 30 operations.)
    """
    shifted = reals + _SHIFT
    return bits_of(shifted, I32) - int(_SHIFT.view(np.int32)), shifted - _SHIFT


class Instructions(ABC):
    """What a target multiplies integers with.

    Attributes:
        name: as options of passes spell it.
        features: that a target must have, by LLVM's names.
        told_by: features of the processors that it is for. It has none of these instructions.
        lanes: how many columns a vector has.
        at_once: how many rows are computed together.
        most_parts, most_columns: how many vectors of columns are, of weights in blocks and of 8
            bits.
        most_sums: of integers, that are computed together.
        most_behind: of these, where those before are finished between their products; 0 where they
            are finished first.
        most_read: sums of blocks that are computed together of tiles that are read side by side.
        ahead: bytes of a weight in blocks that are asked for before they are read; 0 for none. A
            core waits for memory otherwise, and for one stream of bytes longer than for several:
            one row of 4096 x 4096 integers of 4 bits, in turn out of 400 MB, takes 0.80 ms without,
            0.64 with, and 0.56 if four tiles are read side by side, which is as fast as memory is
            read (Emerald Rapids, one thread).
        ahead_of_many: the same where a tile is read again and again, for some rows after others.
        bytes_ahead: the same of a weight of 8 bits, each of which is read once.
        held_after: groups of a weight in blocks after which sums are held, of integers in one
            plane and in two.
        adds_last: what a sum of a block begins with is added to it last, and takes no register
            before.
        register: the constraint of inline assembly for one of them; "" where that is not known.
        taps: how many factors are multiplied in a lane.
        factor: what bytes are widened to for that.
        excess: how much more factors of activations are than the activations.
        has_tiles: whether it has AMX's tiles, for many rows of 8 bits.
        narrowed_at_once: vectors of words that are narrowed to bytes together.
        packs: what the names of LLVM's intrinsics for that begin and end with.
        is_fused: whether `fused` rounds once.
        shuffle: LLVM's intrinsic that takes bytes of 16 by their numbers; "" for none.
    """

    name: ClassVar[str]
    features: ClassVar[frozenset[str]] = frozenset()
    told_by: ClassVar[frozenset[str]] = frozenset()
    lanes: ClassVar[int]
    at_once: ClassVar[int] = 4
    most_parts: ClassVar[int] = 1
    most_columns: ClassVar[int] = 2
    most_sums: ClassVar[int] = 8
    most_behind: ClassVar[int] = 0
    most_read: ClassVar[int] = 4
    ahead: ClassVar[int] = 2048
    ahead_of_many: ClassVar[int] = 2048
    bytes_ahead: ClassVar[int] = 8192
    held_after: ClassVar[tuple[int, int]] = 2, 2
    adds_last: ClassVar[bool] = False
    register: ClassVar[str] = ""
    taps: ClassVar[int] = 4
    factor: ClassVar[ElementType] = I8
    excess: ClassVar[int] = 0
    has_tiles: ClassVar[bool] = False
    narrowed_at_once: ClassVar[int] = 1
    packs: ClassVar[tuple[str, str]] = "", ""
    is_fused: ClassVar[bool] = True
    shuffle: ClassVar[str] = ""

    @property
    def without_tiles(self) -> str:
        """The name of the same without tiles."""
        return self.name

    @property
    def family(self) -> str:
        """The name of the first that multiplies so."""
        return self.name

    def parts(self, columns: int, most: int) -> int:
        """How many vectors of columns are computed together at most, so that few are too many."""
        count = -(-columns // self.lanes)
        choices = range(min(most, count), 0, -1)
        return min(choices, key=lambda n: -(-count // n) * (n + _COST_OF_A_TILE))

    def windows_at_once(self, parts: int, *, is_behind: bool = False) -> int:
        """How many sums of integers fit the registers.

        Args:
            parts: vectors of columns.
            is_behind: other sums are finished between their products.
        """
        return (self.most_behind if is_behind else self.most_sums) // parts

    def tiles_together(self, rows: int, parts: int) -> int:
        """How many tiles of a weight few rows are multiplied with together."""
        return max(1, self.most_read // (rows * parts))

    def tiles_of_many(self, rows: int, parts: int, greatest: int) -> int:
        """How many tiles of a weight many rows are multiplied with together.

        Args:
            rows: that are computed together.
            parts: vectors of columns of a tile.
            greatest: of the weight's integers.
        """
        return 1

    @abstractmethod
    def add(self, total: Sum, unsigned: Formula, signed: Formula, greatest: int) -> Sum:
        """Add the products of a group, a side of which is `spread` over the lanes.

        Args:
            total: what they are added to.
            unsigned: u8, ``lanes * 4`` of them.
            signed: i8, as many.
            greatest: of the unsigned integers.
        """

    @abstractmethod
    def add_factors(self, total: Formula, activations: Formula, weight: Formula) -> Formula:
        """Add the products of factors, ``lanes * taps`` on each side, in each lane.

        Args:
            total: i32.
            activations: as of `factors`.
            weight: of type `factor`.
        """

    def factors(self, activations: Formula) -> Formula:
        """What i8 are multiplied as."""
        wide = convert(activations, self.factor)
        return wide ^ -self.excess if self.excess else wide

    def looked_up(self, table: Sequence[int], numbers: Formula) -> Formula:
        """Entries of a table, by `shuffle`.

        Args:
            table: 16 bytes.
            numbers: of entries, u8, as many as a vector has bytes.
        """
        count = self.lanes * 4
        entries = constant_vector([*table] * (count // len(table)), U8)
        return intrinsic(self.shuffle, [entries, numbers], U8, count)

    def words(self, total: Sum) -> Formula:
        """The sum as i32."""
        return total.words

    def fused(self, left: Formula, right: Formula, total: Formula) -> Formula:
        """``left * right + total`` of floats, rounded once if the target has an instruction."""
        return fma(left, right, total)

    def held(self, total: Sum) -> Sum:
        """The sum, as computed before this place: LLVM's scheduler moves nothing of it behind."""
        if not self.register:
            return total
        if total.halves:
            held = tuple(scheduling_barrier(each, self.register) for each in total.halves)
            return replace(total, halves=held)
        return replace(total, words=scheduling_barrier(total.words, self.register))

    def held_words(self, words: Formula) -> Formula:
        """The same of a sum without halves."""
        return self.held(Sum(words)).words

    # -- what is done with sums --------------------------------------------------------------------

    def limited(self, reals: Formula, greatest: float, low: int, high: int) -> Formula:
        """Floats that can be `rounded`.

        Args:
            reals: floats.
            greatest: magnitude that they have.
            low, high: what is less or greater may become any integer that is not between them.
        """
        if greatest < _LEAST_WITHOUT_FRACTION:
            return reals
        return np.minimum(np.maximum(reals, np.float32(low)), np.float32(high))

    def rounded(self, reals: Formula) -> Formula:
        """The nearest integers of i32, even ones of ties."""
        return nearest(reals)[0]

    def distances(self, reals: Formula) -> Formula:
        """How far floats are off the nearest integers."""
        return reals - nearest(reals)[1]

    def greatest(self, distances: Sequence[Formula]) -> Formula:
        """The greatest magnitude in each lane of some vectors of floats, none of which is NaN.

        Magnitudes are in the order of their bits, and the greater of two integers is one
        instruction for the five of floats, which look for NaN.
        """
        found, *others = (bits_of(np.abs(each), I32) for each in distances)
        for each in others:
            found = np.maximum(found, each)
        return bitcast(found, F32)

    def narrowed(self, words: Sequence[Formula], element: ElementType) -> Formula:
        """Vectors of words, `narrowed_at_once` or less, as one of bytes, saturated.

        Args:
            words: i32.
            element: I8 or U8.
        """
        prefix, suffix = self.packs
        count = len(words)
        if not prefix:
            assert count == 1
            least, most = (0, 255) if element == U8 else (-128, 127)
            return convert(np.clip(words[0], least, most), element)
        four = [words[min(each, count - 1)] for each in range(4)]

        def packed(name: str, given: Sequence[Formula], result: ElementType) -> Formula:
            lanes = self.lanes * 32 // result.bits
            return intrinsic(f"{prefix}.{name}{suffix}", given, result, lanes)

        halves = [packed("packssdw", four[at : at + 2], I16) for at in (0, 2)]
        name = "packuswb" if element == U8 else "packsswb"
        # The words of four bytes of 128 bits of each vector lie side by side.
        apart = bitcast(packed(name, halves, element), I32)
        of_vector = self.lanes // 4
        order = [4 * place + vector for vector in range(4) for place in range(of_vector)]
        return slice_lanes(
            bitcast(shuffle_lanes(apart, apart, order), element), 0, count * self.lanes
        )

    def spread(self, group: Formula, element: ElementType) -> Formula:
        """A group in each lane, read as elements of a type."""
        return bitcast(broadcast(group, self.lanes), element)


class _DotProduct(Instructions):
    """``vpdpbusd``: four products are added to 32 bits, with no step between that saturates."""

    intrinsic: ClassVar[str]
    excess = 128

    def add(self, total: Sum, unsigned: Formula, signed: Formula, greatest: int) -> Sum:
        """One instruction, which reads a signed group from memory where that is used once."""
        operands = [total.words, unsigned, signed]
        return Sum(intrinsic(self.intrinsic, operands, I32, self.lanes))

    def add_factors(self, total: Formula, activations: Formula, weight: Formula) -> Formula:
        """One instruction, of activations that are unsigned."""
        return intrinsic(self.intrinsic, [total, activations, weight], I32, self.lanes)


class Avx512Vnni(_DotProduct):
    """AVX512-VNNI: 16 columns.

    Sums are held as those of AVX2 are, because LLVM's scheduler would read the activations of eight
    groups first, and spill them: a 1x1 convolution of 64 channels takes 0.086 ms for 0.093 (Zen 4).
    """

    name = "avx512vnni"
    features = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vnni"))
    lanes, at_once = 16, 8
    most_parts, most_columns, most_sums, most_read = 2, 4, 24, 8
    intrinsic = "llvm.x86.avx512.vpdpbusd.512"
    narrowed_at_once, packs = 4, ("llvm.x86.avx512", ".512")
    shuffle = "llvm.x86.avx512.pshuf.b.512"
    register = "v"

    def limited(self, reals: Formula, greatest: float, low: int, high: int) -> Formula:
        """``vcvtps2dq`` makes the least integer of what has none."""
        return reals if greatest < _LEAST_WITHOUT_INTEGER else np.minimum(reals, np.float32(high))

    def rounded(self, reals: Formula) -> Formula:
        """``vcvtps2dq``."""
        return self._unmasked("cvtps2dq", [reals], reals.form.known(0, I32), I32)

    def distances(self, reals: Formula) -> Formula:
        """``vreduceps``."""
        return self._unmasked("reduce.ps", [reals, self._number(0, I32)], reals, F32)

    def greatest(self, distances: Sequence[Formula]) -> Formula:
        """``vrangeps``."""
        found = distances[0]
        for each in distances[1:] or distances:
            given = [found, each, self._number(_MAGNITUDE, I32)]
            found = self._unmasked("range.ps", given, each, F32)
        return found

    def _unmasked(
        self, name: str, operands: Sequence[Formula], unused: Formula, result: ElementType
    ) -> Formula:
        """An intrinsic in all lanes, rounding as the processor does."""
        given = [*operands, unused, self._number(-1, I16), self._number(_AS_IT_IS, I32)]
        return intrinsic(f"llvm.x86.avx512.mask.{name}.512", given, result, self.lanes)

    @staticmethod
    def _number(number: int, element: ElementType) -> Formula:
        return Scalars().known(number, element)


class Amx(Avx512Vnni):
    """AMX for many rows of 8-bit integers with a weight of 8 bits; AVX512-VNNI for the rest."""

    name = "amx"
    features = Avx512Vnni.features | {"amx-int8"}
    has_tiles = True

    @property
    def without_tiles(self) -> str:
        """AVX512-VNNI, with which everything else is computed."""
        return Avx512Vnni.name


class Avx512VnniAmd(Avx512Vnni):
    """AVX512-VNNI of Zen 4 and 5, which read memory ahead best by themselves.

    What is asked for before it is read keeps them from it, and so do several tiles: one row of 4096
    x 4096 integers of 4 bits, in turn out of 180 MB, takes 0.65 ms as for other processors, 0.41 if
    nothing is asked for, and 0.36 of one tile, which is as fast as memory is read (Zen 4, one
    thread). Many rows use what was read for the first of them, which wait: 128 take 12.1 ms for
    12.4.

    With sums held after each group, and not after every other one, 128 rows times 4096 x 4096
    integers of 4 bits in blocks take 13.1 ms for 14.5; of 5 bits 16.0 for 13.8, of 6 bits 19.0 for
    17.4 (Zen 4).

    A product of 512 bits takes two steps there, beside which sums before are finished for nothing;
    Intel's take one, and would wait: a 3x3 convolution of 56x56x64 takes 0.319 ms so for 0.312, and
    on a busy host 0.48 for 0.39; MobileNet v2 2.07 for 1.91.
    """

    name = Avx512Vnni.name + _AMD
    held_after = 1, 2
    told_by = frozenset(("sse4a",))
    ahead = 0
    ahead_of_many = 8192
    bytes_ahead = 0
    most_read = 1
    most_behind = 16

    @property
    def family(self) -> str:
        """The name of the same for other processors."""
        return self.name.removesuffix(_AMD)


class AvxVnni(_DotProduct):
    """AVX-VNNI: 8 columns."""

    name = "avxvnni"
    features = frozenset(("avx2", "avxvnni"))
    lanes, most_parts, most_sums = 8, 2, 12
    narrowed_at_once, packs = 4, ("llvm.x86.avx2", "")
    shuffle = "llvm.x86.avx2.pshuf.b"
    intrinsic = "llvm.x86.avx512.vpdpbusd.256"


class Avx2(Instructions):
    """AVX2: 8 columns.

    ``vpmaddubsw`` adds two products in 16 bits. They are at most ``2 * greatest * 128``, so that
    ``32767 // (2 * greatest * 128)`` groups are added in 16 bits before ``vpmaddwd`` widens them: 8
    of 4-bit integers (8 * 2 * 15 * 128 = 30,720), 4 of 5 bits, 2 of 6 bits. Of 8-bit integers two
    products do not fit (2 * 255 * 128 = 65,280): their low and high 4 bits are multiplied apart.

    LLVM's scheduler would move all that is unpacked to the front of a step, and spill it: sums are
    held after each group, and what they begin with is added last. 128 rows times 4096 x 4096
    integers of 4 bits take 21.3 ms, for 24.6 if every other group is followed by that, and sums
    begin with it; of 8 bits 38.8 ms, for 44.3 with ``vpmaddwd`` alone (code for Zen 3 on Zen 4).

    Zen 3 reads memory ahead as others do, not as Zen 4: one row of 4096 x 4096 integers of 4 bits,
    in turn out of 360 MB, takes 0.70 ms if nothing is asked for, and 0.54 of four tiles that are
    asked for, where reading alone takes 0.51; of 6 bits 1.12 and 0.86 (one thread).
    """

    name = "avx2"
    features = frozenset(("avx2",))
    lanes, register = 8, "x"
    held_after, adds_last = (1, 1), True
    taps, factor = 2, I16
    narrowed_at_once, packs = 4, ("llvm.x86.avx2", "")
    shuffle = "llvm.x86.avx2.pshuf.b"

    def add(self, total: Sum, unsigned: Formula, signed: Formula, greatest: int) -> Sum:
        """Two instructions, or four for integers of 8 bits, and what makes room."""
        places = [unsigned]
        if self._room(greatest) == 0:
            high = bitcast(bitcast(unsigned, U16) >> 4, U8)
            places, greatest = [unsigned & _HALF_BYTE, high & _HALF_BYTE], _HALF_BYTE
        room = self._room(greatest)
        if total.halves and not total.room:
            total = Sum(self.words(total))
        products = tuple(
            intrinsic("llvm.x86.avx2.pmadd.ub.sw", [each, signed], I16, 2 * self.lanes)
            for each in places
        )
        if not total.halves:
            return Sum(total.words, products, room - 1)
        both = zip(total.halves, products, strict=True)
        return Sum(total.words, tuple(half + each for half, each in both), total.room - 1)

    def tiles_of_many(self, rows: int, parts: int, greatest: int) -> int:
        """As many as there are registers for.

        Activations are read for all tiles at once, which Zen 3 pays as an operation on vectors: 128
        rows times 4096 x 4096 integers take 237 of these for 2 x 1024 products, where one tile
        takes 138 for 1024, and four are done in a cycle (64 cycles for 71, by llvm-mca; integers of
        Q4_K 74 for 86). On Emerald Rapids Q4_K takes 30.1 ms for 32.5, Q6_K 42.4 for 45.2, and
        int4 24.1 for 23.8.
        """
        halves = 2 if self._room(greatest) == 0 else 1
        return max(1, _REGISTERS // 2 // (rows * parts * halves))

    def add_factors(self, total: Formula, activations: Formula, weight: Formula) -> Formula:
        """Two instructions: two products of 16 bits are at most 2 * 128 * 128."""
        return total + self._pairs(activations, weight)

    def words(self, total: Sum) -> Formula:
        """The sum as i32; halves are added in pairs, as many times as their place counts."""
        words = total.words
        for place, half in enumerate(total.halves):
            words = words + self._pairs(half, half.form.known(16**place, I16))
        return words

    @staticmethod
    def _room(greatest: int) -> int:
        """How many groups may be added in 16 bits."""
        return _I16_MAX // (2 * greatest * _GREATEST_SIGNED)

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
    shuffle = "llvm.aarch64.neon.tbl1.v16i8"

    def add(self, total: Sum, unsigned: Formula, signed: Formula, greatest: int) -> Sum:
        """One instruction, or three for integers of 8 bits."""
        words, left = total.words, convert(unsigned, I8)
        if greatest > _I8_MAX:
            half = signed.form.known(64, I8)
            words = self._dot(self._dot(words, half, signed), half, signed)
            left = left ^ -128
        return Sum(self._dot(words, left, signed))

    def add_factors(self, total: Formula, activations: Formula, weight: Formula) -> Formula:
        """One instruction."""
        return self._dot(total, activations, weight)

    def _dot(self, words: Formula, left: Formula, right: Formula) -> Formula:
        return intrinsic(
            "llvm.aarch64.neon.sdot.v4i32.v16i8", [words, left, right], I32, self.lanes
        )


class Portable(Instructions):
    """Any target: multiplications of 32 bits, of a byte of each lane's word at a time."""

    name = "portable"
    lanes, is_fused = 8, False

    def fused(self, left: Formula, right: Formula, total: Formula) -> Formula:
        """Rounded twice: without an instruction it would be a call of the C library's."""
        return left * right + total

    taps, factor = 1, I32

    def add(self, total: Sum, unsigned: Formula, signed: Formula, greatest: int) -> Sum:
        """Four multiplications and additions."""
        words, left, right = total.words, bitcast(unsigned, U32), bitcast(signed, I32)
        for place in range(4):
            whole = convert((left >> (8 * place)) & 255, I32)
            words = words + whole * ((right << (24 - 8 * place)) >> 24)
        return Sum(words)

    def add_factors(self, total: Formula, activations: Formula, weight: Formula) -> Formula:
        """A multiplication and an addition."""
        return total + activations * weight


INSTRUCTIONS: dict[str, Instructions] = {
    each.name: each
    for each in (
        *(Amx(), Avx512VnniAmd(), Avx512Vnni(), AvxVnni(), Avx2(), NeonDotProduct()),
        Portable(),
    )
}
"""By name, the fastest first."""


def instructions_of(features: Collection[str]) -> Instructions:
    """The fastest instructions that a target with some features has."""
    found = (each for each in INSTRUCTIONS.values() if each.features | each.told_by <= {*features})
    return next(found)


def names_of(features: Collection[str]) -> list[str]:
    """The names of all instructions that a target has, the fastest first."""
    fastest = instructions_of(features).name
    others = [name for name, each in INSTRUCTIONS.items() if each.features <= {*features}]
    return [fastest, *(name for name in others if name != fastest)]
