"""Chain of f32 operations after integer accumulators: scale, bias, activation, quantization.

Programs that write requantization as float arithmetic (PT2E of PyTorch, QDQ) have, after the i32
accumulators ``acc``::

    y = f32(acc) * scale + bias            scale and bias of each N
    y = max(y, 0)                          or another clamp, or none
    q = clamp(round(y * inverse) + zero_point) as 8 bits

Each operation of a chain has one operand that is not constant. The kernel computes the chain in the
program's order and rounds each operation once, so the result has the program's bits. A result of
f32 ends ahead of ``round``. With a result of 8 bits:

* The zero point is added, and the clamp computed, on integers. Reals are below 2**21, where both
  are equal: the operations are monotone, so the ends of the accumulators' range give the bound.
* A clamp ahead of rising operations ``g`` becomes a clamp of their result, as rounding is monotone:
  ``g(max(y, c)) = max(g(y), g(c))``.
* A fence separates products from sums: a compiler would compute both with one rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation
from ...emit import ArrayLike
from ...emit.stablehlo_semantics import storage_element
from ...emit.vectors import arithmetic_fence
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, I8, I32, U8, Array, ElementType
from ...numerics.parameters import StorageType
from ..isa.base import InstructionSet
from .matcher import OPERATIONS, EpilogueMatch
from .tables import ChannelVectors

_CLAMPS = ("stablehlo.clamp", "stablehlo.maximum", "stablehlo.minimum")
_CONVERT, _ROUND = "stablehlo.convert", "stablehlo.round_nearest_even"
_SUMS = ("stablehlo.add", "stablehlo.subtract")
_IS_LOW_BOUND = {
    "stablehlo.clamp": (True, False, False),
    "stablehlo.maximum": (True, True),
    "stablehlo.minimum": (False, False),
}
"""True for the operands of a clamp that bound its result from below."""
_MONOTONE = (*_CLAMPS, *_SUMS, _CONVERT, "stablehlo.multiply", "stablehlo.negate")
_MAX_REAL = 2.0**21
"""`InstructionSet.round_to_i32` is exact below this magnitude."""
_INTEGERS = np.arange(-(1 << 12), (1 << 12) + 1).astype(np.float32)
"""Rounded reals on which the operations after rounding are evaluated."""


@dataclass(frozen=True, eq=False)
class FloatChain:
    """Chain of operations on f32 after integer accumulators.

    Attributes:
        addend: constants that are added to the accumulators first.
        operations: the operations on f32, up to the real that is rounded or up to the result.
        zero_point: the number that is added to the rounded real.
        storage: type and range of a result of 8 bits; None for a result of f32.
    """

    match: EpilogueMatch
    addend: Array
    operations: tuple[Operation, ...]
    zero_point: int = 0
    storage: StorageType | None = None

    @classmethod
    def of(cls, match: EpilogueMatch, addend: Array) -> FloatChain | None:
        """Match an epilogue whose first operations add `addend`; None if it is not a chain."""
        operations, element = list(match.operations), storage_element(match.result.type)
        if storage_element(match.accumulators.type) != I32 or not _is_chain(match):
            return None
        while operations[0].name in _SUMS and operations[0].operands[1] in match.constants:
            operations.pop(0)
            if not operations:
                return None
        if operations[0].name != _CONVERT or _element_of(operations[0]) != F32:
            return None
        if element == F32:
            return cls(match, addend, tuple(operations))
        rounding = [index for index, op in enumerate(operations) if op.name == _ROUND]
        if element not in (I8, U8) or len(rounding) != 1 or match.accumulator_bounds is None:
            return None
        [index] = rounding
        quantization = _quantization(match, operations[index + 1 :])
        if quantization is None or any(op.name not in _MONOTONE for op in operations[:index]):
            return None
        zero_point, storage = quantization
        low, high = storage.minimum, storage.maximum
        before: list[Operation] = []
        for number in reversed(range(index)):
            op = operations[number]
            bounds = _bounds(match, op, operations[number + 1 :])
            if bounds is None:
                before.insert(0, op)
            else:
                low, high = max(low, bounds[0]), min(high, bounds[1])
        if low >= high:
            return None
        storage = replace(storage, minimum=low, maximum=high)
        chain = cls(match, addend, tuple(before), zero_point, storage)
        return chain if np.isfinite(chain._max_real()) else None

    def emit(
        self,
        forms: Sequence[ChannelVectors],
        accumulators: Sequence[ArrayLike],
        isa: InstructionSet,
        initial: Array | None,
    ) -> list[ArrayLike]:
        """Emit the chain for vectors of accumulators that started with `initial`.

        Returns:
            Vectors of f32, or of i32 that are within the storage range once they are saturated.
        """
        added = self.addend if initial is None else np.zeros((), np.int64)
        results = []
        for form, vector in zip(forms, accumulators, strict=True):
            x = vector + form.known(added, I32) if added.any() else vector
            for op, following in zip(self.operations, [*self.operations[1:], None], strict=True):
                x = self._apply(op, x)
                if op.name == "stablehlo.multiply" and following and following.name in _SUMS:
                    x = arithmetic_fence(x)
            results.append(x if self.storage is None else self._rounded(x, isa))
        return results

    def _rounded(self, real: ArrayLike, isa: InstructionSet) -> ArrayLike:
        assert self.storage is not None  # `emit`
        if self._max_real() >= _MAX_REAL:
            low, high = self.storage.minimum - 1, self.storage.maximum + 1
            limits = (np.float32(each - self.zero_point) for each in (low, high))
            real = np.minimum(np.maximum(real, next(limits)), next(limits))
        return isa.round_to_i32(real) + self.zero_point

    def _apply(self, op: Operation, x: ArrayLike) -> ArrayLike:
        return _apply(self.match, op, x)

    def _max_real(self) -> float:
        """The greatest magnitude of reals, evaluated at the ends of the accumulators' range."""
        assert self.match.accumulator_bounds is not None  # `of`
        shape = [1] * self.match.accumulators.type.rank
        shape[self.match.axis] = -1
        bounds = self.match.accumulator_bounds().reshape(shape)
        x = np.stack([-bounds, bounds]) + self.addend
        if np.abs(x).max() >= 1 << 31:
            return np.inf
        with np.errstate(all="ignore"):
            for op in self.operations:
                x = self._apply(op, x)
            return float(np.abs(x).max())


def _apply(match: EpilogueMatch, op: Operation, x: ArrayLike) -> ArrayLike:
    """Apply an operation of a chain to its operand that is not constant."""
    result = OPERATIONS[op.name](op, *(match.constants.get(each, x) for each in op.operands))
    return convert(result, _element_of(op))


def _element_of(op: Operation) -> ElementType:
    element = storage_element(op.results[0].type)
    assert element is not None  # `EpilogueMatch.of`
    return element


def _is_rising(match: EpilogueMatch, op: Operation) -> bool:
    """True if greater operands have results that are not less."""
    constant = next((match.constants[v] for v in op.operands if v in match.constants), None)
    if op.name == "stablehlo.multiply":
        return constant is not None and bool((constant >= 0).all())
    if op.name == "stablehlo.subtract":
        return op.operands[0] not in match.constants
    return op.name in (*_CLAMPS, _CONVERT, _ROUND, "stablehlo.add")


def _is_chain(match: EpilogueMatch) -> bool:
    """True if each operation reads the result before it, once, and constants."""
    value = match.accumulators
    for op in match.operations:
        read = [each for each in op.operands if each not in match.constants]
        if read != [value]:
            return False
        value = op.results[0]
    return True


def _quantization(
    match: EpilogueMatch, operations: Sequence[Operation]
) -> tuple[int, StorageType] | None:
    """Zero point and storage range that operations on rounded reals have; None if they differ.

    Sums with integers and clamps, a conversion to 8 bits and operations on these have the form
    ``clip(x + zero_point, low, high)``, whose numbers are those of their results on `_INTEGERS`.
    """
    names = [op.name for op in operations]
    count = names.index(_CONVERT) if _CONVERT in names else len(names)
    numbers = [match.constants[v] for op in operations for v in op.operands if v in match.constants]
    is_uniform = all(each.size == 1 and each.item() == np.rint(each.item()) for each in numbers)
    if not is_uniform or not {*names[:count]} <= {*_CLAMPS, *_SUMS} or count == len(names):
        return None
    results: Array = _INTEGERS
    for index, op in enumerate(operations):
        if index == count:
            low, high = (-128, 127) if _element_of(op) == I8 else (0, 255)
            if (
                results[0] < low
                or results[-1] > high
                or (results[[0, -1]] != results[[1, -2]]).any()
            ):
                return None  # it is not clamped
        results = _apply(match, op, results).reshape(-1)
    for element in (I8, U8):
        quantized = bits_of(results, element).astype(np.int64)
        low, high = int(quantized.min()), int(quantized.max())
        if low == high:
            return None  # it is clamped to one number
        inside = (low < quantized) & (quantized < high)
        zero_point = int((quantized - _INTEGERS)[inside][0]) if inside.any() else 0
        if np.array_equal(quantized, np.clip(_INTEGERS + zero_point, low, high)):
            return zero_point, StorageType(8, element == I8, low, high)
    return None


def _bounds(
    match: EpilogueMatch, op: Operation, following: Sequence[Operation]
) -> tuple[int, int] | None:
    """Least and greatest result that a clamp allows, given the operations after it.

    None for other operations, and where the bounds differ by N.
    """
    if op.name not in _CLAMPS or not all(_is_rising(match, each) for each in following):
        return None
    numbers = [match.constants.get(each) for each in op.operands]
    low, high = -256, 255
    for number, is_low in zip(numbers, _IS_LOW_BOUND[op.name], strict=True):
        if number is None:
            continue
        result = number
        for each in following:
            result = _apply(match, each, result)
        if (result != result.flat[0]).any():
            return None
        low, high = (int(result.flat[0]), high) if is_low else (low, int(result.flat[0]))
    return (low, high) if low <= high else None
