"""Reader of TensorFlow Lite models: checked tensors, operators and signatures.

`read_tflite` checks everything that later steps rely on: numbers of tensors and buffers, sizes of
constants, scales, the order of operators. Errors name the operator and the tensor. An unread field
that may change a result is an error that names it: at once for tensors, subgraphs and the model,
and for an operator when it is computed.

Source: ``schema.fbs`` of LiteRT, version 3d.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....core.read_record import Irrelevant, ReadRecord
from ....errors import InputError, Place, SubquantError, UnsupportedError, quoted
from ...flatbuffer import Reader, Table, tracked
from . import schema
from .operator_options import OPTIONS_2, expected_options
from .tensors import ELEMENTS, Quantization, Tensor, TensorReader

__all__ = [
    "ELEMENTS",
    "Model",
    "Operator",
    "Quantization",
    "Signature",
    "Subgraph",
    "Tensor",
    "read_tflite",
]

_MODEL = (
    Irrelevant("metadata", "names buffers that no operator reads"),
    Irrelevant("metadata_buffer", "numbers buffers that no operator reads"),
    Irrelevant("external_buffers", "matters to tensors with an external buffer, which are refused"),
    Irrelevant("external_buffer_groups", "names files of external buffers"),
)
_DEBUG = Irrelevant("debug_metadata_index", "is the source location of an operator or a graph")
_SIGNATURE = (Irrelevant("deprecated_tag", "was another name of the signature"),)
_OPERATOR = (
    _DEBUG,
    Irrelevant("mutating_variable_inputs", "repeats which tensors are variables"),
    Irrelevant("builtin_options_type", "is the kind of the options"),
    Irrelevant("builtin_options_2_type", "is the kind of the options"),
    Irrelevant("large_custom_options_*", "is no offset after the flatbuffer", (0, 1)),
)
_EMPTY = Table()
_OF_SECOND_UNION = frozenset(
    name
    for name in schema.OPERATORS
    if expected_options(name) in {each.__name__ for each in OPTIONS_2.values()}
)
"""The operators whose options are in the union ``BuiltinOptions2``."""


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of a graph.

    Args:
        index: the position of the operator in its graph.
        name: a name of `OPERATORS` in the schema, or the name of the custom operator.
        inputs: the input tensors; None for an optional input that is absent.
        options: the table of options; an empty table if the file has none.
        intermediates: tensors whose parameters quantize values inside the operator.
        is_custom: the schema does not list the operator.
        unread: fields of the operator that the reader ignored and that may change a result.
    """

    index: int
    name: str
    version: int
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    options: Table = _EMPTY
    intermediates: tuple[Tensor | None, ...] = ()
    is_custom: bool = False
    custom_options: bytes = b""
    unread: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"operator {self.index} ({self.name})"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A subgraph: operators in the order of execution; `index` is its position in the model."""

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Signature:
    """A function of the model, with a name for each input and output of a subgraph, in its order.

    `subgraph` is the index of the subgraph.
    """

    name: str
    subgraph: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A model; `file` is the file name, for errors.

    The first subgraph is the main one. A file without signatures has the function ``main``.
    """

    file: str
    description: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...] = field(default=())


def read_tflite(data: bytes, file: str = "-") -> Model:
    """Read a model from the contents of a file; errors have the file name.

    Raises:
        InputError: the file is damaged, or contradicts itself.
        UnsupportedError: the file has another schema version, or weights in other files.
    """
    if data[4:8] != schema.MAGIC:
        raise InputError("is no TensorFlow Lite model: bytes 4 to 7 are not 'TFL3'", Place(file))
    return _ModelReader(Reader(data, file)).model()


class _ModelReader:
    """Reads a model, and checks its tables against each other."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.record = ReadRecord(Place(reader.file), "the model")
        self.table = tracked(reader.root(schema.ModelTable), self.record, _MODEL)
        self.buffers = self.table.buffers

    def wrong(self, what: str, error: type[SubquantError] = InputError) -> SubquantError:
        return error(what, Place(self.reader.file))

    def model(self) -> Model:
        if self.table.version != 3:
            raise self.wrong(
                f"expected a model of version 3 of the schema, got {self.table.version}",
                UnsupportedError,
            )
        if not self.table.subgraphs:
            raise self.wrong("the model has no graph")
        subgraphs = tuple(
            self.subgraph(index, table) for index, table in enumerate(self.table.subgraphs)
        )
        signatures = tuple(self.signature(each, subgraphs) for each in self.table.signature_defs)
        if len({each.name for each in signatures}) != len(signatures):
            raise self.wrong("two signatures have one name")
        if not signatures:
            main = subgraphs[0]
            names = [tuple(tensor.name for tensor in side) for side in (main.inputs, main.outputs)]
            signatures = (Signature("main", 0, *names),)
        model = Model(self.reader.file, self.table.description, subgraphs, signatures)
        self.record.finish()
        return model

    def signature(self, table: schema.SignatureTable, subgraphs: tuple[Subgraph, ...]) -> Signature:
        what = f"signature {quoted(table.signature_key)}"
        record = ReadRecord(Place(self.reader.file), what)
        table = tracked(table, record, _SIGNATURE)
        if table.subgraph_index >= len(subgraphs):
            raise self.wrong(
                f"{what} is of graph {table.subgraph_index}, and the model has {len(subgraphs)}"
            )
        graph = subgraphs[table.subgraph_index]
        sides = []
        for kind, maps, tensors in (
            ("input", table.inputs, graph.inputs),
            ("output", table.outputs, graph.outputs),
        ):
            entries = [tracked(each, record) for each in maps]
            names = {each.tensor_index: each.name for each in entries}
            for tensor in tensors:
                if tensor.index not in names:
                    raise self.wrong(f"{what} has no name for the {kind} {tensor}")
            for number in sorted(set(names) - {tensor.index for tensor in tensors}):
                raise self.wrong(
                    f"{what} names tensor {number} {quoted(names[number])}, which is no {kind} of "
                    f"graph {graph.index}"
                )
            sides.append(tuple(names[tensor.index] for tensor in tensors))
        name = table.signature_key
        record.finish()
        return Signature(name, graph.index, *sides)

    def subgraph(self, index: int, table: schema.SubgraphTable) -> Subgraph:
        what = f"graph {index}"
        record = ReadRecord(Place(self.reader.file), what)
        table = tracked(table, record, (_DEBUG,))
        tensors = [
            TensorReader(self.reader, self.buffers, number, entry, table.tensors).read()
            for number, entry in enumerate(table.tensors)
        ]
        self.complete_empty_constants(table, tensors)
        defined = {tensor.index for tensor in tensors if tensor.is_constant or tensor.is_variable}
        inputs = self.tensors(table.inputs, tensors, f"an input of {what}")
        for tensor in inputs:
            if tensor.is_constant:
                raise self.wrong(f"{tensor}, an input of {what}, is a constant", UnsupportedError)
            if tensor.is_variable:  # LiteRT sets it to zero at the start
                raise self.wrong(f"{tensor}, an input of {what}, is a variable", UnsupportedError)
        if len({tensor.index for tensor in inputs}) != len(inputs):
            raise self.wrong(f"{what} has an input twice", UnsupportedError)
        defined |= {tensor.index for tensor in inputs}
        operators = []
        for number, code in enumerate(table.operators):
            operator = self.operator(number, code, tensors)
            for operand in operator.inputs:
                if operand is not None and operand.index not in defined:
                    raise self.wrong(
                        f"{operator} of {what} uses {operand}, which nothing has computed"
                    )
            for tensor in operator.outputs:
                if tensor.is_constant or (tensor.index in defined and not tensor.is_variable):
                    raise self.wrong(f"{operator} of {what} computes {tensor}, which has a value")
            defined |= {tensor.index for tensor in operator.outputs}
            operators.append(operator)
        outputs = self.tensors(table.outputs, tensors, f"an output of {what}")
        for tensor in outputs:
            if tensor.index not in defined:
                raise self.wrong(f"nothing computes {tensor}, an output of {what}")
        name = table.name
        record.finish()
        return Subgraph(index, name, tuple(tensors), inputs, outputs, tuple(operators))

    def complete_empty_constants(self, table: schema.SubgraphTable, tensors: list[Tensor]) -> None:
        """Make constants of the tensors without elements that nothing computes."""
        computed = {int(number) for each in table.operators for number in each.outputs}
        computed |= set(map(int, table.inputs))
        for number, tensor in enumerate(tensors):
            is_plain = number not in computed and not tensor.is_variable
            if is_plain and not math.prod(tensor.shape) and tensor.type in ELEMENTS:
                tensors[number] = replace(tensor, buffer=np.zeros(0, np.uint8))

    def tensors(
        self, numbers: Iterable[int], tensors: list[Tensor], what: str
    ) -> tuple[Tensor, ...]:
        optional = self.optional_tensors(numbers, tensors, what)
        if None in optional:
            raise self.wrong(f"{what} is missing (-1)")
        return tuple(tensor for tensor in optional if tensor is not None)

    def optional_tensors(
        self, numbers: Iterable[int], tensors: list[Tensor], what: str
    ) -> tuple[Tensor | None, ...]:
        selected: list[Tensor | None] = []
        for number in map(int, numbers):
            if not -1 <= number < len(tensors):
                raise self.wrong(f"{what} is tensor {number}, and the graph has {len(tensors)}")
            selected.append(None if number < 0 else tensors[number])
        return tuple(selected)

    def operator(self, index: int, table: schema.OperatorTable, tensors: list[Tensor]) -> Operator:
        codes, record = self.table.operator_codes, ReadRecord(None)
        table = tracked(table, record, _OPERATOR)
        if table.opcode_index >= len(codes):
            raise self.wrong(
                f"operator {index} is of code {table.opcode_index}, and the model has {len(codes)}"
            )
        code = tracked(codes[table.opcode_index], record)
        number = max(code.builtin_code, code.deprecated_builtin_code)
        if not 0 <= number < len(schema.OPERATORS):
            raise self.wrong(
                f"operator {index} has the number {number}; version 3d of the schema has "
                f"{len(schema.OPERATORS)} operators",
                UnsupportedError,
            )
        name, is_custom = schema.OPERATORS[number], schema.OPERATORS[number] == "CUSTOM"
        name = code.custom_code if is_custom else name
        what = f"operator {index} ({name})"
        inputs = self.optional_tensors(table.inputs, tensors, f"an input of {what}")
        outputs = self.tensors(table.outputs, tensors, f"an output of {what}")
        intermediates = self.optional_tensors(
            table.intermediates, tensors, f"an intermediate of {what}"
        )
        options, custom_options = _EMPTY, b""
        if is_custom:
            custom_options = self.custom_options(table, what)
        elif name in _OF_SECOND_UNION:
            options = table.builtin_options_2 or options
        else:
            options = table.builtin_options or options
        version = code.version
        unread = {name: value for _, name, value in record.unread()}
        return Operator(
            index, name, version, inputs, outputs, options, intermediates, is_custom,
            custom_options, unread,
        )  # fmt: skip

    def custom_options(self, table: schema.OperatorTable, what: str) -> bytes:
        offset, size = table.large_custom_options_offset, table.large_custom_options_size
        if offset <= 1:
            return table.custom_options.tobytes()
        if table.custom_options.size:
            raise self.wrong(
                f"{what} has custom_options, and others at large_custom_options_offset"
            )
        if offset + size > len(self.reader.data):
            raise self.wrong(
                f"the options of {what} end at byte {offset + size:,} of {len(self.reader.data):,}"
            )
        return self.reader.data[offset : offset + size]
