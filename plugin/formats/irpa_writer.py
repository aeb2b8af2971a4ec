"""Writer of IREE parameter archives (``.irpa``), in one pass: storage, then tables and header.

The format (`irpa`) allows this order, so that tensors can be written while they are made. Entries
are aligned to 64 bytes, and the file is padded to 4096. The element type is in an entry's metadata.

The file is written in chunks of a large page (2 MiB): Linux then keeps and maps it in large pages,
if the file system supports them (ext4 of Linux 6.18). One token of Gemma 3 270M takes 4 % less
time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np

from ..core.files import open_atomically
from ..core.mapped_files import mappings_of
from ..core.strict_json import shown
from ..errors import InputError
from ..numerics.array_pieces import ArrayPieces
from ..numerics.element_types import Array, DType
from . import irpa

_PAGE_BYTES = 1 << 21
"""The bytes of a large page of x86-64, and of AArch64 with small pages of 4 KiB."""


class _PageWriter:
    """Writes a file from its start in whole large pages, and the rest at the end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._pending = file, bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B")
        if self._pending:
            first = view[: _PAGE_BYTES - len(self._pending)]
            self._pending += first
            view = view[len(first) :]
            if len(self._pending) < _PAGE_BYTES:
                return
            self._file.write(self._pending)
            self._pending.clear()
        whole = len(view) - len(view) % _PAGE_BYTES
        if whole:
            self._file.write(view[:whole])
        self._pending += view[whole:]

    def finish(self) -> None:
        """Write the last bytes."""
        self._file.write(self._pending)
        self._pending.clear()


class ArchiveWriter:
    """Writes entries one after the other; made by `create_archive`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._start, self._file = file, _PageWriter(file)
        self._table = bytearray()
        self._metadata = bytearray()
        self._names: set[str] = set()
        # Offsets by address and size; the arrays are kept so that their addresses stay theirs.
        self._mapped: dict[tuple[int, int], tuple[int, Array]] = {}
        self._storage = _aligned(irpa.HEADER.size, irpa.DATA_ALIGNMENT)
        self._at = self._storage
        self._file.write(bytes(self._at))

    def add_tensor(self, name: str, array: Array) -> None:
        """Write an array; one that was read from a splat as such.

        Arrays that are the same bytes of a mapped file share them in the archive, too.

        Raises:
            InputError: the name is taken, or the element type is none that archives have.
        """
        array = np.asanyarray(array)
        metadata = _metadata_of(name, array.dtype, array.shape)
        if isinstance(array, irpa.Splat) and not any(array.strides) and array.size:
            pattern = np.asarray(array).reshape(-1)[:1].tobytes()
            self._add(
                irpa.SPLAT_TYPE,
                name,
                metadata,
                irpa.SPLAT.pack(array.nbytes, pattern, len(pattern)),
            )
            return
        flat = bytes_of(array)
        address_range = (flat.ctypes.data, array.nbytes)
        if address_range in self._mapped:
            offset, _ = self._mapped[address_range]
            self._add(irpa.DATA_TYPE, name, metadata, irpa.DATA.pack(offset, array.nbytes))
            return
        if array.nbytes and mappings_of([flat]):
            self._mapped[address_range] = (self._at - self._storage, flat)
        self._add_data(name, metadata, [flat.data], array.nbytes)

    def add_pieces(self, name: str, array: ArrayPieces) -> None:
        """Write an array, each piece as soon as it is made; errors as `add_tensor`."""
        metadata = _metadata_of(name, array.dtype, array.shape)
        pieces = (bytes_of(piece).data for piece in array.pieces)
        self._add_data(name, metadata, pieces, array.nbytes)

    def add_blob(self, name: str, data: bytes) -> None:
        """Write plain bytes.

        Raises:
            InputError: the name is taken.
        """
        self._add_data(name, b"", [data], len(data))

    def finish(self) -> None:
        """Write the tables and the header."""
        storage_length, metadata = self._at - self._storage, bytes(self._metadata)
        self._file.write(metadata)
        table = _aligned(self._at + len(metadata), 16)
        end = table + len(self._table)
        self._file.write(bytes(table - self._at - len(metadata)))
        self._file.write(self._table)
        self._file.write(bytes(_aligned(end, irpa.FILE_ALIGNMENT) - end))
        self._file.finish()
        self._start.seek(0)
        segments = (table, len(self._table), self._at, len(metadata), self._storage, storage_length)
        count = len(self._names)
        self._start.write(
            irpa.HEADER.pack(irpa.MAGIC, 0, 0, irpa.HEADER.size, 0, 0, count, *segments)
        )

    def _add_data(
        self, name: str, metadata: bytes, pieces: Iterable[bytes | memoryview], length: int
    ) -> None:
        self._add(irpa.DATA_TYPE, name, metadata, irpa.DATA.pack(self._at - self._storage, length))
        for piece in pieces:
            self._file.write(piece)
        end = _aligned(self._at + length, irpa.DATA_ALIGNMENT)
        self._file.write(bytes(end - self._at - length))
        self._at = end

    def _add(self, kind: int, name: str, metadata: bytes, rest: bytes) -> None:
        if name in self._names:
            raise InputError(f"two entries of the archive would be named {shown(name)}")
        encoded = name.encode(errors="replace")
        if encoded.decode() != name:
            raise InputError(f"the name {shown(name)} cannot be written as UTF-8")
        if len(encoded) > irpa.MAX_NAME_BYTES:
            raise InputError(f"the name {shown(name)} has more than {irpa.MAX_NAME_BYTES} bytes")
        self._names.add(name)
        ranges = []
        for data in (encoded, metadata):
            ranges += [len(self._metadata), len(data)]
            self._metadata += data
        alignment = irpa.DATA_ALIGNMENT if kind == irpa.DATA_TYPE else 0
        size = irpa.ENTRY.size + len(rest)
        self._table += irpa.ENTRY.pack(size, kind, 0, *ranges, alignment) + rest
        self._table += bytes(-len(self._table) % 16)


@contextlib.contextmanager
def create_archive(path: str | os.PathLike[str]) -> Iterator[ArchiveWriter]:
    """Write an archive, which is there at the end of the block, or not at all if that raises.

    Raises:
        OSError: the file cannot be written.
    """
    with open_atomically(path) as file:
        writer = ArchiveWriter(file)
        yield writer
        writer.finish()


def bytes_of(array: Array) -> Array:
    """Return the bytes of an array, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _metadata_of(name: str, dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Return an entry's metadata: JSON with dtype and shape."""
    if irpa.DTYPES.get(dtype.name) != dtype:
        raise InputError(
            f"tensor {shown(name)} has elements of {dtype}, which archives do not have; expected "
            f"one of: {', '.join(irpa.DTYPES)}"
        )
    is_float = dtype.kind == "f" or dtype.name.startswith(("float", "bfloat"))
    described = {
        "type": "Tensor",
        "dtype": dtype.name,
        "shape": list(shape),
        "dtype_desc": {
            "class_name": "dtype",
            "is_complex": dtype.kind == "c",
            "is_floating_point": is_float,
            "is_signed": dtype.kind in "ic" or is_float,
            "itemsize": dtype.itemsize,
        },
    }
    return irpa.TENSOR_PREFIX + json.dumps(described).encode()


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
