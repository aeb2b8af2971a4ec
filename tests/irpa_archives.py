"""IREE parameter archives made byte by byte, with chosen errors."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subquant.formats.irpa import Archive

HEADER = "<4sHHQQQQQQQQQQ"
NAMES = b"abcdefgh"
PYTORCH = b'PYTORCH:{"type": "Tensor", "dtype": "int16", "shape": [2, 3]}'
METADATA = NAMES + PYTORCH
STORAGE = bytes(range(64))


def data_entry(
    offset: int = 0, length: int = 12, name: int = 0, metadata: tuple[int, int] = (8, len(PYTORCH)),
    name_length: int = 1,
) -> bytes:  # fmt: skip
    sizes = name, name_length, *metadata, 64, offset, length
    return struct.pack("<QIQQQQQQQQ", 76, 2, 0, *sizes)


def splat_entry(
    length: int, pattern: bytes, size: int | None = None, metadata: tuple[int, int] = (0, 0)
) -> bytes:
    size = len(pattern) if size is None else size
    return struct.pack("<QIQQQQQQQ16sB", 85, 1, 0, 0, 1, *metadata, 0, length, pattern, size)


def archive(
    *entries: bytes, count: int | None = None, magic: bytes = b"IRPA",
    version: tuple[int, int] = (0, 0), size: int = 88, following: int = 0,
    metadata: bytes = METADATA, segments: dict[str, tuple[int, int]] | None = None,
) -> bytes:  # fmt: skip
    """Return an archive with its tables first, as IREE writes it, or with a chosen error."""
    table = b"".join(entry + bytes(-len(entry) % 16) for entry in entries)
    at = 96 + len(table)
    storage = -(-(at + len(metadata)) // 64) * 64
    ranges = {
        "entries": (96, len(table)),
        "metadata": (at, len(metadata)),
        "storage": (storage, len(STORAGE)),
    } | (segments or {})
    header = struct.pack(
        HEADER, magic, *version, size, following, 0, len(entries) if count is None else count,
        *ranges["entries"], *ranges["metadata"], *ranges["storage"],
    )  # fmt: skip
    content = header + bytes(8) + table + metadata
    return content + bytes(storage - len(content)) + STORAGE


def read(data: bytes, folder: Path) -> Archive:
    path = folder / "x.irpa"
    path.write_bytes(data)
    return Archive(path)


def described(entry: Callable[..., bytes], *arguments: Any, metadata: str) -> bytes:
    """An archive of an entry with metadata of PyTorch."""
    blob = b"PYTORCH:" + metadata.encode()
    return archive(entry(*arguments, metadata=(8, len(blob))), metadata=NAMES + blob)
