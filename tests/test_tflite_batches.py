"""Dynamic batches of TensorFlow Lite models: operators that mix elements of a batch are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litert import drawn
from programs import share_of
from subquant.dialects import create_context
from subquant.errors import InputError, UnsupportedError
from subquant.importers.options import ImportOptions
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.input_shapes import batched_inputs
from subquant.importers.tflite.reading.model import read_tflite
from test_tflite import CASES
from tflite_builder import Graph, f32, one_operator
from tflite_cases import one_case

COUNT = 3


def write_dynamic(data: bytes) -> None:
    write_module(read_tflite(data), create_context(), ImportOptions(batch="dynamic"))


@pytest.mark.parametrize("case", share_of(CASES, 4))
def test_an_accepted_operator_computes_each_element_alone(case: str) -> None:
    """A batch in NumPy, beside its elements one by one."""
    rng = np.random.default_rng(3)
    model = read_tflite(one_case(CASES[case], rng))
    inputs, has_batch = model.subgraphs[0].inputs, batched_inputs(model.subgraphs[0])
    try:
        write_module(model, create_context(), ImportOptions(batch="dynamic"))
    except (InputError, UnsupportedError):
        return
    arrays = [
        drawn(replace(tensor, shape=(COUNT, *tensor.shape[1:])) if batched else tensor, rng)
        for tensor, batched in zip(inputs, has_batch, strict=True)
    ]
    try:
        whole = Interpreter(model, ImportOptions(batch=str(COUNT))).run(0, arrays)
    except InputError:  # an operator of one element alone
        assert case.startswith("TFLite_Detection_PostProcess")
        return
    single = Interpreter(model, ImportOptions(batch="1"))
    elements = [
        single.run(0, [x[n : n + 1] if b else x for x, b in zip(arrays, has_batch, strict=True)])
        for n in range(COUNT)
    ]
    for result, rows in zip(whole, zip(*elements, strict=True), strict=True):
        np.testing.assert_allclose(result, np.concatenate(rows), rtol=1e-4, atol=1e-4)


def after_a_move(name: str, options: str, axis: object, **values: object) -> bytes:
    """An operator behind a transposition of ``[batch, 3]`` to ``[3, batch]``."""
    graph = Graph()
    operand = graph.tensor((1, 3), "float32")
    _, [moved] = graph.apply("TRANSPOSE", [operand, [1, 0]], [f32(3, 1)], "TransposeOptions")
    inputs = [moved] if axis is None else [moved, axis]
    _, [result] = graph.apply(name, inputs, [f32(3, 1)], options, **values)
    return graph.model([operand], [result])


def times_the_batch(index: int) -> bytes:
    """The product of ``[batch, 3]`` and one of its sizes."""
    graph = Graph()
    operand = graph.tensor((1, 3), "float32")
    _, sizes = graph.apply("SHAPE", [operand], [((2,), "int32")], "ShapeOptions", outType=2)
    _, floats = graph.apply("CAST", sizes, [f32(2)], "CastOptions")
    _, size = graph.apply("GATHER", [*floats, [index]], [f32(1)], "GatherOptions")
    _, results = graph.apply("MUL", [operand, *size], [f32(1, 3)], "MulOptions")
    return graph.model([operand], results)


ALONE = "is not known to compute each element of the batch alone; give --batch a number"
IN_FRONT = "has no batch in its first dimension; give --batch a number"
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a sum over the batch": (
        lambda: one_operator("SUM", [f32(1, 3), [0]], [f32(1, 3)], "ReducerOptions", keepDims=True),
        rf"operator 0 \(SUM\) {ALONE}",
    ),
    "a softmax along the batch": (
        lambda: after_a_move("SOFTMAX", "SoftmaxOptions", None, beta=1.0),
        rf"operator 1 \(SOFTMAX\) {ALONE}",
    ),
    "a reversed batch": (
        lambda: after_a_move("REVERSE_V2", "ReverseV2Options", [1]),
        rf"operator 1 \(REVERSE_V2\) {ALONE}",
    ),
    "a reshape of a batch behind others": (
        lambda: after_a_move("RESHAPE", "ReshapeOptions", [-1, 3]), rf"\(RESHAPE\) {ALONE}",
    ),
    "a product over the batch": (
        lambda: one_operator("BATCH_MATMUL", [f32(1, 3), f32(1, 3)], [f32(3, 3)],
                             "BatchMatMulOptions", adjX=True),
        rf"\(BATCH_MATMUL\) {ALONE}",
    ),
    "the first element": (
        lambda: one_operator("STRIDED_SLICE", [f32(1, 3), [0], [1], [1]], [f32(3)],
                             "StridedSliceOptions", shrinkAxisMask=1),
        rf"\(STRIDED_SLICE\) {ALONE}",
    ),
    "a batch repeated": (
        lambda: one_operator("TILE", [f32(1, 3), [2, 1]], [f32(2, 3)], "TileOptions"),
        rf"\(TILE\) {ALONE}",
    ),
    "a product with the size of the batch": (lambda: times_the_batch(0), rf"3 \(MUL\) {ALONE}"),
    "a batch behind others": (
        lambda: one_operator("EXPAND_DIMS", [f32(1, 3), [0]], [f32(1, 1, 3)], "ExpandDimsOptions"),
        IN_FRONT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_mixes_a_batch_is_refused(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        write_dynamic(build())


def test_a_batch_is_followed_through_moves() -> None:
    """A sum over three elements behind a transposition, and a reshape that only one element has."""
    graph = Graph()
    operand = graph.tensor((1, 3), "float32")
    _, [moved] = graph.apply("TRANSPOSE", [operand, [1, 0]], [f32(3, 1)], "TransposeOptions")
    _, [total] = graph.apply("SUM", [moved, [0]], [f32(1)], "ReducerOptions")
    _, [flat] = graph.apply("RESHAPE", [operand, [3]], [f32(3)], "ReshapeOptions")
    _, [row] = graph.apply("RESHAPE", [flat, [1, 3]], [f32(1, 3)], "ReshapeOptions")
    write_dynamic(graph.model([operand], [total, row]))


def test_a_size_of_the_batch_may_be_a_shape() -> None:
    """Ones of the shape of the operand, and another dimension size than the batch."""
    write_dynamic(times_the_batch(1))
    graph = Graph()
    operand = graph.tensor((1, 3), "float32")
    _, sizes = graph.apply("SHAPE", [operand], [((2,), "int32")], "ShapeOptions", outType=2)
    _, ones = graph.apply("FILL", [*sizes, np.float32([1])], [f32(1, 3)], "FillOptions")
    _, results = graph.apply("ADD", [operand, *ones], [f32(1, 3)], "AddOptions")
    write_dynamic(graph.model([operand], results))


def test_a_reshape_that_mixes_a_batch_is_refused() -> None:
    """The shape of the file, ``[1, 2, 3]``, is one of a transposed batch of 1 alone."""
    graph = Graph()
    operand = graph.tensor((1, 2, 3), "float32")
    _, moved = graph.apply("TRANSPOSE", [operand, [1, 0, 2]], [f32(2, 1, 3)], "TransposeOptions")
    _, results = graph.apply("RESHAPE", [*moved, [1, 2, 3]], [f32(1, 2, 3)], "ReshapeOptions")
    data = read_tflite(graph.model([operand], results))
    write_module(data, create_context(), ImportOptions(batch="1"))
    message = r"1 \(RESHAPE\) gives \[2, 4, 3\] the shape \[-1, 2, 3\], which mixes elements"
    with pytest.raises(InputError, match=message):
        write_module(data, create_context(), ImportOptions(batch="4"))
