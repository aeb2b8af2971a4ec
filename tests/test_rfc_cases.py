"""The two cases of the RFC's appendix, with the types as the RFC writes them.

The expected values come from a transcription of the RFC's ``compute_scales`` and
``compute_zero_points`` and a Python loop over the elements; the NumPy reference must agree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

import subquant
from devices import compile_for
from subquant.core._mlir import ir
from subquant.core.option_fields import Rounding
from subquant.dialects import create_context
from subquant.dialects.quant import parameters_of
from subquant.errors import ExecutionError, ParseError, VerificationError
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import QuantizationParameters
from subquant.runtime import Executable

RANKED = "!quant.uniform<i8<-128:127>:f32:{1:2, 3:2}, {{{1.0:1, 2.0:2}}, {{3.0:3, 4.0:4}}}>"
UNRANKED = "!quant.uniform<i8<-128:127>:f32:{1:2, 3:2}, {{1.0:1, 2.0:2}, {3.0:3, 4.0:4}}>"

TYPES = {
    f"{cast}{case}": types
    for case, shape, quantized in ((1, "6x4x6x4x", RANKED), (2, "*x", UNRANKED))
    for cast, types in (("q", (shape + "f32", shape + quantized)),
                        ("d", (shape + quantized, shape + "f32")))
}  # fmt: skip
MODULE = "".join(
    f"""
func.func @{name}(%x: tensor<{source}>) -> tensor<{target}> {{
  %y = "subquant.{name[0]}cast"(%x) : (tensor<{source}>) -> tensor<{target}>
  return %y : tensor<{target}>
}}"""
    for name, (source, target) in TYPES.items()
)

MAY_BE_SHORTER = "must be 3 to 4 at run time (2 blocks of 2, the last may be shorter)"

DEVICES = [
    "cpu",
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param("vulkan_32bit", marks=pytest.mark.vulkan),
]


@pytest.fixture(params=DEVICES)
def executable(request: pytest.FixtureRequest) -> Executable:
    return compile_for(MODULE, request.getfixturevalue(request.param))


# The RFC's text: "In the absence of a block size for a specific axis i, we assume its value to be
# equal to the dim(tensor, i)"; scales without the dimensions of size 1 stand for the full ones.
SCALES = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
ZERO_POINTS = np.array([[1, 2], [3, 4]], np.int8)


def compute_per_element(of_type: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``compute_scales``, ``compute_zero_points``: ``result[i] = of_type[i / q_block_sizes]``."""
    q_block_sizes = [2 if axis in (1, 3) else extent for axis, extent in enumerate(shape)]
    full = of_type.reshape([2 if axis in (1, 3) else 1 for axis in range(len(shape))])
    result = np.zeros(shape, of_type.dtype)
    for i in np.ndindex(*shape):
        result[i] = full[tuple(n // b for n, b in zip(i, q_block_sizes, strict=True))]
    return result


def expected_quantized(values: np.ndarray, round_: Callable[[float], int] = round) -> np.ndarray:
    scales = compute_per_element(SCALES, values.shape)
    zero_points = compute_per_element(ZERO_POINTS, values.shape)
    stored = np.zeros(values.shape, np.int8)
    for i in np.ndindex(*values.shape):
        real = np.float32(values[i] / scales[i]) + np.float32(zero_points[i])
        stored[i] = round_(max(-128.0, min(127.0, float(real))))  # `round` takes half to even
    return stored


def expected_dequantized(stored: np.ndarray) -> np.ndarray:
    scales = compute_per_element(SCALES, stored.shape)
    zero_points = compute_per_element(ZERO_POINTS, stored.shape)
    reals = np.zeros(stored.shape, np.float32)
    for i in np.ndindex(*stored.shape):
        reals[i] = np.float32(int(stored[i]) - int(zero_points[i])) * scales[i]
    return reals


def reals(shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    ties = rng.integers(-700, 700, shape).astype(np.float32) / 2
    return np.where(rng.random(shape) < 0.5, ties, ties * np.float32(0.37)).astype(np.float32)


def storage(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-128, 128, shape).astype(np.int8)


def parameters(text: str) -> QuantizationParameters:
    with create_context():
        actual = parameters_of(ir.Type.parse(text))
    assert actual is not None
    return actual


def test_the_types_are_the_rfcs() -> None:
    ranked, unranked = parameters(RANKED), parameters(UNRANKED)
    assert ranked.scales.shape == (2, 1, 2)
    assert ranked.full_grid_shape(4) == (1, 2, 1, 2)
    assert unranked.scales.shape == (2, 2)
    for rank in (4, 5, 6):
        assert unranked.full_grid_shape(rank) == (1, 2, 1, 2) + (1,) * (rank - 4)


@pytest.mark.parametrize(
    ("rounding", "round_"), [("nearest-even", round), ("toward-zero", math.trunc)]
)
@pytest.mark.parametrize("scales_shape", [(2, 1, 2), (1, 2, 1, 2), (2, 2)])
def test_case_1_by_numpy(
    rounding: Rounding, round_: Callable[[float], int], scales_shape: tuple[int, ...]
) -> None:
    """The RFC's text has scales 2x1x2, its lowering 1x2x1x2."""
    values, grid = reals((6, 4, 6, 4)), parameters(UNRANKED)
    scales, zero_points = (a.reshape(scales_shape) for a in (grid.scales, grid.zero_points))
    shaped = dataclasses.replace(grid, scales=scales, zero_points=zero_points)
    stored = quantize(values, shaped, rounding)
    np.testing.assert_array_equal(stored, expected_quantized(values, round_), strict=True)
    real = dequantize(stored, shaped)
    np.testing.assert_array_equal(real, expected_dequantized(stored), strict=True)


SHAPES = [(6, 4, 6, 4), (1, 4, 1, 4), (2, 4, 3, 4, 5), (2, 4, 1, 4, 3, 2), (3, 4, 2, 4, 1, 7),
          (1, 4, 3, 4, 2), (2, 4, 1, 4, 2, 3)]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "shape", "stored_shape"),
    [
        (1, (6, 4, 6, 4), (6, 4, 6, 4)),
        *((2, shape, shape) for shape in SHAPES),
        # RFC, "Type Constraints", note 3: the last block of axis 1 or 3 may have one element.
        (2, (2, 3, 2, 4), (2, 4, 2, 3)),
    ],
    ids=str,
)
def test_compiled_casts(
    executable: Executable, case: int, shape: tuple[int, ...], stored_shape: tuple[int, ...]
) -> None:
    values, stored = reals(shape), storage(stored_shape)
    quantized, dequantized = expected_quantized(values), expected_dequantized(stored)
    np.testing.assert_array_equal(executable[f"q{case}"](values), quantized, strict=True)
    np.testing.assert_array_equal(executable[f"d{case}"](stored), dequantized, strict=True)
    written = parameters(RANKED if case == 1 else UNRANKED)
    np.testing.assert_array_equal(quantize(values, written), quantized, strict=True)
    np.testing.assert_array_equal(dequantize(stored, written), dequantized, strict=True)


def test_case_2_without_elements(executable: Executable) -> None:
    """An axis that is not quantized may have size 0; IREE's Vulkan driver refuses the dispatch."""
    calls = [
        lambda: executable.q2(np.zeros((0, 4, 2, 4), np.float32)).shape == (0, 4, 2, 4),
        lambda: executable.d2(np.zeros((2, 4, 2, 4, 0), np.int8)).shape == (2, 4, 2, 4, 0),
    ]
    for call in calls:
        if executable.device.is_vulkan:
            with pytest.raises(ExecutionError, match="a dynamic tensor has no elements"):
                call()
        else:
            assert call()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((6, 5, 6, 4), f"dimension 1 {MAY_BE_SHORTER}"),
        ((6, 2, 6, 4), f"dimension 1 {MAY_BE_SHORTER}"),
        ((6, 0, 6, 4), f"dimension 1 {MAY_BE_SHORTER}"),
        ((6, 4, 6, 6), f"dimension 3 {MAY_BE_SHORTER}"),
        ((6, 4, 6), "rank must be at least 4 at run time, for the quantized dimension 3"),
        ((), "rank must be at least 4 at run time, for the quantized dimension 3"),
    ],
    ids=str,
)
def test_case_2_extents_that_do_not_fit(
    executable: Executable, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ExecutionError) as quantizing:
        executable.q2(np.zeros(shape, np.float32))
    assert quantizing.value.message == (
        f"function 'q2' stopped: 'subquant.qcast' op at -:11:8: {message}"
    )
    with pytest.raises(ExecutionError) as dequantizing:
        executable.d2(np.zeros(shape, np.int8))
    assert dequantizing.value.message == (
        f"function 'd2' stopped: 'subquant.dcast' op at -:15:8: {message}"
    )


def test_upstreams_casts_refuse_both_types() -> None:
    """Why these cases are written with ``subquant.qcast``."""
    ranked, _, unranked = MODULE.replace("subquant.", "quant.").partition("func.func @q2")
    with pytest.raises((ParseError, VerificationError), match=r"scales|rank"):
        subquant.compile(ranked)
    with pytest.raises((ParseError, VerificationError), match="rank"):
        subquant.compile("func.func @q2" + unranked)
