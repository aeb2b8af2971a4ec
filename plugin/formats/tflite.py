"""Read TensorFlow Lite models: checked tensors, operators and signatures, and nothing computed.

`read_tflite` looks at everything that later steps rely on: numbers of tensors and buffers, sizes of
constants, scales, the order of operators. What is wrong is said with the operator's number and name
and the tensor's name. Constants are views of the file, but for those of 2 and 4 bits, which are
unpacked when they are asked for.

Source: ``schema.fbs`` of LiteRT, version 3d; "TensorFlow Lite 8-bit quantization specification".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ..errors import InputError, Place, SubquantError, UnsupportedError, quoted
from ..numerics.element_types import Array, DType, ElementType
from . import tflite_schema as schema
from .flatbuffer import Reader

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

ELEMENTS = {
    "FLOAT32": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "FLOAT64": "f64",
    "BOOL": "i1",
    "INT2": "i2",
    "INT4": "i4",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "UINT4": "u4",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
}
"""The types of tensors that programs have, as `subquant.numerics.element_types` names them."""

_MOST_ELEMENTS = (1 << 31) - 1
_HIGHEST_RANK = 8


@dataclass(frozen=True, eq=False)
class Quantization:
    """``real = scale * (storage - zero_point)``.

    Args:
        scales: f32, positive and finite: one, or one for each index of `axis`, or of the shape of
            the tensor divided by its blocks.
        zero_points: int64, of the shape of `scales`.
        axis: the quantized dimension, if there are several scales along one.
        block_size: the length of a block of the last dimension; 0 where there are no blocks.
    """

    scales: Array
    zero_points: Array
    axis: int | None = None
    block_size: int = 0

    @property
    def scale(self) -> np.float32:
        """The scale of the whole tensor."""
        return np.float32(self.scales.reshape(-1)[0])

    @property
    def zero_point(self) -> int:
        """The zero point of the whole tensor."""
        return int(self.zero_points.reshape(-1)[0])

    @property
    def is_per_tensor(self) -> bool:
        """There is one scale."""
        return self.scales.size == 1 and not self.block_size


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a graph.

    Args:
        index: its number in the graph.
        name: as the file says; it need not be unique.
        type: a name of `subquant.formats.tflite_schema.TENSOR_TYPES`.
        shape: extents, as the file says them for one call.
        known_shape: the same with -1 for those that may be others.
        quantization: how integers stand for reals, or None.
        buffer: the bytes of a constant, or None.
        is_variable: it keeps its value from call to call.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    known_shape: tuple[int, ...]
    quantization: Quantization | None = None
    buffer: Array | None = None
    is_variable: bool = False

    @property
    def is_constant(self) -> bool:
        """Its elements are in the file."""
        return self.buffer is not None

    @property
    def is_float(self) -> bool:
        """Its elements are floats."""
        return self.type.startswith(("FLOAT", "BFLOAT"))

    @property
    def element(self) -> str:
        """The name of the element type."""
        return ELEMENTS[self.type]

    @functools.cached_property
    def data(self) -> Array:
        """The elements of a constant: of 2 and 4 bits as int8 or uint8."""
        assert self.buffer is not None  # is_constant
        bits = _narrow_bits(self.type)
        if bits:
            values = _unpacked(self.buffer, bits, self.type)
            return values[: math.prod(self.shape)].reshape(self.shape)
        if self.type == "BOOL":
            return np.asarray(self.buffer != 0).reshape(self.shape)
        return self.buffer.view(_dtype(self.type)).reshape(self.shape)

    def __str__(self) -> str:
        return f"tensor {quoted(self.name)}"


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of a graph.

    Args:
        index: its number in the graph.
        name: as in `subquant.formats.tflite_schema.OPERATORS`, or the custom one's.
        version: of the operator.
        inputs: tensors; None for optional ones that are absent.
        outputs: tensors.
        options: a table of `subquant.formats.tflite_schema`, or None.
        intermediates: tensors that say how values inside the operator are quantized.
        is_custom: it is not one of the schema's.
        custom_options: the bytes that say how, of such a one.
    """

    index: int
    name: str
    version: int
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    options: object = None
    intermediates: tuple[Tensor | None, ...] = ()
    is_custom: bool = False
    custom_options: bytes = b""

    def __str__(self) -> str:
        return f"operator {self.index} ({self.name})"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph: operators in the order of execution.

    Args:
        index: its number in the model.
        name: as the file says, or "".
        tensors, inputs, outputs, operators: what it is made of.
    """

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Signature:
    """A function that the model offers: the names of a graph's inputs and outputs.

    Args:
        name: of the function.
        subgraph: the number of the graph.
        inputs, outputs: the name of each input and output of the graph, in its order.
    """

    name: str
    subgraph: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A model.

    Args:
        file: its name, for errors.
        description: as the file says.
        subgraphs: its graphs; the first is the main one.
        signatures: the functions that it offers; of a file without any, ``main``.
    """

    file: str
    description: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...] = field(default=())


def read_tflite(data: bytes, file: str = "-") -> Model:
    """Read a model.

    Args:
        data: the whole file.
        file: its name, for errors.

    Raises:
        InputError: the file is damaged, or contradicts itself.
        UnsupportedError: it is of another version of the schema, or keeps weights in other files.
    """
    if data[4:8] != schema.MAGIC:
        raise InputError("is no TensorFlow Lite model: bytes 4 to 7 are not 'TFL3'", Place(file))
    return _ModelReader(Reader(data, file)).model()


class _ModelReader:
    """Checks what a file says against itself."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.table = reader.root(schema.ModelTable)

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
        if not signatures:
            main = subgraphs[0]
            names = [tuple(tensor.name for tensor in side) for side in (main.inputs, main.outputs)]
            signatures = (Signature("main", 0, *names),)
        return Model(self.reader.file, self.table.description, subgraphs, signatures)

    def signature(self, table: schema.SignatureTable, subgraphs: tuple[Subgraph, ...]) -> Signature:
        what = f"signature {quoted(table.signature_key)}"
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
            names = {each.tensor_index: each.name for each in maps}
            for tensor in tensors:
                if tensor.index not in names:
                    raise self.wrong(f"{what} has no name for the {kind} {tensor}")
            sides.append(tuple(names[tensor.index] for tensor in tensors))
        return Signature(table.signature_key, graph.index, *sides)

    def subgraph(self, index: int, table: schema.SubgraphTable) -> Subgraph:
        what = f"graph {index}"
        tensors: list[Tensor] = []
        for number, entry in enumerate(table.tensors):
            tensors.append(self.tensor(number, entry, table.tensors))
        known = {tensor.index for tensor in tensors if tensor.is_constant or tensor.is_variable}
        inputs = self.tensors(table.inputs, tensors, f"an input of {what}")
        known |= {tensor.index for tensor in inputs}
        operators = []
        for number, code in enumerate(table.operators):
            made = self.operator(number, code, tensors)
            for given in made.inputs:
                if given is not None and given.index not in known:
                    raise self.wrong(f"{made} of {what} uses {given}, which nothing has computed")
            for tensor in made.outputs:
                if tensor.is_constant or (tensor.index in known and not tensor.is_variable):
                    raise self.wrong(f"{made} of {what} computes {tensor}, which has a value")
            known |= {tensor.index for tensor in made.outputs}
            operators.append(made)
        outputs = self.tensors(table.outputs, tensors, f"an output of {what}")
        for tensor in outputs:
            if tensor.index not in known:
                raise self.wrong(f"nothing computes {tensor}, an output of {what}")
        return Subgraph(index, table.name, tuple(tensors), inputs, outputs, tuple(operators))

    def tensors(
        self, numbers: Iterable[int], tensors: list[Tensor], what: str
    ) -> tuple[Tensor, ...]:
        found = self.optional_tensors(numbers, tensors, what)
        if None in found:
            raise self.wrong(f"{what} is missing (-1)")
        return tuple(tensor for tensor in found if tensor is not None)

    def optional_tensors(
        self, numbers: Iterable[int], tensors: list[Tensor], what: str
    ) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for number in map(int, numbers):
            if not -1 <= number < len(tensors):
                raise self.wrong(f"{what} is tensor {number}, and the graph has {len(tensors)}")
            found.append(None if number < 0 else tensors[number])
        return tuple(found)

    def operator(self, index: int, table: schema.OperatorTable, tensors: list[Tensor]) -> Operator:
        codes = self.table.operator_codes
        if table.opcode_index >= len(codes):
            raise self.wrong(
                f"operator {index} is of code {table.opcode_index}, and the model has {len(codes)}"
            )
        code = codes[table.opcode_index]
        number = max(code.builtin_code, code.deprecated_builtin_code)
        if not 0 <= number < len(schema.OPERATORS):
            raise self.wrong(
                f"operator {index} has the number {number}; version 3d of the schema has "
                f"{len(schema.OPERATORS)} operators",
                UnsupportedError,
            )
        name = schema.OPERATORS[number]
        is_custom = name == "CUSTOM"
        what = f"operator {index} ({code.custom_code if is_custom else name})"
        return Operator(
            index,
            code.custom_code if is_custom else name,
            code.version,
            self.optional_tensors(table.inputs, tensors, f"an input of {what}"),
            self.tensors(table.outputs, tensors, f"an output of {what}"),
            table.builtin_options if table.builtin_options_2 is None else table.builtin_options_2,
            self.optional_tensors(table.intermediates, tensors, f"an intermediate of {what}"),
            is_custom,
            self.custom_options(table, what) if is_custom else b"",
        )

    def custom_options(self, table: schema.OperatorTable, what: str) -> bytes:
        if table.large_custom_options_offset > 1:
            raise self.wrong(f"{what} has its options after the flatbuffer", UnsupportedError)
        return table.custom_options.tobytes()

    def tensor(
        self, index: int, table: schema.TensorTable, tables: tuple[schema.TensorTable, ...]
    ) -> Tensor:
        what = f"tensor {index} {quoted(table.name)}"
        if not 0 <= table.type < len(schema.TENSOR_TYPES):
            raise self.wrong(f"{what} has the unknown type {table.type}", UnsupportedError)
        type_ = schema.TENSOR_TYPES[table.type]
        shape = tuple(int(extent) for extent in table.shape)
        if len(shape) > _HIGHEST_RANK or any(extent < 0 for extent in shape):
            raise self.wrong(f"{what} has the shape {list(shape)}")
        count = math.prod(shape)
        if count > _MOST_ELEMENTS:
            raise self.wrong(f"{what} has {count:,} elements, more than {_MOST_ELEMENTS:,}")
        known = tuple(int(extent) for extent in table.shape_signature) or shape
        if len(known) != len(shape) or any(
            own not in (-1, extent) for own, extent in zip(known, shape, strict=True)
        ):
            raise self.wrong(f"{what} has the shape {list(shape)} and the signature {list(known)}")
        quantization = self.quantization(table, type_, shape, what, tables)
        buffer = self.buffer(table, type_, count, what)
        return Tensor(
            index, table.name, type_, shape, known, quantization, buffer, table.is_variable
        )

    def buffer(self, table: schema.TensorTable, type_: str, count: int, what: str) -> Array | None:
        if table.external_buffer:
            raise self.wrong(f"{what} is kept in another file", UnsupportedError)
        if table.sparsity is not None:
            raise self.wrong(f"{what} is stored sparse", UnsupportedError)
        buffers = self.table.buffers
        if table.buffer and table.buffer >= len(buffers):
            raise self.wrong(f"{what} is in buffer {table.buffer}, the model has {len(buffers)}")
        if not table.buffer:
            return None
        buffer = buffers[table.buffer]
        data = buffer.data
        if buffer.offset > 1:
            end = buffer.offset + buffer.size
            if end > len(self.reader.data):
                raise self.wrong(f"{what} ends at byte {end:,} of {len(self.reader.data):,}")
            data = np.frombuffer(self.reader.data, np.uint8, buffer.size, buffer.offset)
        if not data.size or type_ not in ELEMENTS:
            return None
        bits = _narrow_bits(type_) or _dtype(type_).itemsize * 8
        expected = -(-count * bits // 8)
        if data.size != expected:
            raise self.wrong(
                f"{what} has {data.size:,} bytes, and {count:,} elements of {type_} have "
                f"{expected:,}"
            )
        return data

    def quantization(
        self,
        tensor: schema.TensorTable,
        type_: str,
        shape: tuple[int, ...],
        what: str,
        tables: tuple[schema.TensorTable, ...],
    ) -> Quantization | None:
        table = tensor.quantization
        if table is None:
            return None
        if table.details_type not in (0, 2):
            raise self.wrong(f"{what} has custom or multi-axis quantization", UnsupportedError)
        if table.details is not None:
            return self.blocks(table.details, shape, what, tables)
        if not table.scale.size or type_.startswith(("FLOAT", "BFLOAT")):
            return None
        scales = table.scale.astype(np.float32)
        zero_points = table.zero_point.astype(np.int64)
        if not zero_points.size:
            zero_points = np.zeros(scales.size, np.int64)
        if zero_points.size == 1:
            zero_points = np.broadcast_to(zero_points, scales.shape)
        axis = None
        if scales.size > 1:
            # Converters give a bias the dimension of its weight; LiteRT does not look at it.
            axis = 0 if len(shape) == 1 else table.quantized_dimension
            if not 0 <= axis < len(shape) or shape[axis] != scales.size:
                raise self.wrong(
                    f"{what} of shape {list(shape)} has {scales.size} scales along dimension {axis}"
                )
        return self.checked(Quantization(scales, zero_points, axis), type_, what)

    def blocks(
        self,
        details: schema.BlockwiseQuantization,
        shape: tuple[int, ...],
        what: str,
        tables: tuple[schema.TensorTable, ...],
    ) -> Quantization:
        size = details.block_size
        if size < 1 or not shape or shape[-1] % size:
            raise self.wrong(f"{what} of shape {list(shape)} has blocks of {size}")
        grid = (*shape[:-1], shape[-1] // size)
        planes = []
        for kind, number in (("scales", details.scales), ("zero points", details.zero_points)):
            if kind == "zero points" and number <= 0:
                planes.append(np.zeros(grid, np.int64))
                continue
            if not 0 <= number < len(tables):
                raise self.wrong(f"{what} has its {kind} in tensor {number} of {len(tables)}")
            plane = tables[number]
            type_ = schema.TENSOR_TYPES[plane.type] if 0 <= plane.type < 23 else ""
            count = math.prod(grid)
            buffer = None
            if type_ in ELEMENTS and math.prod(map(int, plane.shape)) == count:
                buffer = self.buffer(plane, type_, count, f"the {kind} of {what}")
            if buffer is None:
                raise self.wrong(
                    f"{what} needs {kind} of shape {list(grid)} as a constant, got "
                    f"{type_ or plane.type} {list(map(int, plane.shape))}"
                )
            values = Tensor(number, "", type_, grid, grid, None, buffer).data
            planes.append(values)
        scales, zero_points = planes[0].astype(np.float32), planes[1].astype(np.int64)
        return self.checked(Quantization(scales, zero_points, None, size), "", what)

    def checked(self, found: Quantization, type_: str, what: str) -> Quantization:
        if found.scales.shape != found.zero_points.shape:
            raise self.wrong(
                f"{what} has {found.scales.size} scales and {found.zero_points.size} zero points"
            )
        if not (np.isfinite(found.scales).all() and (found.scales > 0).all()):
            if not found.block_size and (found.scales == 0).all():
                raise self.wrong(f"{what} has the scale 0")
            raise self.wrong(f"{what} has a scale that is not positive and finite")
        if type_ in ELEMENTS and found.zero_points.any():
            element = ElementType.parse(ELEMENTS[type_])
            span = 1 << element.bits
            low = -span // 2 if element.kind == "int" else 0
            high = low + span - 1
            if found.zero_points.min() < low or found.zero_points.max() > high:
                raise self.wrong(f"{what} has a zero point outside {low} to {high}")
        return found


# -- types ----------------------------------------------------------------------------------------


def _narrow_bits(type_: str) -> int:
    """The bits of a type that several elements share a byte in, else 0."""
    return {"INT4": 4, "UINT4": 4, "INT2": 2}.get(type_, 0)


def _dtype(type_: str) -> DType:
    return ElementType.parse(ELEMENTS[type_]).dtype


def _unpacked(buffer: Array, bits: int, type_: str) -> Array:
    """Integers of a few bits, the lowest bits of a byte first; what pads the last byte stays."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = ((buffer[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)
    if type_.startswith("U"):
        return values
    sign = np.uint8(1 << (bits - 1))
    return (values ^ sign).view(np.int8) - sign.view(np.int8)
