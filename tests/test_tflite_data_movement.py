"""Data movement between different scales with exact semantics: expressed values, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from litert import LiteRt, drawn
from subquant.comparison.compared_models import compare_layers, read_compared_model
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.dialects import create_context
from subquant.errors import UnsupportedError
from subquant.importers.options import ImportOptions
from subquant.importers.tflite import Interpreter, write_module
from subquant.importers.tflite.data_movement import MOVED_INPUTS
from subquant.importers.tflite.reading.model import read_tflite
from subquant.runtime import Device, Executable
from tflite_builder import Array, Graph, Quantized
from tflite_data_movement_cases import DATA_MOVEMENT, SELECTORS, add_operator, dequantized, nearest

EXACT = ImportOptions(semantics="exact")
NAMES = sorted(DATA_MOVEMENT | SELECTORS)


def compute_with_numpy(data: bytes, inputs: Sequence[Array]) -> Array:
    """Compute the first result of a model with NumPy."""
    return np.asarray(Interpreter(read_tflite(data), EXACT).run(0, inputs)[0])


def _seed(name: str) -> int:
    return sum(map(ord, name))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", NAMES)
def test_data_movement_requantizes_with_numpy(name: str, dtype: str) -> None:
    for constants in (False, True):
        graph, rng = Graph(), np.random.default_rng(_seed(name))
        inputs, outputs, storage, right = add_operator(graph, name, rng, dtype, constants)
        results = Interpreter(read_tflite(graph.model(inputs, outputs)), EXACT).run(0, storage)
        for result, expected in zip(results, right, strict=True):
            np.testing.assert_array_equal(result, expected)
            assert result.dtype == expected.dtype


@pytest.mark.parametrize("integer_only", [True, False])
def test_data_movement_requantizes_on_the_cpu(integer_only: bool, cpu: Device) -> None:
    """All of them in one program, of integers only; selectors in another one."""
    graph, rng = Graph(), np.random.default_rng(5)
    ends: list[list[Any]] = [[], [], [], []]
    for name in sorted(DATA_MOVEMENT if integer_only else SELECTORS):
        for end, more in zip(ends, add_operator(graph, name, rng, "int8", True), strict=True):
            end += more
    inputs, outputs, storage, right = ends
    options = CompileOptions(semantics="exact", integer_only=integer_only)
    function = Executable(compile_to_bytes(graph.model(inputs, outputs), options), cpu).main
    for number, (result, expected) in enumerate(zip(function(*storage), right, strict=True)):
        np.testing.assert_array_equal(np.asarray(result), expected, str(number))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", NAMES)
def test_litert_copies_or_refuses(name: str, dtype: str) -> None:
    """Between scales, as LiteRT's kernels do: equal storage, or an error in both."""
    graph, rng = Graph(), np.random.default_rng(_seed(name))
    inputs, outputs, storage, _ = add_operator(graph, name, rng, dtype, True)
    graph._codes[0].version = 2 if name == "BROADCAST_TO" else 1
    data = graph.model(inputs, outputs)
    try:
        theirs = LiteRt(data)
        theirs(storage)
    except (RuntimeError, ValueError) as error:
        if "params" not in str(error):
            pytest.skip(f"LiteRT has no kernel: {error}")
        with pytest.raises(UnsupportedError, match="of another scale"):
            Interpreter(read_tflite(data)).run(0, storage)
        return
    results = Interpreter(read_tflite(data)).run(0, storage)
    for number, result in zip(outputs, results, strict=True):
        right = theirs.tensor(number)
        np.testing.assert_array_equal(result.reshape(right.shape), right)


def test_every_data_movement_operator_has_a_case() -> None:
    assert set(MOVED_INPUTS) - {"DENSIFY"} == set(DATA_MOVEMENT)


@pytest.mark.parametrize("name", ["TRANSPOSE", "RESHAPE", "GATHER"])
def test_a_comparison_with_reals_shows_scales_that_litert_ignores(name: str) -> None:
    graph, rng = Graph(), np.random.default_rng(1)
    inputs, outputs, storage, _ = add_operator(graph, name, rng, "int8")
    model = read_compared_model(graph.model(inputs, outputs), "model.tflite")
    agreement = {}
    for semantics in ("litert", "exact"):
        options = CompileOptions(semantics=semantics)
        (layer,) = compare_layers(model, [storage], "float", options)
        agreement[semantics] = layer.equal / layer.elements
    assert agreement["exact"] == 1
    assert agreement["litert"] < 0.5


# -- parameters of several scales, and none -------------------------------------------------------


def test_a_scale_for_each_index_moves_with_its_axis(cpu: Device) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (3, 3)).astype(np.int8)
    graph, scales = Graph(), np.array([0.1, 0.02, 0.3], np.float32)
    operand = graph.tensor((3, 3), "int8", Quantized(scales.tolist(), 0, 0), weights)
    order = graph.constant([1, 0])
    # The same numbers along the same dimension, which is another one after the transposition.
    result = graph.tensor((3, 3), "int8", Quantized(scales.tolist(), 0, 0))
    more = graph.tensor((3, 3), "int8", Quantized(0.25))
    total = graph.tensor((3, 3), "int8", Quantized(0.5))
    graph.operator("TRANSPOSE", [operand, order], [result])
    graph.operator("ADD", [more, result], [total], "AddOptions", potScaleInt16=False)
    data = graph.model([more], [result, total])
    expressed = (weights * scales.astype(np.float64)[:, None]).T
    expected = np.clip(np.rint(expressed / scales[:, None]), -128, 127)
    zeros = np.zeros((3, 3), np.int8)
    np.testing.assert_array_equal(
        Interpreter(read_tflite(data), EXACT).run(0, [zeros])[0], expected
    )
    function = Executable(compile_to_bytes(data, CompileOptions(semantics="exact")), cpu).main
    np.testing.assert_array_equal(np.asarray(function(zeros)[0]), expected)


def test_zeros_like_storage_are_zero_points() -> None:
    graph = Graph()
    operand = graph.tensor((2, 3), "int8", Quantized(0.5, 3))
    result = graph.tensor((2, 3), "int8", Quantized(0.25, -7))
    graph.operator("ZEROS_LIKE", [operand], [result])
    model = read_tflite(graph.model([operand], [result]))
    storage = np.ones((2, 3), np.int8)
    assert (Interpreter(model, EXACT).run(0, [storage])[0] == -7).all()
    assert (Interpreter(model).run(0, [storage])[0] == 0).all()


def test_a_joined_activation_is_applied() -> None:
    graph, rng = Graph(), np.random.default_rng(2)
    parameters = [Quantized(0.1, 3), Quantized(0.07, -20)]
    operands = [graph.tensor((4, 3), "int8", each) for each in parameters]
    target = Quantized(0.05, -12)
    result = graph.tensor((4, 6), "int8", target)
    graph.operator("CONCATENATION", operands, [result], "ConcatenationOptions", axis=1,
                   fusedActivationFunction=3)  # fmt: skip
    model = read_tflite(graph.model(operands, [result]))
    storage = [drawn(tensor, rng) for tensor in model.subgraphs[0].inputs]
    expressed = [dequantized(each, part) for each, part in zip(storage, parameters, strict=True)]
    expected = nearest(np.clip(np.concatenate(expressed, 1), 0, 6), target, "int8")
    np.testing.assert_array_equal(Interpreter(model, EXACT).run(0, storage)[0], expected)


def test_a_cast_between_scales_keeps_the_expressed_values() -> None:
    graph, rng = Graph(), np.random.default_rng(3)
    source, target = Quantized(0.1, 3), Quantized(0.004)
    operand, result = graph.tensor((40,), "int8", source), graph.tensor((40,), "int16", target)
    graph.operator("CAST", [operand], [result], "CastOptions")
    storage = rng.integers(-128, 128, 40).astype(np.int8)
    expected = nearest(dequantized(storage, source), target, "int16")
    np.testing.assert_array_equal(
        compute_with_numpy(graph.model([operand], [result]), [storage]), expected
    )


def test_data_movement_from_integers_without_a_scale_is_refused() -> None:
    graph = Graph()
    operand = graph.tensor((2, 3), "int8")
    result = graph.tensor((6,), "int8", Quantized(0.5))
    graph.operator("RESHAPE", [operand], [result], "ReshapeOptions", newShape=[6])
    model = read_tflite(graph.model([operand], [result]))
    with pytest.raises(UnsupportedError, match=r"operator 0 \(RESHAPE\) computes integers without"):
        write_module(model, create_context(), EXACT)


# -- between graphs and variables -----------------------------------------------------------------


SIDES = [Quantized(0.1, 3), Quantized(0.05, -20), Quantized(0.08, 11), Quantized(0.12, 1)]
"""The quantizations of an operand, of the argument and the result of the graph that an operator
computes, and of the operator's result."""


def _called(name: str) -> bytes:
    """An operator that computes a graph which returns its argument transposed."""
    outer = Graph()
    inner = outer.part()
    argument = inner.tensor((2, 3), "int8", SIDES[1])
    flipped = inner.constant([1])
    value = inner.tensor((2, 3), "int8", SIDES[2])
    inner.operator("REVERSE_V2", [argument, flipped], [value])
    number = outer.called(inner, [argument], [value])
    operand = outer.tensor((2, 3), "int8", SIDES[0])
    result = outer.tensor((2, 3), "int8", SIDES[3])
    if name == "IF":
        condition = outer.tensor((), "bool")
        outer.operator("IF", [condition, operand], [result], "IfOptions",
                       thenSubgraphIndex=number, elseSubgraphIndex=number)  # fmt: skip
        return outer.model([condition, operand], [result])
    outer.operator("CALL", [operand], [result], "CallOptions", subgraph=number)
    return outer.model([operand], [result])


def _through(storage: Array, parameters: list[Quantized]) -> Array:
    for source, target in pairwise(parameters):
        storage = nearest(dequantized(storage, source), target, "int8")
    return storage


@pytest.mark.parametrize("name", ["CALL", "IF"])
def test_graphs_requantize_arguments_and_results(name: str, cpu: Device) -> None:
    data, storage = _called(name), np.arange(-60, 60, 20, dtype=np.int8).reshape(2, 3)
    inputs = [np.array(True), storage] if name == "IF" else [storage]
    expected = _through(storage, SIDES)[:, ::-1]

    np.testing.assert_array_equal(compute_with_numpy(data, inputs), expected)
    function = Executable(compile_to_bytes(data, CompileOptions(semantics="exact")), cpu).main
    np.testing.assert_array_equal(np.asarray(function(*inputs)), expected)


def test_loops_requantize_what_they_carry(cpu: Device) -> None:
    outer = Graph()
    condition, body = outer.part(), outer.part()
    counter, value = condition.tensor((), "int32"), condition.tensor((2, 3), "int8", SIDES[0])
    limit = condition.constant(2)
    verdict = condition.tensor((), "bool")
    condition.operator("LESS", [counter, limit], [verdict])
    first = outer.called(condition, [counter, value], [verdict])
    counter, value = body.tensor((), "int32"), body.tensor((2, 3), "int8", SIDES[1])
    one = body.constant(1)
    axis = body.constant([1])
    more, flipped = body.tensor((), "int32"), body.tensor((2, 3), "int8", SIDES[2])
    body.operator("ADD", [counter, one], [more], "AddOptions", potScaleInt16=False)
    body.operator("REVERSE_V2", [value, axis], [flipped])
    second = outer.called(body, [counter, value], [more, flipped])
    start = outer.constant(0)
    operand = outer.tensor((2, 3), "int8", SIDES[0])
    results = [outer.tensor((), "int32"), outer.tensor((2, 3), "int8", SIDES[3])]
    outer.operator("WHILE", [start, operand], results, "WhileOptions",
                   condSubgraphIndex=first, bodySubgraphIndex=second)  # fmt: skip
    data = outer.model([operand], [results[1]])
    storage = np.arange(-60, 60, 20, dtype=np.int8).reshape(2, 3)
    once = [SIDES[0], SIDES[1], SIDES[2]]
    expected = _through(storage, [*once, *once, SIDES[0], SIDES[3]])
    np.testing.assert_array_equal(
        Interpreter(read_tflite(data), EXACT).run(0, [storage])[0], expected
    )
    function = Executable(compile_to_bytes(data, CompileOptions(semantics="exact")), cpu).main
    np.testing.assert_array_equal(np.asarray(function(storage)), expected)


def test_variables_requantize_between_assignment_and_reading(cpu: Device) -> None:
    graph = Graph()
    handle = graph.tensor((), "int32", type_name="RESOURCE")
    operand = graph.tensor((2, 3), "int8", SIDES[0])
    result = graph.tensor((2, 3), "int8", SIDES[1])
    graph.operator("VAR_HANDLE", [], [handle], "VarHandleOptions", sharedName=b"v")
    graph.operator("ASSIGN_VARIABLE", [handle, operand], [])
    graph.operator("READ_VARIABLE", [handle], [result])
    data, storage = graph.model([operand], [result]), np.arange(6, dtype=np.int8).reshape(2, 3)
    expected = _through(storage, SIDES[:2])
    np.testing.assert_array_equal(
        Interpreter(read_tflite(data), EXACT).run(0, [storage])[0], expected
    )
    function = Executable(compile_to_bytes(data, CompileOptions(semantics="exact")), cpu).main
    np.testing.assert_array_equal(np.asarray(function(storage)), expected)
