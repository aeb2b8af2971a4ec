"""Axes of TensorFlow Lite operators: options and inputs, inside and outside their range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litert import LiteRt, zeros
from subquant.dialects import create_context
from subquant.errors import InputError
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.reading.model import read_tflite
from tflite_builder import f32, one_operator

SHAPE = (2, 3, 4)
RANK = len(SHAPE)
OPERAND = f32(*SHAPE)
Build = Callable[[int], bytes]


def _axis_size(axis: int) -> int:
    """The number of elements along an axis; 1 for one that is out of range."""
    return SHAPE[axis] if -RANK <= axis < RANK else 1


def concatenation(axis: int) -> bytes:
    return one_operator("CONCATENATION", [OPERAND, OPERAND], [f32(4, 3, 4)], "ConcatenationOptions",
                        axis=axis)  # fmt: skip


def pack(axis: int) -> bytes:
    return one_operator("PACK", [OPERAND, OPERAND], [f32(2, 2, 3, 4)], "PackOptions", axis=axis,
                        valuesCount=2)  # fmt: skip


def unpack(axis: int) -> bytes:
    count = _axis_size(axis)
    return one_operator("UNPACK", [OPERAND], [f32(3, 4)] * count, "UnpackOptions", axis=axis,
                        num=count)  # fmt: skip


def gather(axis: int) -> bytes:
    return one_operator("GATHER", [OPERAND, [0, 1]], [OPERAND], "GatherOptions", axis=axis)


def split(axis: int) -> bytes:
    count = _axis_size(axis)
    return one_operator("SPLIT", [np.array(axis, np.int32), OPERAND], [OPERAND] * count,
                        "SplitOptions", numSplits=count)  # fmt: skip


def split_v(axis: int) -> bytes:
    inputs = [OPERAND, [_axis_size(axis)], np.array(axis, np.int32)]
    return one_operator("SPLIT_V", inputs, [OPERAND], "SplitVOptions", numSplits=1)


def squeeze(axis: int) -> bytes:
    return one_operator("SQUEEZE", [f32(1, 1, 1)], [f32(1, 1)], "SqueezeOptions",
                        squeezeDims=[axis])  # fmt: skip


def one_hot(axis: int) -> bytes:
    on, off = np.ones((), np.float32), np.zeros((), np.float32)
    inputs = [(SHAPE, "int32"), np.array(5, np.int32), on, off]
    return one_operator("ONE_HOT", inputs, [f32(*SHAPE, 5)], "OneHotOptions", axis=axis)


def by_input(
    name: str, options: str | None = None, result_type: str = "float32", operand: str = "float32"
) -> Build:
    """An operator whose input 1 is its axis."""
    is_scalar, values = name.startswith("ARG") or name == "CUMSUM", {}
    if name.startswith("ARG"):
        values["outputType"] = 2
    return lambda axis: one_operator(
        name, [(SHAPE, operand), np.array(axis if is_scalar else [axis], np.int32)],
        [(SHAPE, result_type)], options, **values,
    )  # fmt: skip


REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
OPERATORS: dict[str, tuple[Build, range]] = {
    "CONCATENATION": (concatenation, range(-RANK, RANK)),
    "PACK": (pack, range(-RANK - 1, RANK + 1)),
    "UNPACK": (unpack, range(-RANK, RANK)),
    "GATHER": (gather, range(-RANK, RANK)),
    "SPLIT": (split, range(-RANK, RANK)),
    "SPLIT_V": (split_v, range(-RANK, RANK)),
    "SQUEEZE": (squeeze, range(-RANK, RANK)),
    "ONE_HOT": (one_hot, range(-1, RANK + 1)),
    "EXPAND_DIMS": (by_input("EXPAND_DIMS", "ExpandDimsOptions"), range(-RANK - 1, RANK + 1)),
    "REVERSE_V2": (by_input("REVERSE_V2", "ReverseV2Options"), range(-RANK, RANK)),
    "CUMSUM": (by_input("CUMSUM", "CumsumOptions"), range(-RANK, RANK)),
    "ARG_MAX": (by_input("ARG_MAX", "ArgMaxOptions", "int32"), range(-RANK, RANK)),
    "ARG_MIN": (by_input("ARG_MIN", "ArgMinOptions", "int32"), range(-RANK, RANK)),
    "REDUCE_ANY": (by_input("REDUCE_ANY", "ReducerOptions", "bool", "bool"), range(-RANK, RANK)),
    "REDUCE_ALL": (by_input("REDUCE_ALL", "ReducerOptions", "bool", "bool"), range(-RANK, RANK)),
    **{name: (by_input(name, "ReducerOptions"), range(-RANK, RANK)) for name in REDUCTIONS},
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_axis_outside_the_range_is_refused(name: str) -> None:
    build, valid = OPERATORS[name]
    for axis in (valid.start, valid.stop - 1):
        write_module(read_tflite(build(axis)), create_context())
    for axis in (valid.start - 1, valid.stop, 5 * valid.stop):
        with pytest.raises(InputError, match=f"has the axis {axis} "):
            write_module(read_tflite(build(axis)), create_context())


@pytest.mark.parametrize("name", OPERATORS)
def test_litert_has_the_same_range_of_axes(name: str) -> None:
    build, valid = OPERATORS[name]
    for axis, is_valid in ((valid.start, True), (valid.stop - 1, True), (valid.stop, False)):
        data, refused = build(axis), False
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
