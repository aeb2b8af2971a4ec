"""Reads tensors of ONNX models, also those whose data is in other files.

Sizes and types are checked here, and that external data is in the folder of the model.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from typing import IO, Any, cast

import numpy as np

from ....core.files import file_beside, open_input
from ....core.requirements import require
from ....errors import InputError, Place, SubquantError, UnsupportedError, quoted
from .model import ELEMENTS, Tensor, element_of, is_too_large

_PACKED_BITS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4,
                "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}  # fmt: skip
_EXTERNAL_KEYS = ("location", "offset", "length", "checksum", "basepath")
"""Keys of external data; ``basepath`` names the folder that the model was written to.

ONNX Runtime repeats weights in the order of its kernels, as ``prepacked_0`` and others.
"""
_MAX_RANK = 8
"""Dimensions of a tensor, at most; a model with more is refused."""


class TensorReader:
    """Reads the tensors of one file.

    Args:
        file: the file name, for errors.
        path: the path of the file, whose folder has the external data; by default `file`.
    """

    def __init__(self, file: str, path: str | None = None) -> None:
        onnx = require("onnx", "an ONNX model", "onnx")  # 0.5 s
        from onnx import checker, helper, numpy_helper

        self.onnx, self.checker, self.helper = onnx, checker, helper
        self._to_array = numpy_helper.to_array
        self.file, self.location = file, Place(file)
        self._path = file if path is None else path
        self._digests: dict[str, str] = {}
        self._is_stream = path is None and file in ("-", "<stdin>")

    def error(self, problem: str, kind: type[SubquantError] = InputError) -> SubquantError:
        """Return an error of the file."""
        return kind(problem, self.location)

    def unsupported(self, problem: str) -> SubquantError:
        """Return an error that programs cannot have a part of the file."""
        return self.error(problem, UnsupportedError)

    def text(self, name: str | bytes) -> str:
        """Return a name; the protobuf has bytes in place of text that is not UTF-8."""
        if isinstance(name, bytes):
            raise self.error(f"has the name {name[:80]!r}, which is not UTF-8 text")
        return name

    def element_type(self, number: int, subject: str) -> str:
        """Return ONNX's name of the element type of a number."""
        try:
            name = str(self.onnx.TensorProto.DataType.Name(number))
        except ValueError:
            raise self.error(f"{subject} is of the unknown type {number}") from None
        if name not in ELEMENTS:
            advice = "; replace texts by numbers before the call" if name == "STRING" else ""
            raise self.unsupported(f"{subject} is of type {name}, which is not lowered{advice}")
        return name

    def is_external(self, proto: Any) -> bool:
        """Return True for a tensor whose data is in another file."""
        return bool(proto.data_location == self.onnx.TensorProto.EXTERNAL)

    def tensor(self, proto: Any, subject: str | None = None) -> Tensor:
        """Read a constant."""
        subject = subject or f"tensor {quoted(self.text(proto.name))}"
        type_ = self.element_type(proto.data_type, subject)
        shape = self._shape(proto, subject)
        count = math.prod(shape)
        if self.is_external(proto):
            proto = self.with_data(proto, subject)
        try:
            array = np.asarray(self._to_array(proto))
        except (ValueError, TypeError, OverflowError) as error:
            problem = f"{subject} has not the elements of its shape: {first_line(error)}"
            raise self.error(problem) from None
        if array.size != count:
            raise self.error(f"{subject} has {array.size} elements, expected {count}")
        size = _byte_count(type_, shape)
        if proto.HasField("raw_data") and len(proto.raw_data) != size:
            raise self.error(f"{subject} has {len(proto.raw_data)} bytes, expected {size}")
        dtype = element_of(type_).dtype
        if type_.startswith(("FLOAT4", "FLOAT6", "FLOAT8")):
            array = array.view(np.uint8)
        return Tensor(proto.name, type_, array.reshape(shape).astype(dtype, copy=False))

    def dense(self, sparse: Any, subject: str) -> Tensor:
        """Read a sparse tensor with all its elements: the values at their indices, 0 elsewhere."""
        values, indices = self.tensor(sparse.values, subject), self.tensor(sparse.indices, subject)
        shape = self._shape(sparse, subject)
        positions = indices.data.astype(np.int64)
        is_inside = False
        if positions.ndim == 2 and positions.shape == (values.data.size, len(shape)):
            is_inside = bool(((positions >= 0) & (positions < np.array(shape, np.int64))).all())
            positions = np.ravel_multi_index(tuple(positions.T), shape) if is_inside else positions
        elif positions.shape == (values.data.size,):
            is_inside = bool(((positions >= 0) & (positions < math.prod(shape))).all())
        if not is_inside:
            raise self.error(
                f"{subject} has {values.data.size} values and indices of shape "
                f"{list(indices.data.shape)} for the shape {shape}"
            )
        dense = np.zeros(math.prod(shape), values.data.dtype)
        dense[positions] = values.data.reshape(-1)
        return Tensor(values.name, values.type, dense.reshape(shape))

    def _shape(self, proto: Any, subject: str) -> list[int]:
        shape = [int(n) for n in proto.dims]
        if any(n < 0 for n in shape) or len(shape) > _MAX_RANK:
            raise self.error(f"{subject} has the shape {shape}")
        if is_too_large(shape):
            raise self.error(f"{subject} has {math.prod(shape):,} elements, too many")
        if hasattr(proto, "segment") and proto.HasField("segment"):
            raise self.unsupported(f"{subject} is in segments")
        return shape

    def with_data(self, proto: Any, subject: str) -> Any:
        """Return a tensor with its bytes from another file, in the folder of the model."""
        type_ = self.element_type(proto.data_type, subject)
        size = _byte_count(type_, self._shape(proto, subject))
        entries = self._external_entries(proto, subject)
        location = entries.get("location", "")
        if self._is_stream:
            raise self.error(
                f"{subject} is in the file {quoted(location)}, beside a model that is no file"
            )
        path = file_beside(self._path, location)
        if path is None:
            raise self.error(
                f"{subject} is said to be in {quoted(location)}, expected the name of a file in "
                "the folder of the model or below, without '..' and without a link that leaves it"
            )
        try:
            start, length = (int(entries.get(key, 0)) for key in ("offset", "length"))
        except ValueError:
            start, length = -1, 0
        if start < 0 or length not in (0, size):
            raise self.error(
                f"{subject} takes {quoted(entries.get('length', ''))} bytes from "
                f"{quoted(entries.get('offset', ''))} of {quoted(location)}, expected {size}"
            )
        with open_input(path) as file:
            file_size = os.fstat(file.fileno()).st_size
            if start + size > file_size:
                raise self.error(
                    f"{subject} ends at byte {start + size:,} of {quoted(location)}, which has "
                    f"{file_size:,}"
                )
            self._check_digest(file, location, entries.get("checksum"))
            file.seek(start)
            data = file.read(size)
        tensor = self.onnx.TensorProto()
        tensor.name, tensor.data_type, tensor.raw_data = proto.name, proto.data_type, data
        tensor.dims.extend(proto.dims)
        return tensor

    def _external_entries(self, proto: Any, subject: str) -> dict[str, str]:
        """Return the entries that say where the data of a tensor is, by key."""
        entries: dict[str, str] = {}
        for each in proto.external_data:
            key = self.text(each.key)
            if key in entries:
                raise self.error(f"{subject} has the key {quoted(key)} of external data twice")
            if key not in _EXTERNAL_KEYS and not key.startswith("prepacked_"):
                raise self.unsupported(
                    f"{subject} has the key {quoted(key)} of external data, expected one of: "
                    f"{', '.join(_EXTERNAL_KEYS)}"
                )
            entries[key] = self.text(each.value)
        return entries

    def _check_digest(self, file: IO[bytes], name: str, expected: str | None) -> None:
        """Refuse a file of another SHA-1 than a tensor says, once for each file."""
        if not expected:
            return
        if name not in self._digests:
            self._digests[name] = hashlib.file_digest(cast("Any", file), _sha1).hexdigest()
        if self._digests[name] != expected.lower():
            raise self.error(
                f"the file {quoted(name)} has the SHA-1 {self._digests[name]}, expected "
                f"{quoted(expected)}; fetch the model again"
            )


def _sha1() -> Any:
    return hashlib.sha1(usedforsecurity=False)


def first_line(error: Exception) -> str:
    """Return the first line of the error of another package."""
    stripped = [line.strip() for line in str(error).splitlines() if line.strip()]
    return stripped[0].rstrip(".") if stripped else type(error).__name__


def _byte_count(type_: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor; those of a few bits are packed."""
    bits = _PACKED_BITS.get(type_, element_of(type_).dtype.itemsize * 8)
    return (math.prod(shape) * bits + 7) // 8
