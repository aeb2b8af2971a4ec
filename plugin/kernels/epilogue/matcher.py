"""What a program does with the sums of a contraction, element by element, done by its kernel.

Behind a contraction of integers there is a bias, the rounding to the result's scale, a clamp::

    %sums = stablehlo.convolution(%x, %w) ... : (...) -> tensor<1x56x56x64xi32>
    %all = stablehlo.add %sums, %bias : tensor<1x56x56x64xi32>
    %y = "subquant.requantize"(%all) ... : (tensor<1x56x56x64xi32>) -> tensor<1x56x56x64xi8>

The operations that follow are taken as far as their other operands are known and differ from column
to column at most. A kernel computes them on the vectors of columns that its sums are in; it reads
what differs from *tables*, which it is given.

**Requantization** to 8 bits and less costs more than a short sum where it is exact, but a float
tells nearly always what it gives. With ``p = f32(d) * f32(M) + z``, rounded once or twice::

    clamp(round(p)) = clamp(round(d * M + z))     if |p - round(p)| < 1/2 - e

Rounding ``d``, ``M`` and their product is off by ``3 * 2**-24`` of it and a little,
and so is ``p``, by ``2**-24`` of it: ``e = (3 R + S) * 2**-24 + 2**-19`` for a product of ``R`` and
a result of ``S`` at most is more than the error and the ``2**-20`` that counts as a tie
(`subquant.numerics.requantization`); what is greater is clamped, whatever it is rounded to.
Fixed-point multipliers are ``R * 2**-30`` off at most; and what is rounded twice, the first time to
steps of ``2**-(s - 31)`` for a shift ``s``, is off by ``2**-(s - 30)`` before it is rounded the
second time.

So kernels write what floats tell, of some vectors together, whose words are narrowed to bytes
together. Where an element is nearer than ``e`` to a half, its vector is computed again, as
``lower-requantization`` would. Columns of which floats tell each sum, which is known when the
kernel is written (`subquant.kernels.epilogue.f32_requant_check`), are not asked, and numbers that
are added first are what their sums begin with (`EpilogueMatch.initial_accumulators`).

Models of TensorFlow Lite and of ONNX have their own roundings, as operations on integers. Those
that are known to be a staircase (`subquant.kernels.epilogue.requant_analysis`) are estimated alike,
by its line; where that does not tell, the operations are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense
from ...dialects.grids import zero_point_grid
from ...dialects.integer_steps import RequantizedSum, read_requantize
from ...dialects.quant import parameters_of
from ...dialects.subquant import REQUANTIZE
from ...emit import ArrayLike
from ...emit.operation import constants_of, create, element_of, tensor_type
from ...emit.stablehlo_semantics import EVALUATED, storage_element, wrapped
from ...emit.vectors import Vectors, load, reduce_lanes, vector, vector_type
from ...numerics.array_functions import bits_of, convert, is_known
from ...numerics.element_types import BOOL, F32, I8, I32, I64, U8, Array, ElementType
from ...numerics.fixed_point import multiplier_and_shift, saturate
from ...numerics.parameters import StorageType
from ...numerics.requantization import Requantization, requantize
from ..constant_values import constant_elements
from ..isa.base import InstructionSet
from ..isa.registry import INSTRUCTION_SETS
from ..kernel import Binding
from ..select.operands import value_of
from .f32_requant_check import Line
from .requant_analysis import MonotoneRequant, monotone_requant

__all__ = ["EpilogueMatch", "FusedEpilogue", "epilogue_bindings"]

_MOST_OPERATIONS = 64
_ROUNDED_TWICE = ("gemmlowp", "tosa-double-round")
_SIGN = -(1 << 31)


Vector: TypeAlias = "list[ArrayLike] | Array"
"""An operand: vectors, or known numbers."""

# -- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A number for each column, or one for all.

    Attributes:
        numbers: as they are stored.
        element: as they are stored: integers of 64 bits that fit 32 have 32, truth values 8.
        is_one: the number of all columns, for each lane of a vector.
    """

    numbers: bytes
    element: ElementType
    is_one: bool = False


class Columns(Vectors):
    """A vector of columns, to which arrays are tables.

    Args:
        lanes: how many columns a vector has.
        columns: how many there are.
        read: called with a table, returns the numbers of the columns of the vector.
        shares: a number of all columns is read, too, so that kernels that differ in it are one.
        known: what arrays are, for all vectors of an epilogue.
    """

    def __init__(
        self,
        lanes: int,
        columns: int,
        read: Callable[[Table], ArrayLike],
        *,
        shares: bool = False,
        known: dict[Hashable, Table | int | float] | None = None,
    ) -> None:
        super().__init__(lanes)
        self._lanes, self._columns = lanes, columns
        self._read, self._shares = read, shares
        self._known = {} if known is None else known

    def _written(self, number: Any, element: ElementType) -> Any:
        if not isinstance(number, np.ndarray):
            return super()._written(number, element)
        found = self._known.get(self._key(number, element))
        if found is not None:
            return self._read_known(found, element)
        if self._shares and number.size == 1:
            return self._grid(number, element)
        return super()._written(number, element)

    def _key(self, numbers: npt.NDArray[Any], element: ElementType) -> Hashable:
        held = tuple(numbers.reshape(-1)) if numbers.dtype.hasobject else numbers.tobytes()
        return held, numbers.dtype, element, self._lanes, self._shares

    def _grid(self, numbers: npt.NDArray[Any], element: ElementType) -> Any:
        found = self._known[self._key(numbers, element)] = self._table(numbers, element)
        return self._read_known(found, element)

    def _read_known(self, found: Table | int | float, element: ElementType) -> Any:
        if not isinstance(found, Table):
            return self._written(found, element)
        made = self.emitted(self._read(found).value, found.element)
        return convert(made, element).value

    def _table(self, numbers: npt.NDArray[Any], element: ElementType) -> Table | int | float:
        """Numbers as a table, or the one that they all are, if that is not read."""
        flat = numbers.reshape(-1)
        if flat.size not in (1, self._columns):
            raise _Refused
        is_one = bool((flat == flat[0]).all())
        if is_one and not self._shares:
            one: int | float = flat[0].item()
            return one
        held = I8 if element == BOOL else element
        if is_one:  # of the same type whatever it is
            flat = np.repeat(flat[:1], self._lanes)
        elif element.is_integer and element.bits == I64.bits:
            held = I32 if (flat == flat.astype(I32.dtype)).all() else element
        return Table(np.ascontiguousarray(flat.astype(held.dtype)).tobytes(), held, is_one)


class _Refused(Exception):
    """What follows cannot be computed from columns."""


# -- operations -----------------------------------------------------------------------------------


def _subtract_zero_point(op: Operation, given: ArrayLike) -> ArrayLike:
    type_ = op.operands[0].type
    parameters = parameters_of(type_)
    assert parameters is not None  # verified before
    zero_points = zero_point_grid(parameters, len(type_.shape))
    return convert(given, element_of(op.results[0].type)) - zero_points


_BROADCAST = "stablehlo.broadcast_in_dim"
_CASTS = ("quant.scast", "subquant.scast")
_SIGNS = {"stablehlo.add": 1, "stablehlo.subtract": -1}
_RULES: dict[str, Callable[..., ArrayLike]] = {
    **{
        f"stablehlo.{name}": EVALUATED[f"stablehlo.{name}"]
        for name in (
            *("abs", "add", "and", "clamp", "compare", "convert", "maximum", "minimum", "multiply"),
            *("negate", "not", "or", "select", "shift_left", "shift_right_arithmetic"),
            *("subtract", "xor"),
        )
    },
    **{name: EVALUATED[name] for name in (*_CASTS, "subquant.saturate")},
    "subquant.subtract_zero_point": _subtract_zero_point,
}
"""Operations, and how formulas compute them; requantization apart."""


_OF_FLOATS = {
    *("stablehlo.abs", "stablehlo.add", "stablehlo.clamp", "stablehlo.maximum"),
    *("stablehlo.minimum", "stablehlo.multiply", "stablehlo.negate", "stablehlo.subtract"),
}
"""Those of `_RULES` that follow sums of f32."""


def _is_computed(op: Operation, of_floats: bool) -> bool:
    """True for an operation that is computed for each element alone, on integers or on f32."""
    if op.name not in _RULES and op.name not in REQUANTIZE:
        return False
    if any(
        not isinstance(value.type, ir.RankedTensorType) for value in (*op.operands, *op.results)
    ):
        return False
    elements = [storage_element(value.type) for value in (*op.operands, *op.results)]
    if of_floats:
        return op.name in _OF_FLOATS and all(each == F32 for each in elements)
    return all(each is not None and not each.is_float for each in elements)


def _block_of(op: Operation) -> ir.Block:
    return ir.InsertionPoint(op).block


# -- epilogues ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EpilogueMatch:
    """Operations that follow a contraction, and are computed from its sums and what is known.

    Attributes:
        sums: the result of the contraction.
        operations: in an order in which they can be computed.
        result: of the last one.
        axis: of `sums`, along which columns lie.
        known: numbers of other operands, grids with one axis that is longer than 1 at most.
        how: sums are requantized.
        integer_only: floats are not asked.
        bounds: called for the greatest magnitudes of the sums of each column, if they are known.
        is_begun: sums begin with `initial_accumulators`.
    """

    sums: Value
    operations: tuple[Operation, ...]
    result: Value
    axis: int
    known: Mapping[Value, Array]
    how: Requantization
    integer_only: bool
    bounds: Callable[[], Array] | None = None
    folds_bias: bool = False

    @classmethod
    def of(
        cls,
        sums: Value,
        axis: int,
        how: Requantization,
        *,
        integer_only: bool,
        bounds: Callable[[], Array] | None = None,
        folds_bias: bool = False,
    ) -> EpilogueMatch | None:
        """What follows a contraction, as far as it can be computed with it; None for nothing.

        Args:
            sums: the result of the contraction.
            axis: along which columns lie.
            how: sums are requantized.
            integer_only: requantize without floats.
            bounds: called for the greatest magnitudes of the sums of each column.
            is_begun: the kernel begins sums with what is to be added to them first.
        """
        operations: list[Operation] = []
        values, known = {sums}, dict[Value, Array]()
        waiting, block = [sums], _block_of(sums.owner)
        of_floats = storage_element(sums.type) == F32
        while waiting and len(operations) < _MOST_OPERATIONS:
            for use in waiting.pop(0).uses:
                op = use.owner.operation
                if op in operations or not _is_computed(op, of_floats) or _block_of(op) != block:
                    continue
                others = [value for value in op.operands if value not in values]
                grids = [_grid(value, sums.type.shape, axis) for value in others]
                if any(grid is None for grid in grids):
                    continue  # until the last of its operands is there, if it comes
                known |= {
                    v: grid for v, grid in zip(others, grids, strict=True) if grid is not None
                }
                operations.append(op)
                values.add(op.results[0])
                waiting.append(op.results[0])
        choices = _endings(sums, operations)
        if not choices:
            return None
        last = min(reversed(choices), key=lambda end: end[-1].results[0].type.element_type.width)
        result = last[-1].results[0]
        return cls(sums, tuple(last), result, axis, known, how, integer_only, bounds, folds_bias)

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return int(self.sums.type.shape[self.axis])

    def fuse(self, instructions: str, parts: int = 1) -> FusedEpilogue | None:
        """What a kernel does with vectors of sums; None if it cannot be written.

        Args:
            instructions: a name in `INSTRUCTION_SETS`.
            parts: vectors of columns that it computes together.
        """
        target = INSTRUCTION_SETS[instructions]
        tables: list[Table] = []
        asked = _Asked(target)

        def cast(type_: ir.Type, **attributes: ir.Attribute) -> Value:
            made = create(
                "builtin.unrealized_conversion_cast", results=[type_], attributes=attributes
            )
            return made.results[0]

        def read(table: Table) -> ArrayLike:
            if table not in tables:
                tables.append(table)
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), tables.index(table))
            return vector(cast(vector_type(target.lanes, table.element), table=number))

        # Written once to see what it reads; equal texts are equal kernels. Of several vectors, each
        # of which is computed alike, two stand for all.
        def text(count: int, *, shares: bool = True, is_asked: bool = True) -> str | None:
            nonlocal asked
            module, kept = ir.Module.create(), list(tables)
            with ir.InsertionPoint(module.body), constants_of(module.body):
                forms = [
                    Columns(target.lanes, self.columns, read, shares=shares, known=self._tables)
                    for _ in range(min(max(1, count), 2))
                ]
                of_sums = element_of(self.sums.type)
                type_ = vector_type(target.lanes, of_sums)
                sums = [form.emitted(cast(type_), of_sums) for form in forms]
                try:
                    if count:
                        asked = self._estimated(forms, sums, target, [is_asked] * len(forms))[1]
                        asked.is_near(forms[0])
                    else:
                        self.emit(forms[0], sums[0])
                except (_Refused, TypeError, OverflowError):
                    tables[:] = kept
                    return None
            return str(module.operation.get_asm(assume_verified=True))

        found, at_once = None, 0
        for at_once in (target.vectors_per_narrowing, 1):
            found = text(at_once)
            if found:
                break
        are_asked = asked.parts(self.columns, parts) if found else [True]
        written = found or ""
        if any(are_asked):
            exact = text(0, shares=found is not None)
            if exact is None:
                return None
            written += exact
        if any(are_asked) and not all(are_asked):
            written += text(at_once, is_asked=False) or ""
        element, at_once = element_of(self.result.type), at_once if found else 0
        return FusedEpilogue(
            written, self, tuple(tables), element, instructions, at_once, tuple(are_asked)
        )

    def emit(self, form: Columns, sums: ArrayLike) -> ArrayLike:
        """Write the operations on a vector of sums, exactly, and return their last result."""

        def requantized(op: Operation, given: Sequence[Vector]) -> Vector:
            sum_ = self._sums[op]
            values = [each[0] if isinstance(each, list) else each for each in given]
            terms = [replace(t, value=v) for t, v in zip(sum_.terms, values, strict=True)]
            rounded = requantize(terms, sum_.zero_points, sum_.storage, self.how)
            return [saturate(rounded.value, sum_.storage, rounded.bound)]

        [found] = self._written([sums], self.operations, requantized)
        return found

    def estimate(
        self,
        forms: Sequence[Columns],
        sums: Sequence[ArrayLike],
        target: InstructionSet,
        are_asked: Sequence[bool],
    ) -> tuple[ArrayLike, ArrayLike | None]:
        """Write the operations on vectors of sums, as floats tell what they give.

        Args:
            forms: the columns of each vector.
            sums: as many vectors as are narrowed together, or less.
            target: what it is written with.
            are_asked: of each vector, if floats may not tell all its sums.

        Returns:
            The results, one behind the other, and whether a sum is too near to a tie: then they
            are nothing. That is None if floats tell all sums.
        """
        found, asked = self._estimated(forms, sums, target, are_asked)
        return found, asked.is_near(forms[0])

    def _estimated(
        self,
        forms: Sequence[Columns],
        sums: Sequence[ArrayLike],
        target: InstructionSet,
        are_asked: Sequence[bool],
    ) -> tuple[ArrayLike, _Asked]:
        if not self._is_requantized:
            return self._estimated_step(forms, sums, target, are_asked)
        asked = _Asked(target, are_asked)

        def requantized(op: Operation, given: Sequence[Vector]) -> Vector:
            line, values = self._line_of(op, target), given[0]
            if line is None or not isinstance(values, list) or len(values) != len(forms):
                raise _Refused
            storage = self._sums[op].storage
            return [self._narrowed(asked.rounded(line, forms, values), storage, target)]

        written = self._written(sums, self.operations, requantized)
        if not asked.is_asked or len(written) > 1:
            raise _Refused
        return written[0], asked

    def _estimated_step(
        self,
        forms: Sequence[Columns],
        sums: Sequence[ArrayLike],
        target: InstructionSet,
        are_asked: Sequence[bool],
    ) -> tuple[ArrayLike, _Asked]:
        """Write what floats tell of a staircase; as `estimate`."""
        stairs, line = self._staircase, self._line(target)
        if stairs is None or line is None:
            raise _Refused
        asked, x = _Asked(target, are_asked), list(sums)
        if self.initial_accumulators is None:
            added = stairs.added.astype(np.int64)
            x = [each + form.known(added, I32) for form, each in zip(forms, sums, strict=True)]
        integers = asked.rounded(line, forms, x)
        first, last = self._head[-1].results[0], self.operations[len(self._head) :]
        element = storage_element(first.type)
        assert element is not None  # it has 8 bits
        storage = StorageType(8, stairs.low < 0, stairs.low, stairs.high)
        result = bits_of(self._narrowed(integers, storage, target), element)
        if last:
            [result] = self._written([result], last, _no_requantization, of=first)
        return result, asked

    def _narrowed(
        self, integers: Sequence[ArrayLike], storage: StorageType, target: InstructionSet
    ) -> ArrayLike:
        """Vectors of integers as one of bytes, clamped."""
        found = target.narrow_to_8_bits(integers, I8 if storage.signed else U8)
        joined = Columns(found.form.lanes, self.columns, _refuse)
        return _clamped(joined.emitted(found.value, found.element), storage)

    @cached_property
    def _tables(self) -> dict[Hashable, Table | int | float]:
        """What arrays are, which all vectors have: see `Columns`."""
        return {}

    @cached_property
    def _added(self) -> dict[tuple[Value, Value | None], Array]:
        """Known numbers that are added to the second of two values, for the first."""
        return {}

    @cached_property
    def _head(self) -> tuple[Operation, ...]:
        """The operations up to the first that gives 8 bits; none if there is no such."""
        for number, op in enumerate(self.operations):
            if storage_element(op.results[0].type) in (I8, U8):
                return self.operations[: number + 1]
        return ()

    @cached_property
    def initial_accumulators(self) -> Array | None:
        """What sums begin with, which the operations would add; a grid, or None for nothing."""
        if not self.folds_bias or storage_element(self.sums.type) != I32:
            return None
        if not self._is_requantized and self._staircase and self._line_of_staircase:
            return wrapped(self._staircase.added.astype(np.int64), I32.bits)
        value, numbers = self.sums, np.zeros((), np.int64)
        for op in self.operations:
            if op.operands[0] != value or not self._is_added(op):
                break
            numbers = numbers + _SIGNS[op.name] * self.known[op.operands[1]]
            value = op.results[0]
        return wrapped(numbers, I32.bits) if numbers.any() else None

    def _is_added(self, op: Operation) -> bool:
        """True if a known number is added to integers: sums of floats are rounded."""
        element = storage_element(op.results[0].type)
        assert element is not None  # `_is_computed`
        return op.name in _SIGNS and op.operands[1] in self.known and element.is_integer

    @property
    def _is_requantized(self) -> bool:
        return any(op.name in REQUANTIZE for op in self.operations)

    @cached_property
    def _lines(self) -> dict[Hashable, Line | None]:
        """What was found by `_line` and `_line_of`."""
        return {}

    def _line(self, target: InstructionSet) -> Line | None:
        """The line of the staircase, if a float tells where it is."""
        stairs, line = self._staircase, self._line_of_staircase
        if stairs is None or line is None or not target.has_fma:
            return line
        if None not in self._lines:
            self._lines[None] = line.certain(lambda x: self._steps(stairs, x))
        return self._lines[None]

    @cached_property
    def _line_of_staircase(self) -> Line | None:
        """That line, with the floats next to it."""
        stairs = self._staircase
        if stairs is None:
            return None
        limits, added = (stairs.low, stairs.high), stairs.added.astype(np.int64)
        between = added - stairs.bounds, added + stairs.bounds
        near = _error(stairs.offset, *limits) + stairs.apart
        jump = stairs.jump if stairs.jump.any() else None
        line = Line.of(stairs.slope, stairs.offset, jump, limits, between, near)
        is_narrow = between[0].min() > -(1 << 31) and between[1].max() < 1 << 31
        return line if is_narrow else None

    def _steps(self, stairs: MonotoneRequant, x: Array) -> Array:
        """What the operations make of sums to which something was added; bytes without a sign."""
        sums = x - stairs.added.astype(np.int64)
        [found] = self._written([sums], self._head, _no_requantization, folds_bias=False)
        steps = np.asarray(found).astype(np.int64)
        return steps if stairs.low < 0 else steps & 255

    def _line_of(self, op: Operation, target: InstructionSet) -> Line | None:
        """The line of a requantization, if floats are asked."""
        key = op, target.has_fma
        if key in self._lines:
            return self._lines[key]
        sum_, line = self._sums[op], None
        near, storage = self._nearness(sum_), sum_.storage
        if near is not None:
            (term,) = sum_.terms
            limits, bound = (storage.minimum, storage.maximum), min(term.bound, (1 << 31) - 1)
            between = np.array(-bound), np.array(bound)
            slope = term.multiplier.astype(np.float64)
            line = Line.of(slope, sum_.zero_points, None, limits, between, near)

            def exact(x: Array) -> Array:
                rounded = requantize([replace(term, value=x)], sum_.zero_points, storage, self.how)
                found = np.clip(rounded.value, *limits)
                return np.asarray(found)

            if line is not None and target.has_fma:
                line = line.certain(exact)
        self._lines[key] = line
        return line

    @cached_property
    def _staircase(self) -> MonotoneRequant | None:
        """What becomes of sums, if that is known to be a staircase."""
        head = self._head
        if self.integer_only or self.bounds is None or not head:
            return None

        def exact(sums: Array) -> Array:
            [found] = self._written([sums], head, _no_requantization, folds_bias=False)
            return np.asarray(found)

        shape = [1] * len(self.sums.type.shape)
        shape[self.axis] = self.columns
        bounds = self.bounds().reshape(shape)
        return monotone_requant(
            head,
            self.sums,
            self.known,
            bounds,
            lambda value: storage_element(value.type),
            exact,
        )

    def _written(
        self,
        given: Sequence[ArrayLike],
        operations: Sequence[Operation],
        requantized: Callable[[Operation, Sequence[Vector]], Vector],
        *,
        of: Value | None = None,
        folds_bias: bool = True,
    ) -> list[ArrayLike]:
        """Write operations on some vectors, and return their last results.

        Args:
            given: the vectors.
            operations: of them.
            requantized: what is written for a requantization.
            of: the value that they are; None for the sums.
            is_begun: sums begin with `initial_accumulators`, if there is such.
        """
        made: dict[Value | None, list[ArrayLike]] = {of or self.sums: list(given)}
        added: dict[Value, tuple[Value | None, Array]] = {}  # known numbers that are not added yet
        if of is None and folds_bias and self.initial_accumulators is not None:
            made = {None: list(given)}
            added[self.sums] = None, wrapped(-self.initial_accumulators, I32.bits)

        def total(value: Value) -> list[ArrayLike]:
            if value not in made:
                start, numbers = added[value]
                terms = made[start]
                made[value] = [each + numbers for each in terms] if numbers.any() else terms
            return made[value]

        for op in operations:
            (value,), operands = op.results, list(op.operands)
            element = storage_element(value.type)
            assert element is not None  # `_is_computed`
            if self._is_added(op):
                start, numbers = added.get(operands[0], (operands[0], np.zeros((), np.int64)))
                if (value, start) not in self._added:
                    numbers = numbers + _SIGNS[op.name] * self.known[operands[1]]
                    self._added[value, start] = wrapped(numbers, element.bits)
                added[value] = start, self._added[value, start]
                continue
            read = [self.known[each] if each in self.known else total(each) for each in operands]
            if op.name in REQUANTIZE:
                results = requantized(op, read)
            else:
                results = [
                    _emitted(_RULES[op.name](op, *each), element, each)
                    for each in zip(*_alike(read), strict=True)
                ]
            made[value] = [
                result if element == BOOL else convert(result, element) for result in results
            ]
        return total(operations[-1].results[0])

    # Requantizations are read once for all vectors, as fractions are slow.

    @cached_property
    def _sums(self) -> dict[Operation, RequantizedSum]:
        return {op: read_requantize(op) for op in self.operations if op.name in REQUANTIZE}

    def _nearness(self, sum_: RequantizedSum) -> float | None:
        """How near to a half a float does not tell; None where floats are not asked."""
        if self.integer_only or len(sum_.terms) > 1 or sum_.storage.width > U8.bits:
            return None
        (term,) = sum_.terms
        multiplier = term.multiplier.astype(np.float64)
        is_plain = multiplier.size and multiplier.min() > 2.0**-64 and multiplier.max() < 2.0**64
        if not is_plain or term.bound > 1 << 31:
            return None
        limits = (sum_.storage.minimum, sum_.storage.maximum)
        reach = 1 + max(int(np.abs(limit - sum_.zero_points).max()) for limit in limits)
        most = 1 + max(abs(limit) for limit in limits)
        near = (3 * reach + most) * 2.0**-24 + 2.0**-19
        if self.how.kind == "fixed-point":
            _, shift = multiplier_and_shift(term.multiplier)
            near += reach * 2.0**-30
            if self.how.rounding in _ROUNDED_TWICE:
                near += 2.0 ** -min(int(shift.min()) - 30, 64)
        return near


@dataclass
class _Asked:
    """Floats that are asked, and how near they were to a half.

    Attributes:
        target: what it is written with.
        are_asked: of each vector, if floats may not tell all its sums.
        distances: of such floats from the nearest integers.
        nearest: the distance from a half up to which they do not tell.
        told: columns of which all is told.
        is_asked: there were floats.
    """

    target: InstructionSet
    are_asked: Sequence[bool] = ()
    distances: list[ArrayLike] = field(default_factory=list)
    nearest: float = 0.0
    told: Array = field(default_factory=lambda: np.ones(1, bool))
    is_asked: bool = False

    def parts(self, columns: int, parts: int) -> list[bool]:
        """Of each of so many vectors that are computed together, if it has columns to ask about."""
        width = parts * self.target.lanes
        told = np.broadcast_to(self.told, [columns])
        padded = np.pad(told, [(0, -columns % width)], constant_values=True)
        of_parts = padded.reshape((-1, parts, self.target.lanes))
        return [not of_parts[:, part].all() for part in range(parts)]

    def rounded(
        self, line: Line, forms: Sequence[Columns], given: Sequence[ArrayLike]
    ) -> list[ArrayLike]:
        """The nearest integers of the floats of vectors."""
        target, made = self.target, []
        for form, each, is_asked in zip(forms, given, self.are_asked, strict=True):
            x = convert(each, F32)
            real = target.fma(x, form.known(line.factors, F32), form.known(line.offsets, F32))
            if line.jumps is not None:
                jump = bits_of(form.known(line.jumps, F32), I32)
                real = real + bits_of(jump | (bits_of(x, I32) & _SIGN), F32)
            real = target.clamp_for_rounding(real, line.greatest, line.low, line.high)
            made.append(target.round_to_i32(real))
            if is_asked and not line.told.all():
                self.distances.append(target.distance_to_integer(real))
        self.nearest, self.is_asked = max(self.nearest, line.near), True
        self.told = self.told & line.told
        return made

    def is_near(self, form: Columns) -> ArrayLike | None:
        """True if one of the floats was too near to a half to tell; None if all tell."""
        if not self.distances:
            return None
        greatest = self.target.max_magnitude(self.distances)
        limit = form.known(np.full(1, 0.5 - self.nearest, np.float32), F32)
        return reduce_lanes("or", greatest >= limit)


def _error(offset: Array, low: int, high: int) -> float:
    """How far off the float of a staircase is, where it is not clamped.

    As in the module's text, ``3 R + S`` parts in ``2**24``; the offset is rounded, too, and there
    may be a jump, after which the sum is rounded once more.
    """
    reach = 1 + max(float(np.abs(limit - offset).max()) for limit in (low, high))
    most = 1 + max(abs(low), abs(high))
    return (3 * reach + 2 * most + float(np.abs(offset).max())) * 2.0**-24 + 2.0**-20


def _no_requantization(op: Operation, given: Sequence[Vector]) -> Vector:
    """There is none among the operations of a staircase."""
    raise _Refused


def _alike(given: Sequence[Vector]) -> list[list[ArrayLike]]:
    """Operands with as many vectors each; known numbers are the same for all."""
    count = max(len(each) for each in given if isinstance(each, list))
    return [each if isinstance(each, list) else [each] * count for each in given]


def _emitted(found: ArrayLike, element: ElementType, operands: Sequence[ArrayLike]) -> ArrayLike:
    """What was found of operands; numbers that follow whatever those are as a value like them."""
    form = next((each.form for each in operands if not is_known(each)), None)
    return form.known(found, element) if form is not None and is_known(found) else found


def _clamped(bytes_: ArrayLike, storage: StorageType) -> ArrayLike:
    """Bytes to a storage range, which may be that of all bytes."""
    low, high = (-128, 127) if storage.signed else (0, 255)
    if storage.minimum > low:
        bytes_ = np.maximum(bytes_, storage.minimum)
    if storage.maximum < high:
        bytes_ = np.minimum(bytes_, storage.maximum)
    return convert(bytes_, storage.element)


def _refuse(table: Table) -> ArrayLike:
    """Columns of vectors that are one behind the other are not read."""
    raise _Refused


def _grid(value: Value, shape: Sequence[int], axis: int) -> Array | None:
    """Known numbers that differ along one axis at most, with one axis for each of a shape."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    array: Array | None
    if op.name in _CASTS:
        return _grid(op.operands[0], shape, axis)
    if op.name == "stablehlo.constant" and op.attributes["value"].is_splat:
        given = op.attributes["value"]
        type_ = tensor_type([1] * len(shape), given.type.element_type)
        array = array_of_dense(ir.DenseElementsAttr.get_splat(type_, given.get_splat_value()))
        array = array.astype(np.int64) if array.dtype.kind == "i" else array
    elif op.name == _BROADCAST:
        array, extents = constant_elements(op.operands[0]), [1] * len(shape)
        axes = [int(each) for each in op.attributes["broadcast_dimensions"]]
        for each, extent in zip(axes, op.operands[0].type.shape, strict=True):
            extents[each] = int(extent)
        array = array if array is None else array.reshape(extents)
    else:
        array = constant_elements(value)
    if array is None:
        return None
    if storage_element(value.type) == BOOL:
        array = array.astype(np.bool_)
    if array.ndim != len(shape):
        return array.reshape(()) if array.size == 1 else None
    for each in range(array.ndim):
        if each != axis and array.shape[each] > 1:
            first = array.take([0], each)
            if not (array == first).all():
                return None
            array = first
    return array


def _endings(sums: Value, operations: Sequence[Operation]) -> list[list[Operation]]:
    """What computes the results of operations, where nothing of it is used elsewhere."""
    results = [op.results[0] for op in operations]
    number_of = {value: number for number, value in enumerate(results)}
    reads = [{number_of[value] for value in op.operands if value in number_of} for op in operations]
    numbers = {op: number for number, op in enumerate(operations)}
    users = [
        {numbers.get(use.owner.operation, -1) for use in value.uses} for value in (sums, *results)
    ]
    endings = []
    for last, result in enumerate(results):
        element = result.type.element_type
        is_integer = isinstance(element, ir.IntegerType) and element.is_signless
        if not (is_integer or isinstance(element, ir.F32Type)) or element.width not in (8, 16, 32):
            continue
        needed, pending = {last}, [last]
        while pending:
            more = reads[pending.pop()] - needed
            needed |= more
            pending += more
        if all(users[0 if n == last else n + 1] <= needed for n in needed):
            endings.append([operations[number] for number in sorted(needed)])
    return endings


# -- in a kernel ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedEpilogue:
    """What a kernel does with a vector of sums before it writes it.

    Attributes:
        text: what is written; those of equal text do the same.
        match: the operations.
        tables: what they read.
        element: what they give.
        instructions: a name in `INSTRUCTION_SETS`.
        vectors_per_estimate: how many vectors are estimated together; 0 where floats are not asked.
        are_asked: of each of the vectors that are computed together, if floats may not tell all
            its sums.
        kinds: of the tables, element types and whether they are of one number: equal texts read
            them from other bindings where these differ.
    """

    text: str
    match: EpilogueMatch = field(compare=False)
    tables: tuple[Table, ...] = field(compare=False)
    element: ElementType
    instructions: str
    vectors_per_estimate: int
    are_asked: tuple[bool, ...]
    kinds: tuple[tuple[ElementType, bool], ...] = field(init=False)

    def __post_init__(self) -> None:
        kinds = tuple((table.element, table.is_one) for table in self.tables)
        object.__setattr__(self, "kinds", kinds)

    @property
    def needs_fallback(self) -> bool:
        """True if some estimates may be near a tie, so that exact operations follow them."""
        return any(self.are_asked)

    @property
    def initial_accumulators(self) -> Array:
        """What the sums of each column begin with, i32."""
        initial_accumulators = self.match.initial_accumulators
        flat = (
            np.zeros(1, np.int64)
            if initial_accumulators is None
            else initial_accumulators.reshape(-1)
        )
        return np.broadcast_to(flat, [self.match.columns]).astype(np.int32)

    def _memories(self) -> list[list[Table]]:
        """The tables, those of one element type together."""
        found: dict[object, list[Table]] = {}
        for table in self.tables:
            found.setdefault((table.element, table.is_one), []).append(table)
        return list(found.values())

    def bindings(self, width: int) -> list[Binding]:
        """How a kernel reads the tables.

        Args:
            width: columns, with those that are there to fill vectors.
        """
        lanes = INSTRUCTION_SETS[self.instructions].lanes
        return [
            Binding((len(tables), lanes if tables[0].is_one else width), tables[0].element)
            for tables in self._memories()
        ]

    def operands(self, width: int) -> list[Value]:
        """The tables as tensors, for `bindings`."""
        made = []
        for tables in self._memories():
            element = tables[0].element
            rows = [np.frombuffer(table.numbers, element.dtype) for table in tables]
            missing = 0 if tables[0].is_one else width - len(rows[0])
            made.append(value_of(np.pad(np.stack(rows), [(0, 0), (0, missing)]), element))
        return made

    def emit(self, memories: Sequence[Value], sums: ArrayLike, column: ArrayLike) -> ArrayLike:
        """Write it for a vector of sums, exactly.

        Args:
            memories: of `bindings`.
            sums: of the element type of the contraction.
            column: the first.
        """
        form = self._columns(memories, column, shares=self.vectors_per_estimate > 0)
        return self.match.emit(form, form.emitted(sums.value, sums.element))

    def estimate(
        self,
        memories: Sequence[Value],
        sums: Sequence[ArrayLike],
        columns: Sequence[ArrayLike],
        parts: Sequence[int] = (),
    ) -> tuple[ArrayLike, ArrayLike | None]:
        """Write it for some vectors of sums, `vectors_per_estimate` or less, as floats tell.

        Args:
            memories: of `bindings`.
            sums: i32.
            columns: the first one of each vector.
            parts: their numbers among those that are computed together, if they are known.

        Returns:
            The results, one behind the other, and whether they are none: a sum is near a tie. None
            if they always are some.
        """
        forms = [self._columns(memories, column, shares=True) for column in columns]
        given = [form.emitted(each.value, I32) for form, each in zip(forms, sums, strict=True)]
        are_asked = self.are_asked
        asked = [are_asked[part % len(are_asked)] for part in parts] or [self.needs_fallback] * len(
            sums
        )
        return self.match.estimate(forms, given, INSTRUCTION_SETS[self.instructions], asked)

    def _columns(self, memories: Sequence[Value], column: ArrayLike, *, shares: bool) -> Columns:
        """A vector of columns, which reads the tables."""
        places = {
            table: (memory, row)
            for memory, tables in zip(memories, self._memories(), strict=True)
            for row, table in enumerate(tables)
        }
        lanes = INSTRUCTION_SETS[self.instructions].lanes

        def read(table: Table) -> ArrayLike:
            memory, row = places[table]
            return load(memory, [row, 0 if table.is_one else column.value], lanes, table.element)

        known = self.match._tables
        return Columns(lanes, self.match.columns, read, shares=shares, known=known)


def epilogue_bindings(
    epilogue: FusedEpilogue | None,
    width: int,
    shape: tuple[int | None, ...],
    sums: ElementType = I32,
) -> list[Binding]:
    """What the bindings of a kernel of sums end with: the tables of `epilogue`, and the result.

    Args:
        epilogue: what is done with the sums, or None.
        width: columns, with those that are there to fill vectors.
        shape: of the result.
        sums: their element type.
    """
    if epilogue is None:
        return [Binding(shape, sums)]
    return [*epilogue.bindings(width), Binding(shape, epilogue.element)]
