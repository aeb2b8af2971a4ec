"""Reads ONNX models, and computes nothing.

The package `onnx` checks each node against the schema of its operator set. `read_onnx` checks what
later steps rely on: names are computed before they are used, types and sizes of constants agree,
attributes have valid values. An error names the node by its number, operator and name, or the
tensor.

Source: ONNX IR specification; ``onnx.proto``, version 1.23.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....core.files import wrong_download
from ....errors import printable, quoted
from ..schemas.attribute_ranges import problem_of_attribute
from ..schemas.contributed_schemas import CONTRIBUTED, problem_of
from .model import Model, Node, Subgraph, Tensor, TensorType
from .node_order import in_topological_order
from .protobuf_fields import check_fields
from .tensor_reader import TensorReader, first_line

_DEPRECATED_GROUPS = range(18, 21)
"""GroupNormalization is deprecated in these operator sets: it had parameters of each group, and has
the same inputs and attributes since."""
_MAX_GRAPH_DEPTH = 16
"""Levels of graphs in nodes, at most: the reader is recursive. Deeper models are refused."""
_MAX_PROTOBUF_BYTES = 1 << 31
"""Bytes from which on a model is refused: 2 GiB, protobuf's limit for a serialized message."""


def read_onnx(data: bytes, file: str = "-", path: str | None = None) -> Model:
    """Read a model.

    Args:
        file: the file name, for errors.
        path: the path of the file, whose folder has the external data; by default `file`.

    Raises:
        InputError: the file is damaged, or no model.
        UnsupportedError: programs cannot have a part of the model.
        EnvironmentProblem: the package `onnx` is not installed.
    """
    return _ModelReader(file, path).model(data)


def with_external_data(data: bytes, file: str) -> bytes:
    """Return a model with the data of its tensors in other files, of the folder of `file`.

    Raises:
        InputError: the file is damaged, or data is missing.
        UnsupportedError: the result would be larger than a protobuf can be.
        EnvironmentProblem: the package `onnx` is not installed.
    """
    reader = _ModelReader(file)
    proto = reader.parsed(data)
    external = [tensor for tensor in _tensors(proto.graph) if reader.is_external(tensor)]
    if not external:
        return data
    for tensor in external:
        tensor.CopyFrom(reader.with_data(tensor, f"tensor {quoted(reader.text(tensor.name))}"))
    if proto.ByteSize() >= _MAX_PROTOBUF_BYTES:
        raise reader.unsupported(
            f"has {proto.ByteSize():,} bytes with its data, more than a protobuf of 2 GiB holds, "
            "which is how it is handed over"
        )
    return bytes(proto.SerializeToString())


def external_files(data: bytes, file: str) -> list[str]:
    """Return the names of the files that a model has tensors in; errors name it as `file`.

    Raises:
        InputError: the file is damaged.
        EnvironmentProblem: the package `onnx` is not installed.
    """
    reader = _ModelReader(file)
    proto = reader.parsed(data)
    entries = (
        entry
        for body in (proto.graph, *proto.functions)
        for tensor in _tensors(body)
        if reader.is_external(tensor)
        for entry in tensor.external_data
    )
    return sorted({reader.text(each.value) for each in entries if each.key == "location"})


class _ModelReader(TensorReader):
    """Reads the protobufs of one file."""

    def parsed(self, data: bytes) -> Any:
        """Return the protobuf of the model."""
        from google.protobuf.message import DecodeError

        try:
            return self.onnx.ModelProto.FromString(data)
        except DecodeError:
            raise self.error(
                f"is no ONNX model, or truncated: the protobuf is broken{wrong_download(data)}"
            ) from None

    def model(self, data: bytes) -> Model:
        """Read a model."""
        proto = self.parsed(data)
        if not proto.HasField("graph") or not proto.opset_import:
            raise self.error("is no ONNX model: it has no graph and no operator sets")
        if proto.functions:
            proto = self._inlined(proto)
        check_fields(proto, self.location)
        opsets = self._opsets(proto)
        graph = proto.graph
        constants = self._constants(graph, "")
        inputs = [self._type(each) for each in graph.input if each.name not in constants]
        outputs = [self._type(each) for each in graph.output]
        nodes = in_topological_order(
            [self._node(index, node, proto, opsets) for index, node in enumerate(graph.node)]
        )
        self._check_names({*constants, *(each.name for each in inputs)}, nodes,
                          [each.name for each in outputs])  # fmt: skip
        kinds = self.onnx.TensorProto.DataType
        declared_types = {
            self.text(each.name): str(kinds.Name(each.type.tensor_type.elem_type))
            for each in graph.value_info
            if each.type.tensor_type.elem_type in kinds.values()
            and each.type.tensor_type.elem_type != kinds.UNDEFINED
        }
        return Model(
            self.file, opsets, int(proto.ir_version), tuple(inputs), tuple(outputs), constants,
            tuple(nodes), declared_types,
        )  # fmt: skip

    def _opsets(self, proto: Any) -> dict[str, int]:
        """Return the operator sets by domain, and check them and the version of the format."""
        opsets: dict[str, int] = {}
        for entry in proto.opset_import:
            domain, version = _domain(self.text(entry.domain)), int(entry.version)
            if opsets.setdefault(domain, version) != version:
                raise self.error(
                    f"imports the operator sets {opsets[domain]} and {version} of the domain "
                    f"{quoted(domain or 'ai.onnx')}, expected one of them"
                )
        newest, package = self.onnx.defs.onnx_opset_version(), f"onnx {self.onnx.__version__}"
        if not 1 <= opsets.get("", 1) <= newest:
            raise self.unsupported(
                f"is of operator set {opsets['']}, and {package} knows 1 to {newest}"
            )
        if proto.ir_version > self.onnx.IR_VERSION:
            raise self.unsupported(
                f"is of version {proto.ir_version} of the format (ir_version), and {package} "
                f"knows 1 to {self.onnx.IR_VERSION}"
            )
        return opsets

    def _inlined(self, proto: Any) -> Any:
        """Replace calls of the model's own functions by their nodes."""
        for function in proto.functions:
            name, domain = self.text(function.name), _domain(self.text(function.domain))
            if self.onnx.defs.has(name, domain):
                raise self.unsupported(
                    f"has a function with the name of the operator {quoted(name)}, and ONNX lets "
                    "each runtime choose which of both a node means; give the function another "
                    "name or domain"
                )
        try:
            inlined = _inlined(proto)
        except Exception as error:  # whatever its C++ raises: the functions are the file's
            problem = f"has functions that cannot be inlined: {first_line(error)}"
            raise self.error(problem) from None
        for function in inlined.functions:  # onnx.inliner leaves functions of other versions
            versions = [
                next((each.version for each in body.opset_import if not _domain(each.domain)), 1)
                for body in (function, proto)
            ]
            if versions[0] != versions[1]:
                raise self.unsupported(
                    f"has the function {quoted(function.name)} of operator set {versions[0]}, and "
                    f"the model imports {versions[1]}; export both for the same one"
                )
        return inlined

    def _constants(self, graph: Any, path: str) -> dict[str, Tensor]:
        self._check_distinct((each.name for each in graph.input), path, "input")
        names = (
            *(each.name for each in graph.initializer),
            *(each.values.name for each in graph.sparse_initializer),
        )
        self._check_distinct(names, path, "constant")
        constants = {self.text(each.name): self.tensor(each) for each in graph.initializer}
        for each in graph.sparse_initializer:
            name = self.text(each.values.name)
            constants[name] = self.dense(each, f"{path}sparse tensor {quoted(name)}")
        return constants

    def _check_distinct(self, names: Iterable[str | bytes], path: str, kind: str) -> None:
        seen: set[str] = set()
        for name in map(self.text, names):
            if name in seen:
                raise self.error(f"{path}has two {kind}s of the name {quoted(name)}")
            seen.add(name)

    def _subgraph(self, graph: Any, path: str, model: Any, opsets: Mapping[str, int]) -> Subgraph:
        if path.count(": ") > _MAX_GRAPH_DEPTH:
            raise self.error(f"has graphs in graphs beyond {_MAX_GRAPH_DEPTH} levels")
        constants = self._constants(graph, path)
        nodes = [
            self._node(index, node, model, opsets, path) for index, node in enumerate(graph.node)
        ]
        inputs, outputs = (
            tuple(self.text(each.name) for each in ends) for ends in (graph.input, graph.output)
        )
        return Subgraph(inputs, outputs, constants, tuple(nodes))

    def _check_names(
        self, known: set[str], nodes: Iterable[Node], outputs: Iterable[str], path: str = ""
    ) -> None:
        """Check that each name is computed once, before it is read."""
        for node in nodes:
            for name in filter(None, node.inputs):
                if name not in known:
                    raise self.error(f"{node} reads {quoted(name)}, which nothing computed before")
            for key, graph in node.attributes.items():
                if isinstance(graph, Subgraph):
                    for name in sorted(known.intersection(graph.constants)):
                        raise self.error(
                            f"{node}, {key}: has a constant of the name {quoted(name)}, which the "
                            "graph around it has, too; give each a name of its own"
                        )
                    names = {*known, *graph.constants, *graph.inputs}
                    self._check_names(names, graph.nodes, graph.outputs, f"{node}, {key}: ")
            for name in filter(None, node.outputs):
                if name in known:
                    raise self.error(f"{node} computes {quoted(name)} once more")
                known.add(name)
        for name in outputs:
            if name not in known:
                raise self.error(f"{path}has the result {quoted(name)}, which nothing computes")

    def _type(self, value: Any) -> TensorType:
        """Read the type of an input or a result."""
        subject = f"tensor {quoted(self.text(value.name))}"
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "no type"
            advice = "make each tensor an input or a result of its own"
            if kind == "map_type" or value.type.sequence_type.elem_type.HasField("map_type"):
                advice = "convert the model with the option zipmap=False"
            raise self.unsupported(f"{subject} is a value of {kind}, expected a tensor; {advice}")
        tensor = value.type.tensor_type
        type_ = self.element_type(tensor.elem_type, subject)
        if not tensor.HasField("shape"):
            return TensorType(value.name, type_, None)
        shape: list[int | str | None] = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(int(dim.dim_value))
            else:
                name = self.text(dim.dim_param)
                shape.append(None if name in ("", "?") else name)  # "?" names no dimension
        return TensorType(value.name, type_, tuple(shape))

    def _node(
        self, index: int, proto: Any, model: Any, opsets: Mapping[str, int], path: str = ""
    ) -> Node:
        domain, kind = _domain(self.text(proto.domain)), self.text(proto.op_type)
        operator = f"{domain}.{kind}" if domain else kind
        inputs, outputs = (tuple(map(self.text, names)) for names in (proto.input, proto.output))
        node = Node(index, operator, self.text(proto.name), inputs, outputs, {}, path)
        if domain not in opsets:
            raise self.error(f"{node} is of an operator set that the model does not import")
        context = self.checker.C.CheckerContext()
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
            self.checker.check_node(checked, context)
        except (self.checker.ValidationError, ValueError) as error:
            raise self.error(f"{node} is not valid: {first_line(error)}") from None
        self._check_contributed(node, proto)
        attributes: dict[str, Any] = {}
        for each in proto.attribute:
            name = self.text(each.name)
            if each.HasField("g"):
                inner = f"{node}, {printable(name[:80])}: "
                attributes[name] = self._subgraph(each.g, inner, model, opsets)
            else:
                attributes[name] = self._attribute(each, node)
                problem = problem_of_attribute(operator, name, attributes[name])
                if problem:
                    raise self.error(f"{node} {problem}")
        return Node(index, operator, proto.name, inputs, outputs, attributes, path)

    def _check_contributed(self, node: Node, proto: Any) -> None:
        """Check a node against the schema of ONNX Runtime, and that its name has no domain."""
        kinds = self.onnx.AttributeProto.AttributeType
        attributes = {self.text(each.name): str(kinds.Name(each.type)) for each in proto.attribute}
        if "." in proto.op_type:
            raise self.error(f"{node} has an operator name with a '.', which is for domains")
        problem = problem_of(node.operator, node.inputs, len(node.outputs), attributes)
        if problem:  # a newer ONNX Runtime could have it
            raise self.unsupported(f"{node} {problem}")

    def _attribute(self, attribute: Any, node: Node) -> Any:
        try:
            value = self.helper.get_attribute_value(attribute)
        except ValueError as error:
            raise self.error(f"{node} is not valid: {first_line(error)}") from None
        if isinstance(value, self.onnx.TensorProto):
            return self.tensor(value, f"{node}, attribute {quoted(attribute.name)}")
        if isinstance(value, self.onnx.SparseTensorProto):
            return self.dense(value, f"{node}, attribute {quoted(attribute.name)}")
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, list):
            return [n.decode(errors="replace") if isinstance(n, bytes) else n for n in value]
        return value


def _without_graphs(node: Any) -> Any:
    """Return a node whose graphs have no nodes: they are checked where all they read is known."""
    if not any(each.HasField("g") for each in node.attribute):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    for each in copy.attribute:
        if each.HasField("g"):
            del each.g.node[:], each.g.input[:], each.g.output[:], each.g.initializer[:]
            each.g.name = each.g.name or "graph"
    return copy


def _nodes(graph: Any) -> Iterator[Any]:
    """Return the nodes of a graph or a function, and those of their graphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            own = (attribute.g,) if attribute.HasField("g") else ()
            for inner in (*own, *attribute.graphs):
                yield from _nodes(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    """Return the tensors of a graph or a function: constants, those of nodes and their graphs."""
    yield from getattr(graph, "initializer", ())
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            own = (attribute.g,) if attribute.HasField("g") else ()
            for inner in (*own, *attribute.graphs):
                yield from _tensors(inner)


def _inlined(proto: Any) -> Any:
    """Replace calls of functions by their nodes: callers first, then the functions they call.

    `onnx.inliner` 1.23 leaves out the default attributes of functions: the operators inside get
    their own defaults. So calls in the graph get the attributes that they lack before they are
    inlined. A call in a function is in the graph by then, with the attributes of its function.
    """
    from onnx import inliner

    while True:
        called = {(node.domain, node.op_type) for each in proto.functions for node in _nodes(each)}
        outer = [each for each in proto.functions if (each.domain, each.name) not in called]
        _state_defaults(proto.graph, proto.functions)
        if not outer or len(outer) == len(proto.functions):  # without an outer one, it says why
            return inliner.inline_local_functions(proto)
        names = sorted({(each.domain, each.name) for each in outer})
        proto = inliner.inline_selected_functions(proto, names)


def _state_defaults(graph: Any, functions: Any) -> None:
    """Add the default attributes of functions to the nodes of a graph that call them."""
    defaults = {
        (_domain(each.domain), each.name, each.overload): each.attribute_proto for each in functions
    }
    for node in _nodes(graph):
        own = {each.name for each in node.attribute}
        key = (_domain(node.domain), node.op_type, node.overload)
        node.attribute.extend([each for each in defaults.get(key, ()) if each.name not in own])


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
