"""Rounding of the inputs of layers, beside the libraries that write checkpoints.

`scripts/make_activation_data.py` wrote the data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subquant.errors import InputError
from subquant.layouts import ActivationQuantization, QuantizedLayout
from subquant.ops.activations import quantize_activations

DATA = np.load(Path(__file__).parent / "data" / "rounded_activations.npz")
SCALE, ZERO_POINT, GLOBAL_SCALE = float(np.float32(0.0371)), -5, 37.5
SETTINGS = {
    "int8_token": ActivationQuantization("i8"),
    "int8_token_asymmetric": ActivationQuantization("i8", is_symmetric=False),
    "int4_token": ActivationQuantization("i4"),
    "fp8_token": ActivationQuantization("f8E4M3FN"),
    "fp8_group": ActivationQuantization("f8E4M3FN", "group", group_size=64),
    "int8_tensor_static": ActivationQuantization("i8", "tensor", is_dynamic=False, scale=SCALE),
    "int8_tensor_static_asymmetric": ActivationQuantization(
        "i8", "tensor", is_dynamic=False, is_symmetric=False, scale=SCALE, zero_point=ZERO_POINT
    ),
    "fp8_tensor_static": ActivationQuantization(
        "f8E4M3FN", "tensor", is_dynamic=False, scale=SCALE
    ),
    "nvfp4": ActivationQuantization(
        "f4E2M1FN", "group", group_size=16, scale_type="f8E4M3FN", global_scale=GLOBAL_SCALE
    ),
    "mxfp4": ActivationQuantization("f4E2M1FN", "group", group_size=32, scale_type="f8E8M0FNU"),
    "mxfp8": ActivationQuantization("f8E4M3FN", "group", group_size=32, scale_type="f8E8M0FNU"),
    "int8_group_asymmetric": ActivationQuantization(
        "i8", "group", group_size=32, is_symmetric=False
    ),
    "fp4_group_global": ActivationQuantization(
        "f4E2M1FN", "group", group_size=16, global_scale=GLOBAL_SCALE
    ),
    "torchao_int8_row": ActivationQuantization("i8", uses_reciprocal=True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_activations_are_rounded_as_by_the_library(name: str) -> None:
    result = quantize_activations(DATA["x"], SETTINGS[name])
    actual = result.dequant() if isinstance(result, QuantizedLayout) else result
    np.testing.assert_array_equal(np.asarray(actual, np.float32), DATA[name])


def test_inputs_with_outliers_stay_floats() -> None:
    settings = ActivationQuantization("i8", outlier_threshold=6.0)
    np.testing.assert_array_equal(quantize_activations(DATA["x"], settings), DATA["x"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "i3"}, "'type' of the activation quantization is 'i3'"),
        ({"type": "i8", "granularity": "group"}, "'group_size' of the activation quantization"),
        ({"type": "i8", "is_dynamic": False}, "'scale' of the activation quantization is None"),
        ({"type": "i8", "uses_reciprocal": 1}, "'uses_reciprocal' of the activation quantization"),
    ],
)
def test_wrong_settings(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ActivationQuantization(**arguments)  # type: ignore[arg-type]
