"""Fusion of a loop whose body is one dispatch into one dispatch.

A recurrent layer is a loop over time steps. `subquant.kernels.fusion.dispatch_fusion` makes one
dispatch of the kernels of a small step, and the call of a dispatch costs as much as the kernels of
64 states. So the loop moves into the dispatch::

    %r:4 = stablehlo.while(%i = %zero, %ys = %empty, %h = %h0, %c = %c0) ... do {
      %x = stablehlo.dynamic_slice %xs, %i, %zero, sizes = [1, 256]
      %y:2 = flow.dispatch @fused::@fused(%weight, %h, %x, %c)
      %zs = stablehlo.dynamic_update_slice %ys, %y#0, %i, %zero
      %j = stablehlo.add %i, %one
      stablehlo.return %j, %zs, %y#0, %y#1
    }

becomes::

    %r:3 = flow.dispatch @loop::@loop(%weight, %xs, %h0, %c0)

A carried tensor is a *state*, the result of the last step, or a *stack*, of which each step writes
one row. Both are results of the fused dispatch; a step writes its results beside them, and they are
copied when all kernels of the step have read the states.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...core._mlir import Operation, Value, ir
from ...emit import scalar
from ...emit.kernel import Binding, Kernel, KernelCall, KernelTable
from ...emit.linalg import DimSize, constant_index
from ...emit.loop_counter import LoopCounter, constant_number
from ...emit.operation import (
    byte_size,
    erase_unused,
    is_used,
    mlir_type,
    producer_named,
    producer_of,
    tensor_type,
)
from ...emit.parameters import LOAD
from ...emit.stablehlo_semantics import reshape_source
from ...emit.vectors import loop, memref_type, scratch, view
from ...numerics.element_types import I8
from ..cpu.concatenate import copy_bytes
from .dispatch_fusion import (
    MAX_BINDINGS,
    MAX_STACK_BYTES,
    aligned,
    inline_kernel,
    overlap_scratch,
    static_bindings,
)

_CONSTANTS = ("arith.constant", "stablehlo.constant", LOAD)
"""Operations that are moved out of a loop."""
_READ, _WRITE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"
_BODY_OPERATIONS = (
    *_CONSTANTS,
    *(_READ, _WRITE, "stablehlo.add", "stablehlo.reshape", "stablehlo.slice", "stablehlo.return"),
)
"""Operations beside the dispatch; an addition is that of the counter."""

_Kind: TypeAlias = Literal["invariant", "row", "reversed row", "state"]
_Source: TypeAlias = tuple[_Kind, int]
"""The operand of a step: its kind, and the number of an operand or of a carried tensor.

* ``invariant``: the whole operand.
* ``row``: the row of the operand that has the number of the step.
* ``reversed row``: the same row, counted from the end: of an operand of ``stablehlo.reverse``.
* ``state``: the carried tensor.
"""


def fuse_loops(kernels: KernelTable, fuse_below_macs: int) -> None:
    """Replace loops whose body is one call of a small kernel, or of fused ones, by a call.

    A small kernel has at most `fuse_below_macs` int8 multiply-accumulates.
    """
    calls_by_loop: dict[Operation, list[KernelCall]] = {}
    for call in kernels.calls:
        parent = call.operation.parent
        if parent is not None and parent.operation.name == "stablehlo.while":
            calls_by_loop.setdefault(parent.operation, []).append(call)
    for op, calls in calls_by_loop.items():
        kernel = calls[0].kernel
        is_small = kernel.name == "fused" or (kernel.macs or math.inf) <= fuse_below_macs
        if len(calls) == 1 and is_small:
            recurrence = _Recurrence.of(op, calls[0])
            if recurrence is not None:
                _replace(op, recurrence, kernels)


# -- match -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recurrence:
    """A loop whose body is one call.

    Attributes:
        steps: the number of iterations.
        counter: the number of the carried counter.
        sources: where a step reads each operand of the call.
        operands: the operands of the fused call, except initial states.
        results: for each carried tensor except the counter, the call's result that a step writes.
        stacks: the carried tensors that are stacks, with the value that is replaced by the stack:
            the loop's result, or its reversal, which has the rows in the opposite order.
    """

    call: KernelCall
    steps: int
    counter: int
    sources: tuple[_Source, ...]
    operands: tuple[Value, ...]
    results: Mapping[int, int]
    stacks: Mapping[int, Value]

    @classmethod
    def of(cls, op: Operation, call: KernelCall) -> _Recurrence | None:
        """Return the recurrence of a ``stablehlo.while``; None for other loops."""
        counter = LoopCounter.of(op)
        body = None if counter is None else _LoopBody(op, call, counter)
        if body is None or not body.counts_steps:
            return None
        carried = body.carried()
        if carried is None:
            return None
        results, stacks = carried
        states = results.keys() - stacks.keys()
        sources, operands = list[_Source](), list[Value]()
        for operand in call.operands:
            source = body.source(operand, states)
            if source is None:
                return None
            kind, value = source
            if kind == "state":
                sources.append((kind, value.arg_number))
                continue
            sources.append((kind, len(operands)))
            operands.append(value)
        number, steps = body.counter.number, body.steps
        recurrence = cls(call, steps, number, tuple(sources), tuple(operands), results, stacks)
        bindings = len(operands) + 2 * len(results) + 1
        return recurrence if bindings <= MAX_BINDINGS else None

    @property
    def states(self) -> list[int]:
        """The carried tensors that are states."""
        return [number for number in self.results if number not in self.stacks]


@dataclass(frozen=True)
class _LoopBody:
    """The body of a ``stablehlo.while`` with a counter and one call."""

    op: Operation
    call: KernelCall
    counter: LoopCounter

    @property
    def block(self) -> ir.Block:
        """The block of the body."""
        return self.op.regions[1].blocks[0]

    @property
    def steps(self) -> int:
        """The number of iterations of a loop that `counts_steps`; 0 if it is not constant."""
        return self.counter.last or 0

    @property
    def counts_steps(self) -> bool:
        """True if the counter starts with 0, grows by 1 and is not read after the loop.

        Other operations of the body are `_BODY_OPERATIONS`.
        """
        operations = [each.operation for each in self.block.operations]
        beside = [each for each in operations if each != self.call.operation]
        if any(each.name not in _BODY_OPERATIONS for each in beside):
            return False
        counter, following = self.counter, operations[-1].operands
        additions = [each.results[0] for each in beside if each.name == "stablehlo.add"]
        is_from_zero = self.steps > 0 and (counter.first, counter.step) == (0, 1)
        is_read_after = is_used(self.op.results[counter.number])
        return is_from_zero and not is_read_after and additions == [following[counter.number]]

    def carried(self) -> tuple[dict[int, int], dict[int, Value]] | None:
        """The `results` and `stacks` of a recurrence; None if the body writes other tensors."""
        results, stacks = dict[int, int](), dict[int, Value]()
        for number, value in enumerate(self.block.operations[-1].operands):
            if number == self.counter.number:
                continue
            write = producer_named(value, _WRITE)
            if write is not None:
                updated, value, *starts = write.operands
                is_stack = updated == self.block.arguments[number]
                if not is_stack or not self._is_row(updated, value, starts, is_whole=True):
                    return None
                result = self.op.results[number]
                uses = [use.owner.operation for use in result.uses]
                is_reversed = len(uses) == 1 and _is_reversal(uses[0])
                stacks[number] = uses[0].results[0] if is_reversed else result
            value = reshape_source(value, through_whole_slices=True)
            producer = producer_of(value)
            if producer is None or producer != self.call.operation:
                return None
            results[number] = list(self.call.operation.results).index(value)
        return results, stacks

    def source(self, operand: Value, states: Collection[int]) -> tuple[_Kind, Value] | None:
        """The kind of an operand of the call, and the tensor that a step reads.

        None if a step reads another tensor of the loop; `states` are the numbers of states.
        """
        value = reshape_source(operand, through_whole_slices=True)
        if value.owner == self.block:
            return ("state", value) if value.arg_number in states else None
        read = producer_named(value, _READ)
        if read is None or read.block != self.block:
            is_constant = not self._has(value) or value.owner.operation.name in _CONSTANTS
            return ("invariant", value) if is_constant else None
        tensor, *starts = read.operands
        if self._has(tensor) or not self._is_row(tensor, value, starts, is_whole=False):
            return None
        reversal = producer_named(tensor, "stablehlo.reverse")
        if reversal is not None and _is_reversal(reversal):
            return "reversed row", reversal.operands[0]
        return "row", tensor

    def _has(self, value: Value) -> bool:
        """True for an argument of the body, and for a result of its operations."""
        return _is_in(value, self.block)

    def _is_row(
        self, tensor: Value, row: Value, starts: Sequence[Value], *, is_whole: bool
    ) -> bool:
        """True if a value is the row of a tensor that has the number of the step.

        The tensor has at least as many rows as there are steps; if `is_whole`, no more.
        """
        shape, row_shape = (list(each.type.shape) for each in (tensor, row))
        is_static = tensor.type.has_static_shape and row.type.has_static_shape
        if not is_static or not shape or row_shape != [1, *shape[1:]]:
            return False
        has_rows = shape[0] == self.steps if is_whole else shape[0] >= self.steps
        row_index, *offsets = starts
        is_whole_row = all(constant_number(each) == 0 for each in offsets)
        is_own_row = row_index == self.block.arguments[self.counter.number]
        return bool(has_rows and is_own_row and is_whole_row)


def _is_in(value: Value, block: ir.Block) -> bool:
    """True for a block's arguments, and for results of its operations."""
    owner = value.owner
    return bool(owner == block if isinstance(owner, ir.Block) else owner.operation.block == block)


def _is_reversal(op: Operation) -> bool:
    """True for the reversal of the first axis."""
    return op.name == "stablehlo.reverse" and [int(n) for n in op.attributes["dimensions"]] == [0]


# -- the fused call --------------------------------------------------------------------------------


def _replace(op: Operation, recurrence: _Recurrence, kernels: KernelTable) -> None:
    """Replace a loop by the call of a kernel."""
    body = op.regions[1].blocks[0]
    for operand in recurrence.operands:
        if _is_in(operand, body):
            operand.owner.operation.move_before(op)
    kernel = _LoopKernel.of(op, recurrence)
    types = [op.results[number].type for number in recurrence.results]
    if not kernel.is_on_stack:
        types.append(tensor_type([kernel.step_bytes], mlir_type(I8)))
    operands = [*recurrence.operands, *(op.operands[number] for number in recurrence.states)]
    with ir.InsertionPoint(op), op.location:
        values = kernels.call(kernel.key, kernel.kernel(), operands, types, 0)
    for number, value in zip(recurrence.results, values, strict=False):
        recurrence.stacks.get(number, op.results[number]).replace_all_uses_with(value)
    reversals = [each.owner.operation for each in recurrence.stacks.values()]
    kernels.erase_calls([recurrence.call])
    erase_unused(op, *reversals, also=lambda each: each.name in _CONSTANTS)


@dataclass(frozen=True)
class _LoopKernel:
    """A kernel that runs the kernel of a recurrence in each step.

    Attributes:
        operand_bytes: the size of each operand.
        carried_bytes: the size of each carried tensor, by its number.
        offsets: the byte offset of each result of a step, in memory that has them all.
        step_bytes: the size of this memory.
    """

    recurrence: _Recurrence
    operand_bytes: tuple[int, ...]
    carried_bytes: Mapping[int, int]
    offsets: tuple[int, ...]
    step_bytes: int

    @classmethod
    def of(cls, op: Operation, recurrence: _Recurrence) -> _LoopKernel:
        """Return the kernel of a loop's recurrence."""
        offsets, end = [], 0
        for result in recurrence.call.operation.results:
            offsets.append(end)
            end += aligned(byte_size(result.type))
        return cls(
            recurrence,
            tuple(byte_size(each.type) for each in recurrence.operands),
            {number: byte_size(op.results[number].type) for number in recurrence.results},
            tuple(offsets),
            end,
        )

    @property
    def key(self) -> object:
        """A key that is equal for equal kernels."""
        each = self.recurrence
        reversed_stacks = tuple(map(self._is_reversed, each.stacks))
        carried = tuple(each.results.items()), tuple(each.stacks), reversed_stacks
        sizes = self.operand_bytes, tuple(self.carried_bytes.items())
        return "loop", each.call.key, each.steps, each.sources, carried, sizes

    def _is_reversed(self, stack: int) -> bool:
        """True if the first step writes the last row of a stack."""
        producer = producer_of(self.recurrence.stacks[stack])
        return bool(producer.name == "stablehlo.reverse")

    @property
    def is_on_stack(self) -> bool:
        """True if a step's results are on the stack; else they are one more result."""
        return self.step_bytes <= MAX_STACK_BYTES

    def kernel(self) -> Kernel:
        """The kernel; bindings are the operands and the initial states, then the results."""
        each = self.recurrence
        bindings = [Binding((size,), I8) for size in self.operand_bytes]
        for (kind, number), own in zip(each.sources, static_bindings(each.call), strict=False):
            if kind == "invariant":
                bindings[number] = own
        bindings += [Binding((self.carried_bytes[number],), I8) for number in each.states]
        bindings += [Binding((self.carried_bytes[number],), I8) for number in each.results]
        if not self.is_on_stack:
            bindings.append(Binding((self.step_bytes,), I8))
        return Kernel("loop", bindings, 1, self._body, 0)

    def _body(self, memories: Sequence[Value], _: Value, __: DimSize) -> None:
        block, each = ir.InsertionPoint.current.block, self.recurrence
        first_state = len(each.operands)
        first_result = first_state + len(each.states)
        operands = memories[:first_state]
        carried = dict(zip(each.results, memories[first_result:], strict=False))
        results = scratch([self.step_bytes], I8) if self.is_on_stack else memories[-1]
        start = scalar(constant_index(0))
        for number, memory in zip(each.states, memories[first_state:first_result], strict=True):
            copy_bytes(memory, start, carried[number], start, self.carried_bytes[number])
        zero, bindings = constant_index(0), static_bindings(each.call)
        inlined: list[Operation] = []

        def step(index: Value) -> None:
            buffers = []
            for (kind, number), binding in zip(each.sources, bindings, strict=False):
                type_ = memref_type(binding.shape, binding.element)
                if kind == "invariant":
                    buffers.append(operands[number])
                elif kind == "state":
                    buffers.append(view(carried[number], 0, type_))
                else:
                    size = math.prod(type_.shape) * binding.element.bits // 8
                    row = scalar(index)
                    if kind == "reversed row":
                        row = row * -1 + (self.operand_bytes[number] // size - 1)
                    buffers.append(view(operands[number], (row * size).value, type_))
            for offset, binding in zip(self.offsets, bindings[len(buffers) :], strict=True):
                buffers.append(view(results, offset, memref_type(binding.shape, binding.element)))
            if each.call.kernel.workgroups == 1:
                inline_kernel(each.call.function, buffers, inlined, zero)
            else:
                loop(
                    *(0, each.call.kernel.workgroups, 1),
                    lambda workgroup: inline_kernel(
                        each.call.function, buffers, inlined, workgroup
                    ),
                )
            for number, result in each.results.items():
                size, target = self.carried_bytes[number], start
                if number in each.stacks:
                    size //= each.steps
                    row = scalar(index)
                    if self._is_reversed(number):
                        row = row * -1 + (each.steps - 1)
                    target = row * size
                offset = scalar(constant_index(self.offsets[result]))
                copy_bytes(results, offset, carried[number], target, size)

        loop(0, each.steps, 1, step)
        overlap_scratch(block, [inlined])
