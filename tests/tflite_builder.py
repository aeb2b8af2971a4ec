"""Writer of TensorFlow Lite models, with LiteRT's own schema and PyPI's ``flatbuffers``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int8": "INT8", "uint8": "UINT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "bool": "BOOL",
}  # fmt: skip


def schema() -> Any:
    """LiteRT's schema as it generates it."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        import pytest  # scripts/bench, which has no pytest, builds its models here too

        pytest.skip("the package 'ai_edge_litert' is not installed (extra 'test', on Linux)")
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


def packed(values: Array, bits: int) -> Array:
    """Integers of 2 or 4 bits as bytes, the lowest bits first."""
    count = 8 // bits
    flat = np.resize(values.reshape(-1), -(-values.size // count) * count).astype(np.uint8)
    elements = (flat & ((1 << bits) - 1)).reshape(-1, count)
    return sum(elements[:, n] << (bits * n) for n in range(count)).astype(np.uint8)  # type: ignore[union-attr]


@dataclass
class Quantized:
    """The parameters of a tensor: scales and zero points, along an axis if there are several."""

    scales: Sequence[float] | float
    zero_points: Sequence[int] | int = 0
    axis: int = 0
    block_size: int = 0
    """Block size of the last dimension; the scales have a value for each block, stored as f16."""


@dataclass
class Graph:
    """A model with one graph, written tensor by tensor and operator by operator."""

    name: str = "main"
    prefix: str = ""
    _tensors: list[Any] = field(default_factory=list)
    _buffers: list[Any] = field(default_factory=list)
    _codes: list[Any] = field(default_factory=list)
    _operators: list[Any] = field(default_factory=list)
    _subgraphs: list[tuple[Graph, list[int], list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self._buffers:
            self._buffers.append(schema().BufferT())

    def part(self) -> Graph:
        """Another graph of the same model, for `called`."""
        return Graph(self.name, self.prefix, _buffers=self._buffers, _codes=self._codes)

    def called(self, other: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """Add a graph that operators compute; return its number."""
        self._subgraphs.append((other, list(inputs), list(outputs)))
        return len(self._subgraphs)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str,
        quantized: Quantized | None = None,
        data: Array | None = None,
        *,
        type_name: str | None = None,
        is_variable: bool = False,
        name: str = "",
    ) -> int:
        """Add a tensor, constant if it has data; return its number."""
        s = schema()
        tensor = s.TensorT()
        tensor.shape = list(map(int, shape))
        tensor.type = getattr(s.TensorType, type_name or _TYPES[dtype])
        tensor.name = (name or f"{self.prefix}t{len(self._tensors)}").encode()
        tensor.isVariable = is_variable
        tensor.hasRank = True
        tensor.buffer = 0
        if data is not None:
            buffer = s.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            tensor.buffer = len(self._buffers)
            self._buffers.append(buffer)
        parameters = s.QuantizationParametersT()
        if quantized is not None and quantized.block_size:
            parameters.detailsType = s.QuantizationDetails.BlockwiseQuantization
            parameters.details = s.BlockwiseQuantizationT()
            scales = np.asarray(quantized.scales, np.float16)
            parameters.details.scales = self.tensor(scales.shape, "float16", None, scales)
            parameters.details.zeroPoints = -1
            parameters.details.blockSize = quantized.block_size
        elif quantized is not None:
            parameters.scale = np.atleast_1d(np.asarray(quantized.scales, np.float32))
            zero_points = np.broadcast_to(quantized.zero_points, parameters.scale.shape)
            parameters.zeroPoint = np.asarray(zero_points, np.int64)
            parameters.quantizedDimension = quantized.axis
        if quantized is not None:
            tensor.quantization = parameters
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def constant(self, values: object, dtype: str = "int32") -> int:
        """Add a constant without a scale; return its number."""
        array = np.asarray(values, dtype)
        return self.tensor(array.shape, dtype, None, array)

    def scale(self, index: int) -> float:
        """The scale of a tensor."""
        return float(self._tensors[index].quantization.scale[0])

    def scales(self, index: int) -> Array:
        """The scales of a tensor."""
        return np.asarray(self._tensors[index].quantization.scale)

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        /,
        options: str | None = None,
        version: int = 1,
        intermediates: Sequence[int] = (),
        custom: bytes = b"",
        **values: Any,
    ) -> list[int]:
        """Add an operator; return its outputs.

        An absent tensor has the number -1. Options are the name of their table, ``Conv2DOptions``,
        and its fields as the schema's Python names them, or the bytes of a custom operator.
        """
        s = schema()
        code = s.OperatorCodeT()
        number = s.BuiltinOperator.CUSTOM if custom else getattr(s.BuiltinOperator, name)
        code.builtinCode, code.deprecatedBuiltinCode = number, min(number, 127)
        code.version = version
        operator = s.OperatorT()
        if custom:
            code.customCode, operator.customOptions = name, list(custom)
        operator.opcodeIndex = len(self._codes)
        self._codes.append(code)
        operator.inputs, operator.outputs = list(map(int, inputs)), list(map(int, outputs))
        if intermediates:
            operator.intermediates = list(map(int, intermediates))
        if options is not None:
            table = getattr(s, f"{options}T")()
            for key, value in values.items():
                assert hasattr(table, key), f"{options} has no {key}"
                setattr(table, key, value)
            if hasattr(s.BuiltinOptions2, options):
                operator.builtinOptions2Type = getattr(s.BuiltinOptions2, options)
                operator.builtinOptions2 = table
            else:
                operator.builtinOptionsType = getattr(s.BuiltinOptions, options)
                operator.builtinOptions = table
        self._operators.append(operator)
        return list(outputs)

    def apply(
        self, name: str, inputs: Sequence[Any], outputs: Sequence[Any], /, *options: Any,
        **values: Any,
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Add an operator with its tensors; return the numbers of its operands and its results.

        A tensor is a tuple of arguments of `tensor`, a list (a constant of int32), an array (a
        constant without a scale), or the number of a tensor. Constants are no operands.
        """
        numbers, operands = [], []
        for each in inputs:
            if isinstance(each, tuple):
                numbers.append(self.tensor(*each))
                operands += numbers[-1:] if len(each) < 4 else []
            elif isinstance(each, (list, np.ndarray)):
                array = np.asarray(each, None if isinstance(each, np.ndarray) else np.int32)
                numbers.append(self.constant(array, array.dtype.name))
            else:
                numbers.append(each)
                operands += [each] if each >= 0 else []
        results = [each if isinstance(each, int) else self.tensor(*each) for each in outputs]
        return operands, self.operator(name, numbers, results, *options, **values)

    def branch(self, name: str, tensor: Any, **fields: Any) -> int:
        """Add a graph of one operator of two tensors; return its number."""
        part = self.part()
        options = f"{name.capitalize()}Options"
        return self.called(part, *part.apply(name, [tensor] * 2, [tensor], options, **fields))

    def choose(
        self, condition: Any, inputs: Sequence[Any], outputs: Sequence[Any], branches: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Add an IF of two graphs; return its operands and its results."""
        return self.apply("IF", [condition, *inputs], outputs, "IfOptions",
                          thenSubgraphIndex=branches[0], elseSubgraphIndex=branches[1])  # fmt: skip

    def model(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The file."""
        s = schema()
        whole = s.ModelT()
        whole.version, whole.subgraphs = 3, []
        whole.operatorCodes, whole.buffers = self._codes, self._buffers
        for each, graph_inputs, graph_outputs in [(self, inputs, outputs), *self._subgraphs]:
            graph = s.SubGraphT()
            graph.tensors, graph.operators = each._tensors, each._operators
            graph.inputs, graph.outputs = list(graph_inputs), list(graph_outputs)
            graph.name = self.name.encode()
            whole.subgraphs.append(graph)
        return file_of(whole)


def read_object(data: bytes) -> Any:
    """The tables of a file, whose fields can be changed."""
    return schema().ModelT.InitFromPackedBuf(data, 0)


def file_of(model: Any) -> bytes:
    """Write tables as a file."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def assign(owner: Any, path: str, value: Any) -> None:
    """Assign a field of tables, by the names and indices that lead to it."""
    *steps, last = path.split(".")
    for step in steps:
        owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
    if last.isdigit():
        owner[int(last)] = value
    else:
        setattr(owner, last, value)


def f32(*shape: int) -> tuple[tuple[int, ...], str]:
    """A tensor of floats, for `Graph.apply`."""
    return shape, "float32"


def one_operator(*arguments: Any, **values: Any) -> bytes:
    """A model of one operator, of arguments of `Graph.apply`."""
    graph = Graph()
    return graph.model(*graph.apply(*arguments, **values))
