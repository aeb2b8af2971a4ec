"""Write a TensorFlow Lite model as a module.

Each signature becomes a public function. Its arguments and results have the quantized types that
the file gives them; in between there is integer arithmetic on storage, as LiteRT's reference
kernels do it, bit by bit. Variables become globals that the loaded executable keeps between calls.

With exact semantics, operands are dequantized, the kernel computes floats, and results are
quantized; ``legalize-qdq-to-quantized-op`` makes quantized StableHLO of that, which is lowered to
exact integer arithmetic where the specification has the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import type_of
from ...emit import casts, stablehlo, variables
from ...emit.functions import write_function
from ...emit.operation import dense, mlir_type, tensor_type, value, with_element
from ...emit.trace import TracedArray, traced
from ...errors import InputError, Place, UnsupportedError
from ...numerics.element_types import F32, AnyArray, Array, ElementType
from ...transforms.base import NAMES_ATTRIBUTES, SIGNATURE_ATTRIBUTE
from ...transforms.quantization.legalize_qdq_to_quantized_op import LegalizeQdqToQuantizedOp
from ..batch_loop import dynamic_type, write_loop
from ..options import AS_IN_FILE, ImportOptions
from .call import Complex, Handle, parameters_of
from .data_movement import is_stored
from .input_shapes import (
    batched_inputs,
    check_extents,
    check_input_values,
    constant_inputs,
    input_shapes,
    unstated_extents,
)
from .interpreter import Graphs, Interpreter, first_value
from .reading.model import ELEMENTS, Model, Operator, Signature, Subgraph, Tensor

__all__ = ["Program", "write_module"]


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
    with context, ir.Location.file("-", 0, 0, context):  # see `subquant.compiler.reading`
        module = ir.Module.create()
        program = Program(model, module, options)
        check_extents(model, options)
        check_input_values(model, options)
        is_alone = len(model.signatures) == 1
        for signature in model.signatures:
            with ir.InsertionPoint(module.body):
                program.write_function(signature, "main" if is_alone else signature.name)
        for index, _, error in program.uncomputed_refusals():
            raise type(error)(
                f"graph {index}, which the program does not compute: {error.message}", error.place
            )
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
        initialized = Interpreter(model, options)
        self._first, self._kept_as = initialized.variables, initialized._kept_as
        self._computed_operators |= initialized._computed_operators
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
            first = self._first[variable] = first_value(like)
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
        self, graph: Subgraph, inputs: Sequence[AnyArray]
    ) -> list[tuple[Tensor, TracedArray]]:
        """Compute a graph, and return what a function of it returns."""
        computed: list[tuple[Tensor, AnyArray]] = []
        outputs = self.run(graph.index, inputs, lambda *each: computed.append(each))
        values = list(zip(graph.outputs, outputs, strict=True))
        if self.options.every_tensor:
            values = [each for each in computed if not isinstance(each[1], (Handle, Complex))]
        for tensor, _ in values:
            if tensor.type not in ELEMENTS:
                raise UnsupportedError(f"{tensor} is of type {tensor.type}", self.place)
        return [
            (tensor, v if isinstance(v, TracedArray) else
             _constant(v, ElementType.parse(tensor.element)))
            for tensor, v in values
        ]  # fmt: skip

    def write_function(self, signature: Signature, name: str) -> None:
        """Write the function of a signature at the current place."""
        try:
            _write_function(self, signature, name)
        except (UnsupportedError, InputError) as error:
            graph = self.model.subgraphs[signature.subgraph]
            hint = unstated_extents(graph, signature, self.options)
            if not hint:
                raise
            raise type(error)(f"{error.message}{hint}", error.place) from None

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
        type_ = tensor_type(real.shape, type_of(parameters_of(tensor)))
        quantized = value("quant.qcast", [real.value], type_)
        return traced(casts.stored(quantized), ElementType.parse(tensor.element))


def _quantized(storage: Value, tensor: Tensor) -> Value:
    """A storage tensor as quantized; that which it is the storage of, if it is so."""
    type_ = with_element(storage.type, type_of(parameters_of(tensor)))
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
    shapes = input_shapes(graph, signature.inputs, options)
    constants = constant_inputs(graph, signature.inputs, options, place)
    numbers = [number for number in range(len(graph.inputs)) if number not in constants]
    tensors = [graph.inputs[number] for number in numbers]
    types = [_type(graph.inputs[number], place, shapes[number]) for number in numbers]
    wanted: list[Tensor] = []

    def body(arguments: Sequence[Value]) -> list[Value]:
        inputs: dict[int, AnyArray] = {
            number: traced(argument, ElementType.parse(tensor.element))
            for number, tensor, argument in zip(numbers, tensors, arguments, strict=True)
        }
        inputs |= constants
        found = program.results(graph, [inputs[number] for number in sorted(inputs)])
        wanted.extend(tensor for tensor, _ in found)
        return [output.value for _, output in found]

    def boundary(function: Callable[[Sequence[Value]], list[Value]]) -> _Body:
        def of_types(arguments: Sequence[Value]) -> list[Value]:
            stored = [
                casts.stored(argument) if _is_typed(tensor) else argument
                for tensor, argument in zip(tensors, arguments, strict=True)
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
        item, is_batched_input = f"{name}.item", batched_inputs(graph)
        batched = [is_batched_input[number] for number in numbers]
        plain = [
            with_element(type_, mlir_type(ElementType.parse(tensor.element)))
            for tensor, type_ in zip(tensors, types, strict=True)
        ]
        written = write_function(item, plain, body, is_public=False)
        results = list(written.attributes["function_type"].value.results)
        types = [
            dynamic_type(type_) if is_batched else type_
            for type_, is_batched in zip(types, batched, strict=True)
        ]
        outer = boundary(lambda given: write_loop(item, given, batched, results, place))
    else:
        outer = boundary(body)
    function = write_function(name, types, outer)
    _record_unsigned(function, tensors, wanted)
    result_names = [tensor.name for tensor in wanted]
    if not options.every_tensor:
        result_names = list(signature.outputs)
    for attribute, names in zip(
        NAMES_ATTRIBUTES, ([signature.inputs[n] for n in numbers], result_names), strict=True
    ):
        texts = [ir.StringAttr.get(each) for each in names]
        function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _record_unsigned(
    function: Operation, inputs: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Tell the runtime which plain integers are unsigned; the module has signless ones."""
    inner = function.attributes["function_type"].value
    sides = [
        [_said(type_, tensor) for type_, tensor in zip(types, tensors, strict=True)]
        for types, tensors in ((inner.inputs, inputs), (inner.results, results))
    ]
    outer = ir.FunctionType.get(*sides)
    if outer != inner:
        function.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(outer)


def _said(type_: ir.Type, tensor: Tensor) -> ir.Type:
    element = ElementType.parse(tensor.element)
    if _is_typed(tensor) or element.kind != "uint":
        return type_
    return with_element(type_, ir.IntegerType.get_unsigned(element.bits))


_Body = Callable[[Sequence[Value]], list[Value]]


def _constant(array: Array, element: ElementType) -> TracedArray:
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


# -- types ----------------------------------------------------------------------------------------


def _is_typed(tensor: Tensor) -> bool:
    """A tensor of a quantized type at the boundary of a function; wider ones are sums."""
    return is_stored(tensor) and ElementType.parse(tensor.element).bits <= 16


def _type(tensor: Tensor, place: Place, shape: Sequence[int] | None = None) -> ir.Type:
    if tensor.type not in ELEMENTS:
        raise UnsupportedError(f"{tensor} is of type {tensor.type}", place)
    extents = list(tensor.shape if shape is None else shape)
    if not _is_typed(tensor):
        return tensor_type(extents, mlir_type(ElementType.parse(tensor.element)))
    return tensor_type(extents, type_of(parameters_of(tensor)))
