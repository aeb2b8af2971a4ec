"""Prepacking of weights that are arguments of a function.

A function packs these weights at every call, which may take longer than the contraction. The
function is cloned with prepacked arguments; each weight gets a packing function::

    func.func @main(%x: tensor<1x64xi8>, %w: tensor<64x64xi8>) -> tensor<1x64xi32> {
      %y = stablehlo.dot_general %x, %w, ...
    }

Beside `@main` there are then::

    func.func @main$laid_out_1(%w: tensor<64x64xi8>) -> (tensor<2x16x64xi8>, tensor<2x32xi32>)
    func.func @main$laid_out(%x: ..., %w: ..., %tiles: tensor<2x16x64xi8>, %first: tensor<2x32xi32>)
        -> tensor<1x64xi32>

The runtime calls the clone for weights in device memory, and keeps the packed tensors with them
(`subquant.runtime`). A weight is an argument that only weights of contractions are computed from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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
from ...emit.parameters import LOAD, PREPACKED_ATTRIBUTE, ModuleGlobals
from ...iree_hooks.entry_names import PREPACKED_SUFFIX
from ...signature import LAYOUTS_KEY

_PURE = (
    *("arith.", "linalg.", "quant.", "stablehlo.", "subquant.", "tensor."),
    *(linalg.APART, linalg.BARRIER),
)
"""Prefixes of operations without side effects."""
_MIN_SIZE_RATIO = 4
"""A tensor that no kernel reads is prepacked if the weight is this many times as large."""


@dataclass(frozen=True)
class PrepackedClone:
    """A clone of a function, for prepacked weights."""

    function: Operation
    clone: Operation
    module_globals: ModuleGlobals

    def finish(self) -> None:
        """Turn tensors computed from weights alone into arguments; erase a clone without any."""
        packed = self._packed_values()
        if not packed:
            self.clone.erase()
            return
        body = self.clone.regions[0].blocks[0]
        name = self.function.attributes["sym_name"].value
        for number, values in packed.items():
            weight = body.arguments[number]

            def pack(
                arguments: Sequence[Value], weight: Value = weight, values: list[Value] = values
            ) -> list[Value]:
                clones = {weight: arguments[0]}
                return [clone_computation(value, clones) for value in values]

            with ir.InsertionPoint(self.function), self.function.location:
                write_function(f"{name}{PREPACKED_SUFFIX}_{number}", [weight.type], pack)
        arguments = [value for values in packed.values() for value in values]
        for value in arguments:
            argument = body.add_argument(value.type, value.owner.operation.location)
            value.replace_all_uses_with(argument)
        for value in arguments:
            erase_unused(value.owner.operation)
        attributes = self.clone.attributes
        inputs = [argument.type for argument in body.arguments]
        results = attributes["function_type"].value.results
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, list(results)))
        if "arg_attrs" in attributes:
            empty = [ir.DictAttr.get({})] * len(arguments)
            attributes["arg_attrs"] = ir.ArrayAttr.get([*attributes["arg_attrs"], *empty])
        del attributes[PREPACKED_ATTRIBUTE]
        counts = {str(number): len(values) for number, values in packed.items()}
        self.function.attributes[LAYOUTS_KEY] = ir.StringAttr.get(json.dumps(counts))

    def _packed_values(self) -> dict[int, list[Value]]:
        """Return the values that follow from each weight alone, and that other operations read."""
        body = self.clone.regions[0].blocks[0]
        weights = set(self.clone.attributes[PREPACKED_ATTRIBUTE])
        sources = _ArgumentSources(self.clone, self.module_globals)
        packed: dict[int, list[Value]] = {}

        def visit(value: Value, *, is_read_by_kernel: bool) -> None:
            """Add a value that follows from one weight, or smaller operands of its operation."""
            arguments = sources.pure(value)
            is_of_weight = len(arguments) == 1 and arguments <= weights
            if not is_of_weight or isinstance(value.owner, ir.Block):
                return
            [number] = arguments
            weight = body.arguments[number].type
            if is_read_by_kernel or (
                value.type.has_static_shape
                and byte_size(value.type) * _MIN_SIZE_RATIO <= byte_size(weight)
            ):
                values = packed.setdefault(number, [])
                if value not in values:
                    values.append(value)
                return
            for operand in value.owner.operation.operands:
                visit(operand, is_read_by_kernel=False)

        for each in body.operations:
            op = each.operation
            if not sources.is_pure(op):
                for operand in op.operands:
                    visit(operand, is_read_by_kernel=op.name == "flow.dispatch")
        return dict(sorted(packed.items()))


def clone_for_prepacking(
    functions: Sequence[Operation],
    contractions: Sequence[Operation],
    module_globals: ModuleGlobals,
) -> list[PrepackedClone]:
    """Clone the public functions of a module that have weights among their arguments."""
    clones = []
    names = {function.attributes["sym_name"].value for function in functions}
    for function in functions:
        name = function.attributes["sym_name"].value
        if PREPACKED_SUFFIX in name or f"{name}{PREPACKED_SUFFIX}" in names:
            continue
        weights = _weight_arguments(function, contractions, module_globals)
        if not weights:
            continue
        with ir.InsertionPoint(function):
            clone = function.clone().operation
        clone.attributes["sym_name"] = ir.StringAttr.get(f"{name}{PREPACKED_SUFFIX}")
        numbers = ", ".join(map(str, weights))
        clone.attributes[PREPACKED_ATTRIBUTE] = parse_attribute(f"array<i64: {numbers}>")
        clones.append(PrepackedClone(function, clone, module_globals))
    return clones


def _weight_arguments(
    function: Operation, contractions: Sequence[Operation], module_globals: ModuleGlobals
) -> list[int]:
    """Return the numbers of the arguments that are weights."""
    body = function.regions[0].blocks[0]
    operands = {op: _split_operands(op) for op in contractions if op.block == body}
    packed = [value for _, values in operands.values() for value in values]
    if not any(map(is_computed_from_argument, packed)):
        return []
    activations_of = {op: activation for op, (activation, _) in operands.items()}
    sources = _ArgumentSources(function, module_globals, activations_of)
    weights: set[int] = set()
    activations: set[int] = set()
    for activation, values in operands.values():
        activations |= sources.all(activation)
        for value in values:
            weights |= sources.pure(value)
    return [
        number
        for number in sorted(weights - activations)
        if isinstance(body.arguments[number].type, ir.RankedTensorType)
        and body.arguments[number].type.has_static_shape
    ]


def _split_operands(op: Operation) -> tuple[Value, list[Value]]:
    """Return the activations of a contraction, and the tensors of its weight."""
    if op.name != BLOCK_CONTRACTION:
        return op.operands[0], [op.operands[1]]
    operands = operands_of(op)
    return operands.pop("activations"), list(operands.values())


def is_computed_from_argument(value: Value) -> bool:
    """True if the first operands lead from a value to an argument, by pure operations."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if not op.name.startswith(_PURE) or not len(op.operands):
            return False
        value = op.operands[0]
    return True


class _ArgumentSources:
    """The numbers of the arguments that the values of a function are computed from.

    Args:
        activations_of: the activations of contractions. The result of a contraction counts as
            computed from these alone: the weight of a layer is none of the activations of the next.
    """

    def __init__(
        self,
        function: Operation,
        module_globals: ModuleGlobals,
        activations_of: Mapping[Operation, Value] = MappingProxyType({}),
    ) -> None:
        self._module_globals = module_globals
        body = function.regions[0].blocks[0]
        self._all: dict[Value, frozenset[int]] = {
            argument: frozenset([number]) for number, argument in enumerate(body.arguments)
        }
        self._impure: set[Value] = set()
        for each in body.operations:
            op = each.operation
            arguments = frozenset[int]().union(*map(self.all, values_read(op)))
            is_pure = self.is_pure(op)
            if not is_pure and op in activations_of:
                arguments = self.all(activations_of[op])
            for result in op.results:
                self._all[result] = arguments
                if not is_pure:
                    self._impure.add(result)

    def all(self, value: Value) -> frozenset[int]:
        """Return all arguments that a value depends on."""
        return self._all.get(value, frozenset())

    def pure(self, value: Value) -> frozenset[int]:
        """Return them for a value that is computed by pure operations; else none."""
        return frozenset() if value in self._impure else self.all(value)

    def is_pure(self, op: Operation) -> bool:
        """True if pure operations compute the result from one argument at most."""
        is_immutable_load = op.name == LOAD and self._module_globals.is_immutable(op)
        read = values_read(op)
        return (
            (op.name.startswith(_PURE) or is_immutable_load)
            and len(op.results) == 1
            and len(read) == len(op.operands)
            and not any(value in self._impure for value in read)
            and len(frozenset[int]().union(*map(self.all, read))) <= 1
        )
