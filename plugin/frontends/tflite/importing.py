"""Write a TensorFlow Lite model as a module, or compute it with NumPy: the same kernels.

Each signature becomes a public function. Its arguments and results have the quantized types that
the file gives them; in between there is integer arithmetic on storage, as LiteRT's reference
kernels do it, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ..._mlir import ir
from ...dialects.quant import type_of
from ...emit import casts, stablehlo
from ...emit.operation import create, mlir_type, tensor_type
from ...emit.trace import TracedArray, traced
from ...errors import Place, SubquantError, UnsupportedError
from ...formats.tflite import ELEMENTS, Model, Operator, Subgraph, Tensor
from ...numerics.element_types import AnyArray, Array, ElementType
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from . import contractions, elementwise, pooling, shapes
from .call import KERNELS, Call, Operand

__all__ = ["evaluate", "write_module"]

_FAMILIES = (contractions, elementwise, pooling, shapes)  # which register their kernels

OnTensor = Callable[[Tensor, AnyArray], None]


def write_module(
    model: Model, context: ir.Context, *, every_tensor: bool = False
) -> ir.Module:
    """Write a module with a function for each signature.

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
        with ir.InsertionPoint(module.body):
            for signature in model.signatures:
                graph = model.subgraphs[signature.subgraph]
                _write_function(model, graph, signature.name, every_tensor)
        return module


def _write_function(model: Model, graph: Subgraph, name: str, every_tensor: bool) -> None:
    place = Place(model.file)
    types = [_type(tensor, place) for tensor in graph.inputs]
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
    }
    function = create("func.func", attributes=attributes, regions=1)
    block = function.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        values = [
            traced(
                casts.stored(value) if _parameters(tensor) is not None else value,
                ElementType.parse(tensor.element),
            )
            for tensor, value in zip(graph.inputs, block.arguments, strict=True)
        ]
        computed: list[tuple[Tensor, AnyArray]] = []
        outputs = run(graph, values, place, lambda *each: computed.append(each), _located)
        results = []
        wanted = computed if every_tensor else list(zip(graph.outputs, outputs, strict=True))
        for tensor, output in wanted:
            value = output if isinstance(output, TracedArray) else _constant(output, tensor)
            type_ = _type(tensor, place, value.shape)
            quantized = _parameters(tensor) is not None
            results.append(casts.as_quantized(value.value, type_) if quantized else value.value)
        create("func.return", results)
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(types, [value.type for value in results])
    )


def _constant(array: Array, tensor: Tensor) -> TracedArray:
    element = ElementType.parse(tensor.element)
    return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)


def run(
    graph: Subgraph,
    inputs: Sequence[AnyArray],
    place: Place,
    on_tensor: OnTensor | None = None,
    around: Callable[[Operator], AbstractContextManager[object]] = nullcontext,
) -> list[AnyArray]:
    """Compute a graph: of arrays, or of values of a program.

    Args:
        graph: the graph.
        inputs: the values of its inputs.
        place: of the file, for errors.
        on_tensor: called with each tensor that an operator computes, and its value.
        around: what is entered around each operator.
    """
    values: dict[int, AnyArray] = {
        tensor.index: value for tensor, value in zip(graph.inputs, inputs, strict=True)
    }

    def value_of(tensor: Tensor) -> AnyArray:
        return values[tensor.index] if tensor.index in values else tensor.data

    for operator in graph.operators:
        operands = [
            None if tensor is None else Operand(tensor, value_of(tensor))
            for tensor in operator.inputs
        ]
        with around(operator):
            computed = _computed(Call(operator, operands, place))
        for tensor, value in zip(operator.outputs, computed, strict=True):
            values[tensor.index] = value
            if on_tensor is not None:
                on_tensor(tensor, value)
    return [value_of(tensor) for tensor in graph.outputs]


def _located(operator: Operator) -> ir.Location:
    return ir.Location.name(str(operator), ir.Location.current)


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


def evaluate(
    model: Model, inputs: Sequence[Array], graph: int = 0, on_tensor: OnTensor | None = None
) -> list[Array]:
    """Compute a graph of a model with NumPy.

    Args:
        model: as read.
        inputs: storage values of its inputs.
        graph: its number.
        on_tensor: as of `run`.
    """
    return run(model.subgraphs[graph], inputs, Place(model.file), on_tensor)


# -- types ----------------------------------------------------------------------------------------


def _parameters(tensor: Tensor) -> QuantizationParameters | None:
    found = tensor.quantization
    if found is None or found.block_size or ElementType.parse(tensor.element).bits > 16:
        return None
    element = ElementType.parse(tensor.element)
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
