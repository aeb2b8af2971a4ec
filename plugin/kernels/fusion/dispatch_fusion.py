"""Calls of small kernels that follow one another, as one call of a kernel that does what they do.

A call costs the caller's thread 0.25 us, and 5 us where threads are woken for it, which small
kernels do not take themselves. So calls of at most so many products each become one, which has one
workgroup: it goes through the workgroups of the first kernel, then through those of the second::

    %1 = stablehlo.reshape %x : ...
    %2 = flow.dispatch @integer_product::@integer_product(%w, %s, %1)
    %3 = stablehlo.reshape %2 : ...
    %4 = flow.dispatch @integer_product_1::@integer_product_1(%v, %t, %3)

becomes::

    %1 = stablehlo.reshape %x : ...
    %4 = flow.dispatch @joined::@joined(%w, %s, %1, %v, %t)

What one kernel writes and only others read lies on the stack if it is small, else in a result that
nobody uses; so do results that are used elsewhere. Operations between the calls stay: those that
read results are moved behind the call, and what is computed of these is read by another call.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ...core._mlir import Operation, Value, ir
from ...emit.linalg import Extent, constant_index
from ...emit.operation import byte_size, is_used, mlir_type, tensor_type, values_read
from ...emit.stablehlo_semantics import reshape_source
from ...emit.vectors import loop, memref_type, scratch, view
from ...numerics.element_types import I8
from ..constant_values import is_invariant
from ..kernel import Binding, Kernel
from ..kernel_table import KernelCall, KernelTable

__all__ = ["DEFAULT_FUSED_MACS", "fuse_dispatches"]

DEFAULT_FUSED_MACS = 1 << 19
"""Products of 8 bits, of which AVX512-VNNI computes so many in 1 to 5 us, by one thread.

What four times as many, or sixteen times, change for MLPerf Tiny's networks cannot be measured.
"""
_MOST_BINDINGS = 32
"""Of a dispatch: IREE 3.13 loads none with more. Constants are one, and what is local."""
_LEFT = 8
"""Of these for what is written for dispatches that follow, which is not known before."""
_STACK = 4 << 10
"""Bytes on the stack at most beside what kernels have there, of the 32 KiB that IREE allows."""
_ALIGNMENT = 64
_RESHAPE = "stablehlo.reshape"
_MOVED = ("arith.", "flow.", "linalg.", "math.", "quant.", "stablehlo.", "subquant.", "tensor.")
_KEPT = ("stablehlo.case", "stablehlo.custom_call", "stablehlo.if", "stablehlo.while")
"""Operations that may do more than compute their results, of those that begin so."""


def fuse_dispatches(kernels: KernelTable, most: int) -> dict[KernelCall, int]:
    """Join calls of a kernel table, as long as they follow one another.

    Args:
        kernels: has the calls.
        most: products of a call that is joined.

    Returns:
        The calls that were joined, each with how many others.
    """
    small = {
        call.operation: call
        for call in kernels.calls
        if call.kernel.macs is not None and call.kernel.macs <= most
    }
    joined: dict[KernelCall, int] = {}
    for block in dict.fromkeys(ir.InsertionPoint(operation).block for operation in small):
        for group in _groups(block, small):
            if len(group.calls) > 1 and _join(kernels, group):
                joined |= dict.fromkeys(group.calls, len(group.calls) - 1)
    return joined


# -- which ----------------------------------------------------------------------------------------


@dataclass
class _Group:
    """Calls, of which none reads what others compute of their results.

    Attributes:
        calls: in order.
        sources: results of calls, by what is the same memory: themselves, and reshaped.
        readers: operations that read one of these, or results of such operations, in order.
        before: how many of these there are before the last call.
        outside: their results, but for reshaped ones of calls.
        given: what calls read that they do not write, and that is no constant.
        kept: what they write and others read.
    """

    calls: list[KernelCall] = field(default_factory=list)
    sources: dict[Value, Value] = field(default_factory=dict)
    readers: list[Operation] = field(default_factory=list)
    before: int = 0
    outside: set[Value] = field(default_factory=set)
    given: set[Value] = field(default_factory=set)
    kept: list[Value] = field(default_factory=list)

    def takes(self, call: KernelCall, small: Collection[Operation]) -> bool:
        """True if a call may be added.

        Args:
            call: the call.
            small: calls that may be joined, which are not counted as readers of what is written.
        """
        if not self.outside.isdisjoint(call.operands):
            return False
        given = _given([call]) - set(self.sources)
        bindings = len(self.given | given) + len(self.kept) + len(_read_outside(call, small))
        return not self.calls or bindings <= _MOST_BINDINGS - _LEFT

    def add(self, call: KernelCall, small: Collection[Operation]) -> None:
        """Add a call."""
        self.calls.append(call)
        self.before = len(self.readers)
        self.given |= _given([call]) - set(self.sources)
        self.kept += _read_outside(call, small)
        self.sources |= {result: result for result in call.operation.results}

    def pass_by(self, operation: Operation) -> bool:
        """Have an operation between two calls; False if there cannot be more calls after it."""
        read = set(values_read(operation))
        if read.isdisjoint(self.outside) and read.isdisjoint(self.sources):
            return True
        self.readers.append(operation)
        if operation.name == _RESHAPE and operation.operands[0] in self.sources:
            self.sources[operation.results[0]] = self.sources[operation.operands[0]]
        else:
            self.outside |= set(operation.results)
        return operation.name.startswith(_MOVED) and operation.name not in _KEPT


def _groups(block: ir.Block, small: dict[Operation, KernelCall]) -> list[_Group]:
    groups = [_Group()]
    for each in block.operations:
        operation = each.operation
        if operation in small:
            call = small[operation]
            if not groups[-1].takes(call, small):
                groups.append(_Group())
            groups[-1].add(call, small)
        elif groups[-1].calls and not groups[-1].pass_by(operation):
            groups.append(_Group())
    return groups


def _read_outside(call: KernelCall, inside: Collection[Operation]) -> list[Value]:
    """The results of a call that other operations read, but for some, and reshaped."""
    found = []
    for result in call.operation.results:
        pending = [result]
        while pending:
            readers = [use.owner.operation for use in pending.pop().uses]
            pending += [each.results[0] for each in readers if each.name == _RESHAPE]
            if any(each.name != _RESHAPE and each not in inside for each in readers):
                found.append(result)
                break
    return found


def _given(calls: Sequence[KernelCall]) -> set[Value]:
    """What calls read that is no constant, from before it got its shape."""
    values = {each for call in calls for each in call.operands if not is_invariant(each)}
    return set(map(reshape_source, values))


def _inside(operation: Operation) -> Iterator[Operation]:
    """The operations in the regions of one."""
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                yield each.operation
                yield from _inside(each.operation)


# -- the kernel -----------------------------------------------------------------------------------

_Place: TypeAlias = tuple[Literal["operand", "result", "local"], int]
"""A binding's number, or bytes from the beginning of what is local."""


@dataclass(frozen=True)
class _Step:
    """What is done for a call.

    Attributes:
        call: the call.
        places: where its bindings are.
    """

    call: KernelCall
    places: tuple[_Place, ...]

    @property
    def kernel(self) -> Kernel:
        """What is called."""
        return self.call.kernel

    @property
    def bindings(self) -> list[Binding]:
        """Those of the kernel, whose extents are known."""
        return [
            replace(each, shape=tuple(self.kernel.m if n is None else n for n in each.shape))
            for each in self.kernel.bindings
        ]


@dataclass(frozen=True)
class _Joined:
    """A kernel that does what several do.

    Attributes:
        steps: one for each, in order.
        sizes: of results, in bytes.
        local: how many bytes are local.
    """

    steps: tuple[_Step, ...]
    sizes: tuple[int, ...]
    local: int

    @property
    def key(self) -> object:
        """Equal for kernels that are equal."""
        return "joined", tuple((each.call.key, each.places) for each in self.steps), self.sizes

    @property
    def is_on_stack(self) -> bool:
        """True if what is local is there; else it is a further result."""
        return self.local <= _STACK

    def kernel(self) -> Kernel:
        """The kernel: bindings are operands of all that are no results, and results."""
        operands = [
            binding
            for step in self.steps
            for (kind, _), binding in zip(step.places, step.bindings, strict=True)
            if kind == "operand"
        ]
        sizes = [*self.sizes, *([] if self.is_on_stack else [self.local])]
        results = [Binding((size,), I8) for size in sizes]
        return Kernel("joined", [*operands, *results], 1, self._body, 0)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        block = ir.InsertionPoint.current.block
        found = list(memories)
        room = scratch([self.local], I8) if self.is_on_stack and self.local else found[-1]
        results = found[len(found) - len(self.sizes) - (not self.is_on_stack) :]
        of_steps = []
        for step in self.steps:
            given = []
            for (kind, place), binding in zip(step.places, step.bindings, strict=True):
                type_ = memref_type(binding.shape, binding.element)
                if kind == "operand":
                    given.append(found.pop(0))
                elif kind == "result":
                    given.append(view(results[place], 0, type_))
                else:
                    given.append(view(room, place, type_))
            inlined: list[Operation] = []
            of_steps.append(inlined)
            write = functools.partial(_inline, step.call.function, given, inlined)
            if step.kernel.workgroups == 1:
                write(constant_index(0))
            else:
                loop(0, step.kernel.workgroups, 1, write)
        _share_scratch(block, of_steps)


def _inline(
    function: Operation, memories: Sequence[Value], inlined: list[Operation], number: Value
) -> None:
    """Write what a kernel does for the workgroup of a number, and add the operations to a list."""
    copied, given = function.clone(ip=False), iter(memories)
    for each in list(copied.regions[0].blocks[0].operations):
        operation = each.operation
        if operation.name == "stream.binding.subspan":
            operation.results[0].replace_all_uses_with(next(given))
        elif operation.name == "stream.dispatch.workgroup.id":
            operation.results[0].replace_all_uses_with(number)
        elif operation.name != "func.return":
            operation.detach_from_parent()
            ir.InsertionPoint.current.insert(operation)
            inlined.append(operation)
    copied.erase()


def _share_scratch(block: ir.Block, of_steps: Sequence[Sequence[Operation]]) -> None:
    """Have the memory of workgroups of several kernels begin at the same place."""
    places: list[tuple[Operation, int]] = []
    most = 0
    for operations in of_steps:
        size = 0
        for operation in operations:
            for each in (operation, *_inside(operation)):
                if each.name == "memref.alloca":
                    places.append((each, size))
                    size += _aligned(byte_size(each.results[0].type))
        most = max(most, size)
    if not places:
        return
    with ir.InsertionPoint.at_block_begin(block):
        room = scratch([most], I8)
    for each, place in places:
        with ir.InsertionPoint(each):
            each.results[0].replace_all_uses_with(view(room, place, each.results[0].type))
        each.erase()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# -- the call -------------------------------------------------------------------------------------


def _join(kernels: KernelTable, group: _Group) -> bool:
    """Call one kernel for all calls of a group.

    False if nobody reads what they compute, or there would be more results than a dispatch has.
    """
    calls, sources = [call.operation for call in group.calls], group.sources
    made = [result for operation in calls for result in operation.results]
    inner = list(dict.fromkeys(each.owner.operation for each in sources))
    read = {
        source
        for each, source in sources.items()
        if any(use.owner.operation not in inner for use in each.uses)
    }
    results = [each for each in made if each in read]
    if not results or len(_given(group.calls) - set(made)) + len(results) > _MOST_BINDINGS - 2:
        return False
    places: dict[Value, _Place] = {each: ("result", n) for n, each in enumerate(results)}
    local, size = _packed([each for each in made if each not in read], group)
    places |= {each: ("local", place) for each, place in local.items()}
    operands: list[Value] = []
    steps = []
    for call in group.calls:
        own: list[_Place] = []
        for each in (*call.operands, *call.operation.results):
            if each in sources:
                own.append(places[sources[each]])
            else:
                own.append(("operand", len(operands)))
                operands.append(each)
        steps.append(_Step(call, tuple(own)))
    types = [each.type for each in results]
    joined = _Joined(tuple(steps), tuple(map(byte_size, types)), size)
    if not joined.is_on_stack:
        types.append(tensor_type([size], mlir_type(I8)))
    with ir.InsertionPoint(calls[-1]), calls[-1].location:
        found = kernels.call(joined.key, joined.kernel(), operands, types, 0)
    for old, new in zip(results, found, strict=False):  # without what is local
        old.replace_all_uses_with(new)
    after = found[0].owner.operation
    for operation in group.readers[: group.before]:
        if operation not in inner or sources[operation.results[0]] in read:
            operation.move_after(after)
            after = operation
    kernels.erase_calls(group.calls)
    for operation in reversed(inner):
        if not any(map(is_used, operation.results)):
            operation.erase()
    return True


def _packed(values: Sequence[Value], group: _Group) -> tuple[dict[Value, int], int]:
    """Where values begin that are needed from one call of a group to another, and where all end."""
    spans, sources = {}, group.sources
    for value in values:
        users = [
            number
            for number, call in enumerate(group.calls)
            if value in call.operation.results
            or any(each in sources and sources[each] == value for each in call.operands)
        ]
        spans[value] = users[0], users[-1]
    places: dict[Value, int] = {}
    for value, (first, last) in spans.items():
        size, place = _aligned(byte_size(value.type)), 0
        beside = sorted(
            (start, start + _aligned(byte_size(other.type)))
            for other, start in places.items()
            if spans[other][0] <= last and first <= spans[other][1]
        )
        for start, end in beside:
            if place + size <= start:
                break
            place = max(place, end)
        places[value] = place
    return places, max(
        (place + _aligned(byte_size(v.type)) for v, place in places.items()), default=0
    )
