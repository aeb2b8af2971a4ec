"""Write an ONNX model as a module with a function ``main``.

Arguments and results have the types of the file: integers of 2 and 4 bits have a byte each, and
floats of 4 and 8 bits are bytes with their codes. `arguments` gives the dimension sizes that the
file leaves open. A dynamic batch is a loop over one element of it, where `batch_independence`
proves that this is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...core._mlir import Value, ir
from ...emit import linalg, scalar, stablehlo
from ...emit.functions import write_function
from ...emit.operation import INDEX, mlir_type, tensor_type, with_element
from ...emit.trace import TracedArray, traced
from ...errors import Remark
from ...numerics.array_functions import divide_truncated, is_known, take
from ...numerics.element_types import AnyArray, Array, ElementType
from ...transforms.base import NAMES_ATTRIBUTES, SIGNATURE_ATTRIBUTE
from ..batch_loop import dynamic_type, write_loop
from ..options import AS_IN_FILE, ImportOptions
from .batch_independence import TensorTrace, batch_unlike_sizes, check_batch
from .graph import Graph
from .reading.arguments import Argument, arguments_of, with_input_values
from .reading.model import Model


def write_module(
    model: Model,
    context: ir.Context,
    options: ImportOptions = AS_IN_FILE,
    on_remark: Callable[[Remark], None] | None = None,
) -> ir.Module:
    """Write a module with a function ``main``; the model decides semantics and activations.

    The context is one of `subquant.dialects.create_context`; for `on_remark` see `Graph`.

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
    """Writes a program."""

    def __init__(self, model: Model, on_remark: Callable[[Remark], None] | None = None) -> None:
        super().__init__(
            model, lambda node: ir.Location.name(str(node), ir.Location.current), on_remark
        )

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Write a constant."""
        return traced(stablehlo.constant(np.asarray(array), mlir_type(element)), element)

    def check(self, condition: AnyArray, message: str) -> None:
        """Write an assertion."""
        linalg.check(linalg.extract(condition.reshape(()).value, []), message)

    def first_rows(self, value: AnyArray, axis: int, count: AnyArray) -> AnyArray:
        """Write a slice of a dynamic dimension size.

        The elements are gathered at the front of a flat array of static size, of which the slice is
        a copy: IREE's Vulkan driver runs no dispatch over a dynamic tensor without elements.
        """
        element = ElementType.of_dtype(np.dtype(value.dtype))
        array = self.lift(value, element) if is_known(value) else value
        shape, flat = array.shape, array.reshape(-1)
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if outer > 1 and flat.size:
            width = np.maximum(count, np.int32(1)) * np.int32(inner)
            position = np.arange(flat.size, dtype=np.int32)
            block = divide_truncated(position, width)
            source = position + block * (np.int32(shape[axis] * inner) - width)
            flat = take(flat, np.minimum(source, np.int32(flat.size - 1)), 0)
        numbers = [
            scalar(linalg.extract(each.reshape(()).value, []), each.element).convert(INDEX).value
            for each in (count, count * np.int32(outer * inner))
        ]
        sizes: list[int | Value] = [int(n) for n in shape]
        sizes[axis] = numbers[0]
        return traced(linalg.take_first(flat.value, numbers[1], sizes), array.element)

    def write_function(self, options: ImportOptions = AS_IN_FILE) -> None:
        """Write the graph as ``main``; with a dynamic batch, as a loop over one element of it."""
        model, is_dynamic = self.model, options.batch == "dynamic"
        arguments = arguments_of(model, options)
        batched = [argument.is_batched for argument in arguments]
        if is_dynamic:
            names = [each.type.name for each in arguments if each.is_batched]
            traces = [_trace(model, options, n) for n in (1, batch_unlike_sizes(model))]
            check_batch(model, names, *traces)
        types = [tensor_type(each.shape, mlir_type(each.element)) for each in arguments]
        computed: list[tuple[str, AnyArray]] = []
        results: list[TracedArray] = []

        def body(values: Sequence[Value]) -> list[Value]:
            inputs = _inputs(arguments, values)
            on_tensor = (lambda *each: computed.append(each)) if options.every_tensor else None
            outputs = self.run(inputs, on_tensor)
            if not options.every_tensor:
                computed.extend(zip((each.name for each in model.outputs), outputs, strict=True))
            results.extend(
                value if isinstance(value, TracedArray)
                else self.lift(value, ElementType.of_dtype(np.asarray(value).dtype))
                for _, value in computed
            )  # fmt: skip
            return [result.value for result in results]

        if is_dynamic:
            item = write_function("main.item", types, body)
            item.attributes["sym_visibility"] = ir.StringAttr.get("private")
            result_types = [result.value.type for result in results]
            types = [
                dynamic_type(type_) if is_batched else type_
                for type_, is_batched in zip(types, batched, strict=True)
            ]
            function = write_function(
                "main",
                types,
                lambda values: write_loop(
                    "main.item", values, batched, result_types, self.location
                ),
            )
        else:
            function = write_function("main", types, body)
        signless = function.attributes["function_type"].value
        result_elements = [result.element for result in results]
        signature = ir.FunctionType.get(
            *(
                [_with_sign(type_, element) for type_, element in zip(*pair, strict=True)]
                for pair in (
                    (types, [each.element for each in arguments]),
                    (signless.results, result_elements),
                )
            )
        )
        if signature != signless:  # storage is signless; the runtime reads this signature
            function.attributes[SIGNATURE_ATTRIBUTE] = ir.TypeAttr.get(signature)
        both = [each.type.name for each in arguments], [name for name, _ in computed]
        for attribute, listed in zip(NAMES_ATTRIBUTES, both, strict=True):
            texts = [ir.StringAttr.get(name) for name in listed]
            function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _inputs(arguments: Sequence[Argument], values: Sequence[Value]) -> dict[str, AnyArray]:
    pairs = zip(arguments, values, strict=True)
    return {each.type.name: traced(value, each.element) for each, value in pairs}


def _trace(model: Model, options: ImportOptions, batch: int) -> dict[str, TensorTrace]:
    """Trace all tensors that nodes compute for a batch, by a program that is thrown away."""
    traces: dict[str, TensorTrace] = {}
    module = ir.Module.create()
    program = Program(model)
    options = replace(options, batch=str(batch), every_tensor=True)

    def add(name: str, value: AnyArray) -> None:
        traces[name] = TensorTrace(
            tuple(value.shape), np.asarray(value) if is_known(value) else None
        )

    with ir.InsertionPoint(module.body):
        arguments = arguments_of(model, options)
        types = [tensor_type(each.shape, mlir_type(each.element)) for each in arguments]

        def body(values: Sequence[Value]) -> list[Value]:
            program.run(_inputs(arguments, values), add)
            return []

        write_function("main", types, body)
    return traces


def _with_sign(type_: ir.Type, element: ElementType) -> ir.Type:
    if element.kind != "uint":
        return type_
    return with_element(type_, ir.IntegerType.get_unsigned(element.bits))
