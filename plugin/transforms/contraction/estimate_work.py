"""``estimate-work``: record how long a function takes on one thread, about (llvm-cpu).

Sharing a program takes threads some time, and more for each of its dispatches, which a small
program does not gain by them (`subquant.signature.Work.is_worth`): the runtime has the caller's own
thread run it. What it decides by is estimated here from shapes, as nanoseconds and as a number of
dispatches::

    func.func @main(%x: tensor<128x4096xi8>) -> tensor<128x4096xi32> {
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ...
      return %y : tensor<128x4096xi32>
    }

After, with ``instructions=avx512vnni``::

    func.func @main(%x: tensor<128x4096xi8>) -> tensor<128x4096xi32>
        attributes {subquant.work = "4720857 1"} ...

``check-hand-off`` writes that into the reflection of the function. Functions with dynamic shapes,
loops, or operations of other dialects than StableHLO's are left without.

The nanoseconds are those of an Emerald Rapids core: contractions as their kernels take, or IREE's
loops where they have none, but not less than to read the weight from memory; and little for each
element of other operations, which are fused. An error of a factor of two changes which of two ways
is taken where both take about as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.block_contraction import BlockContraction
from ...dialects.quant import element_type, parameters_of
from ...dialects.subquant import BLOCK_CONTRACTION
from ...dialects.windows import dot_axes
from ...errors import Remark
from ...kernels.isa.registry import INSTRUCTION_SETS
from ...signature import Work
from ..base import UNCHANGED, ModulePass, is_public, named

__all__ = ["WORK_ATTRIBUTE", "EstimateWork"]

WORK_ATTRIBUTE = "subquant.work"

_OF_BYTES = {
    "amx": 1350.0,
    "avx512vnni": 460.0,
    "avxvnni": 200.0,
    "avx2": 80.0,
    "neon-dotprod": 100.0,
    "portable": 15.0,
}
"""Products of 8-bit integers in a nanosecond, where a kernel multiplies with these instructions."""
_OF_CHANNELS = 40.0
"""The same where each channel has a window of its own, at most."""
_OF_BLOCKS = {"int8": 200.0, "float": 30.0}
"""Products with weights in blocks, by what activations are, at most those of bytes."""
_WITHOUT_KERNEL = 10.0
_READ = 25.0
"""Bytes of a weight that a core reads from memory in a nanosecond: few rows take as long."""
_OF_A_SUM, _OF_AN_ELEMENT, _OF_AN_ARGUMENT = 0.05, 0.01, 0.02
"""For each element of what a contraction gives, of another operation, of arguments and results.

A chain of operations on the same elements is one loop, or part of a kernel.
"""
_FREE = (
    *("arith.constant", "func.return", "quant.scast", "stablehlo.broadcast_in_dim"),
    *("stablehlo.constant", "stablehlo.reshape", "stablehlo.return", "subquant.scast"),
    *("tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "util.global.load"),
)
"""Operations that are parts of others, or nothing at all."""
_PRODUCTS = ("stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general", BLOCK_CONTRACTION)
_ALONE = (
    *("stablehlo.gather", "stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter"),
    *("stablehlo.concatenate", "stablehlo.sort", "stablehlo.fft"),
)
"""Operations that IREE makes dispatches of, beside contractions."""
_LONG = 10.0
"""How much longer an element of a sort takes, of a gather, of a scatter."""
_WIDENED = (
    *("stablehlo.and", "stablehlo.convert", "stablehlo.pad", "stablehlo.subtract"),
    "subquant.subtract_zero_point",
)
"""What is between integers of 8 bits and a contraction of them, in wider ones."""
_KNOWN = ("chlo.", "quant.", "stablehlo.", "subquant.")
_UNKNOWN = (
    *("stablehlo.case", "stablehlo.custom_call", "stablehlo.if", "stablehlo.while"),
    "subquant.attention",
)


@dataclass(frozen=True)
class EstimateWork(ModulePass):
    """Record an estimate of the work of each public function where there is one.

    Options:
        instructions: what kernels multiply with; ``none`` without kernels.
    """

    name: ClassVar[str] = "estimate-work"

    instructions: str = "none"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Estimate; adds attributes, and never fails."""
        functions = {op.attributes["sym_name"].value: op for op in named(module, ["func.func"])}
        for op in functions.values():
            if is_public(op):
                work = _Estimate(self.instructions, functions).of_function(op)
                if work is not None:
                    op.attributes[WORK_ATTRIBUTE] = ir.StringAttr.get(str(work))
        return UNCHANGED  # an attribute that no verifier knows


class _NoEstimate(Exception):
    """The work of something is not known."""


@dataclass(frozen=True)
class _Estimate:
    """How the work of functions is estimated.

    Attributes:
        instructions: what kernels multiply with.
        functions: by name.
    """

    instructions: str
    functions: Mapping[str, Operation]

    def of_function(self, function: Operation) -> Work | None:
        """The work of a function, or None."""
        try:
            nanoseconds, dispatches = self._of_body(function, frozenset())
            block = function.regions[0].blocks[0]
            given = [*block.arguments, *block.operations[len(block.operations) - 1].operands]
            nanoseconds += sum(map(_elements, given)) * _OF_AN_ARGUMENT
        except _NoEstimate:
            return None
        return Work(math.ceil(nanoseconds), max(1, dispatches))

    def _of_body(self, function: Operation, callers: frozenset[str]) -> tuple[float, int]:
        nanoseconds, dispatches = 0.0, 0
        if len(function.regions[0].blocks) != 1:
            raise _NoEstimate  # a declaration, or branches
        for each in function.regions[0].blocks[0].operations:
            op = each.operation
            if op.name == "func.call":
                more, others = self._of_call(op, callers)
                dispatches += others
            else:
                more = self._of_operation(op)
                dispatches += op.name in _PRODUCTS or op.name in _ALONE
            nanoseconds += more
        return nanoseconds, dispatches

    def _of_call(self, op: Operation, callers: frozenset[str]) -> tuple[float, int]:
        name = op.attributes["callee"].value
        if name in callers or name not in self.functions:
            raise _NoEstimate
        return self._of_body(self.functions[name], callers | {name})

    def _of_operation(self, op: Operation) -> float:
        if op.name in _FREE:
            return 0.0
        if op.name in _UNKNOWN or not op.name.startswith(_KNOWN):
            raise _NoEstimate
        if op.name in _PRODUCTS:
            return self._of_product(op) + _elements(op.results[0]) * _OF_A_SUM
        elements = max(_elements(value) for value in (*op.operands, *op.results))
        if op.name == "stablehlo.reduce_window":
            elements = _elements(op.results[0]) * math.prod(op.attributes["window_dimensions"])
        if op.name in ("stablehlo.gather", "stablehlo.scatter", "stablehlo.sort"):
            elements = round(_LONG * sum(_elements(value) for value in op.results))
        return elements * _OF_AN_ELEMENT

    def _of_product(self, op: Operation) -> float:
        target = INSTRUCTION_SETS.get(self.instructions)
        of_bytes = _OF_BYTES[target.family] if target else 0.0
        if op.name == BLOCK_CONTRACTION:
            contraction = BlockContraction.of(op)
            rate = min(_OF_BLOCKS[contraction.activation_type], of_bytes)
            bits = sum(contraction.plane_bits or (contraction.storage_type.width,))
            read = math.prod(contraction.storage_shape) * bits / 8
            products = _of_loops(contraction, op.results[0])
            return max(products / (rate or _WITHOUT_KERNEL), read / _READ)
        left, right = op.operands[:2]
        of_result, of_weight = _elements(op.results[0]), _elements(right)
        rate = of_bytes if _is_of_bytes(left) and _is_of_bytes(right) else 0.0
        if op.name == "stablehlo.convolution":
            numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            columns = int(right.type.shape[numbers.kernel_output_feature_dimension])
            summed = of_weight // max(1, columns)
            if int(op.attributes["feature_group_count"].value) > 1:
                rate = min(rate, _OF_CHANNELS)
        else:
            _elements(left)
            summed = math.prod(int(left.type.shape[axis]) for axis in dot_axes(op)[0][0])
        read = of_weight * (1 if rate else 4)
        return max(of_result * summed / (rate or _WITHOUT_KERNEL), read / _READ)


def _elements(value: Value) -> int:
    """How many elements a value has.

    Raises:
        _NoEstimate: that is known at run time only.
    """
    type_ = value.type
    if not isinstance(type_, ir.ShapedType):
        return 1
    if not type_.has_rank or not type_.has_static_shape:
        raise _NoEstimate
    return math.prod(int(extent) for extent in type_.shape)


def _of_loops(contraction: BlockContraction, result: Value) -> int:
    """How many products a contraction is."""
    of_result = _elements(result)
    shape = dict(zip(_loops(contraction, 1), contraction.storage_shape, strict=True))
    kept = _loops(contraction, 2)
    return of_result * math.prod(extent for loop, extent in shape.items() if loop not in kept)


def _loops(contraction: BlockContraction, number: int) -> list[int]:
    return [terms[0][0] for terms in contraction.indices[number]]


def _is_of_bytes(value: Value) -> bool:
    """True for integers of 8 bits, and such less a zero point: a kernel corrects for it."""
    while not _is_byte(value.type):
        if isinstance(value.owner, ir.Block) or value.owner.operation.name not in _WIDENED:
            return False
        value = value.owner.operation.operands[0]
    return True


def _is_byte(type_: ir.Type) -> bool:
    parameters = parameters_of(type_)
    if parameters is not None:
        return parameters.storage.width == 8
    return str(element_type(type_)) in ("i8", "ui8")
