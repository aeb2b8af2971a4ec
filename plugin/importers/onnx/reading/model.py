"""Read ONNX models: checked nodes and tensors, and nothing computed.

`read_onnx` has each node checked against the schema of its opset by the `onnx` package, and looks
itself at what later steps rely on: names that are computed before they are used, sizes and types of
constants, where external data lies. What is wrong is said with the node's number, operator and
name, or the tensor's name.

Integers of 2 and 4 bits have an int8 or uint8 each; floats of 4 to 8 bits are their codes, uint8.

Source: ONNX IR specification; ``onnx.proto``, version 1.23.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....core.files import file_beside, open_input
from ....errors import (
    EnvironmentProblem,
    InputError,
    Place,
    SubquantError,
    UnsupportedError,
    printable,
    quoted,
)
from ....numerics.element_types import SHARED_NAMES, Array, ElementType
from ..schemas.attribute_ranges import problem_of_attribute
from ..schemas.contributed_schemas import CONTRIBUTED, problem_of
from .protobuf_fields import check_fields

__all__ = [
    "ELEMENTS",
    "Model",
    "Node",
    "Subgraph",
    "Tensor",
    "TensorType",
    "element_of",
    "external_files",
    "is_too_large",
    "read_onnx",
    "with_external_data",
]

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
"""The types of tensors that programs have, as `subquant.numerics.element_types` names them."""

_PACKED_BITS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4,
                "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}  # fmt: skip
_MOST_ELEMENTS = (1 << 31) - 1
_HIGHEST_RANK = 8
_DEPRECATED_GROUPS = range(18, 21)
"""Operator sets in which GroupNormalization is deprecated: it had parameters of each group, and has
the same inputs and attributes since."""
_DEEPEST = 16
"""Levels of graphs in nodes."""
_LARGEST_PROTOBUF = 1 << 31


def element_of(type_: str) -> ElementType:
    """The elements of a tensor of an ONNX type in a program."""
    return ElementType.parse(ELEMENTS[type_])


@dataclass(frozen=True)
class TensorType:
    """The type of an input or a result.

    Args:
        name: of the tensor.
        type: of its elements: a key of `ELEMENTS`.
        shape: extents; a name, or None, where the model does not say. None for any shape.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, eq=False)
class Tensor:
    """A constant.

    Args:
        name: of the tensor.
        type: of its elements: a key of `ELEMENTS`.
        data: the elements.
    """

    name: str
    type: str
    data: Array


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a graph.

    Args:
        index: its number in the graph.
        operator: the name of what it computes, with the domain if it is not ONNX's own.
        name: as the file says; may be empty.
        inputs: names of tensors, empty for those that are absent.
        outputs: likewise.
        attributes: by name. A tensor is a `Tensor`, a graph a `Subgraph`.
        path: what says whose graph it is in, for errors; empty in that of the model.
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
    """A graph of a node: what a branch or the body of a loop computes.

    Args:
        inputs: names of its arguments.
        outputs: names of its results.
        constants: by name.
        nodes: in the order of computation; they may read what is around the node, too.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A model.

    Args:
        file: its name, for errors.
        opsets: versions of operator sets by domain, ``""`` for ONNX's own.
        ir_version: of the format.
        inputs: those that have no constant of their name.
        outputs: results.
        constants: by name.
        nodes: in the order of computation.
        declared_types: of tensors that nodes compute, by name.
    """

    file: str
    opsets: Mapping[str, int]
    ir_version: int
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    constants: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    declared_types: Mapping[str, str] = field(default_factory=dict)


def read_onnx(data: bytes, file: str = "-", path: str | None = None) -> Model:
    """Read a model.

    Args:
        data: the protobuf.
        file: its name, for errors.
        path: where it lies, with its files of external data; by default `file`.

    Raises:
        InputError: it is broken, or is no model.
        UnsupportedError: it has what programs have not.
        EnvironmentProblem: the package `onnx` is not installed.
    """
    _check_installed()
    return _Reader(file, path).model(data)


def with_external_data(data: bytes, file: str) -> bytes:
    """Return a model with the data of its tensors that is in other files.

    Args:
        data: the protobuf.
        file: its name; files of external data are in its folder.

    Raises:
        InputError: it is broken, or data is not where it is said to be.
        UnsupportedError: the whole would be larger than a protobuf is.
        EnvironmentProblem: as `read_onnx`.
    """
    _check_installed()
    return _Reader(file).whole(data)


def external_files(data: bytes, file: str) -> list[str]:
    """Return the names of the files that a model has tensors in.

    Args:
        data: the protobuf.
        file: its name, for errors.

    Raises:
        InputError, EnvironmentProblem: as `read_onnx`.
    """
    _check_installed()
    return _Reader(file).external_files(data)


def _check_installed() -> None:
    if importlib.util.find_spec("onnx") is None:
        raise EnvironmentProblem(
            "reading an ONNX model needs the package 'onnx'; install it with: "
            "pip install subquant[onnx]"
        )


class _Reader:
    """Reads the protobufs of one file."""

    def __init__(self, file: str, path: str | None = None) -> None:
        import onnx  # optional, and 0.5 s
        from onnx import checker, helper, numpy_helper

        self._onnx, self._checker, self._helper = onnx, checker, helper
        self._to_array = numpy_helper.to_array
        self._file, self._place = file, Place(file)
        self._path = file if path is None else path
        self._is_stream = path is None and file in ("-", "<stdin>")

    def _error(self, what: str, kind: type[SubquantError] = InputError) -> SubquantError:
        return kind(what, self._place)

    def _text(self, name: str | bytes) -> str:
        """A name; what is not UTF-8 comes as bytes."""
        if isinstance(name, bytes):
            raise self._error(f"has the name {name[:80]!r}, which is not UTF-8 text")
        return name

    # -- models -----------------------------------------------------------------------------------

    def _parsed(self, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return self._onnx.ModelProto.FromString(data)
        except DecodeError:
            raise self._error("is no ONNX model: the protobuf is broken") from None

    def whole(self, data: bytes) -> bytes:
        """The model with the data that is in other files."""
        proto = self._parsed(data)
        external = [
            tensor
            for tensor in _tensors(proto.graph)
            if tensor.data_location == self._onnx.TensorProto.EXTERNAL
        ]
        if not external:
            return data
        for tensor in external:
            what = f"tensor {quoted(self._text(tensor.name))}"
            tensor.CopyFrom(self._with_data(tensor, what))
        if proto.ByteSize() >= _LARGEST_PROTOBUF:
            raise self._error(
                f"has {proto.ByteSize():,} bytes with its data, more than a protobuf of 2 GiB "
                "holds, which is how it is handed over",
                UnsupportedError,
            )
        return bytes(proto.SerializeToString())

    def external_files(self, data: bytes) -> list[str]:
        proto = self._parsed(data)
        bodies = [proto.graph, *proto.functions]
        entries = (
            entry
            for body in bodies
            for tensor in _tensors(body)
            if tensor.data_location == self._onnx.TensorProto.EXTERNAL
            for entry in tensor.external_data
        )
        return sorted({self._text(each.value) for each in entries if each.key == "location"})

    def model(self, data: bytes) -> Model:
        proto = self._parsed(data)
        if not proto.HasField("graph") or not proto.opset_import:
            raise self._error("is no ONNX model: it has no graph and no operator sets")
        if proto.functions:
            proto = self._inlined(proto)
        check_fields(proto, self._place)
        opsets = {
            _domain(self._text(entry.domain)): int(entry.version) for entry in proto.opset_import
        }
        for entry in proto.opset_import:
            domain = _domain(self._text(entry.domain))
            if opsets[domain] != entry.version:
                raise self._error(
                    f"imports the operator sets {entry.version} and {opsets[domain]} of the domain "
                    f"{quoted(domain or 'ai.onnx')}, expected one of them"
                )
        newest = self._onnx.defs.onnx_opset_version()
        if not 1 <= opsets.get("", 1) <= newest:
            raise self._error(
                f"is of operator set {opsets['']}, and onnx {self._onnx.__version__} knows 1 to "
                f"{newest}",
                UnsupportedError,
            )
        if proto.ir_version > self._onnx.IR_VERSION:
            raise self._error(
                f"is of version {proto.ir_version} of the format (ir_version), and onnx "
                f"{self._onnx.__version__} knows 1 to {self._onnx.IR_VERSION}",
                UnsupportedError,
            )
        graph = proto.graph
        constants = self._constants(graph, "")
        inputs = [self._type(each) for each in graph.input if each.name not in constants]
        outputs = [self._type(each) for each in graph.output]
        nodes = [self._node(index, node, proto, opsets) for index, node in enumerate(graph.node)]
        self._check_names({*constants, *(each.name for each in inputs)}, nodes,
                          [each.name for each in outputs])  # fmt: skip
        return Model(
            self._file, opsets, int(proto.ir_version), tuple(inputs), tuple(outputs), constants,
            tuple(nodes), self._declared(graph),
        )  # fmt: skip

    def _declared(self, graph: Any) -> dict[str, str]:
        """Return the types of tensors that ``value_info`` repeats, by name."""
        kinds = self._onnx.TensorProto.DataType
        return {
            self._text(each.name): str(kinds.Name(each.type.tensor_type.elem_type))
            for each in graph.value_info
            if each.type.tensor_type.elem_type in kinds.values()
            and each.type.tensor_type.elem_type != kinds.UNDEFINED
        }

    def _inlined(self, proto: Any) -> Any:
        """Calls of the model's own functions, as their nodes."""
        from onnx import inliner

        for function in proto.functions:
            name, domain = self._text(function.name), _domain(self._text(function.domain))
            if self._onnx.defs.has(name, domain):
                raise self._error(
                    f"has a function with the name of the operator {quoted(name)}, and ONNX lets "
                    "each runtime choose which of both a node means; give the function another "
                    "name or domain",
                    UnsupportedError,
                )
        try:
            return inliner.inline_local_functions(proto)
        except Exception as error:  # whatever its C++ raises: the functions are the file's
            raise self._error(f"has functions that cannot be inlined: {_line(error)}") from None

    def _constants(self, graph: Any, path: str) -> dict[str, Tensor]:
        constants = {self._text(each.name): self.tensor(each) for each in graph.initializer}
        for each in graph.sparse_initializer:
            name = self._text(each.values.name)
            constants[name] = self._dense(each, f"{path}sparse tensor {quoted(name)}")
        return constants

    def _dense(self, sparse: Any, what: str) -> Tensor:
        """A sparse tensor with all its elements: the values at their indices, 0 elsewhere."""
        values, indices = self.tensor(sparse.values, what), self.tensor(sparse.indices, what)
        shape = self._shape(sparse, what)
        positions = indices.data.astype(np.int64)
        if positions.ndim == 2 and positions.shape == (values.data.size, len(shape)):
            is_inside = bool(((positions >= 0) & (positions < np.array(shape, np.int64))).all())
            positions = np.ravel_multi_index(tuple(positions.T), shape) if is_inside else positions
        elif positions.shape == (values.data.size,):
            is_inside = bool(((positions >= 0) & (positions < math.prod(shape))).all())
        else:
            is_inside = False
        if not is_inside:
            raise self._error(
                f"{what} has {values.data.size} values and indices of shape "
                f"{list(indices.data.shape)} for the shape {shape}"
            )
        dense = np.zeros(math.prod(shape), values.data.dtype)
        dense[positions] = values.data.reshape(-1)
        return Tensor(values.name, values.type, dense.reshape(shape))

    def _subgraph(self, graph: Any, path: str, model: Any, opsets: Mapping[str, int]) -> Subgraph:
        if path.count(": ") > _DEEPEST:
            raise self._error(f"has graphs in graphs beyond {_DEEPEST} levels")
        constants = self._constants(graph, path)
        nodes = [
            self._node(index, node, model, opsets, path) for index, node in enumerate(graph.node)
        ]
        inputs, outputs = (
            tuple(self._text(each.name) for each in ends) for ends in (graph.input, graph.output)
        )
        return Subgraph(inputs, outputs, constants, tuple(nodes))

    def _check_names(
        self, known: set[str], nodes: Iterable[Node], outputs: Iterable[str], path: str = ""
    ) -> None:
        for node in nodes:
            for name in filter(None, node.inputs):
                if name not in known:
                    raise self._error(f"{node} reads {quoted(name)}, which nothing computed before")
            for key, inner in node.attributes.items():
                if isinstance(inner, Subgraph):
                    within = {*known, *inner.constants, *inner.inputs}
                    self._check_names(within, inner.nodes, inner.outputs, f"{node}, {key}: ")
            for name in filter(None, node.outputs):
                if name in known:
                    raise self._error(f"{node} computes {quoted(name)} once more")
                known.add(name)
        for name in outputs:
            if name not in known:
                raise self._error(f"{path}has the result {quoted(name)}, which nothing computes")

    def _type(self, value: Any) -> TensorType:
        what = f"tensor {quoted(self._text(value.name))}"
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "no type"
            advice = "make each tensor an input or a result of its own"
            if kind == "map_type" or value.type.sequence_type.elem_type.HasField("map_type"):
                advice = "convert the model with the option zipmap=False"
            raise self._error(
                f"{what} is a value of {kind}, expected a tensor; {advice}", UnsupportedError
            )
        tensor = value.type.tensor_type
        type_ = self._element(tensor.elem_type, what)
        if not tensor.HasField("shape"):
            return TensorType(value.name, type_, None)
        shape: list[int | str | None] = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(int(dim.dim_value))
            else:
                name = self._text(dim.dim_param)
                shape.append(None if name in ("", "?") else name)  # "?" names no extent
        return TensorType(value.name, type_, tuple(shape))

    def _element(self, number: int, what: str) -> str:
        try:
            name = str(self._onnx.TensorProto.DataType.Name(number))
        except ValueError:
            raise self._error(f"{what} is of the unknown type {number}") from None
        if name not in ELEMENTS:
            advice = "; replace texts by numbers before the call" if name == "STRING" else ""
            raise self._error(
                f"{what} is of type {name}, which is not lowered{advice}", UnsupportedError
            )
        return name

    # -- nodes ------------------------------------------------------------------------------------

    def _node(
        self, index: int, proto: Any, model: Any, opsets: Mapping[str, int], path: str = ""
    ) -> Node:
        domain, kind = _domain(self._text(proto.domain)), self._text(proto.op_type)
        operator = f"{domain}.{kind}" if domain else kind
        inputs, outputs = (tuple(map(self._text, names)) for names in (proto.input, proto.output))
        blank = Node(index, operator, self._text(proto.name), inputs, outputs, {}, path)
        if domain not in opsets:
            raise self._error(f"{blank} is of an operator set that the model does not import")
        context = self._checker.C.CheckerContext()
        context.ir_version = max(int(model.ir_version), 3)
        context.opset_imports = dict(opsets)
        if operator == "GroupNormalization" and opsets[domain] in _DEPRECATED_GROUPS:
            context.opset_imports = {**opsets, domain: _DEPRECATED_GROUPS.stop}
        try:
            checked = _without_graphs(proto)
            if operator in CONTRIBUTED and not domain:  # `onnx` knows no such operator
                checked = type(proto)()
                checked.CopyFrom(proto)
                checked.domain = "com.microsoft"
                context.opset_imports = {**opsets, "com.microsoft": 1}
            self._checker.check_node(checked, context)
        except (self._checker.ValidationError, ValueError) as error:
            raise self._error(f"{blank} is not valid: {_line(error)}") from None
        self._check_contributed(blank, proto)
        attributes: dict[str, Any] = {}
        for each in proto.attribute:
            name = self._text(each.name)
            if each.HasField("g"):
                inner = f"{blank}, {printable(name[:80])}: "
                attributes[name] = self._subgraph(each.g, inner, model, opsets)
            else:
                attributes[name] = self._attribute(each, blank)
                problem = problem_of_attribute(operator, name, attributes[name])
                if problem:
                    raise self._error(f"{blank} {problem}")
        return Node(index, operator, proto.name, blank.inputs, blank.outputs, attributes, path)

    def _check_contributed(self, node: Node, proto: Any) -> None:
        """Check a node beside the schema of ONNX Runtime, and that its name has no domain."""
        kinds = self._onnx.AttributeProto.AttributeType
        attributes = {self._text(each.name): str(kinds.Name(each.type)) for each in proto.attribute}
        if "." in proto.op_type:
            raise self._error(f"{node} has an operator name with a '.', which is for domains")
        problem = problem_of(node.operator, node.inputs, len(node.outputs), attributes)
        if problem:  # a newer ONNX Runtime could have it
            raise self._error(f"{node} {problem}", UnsupportedError)

    def _attribute(self, attribute: Any, node: Node) -> Any:
        try:
            value = self._helper.get_attribute_value(attribute)
        except ValueError as error:
            raise self._error(f"{node} is not valid: {_line(error)}") from None
        if isinstance(value, self._onnx.TensorProto):
            return self.tensor(value, f"{node}, attribute {quoted(attribute.name)}")
        if isinstance(value, self._onnx.SparseTensorProto):
            return self._dense(value, f"{node}, attribute {quoted(attribute.name)}")
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, list):
            return [n.decode(errors="replace") if isinstance(n, bytes) else n for n in value]
        return value

    # -- tensors ----------------------------------------------------------------------------------

    def tensor(self, proto: Any, what: str | None = None) -> Tensor:
        """A constant, checked."""
        what = what or f"tensor {quoted(self._text(proto.name))}"
        type_ = self._element(proto.data_type, what)
        shape = self._shape(proto, what)
        count = math.prod(shape)
        if proto.data_location == self._onnx.TensorProto.EXTERNAL:
            proto = self._with_data(proto, what)
        try:
            array = np.asarray(self._to_array(proto))
        except (ValueError, TypeError, OverflowError) as error:
            raise self._error(f"{what} has not the elements of its shape: {_line(error)}") from None
        if array.size != count:
            raise self._error(f"{what} has {array.size} elements, expected {count}")
        dtype = element_of(type_).dtype
        if type_.startswith(("FLOAT4", "FLOAT6", "FLOAT8")):
            array = array.view(np.uint8)
        return Tensor(proto.name, type_, array.reshape(shape).astype(dtype, copy=False))

    def _shape(self, proto: Any, what: str) -> list[int]:
        shape = [int(n) for n in proto.dims]
        if any(n < 0 for n in shape) or len(shape) > _HIGHEST_RANK:
            raise self._error(f"{what} has the shape {shape}")
        count = math.prod(shape)
        if is_too_large(shape):
            raise self._error(f"{what} has {count:,} elements, too many")
        if hasattr(proto, "segment") and proto.HasField("segment"):
            raise self._error(f"{what} is in segments", UnsupportedError)
        return shape

    def _with_data(self, proto: Any, what: str) -> Any:
        """A tensor with the bytes that are in another file, of the folder of the model."""
        type_ = self._element(proto.data_type, what)
        bits = _PACKED_BITS.get(type_, element_of(type_).dtype.itemsize * 8)
        size = (math.prod(self._shape(proto, what)) * bits + 7) // 8
        entries = {self._text(each.key): self._text(each.value) for each in proto.external_data}
        location = entries.get("location", "")
        if self._is_stream:
            raise self._error(
                f"{what} is in the file {quoted(location)}, beside a model that is no file"
            )
        path = file_beside(self._path, location)
        if path is None:
            raise self._error(
                f"{what} is said to be in {quoted(location)}, expected the name of a file in the "
                "folder of the model or below, without '..' and without a link that leaves it"
            )
        try:
            start, length = (int(entries.get(key, 0)) for key in ("offset", "length"))
        except ValueError:
            start, length = -1, 0
        if start < 0 or length not in (0, size):
            raise self._error(
                f"{what} takes {quoted(entries.get('length', ''))} bytes from "
                f"{quoted(entries.get('offset', ''))} of {quoted(location)}, expected {size}"
            )
        with open_input(path) as file:
            there = os.fstat(file.fileno()).st_size
            if start + size > there:
                raise self._error(
                    f"{what} ends at byte {start + size:,} of {quoted(location)}, which has "
                    f"{there:,}"
                )
            file.seek(start)
            data = file.read(size)
        found = self._onnx.TensorProto()
        found.name, found.data_type, found.raw_data = proto.name, proto.data_type, data
        found.dims.extend(proto.dims)
        return found


def is_too_large(shape: Iterable[int]) -> bool:
    """More elements than a program has, also along axes beside one without any."""
    return math.prod(max(n, 1) for n in shape) > _MOST_ELEMENTS


def _without_graphs(node: Any) -> Any:
    """A node whose graphs have no nodes: those are checked where all that they read is known."""
    if not any(each.HasField("g") for each in node.attribute):
        return node
    found = type(node)()
    found.CopyFrom(node)
    for each in found.attribute:
        if each.HasField("g"):
            del each.g.node[:], each.g.input[:], each.g.output[:], each.g.initializer[:]
            each.g.name = each.g.name or "graph"
    return found


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph: its constants, and those of its nodes and their graphs.

    Or those of a function, which has nodes only.
    """
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (
                (attribute.g, *attribute.graphs) if attribute.HasField("g") else (attribute.graphs)
            ):
                yield from _tensors(inner)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _line(error: Exception) -> str:
    """The first line of what another package says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
