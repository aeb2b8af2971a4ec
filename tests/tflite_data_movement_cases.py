"""Data movement operators, each with NumPy's function of expressed values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tflite_builder import Array, Graph, Quantized
from tflite_cases import Rng

IMAGES = (2, 4, 6, 8)


@dataclass
class MoveOp:
    """An operator and its meaning."""

    operands: Sequence[tuple[int, ...] | Array]  # shapes of scaled operands, or positions
    expressed: Callable[..., Array | Sequence[Array]]  # of the expressed values of operands
    options: str | None = None  # the name of the table
    fields: dict[str, Any] = field(default_factory=dict)


def _int32(*values: Any) -> Array:
    return np.array(values, np.int32)


def _depth_to_space(x: Array) -> Array:
    n, h, w, c = x.shape
    blocks = x.reshape(n, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(n, h * 2, w * 2, c // 4)


def _space_to_depth(x: Array) -> Array:
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(n, h // 2, w // 2, 4 * c)


def _space_to_batch(x: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    return np.concatenate([padded[:, i::2, j::2] for i in range(2) for j in range(2)])


def _batch_to_space(x: Array) -> Array:
    whole = np.zeros((1, 8, 12, 8))
    for block in range(4):
        whole[0, block // 2 :: 2, block % 2 :: 2] = x[block]
    return whole[:, :, 1:-2]


def _filled(shape: Any, fill: Array, index: Any, values: Array) -> Array:
    """Values at an index of an array of fills."""
    result = np.full(shape, fill)
    result[index] = values
    return result


def _set_diagonal(x: Array, diagonal: Array) -> Array:
    return np.where(np.eye(4, 5), np.pad(diagonal, ((0, 0), (0, 1)))[:, None], x)


def _reversed(x: Array) -> Array:
    return np.stack(
        [np.concatenate([row[:n][::-1], row[n:]]) for row, n in zip(x, (1, 3), strict=True)]
    )


_POSITIONS = _int32([0, 2], [1, 1])
_CONDITION = np.array([True, False, True, True])

DATA_MOVEMENT: dict[str, MoveOp] = {
    "BATCH_TO_SPACE_ND": MoveOp(
        [(4, 4, 6, 8), _int32(2, 2), _int32([0, 0], [1, 2])], _batch_to_space),
    "BROADCAST_TO": MoveOp([(3, 1), _int32(2, 3, 5)], lambda x: np.broadcast_to(x, (2, 3, 5))),
    "CONCATENATION": MoveOp([(2, 3), (2, 4), (2, 1)], lambda *x: np.concatenate(x, 1),
                           "ConcatenationOptions", {"axis": 1}),
    "DEPTH_TO_SPACE": MoveOp([IMAGES], _depth_to_space, "DepthToSpaceOptions", {"blockSize": 2}),
    "DILATE": MoveOp([(4, 5), _int32(1, 3), ()],
                    lambda x, fill: _filled((4, 13), fill, np.s_[:, ::3], x)),
    "DYNAMIC_UPDATE_SLICE": MoveOp([(4, 6), (2, 3), _int32(1, 2)],
                                  lambda x, part: _filled((4, 6), x, np.s_[1:3, 2:5], part)),
    "EMBEDDING_LOOKUP": MoveOp([_int32(2, 0, 1, 2), (3, 5)], lambda x: x[[2, 0, 1, 2]]),
    "EXPAND_DIMS": MoveOp([(4, 6), _int32(1)], lambda x: x[:, None]),
    "FILL": MoveOp([_int32(2, 3), ()], lambda x: np.full((2, 3), x)),
    "GATHER": MoveOp([(4, 5), _int32(3, 0)], lambda x: x[:, [3, 0]], "GatherOptions", {"axis": 1}),
    "GATHER_ND": MoveOp([(4, 5), _POSITIONS], lambda x: x[[0, 1], [2, 1]]),
    "MATRIX_SET_DIAG": MoveOp([(2, 4, 5), (2, 4)], _set_diagonal),
    "MIRROR_PAD": MoveOp([(4, 5), _int32([1, 0], [0, 2])],
                        lambda x: np.pad(x, ((1, 0), (0, 2)), "reflect"), "MirrorPadOptions"),
    "ONE_HOT": MoveOp([_int32(1, 0, 2), _int32(4)[0], (), ()],
                     lambda on, off: np.where(np.eye(4)[[1, 0, 2]], on, off),
                     "OneHotOptions", {"axis": -1}),
    "PACK": MoveOp([(3, 4), (3, 4)], lambda *x: np.stack(x, 1), "PackOptions",
                  {"axis": 1, "valuesCount": 2}),
    "PAD": MoveOp([(4, 5), _int32([1, 0], [0, 2])], lambda x: np.pad(x, ((1, 0), (0, 2)))),
    "PADV2": MoveOp([(4, 5), _int32([1, 0], [0, 2]), ()],
                   lambda x, fill: np.pad(x, ((1, 0), (0, 2)), constant_values=fill)),
    "RESHAPE": MoveOp([(4, 6), _int32(3, -1)], lambda x: x.reshape(3, 8)),
    "RESIZE_NEAREST_NEIGHBOR": MoveOp([IMAGES, _int32(8, 3)],
                                     lambda x: np.repeat(x, 2, 1)[:, :, ::2],
                                     "ResizeNearestNeighborOptions"),
    "REVERSE_SEQUENCE": MoveOp([(2, 4, 3), _int32(1, 3)], _reversed, "ReverseSequenceOptions",
                              {"seqDim": 1, "batchDim": 0}),
    "REVERSE_V2": MoveOp([(4, 5), _int32(1)], lambda x: x[:, ::-1]),
    "SELECT": MoveOp([_CONDITION, (4,), (4,)], lambda x, y: np.where(_CONDITION, x, y)),
    "SELECT_V2": MoveOp([_CONDITION, (3, 4), (4,)], lambda x, y: np.where(_CONDITION, x, y)),
    "SLICE": MoveOp([(4, 5), _int32(1, 2), _int32(2, -1)], lambda x: x[1:3, 2:]),
    "SPACE_TO_BATCH_ND": MoveOp([IMAGES, _int32(2, 2), _int32([0, 0], [1, 1])], _space_to_batch),
    "SPACE_TO_DEPTH": MoveOp([IMAGES], _space_to_depth, "SpaceToDepthOptions", {"blockSize": 2}),
    "SPARSE_TO_DENSE": MoveOp([_int32(1, 4, 6), _int32(7), (3,), ()],
                             lambda values, other: _filled(7, other, [1, 4, 6], values)),
    "SPLIT": MoveOp([_int32(1)[0], (3, 6)], lambda x: np.split(x, 3, 1), "SplitOptions",
                   {"numSplits": 3}),
    "SPLIT_V": MoveOp([(3, 6), _int32(1, 5), _int32(1)[0]], lambda x: np.split(x, [1], 1),
                     "SplitVOptions", {"numSplits": 2}),
    "SQUEEZE": MoveOp([(4, 1, 5)], lambda x: x[:, 0], "SqueezeOptions", {"squeezeDims": [1]}),
    "STABLEHLO_PAD": MoveOp([(4, 5), ()], lambda x, fill: _filled((8, 5), fill, np.s_[1::2], x),
                           "StablehloPadOptions",
                           {"edgePaddingLow": [1, 0], "edgePaddingHigh": [0, 0],
                            "interiorPadding": [1, 0]}),
    "STRIDED_SLICE": MoveOp([(4, 6), _int32(0, 5), _int32(4, 0), _int32(2, -2)],
                           lambda x: x[::2, 5:0:-2], "StridedSliceOptions"),
    "TILE": MoveOp([(2, 3), _int32(2, 2)], lambda x: np.tile(x, (2, 2))),
    "TRANSPOSE": MoveOp([(2, 3, 4), _int32(2, 0, 1)], lambda x: x.transpose(2, 0, 1)),
    "UNPACK": MoveOp([(2, 3)], lambda x: [x[:, n] for n in range(3)], "UnpackOptions",
                    {"axis": 1, "num": 3}),
}  # fmt: skip
"""The operators by name."""

SELECTORS = {
    "MATRIX_DIAG": MoveOp([(2, 4)], lambda x: np.eye(4) * x[:, None]),
    "MAXIMUM": MoveOp([(3, 4), (4,)], np.maximum),
    "MAX_POOL_2D": MoveOp(
        [(1, 4, 6, 3)], lambda x: x.reshape(1, 2, 2, 3, 2, 3).max(axis=(2, 4)), "Pool2DOptions",
        {"strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, "padding": 1}),
    "MINIMUM": MoveOp([(3, 4), (4,)], np.minimum),
    "REDUCE_MAX": MoveOp([(3, 4), _int32(1)], lambda x: x.max(1), "ReducerOptions"),
    "REDUCE_MIN": MoveOp([(3, 4), _int32(1)], lambda x: x.min(1), "ReducerOptions"),
    "RELU": MoveOp([(3, 4)], lambda x: np.maximum(x, 0)),
    "RELU6": MoveOp([(3, 4)], lambda x: np.clip(x, 0, 6)),
}  # fmt: skip
"""Operators that choose among elements by their values, or put zeros beside them."""


def parameters(rng: Rng, dtype: str) -> Quantized:
    """A scale around 0.1, and a zero point."""
    zero_point = 0 if dtype == "int16" else int(rng.integers(-30, 30)) + 64 * (dtype == "uint8")
    return Quantized(float(np.float32(rng.uniform(0.05, 0.2))), zero_point)


def dequantized(storage: Array, quantized: Quantized) -> Array:
    """``(q - z) * s`` in f64."""
    scale = np.float64(np.float32(quantized.scales))
    return (storage.astype(np.float64) - quantized.zero_points) * scale


def nearest(expressed: Array, quantized: Quantized, dtype: str) -> Array:
    """``clamp(round_half_even(x / s + z))`` in f64."""
    info = np.iinfo(dtype)
    steps = np.rint(expressed / np.float64(np.float32(quantized.scales)) + quantized.zero_points)
    return np.clip(steps, info.min, info.max).astype(dtype)


def add_operator(
    graph: Graph, name: str, rng: Rng, dtype: str, constants: bool = False
) -> tuple[list[int], list[int], list[Array], list[Array]]:
    """Add an operator whose operands and results all have scales of their own.

    Operands without axes are constants of the file on request. Returns the numbers of the inputs
    and outputs, the inputs' storage, and the outputs' right storage.
    """
    case = (DATA_MOVEMENT | SELECTORS)[name]
    numbers, inputs, storage, expressed = [], [], [], []
    for operand in case.operands:
        if not isinstance(operand, tuple):
            is_condition = operand.dtype == bool
            numbers.append(graph.tensor(operand.shape, operand.dtype.name, None, operand))
            assert is_condition or operand.dtype == np.int32
            continue
        info, quantized = np.iinfo(dtype), parameters(rng, dtype)
        values = rng.integers(info.min // 4, info.max // 4, operand).astype(dtype)
        is_constant = constants and not operand
        numbers.append(graph.tensor(operand, dtype, quantized, values if is_constant else None))
        if not is_constant:
            inputs.append(numbers[-1])
            storage.append(values)
        expressed.append(dequantized(values, quantized))
    results = case.expressed(*expressed)
    outputs, right = [], []
    for result in [results] if isinstance(results, np.ndarray) else results:
        quantized = parameters(rng, dtype)
        outputs.append(graph.tensor(result.shape, dtype, quantized))
        right.append(nearest(result, quantized, dtype))
    graph.operator(name, numbers, outputs, case.options, **case.fields)
    return inputs, outputs, storage, right
