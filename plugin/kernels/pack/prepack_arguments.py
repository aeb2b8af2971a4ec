"""Weights that are arguments: laid out for kernels once, where they stay in the device's memory.

A function with such a weight lays it out at every call, which may take longer than what is done
with it. So it gets a copy, which takes besides what is computed of weights alone, and a function of
each weight that gives that. Before::

    func.func @main(%x: tensor<1x64xi8>, %w: tensor<64x64xi8>) -> tensor<1x64xi32> {
      %y = stablehlo.dot_general %x, %w, ...
    }

After, besides::

    func.func @main$lay_out_1(%w: tensor<64x64xi8>) -> (tensor<2x16x64xi8>, tensor<2x32xi32>)
    func.func @main$laid_out(%x: ..., %w: ..., %tiles: tensor<2x16x64xi8>, %first: tensor<2x32xi32>)
        -> tensor<1x64xi32>

The runtime calls the copy where arrays are in the device's memory (`subquant.runtime`). A weight is
an argument that a contraction reads as one, and that no activations depend on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...dialects.subquant import BLOCK_CONTRACTION, operands_of
from ...emit import linalg
from ...emit.functions import write_function
from ...emit.operation import (
    byte_size,
    clone_computation,
    erase_unused,
    parse_attribute,
    values_read,
)
from ...iree_hooks.entry_names import PREPACKED_SUFFIX
from ...signature import LAYOUTS_KEY
from .parameters import LOAD, is_immutable

__all__ = ["Copy", "copies_of", "is_argument_behind", "is_weight"]

_WEIGHTS = "subquant.weights"
"""The attribute of a copy that has the numbers of its weights."""
_PURE = (
    *("arith.", "linalg.", "quant.", "stablehlo.", "subquant.", "tensor."),
    *(linalg.APART, linalg.BARRIER),
)
"""What computes the same of the same operands."""
_SMALL = 4
"""What is computed of a weight is kept if a kernel reads it, or if it is so much smaller."""


def is_weight(argument: Value) -> bool:
    """True for an argument of a copy that its caller lays out."""
    function = argument.owner.owner
    if not isinstance(function, ir.OpView | ir.Operation):
        return False
    attributes = function.operation.attributes
    if _WEIGHTS not in attributes:
        return False
    return ir.BlockArgument(argument).arg_number in list(attributes[_WEIGHTS])


@dataclass(frozen=True)
class Copy:
    """A copy of a function, for weights that are laid out.

    Attributes:
        function: what it is a copy of.
        copy: the copy.
    """

    function: Operation
    copy: Operation

    def finish(self) -> None:
        """Have the copy take what is computed of weights; drop it if there is nothing."""
        kept = self._kept()
        if not kept:
            self.copy.erase()
            return
        body = self.copy.regions[0].blocks[0]
        name = self.function.attributes["sym_name"].value
        for place, values in kept.items():
            weight = body.arguments[place]
            with ir.InsertionPoint(self.function), self.function.location:
                write_function(
                    f"{name}{PREPACKED_SUFFIX}_{place}", [weight.type], _copying(values, weight)
                )
        pieces = [value for values in kept.values() for value in values]
        for value in pieces:
            argument = body.add_argument(value.type, value.owner.operation.location)
            value.replace_all_uses_with(argument)
        for value in pieces:
            erase_unused(value.owner.operation)
        inputs = [argument.type for argument in body.arguments]
        results = self.copy.attributes["function_type"].value.results
        type_ = ir.FunctionType.get(inputs, list(results))
        self.copy.attributes["function_type"] = ir.TypeAttr.get(type_)
        if "arg_attrs" in self.copy.attributes:
            said = [*self.copy.attributes["arg_attrs"], *[ir.DictAttr.get({})] * len(pieces)]
            self.copy.attributes["arg_attrs"] = ir.ArrayAttr.get(said)
        del self.copy.attributes[_WEIGHTS]
        counts = {str(place): len(values) for place, values in kept.items()}
        self.function.attributes[LAYOUTS_KEY] = ir.StringAttr.get(json.dumps(counts))

    def _kept(self) -> dict[int, list[Value]]:
        """What is computed of each weight alone, and read by what computes with more."""
        body = self.copy.regions[0].blocks[0]
        weights, sources = set(self.copy.attributes[_WEIGHTS]), _Sources(self.copy)
        kept: dict[int, list[Value]] = {}

        def keep(value: Value, *, is_read_by_kernel: bool) -> None:
            """Keep a value, or what it is computed of, if that is of one weight."""
            found = sources.alone(value)
            if len(found) != 1 or not found <= weights or isinstance(value.owner, ir.Block):
                return
            [place] = found
            is_small = _is_small(value.type, body.arguments[place].type)
            if is_read_by_kernel or is_small:
                values = kept.setdefault(place, [])
                if value not in values:
                    values.append(value)
                return
            for operand in value.owner.operation.operands:
                keep(operand, is_read_by_kernel=False)

        for each in body.operations:
            op = each.operation
            if not sources.is_alone(op):
                for operand in op.operands:
                    keep(operand, is_read_by_kernel=op.name == "flow.dispatch")
        return dict(sorted(kept.items()))


def copies_of(functions: Sequence[Operation], contractions: Sequence[Operation]) -> list[Copy]:
    """Copy the functions that have weights among their arguments.

    Args:
        functions: what may be called from outside of the module.
        contractions: of the module.
    """
    found = []
    names = {function.attributes["sym_name"].value for function in functions}
    for function in functions:
        name = function.attributes["sym_name"].value
        if PREPACKED_SUFFIX in name or f"{name}{PREPACKED_SUFFIX}" in names:
            continue
        places = _weights(function, contractions)
        if not places:
            continue
        with ir.InsertionPoint(function):
            copy = function.clone().operation
        copy.attributes["sym_name"] = ir.StringAttr.get(f"{name}{PREPACKED_SUFFIX}")
        marked = ", ".join(map(str, places))
        copy.attributes[_WEIGHTS] = parse_attribute(f"array<i64: {marked}>")
        found.append(Copy(function, copy))
    return found


def _weights(function: Operation, contractions: Sequence[Operation]) -> list[int]:
    """The numbers of the arguments that are weights."""
    body = function.regions[0].blocks[0]
    own = [op for op in contractions if op.block == body]
    sides = [_sides(op) for op in own]
    if not any(is_argument_behind(part) for _, parts in sides for part in parts):
        return []
    sources = _Sources(function)
    weights: set[int] = set()
    activations: set[int] = set()
    for given, parts in sides:
        activations |= sources.all(given)
        for part in parts:
            weights |= sources.alone(part)
    return [
        place
        for place in sorted(weights - activations)
        if isinstance(body.arguments[place].type, ir.RankedTensorType)
        and body.arguments[place].type.has_static_shape
    ]


def _sides(op: Operation) -> tuple[Value, list[Value]]:
    """The activations of a contraction, and what its weight is given by."""
    if op.name != BLOCK_CONTRACTION:
        return op.operands[0], [op.operands[1]]
    operands = operands_of(op)
    return operands.pop("activations"), list(operands.values())


def is_argument_behind(value: Value) -> bool:
    """True if there is an argument behind operations of one operand."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if not op.name.startswith(_PURE) or not len(op.operands):
            return False
        value = op.operands[0]
    return True


class _Sources:
    """The arguments that the values of a function are computed of, by their numbers."""

    def __init__(self, function: Operation) -> None:
        body = function.regions[0].blocks[0]
        self._all: dict[Value, frozenset[int]] = {
            argument: frozenset([place]) for place, argument in enumerate(body.arguments)
        }
        self._impure: set[Value] = set()
        for each in body.operations:
            op = each.operation
            found = frozenset[int]().union(*map(self.all, values_read(op)))
            is_alone = self.is_alone(op)
            for result in op.results:
                self._all[result] = found
                if not is_alone:
                    self._impure.add(result)

    def all(self, value: Value) -> frozenset[int]:
        """All that a value depends on."""
        return self._all.get(value, frozenset())

    def alone(self, value: Value) -> frozenset[int]:
        """The same of a value that follows from arguments and constants; else nothing."""
        return frozenset() if value in self._impure else self.all(value)

    def is_alone(self, op: Operation) -> bool:
        """True if the results of an operation follow from one argument at most."""
        is_pure = op.name.startswith(_PURE) or (op.name == LOAD and is_immutable(op))
        read = values_read(op)
        return (
            is_pure
            and len(op.results) == 1
            and len(read) == len(op.operands)
            and not any(value in self._impure for value in read)
            and len(frozenset[int]().union(*map(self.all, read))) <= 1
        )


def _copying(
    values: Sequence[Value], weight: Value
) -> Callable[[Sequence[Value]], Sequence[Value]]:
    """What writes the operations behind values, of another function's argument."""

    def body(arguments: Sequence[Value]) -> list[Value]:
        known = {weight: arguments[0]}
        return [clone_computation(value, known) for value in values]

    return body


def _is_small(type_: ir.Type, weight: ir.Type) -> bool:
    """True for a tensor that is little beside a weight."""
    return type_.has_static_shape and byte_size(type_) * _SMALL <= byte_size(weight)
