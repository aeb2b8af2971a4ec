"""Computes the graph of an ONNX model, node by node, by operator importers.

The importers of a node compute with arrays of NumPy (`Interpreter`) or write a program
(`program.Program`): the same formulas.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import InputError, Place, Remark, SubquantError, UnsupportedError, UsageError, quoted
from ...numerics.element_types import AnyArray, Array, ElementType
from .call import IMPORTERS, Call, Operand, type_of_dtype
from .dynamic_sizes.bounded_operators import SIZE_PRODUCERS, compute_bounded, value_objects
from .dynamic_sizes.bounded_tensor import BoundedTensor, ShapeValue
from .dynamic_sizes.shape_values import compute_shape_values
from .integer_report import IntegerReport
from .one_node_models import evaluated, function_body
from .quantization.expressed import ExpressedValue, Quantized, ScaledSum
from .reading.model import Model, Node, Subgraph
from .schemas.operand_types import check_operand_types
from .schemas.operator_exceptions import REFUSED_OPERATORS, irrelevant_parts
from .schemas.opset_rules import convert_to_newest, newest_opset

_FAMILIES = (
    "attention", "classical", "contraction", "control", "dynamic_sizes", "elementwise", "images",
    "movement", "quantization", "recurrent", "reduction", "signals",
)  # fmt: skip
"""The folders whose modules register operator importers."""


def _load_importers() -> None:
    """Import every module of the families, which registers its operator importers."""
    for family in _FAMILIES:
        package = importlib.import_module(f".{family}", __package__)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


_load_importers()

_NO_TENSORS = ("SEQUENCE", "OPTIONAL")
"""The types of values that only exist while a program is written."""

_OnTensor = Callable[[str, AnyArray], None]


class Graph(ABC):
    """Computes the graph of a model: of arrays, or of values of a program.

    Args:
        node_context: returns the context manager that is entered for a node.
        on_remark: is called with the arithmetic of each node with quantized operands or results.
    """

    def __init__(
        self,
        model: Model,
        node_context: Callable[[Node], AbstractContextManager[object]] = nullcontext,
        on_remark: Callable[[Remark], None] | None = None,
    ) -> None:
        self.model = model
        self.location = Place(model.file)
        self._node_context = node_context
        self._scope: dict[str, Operand] = {}
        self._producers: dict[str, Node] = {}
        self._shared: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._opset = model.opsets.get("", newest_opset())
        self._report = None if on_remark is None else IntegerReport(self.location, on_remark)

    def run(self, inputs: Mapping[str, AnyArray], on_tensor: _OnTensor | None = None) -> list[Any]:
        """Compute the results.

        Args:
            inputs: the inputs by name.
            on_tensor: is called with the name and the value of each tensor that a node computes.

        Raises:
            UnsupportedError, InputError: at a node.
        """
        values = _operands(self.model.constants.values())
        for input_ in self.model.inputs:
            values[input_.name] = Operand(input_.type, inputs[input_.name], input_.name)
        self._compute(self.model.nodes, values, on_tensor)
        declared = [
            (name, type_, f"declares the type {type_} of {quoted(name)} (value_info)")
            for name, type_ in self.model.declared_types.items()
            if name in values
        ]
        declared += [
            (each.name, each.type, f"has the result {quoted(each.name)} of type {each.type}")
            for each in self.model.outputs
        ]
        for name, type_, problem in declared:
            if values[name].type != type_:
                raise InputError(f"{problem}, and computes {values[name].type}", self.location)
        if self._report is not None:
            self._report.finish()
        return [self._array(values[output.name]) for output in self.model.outputs]

    def operand(self, name: str) -> Operand | None:
        """Return a tensor that is computed already; None if there is none."""
        return self._scope.get(name)

    def producer(self, name: str) -> Node | None:
        """Return the node that has computed a tensor; None for inputs and constants."""
        return self._producers.get(name)

    def inner(self, graph: Subgraph, inputs: Sequence[Operand]) -> list[Operand]:
        """Compute a graph of the current node, which can read the values around the node."""
        values = self._scope | _operands(graph.constants.values())
        for name, operand in zip(graph.inputs, inputs, strict=True):
            values[name] = Operand(operand.type, operand.value, name)
        own = {*graph.constants, *graph.inputs}  # which may be computed in another graph
        outer_producers = self._producers
        self._producers = {name: node for name, node in outer_producers.items() if name not in own}
        try:
            self._compute(graph.nodes, values)
        finally:
            self._producers = outer_producers
        return [values[name] for name in graph.outputs]

    def shared(
        self, key: tuple[Any, ...], objects: Sequence[Any], compute: Callable[[], Any]
    ) -> Any:
        """Compute a value once for the same objects of the current graph."""
        key = (id(self._scope), *key, *map(id, objects))
        if key not in self._shared:  # the value keeps the objects alive, so ids stay unique
            self._shared[key] = compute(), (self._scope, *objects)
        return self._shared[key][0]

    def _compute(
        self, nodes: Sequence[Node], values: dict[str, Operand], on_tensor: _OnTensor | None = None
    ) -> None:
        """Compute nodes in order, and add their results to the values."""
        outer_scope, self._scope = self._scope, values
        try:
            for node in nodes:
                self._compute_node(node, values, on_tensor)
        finally:  # a loop is tried in other forms where its body is refused
            self._scope = outer_scope

    def _compute_node(
        self, node: Node, values: dict[str, Operand], on_tensor: _OnTensor | None
    ) -> None:
        operands = [values[name] if name else None for name in node.inputs]
        # Infinities and NaN are results of IEEE 754, of which NumPy warns.
        with self._node_context(node), np.errstate(all="ignore"):
            results = zip(node.outputs, self._computed(node, operands), strict=False)
            for name, operand in results:
                if not name:
                    continue
                self._producers[name] = node
                values[name] = Operand(operand.type, operand.value, name)
                if on_tensor is not None and operand.type not in _NO_TENSORS:
                    on_tensor(name, self._array(values[name]))

    def _array(self, operand: Operand) -> AnyArray:
        value = operand.value
        if isinstance(value, BoundedTensor):
            rows = self._array(replace(operand, value=value.value))
            return self.first_rows(rows, value.axis, value.count)
        return self.floats(value)

    def floats(self, value: ExpressedValue) -> AnyArray:
        """Return a value that is no bounded tensor as an array, dequantized if it is quantized."""
        if isinstance(value, ShapeValue):
            return value.array
        is_quantized = isinstance(value, (Quantized, ScaledSum))
        return value.dequantize(self.lift) if is_quantized else value

    def _computed(self, node: Node, operands: Sequence[Operand | None]) -> list[Operand]:
        domain = node.operator.rpartition(".")[0]
        call = Call(node, operands, self)
        if not domain:
            converted = convert_to_newest(call, self._opset)
            if isinstance(converted, list):
                return [_typed(result) for result in converted]
            call = converted
        opset = self.model.opsets.get(domain, 1) if domain else self._opset
        check_operand_types(call, opset)
        return self.compute(call)

    def compute(self, call: Call) -> list[Operand]:
        """Compute a node in the form of the newest operator set."""
        if call.values_of(ShapeValue):
            return compute_shape_values(call, self.compute)
        if call.node.operator not in SIZE_PRODUCERS:
            return self._computed_once(call)
        attributes = sorted((name, str(each)) for name, each in call.node.attributes.items())
        key = (call.node.operator, *attributes, len(call.node.outputs))
        results: list[Operand] = self.shared(
            key, value_objects(call.inputs), lambda: self._computed_once(call)
        )
        return results

    def _computed_once(self, call: Call) -> list[Operand]:
        is_bounded = bool(call.values_of(BoundedTensor))
        return compute_bounded(call, self._imported) if is_bounded else self._imported(call)

    def _imported(self, call: Call) -> list[Operand]:
        """Compute a node by its importer."""
        node = call.node
        importer = IMPORTERS.get(node.operator)
        try:
            results = None if importer is None else importer(call)
            if results is None:
                results = self._without_importer(call)
            else:
                call.check_all_is_read(irrelevant_parts(node.operator))
        except SubquantError as error:
            if error.place is None:  # of arrays, which know no node
                kind = UnsupportedError if isinstance(error, UsageError) else type(error)
                raise call.error(error.message, kind) from None
            raise
        except (IndexError, ValueError) as error:  # NumPy checks the shapes of formulas
            raise call.error(f"has inputs that do not fit together: {error}") from error
        results = results if isinstance(results, list) else [results]
        count = len(node.outputs)
        if len(results) < count and any(node.outputs[len(results) :]):
            raise call.error(f"computes {len(results)} tensors, and has {count}")
        typed = [_typed(result) for result in results[:count]]
        if self._report is not None:
            self._report.add(call, typed)
        return typed

    def _without_importer(self, call: Call) -> list[Any]:
        """Compute a node that has no importer: by the body of its function, or beforehand."""
        node = call.node
        domain = node.operator.rpartition(".")[0]
        if not domain and node.operator not in REFUSED_OPERATORS:
            arrays = [
                operand and Operand(_typed(operand).type, self._array(operand), operand.name)
                for operand in call.inputs
            ]
            body = function_body(call, arrays)
            if body is not None:
                outer_opset, self._opset = self._opset, newest_opset()
                try:
                    return self.inner(*body)
                finally:
                    self._opset = outer_opset
            if all(operand is None or operand.is_constant for operand in arrays):
                return list(evaluated(call, arrays))
        advice = ""
        if node.operator in REFUSED_OPERATORS:
            advice = f": {REFUSED_OPERATORS[node.operator]}"
        elif domain:
            advice = f"; export the model with ONNX's own operators, not those of {quoted(domain)}"
        raise call.unsupported(f"is not lowered{advice}")

    @abstractmethod
    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Return an array as a value of the program, if one is written."""

    @abstractmethod
    def check(self, condition: AnyArray, message: str) -> None:
        """Make a call fail with a message unless a condition without axes holds."""

    @abstractmethod
    def first_rows(self, value: AnyArray, axis: int, count: AnyArray) -> AnyArray:
        """Return the first `count` rows along an axis, as a result of the model."""


def _operands(constants: Any) -> dict[str, Operand]:
    return {each.name: Operand(each.type, each.data, each.name) for each in constants}


def _typed(result: Any) -> Operand:
    """Return an importer's result with its type: expressed values have that of their scales."""
    value = result.value if isinstance(result, Operand) else result
    if isinstance(result, Operand) and not isinstance(value, (Quantized, ScaledSum)):
        return result
    return Operand(type_of_dtype(value.dtype), value)


class Interpreter(Graph):
    """Computes with NumPy; operators of floats with ONNX's reference evaluator."""

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Return the array."""
        return array

    def check(self, condition: AnyArray, message: str) -> None:
        """Raise an error unless a condition holds."""
        if not condition:
            raise InputError(message, self.location)

    def first_rows(self, value: AnyArray, axis: int, count: AnyArray) -> AnyArray:
        """Return a slice."""
        return value[(slice(None),) * axis + (slice(0, int(count)),)]
