"""Write a TensorFlow Lite model as a module, or compute it with NumPy: the same kernels.

Each signature becomes a public function. Its arguments and results have the quantized types that
the file gives them; in between there is integer arithmetic on storage, as LiteRT's reference
kernels do it, bit by bit. Variables become globals that the loaded executable keeps between calls.

With exact semantics, operands are dequantized, the kernel computes floats, and results are
quantized; ``legalize-qdq-to-quantized-op`` makes quantized StableHLO of that, which is lowered to
exact integer arithmetic where the specification has the operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from ..._mlir import Operation, Value, ir
from ...dialects.quant import type_of
from ...emit import casts, stablehlo, variables
from ...emit.operation import create, dense, mlir_type, tensor_type, value, with_element
from ...emit.trace import TracedArray, traced
from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...formats.tflite import ELEMENTS, Model, Operator, Signature, Subgraph, Tensor
from ...numerics import litert
from ...numerics.casts import dequantize, quantize
from ...numerics.element_types import F32, AnyArray, Array, ElementType
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from ...transforms.base import NAMES_ATTRIBUTES
from ...transforms.legalize_qdq_to_quantized_op import LegalizeQdqToQuantizedOp
from ..options import AS_IN_FILE, ImportOptions
from . import (
    comparisons,
    contractions,
    control,
    elementwise,
    functions,
    indexing,
    pooling,
    recurrent,
    shapes,
)
from .batches import batched_inputs, dynamic_type, input_shapes, write_loop
from .call import KERNELS, Call, Handle, Operand

__all__ = ["Interpreter", "Program", "RealInterpreter", "write_module"]

_FAMILIES = (
    comparisons,
    contractions,
    control,
    elementwise,
    functions,
    indexing,
    pooling,
    recurrent,
    shapes,
)
"""What registers kernels."""

_ONE_MEANING = frozenset(
    name
    for name, function in KERNELS.items()
    if function.__module__ in (control.__name__, recurrent.__name__, shapes.__name__)
)
"""Operators that compute nothing, or whose integers only LiteRT defines."""

_MOST_NESTED = 32

OnTensor = Callable[[Tensor, AnyArray], None]


class Graphs:
    """Computes the graphs of a model: of arrays, or of values of a program.

    Args:
        model: as read.
        options: how operators compute.
        around: what is entered around each operator.
    """

    def __init__(
        self,
        model: Model,
        options: ImportOptions = AS_IN_FILE,
        around: Callable[[Operator], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model = model
        self.options = options
        self.place = Place(model.file)
        self.activations = options.activations
        self._around = around
        self._running: list[int] = []

    @property
    def running(self) -> int:
        """The number of the graph that is being computed."""
        return self._running[-1]

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
            variable = _own_variable(graph, tensor)
            return tensor.data if variable is None else self.read(variable, tensor)

        self._running.append(index)
        try:
            for operator in graph.operators:
                operands = [
                    None
                    if tensor is None
                    else Operand(tensor, value_of(tensor), _own_variable(graph, tensor))
                    for tensor in operator.inputs
                ]
                with self._around(operator):
                    computed = self._compute(Call(operator, operands, self))
                for tensor, value in zip(operator.outputs, computed, strict=True):
                    values[tensor.index] = value
                    if on_tensor is not None:
                        on_tensor(tensor, value)
        finally:
            self._running.pop()
        return [value_of(tensor) for tensor in graph.outputs]

    def _compute(self, call: Call) -> list[AnyArray]:
        if self.options.semantics != "exact" or call.operator.name in _ONE_MEANING:
            return _computed(call)
        return self._compute_exactly(call)

    def _compute_exactly(self, call: Call) -> list[AnyArray]:
        """Dequantize operands, compute floats, quantize results, and clamp what is fused."""
        inputs = [
            None if operand is None else self._real_operand(operand) for operand in call.inputs
        ]
        if call.operator.name in ("QUANTIZE", "DEQUANTIZE"):
            reals = [replace(call, inputs=inputs).input(0).value]
        else:
            reals = _computed(replace(call, inputs=inputs, is_real=True))
        results = []
        for tensor, real in zip(call.operator.outputs, reals, strict=True):
            if not _is_stored(tensor) or real.dtype.kind != "f":
                results.append(call.activated(real) if tensor.is_float else real)
                continue
            storage = self.quantized(real, tensor)
            if call.activation != "NONE":
                storage = litert.narrowed(storage, *call.range(tensor), call.dtype(tensor))
            results.append(storage)
        return results

    def _real_operand(self, operand: Operand) -> Operand:
        if not _is_stored(operand.tensor):
            return operand
        real = replace(operand.tensor, type="FLOAT32", quantization=None)
        return Operand(real, self.dequantized(operand.value, operand.tensor))

    def dequantized(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """The reals of storage values, f32."""
        raise NotImplementedError

    def quantized(self, real: AnyArray, tensor: Tensor) -> AnyArray:
        """The nearest storage values of reals."""
        raise NotImplementedError

    def lifted(self, value: AnyArray, like: Tensor) -> AnyArray:
        """A value of the program that is written, where one is, of the type of a tensor."""
        return value

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable, of the type of a tensor."""
        raise NotImplementedError

    def write(self, variable: str, value: AnyArray) -> None:
        """Give a variable a value."""
        raise NotImplementedError


def _is_stored(tensor: Tensor) -> bool:
    return tensor.quantization is not None and not tensor.is_float


def _own_variable(graph: Subgraph, tensor: Tensor) -> str | None:
    """The name of a tensor of a graph that keeps its value from call to call."""
    return f"graph.{graph.index}.{tensor.index}" if tensor.is_variable else None


_UNFIT = (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError)
"""What functions of arrays raise where shapes, types and numbers do not go together: a file says
each of them by itself."""


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
    except _UNFIT as error:
        reason = str(error).partition("\n")[0]
        raise call.error(f"does not fit its operands: {reason}") from error
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
        options: how operators compute. NumPy's floats stand for the reals of exact semantics.
    """

    def __init__(self, model: Model, options: ImportOptions = AS_IN_FILE) -> None:
        super().__init__(model, options)
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

    def dequantized(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """The reals of storage values, f32."""
        return dequantize(np.asarray(storage), _parameters(tensor))

    def quantized(self, real: AnyArray, tensor: Tensor) -> AnyArray:
        """The nearest storage values of reals."""
        return quantize(np.asarray(real), _parameters(tensor))


class RealInterpreter(Interpreter):
    """Computes the reals that a quantized model stands for: nothing but constants is rounded.

    Values of tensors with scales are f32.
    """

    def _compute(self, call: Call) -> list[AnyArray]:
        inputs = [None if each is None else self._real_operand(each) for each in call.inputs]
        real = replace(call, inputs=inputs)
        if call.operator.name in ("QUANTIZE", "DEQUANTIZE"):
            return [real.input(0).value]
        return _computed(real)

    def _real_operand(self, operand: Operand) -> Operand:
        tensor = operand.tensor
        if not _is_stored(tensor):
            return operand
        value = operand.value
        if value.dtype.kind != "f":  # a constant
            value = self.dequantized(value, tensor)
        return Operand(replace(tensor, type="FLOAT32", quantization=None), value)

    def real(self, value: Array, tensor: Tensor) -> Array:
        """An argument as it is taken: floats for what is quantized."""
        return np.asarray(self.dequantized(value, tensor)) if _is_stored(tensor) else value

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable."""
        found = super().read(variable, like)
        return self.real(found, like) if found.dtype.kind != "f" else found


# -- modules --------------------------------------------------------------------------------------


def write_module(
    model: Model, context: ir.Context, options: ImportOptions = AS_IN_FILE
) -> ir.Module:
    """Write a module with a function for each signature: of its name, or ``main`` if it is alone.

    Args:
        model: as read.
        context: of `subquant.dialects.create_context`.
        options: how operators compute, and what functions take and return.

    Raises:
        UnsupportedError, InputError: at an operator.
    """
    with context, ir.Location.file(model.file, 0, 0, context):
        module = ir.Module.create()
        program = Program(model, module, options)
        is_alone = len(model.signatures) == 1
        for signature in model.signatures:
            with ir.InsertionPoint(module.body):
                program.write_function(signature, "main" if is_alone else signature.name)
        if options.semantics == "exact":
            LegalizeQdqToQuantizedOp().run(module.operation)
        return module


class Program(Graphs):
    """Writes a program.

    Args:
        model: as read.
        module: where to.
        options: how operators compute.
    """

    def __init__(
        self, model: Model, module: ir.Module, options: ImportOptions = AS_IN_FILE
    ) -> None:
        super().__init__(model, options, _located)
        self._module = module
        self._first = Interpreter(model, options).variables
        self._defined: dict[str, ElementType] = {}

    def lifted(self, value: AnyArray, like: Tensor) -> AnyArray:
        """Write a constant."""
        if isinstance(value, TracedArray):
            return value
        return _constant(value, ElementType.parse(like.element))

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

    def results(
        self, graph: Subgraph, inputs: Sequence[TracedArray]
    ) -> list[tuple[Tensor, TracedArray]]:
        """Compute a graph, and return what a function of it returns."""
        computed: list[tuple[Tensor, AnyArray]] = []
        outputs = self.run(graph.index, inputs, lambda *each: computed.append(each))
        found = list(zip(graph.outputs, outputs, strict=True))
        if self.options.every_tensor:
            found = [each for each in computed if not isinstance(each[1], Handle)]
        for tensor, _ in found:
            if tensor.type not in ELEMENTS:
                raise UnsupportedError(f"{tensor} is of type {tensor.type}", self.place)
        return [
            (tensor, v if isinstance(v, TracedArray) else
             _constant(v, ElementType.parse(tensor.element)))
            for tensor, v in found
        ]  # fmt: skip

    def write_function(self, signature: Signature, name: str) -> None:
        """Write the function of a signature at the current place."""
        _write_function(self, signature, name)

    @property
    def has_variables(self) -> bool:
        """Whether the model keeps values from call to call."""
        return any(
            tensor.is_variable or tensor.type == "RESOURCE"
            for each in self.model.subgraphs
            for tensor in each.tensors
        )

    def dequantized(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """Write a ``quant.dcast``."""
        if not isinstance(storage, TracedArray):
            storage = _constant(storage, ElementType.parse(tensor.element))
        quantized = _quantized(storage.value, tensor)
        type_ = tensor_type(storage.shape, mlir_type(F32))
        return traced(value("quant.dcast", [quantized], type_), F32)

    def quantized(self, real: AnyArray, tensor: Tensor) -> AnyArray:
        """Write a ``quant.qcast``."""
        if not isinstance(real, TracedArray):
            real = _constant(real, F32)
        type_ = tensor_type(real.shape, type_of(_parameters(tensor)))
        quantized = value("quant.qcast", [real.value], type_)
        return traced(casts.stored(quantized), ElementType.parse(tensor.element))


def _quantized(storage: Value, tensor: Tensor) -> Value:
    """A storage tensor as quantized; that which it is the storage of, if it is so."""
    type_ = with_element(storage.type, type_of(_parameters(tensor)))
    owner = storage.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "subquant.scast":
        source = owner.operation.operands[0]
        if source.type == type_:
            return source
    return casts.as_quantized(storage, type_)


def _symbol(variable: str) -> str:
    return f"variable.{variable}"


def _located(operator: Operator) -> ir.Location:
    return ir.Location.name(str(operator), ir.Location.current)


def _write_function(program: Program, signature: Signature, name: str) -> None:
    """Write the function of a signature; with a dynamic batch, over one for an element of it."""
    graph, options = program.model.subgraphs[signature.subgraph], program.options
    place = program.place
    is_dynamic = options.batch == "dynamic"
    batch = 1 if is_dynamic else options.batch_size
    shapes = input_shapes(graph, batch)
    types = [_type(tensor, place, n) for tensor, n in zip(graph.inputs, shapes, strict=True)]
    wanted: list[Tensor] = []

    def body(arguments: Sequence[Value]) -> list[Value]:
        inputs = [
            traced(argument, ElementType.parse(tensor.element))
            for tensor, argument in zip(graph.inputs, arguments, strict=True)
        ]
        found = program.results(graph, inputs)
        wanted.extend(tensor for tensor, _ in found)
        return [output.value for _, output in found]

    def boundary(function: Callable[[Sequence[Value]], list[Value]]) -> _Body:
        def of_types(arguments: Sequence[Value]) -> list[Value]:
            stored = [
                casts.stored(argument) if _is_typed(tensor) else argument
                for tensor, argument in zip(graph.inputs, arguments, strict=True)
            ]
            return [
                _quantized(result, tensor) if _is_typed(tensor) else result
                for tensor, result in zip(wanted, function(stored), strict=True)
            ]

        return of_types

    if is_dynamic:
        if program.has_variables:
            raise UnsupportedError(
                "the model keeps variables from call to call, and a dynamic batch calls it for "
                "each element; give --batch a number",
                place,
            )
        item, batched = f"{name}.item", batched_inputs(graph)
        plain = [
            with_element(type_, mlir_type(ElementType.parse(tensor.element)))
            for tensor, type_ in zip(graph.inputs, types, strict=True)
        ]
        written = _write(item, plain, body, is_public=False)
        results = list(written.attributes["function_type"].value.results)
        types = [
            dynamic_type(type_) if is_batched else type_
            for type_, is_batched in zip(types, batched, strict=True)
        ]
        outer = boundary(lambda given: write_loop(item, given, batched, results, place))
    else:
        outer = boundary(body)
    function = _write(name, types, outer)
    result_names = [tensor.name for tensor in wanted]
    if not options.every_tensor:
        result_names = list(signature.outputs)
    for attribute, names in zip(
        NAMES_ATTRIBUTES, (list(signature.inputs), result_names), strict=True
    ):
        texts = [ir.StringAttr.get(each) for each in names]
        function.attributes[attribute] = ir.ArrayAttr.get(texts)


_Body = Callable[[Sequence[Value]], list[Value]]


def _write(
    name: str, types: Sequence[ir.Type], body: _Body, *, is_public: bool = True
) -> Operation:
    """Write a function."""
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(list(types), [])),
    }
    if not is_public:
        attributes["sym_visibility"] = ir.StringAttr.get("private")
    function = create("func.func", attributes=attributes, regions=1)
    block = function.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        results = body(list(block.arguments))
        create("func.return", results)
    found = ir.FunctionType.get(list(types), [result.type for result in results])
    function.attributes["function_type"] = ir.TypeAttr.get(found)
    return function


def _constant(array: Array, element: ElementType) -> TracedArray:
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


# -- types ----------------------------------------------------------------------------------------


def _is_typed(tensor: Tensor) -> bool:
    """A tensor of a quantized type at the boundary of a function; wider ones are sums."""
    return _is_stored(tensor) and ElementType.parse(tensor.element).bits <= 16


def _parameters(tensor: Tensor) -> QuantizationParameters:
    """What the storage values of a tensor stand for."""
    found, element = tensor.quantization, ElementType.parse(tensor.element)
    assert found is not None  # _is_stored
    storage = StorageType(element.bits, element.kind == "int")
    axes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    scales, zero_points = found.scales, found.zero_points
    if found.block_size:
        axes, sizes = (len(tensor.shape) - 1,), (found.block_size,)
        if math.prod(tensor.shape[:-1]) > 1:  # each index of the other dimensions has scales
            axes = tuple(range(len(tensor.shape)))
            sizes = (*(1,) * (len(tensor.shape) - 1), found.block_size)
    elif found.axis is not None:
        axes, sizes = (found.axis,), (1,)
    else:
        scales, zero_points = scales.reshape(()), zero_points.reshape(())
    return QuantizationParameters(storage, ExpressedType.F32, axes, sizes, scales, zero_points)


def _type(tensor: Tensor, place: Place, shape: Sequence[int] | None = None) -> ir.Type:
    if tensor.type not in ELEMENTS:
        raise UnsupportedError(f"{tensor} is of type {tensor.type}", place)
    extents = list(tensor.shape if shape is None else shape)
    if not _is_typed(tensor):
        return tensor_type(extents, mlir_type(ElementType.parse(tensor.element)))
    return tensor_type(extents, type_of(_parameters(tensor)))
