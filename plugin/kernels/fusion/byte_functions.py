"""Elementwise functions of one tensor of bytes become look-ups in tables of 256 bytes.

A quantized network computes its activation functions on reals, between casts::

    %x = "subquant.dequantize"(%q, %s0, %z0) : (tensor<1x80x80x64xi8>, ...) -> tensor<...xf32>
    %y = stablehlo.logistic %x : tensor<1x80x80x64xf32>
    %p = "subquant.quantize"(%y, %s1) : (tensor<...xf32>, ...) -> tensor<1x80x80x64xi8>

The result has one value for each of the 256 values of a byte, whatever the operations are. The
compiler computes the values (`byte_evaluation`)::

    %p = flow.dispatch @byte_table::@byte_table(%q, %table)

A function may have several casts, and read its byte at several places: ``x * sigmoid(x)`` with
casts of both factors is one table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...emit import linalg
from ...emit.constant_values import is_invariant, materialize, uniform_number
from ...emit.kernel import KernelTable
from ...emit.operation import backward_slice, erase_unused, function_blocks, producer_of
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import U8, Array
from ...numerics.requantization import Requantization
from ..cpu.byte_table import ByteTableKernel
from ..isa.base import InstructionSet
from .byte_evaluation import (
    EXPENSIVE,
    ByteEvaluation,
    is_evaluated,
    is_parameter,
)

_LAYOUT = ("stablehlo.reshape", "stablehlo.transpose")
"""Operations that move bytes, and commute with a look-up."""


def separate_byte_functions(
    module: Operation, module_globals: ModuleGlobals, requantization: Requantization
) -> list[Operation]:
    """Put barriers between functions of bytes and their operands, and return the barriers.

    Kernels of contractions then leave the functions alone: a look-up takes less time than the
    exact requantizations of a fused epilogue.
    """
    barriers = dict[Value, Value]()
    blocks = _functions_of(module, module_globals, requantization)
    for function in [each for functions in blocks for each in functions]:
        operand, producer = function.operand, producer_of(function.operand)
        if producer is None:
            continue
        if operand not in barriers:
            with ir.InsertionPoint.after(producer), producer.location:
                barriers[operand] = linalg.with_barrier(operand)
        for op in function.operations:
            for number, value in enumerate(op.operands):
                if value == operand:
                    op.operands[number] = barriers[operand]
    return [each.owner.operation for each in barriers.values()]


def replace_byte_functions(
    kernels: KernelTable,
    module: Operation,
    barriers: Sequence[Operation],
    target: InstructionSet,
    requantization: Requantization,
) -> None:
    """Replace the functions of bytes of a module's functions by calls of kernels.

    Args:
        barriers: those of `separate_byte_functions`, which are removed.
        requantization: the form of requantizations.
    """
    for barrier in barriers:
        barrier.results[0].replace_all_uses_with(barrier.operands[0])
        barrier.erase()
    for functions in _functions_of(module, kernels.module_globals, requantization):
        for function in functions:
            function.replace(kernels, target)
        roots = [function.root for function in functions]
        erase_unused(*roots, also=lambda op: is_evaluated(op) or op.name in _LAYOUT)


@dataclass(frozen=True, eq=False)
class _ByteFunction:
    """A result whose elements are a function of the bytes of a tensor at the same places.

    Attributes:
        operand: the tensor of bytes.
        operations: those of the function, each after its operands.
        requantization: the form of requantizations.
    """

    operand: Value
    operations: tuple[Operation, ...]
    requantization: Requantization

    @property
    def root(self) -> Operation:
        """The operation that computes the result."""
        return self.operations[-1]

    @property
    def pays(self) -> bool:
        """True if a look-up takes less time than the operations."""
        return any(op.name in EXPENSIVE for op in self.operations)

    @cached_property
    def table(self) -> Array:
        """The results for each byte, i8."""
        evaluation = ByteEvaluation(self.operand, self.requantization)
        *_, results = [evaluation.add(op) for op in self.operations]
        return np.ascontiguousarray(np.broadcast_to(results, [256]))

    @property
    def is_identity(self) -> bool:
        """True if the result is the operand, as after a change to the same scale."""
        return self.table.tobytes() == bytes(range(256))

    def replace(self, kernels: KernelTable, target: InstructionSet) -> None:
        """Let the users of the result read the result of a look-up, or the operand itself.

        Transposes and reshapes of the operand move behind it, where those of two kernels cancel.
        """
        if self.is_identity:
            self.root.results[0].replace_all_uses_with(self.operand)
            return
        operand, layout = self.operand, list[Operation]()
        producer = producer_of(operand)
        while producer is not None and producer.name in _LAYOUT:
            operand, layout = producer.operands[0], [producer, *layout]
            producer = producer_of(operand)
        kernel = ByteTableKernel(math.prod(map(int, operand.type.shape)), target)
        packed = kernel.table_operand(self.table)
        with ir.InsertionPoint(self.root), self.root.location:
            operands = [operand, materialize(packed, U8)]
            [result] = kernels.call(kernel, kernel.kernel(), operands, [operand.type], 0)
            for op in layout:
                moved = op.clone()
                moved.operands[0] = result
                result = moved.results[0]
        self.root.results[0].replace_all_uses_with(result)


def _functions_of(
    module: Operation, module_globals: ModuleGlobals, requantization: Requantization
) -> list[list[_ByteFunction]]:
    """The functions of bytes that pay, or are the identity, of each block of a module."""
    return [
        _functions_of_block(block, module_globals, requantization)
        for block in function_blocks(module)
    ]


def _functions_of_block(
    block: ir.Block, module_globals: ModuleGlobals, requantization: Requantization
) -> list[_ByteFunction]:
    """The functions of bytes of a block that pay, or are the identity, the last one first.

    A result that only operations of another function read is left out.
    """
    operations = [each.operation for each in block.operations]
    operands = dict[Value, Value]()
    for op in filter(is_evaluated, operations):
        operand = _operand_of(op, operands)
        if operand is not None:
            operands[op.results[0]] = operand
    producers = defaultdict[Value, set[Operation]](set)
    for result, operand in operands.items():
        producers[operand].add(result.owner.operation)
    functions, absorbed = list[_ByteFunction](), set[Operation]()
    for result in reversed(operands):
        root, operand = result.owner.operation, operands[result]
        if root in absorbed or result.type.element_type != operand.type.element_type:
            continue
        if is_invariant(operand, module_globals):
            continue  # IREE computes invariants once
        includes = producers[operand].__contains__
        slice_ = backward_slice(root, includes)
        function = _ByteFunction(operand, tuple(slice_), requantization)
        if not function.pays and not function.is_identity:
            continue
        functions.append(function)
        members = {root}
        for op in reversed(function.operations):
            if {use.owner.operation for use in op.results[0].uses} <= members:
                members.add(op)
        absorbed |= members
    return functions


def _operand_of(op: Operation, operands: Mapping[Value, Value]) -> Value | None:
    """The one tensor of bytes that the result of an operation is a function of.

    `operands` has the tensors of operations before it.
    """
    tensors = set[Value]()
    for value in _read(op):
        operand = operands.get(value)
        if operand is None:
            if str(value.type.element_type) != "i8":
                return None
            operand = value
        tensors.add(operand)
    return tensors.pop() if len(tensors) == 1 else None


def _read(op: Operation) -> list[Value]:
    """The operands of an operation that are neither parameters nor constants of one number."""
    values = [value for value in op.operands if not is_parameter(value, op)]
    return [value for value in values if uniform_number(value) is None]
