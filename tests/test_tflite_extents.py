"""Extents that TensorFlow Lite models leave open, beside LiteRT's interpreter after a resize."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from subquant.cli import main
from subquant.comparison.models import compare_layers, model_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.options import CompileOptions
from subquant.errors import InputError, UsageError
from subquant.runtime import Device, Executable
from tflite_builder import Graph


def frames(name: str = "x") -> bytes:
    """The mean of a convolution of ``[batch, samples]``; a shape in between is computed."""
    graph, rng = Graph(), np.random.default_rng(0)
    operand = graph.tensor((1, 1), "float32", name=name)
    graph._tensors[operand].shapeSignature = [-1, -1]
    extents = graph.tensor((2,), "int32")
    graph.operator("SHAPE", [operand], [extents], "ShapeOptions", outType=2)
    tail = graph.tensor((2,), "int32", None, np.array([1, 1], np.int32))
    target = graph.tensor((4,), "int32")
    graph.operator("CONCATENATION", [extents, tail], [target], "ConcatenationOptions", axis=0)
    images = graph.tensor((1, 1, 1, 1), "float32")
    graph._tensors[images].shapeSignature = [-1, -1, 1, 1]
    graph.operator("RESHAPE", [operand, target], [images], "ReshapeOptions")
    data = rng.normal(size=(3, 4, 1, 1)).astype(np.float32)
    filters = graph.tensor(data.shape, "float32", None, data)
    bias = graph.tensor((3,), "float32", None, np.zeros(3, np.float32))
    convolved = graph.tensor((1, 1, 1, 3), "float32")
    graph._tensors[convolved].shapeSignature = [-1, -1, 1, 3]
    graph.operator("CONV_2D", [images, filters, bias], [convolved], "Conv2DOptions", strideW=1,
                   strideH=2, padding=1)  # fmt: skip
    axes = graph.tensor((2,), "int32", None, np.array([1, 2], np.int32))
    result = graph.tensor((1, 3), "float32")
    graph._tensors[result].shapeSignature = [-1, 3]
    graph.operator("MEAN", [convolved, axes], [result], "ReducerOptions")
    return graph.model([operand], [result])


@pytest.mark.parametrize("extents", [("x.1=9",), ("x.1=20", "x.0=3")])
def test_any_open_extent_can_be_stated(extents: tuple[str, ...], cpu: Device) -> None:
    options = CompileOptions(extents=extents)
    model = model_of(frames(), "model.tflite", options.import_options)
    layers = compare_layers(model, 2, "litert", options)
    assert layers[-1].name == "MEAN"
    assert all(layer.difference < 1e-5 for layer in layers)
    function = Executable(compile_to_bytes(frames(), options), cpu).main
    ((rows,),) = model.drawn(1, 0)
    (theirs,) = model.by_reference([[rows]], "litert", options, None)
    key = model.watched()[-1].key
    np.testing.assert_allclose(np.asarray(function(rows)), theirs[key], rtol=0, atol=1e-6)


def test_a_batch_and_an_extent_go_together(cpu: Device) -> None:
    options = CompileOptions(extents=("x.1=12",), batch="2")
    function = Executable(compile_to_bytes(frames(), options), cpu).main
    assert [each.shape for each in function.signature.inputs] == [(2, 12)]


def test_errors_say_which_extent_is_open() -> None:
    message = (
        "operator 3 (CONV_2D) has windows of [4, 1] in images of [1, 1]; the input 'x' leaves "
        "dimension 1 open, which is 1 here; say it with --extent x.1=N"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        compile_to_bytes(frames())
    with pytest.raises(InputError, match=r"in images of \[2, 1\]$"):
        compile_to_bytes(frames(), CompileOptions(extents=("x.1=2",)))


@pytest.mark.parametrize("extent", ["y.1=3", "x.2=3", "x=3"])
def test_an_extent_that_is_not_open_is_refused(extent: str) -> None:
    name = extent.partition("=")[0]
    with pytest.raises(UsageError, match=f"no open extent is called '{name}'; (did|expected)"):
        compile_to_bytes(frames(), CompileOptions(extents=(extent,)))


def test_the_command_line_states_extents(in_temporary_folder: Path) -> None:
    Path("model.tflite").write_bytes(frames("a=b"))
    shown = CliRunner().invoke(main, ["inspect", "model.tflite"], env={"COLUMNS": "100"})
    assert "say it with --extent a=b.1=N" in shown.output
    result = CliRunner().invoke(main, ["exec", "model.tflite", "--extent", "a=b.1=4", "--input",
                                      "1x4xf32=1,2,3,4"])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.startswith("result[0]: 1x3xf32=")
