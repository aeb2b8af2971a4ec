"""Inputs of ONNX operators whose shapes do not fit are refused: no element is dropped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_models import end
from onnx_runtime import run_onnx_runtime
from onnx_runtime_cases import Case, case
from subquant.compiler.reading import parse_bytes
from subquant.dialects import create_context
from subquant.errors import InputError, UnsupportedError

F32 = np.float32


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, F32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def read(model: onnx.ModelProto) -> None:
    """Read the model, with results of f32."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for output in typed.graph.output:
        output.CopyFrom(end(output.name, "FLOAT"))
    parse_bytes(typed.SerializeToString(), create_context())


REGIONS = np.array([[0, 0, 2, 2], [1, 1, 3, 3]], F32)
IMAGES = zeros(1, 2, 5, 5)
QUANTIZED = np.zeros((1, 2, 4, 4), np.uint8)
SCALE, ZERO = F32(0.5), np.uint8(3)
REFUSED: Mapping[str, tuple[Case, str]] = {
    "two diagonals": (case("Trilu", [zeros(3, 3), integers(1, 2)], [1]), "has 2 elements in"),
    "two counts": (
        case("TopK", [zeros(3, 4), integers(2, 3)], [1], outputs=2), "has 2 elements in",
    ),
    "two axes": (case("CumSum", [zeros(3, 4), integers(0, 1)], [1]), "has 2 elements in"),
    "no axis": (case("CumSum", [zeros(3, 4), integers()], [1]), "has 0 elements in"),
    "two axes of a spectrum": (
        case("DFT", [zeros(1, 6, 4, 1), None, integers(1, 2)], [2]), "has 2 elements in",
    ),
    "two steps": (
        case("STFT", [zeros(1, 16, 1), integers(2, 4), zeros(4)], [1]), "has 2 elements in",
    ),
    "two depths": (
        case("OneHot", [integers(0, 1), integers(3, 4), zeros(2)], [1]), "has 2 elements in",
    ),
    "two sizes of a window": (case("HannWindow", [integers(8, 9)], [0]), "has 2 elements in"),
    "an axis twice": (
        case("Unsqueeze", [zeros(3, 4), integers(1, -3)], [1]), "of which some are the same",
    ),
    "a bias of other rows": (
        case("Gemm", [zeros(2, 3), zeros(3, 4), zeros(3, 4)]), "has operands of shapes",
    ),
    "a bias of more rows": (
        case("Gemm", [zeros(1, 3), zeros(3, 4), zeros(5, 4)]), "of shape [5, 4] to [1, 4]",
    ),
    "a bias of three dimensions": (
        case("Gemm", [zeros(2, 3), zeros(3, 4), zeros(1, 1, 4)]), "of shape [1, 1, 4] to [2, 4]",
    ),
    "factors of other depths": (case("Gemm", [zeros(2, 3), zeros(5, 4)]), "Gemm"),
    "a bias for one of the channels": (
        case("Conv", [IMAGES, zeros(4, 2, 3, 3), zeros(1)]), "of shape [1] to 4 channels",
    ),
    "a bias for one of the integer channels": (
        case("QLinearConv", [QUANTIZED, SCALE, ZERO, np.ones((3, 2, 2, 2), np.uint8), SCALE, ZERO,
                             SCALE, ZERO, np.zeros(1, np.int32)]), "of shape [1] to 3 channels",
    ),
    "a bias for one of the transposed channels": (
        case("ConvTranspose", [IMAGES, zeros(2, 4, 3, 3), zeros(1)]), "of shape [1] to 4 channels",
    ),
    "a result of other channels": (
        case("ConvTranspose", [IMAGES, zeros(2, 4, 3, 3)], output_shape=[1, 3, 7, 7]),
        "for 1 images of 4 channels",
    ),
    "more batch indices than regions": (
        case("RoiAlign", [IMAGES, REGIONS, integers(0, 0, 0)], output_height=2, output_width=2,
             sampling_ratio=1), "has batch_indices of shape [3] for 2 regions",
    ),
    "a window of two dimensions": (
        case("STFT", [zeros(1, 16, 1), integers(2), zeros(1, 4)], [1]), "window of shape [1, 4]",
    ),
    "more rows of cosines than of sines": (
        case("RotaryEmbedding", [zeros(1, 2, 3, 8), zeros(6, 4), zeros(5, 4),
                                 np.zeros((1, 3), np.int64)], opset=23), "cosines of shape [6, 4]",
    ),
    "a mask of another shape": (
        case("DeformConv", [IMAGES, zeros(2, 2, 3, 3), zeros(1, 18, 3, 3), None,
                            zeros(1, 7, 3, 3)]),
        "has inputs that do not fit together",
    ),
    "a filter that the mode does not have": (
        case("Resize", [IMAGES, None, np.array([1, 1, 2, 2], F32)], [2], antialias=1),
        "has antialias = 1 in mode nearest",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    """ONNX Runtime refuses them too."""
    refused, message = REFUSED[name]
    with pytest.raises(InputError) as caught:
        read(refused.model)
    assert message in str(caught.value)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run_onnx_runtime(refused.model, refused.arguments)


def test_a_result_beyond_the_kernels_is_refused_by_the_strides() -> None:
    images = [IMAGES, zeros(2, 4, 3, 3)]
    longer = case("ConvTranspose", images, output_shape=[20, 7], strides=[3, 1]).model
    with pytest.raises(UnsupportedError, match="where the kernels with strides of 3 reach 15"):
        read(longer)


def test_a_condition_beyond_an_axis_is_refused_by_the_axis() -> None:
    longer = case("Compress", [zeros(3, 2), np.ones(5, np.bool_)], [1], axis=-1).model
    with pytest.raises(UnsupportedError, match="5 elements for 2 along the axis 1"):
        read(longer)


@pytest.mark.parametrize(
    ("index", "shape", "expected"),
    [(4, (1, 4, 2), "decay of shape [1, 4, 2], expected [2, 4, 2] or [2, 4, 16]"),
     (5, (1, 4, 2), "beta of shape [1, 4, 2], expected [2, 4, 2] or [2, 4, 1]"),
     (5, (2, 3, 1), "beta of shape [2, 3, 1], expected [2, 4, 2] or [2, 4, 1]")],
)  # fmt: skip
def test_each_step_of_each_sequence_has_a_decay_and_a_beta(
    index: int, shape: tuple[int, ...], expected: str
) -> None:
    inputs = [
        *(zeros(2, 4, 16) for _ in range(3)),
        zeros(2, 2, 8, 8),
        zeros(2, 4, 2),
        zeros(2, 4, 1),
    ]
    inputs[index] = zeros(*shape)
    options: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated_delta"}
    refused = case("com.microsoft.LinearAttention", inputs, outputs=2, **options).model
    with pytest.raises(InputError, match=re.escape(expected)):
        read(refused)
