"""Everything that an ONNX model says is used, irrelevant, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_models import MICROSOFT, computed, end, model, node
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import SubquantError, UnsupportedError, UsageError
from subquant.importers.onnx.reading.reader import read_onnx
from subquant.importers.onnx.schemas.operator_exceptions import irrelevant_parts
from subquant.runtime import Device, Executable

X = np.array([[1.5, -2.0, 0.25]], np.float32)


def small(**attributes: Any) -> onnx.ModelProto:
    """One node of ONNX Runtime's, whose attributes no schema checks."""
    nodes = [node(f"{MICROSOFT}.QuickGelu", ["x"], ["y"], **attributes)]
    return model(nodes, {"x": ("FLOAT", X.shape)}, {"y": ("FLOAT", X.shape)}, {})


def unknown_field(message: Any) -> None:
    """Add a field with a number that no version of the format has."""
    message.MergeFromString(b"\xf8\x7f\x2a")  # field 2047, a varint


REFUSED: Mapping[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "attribute": (
        lambda proto: proto.graph.node[0].attribute.append(helper.make_attribute("beta", 2.0)),
        "node 0 (com.microsoft.QuickGelu) 'the QuickGelu' has the attribute 'beta', and the "
        "attributes of com.microsoft.QuickGelu are alpha",
    ),
    "input": (
        lambda proto: proto.graph.node[0].input.append("x"),
        "node 0 (com.microsoft.QuickGelu) 'the QuickGelu' has 2 inputs, expected 1 at most",
    ),
    "model": (unknown_field, "has the unknown field of ModelProto 'number 2047'"),
    "graph": (
        lambda proto: unknown_field(proto.graph),
        "has the unknown field of GraphProto 'number 2047'",
    ),
    "node": (
        lambda proto: unknown_field(proto.graph.node[0]),
        "node 0 (com.microsoft.QuickGelu) 'the QuickGelu' has the unknown field of NodeProto",
    ),
    "type": (
        lambda proto: unknown_field(proto.graph.input[0].type),
        "has the unknown field of TypeProto 'number 2047'",
    ),
    "overload": (
        lambda proto: setattr(proto.graph.node[0], "overload", "fast"),
        "'the QuickGelu' has the field of NodeProto 'overload' = 'fast', which subquant does not",
    ),
}


@pytest.mark.parametrize("piece", REFUSED)
def test_an_unknown_piece_is_refused_by_name(piece: str) -> None:
    proto = small(alpha=1.5)
    REFUSED[piece][0](proto)
    with pytest.raises(UnsupportedError) as caught:
        computed(proto, None, X)
    assert REFUSED[piece][1] in str(caught.value)


def test_descriptions_are_no_arithmetic() -> None:
    proto = small(alpha=1.5)
    (before,) = computed(proto, None, X)
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.doc_string = "documentation"
    proto.producer_name = "an exporter"
    np.testing.assert_array_equal(computed(proto, None, X)[0], before)


def test_each_irrelevant_part_has_a_reason() -> None:
    for operator in ("Cast", "Dropout", "QuantizeLinear", f"{MICROSOFT}.MatMulNBits"):
        assert irrelevant_parts(operator)
        assert all(each.reason for each in irrelevant_parts(operator))


_REALS: dict[str, Callable[[Any], Any]] = {
    "QLinearAdd": lambda x: x + x,
    "QLinearMul": lambda x: x * x,
    "QLinearSigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "QLinearLeakyRelu": lambda x: np.where(x < 0, x * float(np.float32(0.01)), x),
    "QLinearAveragePool": lambda x: np.lib.stride_tricks.sliding_window_view(
        x, (2, 2), (2, 3)
    ).mean((-1, -2)),
    "QLinearReduceMean": lambda x: x.mean(1, keepdims=True),
}
"""The functions of f64 that operators of ONNX Runtime round to storage."""


@pytest.mark.parametrize("type_", ["INT8", "UINT8"])
@pytest.mark.parametrize("operator", _REALS)
def test_results_without_a_zero_point_have_the_type_of_the_operands(
    operator: str, type_: str
) -> None:
    dtype = np.dtype(type_.lower())
    low = np.iinfo(dtype).min
    x = np.random.default_rng(3).integers(low, low + 256, (1, 2, 4, 4)).astype(dtype)
    constants = {name: np.array(number, np.float32) for name, number in
                 (("s", 0.05), ("t", 0.11))}  # fmt: skip
    zero = {"z": np.array(low + 120, dtype)}
    binary = ["x", "s", "z", "x", "s", "z", "t"]
    unary = ["x", "s", "z", "t"]
    attributes: dict[str, Any] = {
        "QLinearAveragePool": {"kernel_shape": [2, 2]},
        "QLinearReduceMean": {"axes": [1], "keepdims": 1},
    }.get(operator, {})
    inputs = binary if operator in ("QLinearAdd", "QLinearMul") else unary
    nodes = [node(f"{MICROSOFT}.{operator}", inputs, ["y"], **attributes)]
    reals = _REALS[operator]((x.astype(np.float64) - (low + 120)) * float(np.float32(0.05)))
    proto = model(
        nodes, {"x": (type_, x.shape)}, {"y": (type_, reals.shape)}, {**constants, **zero}
    )
    (result,) = computed(proto, None, x)
    assert result.dtype == dtype
    info = np.iinfo(dtype)
    steps = reals / float(np.float32(0.11))
    expected = np.clip(np.rint(steps), info.min, info.max)
    is_near_tie = np.abs(np.abs(steps - np.trunc(steps)) - 0.5) < 1e-4  # functions are f32
    assert (is_near_tie | (result == expected)).all()


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("operator", ["DequantizeLinear", "QuantizeLinear"])
def test_a_block_may_be_longer_than_its_axis(operator: str, size: int, cpu: Device) -> None:
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.1, 0.9, (1, 5)).astype(np.float32)
    is_to_reals = operator == "DequantizeLinear"
    x = rng.integers(-9, 9, (7, 5)).astype(np.int8) if is_to_reals else rng.normal(size=(7, 5)) * 9
    x = x if is_to_reals else x.astype(np.float32)
    constants: dict[str, Any] = {"s": scales}
    if not is_to_reals:
        constants["z"] = np.zeros((1, 5), np.int8)
    nodes = [node(operator, ["x", *constants], ["y"], axis=0, block_size=size)]
    types = ("INT8", "FLOAT") if is_to_reals else ("FLOAT", "INT8")
    proto = model(nodes, {"x": (types[0], (7, 5))}, {"y": (types[1], (7, 5))}, constants)
    if is_to_reals:
        expected = x.astype(np.float32) * scales
    else:
        expected = np.clip(np.rint(x / scales), -128, 127).astype(np.int8)
    for device in (None, cpu):
        np.testing.assert_array_equal(computed(proto, device, x)[0], expected)


def test_small_floats_in_blocks_have_zero_points() -> None:
    codes = np.arange(32, dtype=np.uint8).reshape(4, 8)
    scales = np.full((4, 2), 0.5, np.float32)
    zeros = np.full((4, 2), 60, np.uint8)
    constants = {
        name: helper.make_tensor(name, TensorProto.FLOAT8E5M2, array.shape, array.tobytes(), True)
        for name, array in (("w", codes), ("z", zeros))
    }
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1, block_size=4),
             node("Mul", ["d", "x"], ["y"])]  # fmt: skip
    proto = model(nodes, {"x": ("FLOAT", (4, 8))}, {"y": ("FLOAT", (4, 8))},
                  {**constants, "s": scales})  # fmt: skip
    x = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)

    # OCP 8-bit floating point, E5M2: 2 bits of mantissa, bias 15.
    def real(code: Any) -> Any:
        exponent, mantissa = code >> 2, code & 3
        return np.where(exponent > 0, 2.0 ** (exponent - 15.0) * (1 + mantissa / 4),
                        2.0**-14 * mantissa / 4)  # fmt: skip

    expected = (real(codes.astype(int)) - real(np.array(60))) * 0.5 * x
    np.testing.assert_allclose(computed(proto, None, x)[0], expected, rtol=1e-6)


def sparse(numbers: list[float], indices: Any) -> onnx.ModelProto:
    """A sum with a sparse constant of 2 x 3."""
    values = numpy_helper.from_array(np.array(numbers, np.float32), "w")
    positions = numpy_helper.from_array(np.array(indices, np.int64), "w_indices")
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": ("FLOAT", (2, 3))},
                  {"y": ("FLOAT", (2, 3))}, {})  # fmt: skip
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, positions, [2, 3]))
    return proto


@pytest.mark.parametrize("indices", [[1, 4], [[0, 1], [1, 1]]], ids=["flat", "by axes"])
def test_sparse_constants_are_read(indices: Any) -> None:
    proto = sparse([2.0, -3.0], indices)
    x = np.ones((2, 3), np.float32)
    expected = np.array([[1, 3, 1], [1, -2, 1]], np.float32)
    np.testing.assert_array_equal(computed(proto, None, x)[0], expected)


def test_sparse_constants_with_indices_beyond_are_refused() -> None:
    with pytest.raises(SubquantError, match="sparse tensor 'w' has 1 values and indices of shape"):
        read_onnx(sparse([2.0], [6]).SerializeToString())


def _branch(name: str, operator: str) -> onnx.GraphProto:
    return helper.make_graph([node(operator, ["x"], [name])], name, [], [end(name, "FLOAT")])


def _by_rate() -> onnx.ModelProto:
    """``x`` is negated at 16 kHz; at other rates it is sorted out by an operator of strings."""
    constants = {"rate": np.array(16000, np.int64)}
    nodes = [
        node("Equal", ["sr", "rate"], ["is_16k"]),
        node("If", ["is_16k"], ["y"], then_branch=_branch("a", "Neg"),
             else_branch=_branch("b", "RandomNormalLike")),
    ]  # fmt: skip
    inputs = {"x": ("FLOAT", (1, 3)), "sr": ("INT64", ())}
    return model(nodes, inputs, {"y": ("FLOAT", (1, 3))}, constants)


def test_an_input_value_decides_a_branch(cpu: Device) -> None:
    data = _by_rate().SerializeToString()
    with pytest.raises(UnsupportedError, match="RandomNormalLike"):
        compile_to_bytes(data, CompileOptions())
    executable = Executable(compile_to_bytes(data, CompileOptions(input_values=("sr=16000",))), cpu)
    np.testing.assert_array_equal(executable.main(X), -X)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sr=1.5", "expected numbers of INT64, got the value '1.5' of the input 'sr'"),
        ("rs=1", "no input is called 'rs'; expected one of: x, sr"),
        ("x=1,2", "expected numbers for the shape [1, 3], got the value '1,2' of the input 'x'"),
        ("sr", "expected a value as NAME=NUMBER or NAME=NUMBER,NUMBER,..., got 'sr'"),
    ],
)
def test_an_input_value_that_does_not_fit(value: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_to_bytes(_by_rate().SerializeToString(), CompileOptions(input_values=(value,)))
    assert message in str(caught.value)
