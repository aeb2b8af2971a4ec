"""Write an ONNX model as a module, or compute it with NumPy: the same kernels.

The graph becomes the function ``main``. Arguments and results have the types of the file: integers
of 2 and 4 bits have a byte each, and floats of 4 and 8 bits are bytes with their codes. Extents
that the file leaves open are 1 in the first dimension, or what `ImportOptions.batch` says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..._mlir import ir
from ...emit import stablehlo
from ...emit.operation import create, mlir_type, tensor_type
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
from ...formats.onnx import Model, Node, TensorType, element_of, is_too_large
from ...numerics.element_types import AnyArray, Array, ElementType
from ...transforms.base import NAMES_ATTRIBUTES, SIGNATURE_ATTRIBUTE
from ..options import AS_IN_FILE, ImportOptions
from . import contractions, elementwise, quantization, shapes
from .call import KERNELS, Call, Operand, Typed, type_of_dtype
from .explaining import Explained
from .floats import FloatFunctions, evaluated
from .reals import Quantized, Sum

__all__ = ["Interpreter", "Program", "write_module"]

_FAMILIES = (contractions, elementwise, quantization, shapes)  # which register their kernels

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
        for node in self.model.nodes:
            operands = [values[name] if name else None for name in node.inputs]
            with self._around(node):
                computed = self._computed(node, operands)
                for name, operand in zip(node.outputs, computed, strict=False):
                    if name:
                        values[name] = Operand(name, operand.type, operand.value)
                        if on_tensor is not None:
                            on_tensor(name, self._array(values[name]))
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

    def _array(self, operand: Operand) -> AnyArray:
        value = operand.value
        return value.reals(self.lift) if isinstance(value, (Quantized, Sum)) else value

    def _computed(self, node: Node, operands: Sequence[Operand | None]) -> list[Operand]:
        domain = node.operator.rpartition(".")[0]
        call = Call(node, self.model.opsets[domain], operands, self)
        kernel = KERNELS.get(node.operator)
        try:
            found = None if kernel is None else kernel(call)
            if found is None:
                found = self._others(node, operands)
        except SubquantError as error:
            if error.place is None:  # of arrays, which know nothing of the node
                kind = UnsupportedError if isinstance(error, UsageError) else type(error)
                raise call.error(error.message, kind) from None
            raise
        results = found if isinstance(found, list) else [found]
        wanted = len(node.outputs)
        if len(results) < wanted and any(node.outputs[len(results) :]):
            raise call.error(f"computes {len(results)} tensors, and has {wanted}")
        typed = [_typed(result) for result in results[:wanted]]
        if self._explained is not None:
            self._explained.add(call, typed)
        return typed

    def _others(self, node: Node, operands: Sequence[Operand | None]) -> list[Any]:
        arrays = [
            operand and Operand(operand.name, _float_type(operand), self._array(operand))
            for operand in operands
        ]
        if all(operand is None or operand.is_known for operand in arrays):
            return list(evaluated(self.model, node, arrays, self.place))
        return self.floats(node, arrays)

    @abstractmethod
    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Make an array a value of the program, if one is written."""

    @abstractmethod
    def floats(self, node: Node, operands: Sequence[Operand | None]) -> list[AnyArray]:
        """Compute a node that has no kernel here."""


def _float_type(operand: Operand) -> str:
    value = operand.value
    return type_of_dtype(value.dtype) if isinstance(value, (Quantized, Sum)) else operand.type


def _typed(result: Any) -> Operand:
    """A kernel's result with its type: reals are of the type of their scales."""
    if isinstance(result, Typed) and not isinstance(result.value, (Quantized, Sum)):
        return Operand("", result.type, result.value)
    value = result.value if isinstance(result, Typed) else result
    return Operand("", type_of_dtype(value.dtype), value)


# -- NumPy ----------------------------------------------------------------------------------------


class Interpreter(Graph):
    """Computes with NumPy; operators of floats with ONNX's reference evaluator."""

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """The array."""
        return array

    def floats(self, node: Node, operands: Sequence[Operand | None]) -> list[AnyArray]:
        """By the reference evaluator."""
        return list(evaluated(self.model, node, operands, self.place))


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
    with context, ir.Location.file(model.file, 0, 0, context):
        module = ir.Module.create()
        program = Program(model, module, on_remark)
        with ir.InsertionPoint(module.body):
            program.write_function(options)
        program.functions.finish()
        return module


class Program(Graph):
    """Writes a program.

    Args:
        model: as read.
        module: where to.
        on_remark: as of `Graph`.
    """

    def __init__(
        self,
        model: Model,
        module: ir.Module,
        on_remark: Callable[[Remark], None] | None = None,
    ) -> None:
        super().__init__(model, _located, on_remark)
        self.functions = FloatFunctions(model, module)

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Write a constant."""
        return _constant(array, element)

    def floats(self, node: Node, operands: Sequence[Operand | None]) -> list[AnyArray]:
        """Write a call of a function that torch-mlir lowers."""
        return self.functions.call(node, operands, self.lift)

    def write_function(self, options: ImportOptions = AS_IN_FILE) -> None:
        """Write the graph as the function ``main`` at the current place."""
        _write_function(self, options)


def _located(node: Node) -> ir.Location:
    return ir.Location.name(str(node), ir.Location.current)


def _constant(array: Array, element: ElementType) -> TracedArray:
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


def _write_function(program: Program, options: ImportOptions) -> None:
    model = program.model
    shapes_ = [_extents(input_, options, program.place) for input_ in model.inputs]
    elements = [_at_boundary(element_of(input_.type)) for input_ in model.inputs]
    types = [
        tensor_type(shape, mlir_type(element))
        for shape, element in zip(shapes_, elements, strict=True)
    ]
    attributes = {
        "sym_name": ir.StringAttr.get("main"),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
    }
    function = create("func.func", attributes=attributes, regions=1)
    block = function.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        inputs = {
            input_.name: traced(value, element)
            for input_, value, element in zip(model.inputs, block.arguments, elements, strict=True)
        }
        computed: list[tuple[str, AnyArray]] = []
        watch = (lambda *each: computed.append(each)) if options.every_tensor else None
        outputs = program.run(inputs, watch)
        wanted = list(zip((each.name for each in model.outputs), outputs, strict=True))
        wanted = computed if options.every_tensor else wanted
        results = [
            value if isinstance(value, TracedArray)
            else _constant(value, ElementType.of_dtype(np.asarray(value).dtype))
            for _, value in wanted
        ]  # fmt: skip
        create("func.return", [result.value for result in results])
    inner = ir.FunctionType.get(types, [result.value.type for result in results])
    outer = ir.FunctionType.get(
        [_said(type_, element) for type_, element in zip(types, elements, strict=True)],
        [_said(result.value.type, result.element) for result in results],
    )
    function.attributes["function_type"] = ir.TypeAttr.get(inner)
    if outer != inner:  # storage is signless; the runtime is told what is unsigned
        function.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(outer)
    names = [each.name for each in model.inputs], [name for name, _ in wanted]
    for attribute, listed in zip(NAMES_ATTRIBUTES, names, strict=True):
        texts = [ir.StringAttr.get(name) for name in listed]
        function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _at_boundary(element: ElementType) -> ElementType:
    """A byte for each integer of fewer bits."""
    return ElementType.of_dtype(element.dtype)


def _said(type_: ir.Type, element: ElementType) -> ir.Type:
    if element.kind != "uint":
        return type_
    return tensor_type(list(type_.shape), ir.IntegerType.get_unsigned(element.bits))


def _extents(input_: TensorType, options: ImportOptions, place: Place) -> list[int]:
    """The shape of an argument."""
    what = f"the input {quoted(input_.name)}"
    if input_.shape is None:
        raise UnsupportedError(f"{what} has no shape", place)
    if options.batch == "dynamic":
        raise UnsupportedError("the batch of an ONNX model is a number (--batch N)", place)
    extents = []
    for axis, extent in enumerate(input_.shape):
        if isinstance(extent, int):
            if axis == 0 and options.batch_size not in (None, extent):
                raise UnsupportedError(
                    f"{what} has the batch {extent} in the file; --batch is for an open one",
                    place,
                )
            extents.append(extent)
        elif axis == 0:
            extents.append(options.batch_size or 1)
        else:
            said = f", called {quoted(extent)}" if extent else ""
            raise UnsupportedError(
                f"{what} has an open extent{said} in dimension {axis}; fix it, with "
                "onnxruntime.tools.make_dynamic_shape_fixed for example",
                place,
            )
    if is_too_large(extents):
        raise UnsupportedError(f"{what} has the shape {extents}, too many elements", place)
    return extents
