"""Arguments that a program may write to, and functions that may read them after they return.

IREE 3.13 updates a tensor in place where nothing reads it afterwards, an argument of a public
function too: the copy that protects what the caller owns is made, and then left out (the transfer
between the import and the copy hides where the tensor comes from). ``x + 0``, a reshape or a slice
may be the same memory as ``x``, and nothing may be left of them when IREE decides. So a tensor may
be an argument's memory if it has as many bytes, or unknown extents, as what it is computed from.

A function returns when its results are there. What it gives to variables may not be computed yet,
and what that is computed from may not be read.

The runtime gives an argument that is written to a copy of its own, and lends a function that gives
variables values no memory that others may write to or free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...core._mlir import Operation, Value, ir
from ..base import named, walk
from .updates_in_place import UPDATES

__all__ = ["consumed_values", "storing_functions"]

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
    """Return the tensors whose memory operations may write to, arguments among them.

    Args:
        operations: those of a module that is handed to IREE, as `walk` returns them.
    """
    functions: dict[str, Operation] = {}
    calls: dict[str, list[Operation]] = {}
    consumers: dict[str, Callable[[Operation], Sequence[Value]] | None] = {}
    pending: list[Value] = []
    remaining = iter(operations)
    for op in remaining:
        name = op.name
        if name == "builtin.module":  # of an executable, whose operations have no tensors of ours
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
        op, found = _sources(value, functions, calls)
        is_slice, size = op.name in _SLICES, _bits_of(value.type, bits)
        for each in found:
            others = _bits_of(each.type, bits)
            is_tensor = others != 0 != size
            if is_tensor and (is_slice or None in (size, others) or size == others):
                pending.append(each)
    return seen


def storing_functions(module: Operation) -> set[str]:
    """Return the names of the functions that give variables values, and of those that call them."""
    pending = [_function_of(op) for op in named(module, _STORES)]
    calls = named(module, ["func.call"]) if pending else []
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [
                _function_of(call) for call in calls if call.attributes["callee"].value == name
            ]
    return found


def _function_of(op: Operation) -> str:
    """The name of the function that an operation is in; "" for what runs when it is loaded."""
    while op is not None and op.operation.name != "func.func":
        op = op.operation.parent
    return "" if op is None else str(op.operation.attributes["sym_name"].value)


def _consumed_by(name: str) -> Callable[[Operation], Sequence[Value]] | None:
    """What returns the operands that an operation writes to in place; None if it writes to none."""
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
    """The operation that a value belongs to, and the values that it may be, or be a part of."""
    owner = value.owner
    op = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
    if op.name == "func.func":
        made = calls.get(op.attributes["sym_name"].value, [])
        return op, [operand for call in made for operand in call.operands]
    found = list(op.operands)
    if len(op.regions):
        found += _yielded(op)
    elif op.name == "func.call" and op.attributes["callee"].value in functions:
        found += _yielded(functions[op.attributes["callee"].value])
    return op, found


def _yielded(op: Operation) -> Iterator[Value]:
    """What an operation's regions give back, to it and to their next iteration."""
    for region in op.regions:
        for block in region:
            yield from block.operations[len(block.operations) - 1].operands


def _bits_of(type_: ir.Type, known: dict[ir.Type, int | None]) -> int | None:
    """The bits of a tensor; None if they cannot be told, 0 for what is no tensor."""
    if type_ not in known:
        known[type_] = None if isinstance(type_, ir.ShapedType) else 0
        if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
            element = type_.element_type
            if isinstance(element, (ir.IntegerType, ir.FloatType)) and element.width >= 8:
                known[type_] = math.prod(type_.shape) * element.width
    return known[type_]
