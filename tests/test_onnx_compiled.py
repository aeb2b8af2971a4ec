"""ONNX models from the file to the executable: what is said of them, and what goes where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from onnx_models import computed, model, node
from subquant.cli import main
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.options import CompileOptions
from subquant.errors import Remark
from subquant.formats.irpa import Archive
from subquant.numerics.element_types import ElementType
from subquant.runtime import Device, Executable


def layer(last: str = "Relu", *, is_open: bool = False) -> onnx.ModelProto:
    """A quantized product, and a function between quantize-dequantize pairs."""
    rng = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "xs": np.array(0.02, np.float32), "xz": np.array(7, np.uint8),
        "ys": np.array(0.5, np.float32), "yz": np.array(100, np.uint8),
        "ws": rng.uniform(0.01, 0.1, 48).astype(np.float32),
        "w": rng.integers(-128, 128, (64, 48)).astype(np.int8),
    }  # fmt: skip
    scale = ["xs", "xz"]
    if is_open:
        constants.pop("ys")
    nodes = [
        node("QuantizeLinear", ["x", *scale], ["xq"]),
        node("DequantizeLinear", ["xq", *scale], ["xr"]),
        node("DequantizeLinear", ["w", "ws"], ["wr"], axis=1),
        node("MatMul", ["xr", "wr"], ["p"]),
        node("QuantizeLinear", ["p", "ys", "yz"], ["q"]),
        node("DequantizeLinear", ["q", "ys", "yz"], ["r"]),
        node(last, ["r"], ["f"]),
        node("QuantizeLinear", ["f", "ys", "yz"], ["y"]),
    ]
    inputs: dict[str, tuple[str, tuple[int, ...]]] = {"x": ("FLOAT", (3, 64))}
    if is_open:
        inputs["ys"] = ("FLOAT", ())
    return model(nodes, inputs, {"y": ("UINT8", (3, 48))}, constants)


def remarks_of(proto: onnx.ModelProto) -> list[str]:
    found: list[Remark] = []
    options = CompileOptions(explain=True)
    compile_to_bytes(proto.SerializeToString(), options, emit="mlir", on_remark=found.append)
    return [str(remark).partition("remark: ")[2] for remark in found]


def test_each_quantized_node_is_explained() -> None:
    assert remarks_of(layer("Tanh")) == [
        "node 0 (QuantizeLinear) 'the QuantizeLinear' computes with floats: its input is float",
        "node 1 (DequantizeLinear) 'the DequantizeLinear' stays integers",
        "node 2 (DequantizeLinear) 'the DequantizeLinear' stays integers",
        "node 3 (MatMul) 'the MatMul' computes with integers",
        "node 4 (QuantizeLinear) 'the QuantizeLinear' computes with integers",
        "node 5 (DequantizeLinear) 'the DequantizeLinear' becomes floats for node 6 (Tanh) "
        "'the Tanh'",
        "node 6 (Tanh) 'the Tanh' computes with floats: no arithmetic of integers is known for it",
        "node 7 (QuantizeLinear) 'the QuantizeLinear' computes with floats: its input is float",
        "2 of 5 nodes with quantized operands or results compute with integers",
    ]


def test_reasons() -> None:
    assert remarks_of(layer())[-1].startswith("4 of 5 nodes")
    said = remarks_of(layer(is_open=True))
    assert (
        "node 4 (QuantizeLinear) 'the QuantizeLinear' computes with floats: a scale is an "
        "argument, or 0" in said
    )


def test_nothing_is_said_unasked() -> None:
    found: list[Remark] = []
    compile_to_bytes(layer().SerializeToString(), emit="mlir", on_remark=found.append)
    assert found == []


def test_explain_on_the_command_line(in_temporary_folder: Path) -> None:
    Path("m.onnx").write_bytes(layer("Tanh").SerializeToString())
    arguments = ["compile", "m.onnx", "--explain", "--emit", "mlir", "-o", "m.mlir"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "m.onnx: remark: node 3 (MatMul) 'the MatMul' computes with integers\n" in result.stderr


# -- parameters -----------------------------------------------------------------------------------


def test_weights_go_to_a_file(in_temporary_folder: Path, cpu: Device) -> None:
    """Under the node's name; the module has none of them; the values are the same."""
    proto = layer()
    Path("m.onnx").write_bytes(proto.SerializeToString())
    plain = CliRunner().invoke(main, ["compile", "m.onnx", "--emit", "mlir", "-o", "plain.mlir"])
    assert plain.exit_code == 0, plain.output
    arguments = ["compile", "m.onnx", "--parameters", "m.irpa"]
    result = CliRunner().invoke(main, [*arguments, "--emit", "mlir", "-o", "m.mlir"])
    assert result.exit_code == 0, result.output
    text = Path("m.mlir").read_text()
    assert '#flow.parameter.named<"model"::"' in text
    assert len(text) < len(Path("plain.mlir").read_text()) - 64 * 48
    archive = Archive("m.irpa")
    assert [name for name in archive if "MatMul" in name]
    assert sum(entry.length for entry in archive.values()) >= 64 * 48
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "wrote m.irpa (" in result.stderr
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    found = Executable("m.vmfb", cpu, {"model": "m.irpa"}).main(x)
    np.testing.assert_array_equal(found, computed(proto, None, x)[0])
    np.save("x.npy", x)
    result = CliRunner().invoke(main, ["run", "m.vmfb", "--input", "@x.npy"])
    assert "'m.vmfb' needs parameters" in result.stderr


@pytest.mark.parametrize("element", ["f16", "f32", "f64", "bf16", "i8", "i16", "i32", "i64"])
def test_constants_of_every_type(element: str, in_temporary_folder: Path, cpu: Device) -> None:
    """Equal ones are one entry; splats and small ones stay."""
    is_float = "f" in element
    numbers = [f"{n % 101 - 50}{'.5' if is_float else ''}" for n in range(1200)]
    module = f"""func.func @main(%x: tensor<1200x{element}>) -> tensor<1200x{element}> {{
      %c = stablehlo.constant dense<[{", ".join(numbers)}]> : tensor<1200x{element}>
      %d = stablehlo.constant dense<[{", ".join(numbers)}]> : tensor<1200x{element}>
      %s = stablehlo.constant dense<1{".0" if is_float else ""}> : tensor<1200x{element}>
      %0 = stablehlo.subtract %x, %c : tensor<1200x{element}>
      %1 = stablehlo.subtract %0, %d : tensor<1200x{element}>
      %2 = stablehlo.add %1, %s : tensor<1200x{element}>
      return %2 : tensor<1200x{element}>
    }}"""
    data = compile_to_bytes(module, parameters="m.irpa")
    assert list(Archive("m.irpa")) == ["constant"]
    executable = Executable(data, cpu, {"model": "m.irpa"})
    x = np.zeros(1200, ElementType.parse(element).dtype)
    expected = [1 - 2 * float(n) for n in numbers]
    np.testing.assert_array_equal(np.asarray(executable.main(x)).astype(float), expected)


def test_a_file_that_cannot_be_written(in_temporary_folder: Path) -> None:
    Path("m.onnx").write_bytes(layer().SerializeToString())
    arguments = ["compile", "m.onnx", "--emit", "mlir", "--parameters", "no/folder.irpa"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "cannot write '" in result.stderr
    result = CliRunner().invoke(main, ["compile", "m.onnx", "--parameters", "m.onnx"])
    assert result.exit_code == 2
    assert "the parameters 'm.onnx' are the input or the output too" in result.stderr


# -- external data --------------------------------------------------------------------------------


def test_a_model_in_two_files(in_temporary_folder: Path, cpu: Device) -> None:
    """Compiled, and compared with ONNX Runtime, which has all that the file names."""
    pytest.importorskip("onnxruntime")
    proto = layer()
    for number, each in enumerate(proto.graph.node):
        each.name = f"n{number}"
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    (expected,) = computed(proto, None, x)
    onnx.save(proto, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64)
    assert Path("m.data").stat().st_size >= 64 * 48
    result = CliRunner().invoke(main, ["compile", "m.onnx"])
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(Executable("m.vmfb", cpu).main(x), expected)
    compared = CliRunner().invoke(main, ["compare", "m.onnx", "--calls", "1", "--json"])
    assert compared.exit_code == 0, compared.output
    Path("m.data").unlink()
    refused = CliRunner().invoke(main, ["compare", "m.onnx", "--calls", "1"])
    assert refused.exit_code == 1
    assert "m.data" in refused.stderr
