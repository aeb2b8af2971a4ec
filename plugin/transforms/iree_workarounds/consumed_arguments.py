"""Arguments that a program may write to, and functions that may read arguments after they return.

Symptom: a call overwrites an argument of the caller (all targets).
Cause: IREE 3.13 updates a tensor in place if no later operation reads it, also an argument of a
public function. It inserts the copy that protects the caller, and then elides it: the transfer
between the import and the copy hides the origin of the tensor.
Test: `test_iree_still_writes_to_arguments` in tests/test_device_arrays.py.

``x + 0``, a reshape or a slice may alias ``x``, and may be folded before IREE decides. So a tensor
counts as an alias of a value that it is computed from if both have the same number of bytes, or a
dynamic size.

A function returns when its results are ready. The values that it stores into variables may still be
pending then, with their sources unread.

The runtime copies an argument that is written to. To a function that stores variables it lends no
memory that others may write to or free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...core._mlir import Operation, Value, ir
from ..base import named, operation_of, walk
from .updates_in_place import UPDATES

_INSERTIONS = (
    "tensor.insert",
    "tensor.insert_slice",
    "tensor.parallel_insert_slice",
    "tensor.scatter",
)
_STORES = ("util.global.store", "util.global.store.indirect")
_SLICES = (
    "stablehlo.dynamic_slice",
    "stablehlo.real_dynamic_slice",
    "stablehlo.slice",
    "tensor.extract_slice",
)
_READERS = (
    *("arith", "builtin", "cf", "chlo", "complex", "func", "math", "scf", "shape", "stablehlo"),
    *("tensor", "tosa", "util"),
)
"""Dialects whose other operations write to none of their operands. A variable keeps a copy."""


def consumed_values(operations: Iterable[Operation]) -> set[Value]:
    """Return the tensors whose memory operations may write to, including arguments.

    `operations` are all of the module that is handed to IREE, as `walk` returns them.
    """
    functions: dict[str, Operation] = {}
    calls: dict[str, list[Operation]] = {}
    consumers: dict[str, Callable[[Operation], Sequence[Value]] | None] = {}
    pending: list[Value] = []
    remaining = iter(operations)
    for op in remaining:
        name = op.name
        if name == "builtin.module":  # of an executable: its operations have no tensors
            for _ in walk(op):
                next(remaining)
        if name not in consumers:
            consumers[name] = _consumed_by(name)
        consumed = consumers[name]
        if consumed is not None:
            pending += consumed(op)
        elif name == "func.func":
            functions[op.attributes["sym_name"].value] = op
        elif name == "func.call":
            calls.setdefault(op.attributes["callee"].value, []).append(op)
    bits: dict[ir.Type, int | None] = {}
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        op, sources = _sources(value, functions, calls)
        is_slice, size = op.name in _SLICES, _bits_of(value.type, bits)
        for source in sources:
            source_size = _bits_of(source.type, bits)
            is_tensor = source_size != 0 != size
            if is_tensor and (is_slice or None in (size, source_size) or size == source_size):
                pending.append(source)
    return seen


def storing_functions(module: Operation) -> set[str]:
    """Return the names of the functions that store variables, also through calls."""
    pending = [_function_of(op) for op in named(module, _STORES)]
    calls = named(module, ["func.call"]) if pending else []
    storing: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in storing:
            storing.add(name)
            pending += [
                _function_of(call) for call in calls if call.attributes["callee"].value == name
            ]
    return storing


def _function_of(op: Operation) -> str:
    """The name of the function around an operation; "" for an initializer of the module."""
    while op is not None and op.operation.name != "func.func":
        op = op.operation.parent
    return "" if op is None else str(op.operation.attributes["sym_name"].value)


def _consumed_by(name: str) -> Callable[[Operation], Sequence[Value]] | None:
    """A function from an operation to the operands that it writes to; None if there are none."""
    dialect = name.partition(".")[0]
    if name in UPDATES:
        return lambda op: list(op.operands)[: len(op.results)]
    if dialect in ("linalg", "iree_linalg_ext"):
        return lambda op: list(op.operands)[-len(op.results) :]  # buffers: all
    if name in _INSERTIONS:
        return lambda op: [op.operands[1]]
    if name == "tosa.scatter":
        return lambda op: [op.operands[0]]
    if name == "flow.dispatch":
        return lambda op: list(op.operands) if "tied_operands" in op.attributes else []
    if dialect in _READERS:
        return None
    return lambda op: list(op.operands)


def _sources(
    value: Value, functions: dict[str, Operation], calls: dict[str, list[Operation]]
) -> tuple[Operation, Sequence[Value]]:
    """The operation that owns a value, and the values that it may alias."""
    op = operation_of(value)
    if op.name == "func.func":
        callers = calls.get(op.attributes["sym_name"].value, [])
        return op, [operand for call in callers for operand in call.operands]
    sources = list(op.operands)
    if len(op.regions):
        sources += _yielded(op)
    elif op.name == "func.call" and op.attributes["callee"].value in functions:
        sources += _yielded(functions[op.attributes["callee"].value])
    return op, sources


def _yielded(op: Operation) -> Iterator[Value]:
    """The operands of the terminators in an operation's regions."""
    for region in op.regions:
        for block in region:
            yield from block.operations[len(block.operations) - 1].operands


def _bits_of(type_: ir.Type, cache: dict[ir.Type, int | None]) -> int | None:
    """The bits of a tensor; None if they are dynamic or unknown, 0 if it is no tensor."""
    if type_ not in cache:
        cache[type_] = None if isinstance(type_, ir.ShapedType) else 0
        if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
            element = type_.element_type
            if isinstance(element, (ir.IntegerType, ir.FloatType)) and element.width >= 8:
                cache[type_] = math.prod(type_.shape) * element.width
    return cache[type_]
