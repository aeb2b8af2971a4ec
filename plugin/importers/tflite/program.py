"""Writer of a module for a TensorFlow Lite model.

Each signature becomes a public function. Arguments and results have the quantized types of the
file. The function computes in integers on storage, bit for bit as LiteRT's reference kernels.
Variables become globals, which the loaded executable keeps between calls.

With exact semantics, operands are dequantized, the operator importer computes floats, and results
are quantized. ``legalize-qdq-to-quantized-op`` turns these into quantized StableHLO, which is
lowered to exact integer arithmetic for the operations that its specification has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import type_of
from ...emit import casts, stablehlo, variables
from ...emit.functions import write_function
from ...emit.operation import dense, mlir_type, producer_named, tensor_type, value, with_element
from ...emit.trace import TracedArray, traced
from ...errors import InputError, Place, UnsupportedError
from ...numerics.element_types import F32, AnyArray, Array, ElementType
from ...transforms.base import NAMES_ATTRIBUTES, SIGNATURE_ATTRIBUTE
from ...transforms.quantization.legalize_qdq_to_quantized_op import LegalizeQdqToQuantizedOp
from ..batch_loop import dynamic_type, write_loop
from ..options import AS_IN_FILE, ImportOptions
from .batch_independence import BatchAxes
from .call import Call
from .graph_evaluator import GraphEvaluator
from .input_shapes import (
    batched_inputs,
    check_names,
    constant_inputs,
    input_shapes,
    unset_dimensions_hint,
)
from .interpreter import Interpreter, initial_value
from .operand import ComplexValue, VariableHandle, is_quantized, quantization_parameters
from .reading.model import ELEMENTS, Model, Signature, Subgraph, Tensor


def write_module(
    model: Model, context: ir.Context, options: ImportOptions = AS_IN_FILE
) -> ir.Module:
    """Write a module with a function for each signature; the only one is called ``main``.

    The context is one of `subquant.dialects.create_context`.

    Raises:
        UnsupportedError, InputError: an operator is refused.
    """
    with context, ir.Location.file("-", 0, 0, context):  # see `subquant.compiler.reading`
        module = ir.Module.create()
        program = Program(model, module, options)
        check_names(model, options)
        is_only = len(model.signatures) == 1
        for signature in model.signatures:
            with ir.InsertionPoint(module.body):
                program.write_function(signature, "main" if is_only else signature.name)
        for index, _, error in program.uncomputed_refusals():
            raise type(error)(
                f"graph {index}, which the program does not compute: {error.message}", error.place
            )
        if options.semantics == "exact":
            LegalizeQdqToQuantizedOp().run(module.operation)
        return module


class Program(GraphEvaluator):
    """Writes the operations of a model's subgraphs; the module gets functions and globals."""

    def __init__(
        self, model: Model, module: ir.Module, options: ImportOptions = AS_IN_FILE
    ) -> None:
        super().__init__(
            model, options, lambda operator: ir.Location.name(str(operator), ir.Location.current)
        )
        self._module = module
        interpreter = Interpreter(model, options)
        self._initial_values = interpreter.variables
        self._variable_tensors = interpreter._variable_tensors
        self._computed_operators |= interpreter._computed_operators
        self._globals: set[str] = set()
        self.batch_axes = BatchAxes(self._compute) if options.batch == "dynamic" else None

    def _compute_checked(self, call: Call) -> list[AnyArray]:
        """Compute an operator; with a dynamic batch, each of its elements alone."""
        results = super()._compute_checked(call)
        if self.batch_axes is not None:
            self.batch_axes.follow(call, results)
        return results

    @property
    def has_variables(self) -> bool:
        """The model keeps values from call to call."""
        return any(
            tensor.is_variable or tensor.type == "RESOURCE"
            for each in self.model.subgraphs
            for tensor in each.tensors
        )

    # -- values -----------------------------------------------------------------------------------

    def materialize(self, value: AnyArray, like: Tensor) -> AnyArray:
        """Write a constant for a NumPy array."""
        return _as_traced(value, ElementType.parse(like.element))

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """Write a load of a global; the first use of a variable defines the global."""
        initial = self._initial_values.get(variable)
        if initial is None:
            initial = self._initial_values[variable] = initial_value(like)
        element = ElementType.parse(like.element)
        self._define(variable, initial, element)
        type_ = tensor_type(initial.shape, mlir_type(element))
        return traced(variables.load(_symbol(variable), type_), element)

    def write(self, variable: str, value: AnyArray) -> None:
        """Write a store to a global."""
        traced_value = _as_traced(value)
        initial = self._initial_values.get(variable)
        if initial is None:
            initial = np.zeros(traced_value.shape, traced_value.dtype)
            self._initial_values[variable] = initial
        if initial.shape != traced_value.shape or initial.dtype != traced_value.dtype:
            raise UnsupportedError(
                f"assigns {traced_value.dtype.name} of shape {list(traced_value.shape)} to the "
                f"variable {variable!r}, which has {initial.dtype.name} of shape "
                f"{list(initial.shape)}"
            )
        self._define(variable, initial, traced_value.element)
        variables.store(_symbol(variable), traced_value.value)

    def _define(self, variable: str, initial: Array, element: ElementType) -> None:
        if variable not in self._globals:
            self._globals.add(variable)
            with ir.InsertionPoint.at_block_begin(self._module.body):
                variables.define(_symbol(variable), dense(initial, mlir_type(element)))

    def dequantize(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """Write a ``quant.dcast``."""
        traced_storage = _as_traced(storage, ElementType.parse(tensor.element))
        quantized = _as_quantized(traced_storage.value, tensor)
        type_ = tensor_type(storage.shape, mlir_type(F32))
        return traced(value("quant.dcast", [quantized], type_), F32)

    def quantize(self, value_: AnyArray, tensor: Tensor) -> AnyArray:
        """Write a ``quant.qcast``."""
        floats = _as_traced(value_, F32)
        type_ = tensor_type(floats.shape, type_of(quantization_parameters(tensor)))
        quantized = value("quant.qcast", [floats.value], type_)
        return traced(casts.stored(quantized), ElementType.parse(tensor.element))

    # -- functions --------------------------------------------------------------------------------

    def results(
        self, graph: Subgraph, inputs: Sequence[AnyArray]
    ) -> list[tuple[Tensor, TracedArray]]:
        """Compute a subgraph, and return the results of its function: tensors and values."""
        computed: list[tuple[Tensor, AnyArray]] = []
        outputs = self.run(graph.index, inputs, lambda *each: computed.append(each))
        results = list(zip(graph.outputs, outputs, strict=True))
        if self.options.every_tensor:
            results = [
                each for each in computed if not isinstance(each[1], (VariableHandle, ComplexValue))
            ]
        for tensor, each in results:
            if tensor.type not in ELEMENTS:
                raise UnsupportedError(f"{tensor} is of type {tensor.type}", self.location)
            if self.batch_axes is not None and not self.batch_axes.is_in_front(each):
                raise UnsupportedError(
                    f"{tensor} has no batch in its first dimension; give --batch a number",
                    self.location,
                )
        return [(tensor, self.materialize(each, tensor)) for tensor, each in results]

    def write_function(self, signature: Signature, name: str) -> None:
        """Write the function of a signature at the insertion point."""
        try:
            _FunctionWriter(self, signature, name).write()
        except (UnsupportedError, InputError) as error:
            graph = self.model.subgraphs[signature.subgraph]
            hint = unset_dimensions_hint(graph, signature, self.options)
            if not hint:
                raise
            raise type(error)(f"{error.message}{hint}", error.place) from None


class _FunctionWriter:
    """Writes the function of a signature; a dynamic batch loops over a function for one element."""

    def __init__(self, program: Program, signature: Signature, name: str) -> None:
        self.program, self.signature, self.name = program, signature, name
        self.graph, self.location = program.model.subgraphs[signature.subgraph], program.location
        options = program.options
        self.constants = constant_inputs(self.graph, signature.inputs, options, self.location)
        self.indices = [n for n in range(len(self.graph.inputs)) if n not in self.constants]
        self.arguments = [self.graph.inputs[index] for index in self.indices]
        self.results: list[Tensor] = []

    def write(self) -> None:
        """Write the function, and its attributes."""
        options, signature = self.program.options, self.signature
        shapes = input_shapes(self.graph, signature.inputs, options)
        types = [
            _argument_type(tensor, shapes[index], self.location)
            for tensor, index in zip(self.arguments, self.indices, strict=True)
        ]
        if options.batch == "dynamic":
            function = self._write_batch_loop(types)
        else:
            function = write_function(self.name, types, lambda values: self._cast(
                values, self._body
            ))  # fmt: skip
        _record_unsigned(function, self.arguments, self.results)
        result_names = list(signature.outputs)
        if options.every_tensor:
            result_names = [tensor.name for tensor in self.results]
        argument_names = [signature.inputs[index] for index in self.indices]
        for attribute, names in zip(NAMES_ATTRIBUTES, (argument_names, result_names), strict=True):
            texts = [ir.StringAttr.get(each) for each in names]
            function.attributes[attribute] = ir.ArrayAttr.get(texts)

    def _write_batch_loop(self, types: Sequence[ir.Type]) -> Operation:
        if self.program.has_variables:
            raise UnsupportedError(
                "the model keeps variables from call to call, and a dynamic batch calls it for "
                "each element; give --batch a number",
                self.location,
            )
        item, has_batch = f"{self.name}.item", batched_inputs(self.graph)
        batched = [has_batch[index] for index in self.indices]
        storage_types = [
            with_element(type_, mlir_type(ElementType.parse(tensor.element)))
            for tensor, type_ in zip(self.arguments, types, strict=True)
        ]
        inner = write_function(item, storage_types, self._body, is_public=False)
        results = list(inner.attributes["function_type"].value.results)
        types = [
            dynamic_type(type_) if is_batched else type_
            for type_, is_batched in zip(types, batched, strict=True)
        ]
        return write_function(self.name, types, lambda values: self._cast(
            values, lambda storage: write_loop(item, storage, batched, results, self.location)
        ))  # fmt: skip

    def _body(self, arguments: Sequence[Value]) -> list[Value]:
        """Compute the subgraph on storage, and record the tensors of the results."""
        inputs: dict[int, AnyArray] = {
            index: traced(argument, ElementType.parse(tensor.element))
            for index, tensor, argument in zip(self.indices, self.arguments, arguments, strict=True)
        }
        if self.program.batch_axes is not None:
            has_batch = batched_inputs(self.graph)
            for index in self.indices:
                if has_batch[index]:
                    self.program.batch_axes.start(inputs[index])
        inputs |= self.constants
        results = self.program.results(self.graph, [inputs[index] for index in sorted(inputs)])
        self.results.extend(tensor for tensor, _ in results)
        return [output.value for _, output in results]

    def _cast(
        self, arguments: Sequence[Value], body: Callable[[Sequence[Value]], list[Value]]
    ) -> list[Value]:
        """Write a body between casts from quantized arguments and to quantized results."""
        storage = [
            casts.stored(argument) if _has_quantized_type(tensor) else argument
            for tensor, argument in zip(self.arguments, arguments, strict=True)
        ]
        results = body(storage)
        return [
            _as_quantized(result, tensor) if _has_quantized_type(tensor) else result
            for tensor, result in zip(self.results, results, strict=True)
        ]


def _as_traced(array: AnyArray, element: ElementType | None = None) -> TracedArray:
    """Return a traced value, or write a constant; by default of the array's dtype."""
    if isinstance(array, TracedArray):
        return array
    element = element or ElementType.of_dtype(np.asarray(array).dtype)
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


def _as_quantized(storage: Value, tensor: Tensor) -> Value:
    """Cast storage to the quantized type of a tensor, or undo the cast that it comes from."""
    type_ = with_element(storage.type, type_of(quantization_parameters(tensor)))
    cast = producer_named(storage, "subquant.scast")
    if cast is not None and cast.operands[0].type == type_:
        return cast.operands[0]
    return casts.as_quantized(storage, type_)


def _symbol(variable: str) -> str:
    return f"variable.{variable}"


# -- function types -------------------------------------------------------------------------------


def _record_unsigned(
    function: Operation, inputs: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Record the unsigned integers of a signature for the runtime; the module has signless ones."""
    signless = function.attributes["function_type"].value
    signature = ir.FunctionType.get(
        list(map(_with_signedness, signless.inputs, inputs)),
        list(map(_with_signedness, signless.results, results)),
    )
    if signature != signless:
        function.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(signature)


def _with_signedness(type_: ir.Type, tensor: Tensor) -> ir.Type:
    element = ElementType.parse(tensor.element)
    if _has_quantized_type(tensor) or element.kind != "uint":
        return type_
    return with_element(type_, ir.IntegerType.get_unsigned(element.bits))


def _has_quantized_type(tensor: Tensor) -> bool:
    """Return True if a function has a quantized type for a tensor; wider ones are accumulators."""
    return is_quantized(tensor) and ElementType.parse(tensor.element).bits <= 16


def _argument_type(tensor: Tensor, shape: Sequence[int], location: Place) -> ir.Type:
    if tensor.type not in ELEMENTS:
        raise UnsupportedError(f"{tensor} is of type {tensor.type}", location)
    if _has_quantized_type(tensor):
        return tensor_type(list(shape), type_of(quantization_parameters(tensor)))
    return tensor_type(list(shape), mlir_type(ElementType.parse(tensor.element)))
