"""Calls of operator importers: nodes with the values of their inputs.

An importer is a function of a `Call` that returns the values of the outputs. Values are arrays: of
NumPy, or of a program that is being written, on which the same formulas run; or expressed values
that are still integers and scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ...core.read_record import Irrelevant, ReadRecord
from ...errors import Place, SubquantError, UnsupportedError
from ...numerics.array_functions import is_known
from ...numerics.element_types import AnyArray, Array, DType, ElementType
from ..operator_registry import BaseCall, OperatorRegistry
from .dynamic_sizes.bounded_tensor import BOUNDED_REFUSAL, BoundedTensor
from .quantization.expressed import ExpressedValue, Quantized, ScaledSum
from .reading.model import ELEMENTS, Node, Subgraph

if TYPE_CHECKING:
    from .graph import Graph

_Value = TypeVar("_Value")

_TYPES = {
    ElementType.parse(element).dtype: type_
    for type_, element in reversed(ELEMENTS.items())
    if ElementType.parse(element).bits in (1, 8, 16, 32, 64)
    and "8E" not in type_ and "4E" not in type_
}  # fmt: skip


def type_of_dtype(dtype: DType) -> str:
    """ONNX's name of the type that a dtype holds all of."""
    return _TYPES[np.dtype(dtype)]


@dataclass(frozen=True, eq=False)
class Operand:
    """An input or a result: a type of ONNX, a value, and the name of an input.

    The type says more than the dtype for integers of 2 or 4 bits and small floats.
    """

    type: str
    value: ExpressedValue
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimension sizes."""
        return tuple(self.value.shape)

    @property
    def is_constant(self) -> bool:
        """True if the elements are known when the program is written."""
        return not isinstance(self.value, (Quantized, ScaledSum)) and is_known(self.value)

    def __str__(self) -> str:
        return f"tensor {self.name!r}"


@dataclass
class Arithmetic:
    """The arithmetic of a node that its importer reports, integers or floats, and the reason."""

    is_integer: bool | None = None
    reason: str = ""


@dataclass
class ReadParts:
    """The attributes and inputs of a node that its importer has read."""

    attributes: set[str] = field(default_factory=set)
    inputs: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Call(BaseCall[Operand]):
    """A node with the values of its inputs.

    The node has the form of the newest operator set (`opset_rules`). The methods record the
    attributes and inputs that are read, and `check_all_is_read` refuses the others by name.
    """

    node: Node
    inputs: Sequence[Operand | None]
    graph: Graph
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    read_parts: ReadParts = field(default_factory=ReadParts)

    @property
    def subject(self) -> tuple[Node, Place]:
        """The node, and the file."""
        return self.node, self.graph.location

    @property
    def is_inner(self) -> bool:
        """True for a node in the graph of another node, a branch or a loop."""
        return bool(self.node.path)

    def optional(self, index: int) -> Operand | None:
        """An input that may be absent."""
        self.read_parts.inputs.add(index)
        return super().optional(index)

    def constant(self, index: int) -> Array:
        """The elements of an input that must be constant, as one without elements always is."""
        operand = self.input(index)
        if not operand.is_constant and 0 in operand.shape:
            return np.zeros(operand.shape, operand.value.dtype)
        return super().constant(index)

    def constant_list(self, index: int) -> list[int]:
        """The elements of a constant input of integers."""
        return [int(n) for n in self.constant(index).reshape(-1)]

    def scalar(self, index: int) -> AnyArray:
        """The value of an input of one element, without dimensions."""
        return self.only_element(index, self.array(index))

    def array(self, index: int) -> AnyArray:
        """The value of an input, dequantized if it is quantized."""
        return self.floats(self.input(index).value)

    def floats(self, value: ExpressedValue) -> AnyArray:
        """A value as an array.

        Raises:
            UnsupportedError: it is a bounded tensor, whose padding no importer may read.
        """
        if isinstance(value, BoundedTensor):
            raise self.unsupported(BOUNDED_REFUSAL)
        return self.graph.floats(value)

    def plain(self, operand: Operand) -> Operand:
        """An operand with its value as an array, dequantized if it is quantized."""
        value = self.floats(operand.value)
        if value is operand.value:
            return operand
        return Operand(type_of_dtype(value.dtype), value, operand.name)

    def typed(self, value: ExpressedValue) -> Operand:
        """A result of the type of the first input."""
        return Operand(self.input(0).type, value)

    def values_of(self, kind: type[_Value]) -> dict[int, _Value]:
        """The values of one kind, by input."""
        return {
            index: each.value
            for index, each in enumerate(self.inputs)
            if each is not None and isinstance(each.value, kind)
        }

    def with_values(self, values: Mapping[int, AnyArray]) -> Call:
        """The call with other values of some inputs."""
        inputs = list(self.inputs)
        for index, value in values.items():
            inputs[index] = replace(self.input(index), value=value)
        return replace(self, inputs=inputs)

    def lifted(self, value: AnyArray) -> AnyArray:
        """A value of the program, if one is written, as a loop of the program needs it."""
        if not is_known(value):
            return value
        array = np.asarray(value)
        return self.graph.lift(array, ElementType.of_dtype(array.dtype))

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, which must have the type of the default; or the default."""
        self.read_parts.attributes.add(name)
        value = self.node.attributes.get(name)
        if value is None:
            return default
        is_other = default is not None and type(value) is not type(default)
        if is_other or (isinstance(default, list) and any(type(n) is not int for n in value)):
            raise self.error(f"has the attribute {name!r} of another type, {str(value)[:80]!r}")
        return value

    def integer(self, name: str) -> int:
        """An integer attribute that the node must have."""
        if name not in self.node.attributes:
            raise self.error(f"has no attribute {name!r}")
        return int(self.attribute(name, 0))

    def axis(self, name: str, rank: int, default: int) -> int:
        """An attribute that is an axis, from 0."""
        return self.checked_axis(self.attribute(name, default), rank)

    def optional_axis(self, name: str, rank: int) -> int | None:
        """An attribute that is an axis, from 0; None if it is absent."""
        return None if self.attribute(name) is None else self.axis(name, rank, 0)

    def subgraph(self, name: str) -> Subgraph:
        """A graph that the node must have."""
        self.read_parts.attributes.add(name)
        graph = self.node.attributes.get(name)
        if not isinstance(graph, Subgraph):
            raise self.error(f"has no graph {name!r}")
        return graph

    def element_type_name(self, number: int) -> str:
        """ONNX's name of the element type of a number."""
        from onnx import TensorProto

        try:
            return str(TensorProto.DataType.Name(number))
        except ValueError:
            raise self.error(f"is to the unknown type {number}") from None

    def check_all_is_read(self, irrelevant: Sequence[Irrelevant]) -> None:
        """Check that the importer has read every attribute and every input that is present.

        Raises:
            UnsupportedError: an attribute or input was not read; the message names it.
        """
        record = ReadRecord(self.graph.location, str(self.node))
        attributes = record.track("attribute", self.node.attributes, irrelevant)
        attributes.names_read |= self.read_parts.attributes
        inputs = {str(n): each for n, each in enumerate(self.inputs) if each is not None}
        tracked = record.track("input", inputs, irrelevant)
        tracked.names_read |= {str(n) for n in self.read_parts.inputs}
        record.finish()

    def apply(
        self, operator: str, inputs: Sequence[Operand | None], **attributes: Any
    ) -> list[Operand]:
        """Compute an operator of ONNX's newest operator set, with one output, for the node."""
        return self.apply_node(operator, inputs, attributes, ("result.0",))

    def apply_node(
        self,
        operator: str,
        inputs: Sequence[Operand | None],
        attributes: Mapping[str, Any],
        outputs: tuple[str, ...],
    ) -> list[Operand]:
        """Compute an operator with named outputs for the node."""
        names = tuple("" if each is None else f"operand.{n}" for n, each in enumerate(inputs))
        node = replace(
            self.node, operator=operator, inputs=names, outputs=outputs, attributes=attributes
        )
        return self.graph.compute(replace(self, node=node, inputs=inputs, read_parts=ReadParts()))

    def unsupported(self, problem: str) -> SubquantError:
        """An error that programs cannot have this node."""
        return self.error(problem, UnsupportedError)

    def with_integers(self) -> None:
        """Report that the node computes with integers."""
        self.arithmetic.is_integer, self.arithmetic.reason = True, ""

    def with_floats(self, reason: str) -> None:
        """Report why the node computes with floats; the first reason counts."""
        if not self.arithmetic.reason:
            self.arithmetic.is_integer, self.arithmetic.reason = False, reason


OperatorImporter: TypeAlias = Callable[[Call], Any]
"""The function returns the value of the only output, or a list with a value for each output.

None leaves the node to the body of its function, or to the reference evaluator.
"""

IMPORTERS: OperatorRegistry[OperatorImporter] = OperatorRegistry()
"""The operator importers, by operator with its domain if that is not ONNX's own."""
importer = IMPORTERS.register
