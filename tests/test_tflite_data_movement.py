"""Data movement between different scales with exact semantics: expressed values, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from devices import compile_for
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
from tflite_builder import Array, Graph, Quantized, one_operator
from tflite_data_movement_cases import DATA_MOVEMENT, SELECTORS, add_operator, dequantized, nearest

EXACT = ImportOptions(semantics="exact")
NAMES = sorted(DATA_MOVEMENT | SELECTORS)


def compute_with_numpy(data: bytes, inputs: Sequence[Array]) -> Array:
    """Compute the first result of a model with NumPy."""
    return np.asarray(Interpreter(read_tflite(data), EXACT).run(0, inputs)[0])


def check_exactly(data: bytes, inputs: Sequence[Array], expected: Array, cpu: Device) -> None:
    """Compare the first result of a model, with NumPy and on the CPU."""
    np.testing.assert_array_equal(compute_with_numpy(data, inputs), expected)
    function = compile_for(data, cpu, semantics="exact").main
    np.testing.assert_array_equal(np.asarray(function.invoke(inputs)[0]), expected)


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
        theirs = LiteRt(data)(storage)
    except (RuntimeError, ValueError) as error:
        if "params" not in str(error):
            pytest.skip(f"LiteRT has no kernel: {error}")
        with pytest.raises(UnsupportedError, match="of another scale"):
            Interpreter(read_tflite(data)).run(0, storage)
        return
    for right, result in zip(theirs, Interpreter(read_tflite(data)).run(0, storage), strict=True):
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
        (layer,) = compare_layers(model, [storage], "float", CompileOptions(semantics=semantics))
        agreement[semantics] = layer.equal / layer.elements
    assert agreement["exact"] == 1
    assert agreement["litert"] < 0.5


# -- parameters of several scales, and none -------------------------------------------------------


def test_a_scale_for_each_index_moves_with_its_axis(cpu: Device) -> None:
    weights = np.random.default_rng(0).integers(-127, 128, (3, 3)).astype(np.int8)
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
    check_exactly(data, [np.zeros((3, 3), np.int8)], expected, cpu)


def test_zeros_like_storage_are_zero_points() -> None:
    model = read_tflite(
        one_operator("ZEROS_LIKE", [((2, 3), "int8", Quantized(0.5, 3))],
                     [((2, 3), "int8", Quantized(0.25, -7))])
    )  # fmt: skip
    storage = np.ones((2, 3), np.int8)
    assert (Interpreter(model, EXACT).run(0, [storage])[0] == -7).all()
    assert (Interpreter(model).run(0, [storage])[0] == 0).all()


def test_a_joined_activation_is_applied() -> None:
    rng, target = np.random.default_rng(2), Quantized(0.05, -12)
    parameters = [Quantized(0.1, 3), Quantized(0.07, -20)]
    model = read_tflite(one_operator(
        "CONCATENATION", [((4, 3), "int8", each) for each in parameters],
        [((4, 6), "int8", target)], "ConcatenationOptions", axis=1, fusedActivationFunction=3,
    ))  # fmt: skip
    storage = [drawn(tensor, rng) for tensor in model.subgraphs[0].inputs]
    expressed = [dequantized(each, part) for each, part in zip(storage, parameters, strict=True)]
    expected = nearest(np.clip(np.concatenate(expressed, 1), 0, 6), target, "int8")
    np.testing.assert_array_equal(Interpreter(model, EXACT).run(0, storage)[0], expected)


def test_a_cast_between_scales_keeps_the_expressed_values() -> None:
    source, target = Quantized(0.1, 3), Quantized(0.004)
    data = one_operator(
        "CAST", [((40,), "int8", source)], [((40,), "int16", target)], "CastOptions"
    )
    storage = np.random.default_rng(3).integers(-128, 128, 40).astype(np.int8)
    expected = nearest(dequantized(storage, source), target, "int16")
    np.testing.assert_array_equal(compute_with_numpy(data, [storage]), expected)


def test_data_movement_from_integers_without_a_scale_is_refused() -> None:
    result = ((6,), "int8", Quantized(0.5))
    model = read_tflite(
        one_operator("RESHAPE", [((2, 3), "int8")], [result], "ReshapeOptions", newShape=[6])
    )
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
    tensors = [((2, 3), "int8", each) for each in SIDES]
    number = outer.called(inner, *inner.apply("REVERSE_V2", [tensors[1], [1]], tensors[2:3]))
    if name == "IF":
        return outer.model(*outer.choose(((), "bool"), tensors[:1], tensors[3:], [number] * 2))
    return outer.model(*outer.apply("CALL", tensors[:1], tensors[3:], "CallOptions",
                                    subgraph=number))  # fmt: skip


def _through(storage: Array, parameters: list[Quantized]) -> Array:
    for source, target in pairwise(parameters):
        storage = nearest(dequantized(storage, source), target, "int8")
    return storage


@pytest.mark.parametrize("name", ["CALL", "IF"])
def test_graphs_requantize_arguments_and_results(name: str, cpu: Device) -> None:
    data, storage = _called(name), np.arange(-60, 60, 20, dtype=np.int8).reshape(2, 3)
    inputs = [np.array(True), storage] if name == "IF" else [storage]
    check_exactly(data, inputs, _through(storage, SIDES)[:, ::-1], cpu)


def test_loops_requantize_what_they_carry(cpu: Device) -> None:
    outer = Graph()
    condition, body = outer.part(), outer.part()
    counter, tensors = ((), "int32"), [((2, 3), "int8", each) for each in SIDES]
    value = condition.tensor(*tensors[0])
    [count], verdict = condition.apply("LESS", [counter, np.array(2, np.int32)], [((), "bool")])
    first = outer.called(condition, [count, value], verdict)
    [count], [more] = body.apply("ADD", [counter, np.array(1, np.int32)], [counter], "AddOptions",
                                 potScaleInt16=False)  # fmt: skip
    [value], [flipped] = body.apply("REVERSE_V2", [tensors[1], [1]], tensors[2:3])
    second = outer.called(body, [count, value], [more, flipped])
    operands, results = outer.apply(
        "WHILE", [np.array(0, np.int32), tensors[0]], [counter, tensors[3]], "WhileOptions",
        condSubgraphIndex=first, bodySubgraphIndex=second,
    )  # fmt: skip
    data = outer.model(operands, results[1:])
    storage = np.arange(-60, 60, 20, dtype=np.int8).reshape(2, 3)
    once = [SIDES[0], SIDES[1], SIDES[2]]
    check_exactly(data, [storage], _through(storage, [*once, *once, SIDES[0], SIDES[3]]), cpu)


def test_variables_requantize_between_assignment_and_reading(cpu: Device) -> None:
    graph = Graph()
    handle = graph.tensor((), "int32", type_name="RESOURCE")
    operand = graph.tensor((2, 3), "int8", SIDES[0])
    result = graph.tensor((2, 3), "int8", SIDES[1])
    graph.operator("VAR_HANDLE", [], [handle], "VarHandleOptions", sharedName=b"v")
    graph.operator("ASSIGN_VARIABLE", [handle, operand], [])
    graph.operator("READ_VARIABLE", [handle], [result])
    data, storage = graph.model([operand], [result]), np.arange(6, dtype=np.int8).reshape(2, 3)
    check_exactly(data, [storage], _through(storage, SIDES[:2]), cpu)
