"""ONNX models from the file to the executable: remarks, and the calls of kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from command_line import fail, succeed
from devices import main_of
from instruction_sets import EVERY
from onnx_models import computed, model, node, text_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import Remark, SubquantError, UnsupportedError, UsageError
from subquant.formats.irpa import Archive
from subquant.numerics.element_types import ElementType
from subquant.runtime import Device, Executable


def quantized_product(
    operator: str, shape: tuple[int, ...], axis: int, rng: np.random.Generator
) -> tuple[list[Any], dict[str, Any]]:
    """Nodes and constants of a quantized product of ``x``, whose reals are ``r``."""
    constants: dict[str, Any] = {
        "xs": np.array(0.02, np.float32), "xz": np.array(7, np.uint8),
        "ys": np.array(0.5, np.float32), "yz": np.array(100, np.uint8),
        "ws": rng.uniform(0.01, 0.1, shape[axis]).astype(np.float32),
        "w": rng.integers(-128, 128, shape).astype(np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xr"]),
        node("DequantizeLinear", ["w", "ws"], ["wr"], axis=axis),
        node(operator, ["xr", "wr"], ["p"]),
        node("QuantizeLinear", ["p", "ys", "yz"], ["q"]),
        node("DequantizeLinear", ["q", "ys", "yz"], ["r"]),
    ]
    return nodes, constants


def layer(last: str = "Relu", *, is_open: bool = False) -> onnx.ModelProto:
    """A quantized product, and a function between quantize-dequantize pairs."""
    nodes, constants = quantized_product("MatMul", (64, 48), 1, np.random.default_rng(0))
    nodes += [node(last, ["r"], ["f"]), node("QuantizeLinear", ["f", "ys", "yz"], ["y"])]
    if is_open:
        constants.pop("ys")
    inputs: dict[str, tuple[str, tuple[int, ...]]] = {"x": ("FLOAT", (3, 64))}
    if is_open:
        inputs["ys"] = ("FLOAT", ())
    return model(nodes, inputs, {"y": ("UINT8", (3, 48))}, constants)


def product_with_ties(zero_point: int, ratio: float = 0.5) -> onnx.ModelProto:
    """Products of 8-bit operands, half of which are ties of the result's steps."""
    constants: dict[str, Any] = {
        "s": np.array(ratio, np.float32), "one": np.array(1, np.float32), "z": np.array(0, np.int8),
        "w": np.array([[1, -1] * 12], np.int8), "yz": np.array(zero_point, np.int8),
    }  # fmt: skip
    nodes = [node("QLinearMatMul", ["x", "s", "z", "w", "one", "z", "one", "yz"], ["y"])]
    ends = {"x": ("INT8", (256, 1))}, {"y": ("INT8", (256, 24))}
    return model(nodes, *ends, constants)


def remarks_of(proto: onnx.ModelProto) -> list[str]:
    """Return the remarks about the model's nodes, without those of passes."""
    actual: list[Remark] = []
    options = CompileOptions(explain=True)
    compile_to_bytes(proto.SerializeToString(), options, emit="mlir", on_remark=actual.append)
    node_remarks = [str(remark).partition("remark: ")[2] for remark in actual]
    return [
        remark for remark in node_remarks if "nodes with" in remark or remark.startswith("node ")
    ]


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


def test_nodes_of_floats_are_not_counted() -> None:
    """A dynamically quantized product, as ONNX Runtime writes it: its scales are floats."""
    constants: dict[str, Any] = {
        "ws": np.array(0.02, np.float32), "wz": np.array(0, np.int8),
        "w": np.random.default_rng(0).integers(-128, 128, (64, 48)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["p"]),
        node("Mul", ["s", "ws"], ["scale"]),
        node("Cast", ["p"], ["f"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["f", "scale"], ["y"]),
    ]
    ends = {"x": ("FLOAT", (3, 64))}, {"y": ("FLOAT", (3, 48))}
    assert remarks_of(model(nodes, *ends, constants)) == [
        "node 1 (MatMulInteger) 'the MatMulInteger' computes with integers",
        "1 of 1 nodes with quantized operands or results compute with integers",
    ]


def test_reasons() -> None:
    assert remarks_of(layer())[-1].startswith("4 of 5 nodes")
    node_remarks = remarks_of(layer(is_open=True))
    assert (
        "node 4 (QuantizeLinear) 'the QuantizeLinear' computes with floats: a scale is an "
        "argument, or 0" in node_remarks
    )


def test_there_are_no_remarks_without_explain() -> None:
    actual: list[Remark] = []
    compile_to_bytes(layer().SerializeToString(), emit="mlir", on_remark=actual.append)
    assert actual == []


def test_explain_on_the_command_line(in_temporary_folder: Path) -> None:
    Path("m.onnx").write_bytes(layer("Tanh").SerializeToString())
    result = succeed("compile", "m.onnx", "--explain", "--emit", "mlir", "-o", "m.mlir")
    assert "m.onnx: remark: node 3 (MatMul) 'the MatMul' computes with integers\n" in result.stderr
    kernel = "'stablehlo.dot_general' op of node 3 (MatMul) 'the MatMul' "
    assert f"m.onnx: remark: {kernel}" in result.stderr


def test_weights_go_to_a_file(in_temporary_folder: Path, cpu: Device) -> None:
    """Under the node's name; the module has none of them; the values are the same."""
    proto = layer()
    Path("m.onnx").write_bytes(proto.SerializeToString())
    succeed("compile", "m.onnx", "--emit", "mlir", "-o", "plain.mlir")
    arguments = ["compile", "m.onnx", "--parameters", "m.irpa"]
    succeed(*arguments, "--emit", "mlir", "-o", "m.mlir")
    text = Path("m.mlir").read_text()
    assert '#flow.parameter.named<"model"::"' in text
    assert len(text) < len(Path("plain.mlir").read_text()) - 64 * 48
    archive = Archive("m.irpa")
    assert [name for name in archive if "MatMul" in name]
    assert sum(entry.length for entry in archive.values()) >= 64 * 48
    assert "wrote m.irpa (" in succeed(*arguments).stderr
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    actual = Executable("m.vmfb", cpu, {"model": "m.irpa"}).main(x)
    np.testing.assert_array_equal(actual, computed(proto, None, x)[0])
    np.save("x.npy", x)
    assert "'m.vmfb' needs parameters" in fail(1, "run", "m.vmfb", "--input", "@x.npy")


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
    arguments = ("compile", "m.onnx", "--emit", "mlir", "--parameters", "no/folder.irpa")
    assert "cannot write '" in fail(1, *arguments)
    result = fail(2, "compile", "m.onnx", "--parameters", "m.onnx")
    assert "the parameters 'm.onnx' are the input or the output too" in result


@pytest.mark.long
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
    succeed("compile", "m.onnx")
    np.testing.assert_array_equal(Executable("m.vmfb", cpu).main(x), expected)
    succeed("compare", "m.onnx", "--calls", "1", "--json")
    Path("m.data").unlink()
    assert "m.data" in fail(1, "compare", "m.onnx", "--calls", "1")


def opened(shape: tuple[int | str, ...], nodes: list[Any] | None = None) -> onnx.ModelProto:
    """A model whose input has open extents: by default a product of its last axis."""
    constants = {"w": np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32)}
    nodes = nodes or [node("MatMul", ["x", "w"], ["y"])]
    outputs: dict[str, tuple[str, Any]] = {"y": ("FLOAT", None)}
    return model(nodes, {"x": ("FLOAT", shape)}, outputs, constants)


def compiled(proto: onnx.ModelProto, device: Device, **options: Any) -> Any:
    data = compile_to_bytes(proto.SerializeToString(), CompileOptions(**options))
    return Executable(data, device).main


def test_named_dimensions(cpu: Device) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    (expected,) = computed(opened((2, 3, 8)), None, x)
    proto = opened(("batch_size", "sequence", 8))
    main = compiled(proto, cpu, batch="2", dims=("sequence=3",))
    np.testing.assert_allclose(main(x), expected, rtol=1e-6)
    main = compiled(proto, cpu, dims=("batch_size=2", "sequence=3"))
    np.testing.assert_allclose(main(x), expected, rtol=1e-6)
    main = compiled(opened(("", "", 8)), cpu, dims=("x.0=2", "x.1=3"))
    np.testing.assert_allclose(main(x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (("n", "sequence", 8), {}, "the input 'x' has a dynamic dimension 1; set its size with "
         "--dim sequence=N"),
        (("n", "", 8), {}, "set its size with --dim x.1=N"),
        (("n", "sequence", 8), {"extents": ("sequenc=3",)},
         "no dynamic dimension is called 'sequenc'; did you mean 'sequence'?"),
        ((2, 8), {"extents": ("n=3",)},
         "no dynamic dimension is called 'n'; expected one of: none"),
        ((2, 8), {"batch": "3"}, "has the batch 2 in the file; --batch is for an open one"),
        ((2, 8), {"batch": "dynamic"}, "has the batch 2 in the file; --batch is for an open one"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_dimension_sizes(
    shape: tuple[int | str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SubquantError) as caught:
        compile_to_bytes(opened(shape).SerializeToString(), CompileOptions(**options), emit="mlir")
    assert message in str(caught.value)


@pytest.mark.parametrize("extent", ["n", "n=0", "=3", "n=-1", "n=x", "n=9999999999"])
def test_invalid_dimension_sizes(extent: str) -> None:
    with pytest.raises(UsageError, match="expected a dimension size as NAME=N"):
        CompileOptions(dims=(extent,))


def test_the_batch_of_some_inputs(cpu: Device) -> None:
    """Inputs that leave their first extent open have it; others keep theirs."""
    proto = model(
        [node("Mul", ["x", "s"], ["y"])],
        {"x": ("FLOAT", ("n", 4)), "s": ("FLOAT", (4,))}, {"y": ("FLOAT", ("n", 4))}, {},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for batch, n in (("3", 3), ("dynamic", 5), ("dynamic", 0)):
        x = rng.normal(size=(n, 4)).astype(np.float32)
        s = rng.normal(size=4).astype(np.float32)
        np.testing.assert_array_equal(compiled(proto, cpu, batch=batch)(x, s), x * s)


def network(last: list[Any], opset: int = 21) -> onnx.ModelProto:
    """Quantized layers of images, and nodes after them that give ``y``."""
    rng = np.random.default_rng(5)
    nodes, constants = quantized_product("Conv", (6, 3, 3, 3), 0, rng)
    constants |= {
        "shape": np.array([0, -1], np.int64), "one": np.array([1, -1], np.int64),
        "v": rng.normal(size=(96, 4)).astype(np.float32),
    }  # fmt: skip
    inputs: dict[str, tuple[str, Any]] = {"x": ("FLOAT", ("batch", 3, 6, 6))}
    return model([*nodes, *last], inputs, {"y": ("FLOAT", None)}, constants, opset)


ROWS = [node("Reshape", ["r", "shape"], ["f"]), node("MatMul", ["f", "v"], ["m"])]
ALONE = {
    "reals": [node("Relu", ["r"], ["y"])],
    "rows": [*ROWS, node("Softmax", ["m"], ["y"])],
    "two branches": [*ROWS, node("Tanh", ["m"], ["a"]), node("Concat", ["m", "a"], ["y"], axis=1)],
    "back and forth": [node("Transpose", ["r"], ["t"], perm=[1, 2, 3, 0]),
                       node("Relu", ["t"], ["u"]),
                       node("Transpose", ["u"], ["y"], perm=[3, 0, 1, 2])],
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_a_dynamic_batch(name: str, cpu: Device) -> None:
    """A dynamic batch computes as a static one of the same size."""
    proto = network(ALONE[name])
    main = compiled(proto, cpu, batch="dynamic")
    for count in (1, 4):
        x = np.random.default_rng(count).normal(size=(count, 3, 6, 6)).astype(np.float32)
        (expected,) = computed(proto, None, x)
        np.testing.assert_allclose(main(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


MIXED = {
    "softmax": ([*ROWS, node("Softmax", ["m"], ["y"], axis=0)], "node 8 (Softmax)"),
    "sum": ([*ROWS, node("Transpose", ["m"], ["t"]), node("MatMul", ["m", "t"], ["y"])],
            "node 9 (MatMul) 'the MatMul' computes 'y' of several elements"),
    "parameters": ([node("DynamicQuantizeLinear", ["r"], ["a", "s", "z"]),
                    node("DequantizeLinear", ["a", "s", "z"], ["y"])],
                   "node 6 (DynamicQuantizeLinear) 'the DynamicQuantizeLinear' computes 's'"),
    "one row": ([node("Reshape", ["r", "one"], ["y"])], "node 6 (Reshape) 'the Reshape' computes"),
    "order": ([*ROWS, node("Hardmax", ["m"], ["y"], axis=0)], "node 8 (Hardmax) 'the Hardmax'"),
    "the size": ([*ROWS, node("Shape", ["m"], ["s"]), node("Cast", ["s"], ["e"], to=1),
                  node("ReduceMin", ["e"], ["n"]), node("Mul", ["m", "n"], ["y"])],
                 "'the Mul' computes with 'n', which depends on the batch"),
    "another axis": ([node("Transpose", ["r"], ["y"], perm=[1, 0, 2, 3])],
                     "the result 'y' has no batch in its first dimension"),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_a_batch_that_is_no_loop_is_refused(name: str) -> None:
    nodes, message = MIXED[name]
    proto = network(nodes)
    with pytest.raises(UnsupportedError) as caught:
        compile_to_bytes(proto.SerializeToString(), CompileOptions(batch="dynamic"), emit="mlir")
    assert message in str(caught.value)
    assert "give --batch a number" in str(caught.value)


def test_compare_takes_dimension_sizes(in_temporary_folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    Path("m.onnx").write_bytes(opened(("batch", "sequence", 8)).SerializeToString())
    arguments = ["compare", "m.onnx", "--calls", "1", "--device", "numpy", "--json"]
    result = succeed(*arguments, "--batch", "2", "--dim", "sequence=3")
    assert json.loads(result.stdout)[0]["elements"] == 2 * 3 * 5


@pytest.mark.long
@pytest.mark.parametrize("zero_point", [np.int8(-3), np.uint8(100)])
def test_convolutions_are_rounded_where_they_are_summed(zero_point: Any) -> None:
    """The requantization is part of the kernel, and so is the reading of bytes by the next one."""
    rng = np.random.default_rng(0)
    storage = zero_point.dtype
    constants: dict[str, Any] = {
        "s": np.array(0.02, np.float32), "z": np.array(zero_point),
        "ws": rng.uniform(0.005, 0.02, 16).astype(np.float32),
        "v": rng.integers(-127, 128, (16, 8, 1, 1)).astype(np.int8),
        "w": rng.integers(-127, 128, (16, 16, 3, 3)).astype(np.int8),
        "b": rng.integers(-4000, 4000, 16).astype(np.int32),
    }  # fmt: skip
    constants["bs"] = constants["ws"] * constants["s"]
    nodes = [
        node("DequantizeLinear", ["b", "bs"], ["br"], axis=0),
        *_convolution("x", "v", "y"),
        *_convolution("y", "w", "z2", pads=[1, 1, 1, 1]),
    ]
    name = storage.name.upper()
    ends = {"x": (name, (1, 8, 9, 7))}, {"z2": (name, (1, 16, 9, 7))}
    proto = model(nodes, *ends, constants)
    lowered = compile_to_bytes(proto.SerializeToString(), emit="mlir").decode()
    program = lowered.partition("func.func @main")[2].splitlines()
    calls = [line for line in program if "flow.dispatch" in line]
    assert len(calls) >= 2
    assert all(line.endswith("xi8>") for line in calls)
    between = program[program.index(calls[0]) :]
    assert not [line for line in between if "stablehlo.xor" in line or "stablehlo.convert" in line]
    info = np.iinfo(storage)
    x = rng.integers(info.min, info.max + 1, (1, 8, 9, 7)).astype(storage)
    (expected,), (actual,) = computed(proto, None, x), computed(proto, Device("llvm-cpu"), x)
    np.testing.assert_array_equal(actual, expected)
    assert len(np.unique(actual)) > 16


def _convolution(x: str, w: str, y: str, **attributes: Any) -> list[Any]:
    return [
        node("DequantizeLinear", [x, "s", "z"], [f"{x}_r"]),
        node("DequantizeLinear", [w, "ws"], [f"{w}_r"], axis=0),
        node("Conv", [f"{x}_r", f"{w}_r", "br"], [f"{y}_c"], **attributes),
        node("QuantizeLinear", [f"{y}_c", "s", "z"], [y]),
    ]


@pytest.mark.parametrize(
    ("taps", "pads", "stride", "dilation"),
    [(1, (0, 0), 1, 1), (3, (1, 1), 1, 1), (5, (2, 0), 2, 1), (3, (2, 3), 1, 2)],
)
def test_a_convolution_of_u8_along_one_axis_has_a_kernel(
    taps: int, pads: tuple[int, int], stride: int, dilation: int, tmp_path: Path, cpu: Device
) -> None:
    """Powers of two as scales, so that float64 has every quotient exactly."""
    rng = np.random.default_rng(taps)
    x = rng.integers(0, 256, (1, 64, 50)).astype(np.uint8)
    w = rng.integers(-127, 128, (32, 64, taps)).astype(np.int8)
    scales = {"s": np.float32(2**-5), "ws": np.float32(2**-9), "ys": np.float32(0.25)}
    zeros = {"z": np.uint8(131), "wz": np.int8(0), "yz": np.uint8(120)}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node("Conv", ["xd", "wd"], ["c"], pads=pads, strides=[stride], dilations=[dilation]),
        node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    constants = {name: np.asarray(v) for name, v in {**scales, **zeros, "w": w}.items()}
    padded = np.pad(x.astype(np.int64) - 131, ((0, 0), (0, 0), pads))
    windows = np.lib.stride_tricks.sliding_window_view(padded, dilation * (taps - 1) + 1, axis=2)
    windows = windows[:, :, ::stride, ::dilation]
    totals = np.einsum("nclt,fct->nfl", windows, w.astype(np.int64))
    expected = np.clip(np.rint(totals * 2.0**-14 / 0.25 + 120), 0, 255)
    file = tmp_path / "line.onnx"
    types = {"x": ("UINT8", x.shape)}, {"y": ("UINT8", expected.shape)}
    onnx.save(model(nodes, *types, constants), file)
    remarks: list[Remark] = []
    options = CompileOptions(kernels="portable", explain=True)
    data = compile_to_bytes(file, options, on_remark=remarks.append)
    assert any("is computed by a kernel (portable)" in each.message for each in remarks)
    np.testing.assert_array_equal(Executable(data, cpu).main(x), expected)


@pytest.mark.parametrize("zero_point", [0, 3, -128, 127])
@pytest.mark.parametrize("kernels", [*EVERY, "none"])
@pytest.mark.share(32)
def test_zero_points_are_added_after_rounding(zero_point: int, kernels: str) -> None:
    """QuantizeLinear: ``saturate(round_half_even(x / scale) + zero_point)``, at every tie."""
    proto = product_with_ties(zero_point)
    assert "subquant.requantize" in text_of(proto)
    x = np.arange(-128, 128).astype(np.int8)[:, None]
    real = x * np.array([[1, -1] * 12]) * 0.5
    expected = np.clip(np.rint(real) + zero_point, -128, 127).astype(np.int8)
    assert (np.asarray(main_of(text_of(proto), kernels=kernels)(x)) == expected).all()


@pytest.mark.long
def test_fixed_point_requantization() -> None:
    """The option applies to ONNX models: ties are rounded up."""
    x = np.arange(-128, 128).astype(np.int8)[:, None]
    proto = product_with_ties(3)
    exact, fixed = (
        np.asarray(main_of(text_of(proto), requantization=form)(x))
        for form in ("exact", "fixed-point")
    )
    half_up = np.floor(x * np.array([[1, -1] * 12]) * 0.5 + 0.5) + 3
    assert (fixed == np.clip(half_up, -128, 127)).all()
    assert (exact != fixed).any()
