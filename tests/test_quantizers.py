"""Quantizers: one formula for every granularity, and round trips."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subquant.errors import InputError, UsageError
from subquant.layouts import (
    BlockAffineLayout,
    BlockScaledLayout,
    DynamicScaledQuantizer,
    PrimitiveTensor,
    QuantizerTensor,
    StaticScaledQuantizer,
    TensorScaledLayout,
    tensor_from_record,
)


def nearest(value: float, d: float, m: int, dtype: Any) -> int:
    """The storage value, by rationals (float32 rounds the quotient; ties are avoided)."""
    info = np.iinfo(dtype)
    return min(max(round(Fraction(float(value)) / Fraction(float(d)) + m), info.min), info.max)


VALUES = np.random.default_rng(3).normal(0, 2, (4, 8)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_every_granularity_has_one_formula(dtype: str) -> None:
    """Per tensor, per axis (both) and per block, beside rationals."""
    d = np.random.default_rng(5).uniform(0.01, 0.1, (4, 4)).astype(np.float32)
    m = np.random.default_rng(6).integers(0, 9, (4, 4))
    cases = [
        (StaticScaledQuantizer(None, d[0, 0], m[0, 0], dtype=dtype), lambda r, c: (0, 0)),
        (StaticScaledQuantizer(None, d[0], m[0], axis=0, dtype=dtype), lambda r, c: (0, r)),
        (
            StaticScaledQuantizer(None, np.tile(d[0], 2), np.tile(m[0], 2), axis=-1, dtype=dtype),
            lambda r, c: (0, c % 4),
        ),
        (StaticScaledQuantizer(None, d, m, block_size=2, dtype=dtype), lambda r, c: (r, c // 2)),
    ]
    for quantizer, position in cases:
        layout = quantizer.quantize(VALUES).unpack()
        stored = np.asarray(layout.planes["qs"]).reshape(VALUES.shape)
        reals = layout.dequant()
        assert stored.dtype == np.dtype(dtype)
        for (row, column), value in np.ndenumerate(VALUES):
            scale, offset = d[position(row, column)], int(m[position(row, column)])
            expected = nearest(value, scale, offset, dtype)
            assert stored[row, column] == expected
            assert reals[row, column] == np.float32(expected - offset) * scale


@given(st.floats(-100, 100, width=32), st.floats(2**-10, 10, width=32))
def test_per_tensor_and_per_axis_round_alike(value: float, d: float) -> None:
    """Code with ``x / rscale`` in one place and ``x * scale`` in the other fails here."""
    scale = np.float32(1) / np.float32(d)
    x = np.full((2, 3), value, np.float32)
    whole = StaticScaledQuantizer(scale, np.float32(d))
    along = StaticScaledQuantizer(np.full(2, scale), np.full(2, d, np.float32), axis=0)
    blocks = StaticScaledQuantizer(
        np.full((2, 1), scale), np.full((2, 1), d, np.float32), block_size=3
    )
    stored = [q.quantize(x).unpack().planes["qs"].reshape(2, 3) for q in (whole, along, blocks)]
    np.testing.assert_array_equal(stored[0], stored[1])
    np.testing.assert_array_equal(stored[0], stored[2])


def test_the_two_paths_would_differ() -> None:
    """The test above can fail: the two roundings give other integers for these values."""
    d = np.random.default_rng(1).uniform(0.001, 1, 100_000).astype(np.float32)
    x = (np.random.default_rng(2).integers(-90, 90, d.size) + 0.5) * d
    x = x.astype(np.float32)
    assert (np.rint(x / d) != np.rint(x * (np.float32(1) / d))).any()


def test_a_quantizer_of_reciprocals() -> None:
    """`scale` is the reciprocal of the scale of an MLIR type."""
    quantizer = StaticScaledQuantizer(4.0)
    assert quantizer.reciprocal_scale == 0.25
    layout = quantizer.quantize(np.array([1.0, -0.5], np.float32)).unpack()
    assert layout.planes["qs"].tolist() == [4, -2]
    assert layout.dequant().tolist() == [1.0, -0.5]
    assert isinstance(layout, TensorScaledLayout)
    assert layout.parameters().scales == 0.25


def test_saturation_can_be_disabled() -> None:
    assert StaticScaledQuantizer(1.0).quantize(np.array([1e3])).unpack().planes["qs"] == [127]
    strict = StaticScaledQuantizer(1.0, disable_saturate=True)
    with pytest.raises(UsageError, match="beyond the range of i8"):
        strict.quantize(np.array([1e3]))
    wide = StaticScaledQuantizer(1.0, dtype=np.int32, disable_saturate=True)
    assert wide.quantize(np.array([1e9])).unpack().planes["qs"] == [10**9]


def test_float64_is_not_rounded_first() -> None:
    """2.5 and a little is above the tie that it is in float32."""
    values = np.array([2.5 + 1e-9, 3.5 - 1e-9])
    quantizer = StaticScaledQuantizer(1.0)
    assert quantizer.quantize(values).unpack().planes["qs"].tolist() == [3, 3]
    assert quantizer.quantize(values.astype("f4")).unpack().planes["qs"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("shape", "options"),
    [((1, 1), {}), ((2, 1), {"axis": 0}), ((1, 4), {"axis": 1}), ((2, 2), {"block_size": 2})],
)
def test_the_range_that_may_not_be_left_is_that_of_each_scale(
    shape: tuple[int, int], options: dict[str, int]
) -> None:
    """Scales 1, 2, 4, 8 and offsets 0 to 3, broadcast over 2 x 4 elements."""
    d, m = 2.0 ** np.arange(np.prod(shape)).reshape(shape), np.arange(np.prod(shape)).reshape(shape)
    scales, offsets = (np.repeat(a, 4 // shape[1], 1) * np.ones((2, 1)) for a in (d, m))
    if "block_size" not in options:
        d, m = (a.reshape(-1) if options else a.reshape(()) for a in (d, m))
    quantizer = StaticScaledQuantizer(
        reciprocal_scale=d, offset=m, disable_saturate=True, **options
    )
    for step, beyond in ((127, 128), (-128, -129)):
        inside = ((step - offsets) * scales).astype(np.float32)
        np.testing.assert_array_equal(quantizer.quantize(inside).unpack().dequant(), inside)
        for index in np.ndindex(inside.shape):
            outside = inside.copy()
            outside[index] = (beyond - offsets[index]) * scales[index]
            with pytest.raises(UsageError, match="beyond the range of i8"):
                quantizer.quantize(outside)


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": -1}, {"block_size": 4}])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_dynamic_scales(options: dict[str, int], dtype: str) -> None:
    """Each group's greatest magnitude becomes the greatest storage value; errors: half a step."""
    tensor = PrimitiveTensor(VALUES, "x")
    quantized = DynamicScaledQuantizer(dtype=dtype, **options).quantize(tensor)
    assert quantized.name == "x"
    layout = quantized.unpack()
    assert isinstance(layout, BlockScaledLayout if "block_size" in options else TensorScaledLayout)
    stored = np.abs(layout.planes["qs"].reshape(VALUES.shape).astype(int))
    groups = {
        "axis=0": stored.max(axis=1),
        "axis=-1": stored.max(axis=0),
        "block_size=4": stored.reshape(4, 2, 4).max(axis=-1),
    }.get(",".join(f"{k}={v}" for k, v in options.items()), stored.max())
    assert (np.asarray(groups) == np.iinfo(dtype).max).all()
    d = np.broadcast_to(layout.planes["d"], layout.planes["qs"].shape).reshape(VALUES.shape)
    assert (np.abs(layout.dequant() - VALUES) <= d * 0.5001).all()


def test_dynamic_scales_of_zeros() -> None:
    layout = DynamicScaledQuantizer(axis=0).quantize(np.zeros((2, 3))).unpack()
    assert not layout.dequant().any()
    assert (layout.planes["d"] > 0).all()
    with pytest.raises(UsageError, match="finite"):
        DynamicScaledQuantizer().quantize(np.array([np.inf]))


def test_blocks_with_offsets_keep_them_as_integers() -> None:
    quantizer = StaticScaledQuantizer(
        None, np.array([[0.1, 0.3]], np.float32), np.array([[3, -7]]), block_size=2
    )
    layout = quantizer.quantize(np.array([[0.5, 1.0, 2.0, -3.0]])).unpack()
    assert isinstance(layout, BlockAffineLayout)
    assert layout.planes["qs"].tolist() == [[8, 13, 0, -17]]
    assert str(layout.parameters().storage) == "i8"


@pytest.mark.parametrize(
    "quantizer",
    [
        StaticScaledQuantizer(4.0, name="q"),
        StaticScaledQuantizer([4.0, 2.0], None, [1, 2], 0, dtype=np.uint8, name="q"),
        StaticScaledQuantizer([[4.0, 2.0]], block_size=3, disable_saturate=True, name="q"),
        DynamicScaledQuantizer(axis=1, name="q"),
        DynamicScaledQuantizer(block_size=2, dtype=np.int16, name="q"),
    ],
)
def test_records(quantizer: QuantizerTensor) -> None:
    """A record and its arrays make the same quantizer again."""
    repeated = tensor_from_record("q", quantizer.record, quantizer.arrays)
    assert type(repeated) is type(quantizer)
    assert repeated.record == quantizer.record
    assert repeated.arrays.keys() == quantizer.arrays.keys()
    for key, array in quantizer.arrays.items():
        np.testing.assert_array_equal(repeated.arrays[key], array)
    assert quantizer.with_name("p").name == "p"


WRONG: dict[str, tuple[Any, str]] = {
    "no scale": (StaticScaledQuantizer, "needs a scale"),
    "two granularities": (lambda: StaticScaledQuantizer([1.0], axis=0, block_size=2), "not both"),
    "shape of the offset": (lambda: StaticScaledQuantizer([1.0], offset=[1, 2], axis=0), "differ"),
    "scalar with an axis": (lambda: StaticScaledQuantizer(1.0, axis=0), "expected one dimension"),
    "vector without one": (lambda: StaticScaledQuantizer([1.0]), "for a whole tensor"),
    "zero": (lambda: StaticScaledQuantizer(0.0), "positive and finite"),
    "offset of a half": (lambda: StaticScaledQuantizer(1.0, offset=0.5), "must be integers"),
    "storage": (lambda: StaticScaledQuantizer(1.0, dtype=np.int64), "storage is of int64"),
    "unsigned": (lambda: DynamicScaledQuantizer(dtype=np.uint8), "expected int8, int16"),
    "both": (lambda: DynamicScaledQuantizer(axis=0, block_size=2), "not both"),
    "no such axis": (lambda: StaticScaledQuantizer([1.0], axis=2).quantize(VALUES), "axis 2"),
    "length": (lambda: StaticScaledQuantizer([1.0], axis=0).quantize(VALUES), r"expected \(4,\)"),
    "blocks": (lambda: DynamicScaledQuantizer(block_size=3).quantize(VALUES), "do not divide"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_said(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        make()


def test_wrong_records() -> None:
    record, arrays = StaticScaledQuantizer(4.0, name="q").record, {"q:scale": np.ones(())}
    with pytest.raises(InputError, match="not there"):
        tensor_from_record("q", record, arrays)
    arrays["q:rscale"] = np.zeros(())
    with pytest.raises(InputError, match="positive"):
        tensor_from_record("q", record, arrays)
    arrays["q:rscale"] = np.ones(())
    for key, value in (("axis", "0"), ("dtype", "int64"), ("dtype", None), ("block_size", True)):
        with pytest.raises(InputError):
            tensor_from_record("q", {**record, key: value}, arrays)
