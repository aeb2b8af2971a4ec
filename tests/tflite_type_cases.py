"""Operators of TensorFlow Lite with the types of elements that the other tables leave out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tflite_cases import Case
from tflite_elementwise_cases import arg, binary, cumsum, reduction, select, unary
from tflite_indexing_cases import (
    batches,
    gather,
    gather_nd,
    one_hot,
    padded,
    repeated,
    resize,
    reverse,
    spaces,
    strided_slice,
    update,
)
from tflite_scatter_cases import diagonal, reverse_sequence, scatter_nd, sparse_to_dense

_MOVED = "uint8 int16 int32 int64 bool"
_NAMED: dict[Callable[..., object], dict[str, str]] = {
    unary: {"RELU_N1_TO_1": "uint8"},
    binary: {
        "MAXIMUM": "int64", "MINIMUM": "int64", "FLOOR_MOD": "int64", "ADD": "float32 int32 int64",
        "SUB": "float32 int32 int64", "MUL": "float32 int32 int64",
    },
    select: {"SELECT": "uint8 int16 int64 bool", "SELECT_V2": "uint8 int16 int64 bool"},
    reduction: {
        "SUM": "int64", "REDUCE_MAX": "int64 bool", "REDUCE_MIN": "int64 bool",
        "REDUCE_PROD": "int64", "MEAN": "float32 int32 int64",
    },
    arg: {"ARG_MAX": "bool", "ARG_MIN": "bool"},
    padded: dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), "int32 int64 bool"),
    spaces: dict.fromkeys(("DEPTH_TO_SPACE", "SPACE_TO_DEPTH"), "uint8 int32 int64"),
    batches: dict.fromkeys(("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), "int16 int32 int64 bool"),
    repeated: dict.fromkeys(("TILE", "BROADCAST_TO"), _MOVED),
    resize: {"RESIZE_NEAREST_NEIGHBOR": "int32 bool"},
    diagonal: dict.fromkeys(("MATRIX_DIAG", "MATRIX_SET_DIAG"), "int16 int64"),
}  # fmt: skip
"""By functions of a name and a type."""
_ALONE: dict[str, tuple[Callable[..., object], str]] = {
    "CUMSUM": (cumsum, "int64"), "GATHER": (gather, _MOVED), "GATHER_ND": (gather_nd, _MOVED),
    "STRIDED_SLICE": (strided_slice, _MOVED), "REVERSE_V2": (reverse, _MOVED),
    "DYNAMIC_UPDATE_SLICE": (update, _MOVED), "ONE_HOT": (one_hot, "int8 int64 bool"),
    "SCATTER_ND": (partial(scatter_nd, computed=False), "int64 bool"),
    "SPARSE_TO_DENSE": (sparse_to_dense, "int64"), "REVERSE_SEQUENCE": (reverse_sequence, "int64"),
}  # fmt: skip
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_CASTS = {
    "float32": "int8 uint8 int16 int64 bool", "int8": "float32 int16 int32 int64",
    "uint8": "float32 int16 int32 int64", "int16": "float32 int8 uint8 int32 int64 bool",
    "int32": "int8 uint8 int16", "int64": "float32 int8 uint8 int16 bool",
    "bool": "float32 int8 uint8 int16 int64",
}  # fmt: skip

CASES: dict[str, Case] = {
    **{f"{n}-{t}": partial(function, name=n, dtype=t)
       for function, names in _NAMED.items() for n, types in names.items() for t in types.split()},
    **{f"{n}-{t}": partial(function, dtype=t)
       for n, (function, types) in _ALONE.items() for t in types.split()},
    **{f"{n}-{t}": partial(binary, name=n, dtype=t, target="bool")
       for n in _COMPARISONS for t in ("int16", "int64")},
    **{f"CAST-{a}-{b}": partial(unary, name="CAST", dtype=a, target=b)
       for a, types in _CASTS.items() for b in types.split()},
}  # fmt: skip
