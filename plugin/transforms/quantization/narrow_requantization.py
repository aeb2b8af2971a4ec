"""``narrow-requantization``: add terms that already have the accumulator's scale unrescaled.

Each ``subquant.requantize`` has bounds on its integers. Their producers may imply smaller ones: the
accumulators of a convolution are far from overflowing 32 bits, and a bias is a constant. With
smaller bounds the arithmetic needs fewer bits. And if ``sum_k |M_k - 1| * bound_k < 1/2``, rounding
``sum_k d_k * M_k`` gives ``sum_k d_k`` for all integers ``d_k`` within bounds: the multipliers
``M_k``, ratios of scales that are meant to be 1, drop out. (``2**-20`` of the half is reserved as
the tie tolerance; see `subquant.numerics.requantization`.)

Before::

    %a = "subquant.requantize"(%sums) {bounds = array<i64: 65024>, ...}
         : (tensor<4xi32>) -> tensor<4xi32>
    %q = "subquant.scast"(%a) : (tensor<4xi32>) -> tensor<4x!quant.uniform<i32:f32, 0.125>>
    %d = "subquant.subtract_zero_point"(%q) : (...) -> tensor<4xi64>
    %s = "subquant.requantize_2"(%d, %bias) {bounds = array<i64: 2147483648, 300>, ...}
         : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi32>

After::

    %s = stablehlo.add %sums, %bias : tensor<4xi32>

Source: the lowering's "Adding Bias": a bias has the scale of the accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense
from ...dialects.grids import grids_of
from ...dialects.integer_steps import read_requantize
from ...dialects.quant import SCASTS, element_type, parameters_of
from ...dialects.stablehlo import CONTRACTIONS
from ...dialects.subquant import REQUANTIZE
from ...emit import ArrayLike, stablehlo, tensor
from ...emit.casts import saturate
from ...emit.operation import integers, is_used, mlir_type, with_element
from ...emit.operation import value as emit_value
from ...errors import Remark
from ...numerics.element_types import I32, Array
from ...numerics.requantization import TIE_BITS, Term
from ..base import UNCHANGED, ModulePass, named, producer_named, producer_of
from .math.contraction import Contraction

_SUBTRACT = "subquant.subtract_zero_point"
_MOVEMENT = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")
_I32_BOUND = 1 << 31
"""Integers of a smaller magnitude fit i32."""


@dataclass(frozen=True)
class NarrowRequantization(ModulePass):
    """Tighten the bounds of every requantization, and drop those that rescale by 1."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Narrow in `module`, which `verify-quantization` has accepted; never fails."""
        requantizations = named(module, REQUANTIZE)
        if not requantizations:
            return UNCHANGED
        bounds = _Bounds()
        unused: list[Operation] = []
        for op in requantizations:
            with ir.InsertionPoint(op), op.location:
                unused += _narrow(op, bounds)
        # At the end: a new value could have the address of an erased one, a key of `bounds`.
        for op in dict.fromkeys(unused):
            if not any(map(is_used, op.results)):
                op.erase()
        return None


def _narrow(op: Operation, bounds: _Bounds) -> list[Operation]:
    """Narrow a requantization, and return operations that may be unused now."""
    step = read_requantize(op)
    tightened = [min(term.bound, bounds.of(term.value)) for term in step.terms]
    terms = [replace(term, bound=n) for term, n in zip(step.terms, tightened, strict=True)]
    unused: list[Operation] = []
    if max(tightened) < _I32_BOUND:
        for producer in (producer_named(value, _SUBTRACT) for value in op.operands):
            if producer is not None:
                cast = producer_named(producer.operands[0], *SCASTS)
                unused += [producer, *([] if cast is None else [cast])]
        for index, value in enumerate(op.operands):
            op.operands[index] = _narrowed(value)
    greatest = sum(tightened) + int(np.abs(step.zero_points).max(initial=0))
    if greatest < _I32_BOUND and _rounds_to_sum(terms):
        total: ArrayLike = None
        for value, term in zip(op.operands, terms, strict=True):
            number, is_positive = tensor(value), _sign(term) > 0
            if total is None:
                total = number if is_positive else -number
            else:
                total = total + number if is_positive else total - number
        if step.zero_points.any():
            total = total + step.zero_points
        stored = saturate(total, step.storage, greatest)
        bounds.record(stored, greatest)
        op.results[0].replace_all_uses_with(stored)
        unused.insert(0, op)
    elif tightened != [term.bound for term in step.terms]:
        op.attributes["bounds"] = integers(tightened)
    return unused


def _sign(term: Term) -> int:
    return 1 if term.multiplier.reshape(-1)[0] > 0 else -1


def _rounds_to_sum(terms: Sequence[Term]) -> bool:
    """True if the nearest integer of the scaled sum is the sum, for all integers in bounds."""
    distance, limit = Fraction(0), Fraction(1, 2) - Fraction(1, 1 << TIE_BITS)
    for term in terms:
        sign, greatest = _sign(term), Fraction(0)
        for multiplier in term.multiplier.reshape(-1):
            greatest = max(greatest, term.bound * abs(multiplier - sign))
            if distance + greatest >= limit:  # early, as fractions are slow
                return False
        distance += greatest
    return True


def _narrowed(value: Value) -> Value:
    """Convert integers that fit i32 to i32."""
    if value.type.element_type.width == 32:
        return value
    producer = producer_named(value, _SUBTRACT)
    if producer is not None:
        quantized = producer.operands[0]
        storage = _storage(quantized)
        if storage.type.element_type.width == 32 and not _zero_points(quantized).any():
            return storage
    return stablehlo.convert(value, mlir_type(I32))


def _zero_points(value: Value) -> Array:
    parameters = parameters_of(value.type)
    assert parameters is not None  # verified before
    return parameters.zero_points


def _storage(value: Value) -> Value:
    """The storage values of quantized values."""
    cast = producer_named(value, *SCASTS)
    if cast is not None:
        return cast.operands[0]
    storage = with_element(value.type, element_type(value.type).storage_type)
    return emit_value("subquant.scast", [value], storage)


class _Bounds:
    """Bounds of integers that follow from the operations that compute them."""

    def __init__(self) -> None:
        self._ranges: dict[Value, tuple[int, int]] = {}

    def of(self, value: Value) -> int:
        """The greatest magnitude of a value."""
        return max(map(abs, self._range(value)))

    def record(self, value: Value, bound: int) -> None:
        """Record the bound of a new value."""
        self._ranges[value] = -bound, bound

    def _range(self, value: Value) -> tuple[int, int]:
        """The minimum and the maximum; of a quantized value, in its storage."""
        if value not in self._ranges:
            self._ranges[value] = self._computed(value)
        return self._ranges[value]

    def _computed(self, value: Value) -> tuple[int, int]:
        low, high = _type_range(value)
        op = producer_of(value)
        if op is None:
            return low, high
        if op.name in CONSTANTS:
            array = array_of_dense(op.attributes["value"])
            return (int(array.min()), int(array.max())) if array.size else (0, 0)
        if op.name in (*SCASTS, *_MOVEMENT):
            least, greatest = self._range(op.operands[0])
        elif op.name == _SUBTRACT:
            least, greatest = self._range(op.operands[0])
            zero_points = _zero_points(op.operands[0])
            return least - int(zero_points.max()), greatest - int(zero_points.min())
        elif op.name in REQUANTIZE:
            step = read_requantize(op)
            bound = int(np.abs(step.zero_points).max(initial=0))
            for term in step.terms:
                largest = max((abs(m) for m in term.multiplier.reshape(-1)), default=0)
                bound += math.ceil(term.bound * largest)
            least = max(step.storage.minimum, -bound)
            greatest = min(step.storage.maximum, bound)
        elif op.name in CONTRACTIONS:
            weight = _differences(op.operands[1])
            if weight is None:
                return low, high
            magnitudes = np.abs(weight).sum(axis=Contraction.of(op).right.contracted)
            greatest = int(magnitudes.max(initial=0)) * self.of(op.operands[0])
            least = -greatest
        else:
            return low, high
        # Constants hold unsigned integers as signed ones.
        return (low, high) if least < low else (least, min(high, greatest))


def _differences(value: Value) -> Array | None:
    """Constant integers less their zero points; None for computed operands."""
    subtraction = producer_named(value, _SUBTRACT)
    if subtraction is None:
        return None
    quantized = subtraction.operands[0]
    parameters, cast = parameters_of(quantized.type), producer_named(quantized, *SCASTS)
    if cast is None or parameters is None:
        return None
    constant = producer_named(cast.operands[0], *CONSTANTS)
    if constant is None:
        return None
    array = array_of_dense(constant.attributes["value"]).astype(np.int64, copy=False)
    if not parameters.storage.signed:
        array &= (1 << parameters.storage.width) - 1
    _, zero_points = grids_of(parameters, array.shape)
    return np.asarray(array - zero_points)


def _type_range(value: Value) -> tuple[int, int]:
    """The range of a type; integers below 32 bits may be signed or unsigned."""
    parameters = parameters_of(value.type)
    if parameters is not None:
        return parameters.storage.minimum, parameters.storage.maximum
    width = value.type.element_type.width
    return -(1 << (width - 1)), (1 << (width if width < I32.bits else width - 1)) - 1
