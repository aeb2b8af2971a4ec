"""Loop-carried tensors that are updated in place, as ``iter_args`` of buffers.

Symptom: each iteration copies every tensor that it updates (caches of a language model, for
example) into new memory (all targets).
Cause: IREE 3.13 assumes that other operations may read loop-carried tensors.
Test: `test_iree_still_copies_loop_carried_tensors` in tests/test_loops.py.

A loop with the attribute ``subquant.in_place`` carries buffers. Each iteration imports them as
tensors of its own, as a function does its arguments, which IREE updates in place
(`consumed_arguments`).

Before::

    %r = scf.for %i = %c0 to %n step %c1 iter_args(%h = %x) -> (tensor<2048x8xf16>) {
      %y = stablehlo.dynamic_update_slice %h, ...
      scf.yield %y : tensor<2048x8xf16>
    } {subquant.in_place}

After::

    %b = hal.tensor.export %x : tensor<2048x8xf16> -> !hal.buffer_view
    %s = scf.for %i = %c0 to %n step %c1 iter_args(%c = %b) -> (!hal.buffer_view) {
      %h = hal.tensor.import %c : !hal.buffer_view -> tensor<2048x8xf16>
      %y = stablehlo.dynamic_update_slice %h, ...
      %d = hal.tensor.export %y : tensor<2048x8xf16> -> !hal.buffer_view
      scf.yield %d : !hal.buffer_view
    }
    %r = hal.tensor.import %s : !hal.buffer_view -> tensor<2048x8xf16>

A tensor qualifies if nothing else refers to it: it is an argument of a public function that the
module does not call, or the result of another such loop. Its yielded value must come from it by
updates alone, also through called functions. Other tensors stay tensors; the attribute promises
that they are no part of a converted one.

The host waits for each iteration, so this pays only where an iteration takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...core._mlir import Operation, Value, ir
from ...emit import value
from ...emit.linalg import IN_PLACE
from ...emit.operation import create, parse_attribute
from ..base import NoMatch, Replacement, is_public, named, producer_of
from .updates_in_place import UPDATES

_BOUND_OPERANDS = 3
"""Operands of an ``scf.for`` before the initial values: lower bound, upper bound, step."""
_EXPORT, _IMPORT = "hal.tensor.export", "hal.tensor.import"


def carry_buffers(op: Operation) -> Replacement:
    """Rewrite a ``scf.for`` with the attribute to carry buffers instead of tensors."""
    if IN_PLACE not in op.attributes:
        return NoMatch("has no attribute subquant.in_place")
    block = op.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    operands = list(op.operands)
    yielded, functions = list(end.operands), _Functions.of_module(op)
    carried = zip(operands[_BOUND_OPERANDS:], list(block.arguments)[1:], yielded, strict=True)
    types: dict[int, ir.Type] = {
        number: argument.type
        for number, (initial, argument, updated) in enumerate(carried)
        if functions.is_only_reference(initial)
        and yielded.count(updated) == 1
        and (source := functions.source(updated)) is not None
        and source == argument
    }
    for number in types:
        operands[_BOUND_OPERANDS + number] = _buffer(operands[_BOUND_OPERANDS + number])
    carried_types = [each.type for each in operands[_BOUND_OPERANDS:]]
    loop = create("scf.for", operands, carried_types, regions=1)
    index = block.arguments[0].type
    inner = loop.regions[0].blocks.append(
        index, *carried_types, arg_locs=[op.location] * (1 + len(carried_types))
    )
    with ir.InsertionPoint(inner):
        arguments = list(inner.arguments)
        for number, type_ in types.items():
            arguments[1 + number] = _tensor(arguments[1 + number], type_)
    for old, new in zip(block.arguments, arguments, strict=True):
        old.replace_all_uses_with(new)
    for each in list(block.operations):
        inner.append(each.operation)
    with ir.InsertionPoint(end), end.location:
        for number in types:
            end.operands[number] = _buffer(end.operands[number])
    results = list(loop.results)
    for number, type_ in types.items():
        results[number] = _tensor(results[number], type_)
    return results


@dataclass(frozen=True)
class _Functions:
    """The functions of a module.

    Attributes:
        by_name: all functions.
        called: the names of the functions that the module calls.
        updated_arguments: for each result of a function, the number of the argument that the result
            is an update of, if it is.
    """

    by_name: dict[str, Operation]
    called: set[str]
    updated_arguments: dict[str, list[int | None]] = field(default_factory=dict)

    @classmethod
    def of_module(cls, op: Operation) -> _Functions:
        """Collect the functions of the module that contains an operation."""
        while op.name != "builtin.module":
            op = op.parent.operation
        calls = named(op, ["func.call"])
        functions = {each.attributes["sym_name"].value: each for each in named(op, ["func.func"])}
        return cls(functions, {call.attributes["callee"].value for call in calls})

    def is_only_reference(self, initial: Value) -> bool:
        """True for an initial value to which the loop has the only reference."""
        if not _is_plain(initial.type) or sum(1 for _ in initial.uses) != 1:
            return False
        if (producer := producer_of(initial)) is not None:  # the result of a converted loop
            loop = producer_of(producer.operands[0]) if producer.name == _IMPORT else None
            return loop is not None and bool(loop.name == "scf.for")
        function = initial.owner.owner.operation
        if function.name != "func.func" or not is_public(function):
            return False
        return function.attributes["sym_name"].value not in self.called

    def source(self, value: Value) -> Value | None:
        """The block argument that a tensor comes from by updates alone, if it does."""
        while (op := producer_of(value)) is not None:
            number = ir.OpResult(value).result_number
            operand: int | None = number if op.name in UPDATES else None
            if op.name == "func.call":
                operand = self._arguments_of(op.attributes["callee"].value)[number]
            if operand is None:
                return None
            value = op.operands[operand]
        return value

    def _arguments_of(self, name: str) -> list[int | None]:
        if name not in self.updated_arguments:
            function = self.by_name[name]
            types = function.attributes["function_type"].value.results
            self.updated_arguments[name] = [None] * len(types)  # for a function that calls itself
            blocks = list(function.regions[0].blocks)
            if len(blocks) == 1:
                returned = blocks[0].operations[len(blocks[0].operations) - 1].operands
                self.updated_arguments[name] = [
                    None if each is None or each.owner != blocks[0] else each.arg_number
                    for each in map(self.source, returned)
                ]
        return self.updated_arguments[name]


def _is_plain(type_: ir.Type) -> bool:
    """True for a static tensor whose elements have whole bytes."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    element = type_.element_type
    if isinstance(element, ir.IntegerType):
        return bool(element.is_signless) and element.width in (8, 16, 32, 64)
    return isinstance(element, ir.FloatType)


def _buffer(tensor: Value) -> Value:
    attributes = {"source_encoding": ir.TypeAttr.get(tensor.type)}
    return value(_EXPORT, [tensor], ir.Type.parse("!hal.buffer_view"), attributes)


def _tensor(buffer: Value, type_: ir.Type) -> Value:
    attributes = {
        "target_encoding": ir.TypeAttr.get(type_),
        "operandSegmentSizes": parse_attribute("array<i32: 1, 0, 0, 0>"),
    }
    return value(_IMPORT, [buffer], type_, attributes)
