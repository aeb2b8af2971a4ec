"""Concatenations and slices between small kernels, as kernels.

A stream keeps the last frames of each layer as its state. IREE copies the state and the new frames
into one tensor, and the next state out of it, by a command for each copy, and no dispatch is fused
across them. With kernels of their own, all layers of a small network are one dispatch
(`subquant.kernels.fusion.dispatch_fusion`). Before::

    %1 = stablehlo.concatenate %state, %frame, dim = 1 : ...
    %2 = stablehlo.slice %1 [0:1, 1:5, 0:32] : ...
    util.global.store %2, @state
    %3 = flow.dispatch @int8_conv::@int8_conv(%w, %s, %1)

After::

    %1 = flow.dispatch @concatenate::@concatenate(%state, %frame)
    %2 = flow.dispatch @concatenate_1::@concatenate_1(%1)
    util.global.store %2, @state
    %3 = flow.dispatch @int8_conv::@int8_conv(%w, %s, %1)
"""

from __future__ import annotations

import math
from collections.abc import Collection

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import is_quantized
from ...emit.constant_values import is_invariant
from ...emit.kernel import KernelTable
from ...emit.operation import element_of, is_dynamic, producer_of
from ...emit.parameters import LOAD
from ...emit.stablehlo_semantics import reshape_source
from ...emit.variables import STORE
from ...numerics.element_types import I8
from ..cpu.concatenate import ConcatenateKernel, CopiedBytes

_CONCATENATE, _RESHAPE, _SLICE = "stablehlo.concatenate", "stablehlo.reshape", "stablehlo.slice"
_STORES = (STORE, "func.return")
"""Operations that keep a tensor as it is."""


def fuse_concatenations(kernels: KernelTable, fuse_below_macs: int) -> None:
    """Replace concatenations that small kernels read, and slices of results of small kernels.

    A kernel is small if it can be fused: it takes as long as at most `fuse_below_macs`.
    """
    small = {call.operation for call in kernels.calls if call.kernel.takes_at_most(fuse_below_macs)}
    calls = {call.operation for call in kernels.calls}
    for block in dict.fromkeys(op.block for op in small):
        for op in [each.operation for each in block.operations]:
            if op.name == _CONCATENATE and _is_of_stream(op, calls) and _is_read(op, small):
                kernel = _concatenation(op)
            elif op.name == _SLICE and _is_between(op, small):
                kernel = _slice(op)
            else:
                continue
            result = op.results[0]
            if kernel is None or is_invariant(result, kernels.module_globals):
                continue
            built = kernel.kernel()
            if not built.takes_at_most(fuse_below_macs):
                continue
            with ir.InsertionPoint(op), op.location:
                [new] = kernels.call(kernel, built, list(op.operands), [result.type], 0)
            result.replace_all_uses_with(new)
            op.erase()
            small.add(new.owner.operation)
            calls.add(new.owner.operation)


def _users(op: Operation) -> list[Operation]:
    """The operations that read the result of an operation, also through reshapes."""
    users = []
    pending = [op.results[0]]
    while pending:
        for user in [use.owner.operation for use in pending.pop().uses]:
            if user.name == _RESHAPE:
                pending.append(user.results[0])
            else:
                users.append(user)
    return users


def _is_of_stream(op: Operation, calls: Collection[Operation]) -> bool:
    """True if kernels or variables have an operand, so that it is no packed argument."""
    producers = map(producer_of, map(reshape_source, op.operands))
    return any(each is not None and (each in calls or each.name == LOAD) for each in producers)


def _is_read(op: Operation, small: Collection[Operation]) -> bool:
    """True if small kernels read the result of an operation, also through slices."""
    return any(
        user in small or (user.name == _SLICE and _is_read(user, small)) for user in _users(op)
    )


def _is_between(op: Operation, small: Collection[Operation]) -> bool:
    """True for a slice of the result of a small kernel that small kernels and variables read."""

    def is_kernel(user: Operation) -> bool:
        if user in small or user.name in _STORES:
            return True
        if user.name == _SLICE:
            return all(map(is_kernel, _users(user)))
        return user.name == _CONCATENATE and _is_read(user, small)

    is_written = producer_of(reshape_source(op.operands[0])) in small
    return is_written and all(map(is_kernel, _users(op)))


def _concatenation(op: Operation) -> ConcatenateKernel | None:
    """The kernel of a concatenation; None for tensors that have no whole bytes or no fixed size."""
    axis = int(op.attributes["dimension"])
    sizes = [_row_bytes(value, axis) for value in op.operands]
    rows = math.prod(int(size) for size in op.results[0].type.shape[:axis])
    if not rows or not all(sizes):
        return None
    row_bytes = tuple(size for size in sizes if size)
    copies = tuple(CopiedBytes(number, 0, size) for number, size in enumerate(row_bytes))
    return ConcatenateKernel(rows, row_bytes, copies)


def _slice(op: Operation) -> ConcatenateKernel | None:
    """The kernel of a slice along one axis; None for other slices."""
    shape = [int(size) for size in op.operands[0].type.shape]
    starts, limits, strides = (
        [int(each) for each in op.attributes[name]]
        for name in ("start_indices", "limit_indices", "strides")
    )
    sliced = [n for n, size in enumerate(shape) if (starts[n], limits[n]) != (0, size)]
    if len(sliced) != 1 or any(stride != 1 for stride in strides):
        return None
    [axis] = sliced
    row_bytes = _row_bytes(op.operands[0], axis)
    rows = math.prod(shape[:axis])
    if not row_bytes or not rows or starts[axis] == limits[axis]:
        return None
    step = row_bytes // shape[axis]
    copied = CopiedBytes(0, starts[axis] * step, (limits[axis] - starts[axis]) * step)
    return ConcatenateKernel(rows, (row_bytes,), (copied,))


def _row_bytes(value: Value, axis: int) -> int | None:
    """The size of a tensor's axes from one on; None if it is not fixed, or not in whole bytes."""
    type_ = value.type
    if is_quantized(type_) or any(map(is_dynamic, type_.shape)):
        return None
    if isinstance(type_.element_type, ir.ComplexType):
        return None
    bits = element_of(type_).bits
    if bits % I8.bits:
        return None
    return math.prod(int(size) for size in type_.shape[axis:]) * bits // I8.bits
