"""What a kernel sees: the node with the values of its inputs.

A kernel is a function of a `Call` that returns the values of the outputs, or None where it leaves
the node to the importer of floats. Values are arrays: of NumPy's, or of a program that is being
written, on which the same formulas run; or reals that are still integers and scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...core.read_record import Irrelevant, ReadRecord
from ...errors import Place, UnsupportedError
from ...numerics.array_functions import is_known
from ...numerics.element_types import AnyArray, Array, DType, ElementType
from ..operator_registry import BaseCall, OperatorRegistry
from .dynamic_sizes.bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor, ShapeValue
from .quantization.expressed import ExpressedValue, Quantized, ScaledSum
from .reading.model import ELEMENTS, Model, Node, Subgraph

__all__ = [
    "IMPORTERS",
    "Arithmetic",
    "Call",
    "Graph",
    "Operand",
    "OperatorImporter",
    "ReadParts",
    "Typed",
    "importer",
    "type_of_dtype",
]

_TYPES = {
    ElementType.parse(element).dtype: type_
    for type_, element in reversed(ELEMENTS.items())
    if ElementType.parse(element).bits in (1, 8, 16, 32, 64) and "8E" not in type_
    and "4E" not in type_
}  # fmt: skip


def type_of_dtype(dtype: DType) -> str:
    """ONNX's name of the type that a dtype holds all of."""
    return _TYPES[np.dtype(dtype)]


@dataclass(frozen=True, eq=False)
class Typed:
    """A value of a type that its dtype does not say: of 2 or 4 bits, or a small float."""

    type: str
    value: ExpressedValue


@dataclass(frozen=True, eq=False)
class Operand:
    """An input: a name, a type of ONNX's, and a value."""

    name: str
    type: str
    value: ExpressedValue

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.value.shape)

    @property
    def is_constant(self) -> bool:
        """The elements are known when the program is written."""
        return not isinstance(self.value, (Quantized, ScaledSum)) and is_known(self.value)

    def __str__(self) -> str:
        return f"tensor {self.name!r}"


class Graph(Protocol):
    """What kernels need of the model around them."""

    model: Model
    """As read."""
    place: Place
    """Of the file, for errors."""

    def lift(self, array: Array, element: ElementType) -> AnyArray:
        """Make an array a value of the program, if one is written."""

    def compute(self, call: Call) -> list[Operand]:
        """Compute a node in the form of the newest operator set."""

    def operand(self, name: str) -> Operand | None:
        """A tensor that is computed already; None if there is none."""

    def producer(self, name: str) -> Node | None:
        """The node that has computed a tensor; None for inputs and constants."""

    def shared(self, key: tuple[Any, ...], objects: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Make a value once for the same objects of the graph that is being computed."""

    def check(self, condition: AnyArray, message: str) -> None:
        """Have a call of the program fail with a message unless a condition without axes holds."""

    def inner(self, graph: Subgraph, inputs: Sequence[Operand]) -> list[Operand]:
        """Compute a graph of the node that is being computed."""


@dataclass
class Arithmetic:
    """How a node computes, as far as its kernel says: with integers or floats, and why."""

    is_integer: bool | None = None
    reason: str = ""


@dataclass
class ReadParts:
    """The parts of a node that its kernel has read."""

    attributes: set[str] = field(default_factory=set)
    inputs: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Call(BaseCall[Operand]):
    """A node with the values of its inputs.

    The node has the form of the newest operator set (`opset_converter`). The methods record which
    attributes and inputs a kernel reads, and `check_all_is_read` refuses the others by name.

    Args:
        node: as the file describes it, in the form of the newest operator set.
        inputs: None for one that is absent.
        graph: the graph around the node.
        arithmetic: the arithmetic that the kernel reports.
        read_parts: the attributes and inputs that were read.
    """

    node: Node
    inputs: Sequence[Operand | None]
    graph: Graph
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    read_parts: ReadParts = field(default_factory=ReadParts)

    def optional(self, index: int) -> Operand | None:
        """An input that may be absent."""
        self.read_parts.inputs.add(index)
        return super().optional(index)

    def constant(self, index: int) -> Array:
        """The elements of an input that must be constant; one without elements always is."""
        operand = self.input(index)
        if not operand.is_constant and 0 in operand.shape:
            return np.zeros(operand.shape, operand.value.dtype)
        return super().constant(index)

    def scalar(self, index: int) -> AnyArray:
        """The value of an input of one element, without dimensions."""
        return self.only_element(index, self.array(index))

    def check_all_is_read(self, irrelevant: Sequence[Irrelevant] = ()) -> None:
        """Check that the kernel has read every attribute and every input that is present.

        Raises:
            UnsupportedError: the kernel has not read an attribute or input; the message names it.
        """
        record = ReadRecord(self.graph.place, str(self.node))
        attributes = record.track("attribute", self.node.attributes, irrelevant)
        attributes.names_read |= self.read_parts.attributes
        inputs = {str(n): each for n, each in enumerate(self.inputs) if each is not None}
        tracked = record.track("input", inputs, irrelevant)
        tracked.names_read |= {str(n) for n in self.read_parts.inputs}
        record.finish()

    def apply(
        self, operator: str, inputs: Sequence[Operand | None], **attributes: Any
    ) -> list[Operand]:
        """Compute an operator of one output as a part of the node.

        Args:
            operator: of ONNX's newest operator set.
            inputs: None for one that is absent.
            attributes: of the operator.
        """
        return self.apply_node(operator, inputs, attributes, ("result.0",))

    def apply_node(
        self,
        operator: str,
        inputs: Sequence[Operand | None],
        attributes: Mapping[str, Any],
        outputs: tuple[str, ...],
    ) -> list[Operand]:
        """Compute an operator with the named outputs as a part of the node."""
        names = tuple("" if each is None else f"operand.{n}" for n, each in enumerate(inputs))
        node = replace(
            self.node, operator=operator, inputs=names, outputs=outputs, attributes=attributes
        )
        part = replace(self, node=node, inputs=inputs, read_parts=ReadParts())
        return self.graph.compute(part)

    @property
    def is_inner(self) -> bool:
        """The node is of a graph of another node, a branch or a loop."""
        return bool(self.node.path)

    @property
    def subject(self) -> tuple[Node, Place]:
        """The node, and the file."""
        return self.node, self.graph.place

    def with_integers(self) -> None:
        """Say that the node computes with integers."""
        self.arithmetic.is_integer, self.arithmetic.reason = True, ""

    def with_floats(self, reason: str) -> None:
        """Say why the node computes with floats; the first reason counts."""
        if not self.arithmetic.reason:
            self.arithmetic.is_integer, self.arithmetic.reason = False, reason

    def attribute(self, name: str, default: Any = None) -> Any:
        """What the node says, of the type of the default, or the default."""
        self.read_parts.attributes.add(name)
        found = self.node.attributes.get(name)
        if found is None:
            return default
        is_other = default is not None and type(found) is not type(default)
        if is_other or (isinstance(default, list) and any(type(n) is not int for n in found)):
            raise self.error(f"has the attribute {name!r} of another type, {str(found)[:80]!r}")
        return found

    def subgraph(self, name: str) -> Subgraph:
        """A graph that the node must have."""
        self.read_parts.attributes.add(name)
        found = self.node.attributes.get(name)
        if not isinstance(found, Subgraph):
            raise self.error(f"has no graph {name!r}")
        return found

    def integer(self, name: str) -> int:
        """An integer that the node must say."""
        if name not in self.node.attributes:
            raise self.error(f"has no attribute {name!r}")
        return int(self.attribute(name, 0))

    def element_type_name(self, number: int) -> str:
        """ONNX's name of the element type of a number."""
        from onnx import TensorProto

        try:
            return str(TensorProto.DataType.Name(number))
        except ValueError:
            raise self.error(f"is to the unknown type {number}") from None

    def array(self, index: int) -> AnyArray:
        """The value of an input, as floats if it is real."""
        return self.floats(self.input(index).value)

    def floats(self, value: ExpressedValue) -> AnyArray:
        """A value as an array.

        Raises:
            UnsupportedError: it has a counted axis, whose padding no kernel may see.
        """
        if isinstance(value, BoundedTensor):
            raise self.error(f"takes a tensor with a counted axis: {DYNAMIC_SIZE_ADVICE}",
                             UnsupportedError)  # fmt: skip
        if isinstance(value, ShapeValue):
            return value.array
        return (
            value.dequantize(self.graph.lift)
            if isinstance(value, (Quantized, ScaledSum))
            else value
        )

    def plain(self, operand: Operand) -> Operand:
        """An operand with its value as an array, as floats if it is real."""
        value = self.floats(operand.value)
        if value is operand.value:
            return operand
        return Operand(operand.name, type_of_dtype(value.dtype), value)

    def lifted(self, value: AnyArray) -> AnyArray:
        """A value of the program, if one is written: NumPy's loops end when it is."""
        if not is_known(value):
            return value
        array = np.asarray(value)
        return self.graph.lift(array, ElementType.of_dtype(array.dtype))

    def axis(self, name: str, rank: int, default: int) -> int:
        """An attribute that is an axis."""
        return self.checked_axis(self.attribute(name, default), rank)


OperatorImporter: TypeAlias = Callable[[Call], Any]
"""The value of the only output, a list of those of all, or None."""

IMPORTERS: OperatorRegistry[OperatorImporter] = OperatorRegistry()
importer = IMPORTERS.register
