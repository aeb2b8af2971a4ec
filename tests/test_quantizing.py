"""Quantizing float weights: every granularity beside float64, the search, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import fail, succeed
from subquant.errors import UnsupportedError, UsageError
from subquant.layouts import (
    BlockAffineLayout,
    BlockScaledI4Layout,
    BlockScaledLayout,
    BlockScaledPackedLayout,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
    TensorScaledLayout,
)
from subquant.weights import Dataset, Theta
from subquant.weights.grids import CLIPPINGS
from subquant.weights.quantizing import WeightQuantization, quantize_array, quantize_weights


def weights(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.01, 0.2, shape).astype(np.float32)


def spread(plane: Any, layout: Any) -> np.ndarray:
    """A plane of scales or zero points, one for each element."""
    array = np.asarray(plane, np.float64)
    if isinstance(layout, TensorScaledLayout):
        return np.broadcast_to(array, layout.shape)
    array = array.reshape((*layout.shape[:-1], -1))
    return np.repeat(array, layout.shape[-1] // array.shape[-1], axis=-1)


GRANULARITIES: list[dict[str, Any]] = [
    {"granularity": "tensor"},
    {"granularity": "axis"},
    {"granularity": "axis", "axis": -1},
    {"granularity": "block", "block_size": 16},
    {"granularity": "block", "block_size": 3},
]


@pytest.mark.parametrize("options", GRANULARITIES)
@pytest.mark.parametrize("bits", [2, 4, 5, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_granularity(options: dict[str, Any], bits: int, symmetric: bool) -> None:
    """Errors of half a step at most, and no scale wider than its values need."""
    array = weights((3, 5, 48))
    how = WeightQuantization(bits, scales="min-max", asymmetric=not symmetric, **options)
    layout = quantize_array(array, how)
    expected = TensorScaledLayout
    if how.granularity == "block":
        expected = BlockScaledLayout if symmetric else BlockAffineLayout
        if symmetric and bits < 8 and how.block_size == 16:
            expected = BlockScaledI4Layout if bits == 4 else BlockScaledPackedLayout
    assert type(layout) is expected
    d = spread(layout.planes["d"], layout)
    # Scales of float16 are off by 2**-11, and so are the ends of the range.
    is_half = np.asarray(layout.planes["d"]).dtype == np.float16
    assert is_half == (how.granularity == "block" and bits < 8)
    bound = d * (0.5 + 2.0**bits / 2**11 if is_half else 0.50001)
    assert (np.abs(layout.dequant() - array.astype(np.float64)) <= bound).all()
    # The greatest magnitude (or the range) of some group is at the end of the storage range.
    assert np.abs(np.rint(layout.dequant() / d)).max() >= 2 ** (bits - 1) - 1
    assert layout.dequant().shape == array.shape


def test_asymmetric_zero_is_exact() -> None:
    """Also where all values are of one sign, as after an activation."""
    array = np.abs(weights((4, 32)))
    array[:, ::3] = 0
    for granularity in ("tensor", "axis", "block"):
        how = WeightQuantization(4, granularity, block_size=8, asymmetric=True)  # type: ignore[arg-type]
        assert not quantize_array(array, how).dequant()[array == 0].any()


@pytest.mark.parametrize(
    ("options", "zero_points", "scale_type"),
    [
        ({"bits": 4}, True, np.float16),
        ({"bits": 7}, True, np.float16),
        ({"bits": 4, "asymmetric": False}, False, np.float16),
        ({"bits": 4, "scales": "min-max"}, True, np.float16),
        ({"bits": 8}, False, np.float32),
        ({"bits": 8, "asymmetric": True, "scales": "mse"}, True, np.float32),
        ({"bits": 4, "granularity": "axis"}, False, np.float32),
        ({"bits": 4, "granularity": "tensor"}, False, np.float32),
    ],
)
def test_defaults(options: dict[str, Any], zero_points: bool, scale_type: Any) -> None:
    layout = quantize_array(weights((16, 64)), WeightQuantization(**options))
    assert isinstance(layout, BlockAffineLayout) == (zero_points)
    assert np.asarray(layout.planes["d"]).dtype == scale_type


@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize("zero_points", [True, False])
def test_the_search_has_the_least_sum_of_powers(zero_points: bool, power: int) -> None:
    """Each block beside all ranges in float64; the symmetric ones have any sign of the scale."""
    array = np.random.default_rng(3).standard_t(3, (8, 32))
    how = WeightQuantization(
        3, scales="mse" if power == 2 else "fourth-power", asymmetric=zero_points
    )
    errors = quantize_array(array.astype(np.float32), how).dequant() - array
    for row, error in zip(array, errors, strict=True):
        low, high = min(row.min(), 0.0), max(row.max(), 0.0)
        errors_of_ranges = []
        for factor in CLIPPINGS:
            span = (high - low) / 7 if zero_points else max(row, key=abs) / -4
            d = float(np.float16(span * factor))
            z = np.clip(np.rint(-low / d), 0, 7) if zero_points else 0
            ends = (0, 7) if zero_points else (-4, 3)
            q = np.clip(np.rint(row / d) + z, *ends)
            errors_of_ranges.append((np.abs((q - z) * d - row) ** power).sum())
        assert (np.abs(error) ** power).sum() == pytest.approx(min(errors_of_ranges), rel=1e-3)


def test_scales_that_float16_does_not_hold() -> None:
    """Tensors of great or small values have scales of float32, and the same relative errors."""
    array = weights((8, 64))
    errors = []
    for factor in (1.0, 2.0**40, 2.0**-40, 2.0**100, 2.0**-100):
        layout = quantize_array(array * np.float32(factor), WeightQuantization(4))
        assert np.asarray(layout.planes["d"]).dtype == (np.float16 if factor == 1 else np.float32)
        difference = layout.dequant().astype(np.float64) / factor - array
        errors.append(np.linalg.norm(difference) / np.linalg.norm(array))
    assert errors[1:] == pytest.approx([errors[0]] * 4, rel=2e-2)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("options", GRANULARITIES)
def test_the_search_is_never_worse(options: dict[str, Any], symmetric: bool) -> None:
    """Less square error, and much less where few values are large."""
    array = np.random.default_rng(4).standard_t(3, (2, 3, 48)).astype(np.float32)

    def error(scales: Any) -> float:
        how = WeightQuantization(4, scales=scales, asymmetric=not symmetric, **options)
        return float(((quantize_array(array, how).dequant() - array.astype(np.float64)) ** 2).sum())

    assert error("mse") <= error("min-max")
    if options.get("block_size") != 3:
        assert error("mse") < 0.99 * error("min-max")


def test_zeros_and_tiny_values() -> None:
    for array in (np.zeros((2, 32)), np.full((2, 32), 1e-38), np.full((2, 32), 1e38)):
        layout = quantize_array(array.astype(np.float32), WeightQuantization(8))
        assert np.isfinite(layout.dequant()).all()
        assert (np.asarray(layout.planes["d"]) > 0).all()


def dataset() -> Dataset:
    done = quantize_array(weights((4, 32)), WeightQuantization())
    tensors = [
        PrimitiveTensor(weights((8, 64), 1), "blk.0.attn.weight"),
        PrimitiveTensor(weights((8, 64), 2).astype(np.float16), "blk.0.ffn.weight"),
        PrimitiveTensor(weights((64,), 3), "norm.weight"),
        PrimitiveTensor(np.arange(6).reshape(2, 3), "ids"),
        PlanarQuantizedTensor(done, "done.weight"),
    ]
    return Dataset({"name": "small"}, Theta(tensors))


def test_a_data_set() -> None:
    """Float tensors of two axes, and only those that are selected; the rest is taken over."""
    source = dataset()
    seen: list[tuple[int, int, str]] = []
    how = WeightQuantization(4)
    result, errors = quantize_weights(source, how, "blk", lambda *step: seen.append(step))
    assert seen == [(0, 2, "blk.0.attn.weight"), (1, 2, "blk.0.ffn.weight")]
    tensors = result.theta.flatten()
    quantized = {name for name, tensor in tensors.items() if isinstance(tensor, QuantizedTensor)}
    assert quantized == {"blk.0.attn.weight", "blk.0.ffn.weight", "done.weight"}
    for error in errors:
        source_tensor, tensor = source.theta.flatten()[error.name], tensors[error.name]
        assert isinstance(source_tensor, PrimitiveTensor)
        assert isinstance(tensor, QuantizedTensor)
        values = source_tensor.array.astype(np.float64)
        difference = tensor.unpack().dequant() - values
        relative = np.sqrt((difference**2).mean() / (values**2).mean())
        np.testing.assert_allclose(error.relative_error, relative, rtol=1e-6)
        np.testing.assert_allclose(error.greatest_error, np.abs(difference).max(), rtol=1e-6)
        assert error.bits_per_element == 4.75  # a float16 and a zero point of 8 bits for a block
        assert 15 < error.signal_to_noise < 25


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "blocks": ({"block_size": 48}, "", "tensor 'blk.0.attn.weight': has a last axis of 64"),
    "axis": ({"granularity": "axis", "axis": 2}, "", "has 2 axes, and none with the number 2"),
    "nothing": ({}, "head", "has a name that matches 'head'"),
    "no pattern": ({}, "(", "'\\(' is no regular expression"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_said(case: str) -> None:
    options, select, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        quantize_weights(dataset(), WeightQuantization(**options), select)


def test_values_that_are_not_finite() -> None:
    with pytest.raises(UsageError, match="an infinity, a NaN or a number beyond f32"):
        quantize_array(np.array([[np.nan] * 32]), WeightQuantization())
    with pytest.raises(UsageError, match="an infinity, a NaN or a number beyond f32"):
        quantize_array(np.array([[1e300] * 32]), WeightQuantization())


@pytest.mark.parametrize("granularity", ["tensor", "axis", "block"])
@pytest.mark.parametrize("rank", [33, 64])
def test_arrays_of_many_axes(rank: int, granularity: Any) -> None:
    array = np.ones([1] * (rank - 1) + [32], np.float32)
    with pytest.raises(UnsupportedError, match=f"has {rank} axes, expected 32 at most"):
        quantize_array(array, WeightQuantization(granularity=granularity))


def test_the_command(tmp_path: Path) -> None:
    """The archive, the table, the picture and JSON."""
    source, output, picture = (str(tmp_path / n) for n in ("m.irpa", "o.irpa", "errors.svg"))
    dataset().save(source)
    arguments = ("quantize", source, "-o", output)
    result = succeed(*arguments, "--bits", "4", "--scales", "mse", "--plot", picture)
    assert "blk.0.attn.weight" in result.output
    assert "dB" in result.output
    assert Dataset.load(output).properties == {"name": "small"}
    svg = Path(picture).read_text()
    assert ">blk.0.attn.weight</text>" in svg
    assert ">blk.0.ffn.weight</text>" in svg
    result = succeed(*arguments, "--granularity", "axis", "--asymmetric", "--json")
    described = json.loads(result.output)
    assert [t["name"] for t in described["tensors"]] == ["blk.0.attn.weight", "blk.0.ffn.weight"]
    assert described["bytes"] == Path(output).stat().st_size


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["missing.irpa"], 1, "cannot read 'missing.irpa'"),
        (["m.irpa", "-o", "m.irpa"], 2, "is the input"),
        (["m.irpa", "-o", "m.bin"], 2, "must end in .irpa"),
        (["m.irpa", "--bits", "9"], 2, "9 is not in the range"),
        (["m.irpa", "--block-size", "48"], 2, "blocks of 48 do not divide"),
        (["m.irpa", "--plot", "errors.jpg"], 2, "'errors.jpg' must end in .svg or .png"),
        (["m.irpa", "--plot", "no/such/folder.svg", "-o", "x.irpa"], 1, "cannot write"),
    ],
)
def test_wrong_calls(
    arguments: list[str], status: int, message: str, in_temporary_folder: Path
) -> None:
    dataset().save("m.irpa")
    assert message in fail(status, "quantize", *arguments)
    assert not Path("m-q8.irpa").exists()


@pytest.mark.parametrize("scales", ["min-max", "mse"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 8])
def test_the_greatest_floats(scales: Any, symmetric: bool, bits: int) -> None:
    """The range of the values is twice what f32 holds; each result is finite and within a step."""
    greatest = float(np.finfo(np.float32).max)
    array = np.linspace(-1, 1, 64).reshape(2, 32) * greatest
    how = WeightQuantization(bits, scales=scales, asymmetric=not symmetric)
    actual = quantize_array(array.astype(np.float32), how).dequant().astype(np.float64)
    assert np.isfinite(actual).all()
    step = greatest / how.storage.maximum * (1 if symmetric else 2)
    assert np.abs(actual - array).max() <= step
