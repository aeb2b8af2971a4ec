"""``subquant compare``: layers beside a reference."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from litert import LiteRt
from subquant.cli import main
from subquant.commands.plots import render_layers
from subquant.comparison import reference_runtimes
from subquant.comparison.compared_models import compare_layers, read_compared_model
from subquant.comparison.layers import ComparedTensor, ErrorStatistics, to_json
from subquant.errors import EnvironmentProblem, SignatureError
from subquant.importers.tflite.reading.model import read_tflite
from subquant.runtime import Device
from tflite_cases import convolution, fully_connected, one_case


def test_layers_are_equal_to_litert(cpu: Device) -> None:
    data = one_case(convolution, np.random.default_rng(2))
    (layer,) = compare_layers(read_compared_model(data, "m.tflite"), 3, device=cpu)
    assert (layer.name, layer.equal, layer.steps) == ("CONV_2D", layer.elements, 0)
    assert layer.elements == 3 * math.prod(layer.shape)
    assert math.isinf(layer.sqnr)


def test_the_ratio_of_signal_to_noise_is_that_of_the_reals() -> None:
    """The float reference in float64, against LiteRT's dequantized storage."""
    data = one_case(fully_connected, np.random.default_rng(5))
    graph = read_tflite(data).subgraphs[0]
    x, w, bias = graph.operators[0].inputs
    (y,) = graph.outputs
    assert x is not None
    assert w is not None
    assert x.quantization is not None
    assert w.quantization is not None
    assert y.quantization is not None
    compared = read_compared_model(data, "m.tflite")
    inputs = compared.random_calls(4, 0)
    (layer,) = compare_layers(compared, inputs, "float")
    theirs, signal, noise, within_half_step, greatest = LiteRt(data), 0.0, 0.0, 0, 0.0
    scale = float(y.quantization.scale)
    for (rows,) in inputs:
        theirs([rows])
        reals = (rows.astype(float) - x.quantization.zero_point) * float(x.quantization.scale)
        matrix = w.data.astype(float) * w.quantization.scales.astype(float).reshape(-1, 1)
        expected = reals @ matrix.T
        if bias is not None:
            assert bias.quantization is not None
            expected = expected + bias.data * bias.quantization.scales.astype(float)
        activation = graph.operators[0].options.fused_activation_function  # type: ignore[attr-defined]
        ends = ((-np.inf, np.inf), (0, np.inf), (-1, 1), (0, 6))[activation]
        expected = np.clip(expected, *ends)
        expressed = (theirs.tensor(y.index).astype(float) - y.quantization.zero_point) * scale
        signal += (expected**2).sum()
        noise += ((expressed - expected) ** 2).sum()
        within_half_step += int((np.abs(expressed - expected) <= scale / 2).sum())
        greatest = max(greatest, np.abs(expressed - expected).max())
    assert layer.sqnr == pytest.approx(10 * math.log10(signal / noise), abs=1e-3)
    assert layer.equal == pytest.approx(within_half_step, abs=2)  # at half a step f32 decides
    assert layer.difference == pytest.approx(greatest, rel=1e-5)
    assert layer.steps == pytest.approx(greatest / scale, rel=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "equal", "difference", "sqnr"),
    [
        ([np.inf, 1], [1, 1], 1, np.inf, -np.inf),
        ([np.nan, 1], [1, 1], 1, np.inf, -np.inf),
        ([1, 1], [np.nan, 1], 1, np.inf, -np.inf),
        ([np.inf, 1], [-np.inf, 1], 1, np.inf, -np.inf),
        ([np.inf, 1], [np.inf, 1], 2, 0, np.inf),
        ([np.nan, 1], [np.nan, 1], 2, 0, np.inf),
        ([np.inf, 9], [np.inf, 10], 1, 1, 20),
        ([2, 0], [0, 0], 1, 2, -np.inf),
    ],
)
def test_values_that_are_no_numbers(
    ours: list[float], theirs: list[float], equal: int, difference: float, sqnr: float
) -> None:
    for is_expressed in (False, True):
        statistics = ErrorStatistics(ComparedTensor("k", 0, "ABS", "t", "FLOAT32"))
        left, right = (np.array(each, np.float32) for each in (ours, theirs))
        right = right.astype(np.float64) if is_expressed else right
        statistics.add(left, right, is_expressed=is_expressed)
        layer = statistics.layer()
        assert (layer.equal, layer.difference, layer.sqnr) == (equal, difference, sqnr)
        assert json.dumps(to_json([layer]), allow_nan=False)
        shown = io.StringIO()
        Console(file=shown, width=120).print(render_layers([layer], 120))
        assert ("exact" in shown.getvalue()) == (sqnr == np.inf)
        assert "nan" not in shown.getvalue()


def test_great_integers_are_not_rounded() -> None:
    statistics = ErrorStatistics(ComparedTensor("k", 0, "ABS", "t", "INT64"))
    statistics.add(np.array([2**60, 2**60]), np.array([2**60, 2**60 + 1]), is_expressed=False)
    assert statistics.layer().equal == 1


@pytest.mark.parametrize("runtime", ["litert", "onnxruntime"])
def test_a_runtime_that_cannot_be_imported(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ai_edge_litert", "onnxruntime"):
        pytest.importorskip(name)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    monkeypatch.setitem(sys.modules, "onnx", None)

    def call(function: str, arguments: Any, blobs: Any, **_: object) -> Any:
        run = getattr(reference_runtimes, function.partition(":")[2])
        return run(arguments, blobs, lambda step: None)

    monkeypatch.setattr(reference_runtimes, "call", call)
    with pytest.raises(EnvironmentProblem, match=r"cannot be imported: import of .*; run: pip"):
        reference_runtimes.compute_in_child(runtime, b"", "m", {}, [], None)


def required_onnx() -> Any:
    """Return the package `onnx`; skip the test without it or without ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    return pytest.importorskip("onnx")


def test_onnx_beside_onnx_runtime(in_temporary_folder: Path, cpu: Device) -> None:
    """Integers equal; the float product is in another order."""
    onnx = required_onnx()
    helper = onnx.helper
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.02), "z": np.uint8(120), "ws": np.float32(0.01), "wz": np.int8(0),
        "ys": np.float32(0.05), "yz": np.uint8(7),
        # Of more bits, sums of two products saturate in ONNX Runtime on a CPU with AVX2 only.
        "w": rng.integers(-64, 65, (16, 4)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "ws", "wz", "ys", "yz"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 4])],
        [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    data = model.SerializeToString()
    Path("m.onnx").write_bytes(data)
    layers = compare_layers(read_compared_model(data, "m.onnx"), 3, device=cpu)
    assert [layer.tensor for layer in layers] == ["q", "p", "y"]
    assert all(layer.equal == layer.elements > 0 for layer in layers)
    result = CliRunner().invoke(main, ["compare", "m.onnx", "--against", "float"])
    assert result.exit_code == 2
    assert "expected a reference among onnxruntime for 'm.onnx', got 'float'" in result.output


def test_wrong_arguments_are_refused_before_anything_runs() -> None:
    data = one_case(fully_connected, np.random.default_rng(5))
    with pytest.raises(SignatureError, match="the model takes 1 argument, got 0"):
        compare_layers(read_compared_model(data, "m.tflite"), [[]])
    with pytest.raises(SignatureError, match=r"argument '.*' must be int8 of shape"):
        compare_layers(read_compared_model(data, "m.tflite"), [[np.zeros((1, 1), np.int16)]])


def test_the_command(in_temporary_folder: Path, cpu: Device) -> None:
    Path("model.tflite").write_bytes(one_case(convolution, np.random.default_rng(2)))
    run = CliRunner().invoke
    shown = run(main, ["compare", "model.tflite", "--calls", "2"])
    assert shown.exit_code == 0, shown.output
    assert "CONV_2D" in shown.output
    assert "values are equal, in 1 tensor" in shown.output
    files = ["--plot", "layers.svg", "--model-explorer", "nodes.json"]
    as_json = run(main, ["compare", "model.tflite", "--against", "float", "--json", *files])
    assert as_json.exit_code == 0, as_json.output
    (layer,) = json.loads(as_json.stdout)
    assert layer["name"] == "CONV_2D"
    assert Path("layers.svg").read_text().count("CONV_2D") == 1
    nodes = json.loads(Path("nodes.json").read_text())["main"]["results"]
    assert list(nodes) == [layer["tensor"]]
    assert nodes[layer["tensor"]]["value"] == pytest.approx(layer["sqnr"], abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["none.tflite"], 1, "error: cannot read 'none.tflite': No such file or directory"),
        (["x.mlir"], 2, "error: expected a .tflite or .onnx model, got 'x.mlir'"),
        (["x.mlir", "--plot", "x.gif"], 2, "the plot 'x.gif' must end in .svg or .png"),
    ],
)
def test_wrong_calls(
    arguments: list[str], status: int, message: str, in_temporary_folder: Path
) -> None:
    Path("x.mlir").write_text("module {}")
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert result.exit_code == status
    assert message in result.output


def test_a_model_all_of_whose_tensors_are_returned(cpu: Device) -> None:
    """IREE refuses a dispatch with several of them as results, and is asked without fusion."""
    onnx = required_onnx()
    helper = onnx.helper
    shape = [128, 384]
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "b", "b"], ["n"], axis=-1),
        helper.make_node("Softmax", ["n"], ["p"], axis=-1),
        helper.make_node("Mul", ["p", "a"], ["m"]),
        helper.make_node("ReduceSum", ["m", "axes"], ["r"], keepdims=1),
        helper.make_node("Sub", ["m", "r"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy")
    constants = [
        onnx.numpy_helper.from_array(np.ones(384, np.float32), "b"),
        onnx.numpy_helper.from_array(np.array([1]), "axes"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    layers = compare_layers(read_compared_model(model.SerializeToString(), "m.onnx"), 1, device=cpu)
    assert [layer.tensor for layer in layers] == ["a", "n", "p", "m", "r", "y"]
    assert layers[0].equal == layers[0].elements
