"""Write an ONNX model as a module, or compute it with NumPy: the same kernels.

The graph becomes the function ``main``. Arguments and results have the types of the file: integers
of 2 and 4 bits have a byte each, and floats of 4 and 8 bits are bytes with their codes. Extents
that the file leaves open are of `extents`; a dynamic batch is a loop over one element of it, where
`batch_axes` can tell that this is the same.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ...core._mlir import Value, ir
from ...emit import linalg, scalar, stablehlo
from ...emit.functions import write_function
from ...emit.operation import INDEX, mlir_type, tensor_type, with_element
from ...emit.trace import TracedArray, traced
from ...errors import (
    InputError,
    Place,
    Remark,
    SubquantError,
    UnsupportedError,
    UsageError,
    quoted,
)
from ...numerics.array_functions import divide_truncated, is_known, take
from ...numerics.element_types import AnyArray, Array, ElementType
from ...transforms.base import NAMES_ATTRIBUTES, SIGNATURE_ATTRIBUTE
from ..batch_loop import dynamic_type, write_loop
from ..options import AS_IN_FILE, ImportOptions
from .batch_independence import Traced, check_batch, unlike
from .call import IMPORTERS, Call, Operand, Typed, type_of_dtype
from .dynamic_sizes.bounded_operators import (
    SIZE_PRODUCERS,
    compute_bounded,
    has_bounded_inputs,
    value_objects,
)
from .dynamic_sizes.bounded_tensor import BoundedTensor, ShapeValue
from .dynamic_sizes.shape_values import compute_shape_values, has_shape_values
from .integer_report import Explained
from .quantization.expressed import Quantized, ScaledSum
from .reading.arguments import Argument, arguments_of
from .reading.constant_inputs import with_input_values
from .reading.model import Model, Node, Subgraph, element_of
from .schemas.irrelevant_parts import irrelevant_parts
from .schemas.one_node_models import evaluated, function_body
from .schemas.operand_types import check_operand_types
from .schemas.opset_converter import convert_to_newest, newest_opset
from .schemas.refused_operators import NEVER, advice

__all__ = ["Interpreter", "Program", "write_module"]

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

OnTensor = Callable[[str, AnyArray], None]


class Graph(ABC):
    """Computes the graph of a model: of arrays, or of values of a program.

    Args:
        model: as read.
        around: what is entered around each node.
        on_remark: called with how each node computes that takes or gives quantized values.
    """

    def __init__(
        self,
        model: Model,
        around: Callable[[Node], AbstractContextManager[object]] = nullcontext,
        on_remark: Callable[[Remark], None] | None = None,
    ) -> None:
        self.model = model
        self.place = Place(model.file)
        self._around = around
        self._scope: dict[str, Operand] = {}
        self._producers: dict[str, Node] = {}
        self._shared: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._opset = model.opsets.get("", newest_opset())
        self._explained = None if on_remark is None else Explained(self.place, on_remark)

    def run(self, inputs: Mapping[str, AnyArray], on_tensor: OnTensor | None = None) -> list[Any]:
        """Compute the results.

        Args:
            inputs: by name.
            on_tensor: called with each tensor that a node computes: its name, and its value as an
                array.

        Raises:
            UnsupportedError, InputError: at a node.
        """
        values = {
            tensor.name: Operand(tensor.name, tensor.type, tensor.data)
            for tensor in self.model.constants.values()
        }
        for input_ in self.model.inputs:
            values[input_.name] = Operand(input_.name, input_.type, inputs[input_.name])
        self._compute(self.model.nodes, values, on_tensor)
        for name, declared in self.model.declared_types.items():
            if name in values and values[name].type != declared:
                raise InputError(
                    f"declares the type {declared} of {quoted(name)} (value_info), and computes "
                    f"{values[name].type}",
                    self.place,
                )
        for output in self.model.outputs:
            if values[output.name].type != output.type:
                raise InputError(
                    f"has the result {quoted(output.name)} of type {output.type}, and computes "
                    f"{values[output.name].type}",
                    self.place,
                )
        if self._explained is not None:
            self._explained.finish()
        return [self._array(values[output.name]) for output in self.model.outputs]

    def operand(self, name: str) -> Operand | None:
        """A tensor that is computed already; None if there is none."""
        return self._scope.get(name)

    def producer(self, name: str) -> Node | None:
        """The node that has computed a tensor; None for inputs and constants."""
        return self._producers.get(name)

    def inner(self, graph: Subgraph, inputs: Sequence[Operand]) -> list[Operand]:
        """Compute a graph of the node that is being computed, which reads what is around it."""
        values = dict(self._scope)
        for tensor in graph.constants.values():
            values[tensor.name] = Operand(tensor.name, tensor.type, tensor.data)
        for name, operand in zip(graph.inputs, inputs, strict=True):
            values[name] = Operand(name, operand.type, operand.value)
        self._compute(graph.nodes, values)
        return [values[name] for name in graph.outputs]

    def _compute(
        self,
        nodes: Sequence[Node],
        values: dict[str, Operand],
        on_tensor: OnTensor | None = None,
    ) -> None:
        """Compute nodes in order, whose results are added to the values."""
        around, self._scope = self._scope, values
        for node in nodes:
            operands = [values[name] if name else None for name in node.inputs]
            with self._around(node):
                computed = self._computed(node, operands)
                for name, operand in zip(node.outputs, computed, strict=False):
                    if name:
                        self._producers[name] = node
                        values[name] = Operand(name, operand.type, operand.value)
                        if on_tensor is not None and operand.type not in _NO_TENSORS:
                            on_tensor(name, self._array(values[name]))
        self._scope = around

    def _array(self, operand: Operand) -> AnyArray:
        value = operand.value
        if isinstance(value, BoundedTensor):
            rows = self._array(replace(operand, value=value.value))
            return self.first_rows(rows, value.axis, value.count)
        if isinstance(value, ShapeValue):
            return value.array
        return value.dequantize(self.lift) if isinstance(value, (Quantized, ScaledSum)) else value

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
        if has_shape_values(call):
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
        return (
            compute_bounded(call, self._imported)
            if has_bounded_inputs(call)
            else self._imported(call)
        )

    def shared(self, key: tuple[Any, ...], objects: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Make a value once for the same objects of the graph that is being computed."""
        key = (id(self._scope), *key, *map(id, objects))
        if key not in self._shared:  # it refers to the objects, whose numbers stay theirs
            self._shared[key] = make(), (self._scope, *objects)
        return self._shared[key][0]

    def _imported(self, call: Call) -> list[Operand]:
        """Compute a node by its importer."""
        node = call.node
        importer = IMPORTERS.get(node.operator)
        try:
            computed = None if importer is None else importer(call)
            if computed is None:
                computed = self._without_kernel(call)
            else:
                call.check_all_is_read(irrelevant_parts(node.operator))
        except SubquantError as error:
            if error.place is None:  # of arrays, which know nothing of the node
                kind = UnsupportedError if isinstance(error, UsageError) else type(error)
                raise call.error(error.message, kind) from None
            raise
        except (
            IndexError,
            ValueError,
        ) as error:  # NumPy checks the shapes of an importer's formulas
            raise call.error(f"has inputs that do not fit together: {error}") from error
        results = computed if isinstance(computed, list) else [computed]
        wanted = len(node.outputs)
        if len(results) < wanted and any(node.outputs[len(results) :]):
            raise call.error(f"computes {len(results)} tensors, and has {wanted}")
        typed = [_typed(result) for result in results[:wanted]]
        if self._explained is not None:
            self._explained.add(call, typed)
        return typed

    def _without_kernel(self, call: Call) -> list[Any]:
        """Compute a node that has no importer: by its body, or beforehand."""
        node = call.node
        if node.operator in NEVER:
            raise UnsupportedError(f"{node} is not lowered{_advice(node.operator)}", self.place)
        arrays = [
            operand and Operand(operand.name, _float_type(operand), self._array(operand))
            for operand in call.inputs
        ]
        if not node.operator.rpartition(".")[0]:
            body = function_body(self.model, node, arrays, self.place)
            if body is not None:
                return self._of_newest(*body)
            if all(operand is None or operand.is_constant for operand in arrays):
                return list(evaluated(self.model, node, arrays, self.place))
        raise UnsupportedError(f"{node} is not lowered{_advice(node.operator)}", self.place)

    def _of_newest(self, graph: Subgraph, operands: Sequence[Operand]) -> list[Typed]:
        """Compute a graph whose nodes are of the newest operator set."""
        outer_opset, self._opset = self._opset, newest_opset()
        results = self.inner(graph, operands)
        self._opset = outer_opset
        return [Typed(each.type, each.value) for each in results]

    @abstractmethod
    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Make an array a value of the program, if one is written."""

    @abstractmethod
    def check(self, condition: AnyArray, message: str) -> None:
        """Have a call fail with a message unless a condition holds."""

    @abstractmethod
    def first_rows(self, value: AnyArray, axis: int, count: AnyArray) -> AnyArray:
        """Take as many rows along an axis as are counted, as a result of the model."""


def _advice(operator: str) -> str:
    """Return the end of a message about an operator that is not lowered: a way out."""
    domain, reason = operator.rpartition(".")[0], advice(operator)
    if reason:
        return f": {reason}"
    if domain:
        return f"; export the model with ONNX's own operators, not those of {quoted(domain)}"
    return ""


def _float_type(operand: Operand) -> str:
    value = operand.value
    return type_of_dtype(value.dtype) if isinstance(value, (Quantized, ScaledSum)) else operand.type


def _typed(result: Any) -> Operand:
    """A kernel's result with its type: reals are of the type of their scales."""
    if isinstance(result, Typed) and not isinstance(result.value, (Quantized, ScaledSum)):
        return Operand("", result.type, result.value)
    value = result.value if isinstance(result, Typed) else result
    return Operand("", type_of_dtype(value.dtype), value)


# -- NumPy ----------------------------------------------------------------------------------------


class Interpreter(Graph):
    """Computes with NumPy; operators of floats with ONNX's reference evaluator."""

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """The array."""
        return array

    def check(self, condition: AnyArray, message: str) -> None:
        """Raise an error unless a condition holds."""
        if not condition:
            raise InputError(message, self.place)

    def first_rows(self, value: AnyArray, axis: int, count: AnyArray) -> AnyArray:
        """A slice."""
        return value[(slice(None),) * axis + (slice(0, int(count)),)]


# -- modules --------------------------------------------------------------------------------------


def write_module(
    model: Model,
    context: ir.Context,
    options: ImportOptions = AS_IN_FILE,
    on_remark: Callable[[Remark], None] | None = None,
) -> ir.Module:
    """Write a module with a function ``main``.

    Args:
        model: as read.
        context: of `subquant.dialects.create_context`.
        options: of the import; semantics and activations are as the model says.
        on_remark: as of `Graph`.

    Raises:
        UnsupportedError, InputError: at a node.
    """
    with context, ir.Location.file("-", 0, 0, context):  # see `subquant.compiler.reading`
        module = ir.Module.create()
        program = Program(with_input_values(model, options.input_values), on_remark)
        with ir.InsertionPoint(module.body):
            program.write_function(options)
        return module


class Program(Graph):
    """Writes a program.

    Args:
        model: as read.
        on_remark: as of `Graph`.
    """

    def __init__(self, model: Model, on_remark: Callable[[Remark], None] | None = None) -> None:
        super().__init__(model, _located, on_remark)

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Write a constant."""
        return _constant(array, element)

    def check(self, condition: AnyArray, message: str) -> None:
        """Write an assertion."""
        linalg.check(linalg.extract(condition.reshape(()).value, []), message)

    def first_rows(self, value: AnyArray, axis: int, count: AnyArray) -> AnyArray:
        """Write a slice of dynamic extent."""
        element = ElementType.of_dtype(np.dtype(value.dtype))
        array = self.lift(value, element) if is_known(value) else value
        return traced(_first_rows(array, axis, count), array.element)

    def write_function(self, options: ImportOptions = AS_IN_FILE) -> None:
        """Write the graph as the function ``main`` at the current place."""
        _write_function(self, options)


def _located(node: Node) -> ir.Location:
    return ir.Location.name(str(node), ir.Location.current)


def _constant(array: Array, element: ElementType) -> TracedArray:
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


def _first_rows(array: TracedArray, axis: int, count: AnyArray) -> Value:
    """Write a slice of dynamic extent.

    The elements are brought together at the front of a flat array of static extent, of which the
    slice is a copy: IREE's Vulkan driver runs no dispatch over a dynamic tensor without elements.
    """
    shape, flat = array.shape, array.reshape(-1)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if outer > 1 and flat.size:
        width = np.maximum(count, np.int32(1)) * np.int32(inner)
        position = np.arange(flat.size, dtype=np.int32)
        number = divide_truncated(position, width)
        place = position + number * (np.int32(shape[axis] * inner) - width)
        flat = take(flat, np.minimum(place, np.int32(flat.size - 1)), 0)
    numbers = [
        scalar(linalg.extract(each.reshape(()).value, []), each.element).convert(INDEX).value
        for each in (count, count * np.int32(outer * inner))
    ]
    extents: list[int | Value] = [int(n) for n in shape]
    extents[axis] = numbers[0]
    return linalg.take_first(flat.value, numbers[1], extents)


def _write_function(program: Program, options: ImportOptions) -> None:
    """Write the graph; with a dynamic batch, for one element of it, and a loop over them."""
    model, is_dynamic = program.model, options.batch == "dynamic"
    arguments = arguments_of(model, options)
    batched = [argument.is_batched for argument in arguments]
    if is_dynamic:
        names = [each.type.name for each in arguments if each.is_batched]
        traced_ = [_traced_shapes(model, options, count) for count in (1, unlike(model))]
        check_batch(model, names, *traced_)
    elements, types = _types(arguments)
    computed: list[tuple[str, AnyArray]] = []
    found: list[TracedArray] = []

    def body(values: Sequence[Value]) -> list[Value]:
        inputs = _inputs(arguments, values, elements)
        watch = (lambda *each: computed.append(each)) if options.every_tensor else None
        outputs = program.run(inputs, watch)
        if not options.every_tensor:
            computed.extend(zip((each.name for each in model.outputs), outputs, strict=True))
        found.extend(
            value if isinstance(value, TracedArray)
            else _constant(value, ElementType.of_dtype(np.asarray(value).dtype))
            for _, value in computed
        )  # fmt: skip
        return [result.value for result in found]

    if is_dynamic:
        item = write_function("main.item", types, body)
        item.attributes["sym_visibility"] = ir.StringAttr.get("private")
        results = [result.value.type for result in found]
        types = [
            dynamic_type(type_) if is_batched else type_
            for type_, is_batched in zip(types, batched, strict=True)
        ]
        function = write_function(
            "main",
            types,
            lambda values: write_loop("main.item", values, batched, results, program.place),
        )
    else:
        function = write_function("main", types, body)
    inner = function.attributes["function_type"].value
    outer = ir.FunctionType.get(
        [_said(type_, element) for type_, element in zip(types, elements, strict=True)],
        [_said(type_, result.element) for type_, result in zip(inner.results, found, strict=True)],
    )
    if outer != inner:  # storage is signless; the runtime is told what is unsigned
        function.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(outer)
    both = [each.type.name for each in arguments], [name for name, _ in computed]
    for attribute, listed in zip(NAMES_ATTRIBUTES, both, strict=True):
        texts = [ir.StringAttr.get(name) for name in listed]
        function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _types(arguments: Sequence[Argument]) -> tuple[list[ElementType], list[ir.Type]]:
    elements = [_at_boundary(element_of(each.type.type)) for each in arguments]
    return elements, [
        tensor_type(each.shape, mlir_type(element))
        for each, element in zip(arguments, elements, strict=True)
    ]


def _inputs(
    arguments: Sequence[Argument], values: Sequence[Value], elements: Sequence[ElementType]
) -> dict[str, AnyArray]:
    return {
        each.type.name: traced(value, element)
        for each, value, element in zip(arguments, values, elements, strict=True)
    }


def _traced_shapes(model: Model, options: ImportOptions, batch: int) -> dict[str, Traced]:
    """The shapes of all that nodes compute for a batch, by a program that is thrown away."""
    found: dict[str, Traced] = {}
    module = ir.Module.create()
    program = Program(model)
    plain = replace(options, batch=str(batch), every_tensor=True)
    with ir.InsertionPoint(module.body):
        arguments = arguments_of(model, plain)
        elements, types = _types(arguments)

        def body(values: Sequence[Value]) -> list[Value]:
            inputs = _inputs(arguments, values, elements)
            program.run(
                inputs,
                lambda name, value: found.update(
                    {name: Traced(tuple(value.shape), is_known(value))}
                ),
            )
            return []

        write_function("main", types, body)
    return found


def _at_boundary(element: ElementType) -> ElementType:
    """A byte for each integer of fewer bits."""
    return ElementType.of_dtype(element.dtype)


def _said(type_: ir.Type, element: ElementType) -> ir.Type:
    if element.kind != "uint":
        return type_
    return with_element(type_, ir.IntegerType.get_unsigned(element.bits))
