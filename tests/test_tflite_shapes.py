"""Constants of TensorFlow Lite operators with another number of elements are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from litert import LiteRt, zeros
from subquant.dialects import create_context
from subquant.errors import InputError, SubquantError
from subquant.importers.options import ImportOptions
from subquant.importers.tflite import write_module
from subquant.importers.tflite.reading.model import read_tflite
from tflite_builder import f32, file_of, one_operator, read_object
from tflite_cases import one_case
from tflite_recurrent_cases import CASES

ONE = np.ones(1, np.float32)


def listed(name: str, options: str, numbers: object, **fields: int) -> bytes:
    """An operator of an operand of three dimensions and a constant list for its dimensions."""
    return one_operator(name, [f32(2, 4, 3), numbers], [f32(2, 4, 3)], options, **fields)


def transposed(shape: list[int], bias: int) -> bytes:
    """A transposed convolution of two images to three channels, whose result has a stated shape."""
    filters = np.ones((3, 1, 1, 2), np.float32)
    return one_operator(
        "TRANSPOSE_CONV", [shape, filters, f32(2, 4, 4, 2), np.ones(bias, np.float32)],
        [f32(*shape)], "TransposeConvOptions", 3, strideW=1, strideH=1,
    )  # fmt: skip


REFUSED: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "two counts": (
        lambda: one_operator("TOPK_V2", [f32(3, 4), [2, 3]], [f32(3, 2), ((3, 2), "int32")],
                             "TopKV2Options"),
        "has 2 elements in",
    ),
    "two depths": (
        lambda: one_operator("ONE_HOT", [((3,), "int32"), [4, 5], np.ones((), np.float32),
                                         np.zeros((), np.float32)], [f32(3, 4)], "OneHotOptions",
                             axis=-1),
        "has 2 elements in",
    ),
    "two numbers of segments": (
        lambda: one_operator("UNSORTED_SEGMENT_SUM", [f32(3, 2), [0, 1, 1], [2, 3]], [f32(2, 2)],
                             "UnsortedSegmentSumOptions"),
        "has 2 elements in",
    ),
    "two repetitions of three dimensions": (
        lambda: listed("TILE", "TileOptions", [1, 1]), r"of shape \[2\] as input 1, expected \[3\]",
    ),
    "paddings of two dimensions": (
        lambda: listed("PAD", "PadOptions", [[0, 0]] * 2),
        r"of shape \[2, 2\] as input 1, expected \[3, 2\]",
    ),
    "mirrored paddings of two dimensions": (
        lambda: listed("MIRROR_PAD", "MirrorPadOptions", [[0, 0]] * 2, mode=0),
        r"of shape \[2, 2\] as input 1, expected \[3, 2\]",
    ),
    "crops of two dimensions": (
        lambda: one_operator("BATCH_TO_SPACE_ND", [f32(2, 4, 3), [2], [[0, 0], [0, 0]]],
                             [f32(1, 8, 3)], "BatchToSpaceNDOptions"),
        r"of shape \[2, 2\] as input 2, expected \[1, 2\]",
    ),
    "starts of two dimensions": (
        lambda: one_operator("DYNAMIC_UPDATE_SLICE", [f32(2, 4, 3), f32(1, 1, 1), [1, 1]],
                             [f32(2, 4, 3)], "DynamicUpdateSliceOptions"),
        r"has starts of shape \[2\], expected \[3\]",
    ),
    "a shape of fewer elements": (
        lambda: one_operator("RESHAPE", [f32(2, 5), [1, 5]], [f32(1, 5)], "ReshapeOptions"),
        r"cannot give 10 elements the shape \[1, 5\]",
    ),
    "one bias for rows": (
        lambda: one_operator("FULLY_CONNECTED", [f32(2, 3), np.ones((4, 3), np.float32), ONE],
                             [f32(2, 4)], "FullyConnectedOptions"),
        r"of shape \[1\] to 4 channels",
    ),
    "one bias for images": (
        lambda: one_operator("CONV_2D", [f32(1, 4, 4, 2), np.ones((3, 1, 1, 2), np.float32), ONE],
                             [f32(1, 4, 4, 3)], "Conv2DOptions", strideW=1, strideH=1),
        r"of shape \[1\] to 3 channels",
    ),
    "one bias for transposed images": (
        lambda: transposed([2, 4, 4, 3], 1), r"of shape \[1\] to 3 channels",
    ),
    "a shape of other channels": (
        lambda: transposed([2, 4, 4, 5], 3), r"has the shape \[2, 4, 4, 5\] of its result for 2",
    ),
    "an update at two indices": (
        lambda: one_operator("SCATTER_ND", [np.array([[0], [2]], np.int32), f32(1, 3), [4, 3]],
                             [f32(4, 3)], "ScatterNdOptions"),
        r"has updates of \[1, 3\], expected \[2, 3\]",
    ),
    "a value at two indices": (
        lambda: one_operator("SPARSE_TO_DENSE", [np.array([[0], [2]], np.int32), [4], f32(1),
                                                 np.zeros((), np.float32)],
                             [f32(4)], "SparseToDenseOptions"),
        r"has \[1\] values for 2 indices",
    ),
    "a shape of other batches": (
        lambda: transposed([1, 4, 4, 3], 3), r"has the shape \[1, 4, 4, 3\] of its result for 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_another_number_of_elements_is_refused(name: str) -> None:
    """LiteRT refuses them too."""
    build, message = REFUSED[name]
    data = build()
    with pytest.raises(InputError, match=message):
        write_module(read_tflite(data), create_context())
    with pytest.raises((RuntimeError, ValueError)):
        LiteRt(data)(zeros(read_tflite(data)))


def test_the_stated_shape_of_a_transposed_convolution_is_accepted() -> None:
    write_module(read_tflite(transposed([2, 4, 4, 3], 3)), create_context())


@pytest.mark.parametrize(
    ("ellipsis", "new_axis", "message"),
    [(1, 0, "2 slices beside the ellipsis for 2 dimensions (ellipsis_mask = 1, new_axis_mask = 0)"),
     (0, 0, "3 slices of 2 dimensions (ellipsis_mask = 0, new_axis_mask = 0)")],
)  # fmt: skip
def test_more_slices_than_dimensions_are_refused_by_the_masks(
    ellipsis: int, new_axis: int, message: str
) -> None:
    data = one_operator(
        "STRIDED_SLICE", [f32(2, 3), [0] * 3, [2] * 3, [1] * 3], [f32(2, 3)], "StridedSliceOptions",
        2, ellipsisMask=ellipsis, newAxisMask=new_axis,
    )  # fmt: skip
    with pytest.raises(SubquantError, match=re.escape(message)):
        write_module(read_tflite(data), create_context())


def with_one_element(data: bytes, index: int) -> bytes:
    """Return the model with the first element of an input of its first operator alone."""
    model = read_object(data)
    (graph,) = model.subgraphs
    tensor = graph.tensors[graph.operators[0].inputs[index]]
    buffer = model.buffers[tensor.buffer]
    buffer.data = buffer.data[: len(buffer.data) // int(np.prod(tensor.shape))]
    tensor.shape = [1]
    return file_of(model)


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
    model = read_object(one_case(case, np.random.default_rng(0)))
    model.subgraphs[0].operators[0].builtinOptions.diagonalRecurrentTensors = True
    with pytest.raises(InputError, match=r"expected \[3\] \(diagonal_recurrent_tensors = True\)"):
        write_module(read_tflite(file_of(model)), create_context())


@pytest.mark.parametrize("case", ["LSTM-plain-float32", "RNN-float32", "SVDF-int8"])
def test_a_state_of_another_batch_is_refused(case: str) -> None:
    """The states of three elements were given to a batch of 1."""
    data = one_case(CASES[case], np.random.default_rng(0))
    with pytest.raises(InputError, match=r"has a state of shape \[3, [36]\] for a batch of 1"):
        write_module(read_tflite(data), create_context(), ImportOptions(batch="1"))
