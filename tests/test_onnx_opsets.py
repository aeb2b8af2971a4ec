"""Quantized operators at each version of the operator sets, and small floats.

Each version has the attributes and types of that version of the specification, and rounds quotients
to its type. The formulas here are written with exact numbers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

from devices import ON_DEVICES
from onnx_models import computed, model, node, node_tests, plain
from onnx_runtime import DeviceShare
from subquant.errors import SubquantError, UnsupportedError
from subquant.runtime import Device

NEWEST = defs.onnx_opset_version()
FLOATS = {
    "FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16,
    "DOUBLE": np.float64,
}  # fmt: skip
RANGES = {
    "INT2": (-2, 1), "UINT2": (0, 3), "INT4": (-8, 7), "UINT4": (0, 15), "INT8": (-128, 127),
    "UINT8": (0, 255), "INT16": (-32768, 32767), "UINT16": (0, 65535),
    "INT32": (-(2**31), 2**31 - 1),
}  # fmt: skip


def tensor(name: str, type_: str, values: Any) -> TensorProto:
    array = np.asarray(values)
    return helper.make_tensor(
        name, getattr(TensorProto, type_), array.shape, array.reshape(-1).tolist()
    )


def written(
    nodes: list[Any], x: tuple[str, Any], y: tuple[str, Any], constants: list[Any], opset: int
) -> onnx.ModelProto:
    return model(nodes, {"x": x}, {"y": y}, {each.name: each for each in constants}, opset)


def types_of(operator: str, opset: int, number: int) -> list[str]:
    """The types that an input may have, ONNX's names."""
    schema = defs.get_schema(operator, opset)
    parameter = schema.inputs[number].type_str
    for each in schema.type_constraints:
        if each.type_param_str == parameter:
            names = each.allowed_type_strs
            break
    else:
        names = [parameter]
    return [name[len("tensor(") : -1].upper() for name in names]


VERSIONS = [10, 11, 13, 17, 19, 21, 23, 24, 25, NEWEST]


def cases(operator: str) -> list[tuple[int, str]]:
    """Each version with each integer type that it has."""
    number = 2 if operator == "QuantizeLinear" else 0
    return [
        (opset, type_)
        for opset in VERSIONS
        for type_ in types_of(operator, opset, number)
        if type_ in RANGES
    ]


def test_versions_are_all_that_there_are() -> None:
    """A newer operator set has changes to read: add it here with cases for its changes."""
    assert NEWEST == 28
    versions = {
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if schema.name in ("QuantizeLinear", "DequantizeLinear") and not schema.domain
    }
    assert versions <= set(VERSIONS)


@pytest.mark.parametrize(("opset", "type_"), cases("QuantizeLinear"))
def test_quantize_linear(opset: int, type_: str) -> None:
    """Per tensor, along an axis from 13 on, in blocks from 21 on; the zero point after rounding."""
    low, high = RANGES[type_]
    rng = np.random.default_rng(opset)
    x = np.concatenate([rng.normal(size=20) * 4, [0.5, 1.5, -0.5, 1e9, -1e9, np.inf]])
    x = x.astype(np.float32).reshape(2, 13)
    layouts: list[tuple[Any, Any, dict[str, int]]] = [(np.float32(0.5), low + 1, {})]
    if opset >= 13:
        layouts.append((np.float32([0.5, 0.25]), [low, high], {"axis": 0}))
        layouts.append((np.full(13, 0.5, np.float32), [high] * 13, {"axis": -1}))
    if opset >= 21:
        scales = rng.uniform(0.2, 0.9, (2, 4)).astype(np.float32)
        zeros = rng.integers(low, high, (2, 4), endpoint=True)
        layouts.append((scales, zeros, {"axis": 1, "block_size": 4}))
    for scale, zero, attributes in layouts:
        constants = [tensor("s", "FLOAT", scale), tensor("z", type_, zero)]
        nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"], **attributes)]
        proto = written(nodes, ("FLOAT", (2, 13)), (type_, (2, 13)), constants, opset)
        (actual,) = computed(proto, None, x)
        for (row, column), value in np.ndenumerate(x):
            index: tuple[int, ...] = ()
            if "block_size" in attributes:
                index = (row, column // 4)
            elif attributes:
                index = (row if attributes["axis"] == 0 else column,)
            offset = int(np.asarray(zero)[index])
            if np.isinf(value):
                reference = high
            else:
                ratio = Fraction(float(value)) / Fraction(float(np.asarray(scale)[index]))
                reference = round(ratio) + offset  # exact, ties to even
            assert actual[row, column] == min(max(reference, low), high)


@pytest.mark.parametrize(("opset", "type_"), cases("DequantizeLinear"))
def test_dequantize_linear(opset: int, type_: str) -> None:
    """``(x - zero_point) * scale``: exact here, since scales are powers of two."""
    low, high = RANGES[type_]
    values = np.arange(26).reshape(2, 13) % (min(high - low, 50) + 1) + max(low, -25)
    layouts: list[tuple[Any, Any, dict[str, int]]] = [(np.float32(0.5), low + 1, {})]
    if opset >= 13:
        layouts.append((np.float32([0.5, 0.25]), [1, 0], {"axis": 0}))
    if opset >= 21:
        scales = (2.0 ** np.arange(8)).reshape(2, 4)
        layouts.append((scales, np.ones((2, 4), int), {"axis": 1, "block_size": 4}))
    if type_ == "INT32":
        layouts = [(scale, np.zeros_like(zero), rest) for scale, zero, rest in layouts]
    for scale, zero, attributes in layouts:
        constants = [tensor("s", "FLOAT", scale), tensor("z", type_, zero)]
        constants.append(tensor("q", type_, values))
        nodes = [node("DequantizeLinear", ["q", "s", "z"], ["r"], **attributes),
                 node("Add", ["r", "x"], ["y"])]  # fmt: skip
        proto = written(nodes, ("FLOAT", (1,)), ("FLOAT", (2, 13)), constants, opset)
        (actual,) = computed(proto, None, np.zeros(1, np.float32))
        planes = [np.asarray(plane, np.float64) for plane in (scale, zero)]
        if "block_size" in attributes:
            planes = [np.repeat(plane, 4, 1)[:, :13] for plane in planes]
        elif attributes:
            planes = [plane.reshape(2, 1) for plane in planes]
        np.testing.assert_array_equal(actual, (values - planes[1]) * planes[0])


@pytest.mark.parametrize("opset", [23, NEWEST])
@pytest.mark.parametrize("precision", ["", *FLOATS])
@pytest.mark.parametrize("scale_type", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("type_", ["FLOAT", "FLOAT16", "BFLOAT16", "INT32"])
def test_the_type_of_the_quotient(type_: str, scale_type: str, precision: str, opset: int) -> None:
    """The type is that of the scale from 23 on, or the attribute ``precision``."""
    x = np.random.default_rng(0).normal(size=200) * 100
    x = x.astype(np.int32) if type_ == "INT32" else x.astype(FLOATS[type_])
    scale = np.asarray(0.3).astype(FLOATS[scale_type])
    attributes = {"precision": getattr(TensorProto, precision)} if precision else {}
    constants = [numpy_helper.from_array(scale, "s"), tensor("z", "INT16", 0)]
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"], **attributes)]
    proto = written(nodes, (type_, (200,)), ("INT16", (200,)), constants, opset)
    chosen = FLOATS[precision or scale_type]
    quotients = x.astype(chosen).astype(np.float64) / float(scale.astype(chosen))
    expected = np.rint(quotients.astype(chosen).astype(np.float64))
    (actual,) = computed(proto, None, x)
    np.testing.assert_array_equal(actual, expected)


def test_integers_are_not_rounded_in_another_type() -> None:
    """A sum of integers is rounded as the node says, not exactly."""
    constants = [
        tensor("s", "FLOAT", 0.3), tensor("z", "UINT8", 0), tensor("t", "FLOAT", 0.0371),
        tensor("o", "UINT8", 3),
    ]  # fmt: skip
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["r"]),
        node("QuantizeLinear", ["r", "t", "o"], ["y"], precision=TensorProto.BFLOAT16),
    ]
    proto = written(nodes, ("UINT8", (256,)), ("UINT8", (256,)), constants, NEWEST)
    x = np.arange(256, dtype=np.uint8)
    small = (x.astype(np.float32) * np.float32(0.3)).astype(ml_dtypes.bfloat16)
    scale = float(np.asarray(0.0371, np.float32).astype(ml_dtypes.bfloat16))
    quotients = (small.astype(np.float64) / scale).astype(ml_dtypes.bfloat16).astype(np.float64)
    (actual,) = computed(proto, None, x)
    np.testing.assert_array_equal(actual, np.clip(np.rint(quotients) + 3, 0, 255))


@pytest.mark.parametrize(
    ("scale_type", "type_"),
    [("FLOAT16", "BFLOAT16"), ("BFLOAT16", "FLOAT16"), ("FLOAT", "FLOAT16")],
)
def test_a_product_is_rounded_once(scale_type: str, type_: str) -> None:
    """A scale of 16 bits has numbers that the other type of 16 bits has not."""
    scale = np.asarray(9.91).astype(FLOATS[scale_type])
    nodes = [node("DequantizeLinear", ["x", "s"], ["y"], output_dtype=getattr(TensorProto, type_))]
    constants = [numpy_helper.from_array(scale, "s")]
    x = np.random.default_rng(0).integers(-3000, 3000, 200).astype(np.int32)
    proto = written(nodes, ("INT32", (200,)), (type_, (200,)), constants, NEWEST)
    (actual,) = computed(proto, None, x)
    expected = (x * float(scale)).astype(FLOATS[type_])
    np.testing.assert_array_equal(actual.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(("type_", "code"), [("FLOAT8E4M3FN", 0x80), ("FLOAT4E2M1", 0)])
def test_negative_zeros_beside_a_zero_point(type_: str, code: int) -> None:
    """`onnx.reference` and ONNX Runtime add no zero point of 0 to 8 bits."""
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    constants = [tensor("s", "FLOAT", 0.5), tensor("z", type_, 0.0)]
    proto = written(nodes, ("FLOAT", (2,)), (type_, (2,)), constants, NEWEST)
    (actual,) = computed(proto, None, np.float32([-0.0, 0.0]))
    assert actual.tolist() == [code, 0]


@pytest.mark.parametrize("opset", VERSIONS)
def test_other_operators_at_each_version(opset: int) -> None:
    """MatMulInteger, QLinearMatMul and DynamicQuantizeLinear do not change; Cast comes first."""
    rng = np.random.default_rng(opset)
    x = rng.integers(0, 256, (3, 9)).astype(np.uint8)
    w = rng.integers(-128, 128, (9, 4)).astype(np.int8)
    constants = [numpy_helper.from_array(w, "w"), tensor("z", "UINT8", 7)]
    nodes = [node("MatMulInteger", ["x", "w", "z"], ["y"])]
    proto = written(nodes, ("UINT8", (3, 9)), ("INT32", (3, 4)), constants, opset)
    np.testing.assert_array_equal(computed(proto, None, x)[0], (x.astype(int) - 7) @ w)
    constants += [tensor("s", "FLOAT", 0.5), tensor("t", "FLOAT", 64.0), tensor("v", "INT8", 0)]
    nodes = [node("QLinearMatMul", ["x", "s", "z", "w", "s", "v", "t", "z"], ["y"])]
    proto = written(nodes, ("UINT8", (3, 9)), ("UINT8", (3, 4)), constants, opset)
    exact = ((x.astype(int) - 7) @ w) / 256
    expected = np.clip(np.rint(exact) + 7, 0, 255)
    np.testing.assert_array_equal(computed(proto, None, x)[0], expected)
    if opset >= 11:
        nodes = [node("DynamicQuantizeLinear", ["x"], ["y", "ys", "yz"])]
        proto = written(nodes, ("FLOAT", (5,)), ("UINT8", (5,)), [], opset)
        reals = np.float32([-1, 0, 0.5, 1.5, 1.55])
        np.testing.assert_array_equal(computed(proto, None, reals)[0], [0, 100, 150, 250, 255])
        proto = written(nodes, ("FLOAT", (0, 3)), ("UINT8", (0, 3)), [], opset)
        (empty,) = computed(proto, None, np.zeros((0, 3), np.float32))
        assert empty.shape == (0, 3)


@pytest.mark.parametrize(
    ("nodes", "types", "opset", "message"),
    [
        ([node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=0)], ("FLOAT", "UINT8"), 10,
         "is not valid: Unrecognized attribute: axis"),
        ([node("QuantizeLinear", ["x", "s", "z"], ["y"], block_size=2)], ("FLOAT", "UINT8"), 19,
         "is not valid: Unrecognized attribute: block_size"),
        ([node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=TensorProto.INT32)],
         ("FLOAT", "INT32"), NEWEST, "to INT32 is not lowered"),
        ([node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=999)], ("FLOAT", "INT32"), NEWEST,
         "is to the unknown type 999"),
        ([node("QuantizeLinear", ["x", "i", "z"], ["y"])], ("FLOAT", "UINT8"), NEWEST,
         "divides in the precision INT32, which is not lowered"),
    ],
    ids=["axis", "blocks", "integer", "unknown", "integer scale"],
)  # fmt: skip
def test_what_a_version_has_not_is_refused(
    nodes: list[Any], types: tuple[str, str], opset: int, message: str
) -> None:
    constants = [tensor("s", "FLOAT", 1.0), tensor("z", "UINT8", 0), tensor("i", "INT32", 2)]
    proto = written(nodes, (types[0], (4,)), (types[1], (4,)), constants, opset)
    with pytest.raises(SubquantError) as caught:
        computed(proto, None, np.zeros(4, np.float32))
    assert "node 0 (QuantizeLinear) 'the QuantizeLinear' " in str(caught.value)
    assert message in str(caught.value)


NODE_TESTS = node_tests("cast", "castlike")
CASTS = sorted(name for name in NODE_TESTS
               if name.startswith(("cast_", "castlike_")) and not name.endswith("_expanded")
               and ("FLOAT8" in name or "FLOAT4" in name))  # fmt: skip
"""ONNX's tests of casts to and from floats of 4 and 8 bits."""


def test_there_are_many_casts() -> None:
    assert len(CASTS) == 60


def feeds_of(case: Any) -> list[list[Any]]:
    return [[plain(value) for value in values] for values in case.data_sets[0]]


@pytest.mark.parametrize("name", CASTS)
def test_numpy_casts_as_onnx_says(name: str) -> None:
    inputs, expected = feeds_of(NODE_TESTS[name])
    assert_same(name, computed(NODE_TESTS[name].model, None, *inputs), expected)


def assert_same(name: str, results: list[Any], expected: list[Any]) -> None:
    """Equal codes; NaN is any code of it, and a zero of the other sign in 4 bits."""
    for pair in zip(results, expected, strict=True):
        codes = [np.asarray(each) for each in pair]
        assert codes[0].dtype == codes[1].dtype
        if name.endswith("to_FLOAT8E5M2"):
            codes = [each.view(ml_dtypes.float8_e5m2).astype(np.float32) for each in codes]
        np.testing.assert_array_equal(*codes)


ON_DEVICE = DeviceShare(CASTS, 4, lambda name: NODE_TESTS[name].model)


@ON_DEVICES
@pytest.mark.parametrize("name", ON_DEVICE.names)
def test_devices_cast_as_onnx_says(name: str, device: Device) -> None:
    inputs, expected = feeds_of(NODE_TESTS[name])
    assert_same(name, ON_DEVICE.results(name, device, inputs), expected)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_powers_of_two(mode: str, saturate: int) -> None:
    """E8M0 by the exponent: exact logarithms of random reals."""
    rng = np.random.default_rng(0)
    x = (rng.uniform(1, 2, 400) * 2.0 ** rng.integers(-126, 128, 400)).astype(np.float32)
    x = np.concatenate([x, np.float32([1, 2, 1.5, 2.0**-126, 3.4e38, np.nan])])
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0, round_mode=mode,
                  saturate=saturate)]  # fmt: skip
    proto = written(nodes, ("FLOAT", x.shape), ("FLOAT8E8M0", x.shape), [], NEWEST)
    (actual,) = computed(proto, None, x)
    for value, code in zip(x.tolist(), actual.tolist(), strict=True):
        if np.isnan(value):
            assert code == 255
            continue
        mantissa, exponent = np.frexp(value)  # 0.5 to 1
        up = {"up": mantissa > 0.5, "down": False, "nearest": mantissa >= 0.75}[mode]
        reference = int(exponent) - 1 + 127 + int(up)
        assert code == min(reference, 254 if saturate else 255)


@ON_DEVICES
@pytest.mark.parametrize("type_", ["FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT8E4M3FN"])
@pytest.mark.share(4)
def test_microscaling(type_: str, device: Device) -> None:
    """Small floats in blocks with a power of two each, and back: the sign alone differs."""
    rng = np.random.default_rng(0)
    sign = {"4": 8, "6": 32, "8": 128}[type_[5]]
    codes = rng.integers(0, 2 * sign, (4, 64)).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0  # NaN
    scales = rng.integers(120, 134, (4, 2)).astype(np.uint8)
    constants = [
        helper.make_tensor("s", TensorProto.FLOAT8E8M0, (4, 2), scales.tobytes(), raw=True)
    ]
    attributes = {"axis": 1, "block_size": 32}
    nodes = [
        node("DequantizeLinear", ["x", "s"], ["r"], output_dtype=TensorProto.FLOAT, **attributes),
        node("Neg", ["r"], ["n"]),
        node("QuantizeLinear", ["n", "s"], ["y"], output_dtype=getattr(TensorProto, type_),
             **attributes),
    ]  # fmt: skip
    proto = written(nodes, (type_, (4, 64)), (type_, (4, 64)), constants, NEWEST)
    (actual,) = computed(proto, device, codes)
    np.testing.assert_array_equal(actual, codes ^ sign)


def test_powers_of_two_have_no_type_of_their_own() -> None:
    scales = helper.make_tensor("s", TensorProto.FLOAT8E8M0, (), b"\x7f", raw=True)
    nodes = [node("DequantizeLinear", ["x", "s"], ["y"])]
    proto = written(nodes, ("INT8", (4,)), ("FLOAT", (4,)), [scales], NEWEST)
    with pytest.raises(UnsupportedError, match="has scales of FLOAT8E8M0 and no output_dtype"):
        computed(proto, None, np.zeros(4, np.int8))


@pytest.mark.parametrize("type_", ["FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1", "FLOAT8E5M2"])
def test_constants_of_small_floats(type_: str) -> None:
    """Packed in the file; each is what ml_dtypes reads."""
    count = {"4": 16, "6": 64, "8": 124}[type_[5]]
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, type_))
    reals = np.arange(count, dtype=np.uint8).view(dtype)
    constants = [numpy_helper.from_array(reals, "q")]
    nodes = [node("Cast", ["q"], ["r"], to=TensorProto.FLOAT), node("Add", ["r", "x"], ["y"])]
    proto = written(nodes, ("FLOAT", (1,)), ("FLOAT", (count,)), constants, NEWEST)
    (actual,) = computed(proto, None, np.zeros(1, np.float32))
    np.testing.assert_array_equal(actual, reals.astype(np.float32))
