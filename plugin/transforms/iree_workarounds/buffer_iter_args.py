"""Tensors that a loop updates in place, handed on as buffers.

IREE 3.13 takes what a loop hands on for tensors that others may read, and copies each of them in
each iteration before it is updated, all into new memory: caches of a language model, say. So a loop
that has the attribute ``subquant.in_place`` hands on buffers. Each iteration takes them for tensors
of its own, as a function takes its arguments, which IREE updates in place (`consumed_arguments`).

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

That is done with a tensor to which nothing else refers, an argument of a public function that is
not called from the module, or what comes out of another such loop; and of which an iteration hands
on what updates have made of it, maybe in functions that are called. Others are handed on as they
are. What these are must not be a part of such a tensor: who sets the attribute says so.

The host waits for each iteration: that pays where an iteration takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core._mlir import Operation, Rewriter, Value, ir
from ...emit import value
from ...emit.linalg import IN_PLACE
from ...emit.operation import create, parse_attribute
from ..base import NoMatch, is_public, named
from .updates_in_place import UPDATES

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["hand_on_buffers"]

_BOUNDS = 3
"""Operands of a loop before those that it hands on."""
_EXPORT, _IMPORT = "hal.tensor.export", "hal.tensor.import"


def hand_on_buffers(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Have a ``scf.for`` with the attribute hand on buffers in place of tensors."""
    if IN_PLACE not in op.attributes:
        return NoMatch("does not say that it updates tensors in place")
    block = op.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    given = list(op.operands)
    yielded, functions = list(end.operands), _Functions.around(op)
    pairs = zip(given[_BOUNDS:], list(block.arguments)[1:], yielded, strict=True)
    held = [
        number
        for number, (taken, argument, handed_on) in enumerate(pairs)
        if functions.is_alone(taken)
        and yielded.count(handed_on) == 1
        and (updated := functions.updated(handed_on)) is not None
        and updated == argument
    ]
    types: dict[int, ir.Type] = {number: op.results[number].type for number in held}
    for number in held:
        given[_BOUNDS + number] = _buffer(given[_BOUNDS + number])
    carried = [each.type for each in given[_BOUNDS:]]
    loop = create("scf.for", given, carried, regions=1)
    index = block.arguments[0].type
    inner = loop.regions[0].blocks.append(
        index, *carried, arg_locs=[op.location] * (1 + len(carried))
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
        for number in held:
            end.operands[number] = _buffer(end.operands[number])
    results = list(loop.results)
    for number, type_ in types.items():
        results[number] = _tensor(results[number], type_)
    rewriter.replace_op(op, results)
    return None


@dataclass(frozen=True)
class _Functions:
    """The functions of a module.

    Attributes:
        by_name: all of them.
        called: the names of those that are called from the module.
        arguments: for each result of a function its `updated` argument's number, as far as known.
    """

    by_name: dict[str, Operation]
    called: set[str]
    arguments: dict[str, list[int | None]] = field(default_factory=dict)

    @classmethod
    def around(cls, op: Operation) -> Self:
        """Those of the module that an operation is in."""
        while op.name != "builtin.module":
            op = op.parent.operation
        calls = named(op, ["func.call"])
        functions = {each.attributes["sym_name"].value: each for each in named(op, ["func.func"])}
        return cls(functions, {call.attributes["callee"].value for call in calls})

    def is_alone(self, taken: Value) -> bool:
        """True for a tensor to which a loop that takes it has the only reference."""
        if not _is_plain(taken.type) or sum(1 for _ in taken.uses) != 1:
            return False
        if not isinstance(taken.owner, ir.Block):
            made = taken.owner.operation
            return made.name == _IMPORT and _is_loop(made.operands[0])  # as written here
        function = taken.owner.owner.operation
        if function.name != "func.func" or not is_public(function):
            return False
        return function.attributes["sym_name"].value not in self.called

    def updated(self, value: Value) -> Value | None:
        """The argument of a block that a tensor is made of by updates alone, if it is."""
        while not isinstance(value.owner, ir.Block):
            op, number = value.owner.operation, ir.OpResult(value).result_number
            place: int | None = number if op.name in UPDATES else None
            if op.name == "func.call":
                place = self._arguments_of(op.attributes["callee"].value)[number]
            if place is None:
                return None
            value = op.operands[place]
        return value

    def _arguments_of(self, name: str) -> list[int | None]:
        if name not in self.arguments:
            function = self.by_name[name]
            types = function.attributes["function_type"].value.results
            self.arguments[name] = [None] * len(types)  # of a function that calls itself
            blocks = list(function.regions[0].blocks)
            if len(blocks) == 1:
                returned = blocks[0].operations[len(blocks[0].operations) - 1].operands
                found = map(self.updated, returned)
                self.arguments[name] = [
                    None if each is None or each.owner != blocks[0] else each.arg_number
                    for each in found
                ]
        return self.arguments[name]


def _is_plain(type_: ir.Type) -> bool:
    """True for a tensor of static shape whose elements lie in memory as they are."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    element = type_.element_type
    if isinstance(element, ir.IntegerType):
        return bool(element.is_signless) and element.width in (8, 16, 32, 64)
    return isinstance(element, ir.FloatType)


def _is_loop(result: Value) -> bool:
    return not isinstance(result.owner, ir.Block) and result.owner.operation.name == "scf.for"


def _buffer(tensor: Value) -> Value:
    attributes = {"source_encoding": ir.TypeAttr.get(tensor.type)}
    return value(_EXPORT, [tensor], ir.Type.parse("!hal.buffer_view"), attributes)


def _tensor(buffer: Value, type_: ir.Type) -> Value:
    attributes = {
        "target_encoding": ir.TypeAttr.get(type_),
        "operandSegmentSizes": parse_attribute("array<i32: 1, 0, 0, 0>"),
    }
    return value(_IMPORT, [buffer], type_, attributes)
