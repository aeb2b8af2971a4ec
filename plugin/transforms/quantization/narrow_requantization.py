"""``narrow-requantization``: integers that have the unit of their sum are added as they are.

Each ``subquant.requantize`` says how great its integers can be. What computes them may say more:
the sums of a convolution are far from what 32 bits can hold, and a bias is a constant. With smaller
bounds the arithmetic needs fewer digits. And where ``sum_k |M_k - 1| * bound_k`` is less than half,
rounding ``sum_k d_k * M_k`` gives ``sum_k d_k`` for all integers ``d_k`` that there can be: the
multipliers ``M_k``, ratios of scales that are meant to be 1, need not be multiplied with. (Of half,
``2**-20`` is left for what counts as a tie; see `subquant.numerics.requantization`.)

Before::

    %a = "subquant.requantize"(%sums) {bounds = array<i64: 65024>, ...}
         : (tensor<4xi32>) -> tensor<4xi32>
    %q = "subquant.scast"(%a) : (tensor<4xi32>) -> tensor<4x!quant.uniform<i32:f32, 0.125>>
    %d = "subquant.subtract_zero_point"(%q) : (...) -> tensor<4xi64>
    %s = "subquant.requantize_2"(%d, %bias) {bounds = array<i64: 2147483648, 300>, ...}
         : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi32>

After::

    %s = stablehlo.add %sums, %bias : tensor<4xi32>

Source: the lowering's "Adding Bias": a bias has the scale of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense
from ...dialects.grids import grids_of
from ...dialects.integer_steps import read_requantize
from ...dialects.quant import element_type, parameters_of
from ...dialects.subquant import REQUANTIZE
from ...emit import ArrayLike, stablehlo, tensor
from ...emit.casts import saturate
from ...emit.operation import integers, is_used, mlir_type, with_element
from ...emit.operation import value as emit_value
from ...errors import Remark
from ...numerics.element_types import I32, Array
from ...numerics.requantization import TIE_BITS, Term
from ..base import UNCHANGED, ModulePass, named
from .math.contraction import CONTRACTIONS, Contraction

__all__ = ["NarrowRequantization"]

_SUBTRACT = "subquant.subtract_zero_point"
_CASTS = ("subquant.scast", "quant.scast")
_MOVEMENT = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")
_REACH = 1 << 31


@dataclass(frozen=True)
class NarrowRequantization(ModulePass):
    """Give every requantization the bounds that follow from its operands, and drop those of 1."""

    name: ClassVar[str] = "narrow-requantization"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Narrow in `module`, which `verify-quantization` has accepted; never fails."""
        found = named(module, REQUANTIZE)
        if not found:
            return UNCHANGED
        bounds = _Bounds()
        unused: list[Operation] = []
        for op in found:
            with ir.InsertionPoint(op), op.location:
                unused += _narrow(op, bounds)
        # At the end: a new value could have the place of an erased one, and `bounds` would know it.
        for op in dict.fromkeys(unused):
            if not any(map(is_used, op.results)):
                op.erase()
        return None


def _narrow(op: Operation, bounds: _Bounds) -> list[Operation]:
    """Narrow a requantization, and return what is perhaps not needed any more."""
    sum_ = read_requantize(op)
    found = [min(term.bound, bounds.of(term.value)) for term in sum_.terms]
    terms = [
        Term(term.value, bound, term.multiplier)
        for term, bound in zip(sum_.terms, found, strict=True)
    ]
    unused: list[Operation] = []
    if max(found) < _REACH:
        for owner in [value.owner for value in op.operands]:
            if _is_subtraction(owner):
                unused += [owner.operation, *_cast_before(owner.operation)]
        for index, value in enumerate(op.operands):
            op.operands[index] = _narrowed(value)
    greatest = sum(found) + int(np.abs(sum_.zero_points).max(initial=0))
    if greatest < _REACH and _is_sum(terms):
        total: ArrayLike = None
        for value, term in zip(op.operands, terms, strict=True):
            number, is_positive = tensor(value), _sign(term) > 0
            if total is None:
                total = number if is_positive else -number
            else:
                total = total + number if is_positive else total - number
        if sum_.zero_points.any():
            total = total + sum_.zero_points
        stored = saturate(total, sum_.storage, greatest)
        bounds.learn(stored, greatest)
        op.results[0].replace_all_uses_with(stored)
        unused.insert(0, op)
    elif found != [term.bound for term in sum_.terms]:
        op.attributes["bounds"] = integers(found)
    return unused


def _sign(term: Term) -> int:
    return 1 if term.multiplier.reshape(-1)[0] > 0 else -1


def _is_sum(terms: Sequence[Term]) -> bool:
    """True where the nearest integer of the scaled sum is the sum, for all integers in bounds."""
    distance, most = Fraction(0), Fraction(1, 2) - Fraction(1, 1 << TIE_BITS)
    for term in terms:
        sign, greatest = _sign(term), Fraction(0)
        for multiplier in term.multiplier.reshape(-1):
            greatest = max(greatest, term.bound * abs(multiplier - sign))
            if distance + greatest >= most:  # of most terms the first number tells: it is slow
                return False
        distance += greatest
    return True


def _narrowed(value: Value) -> Value:
    """Integers that 32 bits hold, in 32 bits."""
    if value.type.element_type.width == 32:
        return value
    owner = value.owner
    if _is_subtraction(owner):
        quantized = owner.operation.operands[0]
        storage = _storage(quantized)
        if storage.type.element_type.width == 32 and not _zero_points(quantized).any():
            return storage
    return stablehlo.convert(value, mlir_type(I32))


def _zero_points(value: Value) -> Array:
    parameters = parameters_of(value.type)
    assert parameters is not None  # verified before
    return parameters.zero_points


def _is_subtraction(owner: Any) -> bool:
    return not isinstance(owner, ir.Block) and bool(owner.operation.name == _SUBTRACT)


def _cast_before(op: Operation) -> list[Operation]:
    owner = op.operands[0].owner
    is_cast = not isinstance(owner, ir.Block) and owner.operation.name in _CASTS
    return [owner.operation] if is_cast else []


def _storage(value: Value) -> Value:
    """The storage values of quantized ones."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.operation.name in _CASTS:
        return owner.operation.operands[0]
    storage = with_element(value.type, element_type(value.type).storage_type)
    return emit_value("subquant.scast", [value], storage)


class _Bounds:
    """The greatest magnitudes of integers, by what computes them."""

    def __init__(self) -> None:
        self._known: dict[Value, tuple[int, int]] = {}

    def of(self, value: Value) -> int:
        """The greatest magnitude of a value."""
        return max(map(abs, self._range(value)))

    def learn(self, value: Value, bound: int) -> None:
        """Take a bound for a value that is new."""
        self._known[value] = -bound, bound

    def _range(self, value: Value) -> tuple[int, int]:
        """The least and the greatest integer; of a quantized value, in its storage."""
        if value not in self._known:
            self._known[value] = self._computed(value)
        return self._known[value]

    def _computed(self, value: Value) -> tuple[int, int]:
        low, high = _type_range(value)
        owner = value.owner
        if isinstance(owner, ir.Block):
            return low, high
        op = owner.operation
        if op.name in CONSTANTS:
            array = array_of_dense(op.attributes["value"])
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        if op.name in (*_CASTS, *_MOVEMENT):
            least, greatest = self._range(op.operands[0])
        elif op.name == _SUBTRACT:
            least, greatest = self._range(op.operands[0])
            zero_points = _zero_points(op.operands[0])
            return least - int(zero_points.max()), greatest - int(zero_points.min())
        elif op.name in REQUANTIZE:
            found = read_requantize(op)
            reach = int(np.abs(found.zero_points).max(initial=0))
            for term in found.terms:
                most = max((abs(m) for m in term.multiplier.reshape(-1)), default=0)
                reach += math.ceil(term.bound * most)
            least = max(found.storage.minimum, -reach)
            greatest = min(found.storage.maximum, reach)
        elif op.name in CONTRACTIONS:
            weight = _differences(op.operands[1])
            if weight is None:
                return low, high
            sums = np.abs(weight).sum(axis=Contraction.of(op).right.contracted)
            greatest = int(sums.max(initial=0)) * self.of(op.operands[0])
            least = -greatest
        else:
            return low, high
        # An unsigned integer is a signed one in a constant.
        return (low, high) if least < low else (least, min(high, greatest))


def _differences(value: Value) -> Array | None:
    """Known integers with their zero points subtracted."""
    owner = value.owner
    if not _is_subtraction(owner):
        return None
    quantized = owner.operation.operands[0]
    parameters = parameters_of(quantized.type)
    stored = quantized.owner
    if isinstance(stored, ir.Block) or stored.operation.name not in _CASTS or parameters is None:
        return None
    constant = stored.operation.operands[0].owner
    if isinstance(constant, ir.Block) or constant.operation.name not in CONSTANTS:
        return None
    array = array_of_dense(constant.operation.attributes["value"]).astype(np.int64, copy=False)
    if not parameters.storage.signed:
        array &= (1 << parameters.storage.width) - 1
    _, zero_points = grids_of(parameters, array.shape)
    return np.asarray(array - zero_points)


def _type_range(value: Value) -> tuple[int, int]:
    """What a type can hold; narrow integers have a sign or none."""
    parameters = parameters_of(value.type)
    if parameters is not None:
        return parameters.storage.minimum, parameters.storage.maximum
    width = value.type.element_type.width
    return -(1 << (width - 1)), (1 << (width if width < I32.bits else width - 1)) - 1
