"""Layouts of checkpoints: levels of f32, divisors, 8-bit floats, orders of columns, factors.

Each is compared with its formula in NumPy, and compiled with NumPy's values, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from op_cases import compiled_with, on_devices, ran_as, rng
from subquant.errors import InputError, UsageError
from subquant.layouts import (
    ActivationQuantization,
    BlockAffineLayout,
    BlockScaledFloat8Layout,
    InferenceTensor,
    LookupBlockScaledLayout,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedLayout,
    TensorScaledLayout,
    tensor_from_record,
)
from subquant.layouts.activations import stacked
from subquant.layouts.stacked import stack
from subquant.numerics.element_types import Array
from subquant.numerics.parameters import StorageType
from subquant.numerics.small_floats import FLOAT8_FORMATS
from subquant.ops import compile_function, embedding_lookup, linear, rms_norm
from subquant.ops.linear import chosen_linear
from subquant.ops.registry import operand

BF16 = ml_dtypes.bfloat16
LEVELS = np.sort(rng(1).normal(size=16)).astype(np.float32)
TWICE_E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
ROWS, COLUMNS, BLOCK = 12, 64, 16
_Case = tuple[QuantizedLayout, Array]


def _lookup(table: Array, scales: Array, divisor: float | None = None) -> _Case:
    """Return a layout of a table of levels, and its values."""
    indices = rng(2).integers(0, 16, (ROWS, COLUMNS))
    pairs = indices.reshape(ROWS, -1, BLOCK // 2, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8)
    planes = {"d": scales[..., None], "qs": packed}
    widened = scales.astype(np.float32)
    if divisor is not None:
        planes["divisor"] = np.array(divisor, np.float32)
        widened = widened / np.float32(divisor)
    layout = LookupBlockScaledLayout((ROWS, COLUMNS), planes, {"table": table.tolist()})
    return layout, table.astype(np.float32)[indices] * np.repeat(widened, BLOCK, axis=1)


def _float8(form: str, block: list[int], codes: Array | None = None) -> _Case:
    """Return a layout of 8-bit floats, and its values."""
    if codes is None:
        codes = rng(3).integers(0, 0x7B, (ROWS, COLUMNS)) | rng(4).integers(0, 2, (ROWS, 1)) << 7
    codes = codes.astype(np.uint8)
    grid = [-(-n // b) for n, b in zip(codes.shape, block, strict=True)]
    scales = rng(5).uniform(0.5, 2, grid).astype(BF16)
    metadata = {"block_shape": block, "format": form}
    layout = BlockScaledFloat8Layout(codes.shape, {"d": scales, "qs": codes}, metadata)
    dtype = FLOAT8_FORMATS[form].dtype
    spread = np.kron(scales.astype(np.float32), np.ones(block, np.float32))
    with np.errstate(all="ignore"):
        values = codes.view(dtype).astype(np.float32) * spread[: len(codes), : codes.shape[1]]
    return layout, values


def _ordered(bits: int, seed: int = 6) -> _Case:
    """Return a layout of integers in an order of columns, and its values."""
    integers = rng(seed).integers(0, 1 << bits, (ROWS, COLUMNS)).astype(np.uint8)
    groups = rng(seed).permutation(np.arange(COLUMNS) // BLOCK)
    order = np.argsort(groups, kind="stable").astype(np.int32)
    scales = rng(7).uniform(0.5, 1, (ROWS, COLUMNS // BLOCK)).astype(np.float16)
    zero_points = rng(8).integers(0, 1 << bits, scales.shape).astype(np.uint8)
    storage = StorageType(bits, False)
    stored = integers[:, order]
    layout = BlockAffineLayout.of(stored, scales, zero_points, [1, BLOCK], storage, order)
    differences = integers.astype(np.int32) - zero_points.astype(np.int32)[:, groups]
    return layout, differences.astype(np.float32) * scales.astype(np.float32)[:, groups]


def _factor() -> _Case:
    """Return a layout of integers with a factor, as LLM.int8, and its values."""
    integers = rng(9).integers(-127, 128, (ROWS, COLUMNS)).astype(np.int8)
    scales, factor = rng(10).uniform(1, 2, (ROWS, 1)).astype(np.float32), np.float32(1 / 127)
    metadata = {"factor": float(factor)}
    layout = TensorScaledLayout(integers.shape, {"d": scales, "qs": integers}, metadata)
    return layout, (integers.astype(np.float32) * scales) * factor


@functools.cache
def layouts() -> dict[str, _Case]:
    """Return the layouts by name, with their values."""
    scales = rng(11).uniform(0.5, 2, (ROWS, COLUMNS // BLOCK))
    cases = {
        "levels of f32": _lookup(LEVELS, scales.astype(np.float32)),
        "levels of f32, bf16 scales": _lookup(LEVELS, scales.astype(BF16)),
        "divisor": _lookup(np.array(TWICE_E2M1), scales.astype(np.float16), 1234.5),
        "levels of f32, divisor": _lookup(LEVELS, scales.astype(np.float16), 3.0),
        "order of 4 bits": _ordered(4),
        "order of 3 bits": _ordered(3),
        "factor": _factor(),
        "8-bit floats in partial blocks": _float8("f8E4M3FN", [5, 24]),
    }
    blocks = {"tensor": [ROWS, COLUMNS], "channel": [1, COLUMNS], "blocks": [4, 32]}
    for form in FLOAT8_FORMATS:
        for name, block in blocks.items():
            cases[f"{form}, {name}"] = _float8(form, block)
    return cases


@pytest.mark.parametrize("name", layouts())
def test_values_are_those_of_the_formula(name: str) -> None:
    layout, values = layouts()[name]
    np.testing.assert_array_equal(layout.dequant(), values)
    tensor = PlanarQuantizedTensor(layout, "w")
    loaded = tensor_from_record("w", tensor.record, tensor.arrays)
    np.testing.assert_array_equal(loaded.unpack().dequant(), values)  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FLOAT8_FORMATS)
def test_every_8_bit_float(form: str) -> None:
    layout, values = _float8(form, [1, 256], np.arange(256)[None])
    np.testing.assert_array_equal(layout.dequant(), values)


@functools.cache
def compiled_cases() -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Return functions with their arguments: dequantizations, and products."""
    every, x = np.arange(256)[None], rng(12).normal(size=(3, COLUMNS)).astype(np.float32)
    cases = {name: case[0] for name, case in layouts().items()}
    cases |= {f"{form}, all codes": _float8(form, [1, 256], every)[0] for form in FLOAT8_FORMATS}
    tensors = {name: PlanarQuantizedTensor(layout, "w") for name, layout in cases.items()}
    functions: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        name: (lambda w: operand(w).dequant(), [tensor]) for name, tensor in tensors.items()
    }
    for name in LINEAR:
        functions[f"linear: {name}"] = (linear, [x, tensors[name]])
    functions["chosen"] = (chosen_linear, _experts())
    return functions


LINEAR = ("levels of f32", "divisor", "order of 4 bits", "factor", "f8E4M3FN, blocks")


def _experts() -> list[Any]:
    """Return arguments of `chosen_linear`, with an order of columns for each expert."""
    experts = [PlanarQuantizedTensor(_ordered(4, seed)[0], f"e.{seed}.w") for seed in range(3)]
    x = rng(13).normal(size=(2, 5, COLUMNS)).astype(np.float32)
    return [x, stack(experts, "e.[0-2].w"), np.array([2, 0], np.int32)]


@on_devices(compiled_cases(), compiled_cases())
def test_compiled_values_are_those_of_numpy(name: str, device: Any) -> None:
    function, arguments = compiled_cases()[name]
    result = compiled_with(compiled_cases, name, device)
    if function in (linear, chosen_linear):
        np.testing.assert_allclose(result, function(*arguments), rtol=1e-4, atol=1e-4)
        return
    expected = function(*arguments)
    np.testing.assert_array_equal(result, expected)
    assert (np.signbit(result) == np.signbit(expected))[~np.isnan(expected)].all()


def test_products_choose_the_implementation() -> None:
    x = rng(12).normal(size=(3, COLUMNS)).astype(np.float32)
    for name, implementation in (
        ("order of 4 bits", "ordered"),
        ("levels of f32", "dequantized"),
        ("divisor", "blocks"),
        ("factor", "dequantized"),
        ("f8E4M3FN, blocks", "dequantized"),
    ):
        layout, values = layouts()[name]
        result = ran_as(implementation, linear, x, PlanarQuantizedTensor(layout, "w"))
        np.testing.assert_allclose(result, x @ values.T, rtol=1e-4, atol=1e-4)
    x, experts, choices = _experts()
    values = np.stack([_ordered(4, seed)[1] for seed in (2, 0)])
    result = ran_as("matrices", chosen_linear, x, experts, choices)
    np.testing.assert_allclose(result, x @ values.transpose(0, 2, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["levels of f32", "divisor", "order of 4 bits", "factor",
                                  "f8E4M3FN, channel", "f8E4M3FN, blocks"])  # fmt: skip
def test_rows_of_a_table(name: str) -> None:
    layout, values = layouts()[name]
    rows = embedding_lookup(np.array([3, 0, 11]), PlanarQuantizedTensor(layout, "w"))
    np.testing.assert_array_equal(rows, values[[3, 0, 11]])


def test_layouts_that_are_no_quantized_types() -> None:
    for name, message in (
        ("levels of f32", "with a divisor or a table of floats is no quantized type"),
        ("divisor", "with a divisor or a table of floats is no quantized type"),
        ("order of 4 bits", "with an order of columns has no blocks of the matrix"),
        ("factor", "a layout with a factor is no quantized type"),
    ):
        with pytest.raises(UsageError, match=message):
            layouts()[name][0].parameters()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="with a table of floats has no block form of integers"):
        layouts()["levels of f32"][0].block_form()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "planes", "metadata", "message"),
    [
        ("levels of f32", {}, {"table": [0.5] * 15}, "must be a list of 16 integers .* or of flo"),
        ("levels of f32", {}, {"table": [0.1] * 16}, "must be a list of 16 integers"),
        (
            "levels of f32",
            {"m": np.ones((12, 4, 1), "f4")},
            {},
            "has offsets and a table of floats",
        ),
        (
            "divisor",
            {"divisor": np.ones(2, "f4")},
            {},
            r"'divisor' of .* has the shape \(2,\), exp",
        ),
        ("divisor", {"divisor": np.ones((), "f8")}, {}, "'divisor' of .* has elements of float64"),
        ("order of 4 bits", {"order": np.zeros(64, "i4")}, {}, "must have each column of 64 once"),
        ("order of 4 bits", {"order": np.arange(63)}, {}, r"'order' of .* has the shape \(63,\)"),
        ("factor", {}, {"factor": 0.1}, "'factor' of TensorScaledLayout must be a number of f32"),
        ("factor", {}, {"factor": -1.0}, "'factor' of TensorScaledLayout must be a number of f32"),
        ("f8E4M3FN, blocks", {}, {"format": "f8"}, "'format' of .* is 'f8', expected one of: f8E4"),
        ("f8E4M3FN, blocks", {}, {"block_shape": [4, 0]}, "'block_shape' of .* a list of 2 positi"),
        (
            "f8E4M3FN, blocks",
            {"qs": np.ones((12, 64), "i1")},
            {},
            "elements of int8, expected uint8",
        ),
        ("factor", {}, {"activations": 3}, "the activation quantization is 3, expected an object"),
        ("factor", {}, {"activations": {"type": "i8", "z": 1}}, "expected an object with 'type'"),
        ("factor", {}, {"activations": {"type": "i3"}}, "'type' of the activation quantization is"),
        (
            "factor",
            {},
            {"activations": {"type": "i8", "granularity": "group"}},
            "'group_size' of the activation quantization is None, expected a positive integer",
        ),
        (
            "factor",
            {},
            {"activations": {"type": "i8", "is_dynamic": False}},
            "'scale' of the activation quantization is None, expected a number above 0",
        ),
    ],
)
def test_layouts_that_do_not_fit_are_errors(
    name: str, planes: dict[str, Any], metadata: dict[str, Any], message: str
) -> None:
    layout = layouts()[name][0]
    with pytest.raises(InputError, match=message):
        type(layout)(layout.shape, {**layout.planes, **planes}, {**layout.metadata, **metadata})


def test_activations_of_a_stack() -> None:
    """Numbers in which matrices differ become lists."""
    static = ActivationQuantization("i8", "tensor", is_dynamic=False, scale=0.5)
    other = ActivationQuantization("i8", "tensor", is_dynamic=False, scale=0.25, zero_point=1)
    assert stacked([static.record, static.record]) == static.record
    record = stacked([static.record, other.record])
    assert record == {**static.record, "scale": [0.5, 0.25], "zero_point": [0, 1]}
    assert ActivationQuantization.of_record(record).record == record
    dynamic = ActivationQuantization("i8", "tensor")
    with pytest.raises(InputError, match="activations differ in 'is_dynamic'"):
        stacked([static.record, dynamic.record])


@pytest.mark.parametrize("kind", ["floats", "integers"])
def test_rows_are_looked_up_before_their_norm(kind: str) -> None:
    """IREE holds 8 rows on the stack if it fuses them, and refuses rows of 1024 elements."""
    values = rng(14).integers(-9, 9, (32, 1024)).astype(np.int8)
    table: InferenceTensor = PrimitiveTensor(values.astype(np.float32), "t")
    if kind == "integers":
        planes = {"d": np.full((32, 1), 0.5, np.float32), "qs": values}
        table = PlanarQuantizedTensor(TensorScaledLayout(values.shape, planes), "t")

    def normed_rows(ids: Any, rows: Any, weight: Any) -> Any:
        x = embedding_lookup(ids, rows)
        return rms_norm(x, weight) + x

    arguments = [np.arange(16, dtype=np.int32), table, np.ones(1024, np.float32)]
    result = compile_function(normed_rows, *arguments)(*arguments)
    np.testing.assert_allclose(result, normed_rows(*arguments), rtol=1e-5, atol=1e-5)
