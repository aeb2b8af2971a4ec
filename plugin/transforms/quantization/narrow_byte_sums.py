"""``narrow-byte-sums``: a scaled and rounded sum of two bytes becomes one sum and one shift.

A format defines for the sum of two quantized tensors how each operand is scaled, in how many steps,
and how each step rounds: LiteRT's sum has three products of 64 bits. In every format it is a
function of two bytes. The pass evaluates it for all 65,536 pairs. If integers exist that give the
same results for all pairs, they replace it::

    clamp((x * X + y * Y + Z) >> s, low, high)

``X`` and ``Y`` are the slopes of the operations without their roundings and clamps, times ``2**s``,
rounded. Each pair bounds ``Z``, which is in the middle of the remaining interval. The sum has 32
bits if a ``Z`` exists for these integers or their neighbors, else 64 bits with products of 32.
``s`` is as large as the width of the sum allows.

Before::

    %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi64>
    %1 = stablehlo.multiply %0, %c1310720123 : tensor<4xi64>
    %2 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi64>
    %3 = stablehlo.multiply %2, %c1971322880 : tensor<4xi64>
    %4 = stablehlo.add %1, %3 : tensor<4xi64>
    %5 = stablehlo.add %4, %c1073741824 : tensor<4xi64>
    %6 = stablehlo.shift_right_arithmetic %5, %c31 : tensor<4xi64>
    %7 = stablehlo.clamp %c_128, %6, %c127 : tensor<4xi64>
    %z = stablehlo.convert %7 : (tensor<4xi64>) -> tensor<4xi8>

After::

    %0 = stablehlo.convert %x : (tensor<4xi8>) -> tensor<4xi32>
    %1 = stablehlo.multiply %0, %c2560001 : tensor<4xi32>
    %2 = stablehlo.convert %y : (tensor<4xi8>) -> tensor<4xi32>
    %3 = stablehlo.multiply %2, %c3850240 : tensor<4xi32>
    %4 = stablehlo.add %1, %3 : tensor<4xi32>
    %5 = stablehlo.add %4, %c2097153 : tensor<4xi32>
    %6 = stablehlo.shift_right_arithmetic %5, %c22 : tensor<4xi32>
    %7 = stablehlo.maximum %6, %c_128 : tensor<4xi32>
    %8 = stablehlo.minimum %7, %c127 : tensor<4xi32>
    %z = stablehlo.convert %8 : (tensor<4xi32>) -> tensor<4xi8>

A sum that is rounded twice, or half to even, may have ties that no integers reproduce; it stays.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import known_integer
from ...emit import tensor
from ...emit.operation import backward_slice, element_of, erase_unused, is_used
from ...emit.stablehlo_semantics import ABSTRACT, EVALUATED
from ...errors import Remark
from ...numerics.array_functions import convert
from ...numerics.element_types import I8, I32, I64, U8, Array, ElementType
from ..base import UNCHANGED, ModulePass, named, producer_named

_CONVERT = "stablehlo.convert"
_AND = "stablehlo.and"
_MAX_OPERATIONS = 64
"""Operations of a function of two bytes, at most; a longer one is not replaced."""
_EMITTED_OPERATIONS = 8
"""Operations of the replacement, without constants and conversions of the bytes."""
_HALF = 128
"""Half of the values of a byte: the sign offset."""
_FACTOR_BITS = 31
"""The bits of a factor in i64: products of 32 bits take half the time."""
_NEIGHBORS = sorted(itertools.product(range(-3, 4), repeat=2), key=lambda n: (max(map(abs, n)), n))
"""Offsets of the slopes that are tried, from the nearest integers."""


@dataclass(frozen=True)
class NarrowByteSums(ModulePass):
    """Replace scaled and rounded sums of two bytes by one sum and one shift."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`; never fails."""
        roots = [op for op in named(module, [_CONVERT]) if _is_narrowing(op)]
        changes = [_narrow(op) for op in roots]
        return None if any(changes) else UNCHANGED


def _is_narrowing(op: Operation) -> bool:
    source, result = op.operands[0].type, op.results[0].type
    is_narrowing = _is_integer(source) and _is_byte(result) and not _is_byte(source)
    return is_narrowing and bool(result.has_static_shape)


def _is_integer(type_: ir.Type) -> bool:
    """True for a tensor of signless integers, which operations read as signed."""
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else None
    return isinstance(element, ir.IntegerType) and bool(element.is_signless)


def _is_byte(type_: ir.Type) -> bool:
    return _is_integer(type_) and bool(type_.element_type.width == I8.bits)


def _narrow(op: Operation) -> bool:
    """Replace the operations ahead of a conversion to bytes; True if there is a replacement."""
    chain = _ByteFunction.of(op)
    line = chain.line() if chain else None
    if chain is None or line is None:
        return False
    replacement = line.sum_of(chain.table(), chain.bits // _EMITTED_OPERATIONS)
    if replacement is None:
        return False
    with ir.InsertionPoint(op), op.location:
        narrow = replacement.emit(chain.bytes, element_of(op.results[0].type))
    op.results[0].replace_all_uses_with(narrow)
    for user in chain.other_users():  # all are unused
        user.erase()
    erase_unused(op)
    return True


# -- functions of two bytes -----------------------------------------------------------------------


@dataclass(frozen=True)
class _ByteFunction:
    """Elementwise operations on two tensors, `bytes`, with bytes as the result.

    The operations are in order, without constants; the last one converts to bytes.
    """

    bytes: tuple[Value, Value]
    operations: tuple[Operation, ...]

    @classmethod
    def of(cls, last: Operation) -> _ByteFunction | None:
        """The function that ends with a conversion to bytes; None for other operations."""
        operations, bytes_ = {last: None}, dict[Value, None]()
        pending = [last]
        while pending:
            for value in pending.pop().operands:
                if _constant(value) is not None:
                    continue
                if value.type.shape != last.results[0].type.shape or not _is_integer(value.type):
                    return None
                if _is_byte(value.type):
                    bytes_[value] = None
                    continue
                producer = producer_named(value, *_RULES)
                if producer is None:
                    return None
                if producer not in operations:
                    operations[producer] = None
                    pending.append(producer)
            if len(operations) > _MAX_OPERATIONS:
                return None
        if len(bytes_) != 2:
            return None
        first, second = bytes_
        function = cls((first, second), tuple(backward_slice(last, operations.__contains__)))
        is_needed = any(
            not op.results or any(map(is_used, op.results)) for op in function.other_users()
        )
        return None if is_needed else function

    def other_users(self) -> list[Operation]:
        """Other operations that read intermediate results."""
        uses = [use for op in self.operations[:-1] for use in op.results[0].uses]
        users = dict.fromkeys(use.owner.operation for use in uses)
        return [op for op in users if op not in self.operations]

    @property
    def bits(self) -> int:
        """The total width of one element of all results, except conversions of the bytes.

        It is about proportional to the time of the operations.
        """
        is_read = set(self.bytes)
        counted = [op for op in self.operations if is_read.isdisjoint(op.operands)]
        return sum(op.results[0].type.element_type.width for op in counted if op.name != _AND)

    def table(self) -> Array:
        """The value ahead of the conversion to bytes, for each pair of bytes."""
        every = np.arange(-_HALF, _HALF).astype(np.int8)
        values = {self.bytes[0]: every.reshape((-1, 1)), self.bytes[1]: every.reshape((1, -1))}
        with np.errstate(over="ignore"):  # integers of programs wrap
            for op in self.operations[:-1]:
                read = [values[v] if v in values else _constant(v) for v in op.operands]
                result = op.results[0]
                values[result] = convert(EVALUATED[op.name](op, *read), element_of(result.type))
        table = values[self.operations[-1].operands[0]]
        return np.broadcast_to(table, (2 * _HALF, 2 * _HALF)).astype(np.int64)

    def line(self) -> _AffineFunction | None:
        """The affine function without roundings and clamps; None if it is not affine."""
        values = {value: _AffineFunction.of_byte(number) for number, value in enumerate(self.bytes)}
        for op in self.operations[:-1]:
            read = [
                values[v] if v in values else _AffineFunction.of(_constant(v)) for v in op.operands
            ]
            try:
                values[op.results[0]] = _RULES[op.name](*read)
            except _NotAffine:
                return None
        return values[self.operations[-1].operands[0]]


def _constant(value: Value) -> Array | None:
    """The number of a splat constant, of the value's type; None for other values."""
    number = known_integer(value) if _is_integer(value.type) else None
    if number is None:
        return None
    return np.asarray(number).astype(element_of(value.type).dtype).reshape((1, 1))


# -- affine functions -----------------------------------------------------------------------------


class _NotAffine(Exception):
    """The result of an operation is no affine function of the two bytes."""


@dataclass(frozen=True)
class _AffineFunction:
    """An affine function of the two bytes, or a constant.

    Attributes:
        slopes: the slopes of both bytes as signed ones, then of both as unsigned ones.
        offset: the constant term.
    """

    slopes: tuple[Fraction, ...] = (Fraction(0),) * 4
    offset: Fraction = Fraction(0)

    @classmethod
    def of_byte(cls, number: int) -> _AffineFunction:
        """A byte: 0 and 1 are the signed ones, 2 and 3 the unsigned ones."""
        return cls(tuple(Fraction(n == number) for n in range(4)))

    @classmethod
    def of(cls, number: Array | None) -> _AffineFunction:
        """A constant."""
        assert number is not None  # `_ByteFunction.of`
        return cls(offset=Fraction(number.item()))

    @property
    def is_number(self) -> bool:
        """True for a constant, and for rounding terms, which count as 0."""
        return not any(self.slopes)

    def __add__(self, other: _AffineFunction) -> _AffineFunction:
        slopes = tuple(map(operator.add, self.slopes, other.slopes))
        return _AffineFunction(slopes, self.offset + other.offset)

    def __neg__(self) -> _AffineFunction:
        return self._times(Fraction(-1))

    def __mul__(self, other: _AffineFunction) -> _AffineFunction:
        if other.is_number:
            return self._times(other.offset)
        if not self.is_number:
            raise _NotAffine
        return other._times(self.offset)

    def _times(self, factor: Fraction) -> _AffineFunction:
        return _AffineFunction(tuple(each * factor for each in self.slopes), self.offset * factor)

    def __lshift__(self, count: _AffineFunction) -> _AffineFunction:
        return self._shifted(count, 1)

    def __rshift__(self, count: _AffineFunction) -> _AffineFunction:
        return self._shifted(count, -1)

    def _shifted(self, count: _AffineFunction, direction: int) -> _AffineFunction:
        if not count.is_number or not 0 <= count.offset < I64.bits:
            raise _NotAffine
        return self._times(Fraction(2) ** (direction * int(count.offset)))

    def maximum(self, other: _AffineFunction) -> _AffineFunction:
        """The operand that is no constant: clamps are left out."""
        if self.is_number == other.is_number:
            raise _NotAffine
        return other if self.is_number else self

    minimum = maximum

    def masked(self, mask: _AffineFunction) -> _AffineFunction:
        """A byte as an unsigned one; else a remainder, of which roundings are made."""
        byte_mask = _AffineFunction(offset=Fraction(2 * _HALF - 1))
        for number in range(2):
            if self == _AffineFunction.of_byte(number) and mask == byte_mask:
                return _AffineFunction.of_byte(number + 2)
        return _AffineFunction()

    def sum_of(self, table: Array, max_bits: int) -> _Sum | None:
        """The sum of at most `max_bits` with the results of a table; None if there is none."""
        low, high = int(table.min()), int(table.max())
        bytes_ = [U8 if self.slopes[n + 2] else I8 for n in range(2)]
        slopes = [self.slopes[n + 2] or self.slopes[n] for n in range(2)]
        is_read_twice = any(self.slopes[n] and self.slopes[n + 2] for n in range(2))
        is_byte = low >= -_HALF and high < (_HALF if low < 0 else 2 * _HALF)
        if low == high or is_read_twice or not all(slopes) or not is_byte:
            return None
        reach = 2 * _HALF * sum(map(abs, slopes)) + max(abs(low), abs(high)) + 1
        for element, neighbors in ((I32, _NEIGHBORS), (I64, _NEIGHBORS[:1])):
            if element.bits > max_bits:
                break
            shift = element.bits - _bits(reach)  # perhaps one too many
            if element == I64:  # products of 32 bits take half the time
                shift = min(shift, _FACTOR_BITS - _bits(max(map(abs, slopes))))
            for fewer_bits, neighbor in itertools.product((0, 1), neighbors):
                bits = shift - fewer_bits
                if not 0 < bits < element.bits:
                    continue
                scaled = [round(each * (1 << bits)) for each in slopes]
                factors = tuple(n + by for n, by in zip(scaled, neighbor, strict=True))
                replacement = _Sum.of(table, element, bytes_, factors, bits)
                if replacement is not None:
                    return replacement
        return None


def _bits(number: Fraction | int) -> int:
    """The least ``n`` with a number of at most ``2**n``."""
    return math.ceil(math.log2(number))


@dataclass(frozen=True)
class _Sum:
    """``clamp((x * factors[0] + y * factors[1] + offset) >> shift, low, high)``.

    The sum has the type `element`; `x` and `y` are read as `bytes`, signed or unsigned.
    """

    element: ElementType
    bytes: tuple[ElementType, ...]
    factors: tuple[int, ...]
    offset: int
    shift: int
    low: int
    high: int

    @classmethod
    def of(
        cls,
        table: Array,
        element: ElementType,
        bytes_: Sequence[ElementType],
        factors: tuple[int, ...],
        shift: int,
    ) -> _Sum | None:
        """The sum with given factors and the results of a table; None if there is none."""
        every = np.arange(-_HALF, _HALF).astype(np.int8)
        x, y = (every.view(each.dtype).astype(np.int64) for each in bytes_)
        scaled = x.reshape((-1, 1)) * factors[0] + y.reshape((1, -1)) * factors[1]
        low, high = int(table.min()), int(table.max())
        # sum >> shift is at least t where the sum is at least t << shift
        least = ((table << shift) - scaled)[table > low].max()
        most = (((table + 1) << shift) - 1 - scaled)[table < high].min()
        offset = (int(least) + int(most)) // 2
        reach = 1 << (element.bits - 1)
        ends = int(scaled.min()) + offset, int(scaled.max()) + offset
        if least > most or ends[0] < -reach or ends[1] >= reach or not -reach <= offset < reach:
            return None
        return cls(element, tuple(bytes_), factors, offset, shift, low, high)

    def emit(self, operands: Sequence[Value], result: ElementType) -> Value:
        """Emit the sum of two tensors of bytes."""
        x, y = (
            convert(tensor(value, each), self.element)
            for value, each in zip(operands, self.bytes, strict=True)
        )
        total = np.right_shift(x * self.factors[0] + y * self.factors[1] + self.offset, self.shift)
        clamped = np.minimum(np.maximum(total, self.low), self.high)
        return convert(clamped, result).value


_ROUNDING = ("stablehlo.compare", "stablehlo.not", "stablehlo.or")
"""Operations of rounding terms, which are left out of the slopes."""
_RULES: dict[str, Callable[..., _AffineFunction]] = {
    **ABSTRACT,
    _AND: _AffineFunction.masked,
    **dict.fromkeys(_ROUNDING, lambda *operands: _AffineFunction()),
    "stablehlo.select": lambda condition, yes, no: yes,
}
"""Operations on lines; `EVALUATED` has them on numbers."""
