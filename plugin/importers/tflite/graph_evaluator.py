"""Evaluation of the subgraphs of a TensorFlow Lite model, on arrays or traced values.

The same operator importers compute with NumPy (`interpreter.Interpreter`) and write a module
(`program.Program`). With exact semantics, operands are dequantized, the importer computes floats,
and results are quantized.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...numerics.array_functions import convert, is_known
from ...numerics.element_types import F32, AnyArray, ElementType
from ..options import AS_IN_FILE, ImportOptions
from . import operators
from .arithmetic.requantization import saturating_cast
from .call import CUSTOM_IMPORTERS, IMPORTERS, Call
from .data_movement import (
    MOVED_INPUTS,
    check_equal_parameters,
    compute_on_storage,
    moved_inputs,
    requantize_constant,
    same_parameters,
)
from .operand import ComplexValue, Operand, VariableHandle, is_quantized
from .operator_record import OperatorRecord
from .operators import complex_numbers, control_flow, lstm, recurrent
from .reading.model import ELEMENTS, Model, Operator, Subgraph, Tensor

for _module in pkgutil.iter_modules(operators.__path__):  # each registers operator importers
    importlib.import_module(f"{operators.__name__}.{_module.name}")

_SAME_IN_BOTH_SEMANTICS = frozenset(
    name
    for name, function in IMPORTERS.items()
    if function.__module__ in (control_flow.__name__, lstm.__name__, recurrent.__name__)
) | {"BITCAST"}
"""Operators whose integers only LiteRT defines, that compute other subgraphs, or that read bits."""

OnTensor = Callable[[Tensor, AnyArray], None]


class GraphEvaluator(ABC):
    """Evaluates the subgraphs of a model on arrays or traced values.

    `operator_scope` returns a context manager that is entered around each operator.
    """

    def __init__(
        self,
        model: Model,
        options: ImportOptions = AS_IN_FILE,
        operator_scope: Callable[[Operator], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model = model
        self.options = options
        self.location = Place(model.file)
        self.activations = options.activations
        self._operator_scope = operator_scope
        self._call_stack: list[int] = []
        self._computed_operators: set[tuple[int, int]] = set()
        self._variable_tensors: dict[str, Tensor] = {}

    @property
    def current_graph(self) -> int:
        """The index of the subgraph that is being computed."""
        return self._call_stack[-1]

    def run(
        self, index: int, inputs: Sequence[AnyArray], on_tensor: OnTensor | None = None
    ) -> list[AnyArray]:
        """Compute a subgraph of the model.

        `on_tensor` is called with each tensor that an operator computes, and its value.

        Raises:
            UnsupportedError, InputError: an operator is refused.
        """
        if index in self._call_stack:
            raise InputError(f"an operator calls graph {index}, which is its own", self.location)
        graph = self._graph(index)
        values: dict[int, AnyArray] = {
            tensor.index: value for tensor, value in zip(graph.inputs, inputs, strict=True)
        }

        def value_of(tensor: Tensor) -> AnyArray:
            if tensor.index in values:
                return values[tensor.index]
            variable = _variable_name(graph, tensor)
            return tensor.data if variable is None else self.read(variable, tensor)

        self._call_stack.append(index)
        try:
            for operator in graph.operators:
                operands = [
                    None
                    if tensor is None
                    else Operand(tensor, value_of(tensor), _variable_name(graph, tensor))
                    for tensor in operator.inputs
                ]
                self._computed_operators.add((index, operator.index))
                with self._operator_scope(operator):
                    record = OperatorRecord(operator, operands, self.location)
                    results = self._compute_checked(Call(operator, operands, self, record))
                for tensor, value in zip(operator.outputs, results, strict=True):
                    values[tensor.index] = value
                    if on_tensor is not None:
                        on_tensor(tensor, value)
        finally:
            self._call_stack.pop()
        return [value_of(tensor) for tensor in graph.outputs]

    def uncomputed_refusals(self) -> Iterator[tuple[int, Operator, SubquantError]]:
        """Check the operators that were not computed: of subgraphs that nothing calls.

        Yields:
            The index of the subgraph, the operator and the error, for each refused operator.
        """
        for graph in self.model.subgraphs:
            for operator in graph.operators:
                if (graph.index, operator.index) in self._computed_operators:
                    continue
                try:
                    record = OperatorRecord(operator, operator.inputs, self.location)
                    record.finish_uncomputed()
                except UnsupportedError as error:
                    yield graph.index, operator, error

    def _graph(self, index: int) -> Subgraph:
        if not 0 <= index < len(self.model.subgraphs):
            raise InputError(f"an operator calls graph {index}, which is missing", self.location)
        return self.model.subgraphs[index]

    def inputs_and_outputs(self, index: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the inputs and the outputs of a subgraph."""
        graph = self._graph(index)
        return graph.inputs, graph.outputs

    def _compute_checked(self, call: Call) -> list[AnyArray]:
        """Compute an operator, and check that every option and input of it was read.

        An error without a location gets the operator's.
        """
        try:
            results = self._compute(call)
            call.record.finish()
            for tensor, value in zip(call.operator.outputs, results, strict=True):
                self._check_type(call, tensor, value)
        except SubquantError as error:
            if error.place is None:
                raise call.error(error.message, type(error)) from None
            raise
        return results

    def _check_type(self, call: Call, tensor: Tensor, value: AnyArray) -> None:
        """Refuse a computed value whose type is not the one that the file states."""
        if isinstance(value, (ComplexValue, VariableHandle)) or tensor.type not in ELEMENTS:
            return
        if value.dtype != ElementType.parse(tensor.element).dtype:
            raise call.error(f"computes {value.dtype.name}, and {tensor} is of type {tensor.type}")

    def _compute(self, call: Call) -> list[AnyArray]:
        name = call.operator.name
        if self.options.semantics != "exact":
            check_equal_parameters(call)
        if self.options.semantics != "exact" or name in _SAME_IN_BOTH_SEMANTICS:
            return _call_importer(call)
        if name in MOVED_INPUTS:
            results = compute_on_storage(call, self.requantize, _call_importer)
            if results is not None:
                return self._clamp_results(call, results)
        return self._compute_exactly(call)

    # -- exact semantics --------------------------------------------------------------------------

    def _clamp_results(self, call: Call, storage: Sequence[AnyArray]) -> list[AnyArray]:
        """Clamp the storage of quantized results to the range of the fused activation function."""
        if call.activation == "NONE":
            return list(storage)
        return [
            saturating_cast(value, *call.range(tensor), call.dtype(tensor))
            if is_quantized(tensor)
            else value
            for value, tensor in zip(storage, call.operator.outputs, strict=True)
        ]

    def _compute_exactly(self, call: Call) -> list[AnyArray]:
        """Dequantize operands, compute floats, quantize results, apply the fused activation."""
        results = []
        floats = self._compute_floats(call, is_dequantized=True)
        for tensor, value in zip(call.operator.outputs, floats, strict=True):
            if not is_quantized(tensor):
                results.append(call.activated(value))
            elif value.dtype.kind != "f":
                raise call.error(
                    f"computes integers without a scale, and {tensor} has one; use --semantics "
                    "litert, which copies them",
                    UnsupportedError,
                )
            else:
                results.append(self.quantize(value, tensor))
        return self._clamp_results(call, results)

    def _compute_floats(self, call: Call, *, is_dequantized: bool) -> list[AnyArray]:
        """Compute an operator on dequantized operands."""
        inputs = list(call.inputs)
        for index in moved_inputs(call):
            operand = call.inputs[index]
            inputs[index] = None if operand is None else self._dequantize_operand(operand)
        call = replace(call, inputs=inputs, is_dequantized=is_dequantized)
        name = call.operator.name
        if name in ("QUANTIZE", "DEQUANTIZE") or (name == "CAST" and is_quantized(call.output)):
            return [call.input(0).value]
        return _call_importer(call)

    def _dequantize_operand(self, operand: Operand) -> Operand:
        if not is_quantized(operand.tensor):
            return operand
        tensor = replace(operand.tensor, type="FLOAT32", quantization=None)
        if operand.tensor.type in ("INT64", "UINT64"):  # biases: wider than any quantized type
            return Operand(tensor, _dequantize_int64(operand), operand.variable)
        value = self.dequantize(operand.value, operand.tensor)
        return Operand(tensor, value, operand.variable)

    @abstractmethod
    def dequantize(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """Return the expressed f32 values of storage."""

    @abstractmethod
    def quantize(self, value: AnyArray, tensor: Tensor) -> AnyArray:
        """Return the storage nearest to f32 values."""

    def requantize(self, storage: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the storage of one tensor as storage of another tensor."""
        if same_parameters(source, target):
            return storage
        if is_known(storage):
            return requantize_constant(np.asarray(storage), source, target)
        return self.quantize(self.dequantize(storage, source), target)

    # -- subgraphs and variables ------------------------------------------------------------------

    def transfer(self, value: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the value of one tensor as the value of another, between graphs and variables.

        LiteRT copies storage. Exact semantics requantizes it where the parameters differ.
        """
        if self.options.semantics != "exact" or same_parameters(source, target):
            return value
        if not (is_quantized(source) and is_quantized(target)):
            raise UnsupportedError(
                f"passes {source} on as {target}, and only one of them has a scale; use "
                "--semantics litert, which copies storage"
            )
        return self.requantize(value, source, target)

    def variable_tensor(self, variable: str, like: Tensor) -> Tensor:
        """Return the first tensor of a variable: it defines the quantization parameters."""
        return self._variable_tensors.setdefault(variable, like)

    def materialize(self, value: AnyArray, like: Tensor) -> AnyArray:
        """Return a value of the program that is written, of the type of a tensor."""
        return value

    @abstractmethod
    def read(self, variable: str, like: Tensor) -> AnyArray:
        """Return the value of a variable, of the type of a tensor."""

    @abstractmethod
    def write(self, variable: str, value: AnyArray) -> None:
        """Assign a value to a variable."""


def _dequantize_int64(operand: Operand) -> AnyArray:
    """Return the f32 values of 64-bit storage; those of a constant are rounded once."""
    quantization, rank = operand.tensor.quantization, len(operand.shape)
    assert quantization is not None  # is_quantized
    axis = quantization.axis
    shape = [1 if axis is None or n != axis else -1 for n in range(rank)]
    scales = quantization.scales.reshape(shape)
    zero_points = quantization.zero_points.reshape(shape)
    if operand.is_constant:
        exact = (np.asarray(operand.value) - zero_points) * scales.astype(np.float64)
        return np.asarray(exact, np.float32)
    return convert(operand.value - zero_points, F32) * scales


def _variable_name(graph: Subgraph, tensor: Tensor) -> str | None:
    """Return the name of a tensor that keeps its value from call to call, else None."""
    return f"graph.{graph.index}.{tensor.index}" if tensor.is_variable else None


# -- operator importers ---------------------------------------------------------------------------

_ARRAY_ERRORS = (
    ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError
)  # fmt: skip
"""The exceptions of array functions whose operands have shapes, types or values that disagree."""

_DYNAMIC_SHAPE = "the shape of its result depends on values, and shapes are static here"
_TABLE = "it keeps a table of strings or numbers"
_REFUSAL_REASONS = {
    **dict.fromkeys(("UNIQUE", "WHERE"), _DYNAMIC_SHAPE),
    **dict.fromkeys(
        ("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE"),
        _TABLE,
    ),
    **dict.fromkeys(("LSH_PROJECTION", "SKIP_GRAM"), "it computes with strings"),
    **dict.fromkeys(
        ("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "STABLEHLO_RNG_BIT_GENERATOR"),
        "its numbers are random",
    ),
}
"""The reasons for refusing operators that need dynamic shapes, strings, tables or randomness."""


def _call_importer(call: Call) -> list[AnyArray]:
    operator = call.operator
    importer = (CUSTOM_IMPORTERS if operator.is_custom else IMPORTERS).get(operator.name)
    if importer is None:
        reason = _REFUSAL_REASONS.get(operator.name, "") if not operator.is_custom else ""
        raise call.error(f"is not lowered{reason and ': '}{reason}", UnsupportedError)
    if complex_numbers.has_complex_operands(call):
        return complex_numbers.compute_by_component(call, _call_importer)
    try:
        result = importer(call)
    except _ARRAY_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise call.error(f"does not fit its operands: {reason}") from error
    results = result if isinstance(result, list) else [result]
    if len(results) != len(operator.outputs):
        raise call.error(f"computes {len(results)} tensors, and has {len(operator.outputs)}")
    return results
