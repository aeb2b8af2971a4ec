"""Bit fields: narrow integers that a program extracts from words by shifts and masks.

A `Field` is a range of bits of each word of a tensor. Each operation changes the range: ``w >> 4``
starts four bits later, ``w & 15`` has four bits, ``(w << 4) >> 4`` repeats the highest of them as a
sign, and so does ``(w & 15 ^ 8) - 8``. StableHLO's words are two's complement; a conversion to a
type of the same width keeps the bits, as in JAX and IREE, where StableHLO leaves it open.

Where fields are concatenated along an axis (also by ``stack``), or shifted by counts that differ
along one, bit positions are again a sum of strides (`subquant.transforms.raising.views`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Value, ir
from ...dialects.dense import CONSTANTS
from ...emit import stablehlo, subquant
from ...emit.operation import value, with_element, with_shape
from ...numerics.element_types import Array
from ...numerics.parameters import StorageType
from ..base import producer_named
from .views import Part, View, aligned

_WORDS = (8, 16, 32)
"""Widths of words that hold fields."""
_PACKED = (2, 4, 8)
"""Widths of fields that fill bytes."""


@dataclass(frozen=True)
class Shifts:
    """Shift counts of the elements of a tensor: ``first`` plus a sum of the strides of a view.

    The first element has the count `first`, all have counts from `low` to `high`.
    """

    view: View
    first: int
    low: int
    high: int

    @classmethod
    def of(cls, numbers: Array, view: View) -> Shifts | None:
        """The counts of a flat tensor's elements in a view; None if they are no sum over axes."""
        flat = numbers.reshape(-1)
        axes: list[tuple[Part, ...]] = []
        for axis in view.axes:
            own = flat[View((axis,)).indices()].reshape(-1)
            strides = _steps_of(own - own[0])
            if strides is None:
                return None
            axes.append(tuple(strides))
        counts = View(tuple(axes))
        whole, first = flat[view.indices()], int(flat[0])
        if (counts.indices() + first != whole).any():
            return None
        return cls(counts, first, int(whole.min()), int(whole.max()))


def _steps_of(numbers: Array) -> list[Part] | None:
    """Return sizes and strides that add up to the numbers of an axis; None if there are none."""
    count = len(numbers)
    if count == 1:
        return []
    step = int(numbers[1] - numbers[0])
    if (np.diff(numbers) == step).all():
        return [(count, step)]
    for inner in range(count // 2, 1, -1):
        if count % inner:
            continue
        rows = numbers.reshape(-1, inner)
        if (rows - rows[:, :1] == rows[:1] - rows[0, 0]).all():
            slow, fast = _steps_of(rows[:, 0]), _steps_of(rows[0])
            if slow is None or fast is None:
                return None
            (count, stride), *rest = fast
            if slow[-1][1] == count * stride:  # one run of steps
                return [*slow[:-1], (slow[-1][0] * count, stride), *rest]
            return [*slow, *fast]
    return None


@dataclass(frozen=True)
class Field:
    """Bit field of each word: ``(word >> position & 2**width - 1) + bias``.

    Attributes:
        words: a tensor of integers.
        view: the first bit of each field, counted over all words, relative to `start`.
        start: the first bit of the first field.
        width: the bits of a field.
        signed: True if the highest bit is a sign.
        container: the width of the type that holds the number.
        bias: added to the number.
        raised: the greatest left shift that is not shifted back yet; None for none.
        is_cut: False where higher bits are not masked yet.
    """

    words: Value
    view: View
    start: int
    width: int
    signed: bool
    container: int
    bias: int = 0
    raised: int | None = None
    is_cut: bool = True

    @staticmethod
    def has_words(type_: ir.Type) -> bool:
        """True for a tensor type of integers that have fields."""
        element = type_.element_type
        return isinstance(element, ir.IntegerType) and element.width in _WORDS

    @classmethod
    def of(cls, root: Value, view: View) -> Field | None:
        """Whole words of a view; None for other element types."""
        if not cls.has_words(root.type):
            return None
        element = root.type.element_type
        width = element.width
        return cls(root, _scaled(view, width), 0, width, not element.is_unsigned, width)

    @property
    def is_number(self) -> bool:
        """True if the value is the field's number: no shift or mask is missing."""
        return self.raised is None and self.is_cut

    @property
    def is_narrow(self) -> bool:
        """True for a number narrower than its word."""
        return self.is_number and self.width in _PACKED and self.width < self.word

    @property
    def is_complete(self) -> bool:
        """True if the fields are all bits of the words."""
        words = math.prod(int(n) for n in self.words.type.shape)
        return math.prod(self.view.shape) * self.width == words * self.word

    @property
    def word(self) -> int:
        """The width of a word."""
        return int(self.words.type.element_type.width)

    @property
    def type(self) -> StorageType:
        """The storage type of a field of two bits or more."""
        return StorageType(self.width, self.signed)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest number."""
        half = 1 << (self.width - 1)
        low, high = (-half, half - 1) if self.signed else (0, 2 * half - 1)
        return low + self.bias, high + self.bias

    # -- steps ------------------------------------------------------------------------------------

    def shifted_left(self, shifts: Shifts) -> Field | None:
        """The field after a left shift, modulo its type's range; None if it is none."""
        if not shifts.low and not shifts.high:
            return self
        is_plain = self.is_number and not self.bias
        if not is_plain or shifts.low < 0 or self.container - shifts.low > self.width:
            return None
        moved = self._moved(shifts, -1)
        return moved and replace(moved, raised=shifts.high)

    def shifted_right(self, shifts: Shifts, *, keeps_sign: bool) -> Field | None:
        """The field after a right shift, arithmetic with `keeps_sign`; None if it is none."""
        if not shifts.low and not shifts.high:
            return self
        if self.bias or not 0 <= shifts.low <= shifts.high < self.container:
            return None
        moved = self._moved(shifts, 1)
        if moved is None:
            return None
        if self.raised is not None:
            if shifts.low != shifts.high or shifts.low < self.raised:
                return None
            width = self.container - shifts.low
            return replace(moved, width=width, signed=keeps_sign, raised=None)
        if not keeps_sign and self.signed and self.width < self.container:
            return None  # copies of the sign become bits of the number
        width = self.width - shifts.high
        if width < 1:
            return None
        is_cut = self.is_cut and shifts.low == shifts.high
        return replace(moved, width=width, signed=self.signed and keeps_sign, is_cut=is_cut)

    def masked(self, mask: int) -> Field | None:
        """The field after ``and`` with a mask; None if it is none."""
        mask &= (1 << self.container) - 1
        if self.raised is not None or self.bias or not mask:
            return None
        low = (mask & -mask).bit_length() - 1
        count = (mask >> low).bit_length()
        if mask >> low != (1 << count) - 1:
            return None
        if low:  # the highest bits, unshifted
            if low + count != self.container or self.width < self.container:
                return None
            return replace(self, raised=low)
        if count < self.width or (count == self.width and not self.is_cut):
            return replace(self, width=count, signed=False, is_cut=True)
        if not self.is_cut:
            return None
        if not self.signed or count == self.container:
            return self
        return replace(self, signed=False) if count == self.width else None

    def converted(self, element: ir.IntegerType) -> Field | None:
        """The field after a conversion to another integer type; None if it is none."""
        is_whole = self.raised is None and self.width == self.container and not self.bias
        if is_whole and element.width == self.container:
            return replace(self, signed=not element.is_unsigned)
        if self.raised is not None or not self.is_cut:
            return self if element.width == self.container else None
        low, high = self.range
        half = 1 << (element.width - 1)
        least, most = (0, 2 * half - 1) if element.is_unsigned else (-half, half - 1)
        return replace(self, container=element.width) if least <= low and high <= most else None

    def with_other_sign(self) -> Field | None:
        """The field after ``xor`` with its highest bit; None if it is none."""
        if not self.is_number or self.signed or self.bias:
            return None
        return replace(self, signed=True, bias=1 << (self.width - 1))

    def _moved(self, shifts: Shifts, sign: int) -> Field | None:
        """The field at shifted bit positions; None if strides do not divide each other."""
        split_axes = aligned([self.view, shifts.view])
        if split_axes is None:
            return None
        axes = [
            tuple((n, own + sign * by) for (n, own), (_, by) in zip(*both, strict=True))
            for both in zip(*split_axes, strict=True)
        ]
        return replace(self, view=View(tuple(axes)), start=self.start + sign * shifts.first)

    # -- packed integers --------------------------------------------------------------------------

    def packed(self) -> tuple[View, bool] | None:
        """The index of each field among those of all words, and whether nibbles are swapped.

        None if fields do not start at multiples of their width, from the first bit on.
        """
        is_reversed, start, axes = False, self.start, []
        for axis in self.view.axes:
            strides: list[Part] = []
            for size, stride in axis:
                if stride < 0:
                    if (size, stride, self.word, self.width) != (2, -4, 8, 4):
                        return None
                    is_reversed, start = True, start + stride
                    stride = -stride
                if stride % self.width:
                    return None
                strides.append((size, stride // self.width))
            axes.append(tuple(strides))
        return None if start else (View(tuple(axes)), is_reversed)

    def unpacked(self, *, is_reversed: bool, element_bits: int | None = None) -> Value:
        """Emit the fields of all words as signless integers of their width, or `element_bits`."""
        shape = [int(n) for n in self.words.type.shape] or [1]
        words = stablehlo.reshape(self.words, shape)
        bytes_type = with_element(words.type, ir.IntegerType.get_signless(8))
        if self.word > 8:
            split = with_shape(bytes_type, [*shape, self.word // 8])
            words = value("stablehlo.bitcast_convert", [words], split)
            words = stablehlo.reshape(words, [*shape[:-1], shape[-1] * self.word // 8])
        elif words.type != bytes_type:
            words = value("stablehlo.bitcast_convert", [words], bytes_type)
        if is_reversed:
            four = stablehlo.constant(np.full(shape, 4), words.type.element_type)
            shifts = ("stablehlo.shift_left", "stablehlo.shift_right_logical")
            halves = [value(name, [words, four], words.type) for name in shifts]
            words = value("stablehlo.or", halves, words.type)
        if self.width == 8:
            return words
        if producer_named(self.words, *CONSTANTS) is not None:
            # IREE would evaluate it at compile time and store the unpacked constant.
            words = value("util.optimization_barrier", [words], words.type)
        element = ir.IntegerType.get_signless(element_bits or self.width)
        return subquant.unpack([words], [self.width], element)


def concatenated(fields: Sequence[Field], axis: int) -> Field | None:
    """Fields concatenated along an axis; None if their positions are not equidistant."""
    first = fields[0]
    steps = {later.start - each.start for each, later in itertools.pairwise(fields)}
    are_alike = all(replace(each, start=first.start) == first for each in fields)
    if not are_alike or len(steps) != 1 or steps == {0} or not first.is_number:
        return None
    axes = list(first.view.axes)
    axes[axis] = ((len(fields), steps.pop()), *axes[axis])
    return replace(first, view=View(tuple(axes)))


def _scaled(view: View, factor: int) -> View:
    return View(tuple(tuple((n, stride * factor) for n, stride in axis) for axis in view.axes))
