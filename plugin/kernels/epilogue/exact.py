"""Exact operations of a fused epilogue, emitted as the program has them.

The emitter runs on vectors of a kernel, and on NumPy arrays where a proof needs exact results.
Constants that are added one after the other become one addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ...core._mlir import Operation, Value
from ...dialects.integer_steps import RequantizedSum, read_requantize
from ...dialects.subquant import REQUANTIZE
from ...emit import ArrayLike
from ...emit.stablehlo_semantics import storage_element
from ...emit.vectors import arithmetic_fence
from ...numerics.array_functions import convert, is_known
from ...numerics.element_types import BOOL, F32, I32, Array, ElementType
from ...numerics.fixed_point import saturate
from ...numerics.packed_integers import wrapped
from .matcher import OPERATIONS, EpilogueMatch
from .tables import ChannelVectors, NotEmitted

Operand: TypeAlias = "list[ArrayLike] | Array"
"""An operand of an operation: vectors, or constants."""

_SIGNS = {"stablehlo.add": 1, "stablehlo.subtract": -1}


class ExactEpilogue:
    """Emitter of the operations of an epilogue."""

    def __init__(self, match: EpilogueMatch) -> None:
        self.match = match
        self._addends: dict[tuple[Value, Value | None], Array] = {}

    @cached_property
    def requantizations(self) -> dict[Operation, RequantizedSum]:
        """The requantizations, read once for all vectors: fractions are slow."""
        return {op: read_requantize(op) for op in self.match.operations if op.name in REQUANTIZE}

    @cached_property
    def leading_addend(self) -> Array:
        """The sum of the constants that the first operations add to the accumulators."""
        value, addend = self.match.accumulators, np.zeros((), np.int64)
        for op in self.match.operations:
            if op.operands[0] != value or not self._adds_constant(op):
                break
            addend = addend + self._addend(op)
            value = op.results[0]
        return addend

    def emit(
        self, form: ChannelVectors, accumulators: ArrayLike, initial: Array | None = None
    ) -> ArrayLike:
        """Emit the operations on a vector of accumulators and return the last result.

        `form` is the vector's N. Accumulators started with the numbers `initial`, if not with 0.
        """

        def emit_requantize(op: Operation, operands: Sequence[Operand]) -> Operand:
            requantized = self.requantizations[op]
            values = [each[0] if isinstance(each, list) else each for each in operands]
            rounded = requantized.rounded(values, self.match.requantization)
            return [saturate(rounded.value, requantized.storage, rounded.bound)]

        [result] = self.apply([accumulators], self.match.operations, emit_requantize, initial)
        return result

    def apply(
        self,
        operands: Sequence[ArrayLike],
        operations: Sequence[Operation],
        emit_requantize: Callable[[Operation, Sequence[Operand]], Operand],
        initial: Array | None = None,
        *,
        of: Value | None = None,
    ) -> list[ArrayLike]:
        """Apply operations to vectors, or NumPy arrays, and return their last results.

        The vectors hold the value `of`, by default the accumulators, which started with the numbers
        `initial` if not with 0.
        """
        results: dict[Value | None, list[ArrayLike]] = {
            of or self.match.accumulators: list(operands)
        }
        pending: dict[Value, tuple[Value | None, Array]] = {}  # constants that are not added yet
        if initial is not None:
            results = {None: list(operands)}
            pending[self.match.accumulators] = None, wrapped(-initial, I32.bits)

        def vectors_of(value: Value) -> list[ArrayLike]:
            if value not in results:
                start, addend = pending[value]
                terms = results[start]
                results[value] = [each + addend for each in terms] if addend.any() else terms
            return results[value]

        constants = self.match.constants
        for op in operations:
            (value,), operands_ = op.results, list(op.operands)
            element = storage_element(value.type)
            assert element is not None  # `EpilogueMatch.of`
            if self._adds_constant(op):
                start, addend = pending.get(operands_[0], (operands_[0], np.zeros((), np.int64)))
                if (value, start) not in self._addends:
                    total = addend + self._addend(op)
                    self._addends[value, start] = wrapped(total, element.bits)
                pending[value] = start, self._addends[value, start]
                continue
            read = [constants[v] if v in constants else vectors_of(v) for v in operands_]
            if op.name in REQUANTIZE:
                vectors = emit_requantize(op, read)
            else:
                count = max(len(each) for each in read if isinstance(each, list))
                by_operand = [each if isinstance(each, list) else [each] * count for each in read]
                vectors = [
                    _as_vector(OPERATIONS[op.name](op, *each), element, each)
                    for each in zip(*by_operand, strict=True)
                ]
            converted = [each if element == BOOL else convert(each, element) for each in vectors]
            if op.name == "stablehlo.multiply" and element == F32 and self._is_i32:
                converted = [
                    each if is_known(each) else arithmetic_fence(each) for each in converted
                ]
            results[value] = converted
        return vectors_of(operations[-1].results[0])

    @cached_property
    def _is_i32(self) -> bool:
        """True for accumulators of integers, after which f32 has the program's bits."""
        return storage_element(self.match.accumulators.type) == I32

    def _adds_constant(self, op: Operation) -> bool:
        """True for integers to which a constant is added; f32 additions round, so they stay."""
        element = storage_element(op.results[0].type)
        assert element is not None  # `EpilogueMatch.of`
        is_addition = op.name in _SIGNS and op.operands[1] in self.match.constants
        return is_addition and element.is_integer

    def _addend(self, op: Operation) -> Array:
        return np.asarray(_SIGNS[op.name] * self.match.constants[op.operands[1]])


def no_requantization(op: Operation, operands: Sequence[Operand]) -> Operand:
    """Refuse any operation: monotone requantizations consist of others."""
    raise NotEmitted


def _as_vector(result: ArrayLike, element: ElementType, operands: Sequence[ArrayLike]) -> ArrayLike:
    """A result as a vector like its operands, where it turned out to be constant."""
    form = next((each.form for each in operands if not is_known(each)), None)
    return form.known(result, element) if form is not None and is_known(result) else result
