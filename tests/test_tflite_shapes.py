"""Constants of TensorFlow Lite operators with another number of elements are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import flatbuffers
import numpy as np
import pytest

from litert import LiteRt
from subquant.dialects import create_context
from subquant.errors import InputError, SubquantError
from subquant.importers.tflite import write_module
from subquant.importers.tflite.reading.model import read_tflite
from tflite_builder import Graph, schema
from tflite_cases import one_case
from tflite_recurrent_cases import CASES

Build = Callable[[Graph], tuple[list[int], list[int]]]


def top_k(graph: Graph) -> tuple[list[int], list[int]]:
    operand = graph.tensor((3, 4), "float32")
    results = [graph.tensor((3, 2), "float32"), graph.tensor((3, 2), "int32")]
    return [operand], graph.operator(
        "TOPK_V2", [operand, graph.constant([2, 3])], results, "TopKV2Options"
    )


def one_hot(graph: Graph) -> tuple[list[int], list[int]]:
    indices, result = graph.tensor((3,), "int32"), graph.tensor((3, 4), "float32")
    values = [graph.constant(value, "float32") for value in (1, 0)]
    inputs = [indices, graph.constant([4, 5]), *values]
    return [indices], graph.operator("ONE_HOT", inputs, [result], "OneHotOptions", axis=-1)


def segments(graph: Graph) -> tuple[list[int], list[int]]:
    operand, result = graph.tensor((3, 2), "float32"), graph.tensor((2, 2), "float32")
    inputs = [operand, graph.constant([0, 1, 1]), graph.constant([2, 3])]
    return [operand], graph.operator(
        "UNSORTED_SEGMENT_SUM", inputs, [result], "UnsortedSegmentSumOptions"
    )


def fully_connected(graph: Graph) -> tuple[list[int], list[int]]:
    operand, result = graph.tensor((2, 3), "float32"), graph.tensor((2, 4), "float32")
    weights, bias = graph.constant(np.ones((4, 3)), "float32"), graph.constant([1.0], "float32")
    return [operand], graph.operator(
        "FULLY_CONNECTED", [operand, weights, bias], [result], "FullyConnectedOptions"
    )


def convolution(graph: Graph) -> tuple[list[int], list[int]]:
    images, result = graph.tensor((1, 4, 4, 2), "float32"), graph.tensor((1, 4, 4, 3), "float32")
    filters = graph.constant(np.ones((3, 1, 1, 2)), "float32")
    inputs = [images, filters, graph.constant([1.0], "float32")]
    return [images], graph.operator(
        "CONV_2D", inputs, [result], "Conv2DOptions", strideW=1, strideH=1
    )


def listed(code: str, options: str, numbers: object, **fields: int) -> Build:
    """An operator of an operand of three dimensions and a constant list for its dimensions."""

    def build(graph: Graph) -> tuple[list[int], list[int]]:
        operand, result = graph.tensor((2, 4, 3), "float32"), graph.tensor((2, 4, 3), "float32")
        return [operand], graph.operator(
            code, [operand, graph.constant(numbers)], [result], options, **fields
        )

    return build


def cropped(graph: Graph) -> tuple[list[int], list[int]]:
    operand, result = graph.tensor((2, 4, 3), "float32"), graph.tensor((1, 8, 3), "float32")
    inputs = [operand, graph.constant([2]), graph.constant([[0, 0], [0, 0]])]
    return [operand], graph.operator("BATCH_TO_SPACE_ND", inputs, [result], "BatchToSpaceNDOptions")


def updated(graph: Graph) -> tuple[list[int], list[int]]:
    operand, result = graph.tensor((2, 4, 3), "float32"), graph.tensor((2, 4, 3), "float32")
    part = graph.tensor((1, 1, 1), "float32")
    inputs = [operand, part, graph.constant([1, 1])]
    return [operand, part], graph.operator(
        "DYNAMIC_UPDATE_SLICE", inputs, [result], "DynamicUpdateSliceOptions"
    )


def transposed(shape: list[int], bias: list[float]) -> Build:
    """A transposed convolution of two images to three channels, whose result has a stated shape."""

    def build(graph: Graph) -> tuple[list[int], list[int]]:
        images, result = graph.tensor((2, 4, 4, 2), "float32"), graph.tensor(shape, "float32")
        filters = graph.constant(np.ones((3, 1, 1, 2)), "float32")
        inputs = [graph.constant(shape), filters, images, graph.constant(bias, "float32")]
        return [images], graph.operator(
            "TRANSPOSE_CONV", inputs, [result], "TransposeConvOptions", 3, strideW=1, strideH=1
        )

    return build


REFUSED: Mapping[str, tuple[Build, str]] = {
    "two counts": (top_k, "has 2 elements in"),
    "two depths": (one_hot, "has 2 elements in"),
    "two numbers of segments": (segments, "has 2 elements in"),
    "two repetitions of three dimensions": (
        listed("TILE", "TileOptions", [1, 1]), r"of shape \[2\] as input 1, expected \[3\]",
    ),
    "paddings of two dimensions": (
        listed("PAD", "PadOptions", [[0, 0]] * 2),
        r"of shape \[2, 2\] as input 1, expected \[3, 2\]",
    ),
    "mirrored paddings of two dimensions": (
        listed("MIRROR_PAD", "MirrorPadOptions", [[0, 0]] * 2, mode=0),
        r"of shape \[2, 2\] as input 1, expected \[3, 2\]",
    ),
    "crops of two dimensions": (cropped, r"of shape \[2, 2\] as input 2, expected \[1, 2\]"),
    "starts of two dimensions": (updated, r"has starts of shape \[2\], expected \[3\]"),
    "one bias for rows": (fully_connected, r"of shape \[1\] to 4 channels"),
    "one bias for images": (convolution, r"of shape \[1\] to 3 channels"),
    "one bias for transposed images": (
        transposed([2, 4, 4, 3], [1.0]), r"of shape \[1\] to 3 channels",
    ),
    "a shape of other channels": (
        transposed([2, 4, 4, 5], [1.0] * 3), r"has the shape \[2, 4, 4, 5\] of its result for 2",
    ),
    "a shape of other batches": (
        transposed([1, 4, 4, 3], [1.0] * 3), r"has the shape \[1, 4, 4, 3\] of its result for 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_another_number_of_elements_is_refused(name: str) -> None:
    """LiteRT refuses them too."""
    build, message = REFUSED[name]
    graph = Graph()
    inputs, outputs = build(graph)
    data = graph.model(inputs, outputs)
    with pytest.raises(InputError, match=message):
        write_module(read_tflite(data), create_context())
    arrays = [
        np.zeros(each.shape, each.type.lower()) for each in read_tflite(data).subgraphs[0].inputs
    ]
    with pytest.raises((RuntimeError, ValueError)):
        LiteRt(data)(arrays)


def test_the_stated_shape_of_a_transposed_convolution_is_accepted() -> None:
    graph = Graph()
    inputs, outputs = transposed([2, 4, 4, 3], [1.0] * 3)(graph)
    write_module(read_tflite(graph.model(inputs, outputs)), create_context())


@pytest.mark.parametrize(
    ("ellipsis", "new_axis", "message"),
    [(1, 0, "2 slices beside the ellipsis for 2 dimensions (ellipsis_mask = 1, new_axis_mask = 0)"),
     (0, 0, "3 slices of 2 dimensions (ellipsis_mask = 0, new_axis_mask = 0)")],
)  # fmt: skip
def test_more_slices_than_dimensions_are_refused_by_the_masks(
    ellipsis: int, new_axis: int, message: str
) -> None:
    graph = Graph()
    operand, result = graph.tensor((2, 3), "float32"), graph.tensor((2, 3), "float32")
    bounds = [graph.constant([number] * 3) for number in (0, 2, 1)]
    graph.operator("STRIDED_SLICE", [operand, *bounds], [result], "StridedSliceOptions", 2,
                   ellipsisMask=ellipsis, newAxisMask=new_axis)  # fmt: skip
    with pytest.raises(SubquantError, match=re.escape(message)):
        write_module(read_tflite(graph.model([operand], [result])), create_context())


def unpacked(data: bytes) -> Any:
    return schema().ModelT.InitFromObj(schema().Model.GetRootAs(data, 0))


def packed(model: Any) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def with_one_element(data: bytes, index: int) -> bytes:
    """Return the model with the first element of an input of its first operator alone."""
    model = unpacked(data)
    (graph,) = model.subgraphs
    tensor = graph.tensors[graph.operators[0].inputs[index]]
    buffer = model.buffers[tensor.buffer]
    buffer.data = buffer.data[: len(buffer.data) // int(np.prod(tensor.shape))]
    tensor.shape = [1]
    return packed(model)


@pytest.mark.parametrize(
    ("case", "index", "expected"),
    [
        ("LSTM-plain-float32", 5, [3, 3]),
        ("LSTM-plain-float32", 13, [3]),
        ("LSTM-normed-float32", 22, [3]),
        ("LSTM-projected-float32", 16, None),
        ("LSTM-projected-float32", 17, [3]),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM-plain-int8", 14, [3]),
        ("BIDIRECTIONAL_SEQUENCE_LSTM-two-float32", 24, [3, 3]),
        ("RNN-float32", 3, [3]),
    ],
)
def test_recurrent_weights_of_one_element_are_refused(
    case: str, index: int, expected: list[int] | None
) -> None:
    """The element was taken for all cells, or for a diagonal."""
    data = with_one_element(one_case(CASES[case], np.random.default_rng(0)), index)
    with pytest.raises(InputError, match=r"of shape \[1\]") as caught:
        write_module(read_tflite(data), create_context())
    assert expected is None or str(expected) in str(caught.value)


def test_a_diagonal_of_recurrent_weights_is_refused_by_its_option() -> None:
    case = CASES["UNIDIRECTIONAL_SEQUENCE_LSTM-plain-float32"]
    data = one_case(case, np.random.default_rng(0))
    model = unpacked(data)
    model.subgraphs[0].operators[0].builtinOptions.diagonalRecurrentTensors = True
    with pytest.raises(InputError, match=r"expected \[3\] \(diagonal_recurrent_tensors = True\)"):
        write_module(read_tflite(packed(model)), create_context())
