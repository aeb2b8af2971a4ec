"""Compute the graphs of a TensorFlow Lite model, of arrays or of values of a program.

The same kernels run on NumPy's arrays (`Interpreter`) and write a module (`importing.Program`).
With exact semantics, operands are dequantized, the kernel computes floats, and results are
quantized.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

from ...errors import InputError, Place, SubquantError, UnsupportedError
from ...numerics.array_functions import convert, is_known
from ...numerics.casts import dequantize, quantize
from ...numerics.element_types import F32, AnyArray, Array, ElementType
from ..options import AS_IN_FILE, ImportOptions
from .arithmetic import requantization
from .call import CUSTOM_KERNELS, KERNELS, Call, Complex, Handle, Operand, parameters_of
from .data_movement import (
    MOVERS,
    check_equal_parameters,
    data_operands,
    is_stored,
    moved,
    requantized_storage,
    same_parameters,
)
from .operator_record import OperatorRecord
from .operators import (
    binary,
    comparisons,
    complex_numbers,
    control_flow,
    convolutions,
    custom_operators,
    gather,
    lstm,
    non_max_suppression,
    normalization,
    pooling,
    recurrent,
    scatter,
    shapes,
    unary,
)
from .reading.model import ELEMENTS, Model, Operator, Subgraph, Tensor

__all__ = [
    "Graphs",
    "Interpreter",
    "RealInterpreter",
    "first_value",
]

_FAMILIES = (
    comparisons,
    complex_numbers,
    convolutions,
    control_flow,
    custom_operators,
    binary,
    unary,
    gather,
    lstm,
    normalization,
    pooling,
    scatter,
    recurrent,
    shapes,
    non_max_suppression,
)
"""What registers kernels."""

_ONE_MEANING = frozenset(
    name
    for name, function in KERNELS.items()
    if function.__module__ in (control_flow.__name__, lstm.__name__, recurrent.__name__)
) | {"BITCAST"}
"""Operators whose integers only LiteRT defines, that compute other graphs, or that read bits."""

OnTensor = Callable[[Tensor, AnyArray], None]


class Graphs(ABC):
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
        self._computed_operators: set[tuple[int, int]] = set()
        self._kept_as: dict[str, Tensor] = {}

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
        if index in self._running:
            raise InputError(f"an operator calls graph {index}, which is its own", self.place)
        graph = self._graph(index)
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
                self._computed_operators.add((index, operator.index))
                with self._around(operator):
                    record = OperatorRecord(operator, operands, self.place)
                    computed = self._located(Call(operator, operands, self, record))
                for tensor, value in zip(operator.outputs, computed, strict=True):
                    values[tensor.index] = value
                    if on_tensor is not None:
                        on_tensor(tensor, value)
        finally:
            self._running.pop()
        return [value_of(tensor) for tensor in graph.outputs]

    def _located(self, call: Call) -> list[AnyArray]:
        """Compute an operator; an error without a place is the operator's."""
        try:
            return self._compute_all(call)
        except SubquantError as error:
            if error.place is None:
                raise call.error(error.message, type(error)) from None
            raise

    def uncomputed_refusals(self) -> Iterator[tuple[int, Operator, SubquantError]]:
        """Check the operators that were not computed: of graphs and branches that nothing calls.

        Yields:
            The number of the graph, the operator, and the reason, for each that is refused.
        """
        for graph in self.model.subgraphs:
            for operator in graph.operators:
                if (graph.index, operator.index) in self._computed_operators:
                    continue
                try:
                    record = OperatorRecord(operator, operator.inputs, self.place)
                    record.finish_uncomputed()
                except UnsupportedError as error:
                    yield graph.index, operator, error

    def _graph(self, index: int) -> Subgraph:
        if not 0 <= index < len(self.model.subgraphs):
            raise InputError(f"an operator calls graph {index}, which is missing", self.place)
        return self.model.subgraphs[index]

    def tensors_of(self, index: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the inputs and the outputs of a graph of the model."""
        graph = self._graph(index)
        return graph.inputs, graph.outputs

    def _compute_all(self, call: Call) -> list[AnyArray]:
        """Compute an operator, and check that nothing of it was left out."""
        computed = self._compute(call)
        call.record.finish()
        for tensor, value in zip(call.operator.outputs, computed, strict=True):
            self._check_type(call, tensor, value)
        return computed

    def _check_type(self, call: Call, tensor: Tensor, value: AnyArray) -> None:
        """Check that a computed value has the type that the file says of it."""
        if isinstance(value, (Complex, Handle)) or tensor.type not in ELEMENTS:
            return
        if value.dtype != ElementType.parse(tensor.element).dtype:
            raise call.error(f"computes {value.dtype.name}, and {tensor} is of type {tensor.type}")

    def _compute(self, call: Call) -> list[AnyArray]:
        name = call.operator.name
        if self.options.semantics != "exact":
            check_equal_parameters(call)
        if self.options.semantics != "exact" or name in _ONE_MEANING:
            return _computed(call)
        if name in MOVERS:
            results = moved(call, self.requantized, _computed)
            if results is not None:
                return self._clamped(call, results)
        return self._compute_exactly(call)

    def _clamped(self, call: Call, storage: Sequence[AnyArray]) -> list[AnyArray]:
        """Clamp the storage of quantized results to the range of the fused activation function."""
        if call.activation == "NONE":
            return list(storage)
        return [
            requantization.narrowed(value, *call.range(tensor), call.dtype(tensor))
            if is_stored(tensor)
            else value
            for value, tensor in zip(storage, call.operator.outputs, strict=True)
        ]

    def _compute_exactly(self, call: Call) -> list[AnyArray]:
        """Dequantize operands, compute floats, quantize results, and clamp what is fused."""
        results = []
        reals = self._reals(call, is_real=True)
        for tensor, real in zip(call.operator.outputs, reals, strict=True):
            if not is_stored(tensor):
                results.append(call.activated(real))
            elif real.dtype.kind != "f":
                raise call.error(
                    f"computes integers without a scale, and {tensor} has one; use --semantics "
                    "litert, which copies them",
                    UnsupportedError,
                )
            else:
                results.append(self.quantized(real, tensor))
        return self._clamped(call, results)

    def _reals(self, call: Call, *, is_real: bool) -> list[AnyArray]:
        """The floats that an operator computes of dequantized operands."""
        inputs = list(call.inputs)
        for index in data_operands(call):
            operand = call.inputs[index]
            inputs[index] = None if operand is None else self._real_operand(operand)
        real = replace(call, inputs=inputs, is_real=is_real)
        name = call.operator.name
        if name in ("QUANTIZE", "DEQUANTIZE") or (name == "CAST" and is_stored(call.output)):
            return [real.input(0).value]
        return _computed(real)

    def _real_operand(self, operand: Operand) -> Operand:
        if not is_stored(operand.tensor):
            return operand
        real = replace(operand.tensor, type="FLOAT32", quantization=None)
        if operand.tensor.type in ("INT64", "UINT64"):  # biases: no storage of a quantized type
            return Operand(real, _wide_reals(operand), operand.variable)
        value = self.dequantized(operand.value, operand.tensor)
        return Operand(real, value, operand.variable)

    @abstractmethod
    def dequantized(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """The reals of storage values, f32."""

    @abstractmethod
    def quantized(self, real: AnyArray, tensor: Tensor) -> AnyArray:
        """The nearest storage values of reals."""

    def requantized(self, storage: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the storage of one tensor as storage of another tensor."""
        if same_parameters(source, target):
            return storage
        if is_known(storage):
            return requantized_storage(np.asarray(storage), source, target)
        return self.quantized(self.dequantized(storage, source), target)

    def passed(self, value: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the value of one tensor as the value of another, between graphs and variables.

        LiteRT copies storage; with exact semantics it is requantized where parameters differ.
        """
        if self.options.semantics != "exact" or same_parameters(source, target):
            return value
        if not (is_stored(source) and is_stored(target)):
            raise UnsupportedError(
                f"passes {source} on as {target}, and only one of them has a scale; use "
                "--semantics litert, which copies storage"
            )
        return self.requantized(value, source, target)

    def kept_as(self, variable: str, like: Tensor) -> Tensor:
        """Return the tensor whose parameters the value of a variable has: the first one in use."""
        return self._kept_as.setdefault(variable, like)

    def lifted(self, value: AnyArray, like: Tensor) -> AnyArray:
        """A value of the program that is written, where one is, of the type of a tensor."""
        return value

    @abstractmethod
    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable, of the type of a tensor."""

    @abstractmethod
    def write(self, variable: str, value: AnyArray) -> None:
        """Give a variable a value."""


def _wide_reals(operand: Operand) -> AnyArray:
    """What integers of 64 bits stand for, f32: rounded once, if they are known."""
    found, rank = operand.tensor.quantization, len(operand.shape)
    assert found is not None  # is_stored
    shape = (
        (1,) * rank
        if found.axis is None
        else [-1 if axis == found.axis else 1 for axis in range(rank)]
    )
    scales, zero_points = found.scales.reshape(shape), found.zero_points.reshape(shape)
    if operand.is_constant:
        exact = (np.asarray(operand.value) - zero_points) * scales.astype(np.float64)
        return np.asarray(exact, np.float32)
    return convert(operand.value - zero_points, F32) * scales


def _own_variable(graph: Subgraph, tensor: Tensor) -> str | None:
    """The name of a tensor of a graph that keeps its value from call to call."""
    return f"graph.{graph.index}.{tensor.index}" if tensor.is_variable else None


_UNFIT = (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError)
"""What functions of arrays raise where shapes, types and numbers do not go together: a file says
each of them by itself."""


_SHAPES = "the shape of its result depends on values, and shapes are static here"
_TABLES = "it keeps a table of strings or numbers"
_STRINGS = "it computes with strings"
_RANDOM = "its numbers are random"
_REASONS = {
    **dict.fromkeys(("UNIQUE", "WHERE"), _SHAPES),
    **dict.fromkeys(
        ("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_LOOKUP", "HASHTABLE_SIZE"),
        _TABLES,
    ),
    **dict.fromkeys(("LSH_PROJECTION", "SKIP_GRAM"), _STRINGS),
    **dict.fromkeys(
        ("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "STABLEHLO_RNG_BIT_GENERATOR"),
        _RANDOM,
    ),
}
"""Why operators of LiteRT are refused that no model of static shapes and plain numbers has."""


def _computed(call: Call) -> list[AnyArray]:
    operator = call.operator
    kernel = (CUSTOM_KERNELS if operator.is_custom else KERNELS).get(operator.name)
    if kernel is None:
        why = _REASONS.get(operator.name, "") if not operator.is_custom else ""
        raise call.error(f"is not lowered{why and ': '}{why}", UnsupportedError)
    if complex_numbers.has_complex_operands(call):
        return complex_numbers.by_parts(call, _computed)
    try:
        found = kernel(call)
    except _UNFIT as error:
        reason = str(error).partition("\n")[0]
        raise call.error(f"does not fit its operands: {reason}") from error
    computed = found if isinstance(found, list) else [found]
    if len(computed) != len(operator.outputs):
        raise call.error(f"computes {len(computed)} tensors, and has {len(operator.outputs)}")
    return computed


def first_value(like: Tensor) -> Array:
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
        return first_value(like) if found is None else found

    def write(self, variable: str, value: AnyArray) -> None:
        """Give a variable a value."""
        self.variables[variable] = np.asarray(value)

    def dequantized(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """The reals of storage values, f32."""
        return dequantize(np.asarray(storage), parameters_of(tensor))

    def quantized(self, real: AnyArray, tensor: Tensor) -> AnyArray:
        """The nearest storage values of reals."""
        return quantize(np.asarray(real), parameters_of(tensor))


class RealInterpreter(Interpreter):
    """Computes the reals that a quantized model stands for: nothing but constants is rounded.

    Values of tensors with scales are f32.
    """

    def _compute(self, call: Call) -> list[AnyArray]:
        if call.operator.name == "BITCAST" and is_stored(call.input(0).tensor):
            raise call.error("reads the bits of storage, which reals do not have", UnsupportedError)
        return self._reals(call, is_real=False)

    def _check_type(self, call: Call, tensor: Tensor, value: AnyArray) -> None:
        """Reals have one type."""

    def passed(self, value: AnyArray, source: Tensor, target: Tensor) -> AnyArray:
        """Return the reals of a value: they have no parameters."""
        return self.real(value, source)

    def dequantized(self, storage: AnyArray, tensor: Tensor) -> AnyArray:
        """The reals of a constant's storage values; what is computed is real already."""
        return storage if storage.dtype.kind == "f" else super().dequantized(storage, tensor)

    def real(self, value: Array, tensor: Tensor) -> Array:
        """An argument as it is taken: floats for what is quantized."""
        return np.asarray(self.dequantized(value, tensor)) if is_stored(tensor) else value

    def read(self, variable: str, like: Tensor) -> AnyArray:
        """The value of a variable."""
        return self.real(super().read(variable, like), like)
