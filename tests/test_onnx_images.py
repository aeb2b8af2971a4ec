"""Operators of images beside ONNX Runtime: transposed convolutions, padding, resizing, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_models import text_of
from onnx_runtime_cases import Case, Cases, case
from subquant.errors import UnsupportedError

Rng = np.random.Generator


def floats(rng: Rng, *shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def transposed_convolutions(rng: Rng) -> dict[str, Case]:
    """Every padding, in 1 to 3 dimensions."""
    cases = {}
    for mode in ("pads", "SAME_UPPER", "SAME_LOWER", "VALID", "shape", "groups", "dilations"):
        for rank in (1, 2, 3):
            groups = 2 if mode == "groups" else 1
            sizes, strides = [3, 2, 3][:rank], [2, 1, 2][:rank]
            images, kernels = floats(rng, 2, 4, *[4, 5, 3][:rank]), floats(rng, 4, 3, *sizes)
            options: dict[str, Any] = {"strides": strides, "group": groups}
            if mode == "pads":
                options |= {"pads": [1, 0, 2, 0, 1, 1][: 2 * rank]}
                options |= {"output_padding": [1, 0, 1][:rank]}
            elif mode == "shape":  # one less than the natural one, stride * (n - 1) + size
                extents = zip(strides, images.shape[2:], sizes, strict=True)
                options["output_shape"] = [s * (n - 1) + size - 1 for s, n, size in extents]
            elif mode == "dilations":
                options |= {"dilations": [2, 3, 1][:rank], "pads": [1] * (2 * rank)}
            elif mode != "groups":
                options |= {"auto_pad": mode}
            cases[f"transposed {mode} {rank}"] = case(
                "ConvTranspose", [images, kernels, floats(rng, 3 * groups)], **options
            )
    return cases


def paddings(rng: Rng) -> dict[str, Case]:
    """Every mode and width; negative pads crop."""
    cases = {}
    for mode in ("constant", "reflect", "edge", "wrap"):
        for kind in ("float32", "int8", "int32", "int64", "bool", "float64"):
            values = rng.integers(-9, 9, (3, 4, 5)).astype(kind)
            pads = np.array([1, -1, 3, 2, 2, 0]) if mode != "wrap" else np.array([1, 0, 3, 2, 2, 0])
            inputs = [values, pads]
            if mode == "constant":
                inputs.append(np.array(3, kind))
            cases[f"pad {mode} {kind}"] = case("Pad", inputs, [1], mode=mode)
    cases["pad reflect a long line"] = case(
        "Pad", [floats(rng, 1, 1, 342), np.array([0, 0, 128, 0, 0, 128])], [1], mode="reflect"
    )
    cases["pad axes"] = case(
        "Pad", [floats(rng, 3, 4, 5), np.array([1, 2, 2, 0]), np.float32(7), np.array([-1, 0])],
        [1, 3],
    )  # fmt: skip
    return cases


TRANSFORMS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
              "asymmetric")  # fmt: skip


def resizes(rng: Rng) -> dict[str, Case]:
    """Every mode with every transformation of coordinates."""
    cases = {}
    for transform in TRANSFORMS:
        for mode in ("nearest", "linear", "cubic", "linear antialias", "cubic antialias"):
            own, _, antialias = mode.partition(" ")
            options: dict[str, Any] = {
                "mode": own, "coordinate_transformation_mode": transform,
                "antialias": int(bool(antialias)),
            }  # fmt: skip
            if own == "cubic":
                options |= {"cubic_coeff_a": -0.5, "exclude_outside": 1}
            if own == "nearest":
                rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
                options["nearest_mode"] = str(rng.choice(rounding))
            for number, sizes in enumerate(([1, 2, 9, 4], [1, 2, 4, 13])):
                cases[f"resize {mode} {transform} {number}"] = case(
                    "Resize", [floats(rng, 1, 2, 6, 7), None, None, np.array(sizes)], [3], **options
                )
    scales = np.array([1, 1, 0.6, 2.3], np.float32)
    for mode in ("linear", "cubic"):
        for transform in ("half_pixel", "half_pixel_symmetric", "asymmetric"):
            cases[f"resize scales {mode} {transform}"] = case(
                "Resize", [floats(rng, 1, 2, 6, 7), None, scales], [2], mode=mode,
                coordinate_transformation_mode=transform,
            )  # fmt: skip
    region = np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.1], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        cases[f"resize a region {mode}"] = case(
            "Resize", [floats(rng, 1, 2, 6, 7), region, None, np.array([1, 2, 9, 4])], [1, 3],
            mode=mode, coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=10.0,
        )  # fmt: skip
    for policy in ("not_larger", "not_smaller"):
        cases[f"resize {policy}"] = case(
            "Resize", [floats(rng, 1, 2, 6, 7), None, None, np.array([9, 9])], [3], axes=[2, 3],
            keep_aspect_ratio_policy=policy, mode="linear",
        )  # fmt: skip
    cases["resize volumes"] = case(
        "Resize", [floats(rng, 1, 2, 3, 4, 5), None, None, np.array([1, 2, 5, 2, 9])], [3],
        mode="linear",
    )  # fmt: skip
    return cases


def samples(rng: Rng) -> dict[str, Case]:
    """GridSample, RoiAlign, MaxRoiPool, Col2Im and MaxUnpool."""
    cases = {}
    for mode in ("linear", "nearest", "cubic", "volumes"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                shape = (3, 4, 5) if mode == "volumes" else (4, 5)
                grid = rng.uniform(-2.5, 2.5, (2, *shape[::-1], len(shape))).astype(np.float32)
                cases[f"grid {mode} {padding} {corners}"] = case(
                    "GridSample", [floats(rng, 2, 3, *shape), grid],
                    mode="linear" if mode == "volumes" else mode, padding_mode=padding,
                    align_corners=corners, opset=20,
                )  # fmt: skip
    corners_ = np.sort(rng.uniform(-2, 14, (4, 2, 2)), axis=1).reshape(4, 4).astype(np.float32)
    batch = rng.integers(0, 2, 4)
    cases["align regions by the maximum"] = case(
        "RoiAlign", [floats(rng, 2, 3, 9, 11), corners_, batch], opset=16, mode="max",
        output_height=2, output_width=3, sampling_ratio=2,
    )  # fmt: skip
    for ratio in (0, 2):
        for transform in ("half_pixel", "output_half_pixel"):
            cases[f"align regions {ratio} {transform}"] = case(
                "RoiAlign", [floats(rng, 2, 3, 9, 11), corners_, batch], [] if ratio else [1, 2],
                opset=16, output_height=2, output_width=3, sampling_ratio=ratio,
                spatial_scale=0.77, coordinate_transformation_mode=transform,
            )  # fmt: skip
    numbered = np.concatenate([batch[:, None].astype(np.float32), corners_], axis=1)
    cases["pool regions"] = case(
        "MaxRoiPool", [floats(rng, 2, 3, 9, 11), numbered], pooled_shape=[2, 3], spatial_scale=0.77
    )
    cases["col2im"] = case(
        "Col2Im", [floats(rng, 2, 12, 15), np.array([6, 5]), np.array([2, 2])], [1, 2],
        strides=[2, 1], dilations=[1, 2], pads=[1, 1, 0, 1],
    )  # fmt: skip
    offsets, mask = floats(rng, 2, 2 * 6 * 2, 6, 3), rng.random((2, 2 * 6, 6, 3))
    cases["deformed convolution"] = case(
        "DeformConv",
        [floats(rng, 2, 4, 7, 6), floats(rng, 6, 2, 3, 2), offsets, floats(rng, 6),
         mask.astype(np.float32)],
        opset=19, group=2, offset_group=2, strides=[1, 2], pads=[1, 0, 0, 1], dilations=[1, 2],
    )  # fmt: skip
    positions = np.stack([rng.permutation(8)[:4] + 8 * n for n in range(6)]).reshape(2, 3, 4)
    cases["unpool"] = case(
        "MaxUnpool", [floats(rng, 2, 3, 4), positions], kernel_shape=[2], strides=[2]
    )
    return cases


def draw() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    return {**transposed_convolutions(rng), **paddings(rng), **resizes(rng), **samples(rng)}


CASES = Cases(draw, tolerance=2e-5, share=10)
test_numpy_computes_as_onnx_runtime, test_devices_compute_as_onnx_runtime = CASES.tests()


REFUSED = {
    "resizes integers": (
        case("Resize", [np.zeros((1, 1, 4, 4), np.uint8), None, np.float32([1, 1, 2, 2])], [2],
             mode="linear"), "convert to FLOAT with Cast before it",
    ),
    "samples as many as regions are large": (
        case("RoiAlign", [np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 4), np.float32),
                          np.zeros(1, np.int64)], opset=16),
        "export it with a sampling_ratio above 0",
    ),
    "pads by what is computed": (
        case("Pad", [np.zeros(3, np.float32), np.array([1, 1])]),
        "needs tensor 'x1' to be constant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_to_do(name: str) -> None:
    each, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        text_of(each.typed)
