"""Axes of TensorFlow Lite operators: options and inputs, inside and outside their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litert import LiteRt, zeros
from subquant.dialects import create_context
from subquant.errors import InputError
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.reading.model import read_tflite
from tflite_builder import Array, f32, one_operator

SHAPE = (2, 3, 4)
RANK = len(SHAPE)
OPERAND = f32(*SHAPE)
Case = tuple[list[Any], list[Any], str, dict[str, Any]]
"""Operands, results, and the name and fields of the table of options."""


def _axis_size(axis: int) -> int:
    """The number of elements along an axis; 1 for one that is out of range."""
    return SHAPE[axis] if -RANK <= axis < RANK else 1


def scalar(number: int) -> Array:
    return np.array(number, np.int32)


def by_input(table: str, result: str = "float32", operand: str = "float32") -> Callable[..., Case]:
    """An operator whose input 1 is a list of its axis."""
    return lambda axis: ([(SHAPE, operand), [axis]], [(SHAPE, result)], table, {})


def argument(table: str) -> Callable[..., Case]:
    """An operator whose input 1 is its axis, and whose result are positions."""
    ends = [OPERAND], [(SHAPE, "int32")]
    return lambda axis: ([*ends[0], scalar(axis)], ends[1], table, {"outputType": 2})


AXES, NEW_AXES = range(-RANK, RANK), range(-RANK - 1, RANK + 1)
REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
OPERATORS: dict[str, tuple[Callable[..., Case], range]] = {
    "CONCATENATION": (lambda axis: (
        [OPERAND] * 2, [f32(4, 3, 4)], "ConcatenationOptions", {"axis": axis}), AXES),
    "PACK": (lambda axis: (
        [OPERAND] * 2, [f32(2, 2, 3, 4)], "PackOptions", {"axis": axis, "valuesCount": 2}),
        NEW_AXES),
    "UNPACK": (lambda axis: (
        [OPERAND], [f32(3, 4)] * _axis_size(axis), "UnpackOptions",
        {"axis": axis, "num": _axis_size(axis)}), AXES),
    "GATHER": (lambda axis: ([OPERAND, [0, 1]], [OPERAND], "GatherOptions", {"axis": axis}), AXES),
    "SPLIT": (lambda axis: (
        [scalar(axis), OPERAND], [OPERAND] * _axis_size(axis), "SplitOptions",
        {"numSplits": _axis_size(axis)}), AXES),
    "SPLIT_V": (lambda axis: (
        [OPERAND, [_axis_size(axis)], scalar(axis)], [OPERAND], "SplitVOptions",
        {"numSplits": 1}), AXES),
    "SQUEEZE": (lambda axis: (
        [f32(1, 1, 1)], [f32(1, 1)], "SqueezeOptions", {"squeezeDims": [axis]}), AXES),
    "ONE_HOT": (lambda axis: (
        [(SHAPE, "int32"), scalar(5), np.ones((), np.float32), np.zeros((), np.float32)],
        [f32(*SHAPE, 5)], "OneHotOptions", {"axis": axis}), range(-1, RANK + 1)),
    "EXPAND_DIMS": (by_input("ExpandDimsOptions"), NEW_AXES),
    "REVERSE_V2": (by_input("ReverseV2Options"), AXES),
    "CUMSUM": (lambda axis: ([OPERAND, scalar(axis)], [OPERAND], "CumsumOptions", {}), AXES),
    "ARG_MAX": (argument("ArgMaxOptions"), AXES),
    "ARG_MIN": (argument("ArgMinOptions"), AXES),
    "REDUCE_ANY": (by_input("ReducerOptions", "bool", "bool"), AXES),
    "REDUCE_ALL": (by_input("ReducerOptions", "bool", "bool"), AXES),
    **{name: (by_input("ReducerOptions"), AXES) for name in REDUCTIONS},
}  # fmt: skip


def model(name: str, axis: int) -> bytes:
    *ends, options, fields = OPERATORS[name][0](axis)
    return one_operator(name, *ends, options, **fields)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.share(6)
def test_an_axis_outside_the_range_is_refused(name: str) -> None:
    valid = OPERATORS[name][1]
    for axis in (valid.start, valid.stop - 1):
        write_module(read_tflite(model(name, axis)), create_context())
    for axis in (valid.start - 1, valid.stop, 5 * valid.stop):
        with pytest.raises(InputError, match=f"has the axis {axis} "):
            write_module(read_tflite(model(name, axis)), create_context())


@pytest.mark.parametrize("name", OPERATORS)
def test_litert_has_the_same_range_of_axes(name: str) -> None:
    valid = OPERATORS[name][1]
    for axis, is_valid in ((valid.start, True), (valid.stop - 1, True), (valid.stop, False)):
        data, refused = model(name, axis), False
        try:
            LiteRt(data)(zeros(read_tflite(data)))
        except (RuntimeError, ValueError):
            refused = True
        assert refused is not is_valid, axis


def test_a_mask_that_another_mask_hides_is_read() -> None:
    """Dimensions that are taken away have no end, whatever end_mask says; LiteRT agrees."""
    data = one_operator(
        "STRIDED_SLICE", [f32(2, 3), [1, 2], [2, 3], [1, 1]], [f32()], "StridedSliceOptions",
        endMask=1, shrinkAxisMask=-1,
    )  # fmt: skip
    model, x = read_tflite(data), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert LiteRt(data)([x]) == Interpreter(model).run(0, [x]) == [5]
