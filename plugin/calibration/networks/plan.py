"""Plan of a quantized network: the layers, and the values and operations that become integers.

A *layer* is a contraction with a constant weight, its bias and its activation function (``max``,
``min`` or ``clamp`` with constants). It reads a quantized value. Other operations compute with
integers if all their uses read quantized values:

* operations that move elements, and pooling by maxima, on the quantized values as they are;
* ``add``, ``subtract``, ``multiply``, ``concatenate``, activation functions and means (a sum over
  axes or windows, divided by a number), if their operands come from layers or from operations that
  compute with integers.

Values that an operation only moves share one scale and zero point: they are a *group*. Its range
is that of the values which layers and arithmetic read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.quant import is_quantized
from ...dialects.stablehlo import CONTRACTIONS
from ...dialects.windows import dot_axes
from ...emit.constant_values import constant_elements, is_constant
from ...emit.operation import producer_named
from ...emit.parameters import ModuleGlobals
from ...errors import InputError, name_of_location, place_of
from ...transforms.base import is_public, walk
from ...transforms.quantization.math.contraction import Contraction
from .folding import only_use

Kind = Literal["move", "choice", "join", "arithmetic", "mean"]

_MOVES = ("broadcast_in_dim", "reshape", "reverse", "slice", "transpose")
_KINDS: dict[str, Kind] = {
    **{f"stablehlo.{name}": "move" for name in (*_MOVES, "pad", "reduce_window")},
    **{f"stablehlo.{name}": "choice" for name in ("clamp", "maximum", "minimum")},
    "stablehlo.concatenate": "join",
    "stablehlo.divide": "mean",
    **{f"stablehlo.{name}": "arithmetic" for name in ("add", "multiply", "subtract")},
}
_LOWEST = -3e38
"""Fills below it are the least element of a pooling by maxima."""


@dataclass
class Layer:
    """A contraction with a constant weight, and the operations after it.

    Attributes:
        op: the contraction.
        end: the result of the last operation of the layer.
        tail: the operations after the contraction.
        weight_axis: the axis of the weight's output channels.
        block_axis: the axis of the weight's inputs; None if there are several.
        why_float: the reason why it stays float; "" if it is quantized.
    """

    op: Operation
    name: str
    end: Value
    tail: list[Operation] = field(default_factory=list)
    weight_axis: int = 0
    block_axis: int | None = None
    why_float: str = ""

    @property
    def is_quantized(self) -> bool:
        """True if the layer is quantized."""
        return not self.why_float

    @property
    def multiplies_rows(self) -> bool:
        """True for a quantized product ``[M, K]`` with a matrix, which GPTQ quantizes."""
        if not self.is_quantized or "convolution" in self.op.name:
            return False
        (contracted, _), _ = dot_axes(self.op)
        return contracted == [1] and all(each.type.rank == 2 for each in self.op.operands)


@dataclass
class Plan:
    """The layers of a program, and its quantized values.

    Attributes:
        function: the function of the program.
        layers: all contractions, quantized ones and others, in order.
        integer_ops: the operations beside layers that compute with integers; the division of a
            mean.
        sum_of: the sum of each mean in `integer_ops`.
        nested: the contractions in loops and branches, which stay float.
        quantized_uses: for each quantized value its uses that read it quantized: users, and numbers
            of operands.
        groups: lists of values that share a scale and a zero point; without quantized activations,
            the inputs of layers that GPTQ quantizes, each alone.
        observed: for each group, the numbers of its values that calibration measures.
    """

    function: Operation
    layers: list[Layer]
    integer_ops: dict[Operation, Kind] = field(default_factory=dict)
    sum_of: dict[Operation, Operation] = field(default_factory=dict)
    nested: list[Operation] = field(default_factory=list)
    quantized_uses: dict[Value, list[tuple[Operation, int]]] = field(default_factory=dict)
    groups: list[list[Value]] = field(default_factory=list)
    observed: list[list[int]] = field(default_factory=list)

    @property
    def block(self) -> ir.Block:
        """The block of the function."""
        return self.function.regions[0].blocks[0]

    @property
    def observed_values(self) -> list[Value]:
        """The values that calibration measures, group by group."""
        pairs = zip(self.groups, self.observed, strict=True)
        return [group[number] for group, numbers in pairs for number in numbers]

    @property
    def reported(self) -> list[tuple[str, Operation, Value]]:
        """The name, the operation and the end of each layer and of each integer arithmetic."""
        layer_of = {layer.op: layer for layer in self.layers}
        rows = []
        for op in operations_of(self.block):
            if op in layer_of:
                rows.append((layer_of[op].name, op, layer_of[op].end))
            elif self.integer_ops.get(op) in ("arithmetic", "mean"):
                rows.append((name_of(op), op, self._after_choices(op.results[0])))
        return rows

    def _after_choices(self, value: Value) -> Value:
        """The result of the activation functions after a value, which has their range."""
        while (use := only_use(value)) is not None and self.integer_ops.get(use[0]) == "choice":
            value = use[0].results[0]
        return value


def plan_of(module: Operation, select: str = "", *, static: bool) -> Plan:
    """Plan the quantization of a module with one public function.

    Args:
        select: a regular expression; other layers stay float.
        static: quantize activations; else only weights.

    Raises:
        InputError: the module has another number of public functions.
    """
    function = function_of(module)
    module_globals = ModuleGlobals(module)
    operations = operations_of(function.regions[0].blocks[0])
    layers = [
        _layer(op, module_globals, re.compile(select))
        for op in operations
        if op.name in CONTRACTIONS
    ]
    plan = Plan(function, layers)
    in_block = {layer.op for layer in layers}
    plan.nested = [op for op in walk(function) if op.name in CONTRACTIONS and op not in in_block]
    if static:
        _Planner(plan, operations, module_globals).run()
    else:
        inputs = dict.fromkeys(layer.op.operands[0] for layer in layers if layer.multiplies_rows)
        plan.groups = [[value] for value in inputs]
        plan.observed = [[0] for _ in inputs]
    return plan


def function_of(module: Operation) -> Operation:
    """Return the public function of a module; InputError for another number of them."""
    operations = operations_of(module.regions[0].blocks[0])
    functions = [op for op in operations if op.name == "func.func"]
    public = [op for op in functions if is_public(op) and len(op.regions[0].blocks)]
    if len(public) != 1:
        names = ", ".join(str(op.attributes["sym_name"]) for op in public)
        raise InputError(f"expected a program with one public function, found: {names or 'none'}")
    return public[0]


def operations_of(block: ir.Block) -> list[Operation]:
    """Return the operations of a block, in order."""
    return [op.operation for op in block.operations]


def name_of(op: Operation) -> str:
    """Return the name of an operation: that of its location, or its own with file and line."""
    written = name_of_location(op.location)
    if written:
        return written
    source_line = place_of(op.location)
    name = op.name.removeprefix("stablehlo.")
    return (
        f"{name} ({Path(source_line.file).name}:{source_line.line})"
        if source_line and source_line.line
        else name
    )


def _layer(op: Operation, module_globals: ModuleGlobals, select: re.Pattern[str]) -> Layer:
    layer = Layer(op, name_of(op), op.results[0])
    layer.why_float = _why_float(op, module_globals)
    if not layer.why_float and not select.search(layer.name):
        layer.why_float = "its name does not match the selection"
    if layer.why_float:
        return layer
    contraction = Contraction.of(op)
    to_result, contracted = contraction.right.to_result, contraction.right.contracted
    if contraction.is_window:
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        layer.block_axis = numbers.kernel_input_feature_dimension
    elif len(contracted) == 1:
        layer.block_axis = contracted[0]
    sizes = {axis: int(op.operands[1].type.shape[axis]) for axis in to_result}
    layer.weight_axis = max(sizes, key=sizes.__getitem__)
    has_bias = False
    while (use := only_use(layer.end)) is not None:
        user, number = use
        is_bias = user.name == "stablehlo.add" and not has_bias and not layer.tail
        is_choice = _KINDS.get(user.name) == "choice" and not (
            user.name == "stablehlo.clamp" and number != 1
        )
        constants = [value for n, value in enumerate(user.operands) if n != number]
        if not (is_bias or is_choice) or not all(is_constant(v, module_globals) for v in constants):
            break
        has_bias |= is_bias
        layer.tail.append(user)
        layer.end = user.results[0]
    return layer


def _why_float(op: Operation, module_globals: ModuleGlobals) -> str:
    types = [value.type for value in (*op.operands, *op.results)]
    if any(not isinstance(t, ir.RankedTensorType) or not t.has_static_shape for t in types):
        return "it has a dynamic shape"
    if any(is_quantized(type_) for type_ in types):
        return "it is quantized already"
    if any(str(type_.element_type) != "f32" for type_ in types):
        return f"it computes {types[-1].element_type}, not f32"
    if not is_constant(op.operands[1], module_globals):
        return "both operands are computed"
    if "convolution" not in op.name and dot_axes(op)[1][0]:
        return "its weight has batch dimensions"
    if len(Contraction.of(op).right.to_result) == 0:
        return "its weight is a vector"
    weight = constant_elements(op.operands[1], module_globals)
    if weight is None or not np.isfinite(weight).all():
        return "its weight has a NaN or an infinity"
    return ""


class _Planner:
    """Decides which values are quantized, from the last operation to the first."""

    def __init__(
        self, plan: Plan, operations: Sequence[Operation], module_globals: ModuleGlobals
    ) -> None:
        self._plan = plan
        self._operations = operations
        self._module_globals = module_globals
        self._layer_of = {layer.op: layer for layer in plan.layers if layer.is_quantized}
        self._tails = {op for layer in self._layer_of.values() for op in layer.tail}
        self._integer_values = {layer.end for layer in self._layer_of.values()}
        self._uses: set[tuple[Operation, int]] = set()
        self._parent: dict[Value, Value] = {}

    def run(self) -> None:
        """Fill the plan."""
        for op in self._operations:
            kind = self._kind(op)
            reads = self._computed(op)
            if kind == "mean":
                reads = [self._plan.sum_of[op].operands[0]]
            if kind and all(value in self._integer_values for value in reads):
                self._integer_values.add(op.results[0])
        for op in reversed(self._operations):
            if op in self._layer_of:
                self._want(op, 0)
                continue
            kind = self._kind(op)
            if kind is None or not self._is_quantized_only(op.results[0]):
                continue
            if kind == "mean":
                if op.results[0] in self._integer_values:
                    self._plan.integer_ops[op] = kind
                    self._want(self._plan.sum_of[op], 0)
                continue
            operands = [n for n, v in enumerate(op.operands) if v in set(self._computed(op))]
            known = all(op.operands[n] in self._integer_values for n in operands)
            if kind != "move" and not known:
                continue
            self._plan.integer_ops[op] = kind
            for number in operands:
                self._want(op, number)
                if kind != "arithmetic":
                    self._join(op.results[0], op.operands[number])
        self._collect_groups()

    def _kind(self, op: Operation) -> Kind | None:
        """The kind of an operation on f32 that can compute with integers, or None."""
        kind = _KINDS.get(op.name)
        if kind is None or op in self._tails or len(op.results) != 1:
            return None
        type_ = op.results[0].type
        if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
            return None
        computed = self._computed(op)
        if str(type_.element_type) != "f32" or not computed:
            return None
        if len(computed) == 1 and op.name in ("stablehlo.divide", "stablehlo.multiply"):
            return "mean" if self._is_mean(op, computed[0]) else None
        if kind in ("arithmetic", "mean"):
            return kind if kind == "arithmetic" and len(computed) == 2 else None
        if kind == "choice":
            is_clamp = op.name == "stablehlo.clamp"
            return (
                kind
                if computed == [op.operands[1 if is_clamp else 0]]
                or (not is_clamp and computed == [op.operands[1]])
                else None
            )
        if op.name == "stablehlo.pad":
            return kind if self._pads_exactly(op) else None
        if op.name == "stablehlo.reduce_window":
            return kind if self._is_max_pool(op) else None
        return kind if len(computed) == len(op.operands) else None

    def _computed(self, op: Operation) -> list[Value]:
        """The operands that are not constant."""
        return [v for v in op.operands if not is_constant(v, self._module_globals)]

    def _fill(self, op: Operation) -> float:
        """The fill of a pad, or the initial value of a reduction; NaN if it is computed."""
        elements = constant_elements(op.operands[1], self._module_globals)
        return float("nan") if elements is None else float(np.asarray(elements).item())

    def _is_max_pool(self, op: Operation) -> bool:
        names = [each.operation.name for each in op.regions[0].blocks[0].operations]
        return (
            len(op.operands) == 2
            and names == ["stablehlo.maximum", "stablehlo.return"]
            and self._fill(op) < _LOWEST
        )

    def _is_mean(self, op: Operation, dividend: Value) -> bool:
        """Find the sum of a mean; False if an operation is none."""
        divisors = [v for v in op.operands if v != dividend]
        if op.name == "stablehlo.divide" and op.operands[0] != dividend:
            return False
        elements = constant_elements(divisors[0], self._module_globals)
        if elements is None or not elements.size or not (elements == elements.flat[0]).all():
            return False
        if not elements.flat[0] > 0 or only_use(dividend) is None:
            return False
        while (reshape := producer_named(dividend, "stablehlo.reshape")) is not None:
            dividend = reshape.operands[0]
            if only_use(dividend) is None:
                return False
        total = producer_named(dividend, "stablehlo.reduce", "stablehlo.reduce_window")
        if total is None or len(total.operands) != 2 or self._fill(total) != 0:
            return False
        names = [each.operation.name for each in total.regions[0].blocks[0].operations]
        self._plan.sum_of[op] = total
        return names == ["stablehlo.add", "stablehlo.return"]

    def _pads_exactly(self, op: Operation) -> bool:
        fill = self._fill(op)
        users = [use.owner.operation for use in op.results[0].uses]
        return fill == 0 or (
            fill < _LOWEST
            and all(u.name == "stablehlo.reduce_window" and self._is_max_pool(u) for u in users)
        )

    def _is_quantized_only(self, result: Value) -> bool:
        uses = [(use.owner.operation, use.operand_number) for use in result.uses]
        return bool(uses) and all(use in self._uses for use in uses)

    def _want(self, op: Operation, number: int) -> None:
        value = op.operands[number]
        self._uses.add((op, number))
        self._plan.quantized_uses.setdefault(value, []).append((op, number))
        self._parent.setdefault(value, value)

    # -- groups ------------------------------------------------------------------------------------

    def _root(self, value: Value) -> Value:
        while self._parent[value] != value:
            value = self._parent[value]
        return value

    def _join(self, left: Value, right: Value) -> None:
        for value in (left, right):
            self._parent.setdefault(value, value)
        self._parent[self._root(left)] = self._root(right)

    def _collect_groups(self) -> None:
        by_root: dict[Value, list[Value]] = {}
        for value in self._in_order():
            by_root.setdefault(self._root(value), []).append(value)
        for group in by_root.values():
            self._plan.groups.append(group)
            self._plan.observed.append(
                [number for number, value in enumerate(group) if self._is_read(value)]
            )

    def _in_order(self) -> Iterator[Value]:
        """Yield the quantized values in the order of the program."""
        values: list[Any] = list(self._plan.block.arguments)
        values += [result for op in self._operations for result in op.results]
        yield from (value for value in values if value in self._parent)

    def _is_read(self, value: Value) -> bool:
        """True if a layer or arithmetic reads a value."""
        users = [op for op, _ in self._plan.quantized_uses.get(value, ())]  # layers, sums, others
        return any(self._plan.integer_ops.get(op, "arithmetic") == "arithmetic" for op in users)
