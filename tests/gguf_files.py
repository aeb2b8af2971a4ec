"""GGUF files of all types, written by PyPI's ``gguf``, and files made byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np

from ggml_blocks import random_blocks
from gguf_models import write_file
from subquant.formats.gguf import read_gguf
from subquant.layouts import InferenceTensor, PrimitiveTensor, QuantizedTensor
from subquant.layouts.ggml import BLOCK_TYPES

PROPERTIES: dict[str, Any] = {
    "general.architecture": "test",
    "a.u8": 200, "a.u16": 60000, "a.u32": 4_000_000_000, "a.u64": 2**64 - 1,
    "a.i8": -100, "a.i16": -30000, "a.i32": -2_000_000_000, "a.i64": -(2**63),
    "a.f32": 0.5, "a.f64": 0.1, "a.yes": True, "a.no": False, "a.text": "größer → 大",
    "a.empty": "", "a.words": ["one", "", "zwei", "三"], "a.numbers": [3, -1, 2**31 - 1],
    "a.reals": [0.25, -1.5], "a.truths": [True, False, True],
}  # fmt: skip


def write_sample(path: Path) -> dict[str, np.ndarray]:
    """Write each type of property and of tensor, with ``gguf``; return the raw arrays."""
    writer = gguf.GGUFWriter(path, "test")
    kinds = gguf.GGUFValueType
    for code in ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"):
        kind = {"u": "UINT", "i": "INT", "f": "FLOAT"}[code[0]] + code[1:]
        writer.add_key_value(f"a.{code}", PROPERTIES[f"a.{code}"], kinds[kind])
    for key in ("a.yes", "a.no"):
        writer.add_bool(key, PROPERTIES[key])
    for key in ("a.text", "a.empty"):
        writer.add_key_value(key, PROPERTIES[key], kinds.STRING)
    for key in ("a.words", "a.numbers", "a.reals", "a.truths"):
        writer.add_array(key, PROPERTIES[key])
    rng = np.random.default_rng(9)
    arrays: dict[str, np.ndarray] = {
        "f32": rng.normal(size=(2, 3)).astype(np.float32),
        "f16": rng.normal(size=(5,)).astype(np.float16),
        "f64": rng.normal(size=(2, 2, 1, 2)),
        "i8": np.array([-3, 4], np.int8),
        "i16": np.array([[-300], [400]], np.int16),
        "i32": np.array([-(2**31)], np.int32),
        "i64": np.array([2**63 - 1], np.int64),
    }
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    half = rng.normal(size=(3, 4)).astype(ml_dtypes.bfloat16)
    bytes_ = half.view(np.uint8)
    writer.add_tensor("bf16", bytes_, raw_dtype=gguf.GGMLQuantizationType.BF16)
    arrays["bf16"] = half
    for seed, name in enumerate(BLOCK_TYPES):
        raw = random_blocks(name, 6, seed).view(np.uint8).reshape((3, -1))
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[name])
        arrays[name] = raw
    write_file(writer)
    return arrays


def use(tensors: dict[str, InferenceTensor]) -> None:
    """Compute with each tensor."""
    with np.errstate(all="ignore"):
        for tensor in tensors.values():
            if isinstance(tensor, QuantizedTensor):
                assert tensor.unpack().dequant().shape == tensor.shape
            else:
                assert isinstance(tensor, PrimitiveTensor)
                assert tensor.array.copy().shape == tensor.shape


def without_vocabulary(properties: dict[str, Any]) -> dict[str, Any]:
    """The properties without the lists of a vocabulary."""
    return {
        key: value
        for key, value in properties.items()
        if not (isinstance(value, list) and key.startswith("tokenizer."))
    }


def read(folder: Path, data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read some bytes as a file, ``m.gguf``."""
    (folder / "m.gguf").write_bytes(data)
    return read_gguf(folder / "m.gguf")


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def header(tensors: int = 0, properties: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, properties)


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def one_property(kind: int, value: bytes) -> bytes:
    return header(0, 1) + pair("k", kind, value)


def info(name: str | bytes, extents: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def padded(data: bytes, alignment: int = 32) -> bytes:
    return data + bytes(-len(data) % alignment)


def one_tensor(extents: tuple[int, ...], kind: int, size: int, offset: int = 0) -> bytes:
    return padded(header(1) + info("w", extents, kind, offset)) + bytes(size)


def two_tensors(first: int, second: int, size: int) -> bytes:
    infos = info("a", (16,), 0, first) + info("b", (8,), 0, second)
    return padded(header(2) + infos) + bytes(size)


def aligned(alignment: bytes, kind: int = 4) -> bytes:
    data = header(1, 1) + pair("general.alignment", kind, alignment) + info("w", (2,), 0)
    return padded(data, 256) + struct.pack("<2f", 1, 2)


ARRAY = 9


def array_property(kind: int, count: int) -> bytes:
    return one_property(ARRAY, struct.pack("<IQ", kind, count))
