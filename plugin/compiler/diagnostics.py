"""Diagnostics of upstream's parser and verifier, reworded so that a user can act on them.

Most of upstream's messages are good. This module replaces those that report a wrong number, name
nothing, or give no advice: the expected number of scales without the actual one, unknown operations
and dialects, and ``quant`` operations where a `subquant` operation accepts the type.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence

import numpy as np

from ..core._mlir import operation_names
from ..dialects import stablehlo, subquant
from ..errors import near_names

HINTS = (
    (
        "tensor containing the sub-channel quantized type must be ranked",
        "subquant.qcast, subquant.dcast and subquant.scast accept unranked tensors",
    ),
    (
        "must be divisible by the corresponding block size",
        "subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block",
    ),
    (
        "must match the rank of the tensor",
        "subquant.qcast, subquant.dcast and subquant.scast accept scales without the dimensions "
        "of size 1",
    ),
    *(
        (
            f"matmul_transpose_{side}' is unknown",
            "newer MLIR writes it as linalg.matmul or linalg.batch_matmul with indexing_maps, "
            "whose map of this operand has its last two axes exchanged",
        )
        for side in "ab"
    ),
)
"""Parts of upstream's messages, and hints."""

_BLOCKS = re.compile(r"dimension size \d+ of scales tensor at axis (\d+) should match .* = (\d+)")
_REFUSED_TYPE = "integer quantized values, but got"
_CHANNELS = "quantized dimension size does not match number of scales"
_BRACKETS = str.maketrans("{}", "[]")
_SUB_CHANNEL = re.compile(r"!quant\.uniform<[^{]*\{[^}]*\}, (?=\{)")
_PER_AXIS = re.compile(r"tensor<([\dx?]+)x!quant\.uniform<\w+(?:<[^>]*>)?:\w+:(\d+), \{([^{}]*)\}>")
_UNKNOWN_OPERATION = re.compile(
    r"custom op '(\w+)\.([\w.]+)' is unknown|unregistered operation '(\w+)\.([\w.]+)' found"
)
_UNKNOWN_DIALECT = re.compile(r"Dialect `(\w+)' not found for custom op")
_UNKNOWN_TYPE = re.compile(r"unknown quantized type (\w+)")
_DIALECTS = ("arith", "chlo", "func", "linalg", "math", "quant", "scf", "stablehlo", "subquant",
             "tensor", "torch", "tosa")  # fmt: skip


def reworded(message: str, notes: Sequence[str]) -> str:
    """Return a message of upstream's parser or verifier for a user."""
    block_match = _BLOCKS.search(message)
    if block_match is not None:
        axis, expected = int(block_match.group(1)), int(block_match.group(2))
        counts = {shape[axis] for shape in _scale_shapes(notes) if len(shape) > axis}
        wrong = sorted(counts - {expected})
        got = f", got {wrong[0]}" if wrong else ""
        return f"expected {expected} scales along axis {axis}, one for each block{got}"
    if _CHANNELS in message:
        for match in (m for note in notes for m in _PER_AXIS.finditer(note)):
            extents, axis = match.group(1).split("x"), int(match.group(2))
            count = match.group(3).count(",") + 1
            if axis < len(extents) and extents[axis] != str(count):
                index = f"one for each index of axis {axis}"
                return f"expected {extents[axis]} scales, {index}, got {count}"
    sub_channel = _SUB_CHANNEL.search(message)
    if sub_channel is not None and _REFUSED_TYPE in message:
        return (
            f"{message[: sub_channel.end()]}...>'; StableHLO's operations take no sub-channel "
            "types; dequantize operands with quant.dcast, and quantize results with quant.qcast"
        )
    unknown = _UNKNOWN_OPERATION.search(message)
    if unknown is not None:
        dialect, name = (part for part in unknown.groups() if part)
        return _proposing(message, name, _operations(dialect), f"{dialect}.")
    unknown_type = _UNKNOWN_TYPE.search(message)
    if unknown_type is not None:
        return _proposing(message, unknown_type.group(1), ("uniform", "any", "calibrated"))
    unknown_dialect = _UNKNOWN_DIALECT.search(message)
    if unknown_dialect is not None:
        return _proposing(message.strip(), unknown_dialect.group(1), _DIALECTS)
    return message


def _operations(dialect: str) -> list[str]:
    """Return the names of a dialect's operations; those of StableHLO from our table."""
    listed_operations = {
        "quant": ("quant.qcast", "quant.dcast", "quant.scast"),
        "stablehlo": stablehlo.OPERATIONS,
        "subquant": [*subquant.CASTS, *subquant.OPERAND_OPS, *subquant.REQUANTIZE,
                     *subquant.REDUCTIONS, subquant.BLOCK_CONTRACTION, subquant.UNPACK],
    }  # fmt: skip
    return [
        name.partition(".")[2] for name in listed_operations.get(dialect, ())
    ] or operation_names(dialect)


def _proposing(message: str, name: str, known: Sequence[str], before: str = "") -> str:
    similar = [f"'{before}{each}'" for each in near_names(name, known)]
    return f"{message}; did you mean {' or '.join(similar)}?" if similar else message


def _scale_shapes(notes: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the shapes of the scales ``{{1.0, 2.0}, {3.0, 4.0}}`` of the types in notes."""
    shapes = []
    for note in notes:
        for match in _SUB_CHANNEL.finditer(note):
            written = re.sub(r"\s", "", note[match.end() :])
            lists = re.sub(r"[^{},]+", "0", written).translate(_BRACKETS)
            with contextlib.suppress(ValueError):  # it is shown in another way than expected
                shapes.append(np.shape(json.JSONDecoder().raw_decode(lists)[0]))
    return shapes
