"""ONNX's own tests of quantized operators, and refused models.

ONNX's tests give inputs and results of each operator; inputs are arguments here, scales and zero
points among them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from command_line import call, fail, succeed
from devices import ON_DEVICES
from onnx_models import MICROSOFT, computed, model, node, node_tests, plain, text_of
from onnx_runtime import DeviceShare
from subquant.compiler.reading import parse_file
from subquant.dialects import create_context
from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.importers.onnx.reading.reader import read_onnx
from subquant.runtime import Device

OPERATORS = frozenset(
    ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger",
     "QLinearMatMul", "QLinearConv")
)  # fmt: skip


NODE_TESTS = node_tests(*(each.lower() for each in OPERATORS), operators=OPERATORS)
NAMES = sorted(NODE_TESTS)


def test_onnx_has_45_tests_of_quantized_operators() -> None:
    assert len(NAMES) == 45


def assert_results(results: list[Any], expected: list[Any]) -> None:
    assert len(results) == len(expected)
    for actual, reference in zip(results, map(plain, expected), strict=True):
        assert np.asarray(actual).dtype == reference.dtype
        np.testing.assert_array_equal(actual, reference)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_computes_what_onnx_says(name: str) -> None:
    case = NODE_TESTS[name]
    for inputs, expected in case.data_sets:
        assert_results(computed(case.model, None, *map(plain, inputs)), expected)


ON_DEVICE = DeviceShare(NAMES, 5, lambda name: NODE_TESTS[name].model)


@ON_DEVICES
@pytest.mark.parametrize("name", ON_DEVICE.names)
def test_devices_compute_what_onnx_says(name: str, device: Device) -> None:
    for inputs, expected in NODE_TESTS[name].data_sets:
        assert_results(ON_DEVICE.results(name, device, map(plain, inputs)), expected)


def one(operator: str, type_: str = "FLOAT", **attributes: Any) -> onnx.ModelProto:
    nodes = [node("Identity", ["x"], ["y"]), node(operator, ["y"], ["z"], **attributes)]
    return model(nodes, {"x": (type_, (2, 3))}, {"z": (type_, (2, 3))}, {})


def read(path: Path, proto: onnx.ModelProto) -> Any:
    """Write a model to a file, and read it."""
    path.write_bytes(proto.SerializeToString())
    return read_onnx(path.read_bytes(), str(path))


def changed(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    proto = one("Relu")
    change(proto)
    return proto


def external(**entries: str) -> onnx.ModelProto:
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": ("FLOAT", (2,))}, {"y": ("FLOAT", (2,))},
                  {"w": np.ones(2, np.float32)})  # fmt: skip
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def with_function() -> onnx.ModelProto:
    """A model whose function has the name of an operator: ONNX does not say which is meant."""
    proto = one("Relu")
    opsets = [onnx.helper.make_opsetid("", 21)]
    body = [onnx.helper.make_node("Neg", ["a"], ["b"])]
    proto.functions.append(onnx.helper.make_function("", "Relu", ["a"], ["b"], body, opsets))
    return proto


def test_defaults_of_a_function_are_not_those_of_its_operators() -> None:
    """A call states only attributes that differ from the defaults of the function."""
    inner = node("LeakyRelu", ["a"], ["b"])
    alpha = inner.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    alpha.ref_attr_name = "slope"
    opsets = [onnx.helper.make_opsetid("", 21)]
    default = [onnx.helper.make_attribute("slope", 0.5)]
    function = onnx.helper.make_function("own", "F", ["a"], ["b"], [inner], opsets, [], default)
    calls = [node("own.F", ["x"], ["y"]), node("own.F", ["x"], ["z"], slope=0.25)]
    floats = ("FLOAT", (2,))
    proto = model(calls, {"x": floats}, {"y": floats, "z": floats}, {})
    proto.functions.append(function)
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    y, z = computed(proto, None, np.float32([-4, 3]))
    assert (y.tolist(), z.tolist()) == ([-2, 3], [-1, 3])


def test_functions_of_another_operator_set_are_refused() -> None:
    opsets = [onnx.helper.make_opsetid("", 11)]
    function = onnx.helper.make_function(
        "own", "F", ["a"], ["b"], [node("Softmax", ["a"], ["b"], axis=1)], opsets
    )
    floats = ("FLOAT", (2, 3, 4))
    proto = model([node("own.F", ["x"], ["y"])], {"x": floats}, {"y": floats}, {})
    proto.functions.append(function)
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    with pytest.raises(UnsupportedError, match="function 'F' of operator set 11, and the model im"):
        computed(proto, None, np.zeros((2, 3, 4), np.float32))


def test_an_attribute_that_a_caller_lacks_is_the_default_of_the_function_called() -> None:
    """G passes its attribute on to F, whose default counts where G got none."""
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("own", 1)]

    def with_reference(op: str, name: str, referred: str) -> onnx.NodeProto:
        call = node(op, ["a"], ["b"])
        call.attribute.add(name=name, type=onnx.AttributeProto.FLOAT).ref_attr_name = referred
        return call

    f = onnx.helper.make_function(
        "own", "F", ["a"], ["b"], [with_reference("LeakyRelu", "alpha", "slope")], opsets, [],
        [onnx.helper.make_attribute("slope", 0.5)],
    )  # fmt: skip
    g = onnx.helper.make_function(
        "own", "G", ["a"], ["b"], [with_reference("own.F", "slope", "outer")], opsets, ["outer"]
    )
    calls = [node("own.G", ["x"], ["y"]), node("own.G", ["x"], ["z"], outer=0.25)]
    floats = ("FLOAT", (2,))
    proto = model(calls, {"x": floats}, {"y": floats, "z": floats}, {})
    proto.functions.extend([f, g])
    proto.opset_import.append(opsets[1])
    y, z = computed(proto, None, np.float32([-4, 3]))
    assert (y.tolist(), z.tolist()) == ([-2, 3], [-1, 3])


def remainder(opset: int) -> onnx.ModelProto:
    """Mod of floats without ``fmod``."""
    floats = ("FLOAT", (2,))
    return model([node("Mod", ["x", "x"], ["y"])], {"x": floats}, {"y": floats}, {}, opset)


@pytest.mark.parametrize(
    ("proto", "kind", "message"),
    [
        (changed(lambda m: m.graph.initializer.add(
            name="w", data_type=onnx.TensorProto.INT4, dims=[3], raw_data=bytes(3))), InputError,
         "tensor 'w' has 3 bytes, expected 2"),
        (with_function(), UnsupportedError, "has a function with the name of the operator 'Relu'"),
        (one("ReduceMax", keepdims=2), InputError,
         "node 1 (ReduceMax) 'the ReduceMax' has the attribute 'keepdims' = 2, expected 0 or 1"),
        (changed(lambda m: m.__setattr__("ir_version", 99)), UnsupportedError,
         "is of version 99 of the format (ir_version), and onnx "),
        (changed(lambda m: m.graph.value_info.append(
            onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2]))), InputError,
         "declares the type INT64 of 'y' (value_info), and computes FLOAT"),
        (model([node("Relu", ["x"], ["y"]), node("Clip", ["y", "a"], ["z"])],
               {"x": ("FLOAT", (2,))}, {"z": ("FLOAT", (2,))}, {"a": np.zeros((), np.int32)}),
         InputError, "node 1 (Clip) 'the Clip' has input 1 ('min') of the type INT32, expected "
         "FLOAT, the type of input 0 ('input')"),
        (model([node("RNN", ["x", "w", "w", "", "n"], ["y"], hidden_size=2)],
               {"x": ("FLOAT", (3, 1, 2))}, {"y": ("FLOAT", (3, 1, 1, 2))},
               {"w": np.zeros((1, 2, 2), np.float32), "n": np.ones(1, np.float32)}),
         InputError, "node 0 (RNN) 'the RNN' has input 4 ('sequence_lens') of the type FLOAT, "
         "expected INT32"),
        (model([node("Concat", ["x", "w"], ["y"], axis=0)], {"x": ("FLOAT", (2,))},
               {"y": ("FLOAT", (4,))}, {"w": np.zeros((1, 2), np.float32)}), InputError,
         "node 0 (Concat) 'the Concat' joins tensors of the shapes [2], [1, 2] along axis 0"),
        (changed(lambda m: m.opset_import.add(domain="ai.onnx", version=7)), InputError,
         "imports the operator sets 21 and 7 of the domain 'ai.onnx', expected one of them"),
        (model([node("Gather", ["x", "i"], ["y"])], {"x": ("FLOAT", (2,))}, {"y": ("FLOAT", (1,))},
               {"i": np.array([2])}), InputError,
         "node 0 (Gather) 'the Gather' gathers beyond the 2 elements of axis 0"),
        (remainder(21), UnsupportedError,
         "node 0 (Mod) 'the Mod' has fmod = 0 and floats in operator set 21, expected 1"),
        (one("Celu", alpha=[1]), InputError, "node 1 (Celu) 'the Celu' is not valid: "),
        (one(f"{MICROSOFT}.Inverse"), UnsupportedError,
         "node 1 (com.microsoft.Inverse) 'the Inverse' is not lowered; export the model with "
         "ONNX's own operators, not those of 'com.microsoft'"),
        (changed(lambda m: (
            m.opset_import.add(domain=f"{MICROSOFT}.nchwc", version=1),
            m.graph.node[1].CopyFrom(node(f"{MICROSOFT}.nchwc.Conv", ["y"], ["z"])))),
         UnsupportedError,
         "node 1 (com.microsoft.nchwc.Conv) 'the Conv' is not lowered: ONNX Runtime writes it"),
        (one("QuantizeLinear"), InputError, "node 1 (QuantizeLinear) 'the QuantizeLinear' is not "),
        (changed(lambda m: m.graph.node.pop(0)), InputError,
         "node 0 (Relu) 'the Relu' reads 'y', which nothing computed before"),
        (changed(lambda m: m.graph.node[1].output.__setitem__(0, "y")), InputError,
         "node 1 (Relu) 'the Relu' computes 'y' once more"),
        (changed(lambda m: m.opset_import[0].__setattr__("version", 99)), UnsupportedError,
         "is of operator set 99"),
        (changed(lambda m: m.graph.output[0].__setattr__("name", "?")), InputError,
         "has the result '?', which nothing computes"),
        (one("Identity", "STRING"), UnsupportedError, "tensor 'x' is of type STRING"),
        (external(location="../w"), InputError, "tensor 'w' is said to be in '../w'"),
        (external(location="/etc/passwd"), InputError, "tensor 'w' is said to be in '/etc/passwd'"),
        *(
            (external(location=name), InputError, f"tensor 'w' is said to be in '{name}', expected")
            for name in ("d/../../w", "d/..", "/w", "C:w", "d\\w", "..", ".", "out", "far/w", "")
        ),
        (changed(lambda m: m.graph.input.append(m.graph.input[0])), InputError,
         "has two inputs of the name 'x'"),
        (changed(lambda m: m.graph.initializer.extend(
            [onnx.numpy_helper.from_array(np.zeros(2, np.float32), "c")] * 2)), InputError,
         "has two constants of the name 'c'"),
        (external(location="w", foo="1"), UnsupportedError,
         "tensor 'w' has the key 'foo' of external data, expected one of: location, offset, "),
        (external(location="w", checksum="00"), InputError,
         "the file 'w' has the SHA-1 05fe405753166f125559e7c9ac558654f107c7e9, expected '00'; "),
        (external(location="w", offset="8"), InputError, "tensor 'w' ends at byte 16 of 'w'"),
        (external(location="w", offset="-1"), InputError, "tensor 'w' takes '' bytes from '-1'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_refusals_name_the_place(
    proto: onnx.ModelProto, kind: type[SubquantError], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    (tmp_path / "w").write_bytes(bytes(8))
    (tmp_path / "d").mkdir()
    (tmp_path / "out").symlink_to(tmp_path.parent)
    (tmp_path / "far").symlink_to(tmp_path.parent)
    with pytest.raises(kind) as caught:
        parse_file(path, create_context())
    assert str(caught.value).startswith(f"{path}: error: {message}")
    assert "\n" not in str(caught.value)


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(np.array([7, 2, 3], np.float32).tobytes())
    digest = hashlib.sha1((tmp_path / "w").read_bytes()).hexdigest()
    entries = {"location": "w", "offset": "4", "length": "8", "checksum": digest.upper()}
    actual = read(tmp_path / "model.onnx", external(**entries))
    np.testing.assert_array_equal(actual.constants["w"].data, [2, 3])


def test_external_data_below_the_model(tmp_path: Path) -> None:
    """In folders; by links that stay; and in a cache, where the model is a link as well."""
    numbers = np.array([2, 3], np.float32)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "m/d/e").mkdir(parents=True)
    (tmp_path / "m/d/e/w").write_bytes(numbers.tobytes())
    (tmp_path / "m/link").symlink_to("d/e")
    (tmp_path / "blobs/1").write_bytes(numbers.tobytes())
    (tmp_path / "m/w").symlink_to("../blobs/1")
    (tmp_path / "m/cached.onnx").symlink_to("../blobs/2")
    for name, file in (("d/e/w", "model"), ("./d/e/w", "model"), ("link/w", "model"),
                       ("w", "cached")):  # fmt: skip
        actual = read(tmp_path / f"m/{file}.onnx", external(location=name))
        np.testing.assert_array_equal(actual.constants["w"].data, numbers)
    for name in ("d", "none/w"):
        with pytest.raises(InputError, match=f"cannot read '{tmp_path}/m/{name}': "):
            read(tmp_path / "m/cached.onnx", external(location=name))
    with pytest.raises(InputError, match="without a link that leaves it"):
        read(tmp_path / "m/model.onnx", external(location="w"))


def test_a_model_from_a_stream_has_no_external_data() -> None:
    with pytest.raises(InputError, match="beside a model that is no file"):
        read_onnx(external(location="w").SerializeToString())


def test_damage_is_an_error_or_another_model() -> None:
    """Mutated bytes: our errors only."""
    rng = np.random.default_rng(0)
    whole = model(
        [node("MatMul", ["x", "w"], ["y"])], {"x": ("FLOAT", (2, 8))}, {"y": ("FLOAT", (2, 4))},
        {"w": np.ones((8, 4), np.float32)},
    ).SerializeToString()  # fmt: skip
    read = refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
        try:
            read_onnx(bytes(data))
            read += 1
        except SubquantError:
            refused += 1
    assert read > 100
    assert refused > 100


@pytest.mark.parametrize("zero_points", ["none", "packed", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("depth", "is_shuffled"), [(64, False), (75, False), (75, True)],
    ids=["whole", "ragged", "shuffled"],
)  # fmt: skip
@ON_DEVICES
@pytest.mark.share(54)
def test_matmul_nbits(
    bits: int, zero_points: str, depth: int, is_shuffled: bool, device: Device
) -> None:
    """Against f64: sums of `depth` products of f32, whose reals are exact within one rounding."""
    rng = np.random.default_rng(bits)
    features, size = 24, 32
    blocks = -(-depth // size)
    codes = rng.integers(0, 1 << bits, (features, blocks * size))
    scales = rng.uniform(0.01, 0.1, (features, blocks)).astype(np.float32)
    zeros = np.full((features, blocks), 1 << (bits - 1), np.float64)
    constants = {"b": packed(codes, bits).reshape(features, blocks, -1), "s": scales}
    inputs = ["x", "b", "s"]
    if zero_points == "packed":
        zeros = rng.integers(0, 1 << bits, (features, blocks))
        constants["z"] = packed(zeros, bits)
    elif zero_points == "floats":
        zeros = rng.uniform(0, (1 << bits) - 1, (features, blocks)).astype(np.float32)
        constants["z"] = zeros
    inputs.append("" if zero_points == "none" else "z")
    groups = np.arange(depth) // size
    if is_shuffled:
        groups = constants["g"] = rng.permutation(groups).astype(np.int32)
        inputs.append("g")
    proto = model(
        [node(f"{MICROSOFT}.MatMulNBits", inputs, ["y"], K=depth, N=features, bits=bits,
              block_size=size, weight_prepacked=0)],
        {"x": ("FLOAT", (3, depth))}, {"y": ("FLOAT", (3, features))}, constants,
    )  # fmt: skip
    x = rng.normal(size=(3, depth)).astype(np.float32)
    reals = (codes[:, :depth] - zeros.astype(np.float64)[:, groups]) * scales.astype(np.float64)[
        :, groups]  # fmt: skip
    expected = x.astype(np.float64) @ reals.T
    bound = np.abs(x).astype(np.float64) @ np.abs(reals).T
    if zero_points == "floats":  # storage * scale and zero point * scale are rounded before
        bound += np.abs(x).astype(np.float64).sum() * (1 << bits) * 0.1
    (result,) = computed(proto, device, x)
    assert (np.abs(result - expected) <= (depth + 4) * 2.0**-24 * bound).all()


def packed(codes: Any, bits: int) -> Any:
    """Integers in bytes, the lowest bits first; rows are filled with 0."""
    count = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % count))).reshape(len(codes), -1, count)
    return (padded << (bits * np.arange(count))).sum(-1).astype(np.uint8)


def four_bits(*more: str) -> onnx.ModelProto:
    """A MatMulNBits of zeros, with further inputs."""
    constants = {"b": np.zeros((8, 2, 16), np.uint8), "s": np.ones((8, 2), np.float32),
                 "g": np.zeros(64, np.int32)}  # fmt: skip
    nodes = [node(f"{MICROSOFT}.MatMulNBits", ["x", "b", "s", *more], ["y"], K=64, N=8, bits=4,
                  block_size=32)]  # fmt: skip
    return model(nodes, {"x": ("FLOAT", (1, 64))}, {"y": ("FLOAT", (1, 8))}, constants)


def test_the_packed_weight_is_a_block_contraction() -> None:
    """The fusion finds its dequantization, with 4 bits of storage."""
    text = text_of(four_bits())
    assert "subquant.dequantize" in text
    assert "tensor<8x64xi4>" in text
    with pytest.raises(UnsupportedError, match="has a g_idx with blocks of other sizes than 32"):
        text_of(four_bits("", "g"))


def test_inspect_lists_nodes_and_what_would_be_refused(in_temporary_folder: Path) -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("MatMulInteger", ["b", "c"], ["d"]),
        onnx.helper.make_node("RandomUniformLike", ["a"], ["e"]),
    ]
    floats = ("FLOAT", [2, 3])
    inputs = {"x": floats, "b": ("UINT8", [2, 3]), "c": ("UINT8", [3, 4])}
    proto = model(nodes, inputs, {"d": ("INT32", [2, 4]), "a": floats}, {}, 13)
    Path("m.onnx").write_bytes(proto.SerializeToString())
    actual = json.loads(succeed("inspect", "m.onnx", "--json").stdout)
    operators = actual["graphs"][0]["operators"]
    assert [each["name"] for each in operators] == ["Relu", "MatMulInteger", "RandomUniformLike"]
    assert operators[1]["results"][0]["shape"] == [2, 4]
    assert operators[1]["results"][0]["type"] == "INT32"
    assert actual["signatures"][0]["inputs"] == ["x", "b", "c"]
    table = call("inspect", "m.onnx")
    assert "1 MatMulInteger" in table.output
    refused = "would be refused: operator 2 (RandomUniformLike) is not lowered"
    assert refused in table.output
    assert table.output.count("would be refused") == 1


def test_inspect_runs_the_passes_of_a_compilation(in_temporary_folder: Path) -> None:
    proto = model(
        [node("Relu", ["x"], ["a"]), node("Cos", ["a"], ["y"])],
        {"x": ("DOUBLE", (2, 3))}, {"y": ("DOUBLE", (2, 3))}, {},
    )  # fmt: skip
    Path("m.onnx").write_bytes(proto.SerializeToString())
    shown = call("inspect", "m.onnx")
    refused = "the model: 'stablehlo.cosine' computes cosine of f64 for node 1 (Cos)"
    assert refused in shown.output
    assert "computes cosine of f64 for node 1" in fail(1, "compile", "m.onnx")
