"""Extents that TensorFlow Lite models leave open, beside LiteRT's interpreter after a resize."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from command_line import succeed
from litert import LiteRt
from subquant.comparison.compared_models import compare_layers, read_compared_model
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import InputError, UsageError
from subquant.runtime import Device, Executable
from tflite_builder import Array, Graph, Quantized, f32


def frames(name: str = "x") -> bytes:
    """The mean of a convolution of ``[batch, samples]``; a shape in between is computed."""
    graph = Graph()
    operand = graph.tensor((1, 1), "float32", name=name)
    _, dimensions = graph.apply("SHAPE", [operand], [((2,), "int32")], "ShapeOptions", outType=2)
    _, target = graph.apply("CONCATENATION", [*dimensions, [1, 1]], [((4,), "int32")],
                            "ConcatenationOptions", axis=0)  # fmt: skip
    _, [images] = graph.apply("RESHAPE", [operand, *target], [f32(1, 1, 1, 1)], "ReshapeOptions")
    filters = np.random.default_rng(0).normal(size=(3, 4, 1, 1)).astype(np.float32)
    _, [convolved] = graph.apply(
        "CONV_2D", [images, filters, np.zeros(3, np.float32)], [f32(1, 1, 1, 3)], "Conv2DOptions",
        strideW=1, strideH=2, padding=1,
    )  # fmt: skip
    _, [result] = graph.apply("MEAN", [convolved, [1, 2]], [f32(1, 3)], "ReducerOptions")
    for number, signature in ((operand, [-1, -1]), (images, [-1, -1, 1, 1]),
                              (convolved, [-1, -1, 1, 3]), (result, [-1, 3])):  # fmt: skip
        graph._tensors[number].shapeSignature = signature
    return graph.model([operand], [result])


@pytest.mark.parametrize("dimensions", [("x.1=9",), ("x.1=20", "x.0=3")])
def test_any_dynamic_dimension_can_be_set(dimensions: tuple[str, ...], cpu: Device) -> None:
    options = CompileOptions(dims=dimensions)
    model = read_compared_model(frames(), "model.tflite", options.import_options)
    layers = compare_layers(model, 2, "litert", options)
    assert layers[-1].name == "MEAN"
    assert all(layer.difference < 1e-5 for layer in layers)
    function = Executable(compile_to_bytes(frames(), options), cpu).main
    ((rows,),) = model.random_calls(1, 0)
    (theirs,) = model.compute_reference([[rows]], "litert", options, None)
    key = model.tensors()[-1].key
    np.testing.assert_allclose(np.asarray(function(rows)), theirs[key], rtol=0, atol=1e-6)


def test_a_batch_and_another_dimension_go_together(cpu: Device) -> None:
    options = CompileOptions(dims=("x.1=12",), batch="2")
    function = Executable(compile_to_bytes(frames(), options), cpu).main
    assert [each.shape for each in function.signature.inputs] == [(2, 12)]


def test_errors_name_the_dynamic_dimension() -> None:
    message = (
        "operator 3 (CONV_2D) has windows of [4, 1] in images of [1, 1]; dimension 1 of the "
        "input 'x' is dynamic, and 1 by default; set it with --dim x.1=N"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        compile_to_bytes(frames())
    with pytest.raises(InputError, match=r"in images of \[2, 1\]$"):
        compile_to_bytes(frames(), CompileOptions(dims=("x.1=2",)))


@pytest.mark.parametrize("dimension", ["y.1=3", "x.2=3", "x=3"])
def test_a_dimension_that_is_not_dynamic_is_refused(dimension: str) -> None:
    name = dimension.partition("=")[0]
    with pytest.raises(UsageError, match=f"dimension is called '{name}'; (did|expected)"):
        compile_to_bytes(frames(), CompileOptions(dims=(dimension,)))


def test_the_command_line_sets_dimensions(
    in_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("model.tflite").write_bytes(frames("a=b"))
    monkeypatch.setenv("COLUMNS", "100")
    assert "set it with --dim a=b.1=N" in succeed("inspect", "model.tflite").output
    result = succeed("exec", "model.tflite", "--dim", "a=b.1=4", "--input", "1x4xf32=1,2,3,4")
    assert result.output.startswith("result[0]: 1x3xf32=")


# -- inputs that are constants --------------------------------------------------------------------


def by_rate() -> bytes:
    """The sum or the product of two quantized inputs, by whether a third is 16,000."""
    graph, parameters = Graph(), Quantized(0.5, 3)
    tensor = ((2, 3), "int8", parameters)
    numbers = [graph.branch(name, tensor) for name in ("ADD", "MUL")]
    operands = [graph.tensor((2, 3), "int8", parameters, name=name) for name in ("a", "b")]
    rate = graph.tensor((1,), "int32", name="rate")
    _, [condition] = graph.apply("EQUAL", [rate, [16000]], [((1,), "bool")], "EqualOptions")
    _, results = graph.choose(condition, operands, [tensor], numbers)
    return graph.model([operands[0], rate, operands[1]], results)


def computed_by_litert(rate: int, seed: int) -> list[Array]:
    """Two random inputs, and LiteRT's result at a rate."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-128, 128, (2, 3)).astype(np.int8) for _ in range(2))
    return [a, b, *LiteRt(by_rate())([a, np.array([rate], np.int32), b])]


@pytest.mark.parametrize("rate", [16000, 8000])
def test_an_input_value_decides_a_branch_as_in_litert(rate: int, cpu: Device) -> None:
    a, b, expected = computed_by_litert(rate, rate)
    options = CompileOptions(input_values=(f"rate={rate}",))
    assert "scf.if" not in compile_to_bytes(by_rate(), options, emit="mlir").decode()
    function = Executable(compile_to_bytes(by_rate(), options), cpu).main
    assert [each.name for each in function.signature.inputs] == ["a", "b"]
    np.testing.assert_array_equal(np.asarray(function(a, b)), expected)


def test_the_value_of_a_quantized_input_is_its_integers(cpu: Device) -> None:
    a, b, expected = computed_by_litert(16000, 5)
    value = ",".join(map(str, b.reshape(-1)))
    options = CompileOptions(input_values=("rate=16000", f"b={value}"))
    function = Executable(compile_to_bytes(by_rate(), options), cpu).main
    np.testing.assert_array_equal(np.asarray(function(a)), expected)


def test_an_input_value_goes_with_a_dynamic_batch(cpu: Device) -> None:
    options = CompileOptions(input_values=("rate=8000",), batch="dynamic")
    function = Executable(compile_to_bytes(by_rate(), options), cpu).main
    a = np.full((6, 3), 7, np.int8)
    assert np.asarray(function(a, a)).shape == (6, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rate=1.5", "expected numbers of INT32, got the value '1.5' of the input 'rate'"),
        ("rates=1", "no input is called 'rates'; did you mean 'rate'?"),
        ("a=1,2", "expected numbers for the shape [2, 3], got the value '1,2' of the input 'a'"),
        ("a=200", "expected -128 to 127, got the value '200' of the input 'a'"),
    ],
)
def test_an_input_value_that_does_not_fit(value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_to_bytes(by_rate(), CompileOptions(input_values=(value,)))
    assert message in str(caught.value)
