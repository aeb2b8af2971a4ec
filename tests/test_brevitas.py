"""Brevitas' float weights and quantization parameters, as quantized tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.brevitas import read_brevitas
from subquant.layouts import (
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    TensorScaledLayout,
)
from subquant.layouts.quantizers import StaticScaledQuantizer
from subquant.numerics.element_types import Array


def _value(key: str, array: Any, dtype: str | None = None) -> dict[str, Any]:
    """An array as the file has it."""
    array = np.asarray(array)
    entry: dict[str, Any] = {key: array.reshape(-1).tolist(), f"{key}_shape": list(array.shape)}
    return entry | ({} if dtype is None else {f"{key}_dtype": f"torch.{dtype}"})


def _read(
    folder: Path, arrays: dict[str, Array], layers: Any
) -> tuple[dict[str, Any], dict[str, InferenceTensor]]:
    save_file(arrays, folder / "params.safetensors")
    (folder / "config.json").write_text('{"_class_name": "UNet", "sample_size": 128}')
    (folder / "quant_params.json").write_text(json.dumps(layers))
    return read_brevitas(
        folder / "config.json", folder / "params.safetensors", folder / "quant_params.json"
    )


def _layout(tensor: InferenceTensor) -> TensorScaledLayout:
    assert isinstance(tensor, PlanarQuantizedTensor)
    assert isinstance(tensor.layout, TensorScaledLayout)
    return tensor.layout


def _rounded(values: Array, step: Array | float, zero: Array | int, low: int, high: int) -> Array:
    """The storage values by the formula, in float64; steps are powers of two, so it is exact."""
    return np.clip(np.rint(values.astype(np.float64) / step + zero), low, high)


_rng = np.random.default_rng(11)
_WEIGHT = (_rng.integers(-600, 600, (6, 4)) / 256).astype(np.float32)  # with ties, and beyond int8
_BIAS = (_rng.integers(-999, 999, 6) / 64).astype(np.float32)
_STEPS = 2.0 ** np.array([-7, -8, -6, -5, -9, -7]).reshape(6, 1)
_ZEROS = np.array([128, 0, 255, 7, 100, 131]).reshape(6, 1)


def test_a_layer_with_everything(tmp_path: Path) -> None:
    arrays = {
        "mid.l.weight": _WEIGHT.astype(np.float16),
        "mid.l.bias": _BIAS,
        "conv_in.weight": np.ones((1, 2, 3, 3), ml_dtypes.bfloat16),
    }
    layer = {
        **_value("weight_scale", _STEPS),
        **_value("weight_zp", np.zeros((6, 1)), "int8"),
        **_value("input_scale", 0.25),
        **_value("input_zp", 0.0, "int8"),
        **_value("output_scale", 0.125),
        **_value("smoothquant_mul", [1.0, 0.5, 2.0, 0.1]),
    }
    properties, tensors = _read(tmp_path, arrays, {"mid.l": layer})
    assert properties == {"meta": {"_class_name": "UNet"}, "hparams": {"sample_size": 128}}
    assert set(tensors) == {
        "conv_in.weight",
        "mid.l.weight",
        "mid.l.bias",
        "mid.l.q_input",
        "mid.l.q_output",
        "mid.l.premul_input",
    }
    assert all(tensor.name == name for name, tensor in tensors.items())

    weight = _layout(tensors["mid.l.weight"])
    assert weight.planes.keys() == {"d", "qs"}
    assert weight.planes["qs"].dtype == np.int8
    expected = _rounded(_WEIGHT, _STEPS, 0, -128, 127)
    np.testing.assert_array_equal(weight.planes["qs"], expected)
    assert {-128, 127} <= set(expected.flat)  # some saturate
    np.testing.assert_array_equal(weight.dequant(np.float64), expected * _STEPS)

    bias = _layout(tensors["mid.l.bias"])
    assert bias.planes["qs"].dtype == np.int32
    steps = _STEPS[:, 0] * 0.25
    np.testing.assert_array_equal(bias.planes["qs"], _rounded(_BIAS, steps, 0, -(2**31), 2**31 - 1))
    assert np.abs(bias.planes["qs"]).max() > 127
    np.testing.assert_array_equal(bias.planes["d"], steps)

    for name, step in (("q_input", 0.25), ("q_output", 0.125)):
        quantizer = tensors[f"mid.l.{name}"]
        assert isinstance(quantizer, StaticScaledQuantizer)
        assert quantizer.dtype == np.int8
        assert (quantizer.reciprocal_scale, quantizer.scale) == (step, 1 / step)
        np.testing.assert_array_equal(
            _layout(quantizer.quantize(_BIAS)).planes["qs"], _rounded(_BIAS, step, 0, -128, 127)
        )
    premul = tensors["mid.l.premul_input"]
    assert isinstance(premul, PrimitiveTensor)
    assert premul.array.dtype == np.float16
    np.testing.assert_array_equal(premul.array, np.array([1, 0.5, 2, 0.1], np.float16))


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3, 3), (6,)])
@pytest.mark.parametrize("zero_points", [None, "one", "each"])
@pytest.mark.parametrize("scales", ["tensor", "list", "axis 0", "axis 1"])
def test_weights_of_any_granularity(
    tmp_path: Path, shape: tuple[int, ...], zero_points: str | None, scales: str
) -> None:
    axis = int(scales[-1]) if scales.startswith("axis") else 0
    if axis >= len(shape):
        axis = 0
    weight = (np.random.default_rng(3).integers(-700, 700, shape) / 256).astype(np.float32)
    spread = [1] * len(shape)
    spread[axis] = shape[axis]
    steps = np.array(0.0078125) if scales == "tensor" else _STEPS[: shape[axis]].reshape(spread)
    written = steps.reshape(-1) if scales == "list" else steps
    layer = _value("weight_scale", written)
    zero: Array = np.array(0)
    if zero_points is not None:
        zero = np.array(131)
        if zero_points == "each" and steps.ndim:
            zero = _ZEROS[: shape[axis]].reshape(spread)
        layer |= _value("weight_zp", zero.reshape(-1) if scales == "list" else zero, "uint8")
    _, tensors = _read(tmp_path, {"l.weight": weight}, {"l": layer})
    layout = _layout(tensors["l.weight"])
    low, high = (-128, 127) if zero_points is None else (0, 255)
    expected = _rounded(weight, steps, zero, low, high)
    assert layout.planes["qs"].dtype == (np.int8 if zero_points is None else np.uint8)
    np.testing.assert_array_equal(layout.planes["qs"], expected)
    np.testing.assert_array_equal(layout.dequant(np.float64), (expected - zero) * steps)


def test_scales_that_are_no_powers_of_two(tmp_path: Path) -> None:
    """Division and addition are of float32, and a tie goes to the even value."""
    rng = np.random.default_rng(4)
    steps = rng.uniform(0.001, 0.02, (8, 1)).astype(np.float32)
    zeros = rng.integers(1, 255, (8, 1))
    weight = rng.normal(size=(8, 500)).astype(np.float32)
    layer = _value("weight_scale", steps) | _value("weight_zp", zeros, "uint8")
    _, tensors = _read(tmp_path, {"l.weight": weight}, {"l": layer})
    quotient = (weight / steps).astype(np.float32) + zeros.astype(np.float32)
    np.testing.assert_array_equal(
        _layout(tensors["l.weight"]).planes["qs"], np.clip(np.rint(quotient), 0, 255)
    )


@pytest.mark.parametrize(("name", "projections"), [("to_kv", ["to_k", "to_v"]), ("to_qkv", None)])
@pytest.mark.parametrize("per_axis", [True, False])
def test_fused_layers_are_split(
    tmp_path: Path, name: str, projections: list[str] | None, per_axis: bool
) -> None:
    projections = projections or ["to_q", "to_k", "to_v"]
    steps: Array = _STEPS if per_axis else np.array(0.0078125)
    zeros: Array = _ZEROS if per_axis else np.array(77)
    layer = {
        **_value("weight_scale", steps),
        **_value("weight_zp", zeros, "uint8"),
        **_value("input_scale", 0.25),
    }
    arrays = {f"attn.{name}.weight": _WEIGHT, f"attn.{name}.bias": _BIAS}
    _, tensors = _read(tmp_path, arrays, {f"attn.{name}": layer})
    created = [f"attn.{name}.{part}.{kind}" for part in projections for kind in ("weight", "bias")]
    assert set(tensors) == {f"attn.{name}.q_input", *created}
    size = 6 // len(projections)
    expected = _rounded(_WEIGHT, steps, zeros, 0, 255)
    bias_steps = 0.25 * (steps[:, 0] if per_axis else steps)
    expected_bias = _rounded(_BIAS, bias_steps, 0, -(2**31), 2**31 - 1)
    for number, part in enumerate(projections):
        rows = slice(number * size, (number + 1) * size)
        weight = _layout(tensors[f"attn.{name}.{part}.weight"])
        np.testing.assert_array_equal(weight.planes["qs"], expected[rows])
        reals = ((expected - zeros) * steps)[rows]
        np.testing.assert_array_equal(weight.dequant(np.float64), reals)
        bias = _layout(tensors[f"attn.{name}.{part}.bias"])
        np.testing.assert_array_equal(bias.planes["qs"], expected_bias[rows])


def test_layers_that_have_only_some(tmp_path: Path) -> None:
    arrays = {"a.weight": _WEIGHT, "a.bias": _BIAS, "b.weight": _WEIGHT}
    layers = {
        "a": _value("weight_scale", 0.5),  # without input scale: the bias stays
        "b": _value("smoothquant_mul", np.ones(4)),  # not quantized
        "attn.out_q": _value("act_scale", 0.5) | {"act_zp_dtype": "torch.uint8"},
        "attn.output_softmax_quant": _value("act_scale", [0.25]) | _value("act_zp", [0.0], "int8"),
    }
    _, tensors = _read(tmp_path, arrays, layers)
    assert isinstance(tensors["a.bias"], PrimitiveTensor)
    assert isinstance(tensors["b.weight"], PrimitiveTensor)
    assert set(tensors) == {
        *("a.weight", "a.bias", "b.weight", "b.premul_input"),
        *("attn.out_q", "attn.output_softmax_quant"),
    }
    for name, dtype, step in (
        ("attn.out_q", np.uint8, 0.5),
        ("attn.output_softmax_quant", np.int8, 0.25),
    ):
        quantizer = tensors[name]
        assert isinstance(quantizer, StaticScaledQuantizer)
        assert (quantizer.dtype, quantizer.reciprocal_scale) == (dtype, step)


_WS = _value("weight_scale", _STEPS)
_IS = _value("input_scale", 0.25)


_UNSUPPORTED_LAYERS = [
    ({**_WS, **_IS, **_value("input_zp", 3, "int8")}, "'input_zp' is 3, exp"),
    ({**_value("output_scale", 1), **_value("output_zp", 1, "int8")}, "'outp"),
    ({**_value("act_scale", 1), **_value("act_zp", 1, "int8")}, "'act_zp' is"),
    ({**_WS, **_value("input_scale", [1, 2])}, "'input_scale' has 2 elements"),
    (_value("weight_scale", np.ones((2, 3))), "differs along several axes"),
    ({**_WS, "input_zp_dtype": "torch.float8_e4m3fnuz"}, "'torch.float8_e4m"),
    ({**_value("weight_scale", np.ones((1, 4))), **_IS}, "along axis 1, exp"),
]
_INVALID_LAYERS = [
    (7, "layer 'l' must be an object, got 7"),
    (_IS, "there is no 'weight_scale', which a quantized layer must have"),
    ({"weight_scale": [1]}, "'weight_scale_shape' must be a list of extents, got N"),
    ({**_WS, "weight_scale_shape": [7, 1]}, r"has 6 elements, expected the shape"),
    ({**_WS, "weight_scale_shape": [-6]}, "must be a list of extents"),
    ({**_WS, "weight_scale_shape": [1] * 99 + [6]}, "'weight_scale' has the shape"),
    ({**_WS, "weight_scale": "abc"}, "must be a list of numbers, got 'abc'"),
    ({**_WS, "weight_scale": [True] * 6}, "must be a list of numbers"),
    ({**_WS, "weight_scale": [1e300] * 6}, "a number that float32 does not hold"),
    (_value("weight_scale", -1.0), "scales of a quantizer must be positive and fin"),
    (_value("weight_scale", 0.0), "scales of a quantizer must be positive and fin"),
    (_value("weight_scale", np.ones(5)), r"shape \[5\] does not fit a weight of sh"),
    (_value("weight_scale", np.ones((1, 6))), "does not fit a weight of shape"),
    ({**_WS, **_value("weight_zp", [1, 2], "int8")}, "'weight_zp' has 2 elements, an"),
    ({**_WS, **_value("weight_zp", [200], "int8")}, "the number 200, which is none of"),
    ({**_WS, **_value("weight_zp", [0.5], "int8")}, "the number 0.5, which is none"),
    ({**_WS, **_value("weight_zp", [1])}, "'weight_zp_dtype' is None, expected torch"),
    ({**_WS, **_value("input_scale", 1e-38)}, "beyond the range of i32, and the quan"),
    (_value("smoothquant_mul", [1e30]), "has a number that float16 cannot hold"),
]


@pytest.mark.parametrize(
    ("layer", "expected", "error"),
    [
        *((*row, UnsupportedError) for row in _UNSUPPORTED_LAYERS),
        *((*row, InputError) for row in _INVALID_LAYERS),
    ],
)
def test_wrong_layers_are_errors_with_the_layers_name(
    tmp_path: Path, layer: Any, error: type[SubquantError], expected: str
) -> None:
    arrays = {"l.weight": _WEIGHT.astype(np.float16), "l.bias": _BIAS}
    with pytest.raises(error, match=expected) as caught:
        _read(tmp_path, arrays, {"l": layer})
    assert str(caught.value).startswith(f"{tmp_path / 'quant_params.json'}: error: layer 'l'")


@pytest.mark.parametrize(
    ("arrays", "layers", "expected"),
    [
        ({"m.weight": _WEIGHT}, {"l": _WS}, "expected a weight of floats .* got none"),
        ({"l.weight": _WEIGHT.astype("i4")}, {"l": _WS}, r"got int32\[6, 4\]"),
        ({"l.weight": np.full((6, 4), np.nan)}, {"l": _WS}, "the weight has an infinity or a NaN"),
        ({"l.weight": _WEIGHT, "l.bias": _BIAS[:5]}, {"l": {**_WS, **_IS}}, r"float32\[5\] does n"),
        (
            {"x.to_kv.weight": _WEIGHT[:5]},
            {"x.to_kv": _value("weight_scale", 1.0)},
            "5 outputs of a fused weight cannot be split into 2",
        ),
        (
            {"l.weight": _WEIGHT, "l.premul_input": _BIAS},
            {"l": _value("smoothquant_mul", [1])},
            "tensor 'l.premul_input' is there already",
        ),
    ],
)
def test_weights_that_do_not_fit_are_errors(
    tmp_path: Path, arrays: dict[str, Array], layers: Any, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        _read(tmp_path, arrays, layers)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["torch.int8", "torch.uint8", "int32", "torch.float16", ""]),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=8,
)
_KEYS = [
    key + suffix
    for key in ("weight_scale", "weight_zp", "input_scale", "input_zp", "smoothquant_mul", "act_zp")
    for suffix in ("", "_shape", "_dtype")
] + ["act_scale", "output_scale"]


@given(change=st.dictionaries(st.sampled_from(_KEYS), _JSON, min_size=1, max_size=4))
def test_any_parameters_are_an_error_or_read(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    layer = {**_WS, **_IS, **_value("weight_zp", _ZEROS, "uint8"), **change}
    try:
        _, tensors = _read(folder, {"l.weight": _WEIGHT, "l.bias": _BIAS}, {"l": layer})
    except SubquantError as error:
        message = str(error)
    else:
        message = "layer 'l'"
        assert "l.weight" in tensors
    assert "layer 'l'" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zzz", [1]),
        ("weight_scale_dtype", "torch.float8_e4m3fn"),
        ("weight_scale_exponent", [1.0]),
        ("input_clip", [6.0]),
        ("act_scale_shape", []),
        ("output_zp_dtype", "torch.int8"),
    ],
)
def test_a_key_that_is_not_read_is_named(tmp_path: Path, key: str, value: Any) -> None:
    layer = {**_value("weight_scale", 0.5, "float32"), key: value}
    with pytest.raises(UnsupportedError, match=f"layer 'l' has the key '{key}'.* which subquant"):
        _read(tmp_path, {"l.weight": _WEIGHT}, {"l": layer})


def test_an_activation_has_no_other_keys(tmp_path: Path) -> None:
    layer = {**_value("act_scale", 0.5), "act_zp_dtype": "torch.int8", **_value("input_scale", 1)}
    with pytest.raises(UnsupportedError, match="layer 'l' has the key 'input_scale', key 'input_s"):
        _read(tmp_path, {"l.weight": _WEIGHT}, {"l": layer})


def test_metadata_of_the_parameters_is_a_property(tmp_path: Path) -> None:
    save_file({"w": _WEIGHT}, tmp_path / "params.safetensors", {"format": "pt", "rounding": "up"})
    for name in ("config.json", "quant_params.json"):
        (tmp_path / name).write_text("{}")
    files = ("config.json", "params.safetensors", "quant_params.json")
    properties, _ = read_brevitas(*(tmp_path / file for file in files))
    assert properties["metadata"] == {"params.safetensors": {"rounding": "up"}}
