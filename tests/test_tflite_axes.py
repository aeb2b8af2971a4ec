"""Axes of TensorFlow Lite operators: options and inputs, inside and outside their range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litert import LiteRt
from subquant.dialects import create_context
from subquant.errors import InputError
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.reading.model import read_tflite
from tflite_builder import Graph

SHAPE = (2, 3, 4)
RANK = len(SHAPE)
Build = Callable[[Graph, int], tuple[list[int], list[int]]]


def _operand(graph: Graph) -> int:
    return graph.tensor(SHAPE, "float32")


def _axis_size(axis: int) -> int:
    """The number of elements along an axis; 1 for one that is out of range."""
    return SHAPE[axis] if -RANK <= axis < RANK else 1


def concatenation(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    sides, result = [_operand(graph), _operand(graph)], graph.tensor((4, 3, 4), "float32")
    return sides, graph.operator(
        "CONCATENATION", sides, [result], "ConcatenationOptions", axis=axis
    )


def pack(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    sides, result = [_operand(graph), _operand(graph)], graph.tensor((2, 2, 3, 4), "float32")
    return sides, graph.operator("PACK", sides, [result], "PackOptions", axis=axis, valuesCount=2)


def unpack(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    operand, count = _operand(graph), _axis_size(axis)
    results = [graph.tensor((3, 4), "float32") for _ in range(count)]
    return [operand], graph.operator(
        "UNPACK", [operand], results, "UnpackOptions", axis=axis, num=count
    )


def gather(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    operand, axes, result = _operand(graph), graph.constant([0, 1]), _operand(graph)
    return [operand], graph.operator(
        "GATHER", [operand, axes], [result], "GatherOptions", axis=axis
    )


def split(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    operand, count = _operand(graph), _axis_size(axis)
    results = [_operand(graph) for _ in range(count)]
    return [operand], graph.operator(
        "SPLIT", [graph.constant(axis), operand], results, "SplitOptions", numSplits=count
    )


def split_v(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    operand, result = _operand(graph), _operand(graph)
    inputs = [operand, graph.constant([_axis_size(axis)]), graph.constant(axis)]
    return [operand], graph.operator("SPLIT_V", inputs, [result], "SplitVOptions", numSplits=1)


def squeeze(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    operand, result = graph.tensor((1, 1, 1), "float32"), graph.tensor((1, 1), "float32")
    return [operand], graph.operator(
        "SQUEEZE", [operand], [result], "SqueezeOptions", squeezeDims=[axis]
    )


def one_hot(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
    positions, result = graph.tensor(SHAPE, "int32"), graph.tensor((*SHAPE, 5), "float32")
    on, off = (graph.constant(n, "float32") for n in (1, 0))
    inputs = [positions, graph.constant(5), on, off]
    return [positions], graph.operator("ONE_HOT", inputs, [result], "OneHotOptions", axis=axis)


def by_input(
    name: str, options: str | None = None, result_type: str = "float32", operand: str = "float32"
) -> Build:
    """An operator whose input 1 is its axis."""

    def build(graph: Graph, axis: int) -> tuple[list[int], list[int]]:
        operand_, result = graph.tensor(SHAPE, operand), graph.tensor(SHAPE, result_type)
        axes = graph.constant(axis if name.startswith("ARG") or name == "CUMSUM" else [axis])
        values = {"outputType": 2} if name.startswith("ARG") else {}
        return [operand_], graph.operator(name, [operand_, axes], [result], options, **values)

    return build


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


def _model(build: Build, axis: int) -> bytes:
    graph = Graph()
    return graph.model(*build(graph, axis))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_axis_outside_the_range_is_refused(name: str) -> None:
    build, valid = OPERATORS[name]
    for axis in (valid.start, valid.stop - 1):
        write_module(read_tflite(_model(build, axis)), create_context())
    for axis in (valid.start - 1, valid.stop, 5 * valid.stop):
        with pytest.raises(InputError, match=f"has the axis {axis} "):
            write_module(read_tflite(_model(build, axis)), create_context())


@pytest.mark.parametrize("name", OPERATORS)
def test_litert_has_the_same_range_of_axes(name: str) -> None:
    build, valid = OPERATORS[name]
    for axis, is_valid in ((valid.start, True), (valid.stop - 1, True), (valid.stop, False)):
        data = _model(build, axis)
        read_tflite(data)
        refused = False
        try:
            interpreter = LiteRt(data)
            inputs = [np.zeros(each["shape"], each["dtype"])
                      for each in interpreter._interpreter.get_input_details()]  # fmt: skip
            interpreter(inputs)
        except (RuntimeError, ValueError):
            refused = True
        assert refused is not is_valid, axis


def test_a_mask_that_another_mask_hides_is_read() -> None:
    """Dimensions that are taken away have no end, whatever end_mask says; LiteRT agrees."""
    graph = Graph()
    operand, result = graph.tensor((2, 3), "float32"), graph.tensor((), "float32")
    bounds = [graph.constant(numbers) for numbers in ([1, 2], [2, 3], [1, 1])]
    graph.operator("STRIDED_SLICE", [operand, *bounds], [result], "StridedSliceOptions",
                   endMask=1, shrinkAxisMask=-1)  # fmt: skip
    data = graph.model([operand], [result])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    theirs = LiteRt(data)
    theirs([x])
    (ours,) = Interpreter(read_tflite(data)).run(0, [x])
    assert ours == theirs.tensor(result) == 5
