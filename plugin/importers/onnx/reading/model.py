"""An ONNX model as checked nodes, constants and types.

Integers of 2 and 4 bits have an int8 or uint8 each; floats of 4 to 8 bits are their codes, uint8.

Source: ONNX IR specification; ``onnx.proto``, version 1.23.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import printable, quoted
from ....numerics.element_types import SHARED_NAMES, Array, ElementType

ELEMENTS = {
    "FLOAT": "f32",
    "DOUBLE": "f64",
    **SHARED_NAMES,
    "UINT2": "u2",
    "FLOAT4E2M1": "u8",
    "FLOAT6E2M3": "u8",
    "FLOAT6E3M2": "u8",
    "FLOAT8E8M0": "u8",
    "FLOAT8E4M3FN": "u8",
    "FLOAT8E4M3FNUZ": "u8",
    "FLOAT8E5M2": "u8",
    "FLOAT8E5M2FNUZ": "u8",
}
"""The element types of programs, as `subquant.numerics.element_types` names them."""

_MAX_ELEMENTS = (1 << 31) - 1
"""Elements of a tensor, at most: 32-bit indices count them. A model with more is refused."""


def element_of(type_: str) -> ElementType:
    """Return the element type of a program for an ONNX type."""
    return ElementType.parse(ELEMENTS[type_])


@dataclass(frozen=True)
class TensorType:
    """The name and the type of an input or a result.

    Args:
        type: the type of its elements: a key of `ELEMENTS`.
        shape: the dimension sizes; a name or None for a dynamic one. None for any shape.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, eq=False)
class Tensor:
    """A constant: its name, the type of its elements (a key of `ELEMENTS`), and the elements."""

    name: str
    type: str
    data: Array


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a graph.

    Args:
        index: the number of the node in the graph.
        operator: the operator, with its domain if that is not ONNX's own.
        inputs, outputs: the names of tensors, empty for absent ones.
        attributes: the attributes by name. A tensor is a `Tensor`, a graph a `Subgraph`.
        path: the nodes whose graphs the node is in, for errors; empty in the model's graph.
    """

    index: int
    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    path: str = ""

    def __str__(self) -> str:
        named = f" {quoted(self.name)}" if self.name else ""
        return f"{self.path}node {self.index} ({printable(self.operator[:80])}){named}"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph of a node, a branch or the body of a loop: its nodes in the order of computation.

    The nodes can read the values around the graph. `inputs` and `outputs` are names.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A model: its file name for errors, and its graph, with nodes in the order of computation.

    Args:
        opsets: the operator sets by domain, ``""`` for ONNX's own.
        ir_version: the version of the format.
        inputs: the inputs without a constant of their name.
        declared_types: the types of tensors that nodes compute, by name.
    """

    file: str
    opsets: Mapping[str, int]
    ir_version: int
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    constants: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    declared_types: Mapping[str, str] = field(default_factory=dict)


def is_too_large(shape: Iterable[int]) -> bool:
    """Return True for more elements than a program has, also beside an axis without elements."""
    return math.prod(max(n, 1) for n in shape) > _MAX_ELEMENTS
