"""Fusion of consecutive dispatches of small kernels into one dispatch.

A dispatch costs the caller's thread 0.25 us, and 5 us where it wakes other threads, more than small
kernels take. Consecutive dispatches below a number of MACs become one, of one workgroup::

    %1 = stablehlo.reshape %x : ...
    %2 = flow.dispatch @int8_conv::@int8_conv(%w, %s, %1)
    %3 = stablehlo.reshape %2 : ...
    %4 = flow.dispatch @int8_conv_1::@int8_conv_1(%v, %t, %3)

becomes::

    %1 = stablehlo.reshape %x : ...
    %4 = flow.dispatch @fused::@fused(%w, %s, %1, %v, %t)

Results that only fused kernels read are intermediate: on the stack if they are small, else in one
more result. Operations between the dispatches stay. Those that read a result move behind the fused
dispatch, so a dispatch that depends on them is not fused.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ...core._mlir import Operation, Value, ir
from ...emit.constant_values import is_invariant
from ...emit.kernel import Binding, Kernel, KernelCall, KernelTable
from ...emit.linalg import DimSize, constant_index
from ...emit.operation import byte_size, is_used, mlir_type, tensor_type, values_read
from ...emit.parameters import LOAD, ModuleGlobals
from ...emit.stablehlo_semantics import reshape_source
from ...emit.variables import STORE
from ...emit.vectors import loop, memref_type, scratch, view
from ...numerics.element_types import I8

DEFAULT_FUSE_BELOW_MACS = 1 << 19
"""Calls of at most this many int8 MACs are fused (``--fuse-below-macs``, 0 for none).

One thread computes them in 1 to 5 us with AVX512-VNNI; a dispatch costs 0.25 to 0.5 us. Limits 4
and 16 times higher make no measurable difference for the networks of MLPerf Tiny.
"""
MAX_BINDINGS = 32
"""Bindings of a dispatch, at most: IREE 3.13 loads none with more.

Constants take one, and intermediate results another.
"""
_RESERVED_BINDINGS = 8
"""Bindings kept for results that later dispatches read, whose number is not known yet."""
_RESHAPE = "stablehlo.reshape"
_MOVABLE = ("arith.", "flow.", "linalg.", "math.", "quant.", "stablehlo.", "subquant.", "tensor.")
_IMMOVABLE = ("stablehlo.case", "stablehlo.custom_call", "stablehlo.if", "stablehlo.while")
"""Operations of movable dialects that may have side effects."""
MAX_STACK_BYTES = 4 << 10
"""Stack for intermediate results, beside the kernels' scratch; IREE allows 32 KiB in all."""
_ALIGNMENT_BYTES = 64
"""The alignment of intermediate results in bytes: a cache line, and a vector of AVX-512."""

_Location: TypeAlias = tuple[Literal["operand", "result", "intermediate"], int]
"""The number of an operand or of a result, or a byte offset among intermediate results."""


def fuse_dispatches(kernels: KernelTable, fuse_below_macs: int) -> dict[KernelCall, int]:
    """Fuse consecutive calls of a kernel table.

    A fused call has at most `fuse_below_macs` int8 multiply-accumulates. The result has the fused
    calls, each with the number of other calls in its dispatch.
    """
    small = {
        call.operation: call for call in kernels.calls if call.kernel.takes_at_most(fuse_below_macs)
    }
    fused: dict[KernelCall, int] = {}
    for block in dict.fromkeys(ir.InsertionPoint(operation).block for operation in small):
        groups = [_Group(kernels.module_globals)]
        for operation in [each.operation for each in block.operations]:
            if operation in small:
                call = small[operation]
                if not groups[-1].accepts(call, small):
                    groups.append(_Group(kernels.module_globals))
                groups[-1].add(call, small)
            elif groups[-1].calls and not groups[-1].skip(operation):
                groups.append(_Group(kernels.module_globals))
        for group in groups:
            if len(group.calls) > 1 and _fuse(kernels, group):
                fused |= dict.fromkeys(group.calls, len(group.calls) - 1)
    return fused


# -- groups of calls -------------------------------------------------------------------------------


@dataclass
class _Group:
    """Consecutive calls whose operands do not depend on other users of their results.

    Attributes:
        result_of: the result of a call, by itself and by its reshapes, which share its memory.
        users: operations that depend on a result, in order.
        users_before: the number of users ahead of the last call.
        dependents: the results of users, except reshapes of calls' results.
        inputs: values that calls read and do not write, except constants.
        outputs: results of calls that other operations read.
        written: variables that users write; no later operation before the last call may read them.
    """

    module_globals: ModuleGlobals
    calls: list[KernelCall] = field(default_factory=list)
    result_of: dict[Value, Value] = field(default_factory=dict)
    users: list[Operation] = field(default_factory=list)
    users_before: int = 0
    dependents: set[Value] = field(default_factory=set)
    inputs: set[Value] = field(default_factory=set)
    outputs: list[Value] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    def accepts(self, call: KernelCall, small: Collection[Operation]) -> bool:
        """True if a call can be added.

        Reads of `small`, the calls that can be fused, make no output.
        """
        if not self.dependents.isdisjoint(call.operands):
            return False
        inputs = self.inputs | (_inputs([call], self.module_globals) - set(self.result_of))
        bindings = len(inputs) + len(self.outputs) + len(_outputs(call, small))
        return not self.calls or bindings <= MAX_BINDINGS - _RESERVED_BINDINGS

    def add(self, call: KernelCall, small: Collection[Operation]) -> None:
        """Add a call."""
        self.calls.append(call)
        self.users_before = len(self.users)
        self.inputs |= _inputs([call], self.module_globals) - set(self.result_of)
        self.outputs += _outputs(call, small)
        self.result_of |= {result: result for result in call.operation.results}

    def skip(self, operation: Operation) -> bool:
        """Record an operation between two calls; False if no call can follow it."""
        read = set(values_read(operation))
        is_variable = operation.name in (LOAD, STORE)
        if read.isdisjoint(self.dependents) and read.isdisjoint(self.result_of):
            if is_variable:
                return operation.attributes["global"].value not in self.written
            return not self.written or is_movable(operation)
        self.users.append(operation)
        if operation.name == STORE:
            self.written.add(operation.attributes["global"].value)
            return True
        if operation.name == _RESHAPE and operation.operands[0] in self.result_of:
            self.result_of[operation.results[0]] = self.result_of[operation.operands[0]]
        else:
            self.dependents |= set(operation.results)
        return is_movable(operation)


def is_movable(operation: Operation) -> bool:
    """True for an operation without side effects, which may move behind another one."""
    return operation.name.startswith(_MOVABLE) and operation.name not in _IMMOVABLE


def _outputs(call: KernelCall, small: Collection[Operation]) -> list[Value]:
    """The results of a call that operations other than small calls read, also through reshapes."""
    outputs = []
    for result in call.operation.results:
        pending = [result]
        while pending:
            users = [use.owner.operation for use in pending.pop().uses]
            pending += [each.results[0] for each in users if each.name == _RESHAPE]
            if any(each.name != _RESHAPE and each not in small for each in users):
                outputs.append(result)
                break
    return outputs


def _inputs(calls: Sequence[KernelCall], module_globals: ModuleGlobals) -> set[Value]:
    """The operands of calls before reshapes, except constants."""
    operands = {each for call in calls for each in call.operands}
    return {reshape_source(each) for each in operands if not is_invariant(each, module_globals)}


# -- the fused call --------------------------------------------------------------------------------


def _fuse(kernels: KernelTable, group: _Group) -> bool:
    """Replace the calls of a group by one call.

    False if no operation reads their results, or a dispatch would have too many bindings.
    """
    calls, result_of = [call.operation for call in group.calls], group.result_of
    all_results = [result for operation in calls for result in operation.results]
    fused = list(dict.fromkeys(each.owner.operation for each in result_of))
    read = {
        result
        for each, result in result_of.items()
        if any(use.owner.operation not in fused for use in each.uses)
    }
    results = [each for each in all_results if each in read]
    inputs = _inputs(group.calls, group.module_globals) - set(all_results)
    if not results or len(inputs) + len(results) > MAX_BINDINGS - 2:
        return False
    locations: dict[Value, _Location] = {each: ("result", n) for n, each in enumerate(results)}
    offsets, size = _packed([each for each in all_results if each not in read], group)
    locations |= {each: ("intermediate", offset) for each, offset in offsets.items()}
    operands: list[Value] = []
    fused_calls = []
    for call in group.calls:
        own: list[_Location] = []
        for each in (*call.operands, *call.operation.results):
            if each in result_of:
                own.append(locations[result_of[each]])
            else:
                own.append(("operand", len(operands)))
                operands.append(each)
        fused_calls.append(_FusedCall(call, tuple(own)))
    types = [each.type for each in results]
    kernel = _FusedKernel(tuple(fused_calls), tuple(map(byte_size, types)), size)
    if not kernel.is_on_stack:
        types.append(tensor_type([size], mlir_type(I8)))
    with ir.InsertionPoint(calls[-1]), calls[-1].location:
        new_results = kernels.call(kernel.key, kernel.kernel(), operands, types, 0)
    for old, new in zip(results, new_results, strict=False):  # the last may be intermediate
        old.replace_all_uses_with(new)
    last = new_results[0].owner.operation
    for operation in group.users[: group.users_before]:
        if operation not in fused or result_of[operation.results[0]] in read:
            operation.move_after(last)
            last = operation
    kernels.erase_calls(group.calls)
    for operation in reversed(fused):
        if not any(map(is_used, operation.results)):
            operation.erase()
    return True


def _packed(values: Sequence[Value], group: _Group) -> tuple[dict[Value, int], int]:
    """Byte offsets of intermediate results, and their size: those alive together do not overlap."""
    live_ranges, result_of = {}, group.result_of
    for value in values:
        users = [
            index
            for index, call in enumerate(group.calls)
            if value in call.operation.results
            or any(each in result_of and result_of[each] == value for each in call.operands)
        ]
        live_ranges[value] = users[0], users[-1]
    offsets: dict[Value, int] = {}
    for value, (first, last) in live_ranges.items():
        size, offset = aligned(byte_size(value.type)), 0
        occupied = sorted(
            (start, start + aligned(byte_size(other.type)))
            for other, start in offsets.items()
            if live_ranges[other][0] <= last and first <= live_ranges[other][1]
        )
        for start, end in occupied:
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[value] = offset
    ends = (offset + aligned(byte_size(value.type)) for value, offset in offsets.items())
    return offsets, max(ends, default=0)


def aligned(size: int) -> int:
    """A size in bytes, rounded up to whole cache lines."""
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


# -- the kernel ------------------------------------------------------------------------------------


def static_bindings(call: KernelCall) -> list[Binding]:
    """The bindings of a call's kernel, with static shapes."""
    m = call.kernel.m
    return [
        replace(each, shape=tuple(m if n is None else n for n in each.shape))
        for each in call.kernel.bindings
    ]


@dataclass(frozen=True)
class _FusedCall:
    """A call that a fused kernel runs."""

    call: KernelCall
    locations: tuple[_Location, ...]


@dataclass(frozen=True)
class _FusedKernel:
    """A kernel that runs the kernels of several calls.

    The intermediate results together have `intermediate_bytes`.
    """

    calls: tuple[_FusedCall, ...]
    result_bytes: tuple[int, ...]
    intermediate_bytes: int

    @property
    def key(self) -> object:
        """A key that is equal for equal kernels."""
        calls = tuple((each.call.key, each.locations) for each in self.calls)
        return "fused", calls, self.result_bytes

    @property
    def is_on_stack(self) -> bool:
        """True if intermediate results are on the stack; else they are one more result."""
        return self.intermediate_bytes <= MAX_STACK_BYTES

    def kernel(self) -> Kernel:
        """The kernel; its bindings are the operands of all calls, then the results."""
        operands = [
            binding
            for each in self.calls
            for (kind, _), binding in zip(each.locations, static_bindings(each.call), strict=True)
            if kind == "operand"
        ]
        sizes = [*self.result_bytes, *([] if self.is_on_stack else [self.intermediate_bytes])]
        results = [Binding((size,), I8) for size in sizes]
        return Kernel("fused", [*operands, *results], 1, self._body, 0)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        block = ir.InsertionPoint.current.block
        operands, intermediates = iter(memories), memories[-1]
        if self.is_on_stack and self.intermediate_bytes:
            intermediates = scratch([self.intermediate_bytes], I8)
        results = memories[len(memories) - len(self.result_bytes) - (not self.is_on_stack) :]
        operations_by_call = []
        for each in self.calls:
            buffers = []
            bindings = static_bindings(each.call)
            for (kind, index), binding in zip(each.locations, bindings, strict=True):
                type_ = memref_type(binding.shape, binding.element)
                if kind == "operand":
                    buffers.append(next(operands))
                elif kind == "result":
                    buffers.append(view(results[index], 0, type_))
                else:
                    buffers.append(view(intermediates, index, type_))
            inlined: list[Operation] = []
            operations_by_call.append(inlined)
            inline = functools.partial(inline_kernel, each.call.function, buffers, inlined)
            if each.call.kernel.workgroups == 1:
                inline(constant_index(0))
            else:
                loop(0, each.call.kernel.workgroups, 1, inline)
        overlap_scratch(block, operations_by_call)


def inline_kernel(
    function: Operation, buffers: Sequence[Value], inlined: list[Operation], workgroup: Value
) -> None:
    """Inline the body of a kernel for one workgroup, and append its operations to a list."""
    clone, remaining = function.clone(ip=False), iter(buffers)
    for each in list(clone.regions[0].blocks[0].operations):
        operation = each.operation
        if operation.name == "stream.binding.subspan":
            operation.results[0].replace_all_uses_with(next(remaining))
        elif operation.name == "stream.dispatch.workgroup.id":
            operation.results[0].replace_all_uses_with(workgroup)
        elif operation.name != "func.return":
            operation.detach_from_parent()
            ir.InsertionPoint.current.insert(operation)
            inlined.append(operation)
    clone.erase()


def overlap_scratch(block: ir.Block, operations_by_call: Sequence[Sequence[Operation]]) -> None:
    """Allocate the scratch of all kernels at the same addresses."""
    allocations: list[tuple[Operation, int]] = []
    greatest = 0
    for operations in operations_by_call:
        size = 0
        for operation in operations:
            for each in (operation, *_nested_operations(operation)):
                if each.name == "memref.alloca":
                    allocations.append((each, size))
                    size += aligned(byte_size(each.results[0].type))
        greatest = max(greatest, size)
    if not allocations:
        return
    with ir.InsertionPoint.at_block_begin(block):
        memory = scratch([greatest], I8)
    for each, offset in allocations:
        with ir.InsertionPoint(each):
            each.results[0].replace_all_uses_with(view(memory, offset, each.results[0].type))
        each.erase()


def _nested_operations(operation: Operation) -> Iterator[Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                yield each.operation
                yield from _nested_operations(each.operation)
