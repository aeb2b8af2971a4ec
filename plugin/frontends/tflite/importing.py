"""Write a TensorFlow Lite model as a module, or compute it with NumPy: the same kernels.

Each signature becomes a public function. Its arguments and results have the quantized types that
the file gives them; in between there is integer arithmetic on storage, as LiteRT's reference
kernels do it, bit by bit. Variables become globals that the loaded executable keeps between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ..._mlir import ir
from ...dialects.quant import type_of
from ...emit import casts, stablehlo, variables
from ...emit.operation import create, dense, mlir_type, tensor_type
from ...emit.trace import TracedArray, traced
from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...formats.tflite import ELEMENTS, Model, Operator, Subgraph, Tensor
from ...numerics.element_types import AnyArray, Array, ElementType
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from . import contractions, control, elementwise, pooling, shapes
from .call import KERNELS, Call, Handle, Operand

__all__ = ["Interpreter", "write_module"]

_FAMILIES = (contractions, control, elementwise, pooling, shapes)  # which register their kernels

_MOST_NESTED = 32

OnTensor = Callable[[Tensor, AnyArray], None]


class Graphs:
    """Computes the graphs of a model: of arrays, or of values of a program.

    Args:
        model: as read.
        around: what is entered around each operator.
    """

    def __init__(
        self,
        model: Model,
        around: Callable[[Operator], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model = model
        self.place = Place(model.file)
        self._around = around
        self._running: list[int] = []

    def run(
        self, index: int, inputs: Sequence[AnyArray], on_tensor: OnTensor | None = None
    ) -> list[AnyArray]:
        """Compute a graph.

        Args:
            index: its number.
            inputs: the values of its inputs.
            on_tensor: called with each tensor that an operator computes, and its value.

        Raises:
            UnsupportedError, InputError: at an operator.
        """
        if not 0 <= index < len(self.model.subgraphs) or index in self._running:
            raise InputError(f"an operator calls graph {index}", self.place)
        graph = self.model.subgraphs[index]
        values: dict[int, AnyArray] = {
            tensor.index: value for tensor, value in zip(graph.inputs, inputs, strict=True)
        }

        def value_of(tensor: Tensor) -> AnyArray:
            if tensor.index in values:
                return values[tensor.index]
            if tensor.is_variable:
                return self.read(_own_variable(graph, tensor), tensor)
            return tensor.data

        self._running.append(index)
        try:
            for operator in graph.operators:
                operands = [
                    None if tensor is None else Operand(tensor, value_of(tensor))
                    for tensor in operator.inputs
                ]
                with self._around(operator):
                    computed = _computed(Call(operator, operands, self))
                for tensor, value in zip(operator.outputs, computed, strict=True):
                    values[tensor.index] = value
                    if on_tensor is not None:
                        on_tensor(tensor, value)
        finally:
            self._running.pop()
        return [value_of(tensor) for tensor in graph.outputs]

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable, of the type of a tensor."""
        raise NotImplementedError

    def write(self, variable: str, value: AnyArray) -> None:
        """Give a variable a value."""
        raise NotImplementedError


def _own_variable(graph: Subgraph, tensor: Tensor) -> str:
    return f"graph.{graph.index}.{tensor.index}"


def _computed(call: Call) -> list[AnyArray]:
    operator = call.operator
    kernel = None if operator.is_custom else KERNELS.get(operator.name)
    if kernel is None:
        raise call.error("is not lowered", UnsupportedError)
    try:
        found = kernel(call)
    except SubquantError as error:
        if error.place is None:
            raise call.error(error.message, type(error)) from None
        raise
    computed = found if isinstance(found, list) else [found]
    if len(computed) != len(operator.outputs):
        raise call.error(f"computes {len(computed)} tensors, and has {len(operator.outputs)}")
    return computed


def _first_value(like: Tensor) -> Array:
    """What a variable is before anything is assigned to it: zero points."""
    element = ElementType.parse(like.element)
    zero_point = 0 if like.quantization is None else like.quantization.zero_point
    return np.full(like.shape, zero_point, element.dtype)


# -- NumPy ----------------------------------------------------------------------------------------


class Interpreter(Graphs):
    """Computes with NumPy.

    Args:
        model: as read.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.variables: dict[str, Array] = {}
        for graph in model.subgraphs:
            for operator in graph.operators:
                if operator.name == "CALL_ONCE":
                    self.run(operator.options.init_subgraph_index, [])  # type: ignore[attr-defined]

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable."""
        found = self.variables.get(variable)
        return _first_value(like) if found is None else found

    def write(self, variable: str, value: AnyArray) -> None:
        """Give a variable a value."""
        self.variables[variable] = np.asarray(value)


# -- modules --------------------------------------------------------------------------------------


def write_module(model: Model, context: ir.Context, *, every_tensor: bool = False) -> ir.Module:
    """Write a module with a function for each signature: of its name, or ``main`` if it is alone.

    Args:
        model: as read.
        context: of `subquant.dialects.create_context`.
        every_tensor: return all that operators compute, in the order of execution, in place of
            the outputs.

    Raises:
        UnsupportedError, InputError: at an operator.
    """
    with context, ir.Location.file(model.file, 0, 0, context):
        module = ir.Module.create()
        program = _Program(model, module)
        is_alone = len(model.signatures) == 1
        for signature in model.signatures:
            with ir.InsertionPoint(module.body):
                name = "main" if is_alone else signature.name
                _write_function(program, name, signature.subgraph, every_tensor)
        return module


class _Program(Graphs):
    """Writes a program."""

    def __init__(self, model: Model, module: ir.Module) -> None:
        super().__init__(model, _located)
        self._module = module
        self._first = Interpreter(model).variables
        self._defined: dict[str, ElementType] = {}

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """Write a load of a global, which is defined if it is the first time."""
        first = self._first.get(variable)
        if first is None:
            first = self._first[variable] = _first_value(like)
        element = ElementType.parse(like.element)
        self._define(variable, first, element)
        type_ = tensor_type(first.shape, mlir_type(element))
        return traced(variables.load(_symbol(variable), type_), element)

    def write(self, variable: str, value: AnyArray) -> None:
        """Write a store to a global."""
        if not isinstance(value, TracedArray):
            value = _constant(value, ElementType.of_dtype(np.asarray(value).dtype))
        first = self._first.get(variable)
        if first is None:
            first = self._first[variable] = np.zeros(value.shape, value.dtype)
        if first.shape != value.shape or first.dtype != value.dtype:
            raise UnsupportedError(
                f"gives the variable {variable!r} {value.dtype.name} of shape "
                f"{list(value.shape)}, which was {first.dtype.name} of shape {list(first.shape)}"
            )
        self._define(variable, first, value.element)
        variables.store(_symbol(variable), value.value)

    def _define(self, variable: str, first: Array, element: ElementType) -> None:
        if variable not in self._defined:
            self._defined[variable] = element
            with ir.InsertionPoint.at_block_begin(self._module.body):
                variables.define(_symbol(variable), dense(first, mlir_type(element)))


def _symbol(variable: str) -> str:
    return f"variable.{variable}"


def _located(operator: Operator) -> ir.Location:
    return ir.Location.name(str(operator), ir.Location.current)


def _write_function(program: _Program, name: str, index: int, every_tensor: bool) -> None:
    graph, place = program.model.subgraphs[index], program.place
    types = [_type(tensor, place) for tensor in graph.inputs]
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
    }
    function = create("func.func", attributes=attributes, regions=1)
    block = function.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        inputs = [
            traced(
                casts.stored(value) if _parameters(tensor) is not None else value,
                ElementType.parse(tensor.element),
            )
            for tensor, value in zip(graph.inputs, block.arguments, strict=True)
        ]
        computed: list[tuple[Tensor, AnyArray]] = []
        outputs = program.run(index, inputs, lambda *each: computed.append(each))
        wanted = list(zip(graph.outputs, outputs, strict=True))
        if every_tensor:
            wanted = [each for each in computed if not isinstance(each[1], Handle)]
        results = []
        for tensor, output in wanted:
            type_ = _type(tensor, place, output.shape)
            if not isinstance(output, TracedArray):
                output = _constant(output, ElementType.parse(tensor.element))
            quantized = _parameters(tensor) is not None
            results.append(casts.as_quantized(output.value, type_) if quantized else output.value)
        create("func.return", results)
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(types, [value.type for value in results])
    )


def _constant(array: Array, element: ElementType) -> TracedArray:
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


# -- types ----------------------------------------------------------------------------------------


def _parameters(tensor: Tensor) -> QuantizationParameters | None:
    """What a tensor's values stand for at the boundary of a function, if they are storage."""
    found = tensor.quantization
    element = ElementType.parse(tensor.element)
    if found is None or found.block_size or element.bits > 16:
        return None
    storage = StorageType(element.bits, element.kind == "int")
    if found.axis is None:
        scales, zero_points = found.scales.reshape(()), found.zero_points.reshape(())
        return QuantizationParameters(storage, ExpressedType.F32, (), (), scales, zero_points)
    return QuantizationParameters(
        storage, ExpressedType.F32, (found.axis,), (1,), found.scales, found.zero_points
    )


def _type(tensor: Tensor, place: Place, shape: Sequence[int] | None = None) -> ir.Type:
    if tensor.type not in ELEMENTS:
        raise UnsupportedError(f"{tensor} is of type {tensor.type}", place)
    parameters = _parameters(tensor)
    extents = list(tensor.shape if shape is None else shape)
    if parameters is None:
        return tensor_type(extents, mlir_type(ElementType.parse(tensor.element)))
    return tensor_type(extents, type_of(parameters))
