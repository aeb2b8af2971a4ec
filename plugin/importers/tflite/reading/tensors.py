"""Tensors of TensorFlow Lite models: their types, quantization parameters and constants.

Constants are views of the file, except 2-bit and 4-bit ones, which are unpacked at the first use,
and sparse ones, which are densified.

Sources: ``schema.fbs`` of LiteRT, version 3d; "TensorFlow Lite 8-bit quantization specification".
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from ....core.read_record import Irrelevant, ReadRecord
from ....errors import InputError, Place, SubquantError, UnsupportedError, quoted
from ....numerics.element_types import SHARED_NAMES, Array, DType, ElementType
from ...flatbuffer import Reader, Table, tracked
from . import schema
from .sparsity import dense_positions

ELEMENTS = {"FLOAT32": "f32", "FLOAT64": "f64", **SHARED_NAMES}
"""The element types of programs (`subquant.numerics.element_types`), by tensor type."""

_MAX_ELEMENTS = (1 << 31) - 1
"""Elements of a tensor, at most: 32-bit indices count them. A model with more is refused."""
_MAX_RANK = 8
"""Dimensions of a tensor, at most; a model with more is refused."""
_NO_SHAPE = np.zeros(0, np.int32)

_IRRELEVANT = (Irrelevant("has_rank", "distinguishes scalars from tensors of unknown rank"),)
_IRRELEVANT_QUANTIZATION = (
    Irrelevant("min", "is the range that the scale was computed from"),
    Irrelevant("max", "is the range that the scale was computed from"),
)


@dataclass(frozen=True, eq=False)
class Quantization:
    """Quantization parameters: ``real = scale * (storage - zero_point)``.

    Args:
        scales: f32, positive and finite: one, or one for each index of `axis`, or of the shape of
            the tensor divided by its blocks.
        zero_points: int64, of the shape of `scales`.
        axis: the quantized dimension of a per-axis tensor.
        block_size: the length of a block of the last dimension; 0 without blocks.
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
        """The tensor has one scale."""
        return self.scales.size == 1 and not self.block_size


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a subgraph.

    Args:
        index: its position in the subgraph.
        name: the name in the file, which need not be unique.
        type: a name of `subquant.importers.tflite.reading.schema.TENSOR_TYPES`.
        shape: the shape in the file, for one call.
        shape_signature: the shape with -1 for dynamic dimensions.
        buffer: the bytes of a constant, or None.
        is_variable: the tensor keeps its value from call to call.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    quantization: Quantization | None = None
    buffer: Array | None = None
    is_variable: bool = False

    @property
    def is_constant(self) -> bool:
        """The elements are in the file."""
        return self.buffer is not None

    @property
    def is_float(self) -> bool:
        """The elements are floats."""
        return self.type.startswith(("FLOAT", "BFLOAT"))

    @property
    def element(self) -> str:
        """The name of the element type."""
        return ELEMENTS[self.type]

    @functools.cached_property
    def data(self) -> Array:
        """The elements of a constant; 2-bit and 4-bit ones are unpacked to int8 or uint8."""
        assert self.buffer is not None  # is_constant
        bits = _narrow_bits(self.type)
        if bits:  # the lowest bits of a byte first, and padding in the last byte
            shifts = np.arange(0, 8, bits, dtype=np.uint8)
            values: Array = (self.buffer[:, None] >> shifts) & ((1 << bits) - 1)
            values = values.reshape(-1)
            if not self.type.startswith("U"):
                sign = np.uint8(1 << (bits - 1))
                values = (values ^ sign).view(np.int8) - sign.view(np.int8)
            return values[: math.prod(self.shape)].reshape(self.shape)
        if self.type == "BOOL":
            return np.asarray(self.buffer != 0).reshape(self.shape)
        return self.buffer.view(_dtype(self.type)).reshape(self.shape)

    def __str__(self) -> str:
        return f"tensor {quoted(self.name)}"


Buffers = tuple[schema.BufferTable, ...]
Tables = tuple[schema.TensorTable, ...]


class TensorReader:
    """Reads a tensor of a subgraph, all of whose tensors are `tables`: some hold scales of others.

    Raises:
        InputError, UnsupportedError: with the number and name of the tensor.
    """

    def __init__(
        self,
        reader: Reader,
        buffers: Buffers,
        index: int,
        table: schema.TensorTable,
        tables: Tables,
    ) -> None:
        self.reader, self.buffers, self.index, self.tables = reader, buffers, index, tables
        self.name = f"tensor {index} {quoted(table.name)}"
        self.location = Place(reader.file)
        self.record = ReadRecord(self.location, self.name)
        self.table = tracked(table, self.record, _IRRELEVANT)
        if not 0 <= table.type < len(schema.TENSOR_TYPES):
            raise self.error(f"has the unknown type {self.table.type}", UnsupportedError)
        self.type = schema.TENSOR_TYPES[self.table.type]
        self.shape = tuple(int(size) for size in self.table.shape)

    def error(self, what: str, error: type[SubquantError] = InputError) -> SubquantError:
        """Return an error about the tensor."""
        return error(f"{self.name} {what}", self.location)

    def read(self) -> Tensor:
        """Return the tensor, checked."""
        table, shape = self.table, self.shape
        if len(shape) > _MAX_RANK or any(size < 0 for size in shape):
            raise self.error(f"has the shape {list(shape)}")
        count = math.prod(shape)
        if count > _MAX_ELEMENTS:
            raise self.error(f"has {count:,} elements, more than {_MAX_ELEMENTS:,}")
        signature = tuple(int(size) for size in table.shape_signature) or shape
        if len(signature) != len(shape) or any(
            stated not in (-1, size) for stated, size in zip(signature, shape, strict=True)
        ):
            raise self.error(f"has the shape {list(shape)} and the signature {list(signature)}")
        quantization, buffer = self.quantization(), self.buffer()
        is_sparse = table.sparsity is not None
        if is_sparse and quantization is not None and quantization.zero_points.any():
            raise self.error("is stored sparse with zero points other than 0", UnsupportedError)
        name, is_variable = table.name, table.is_variable
        if is_variable and buffer is not None:
            raise self.error("is a variable with elements in the file", UnsupportedError)
        self.record.finish()
        return Tensor(
            self.index, name, self.type, shape, signature, quantization, buffer, is_variable
        )

    # -- elements ---------------------------------------------------------------------------------

    def buffer(self) -> Array | None:
        """Return the bytes of a constant, dense; None for a computed tensor."""
        external, sparsity = self.table.external_buffer, self.table.sparsity
        if external:
            raise self.error(
                f"is kept in another file (external buffer {external})", UnsupportedError
            )
        data = self.bytes_of(self.table.buffer)
        if not data.size or self.type not in ELEMENTS:
            if sparsity is not None:
                raise self.error("is stored sparse, and has no elements", UnsupportedError)
            return None
        positions = None if sparsity is None else self.positions(sparsity)
        count = math.prod(self.shape) if positions is None else positions.size
        bits = _narrow_bits(self.type) or _dtype(self.type).itemsize * 8
        expected = -(-count * bits // 8)
        if data.size != expected:
            raise self.error(
                f"has {data.size:,} bytes, and {count:,} elements of {self.type} have {expected:,}"
            )
        if positions is None:
            return data
        if bits < 8:
            raise self.error(f"of {self.type} is stored sparse", UnsupportedError)
        elements = np.zeros((math.prod(self.shape), bits // 8), np.uint8)
        elements[positions] = data.reshape(-1, bits // 8)
        return elements.reshape(-1)

    def bytes_of(self, number: int) -> Array:
        """Return the bytes of a buffer: in the flatbuffer, or after it."""
        buffers, file = self.buffers, self.reader.data
        if not number:
            return np.zeros(0, np.uint8)
        if number >= len(buffers):
            raise self.error(f"is in buffer {number}, the model has {len(buffers)}")
        record = ReadRecord(self.location, f"buffer {number}")
        buffer = tracked(buffers[number], record)
        data, offset, size = buffer.data, buffer.offset, buffer.size
        record.finish()
        if offset <= 1:
            if size > 1:
                raise self.error(f"is in buffer {number} of {size:,} bytes that does not exist")
            return data
        if data.size:
            raise self.error(f"is in buffer {number}, which has bytes at two offsets")
        if offset + size > len(file):
            raise self.error(f"ends at byte {offset + size:,} of {len(file):,}")
        return np.frombuffer(file, np.uint8, size, offset)

    def positions(self, table: schema.SparsityTable) -> Array:
        """Return the index of each element of a sparse constant in the dense one."""
        tables = [each for level in table.dim_metadata
                  for each in (level, level.array_segments, level.array_indices)]  # fmt: skip
        for each in (table, *tables):
            if each is not None:  # all other fields are read
                self.record.track("field", Table(unknown_slots=each.unknown_slots).stated())
        try:
            return dense_positions(table, self.shape)
        except InputError as error:
            raise self.error(error.message) from None

    # -- quantization -----------------------------------------------------------------------------

    def quantization(self) -> Quantization | None:
        """Return the quantization parameters of the tensor; None for plain numbers."""
        if self.table.quantization is None:
            return None
        table = tracked(self.table.quantization, self.record, _IRRELEVANT_QUANTIZATION)
        scales, zero_points = table.scale.astype(np.float32), table.zero_point.astype(np.int64)
        axis, details = table.quantized_dimension, table.details
        if table.details_type not in (0, 2):
            raise self.error("has custom or multi-axis quantization", UnsupportedError)
        if details is not None:
            if scales.size:
                raise self.error(f"has both {scales.size} scales and blocks of them")
            return self.blocks(tracked(details, self.record))
        if self.type.startswith(("FLOAT", "BFLOAT")):
            return None
        if not scales.size:
            if zero_points.any():
                raise self.error("has zero points, and no scales")
            return None
        if not zero_points.size:
            zero_points = np.zeros(scales.size, np.int64)
        if zero_points.size == 1:
            zero_points = np.broadcast_to(zero_points, scales.shape)
        if scales.size == 1:
            return self.checked(Quantization(scales, zero_points))
        # Converters give a bias the dimension of its weight; LiteRT ignores it.
        axis = 0 if len(self.shape) == 1 else axis
        if not 0 <= axis < len(self.shape) or self.shape[axis] != scales.size:
            raise self.error(
                f"of shape {list(self.shape)} has {scales.size} scales along dimension {axis}"
            )
        return self.checked(Quantization(scales, zero_points, axis))

    def blocks(self, details: schema.BlockwiseQuantization) -> Quantization:
        """Return the parameters of a blockwise tensor; its scales are other tensors."""
        size, shape = details.block_size, self.shape
        if size < 1 or not shape or shape[-1] % size:
            raise self.error(f"of shape {list(shape)} has blocks of {size}")
        grid = (*shape[:-1], shape[-1] // size)
        planes = []
        for kind, number in (("scales", details.scales), ("zero points", details.zero_points)):
            if kind == "zero points" and number <= 0:
                planes.append(np.zeros(grid, np.int64))
                continue
            if not 0 <= number < len(self.tables):
                raise self.error(f"has its {kind} in tensor {number} of {len(self.tables)}")
            table = self.tables[number]
            if math.prod(map(int, table.shape)) == math.prod(grid):
                table = replace(table, shape=np.array(grid, np.int32), shape_signature=_NO_SHAPE)
            plane = TensorReader(self.reader, self.buffers, number, table, ()).read()
            if plane.buffer is None or plane.shape != grid or plane.quantization is not None:
                raise self.error(
                    f"needs {kind} of shape {list(grid)} as constant plain numbers, got "
                    f"{plane.type} {list(plane.shape)}"
                )
            planes.append(plane.data)
        scales, zero_points = planes[0].astype(np.float32), planes[1].astype(np.int64)
        return self.checked(Quantization(scales, zero_points, None, size))

    def checked(self, quantization: Quantization) -> Quantization:
        """Return the parameters; refuse unlike counts, scales up to 0, zero points out of range."""
        scales, zero_points = quantization.scales, quantization.zero_points
        if scales.shape != zero_points.shape:
            raise self.error(f"has {scales.size} scales and {zero_points.size} zero points")
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            if not quantization.block_size and (scales == 0).all():
                raise self.error("has the scale 0")
            raise self.error("has a scale that is not positive and finite")
        if self.type in ELEMENTS and not quantization.block_size and zero_points.any():
            element = ElementType.parse(ELEMENTS[self.type])
            span = 1 << element.bits
            low = -span // 2 if element.kind == "int" else 0
            high = low + span - 1
            if zero_points.min() < low or zero_points.max() > high:
                raise self.error(f"has a zero point outside {low} to {high}")
        return quantization


# -- types ----------------------------------------------------------------------------------------


def _narrow_bits(type_: str) -> int:
    """Return the bits of a type with several elements in a byte, else 0."""
    return {"INT4": 4, "UINT4": 4, "INT2": 2}.get(type_, 0)


def _dtype(type_: str) -> DType:
    return ElementType.parse(ELEMENTS[type_]).dtype
