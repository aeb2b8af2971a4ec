"""Kernel of a fused dispatch: it runs the kernels of several dispatches in order.

Its one workgroup loops over the workgroups of the first kernel, then over those of the second. The
scratch memory of all kernels overlaps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ...core._mlir import Operation, Value, ir
from ...emit.linalg import Extent, constant_index
from ...emit.operation import byte_size
from ...emit.vectors import loop, memref_type, scratch, view
from ...numerics.element_types import I8
from ..kernel import Binding, Kernel, KernelCall

_MAX_STACK_BYTES = 4 << 10
"""Stack for intermediate results, beside the kernels' scratch; IREE allows 32 KiB in all."""
_ALIGNMENT = 64

Location: TypeAlias = tuple[Literal["operand", "result", "intermediate"], int]
"""The number of an operand or of a result, or a byte offset among intermediate results."""


def aligned(size: int) -> int:
    """A size in bytes, rounded up to whole cache lines."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class FusedCall:
    """A call that a fused kernel runs.

    Attributes:
        call: the call.
        locations: the locations of its bindings.
    """

    call: KernelCall
    locations: tuple[Location, ...]

    @property
    def bindings(self) -> list[Binding]:
        """The bindings of the kernel, with static shapes."""
        m = self.call.kernel.m
        return [
            replace(each, shape=tuple(m if n is None else n for n in each.shape))
            for each in self.call.kernel.bindings
        ]


@dataclass(frozen=True)
class FusedKernel:
    """A kernel that runs the kernels of several calls.

    Attributes:
        calls: the calls, in order.
        result_bytes: the sizes of results.
        intermediate_bytes: the size of the intermediate results together.
    """

    calls: tuple[FusedCall, ...]
    result_bytes: tuple[int, ...]
    intermediate_bytes: int

    @property
    def key(self) -> object:
        """A key that is equal for equal kernels."""
        calls = tuple((each.call.key, each.locations) for each in self.calls)
        return "joined", calls, self.result_bytes

    @property
    def is_on_stack(self) -> bool:
        """True if intermediate results are on the stack; else they are one more result."""
        return self.intermediate_bytes <= _MAX_STACK_BYTES

    def kernel(self) -> Kernel:
        """The kernel; its bindings are the operands of all calls, then the results."""
        operands = [
            binding
            for each in self.calls
            for (kind, _), binding in zip(each.locations, each.bindings, strict=True)
            if kind == "operand"
        ]
        sizes = [*self.result_bytes, *([] if self.is_on_stack else [self.intermediate_bytes])]
        results = [Binding((size,), I8) for size in sizes]
        return Kernel("joined", [*operands, *results], 1, self._body, 0)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: Extent) -> None:
        block = ir.InsertionPoint.current.block
        operands, intermediates = iter(memories), memories[-1]
        if self.is_on_stack and self.intermediate_bytes:
            intermediates = scratch([self.intermediate_bytes], I8)
        results = memories[len(memories) - len(self.result_bytes) - (not self.is_on_stack) :]
        operations_by_call = []
        for each in self.calls:
            buffers = []
            for (kind, index), binding in zip(each.locations, each.bindings, strict=True):
                type_ = memref_type(binding.shape, binding.element)
                if kind == "operand":
                    buffers.append(next(operands))
                elif kind == "result":
                    buffers.append(view(results[index], 0, type_))
                else:
                    buffers.append(view(intermediates, index, type_))
            inlined: list[Operation] = []
            operations_by_call.append(inlined)
            inline = functools.partial(_inline, each.call.function, buffers, inlined)
            if each.call.kernel.workgroups == 1:
                inline(constant_index(0))
            else:
                loop(0, each.call.kernel.workgroups, 1, inline)
        _overlap_scratch(block, operations_by_call)


def _inline(
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


def _overlap_scratch(block: ir.Block, operations_by_call: Sequence[Sequence[Operation]]) -> None:
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
