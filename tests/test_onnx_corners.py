"""Corners of ONNX operators: empty tensors, extreme bounds, narrow floats beside wide integers.

The results are those of ONNX Runtime, or formulas of the specification in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from devices import ON_DEVICES
from onnx_models import MICROSOFT, computed, model, ms, node
from onnx_runtime import check, run_onnx_runtime
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import InputError, UnsupportedError
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]

FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
INT64 = np.iinfo(np.int64)


def one_node(
    operator: str, inputs: list[Array | None], expected: Array | None = None, opset: int = 21,
    constants: tuple[int, ...] = (), **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:  # fmt: skip
    """Return a model of one node, and its arguments; a result has the type of `expected`."""
    names = ["" if each is None else f"x{n}" for n, each in enumerate(inputs)]
    arrays = {name: each for name, each in zip(names, inputs, strict=True) if each is not None}
    own_constants = {f"x{n}": arrays.pop(f"x{n}") for n in constants}
    nodes = [node(operator, names, ["y"], **attributes)]
    return model(nodes, arrays, {"y": expected}, own_constants, opset), arrays


def result_of(operator: str, inputs: list[Array | None], **kwargs: Any) -> tuple[Array, Array]:
    """Return the result of a node, and that of ONNX Runtime."""
    (expected,) = run_onnx_runtime(*one_node(operator, inputs, **kwargs))
    result = numpy_result(operator, inputs, expected, **kwargs)
    assert result.dtype == expected.dtype
    return result, expected


def numpy_result(operator: str, inputs: list[Any], expected: Array, **kwargs: Any) -> Array:
    """Return the result of a node, which has the type of `expected`."""
    proto, arguments = one_node(operator, inputs, expected, **kwargs)
    (result,) = computed(proto, None, *arguments.values())
    return result


def refusal_of(
    operator: str, inputs: list[Any], expected: Array, *, is_invalid: bool = False, **kwargs: Any
) -> str:
    """Return the error of a node, which is invalid, or not supported."""
    with pytest.raises(InputError if is_invalid else UnsupportedError) as caught:
        numpy_result(operator, inputs, expected, **kwargs)
    return str(caught.value)


def indices(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("start", [-10, -4, 3, INT64.min])
def test_a_slice_backward_starts_in_the_axis(start: int) -> None:
    x = np.arange(4, dtype=np.float32)
    inputs = [x, indices(start), indices(INT64.min), indices(0), indices(-1)]
    result, expected = result_of("Slice", inputs, constants=(1, 2, 3, 4))
    np.testing.assert_array_equal(result, expected)
    assert result.size == (4 if start == 3 else 1)


@pytest.mark.parametrize("end", [2**31 - 1, INT64.max])
def test_a_slice_backward_without_an_end_is_refused(end: int) -> None:
    x = np.arange(4, dtype=np.float32)
    inputs = [x, indices(-1), indices(end), indices(0), indices(-1)]
    assert "goes backward" in refusal_of("Slice", inputs, x, constants=(1, 2, 3, 4))


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(21, 0), (21, 1), (21, -1), (11, 1), (9, 0)])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 2, 1)])
def test_empty_tensors_have_an_empty_softmax(
    operator: str, opset: int, axis: int, shape: tuple[int, ...]
) -> None:
    x = np.zeros(shape, np.float32)
    assert numpy_result(operator, [x], x, opset=opset, axis=axis).shape == shape


@pytest.mark.parametrize(("shape", "sizes"), [((0, 2, 3), (0, 4, 3)), ((2, 0, 3), (2, 0, 6))])
def test_empty_tensors_are_resized_and_compressed(
    shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    x = np.zeros(shape, np.float32)
    result, expected = result_of("Resize", [x, None, None, indices(*sizes)], constants=(3,))
    assert result.shape == expected.shape == sizes
    result, expected = result_of("Compress", [x, np.zeros(0, np.bool_)], axis=shape.index(0))
    assert result.shape == expected.shape


def test_an_empty_axis_is_not_resized_to_elements() -> None:
    x = np.zeros((0, 4), np.float32)
    inputs = [x, None, None, indices(1, 8)]
    message = refusal_of("Resize", inputs, x, is_invalid=True, constants=(3,))
    assert "resizes the shape [0, 4], which has no elements" in message


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_empty_tensors_are_quantized_by_axis(operator: str) -> None:
    x = np.zeros((1, 0, 2), np.float32 if operator == "QuantizeLinear" else np.int16)
    result, expected = result_of(
        operator, [x, np.array([0.5, 0.25], np.float32), np.array([3, 4], np.int16)], axis=2
    )
    assert result.shape == expected.shape


@pytest.mark.parametrize(
    "values",
    [np.array([65535, 3001, 4099], np.uint16), np.array([100_000, -3001, 4099], np.int32)],
    ids=["UINT16", "INT32"],
)
def test_wide_integers_with_scales_of_f16_do_not_overflow(values: Array) -> None:
    result, expected = result_of("DequantizeLinear", [values, np.array(0.2, np.float16)])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("scale", [8e-9, 1 / 3, 100.0])
def test_scales_of_f32_are_not_rounded_to_the_type_of_the_result(scale: float) -> None:
    inputs = [np.array([127, 30, -4], np.int8), np.array(scale, np.float32)]
    result, expected = result_of("DequantizeLinear", inputs, opset=23, output_dtype=FLOAT16)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_the_constant_of_other_padding_modes_is_irrelevant(mode: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    inputs = [x, indices(1, 2, 0, 1), np.array(7, np.float32)]
    result, expected = result_of("Pad", inputs, constants=(1,), mode=mode)
    np.testing.assert_array_equal(result, expected)


def test_a_constant_is_padded_by_an_argument() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    inputs = [x, indices(1, 2, 0, 1), np.array(7, np.float32)]
    result, expected = result_of("Pad", inputs, constants=(0, 1))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_a_symmetric_window_of_one_element_has_no_period(operator: str) -> None:
    result, expected = result_of(operator, [indices(1)[0]], constants=(0,), periodic=0)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("operator", "opset"), [("Resize", 21), ("Resize", 10), ("Upsample", 9)])
def test_scales_that_keep_every_size_are_refused(operator: str, opset: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    scales = np.array([1, 1, 1.3, 1.3], np.float32)
    inputs: list[Array | None] = [x, scales] if opset < 11 else [x, None, scales]
    index = (len(inputs) - 1,)
    message = refusal_of(operator, inputs, x, opset=opset, constants=index, mode="nearest")
    assert "keeps its shape" in message


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_negative_padding_of_pools_is_refused(operator: str, auto_pad: str) -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    attributes = {"auto_pad": auto_pad, "strides": [4], "kernel_shape": [1]}
    assert "negative padding" in refusal_of(operator, [x], x[..., :2], **attributes)
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    attributes["strides"] = [2]
    result = numpy_result(operator, [x], x[..., ::2], **attributes)
    np.testing.assert_array_equal(result, [[[0, 2]]])


def test_windows_longer_than_the_image_are_refused() -> None:
    x = np.zeros((1, 2, 4), np.float32)
    attributes = {"kernel_shape": [3], "dilations": [2], "ceil_mode": 1}
    assert "has windows of" in refusal_of("MaxPool", [x], x[..., :1], is_invalid=True, **attributes)


def test_a_squeeze_of_an_empty_list_of_axes_is_refused() -> None:
    x = np.zeros((2, 1, 3), np.float32)
    assert "empty list of axes" in refusal_of("Squeeze", [x, indices()], x[:, 0], constants=(1,))
    result, expected = result_of("Squeeze", [x[:, 0], indices()], constants=(1,))
    assert result.shape == expected.shape


@pytest.mark.parametrize("opset", [19, 21, 23])
@pytest.mark.parametrize("domain", ["", f"{MICROSOFT}."])
def test_quotients_of_f16_are_rounded_as_the_operator_set_says(opset: int, domain: str) -> None:
    """In f32 before operator set 23, and in ONNX Runtime's own operator; in f16 since."""
    x = np.random.default_rng(0).normal(0, 8, 2000).astype(np.float16)
    inputs = [x, np.array(0.1, np.float16), np.array(3, np.int8)]
    result, expected = result_of(f"{domain}QuantizeLinear", inputs, opset=opset)
    np.testing.assert_array_equal(result, expected)
    wide = np.rint(x.astype(np.float32) / np.float32(np.float16(0.1))) + 3
    is_wide = bool((np.clip(wide, -128, 127) == result).all())
    assert is_wide == (opset < 23 or bool(domain))


@pytest.mark.parametrize("counts", [0, 1])
@pytest.mark.parametrize("is_last", [0, 1])
def test_quantized_means_of_windows_beyond_the_padding(counts: int, is_last: int) -> None:
    x = np.arange(10, 18, dtype=np.uint8).reshape((1, 4, 2) if is_last else (1, 2, 4))
    scale, zero = np.array(0.1, np.float32), np.array(0, np.uint8)
    result, expected = result_of(
        ms("QLinearAveragePool"), [x, scale, zero, scale, zero],
        kernel_shape=[3], strides=[2], ceil_mode=1, count_include_pad=counts, channels_last=is_last,
    )  # fmt: skip
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("operator", ["ReduceLogSum", "ReduceLogSumExp", "ReduceL2"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_that_older_operator_sets_reduce(operator: str, dtype: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, 40]], dtype)
    result, expected = result_of(operator, [x, indices(1)], constants=(1,), opset=18)
    np.testing.assert_array_equal(result, expected)


def test_a_clip_of_integers_in_an_operator_set_without_it_is_refused() -> None:
    x = np.array([1, 2], np.uint32)
    assert "UINT32" in refusal_of("Clip", [x], x, opset=9)


@pytest.mark.parametrize("opset", [18, 20])
def test_group_parameters_of_the_deprecated_group_normalization(opset: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 3)).astype(np.float32)
    scale, bias = (rng.normal(size=2).astype(np.float32) for _ in range(2))
    result, expected = result_of(
        "GroupNormalization", [x, scale, bias], opset=opset, num_groups=2, epsilon=0.1
    )
    np.testing.assert_allclose(result, expected, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("operator", "axis"),
    [("QuantizeLinear", None), ("QuantizeLinear", 1), ("DequantizeLinear", None),
     ("DequantizeLinear", 1), ("QLinearSigmoid", None), ("QLinearAdd", None)],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 3)])
def test_empty_quantized_tensors_are_compiled(
    operator: str, axis: int | None, shape: tuple[int, ...], cpu: Device
) -> None:
    dtype = np.float32 if operator == "QuantizeLinear" else np.uint8
    count = (1 if axis is None else shape[axis],) if axis is not None else ()
    scale, zero = np.full(count, 0.5, np.float32), np.full(count, 3, np.uint8)
    x = np.zeros(shape, dtype)
    inputs: list[Array | None] = [x, scale, zero]
    if operator.startswith("QLinear"):
        inputs = [*inputs, *(inputs if operator == "QLinearAdd" else []), scale, zero]
    attributes = {} if axis is None else {"axis": axis}
    expected = np.zeros(shape, np.float32 if operator == "DequantizeLinear" else np.uint8)
    operator = ms(operator) if operator.startswith("QLinear") else operator
    constants = tuple(range(1, len(inputs)))
    if operator.endswith("QLinearAdd"):
        constants = (1, 2, 4, 5, 6, 7)
    proto, arguments = one_node(operator, inputs, expected, constants=constants, **attributes)
    function = Executable(compile_to_bytes(proto.SerializeToString()), cpu).main
    result = np.asarray(function(*arguments.values()))
    assert (result.shape, result.dtype) == (shape, expected.dtype)


def requantized(type_name: str, shape: tuple[int, ...], device: Device) -> None:
    """Compare a tensor that is quantized once more, and a function of it, with ONNX Runtime."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "t", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "t", "z"], ["d"]),
        helper.make_node("Max", ["d", "m"], ["y"]),
    ]
    zero = helper.make_tensor("z", getattr(onnx.TensorProto, type_name), [], [2])
    constants = {"s": np.float32(0.1), "t": np.float32(0.7), "z": zero, "m": np.float32(0.25)}
    inputs = {"x": np.full(shape, 77, np.int8)}
    check(model(nodes, inputs, {"y": ("FLOAT", shape)}, constants), inputs, device)


@pytest.mark.parametrize("type_name", ["INT4", "UINT4"])
def test_storage_of_4_bits_that_integers_compute_has_bytes(type_name: str, cpu: Device) -> None:
    requantized(type_name, (2, 3), cpu)


def test_a_tensor_without_axes_is_requantized(cpu: Device) -> None:
    requantized("INT8", (), cpu)


@ON_DEVICES
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_integers_are_cast_to_the_nearest_float(dtype: Any, device: Device) -> None:
    gaps = [0, 1, 1024, 1025, 2048, 3072, 1 << 39, (1 << 39) + 1, 3 << 39]
    x = np.array([*gaps, *((1 << 63) + n for n in gaps), *((1 << 64) - 1 - n for n in gaps)],
                 np.uint64)  # fmt: skip
    expected = x.astype(dtype)  # the C compiler's, to the nearest, even
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto, arguments = one_node("Cast", [x], expected, to=to)
    np.testing.assert_array_equal(run_onnx_runtime(proto, arguments)[0], expected)
    options = CompileOptions(target=device.name)
    function = Executable(compile_to_bytes(proto.SerializeToString(), options), device).main
    np.testing.assert_array_equal(np.asarray(function(x)), expected)
