"""``raise-dequantization``: what dequantizes, to the bit, and what only looks like it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest

from devices import ON_DEVICES
from programs import LONG, run_passes
from raised_dequantization_cases import DTYPES, FORMS, REFUSED, Form, program
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
from subquant.runtime import Device
from together import Together
from unpacked_integer_cases import UNPACKED


def raised(text: str, passes: str = "raise-dequantization{explain=true}") -> tuple[str, list[str]]:
    """A program after the pass, and the remarks."""
    module, remarks = run_passes(text, passes)
    return str(module), [remark.message for remark in remarks]


def arguments_of(form: Form) -> list[np.ndarray]:
    """Storage and zero points of all bits, and scales; zeros and negative scales among them."""
    rng, table_rows = np.random.default_rng(len(form.body)), []
    for each in form.arguments:
        *dims, element = each.split("x")
        shape, dtype = [int(n) for n in dims], np.dtype(DTYPES[element])
        if "i" in element:
            bits, unsigned = int(element.lstrip("ui")), element.startswith("u")
            low = 0 if unsigned else -(1 << (bits - 1))
            values = rng.integers(low, low + (1 << bits), shape)
            table_rows.append(np.asarray(values).astype(dtype))
        else:
            values = np.asarray(rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, shape))
            if "subtract %m, %a_s" in form.body or "add %o, %m" in form.body:
                values = np.rint(values * 64) / 64
            table_rows.append(values.astype(dtype))
    return table_rows


ALL_FORMS = FORMS | UNPACKED
SOME = list(ALL_FORMS) if LONG else list(ALL_FORMS)[::4]
PROGRAMS = Together({name: ALL_FORMS[name].text for name in SOME})


@pytest.mark.parametrize("name", ALL_FORMS)
def test_a_form_is_raised(name: str) -> None:
    form = ALL_FORMS[name]
    text, remarks = raised(form.text)
    assert not remarks
    assert f"block_sizes = array<i64: {form.blocks}" in text
    assert text.count("subquant.dequantize") == (2 if name == "super-blocks" else 1), text
    assert set(re.findall(r"stablehlo\.(\w+)", text)) - MOVING == set(form.keeps), text
    unpacked = 0 if form.packed in (0, 8) else 2 if name == "zero points in words" else 1
    assert text.count("subquant.unpack") == unpacked
    assert text.count(f"{{bits = array<i64: {form.packed}>,") == unpacked


MOVING = {"bitcast_convert", "broadcast_in_dim", "constant", "reshape"}


@pytest.mark.parametrize("name", SOME)
@ON_DEVICES
def test_it_has_the_same_bits(name: str, device: Device) -> None:
    form = ALL_FORMS[name]
    arguments = arguments_of(form)
    result = PROGRAMS.function(name, device)(*arguments)
    expected = form.meaning(*arguments)
    assert result.dtype == expected.dtype
    bits = f"u{result.dtype.itemsize}"
    assert (result.view(bits) == expected.astype(result.dtype).view(bits)).all()


REAL_ZERO_POINTS = """
func.func @main(%q: tensor<16x32xi8>, %z: tensor<16x2xf32>, %s: tensor<16x2xf32>,
    %x: tensor<32x32xf32>) -> tensor<32x16xf32> {
  %u = stablehlo.bitcast_convert %q : (tensor<16x32xi8>) -> tensor<16x32xui8>
  %0 = stablehlo.convert %u : (tensor<16x32xui8>) -> tensor<16x32xf32>
  %1 = stablehlo.reshape %0 : (tensor<16x32xf32>) -> tensor<16x2x16xf32>
  %2 = stablehlo.broadcast_in_dim %z, dims = [0, 1] : (tensor<16x2xf32>) -> tensor<16x2x16xf32>
  %3 = stablehlo.subtract %1, %2 : tensor<16x2x16xf32>
  %4 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<16x2xf32>) -> tensor<16x2x16xf32>
  %5 = stablehlo.multiply %3, %4 : tensor<16x2x16xf32>
  %w = stablehlo.reshape %5 : (tensor<16x2x16xf32>) -> tensor<16x32xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<32x32xf32>, tensor<16x32xf32>) -> tensor<32x16xf32>
  return %y : tensor<32x16xf32>
}
"""
SPLIT = Together({"main": REAL_ZERO_POINTS})


@pytest.mark.parametrize("kind", ["integers", "between integers", "near a stored one", "outside"])
@ON_DEVICES
def test_zero_points_of_floats_are_split(kind: str, device: Device) -> None:
    text, remarks = raised(REAL_ZERO_POINTS)
    assert not remarks
    assert "subquant.dequantize" in text
    rng = np.random.default_rng(3)
    q = rng.integers(0, 256, (16, 32)).astype(np.uint8)
    s = rng.normal(size=(16, 2)).astype(np.float32)
    z = rng.integers(0, 256, (16, 2)).astype(np.float32)
    if kind == "between integers":
        z += rng.uniform(-0.5, 0.5, z.shape).astype(np.float32)
    elif kind == "near a stored one":
        z = q.reshape(16, 2, 16)[..., 0] + np.float32(2.0**-9)
    elif kind == "outside":
        z = np.where(z < 128, -z - 0.25, z + 300.125).astype(np.float32)
    weights = SPLIT.function("main", device)(q.view(np.int8), z, s, np.eye(32, dtype=np.float32)).T
    exact = (q.reshape(16, 2, 16) - z.astype(float)[..., None]) * s.astype(float)[..., None]
    error = np.abs(weights - exact.reshape(16, 32))
    roundings = 1 if kind == "integers" else 4
    assert (error <= roundings * 2.0**-24 * np.abs(exact.reshape(16, 32))).all()


PARTLY = (
    "second time",
    "before is rounded",
    "wraps",
    "rounded before",
    "has rounded",
    "no numbers of bf16",
)
"""Refusals whose program has an earlier operation that is raised."""


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_and_their_reasons(name: str) -> None:
    types, result, body, reason = REFUSED[name]
    text = program(types, result, body)
    after, remarks = raised(text)
    assert any(reason in remark for remark in remarks), remarks
    if any(part in reason for part in PARTLY) or "scaled" in name:
        assert after.count("subquant.dequantize") == 1
    else:
        assert after == str(parse_text(text, create_context()))
    assert raised(text, "raise-dequantization") == (after, [])


@pytest.mark.parametrize(
    ("types", "result", "body"),
    [
        ("4x8xi32, f32", "4x8xf32", """
            %y = scaled %0 %1 : 4x8xi32 f32 -> 4x8xf32"""),
        ("4x8xi1, f32", "4x8xf32", """
            %y = scaled %0 %1 : 4x8xi1 f32 -> 4x8xf32"""),
        ("4x8xi8", "4x8xf32", "%y = convert %0 : 4x8xi8 -> 4x8xf32"),
        ("4x8xi8", "4x8xi32", "%y = convert %0 : 4x8xi8 -> 4x8xi32"),
        ("4x8xi8, i32", "4x8xi32", """
            %y = scaled %0 %1 : 4x8xi8 i32 -> 4x8xi32"""),
        ("4x8xf32, f32", "4x8xf32", """
            %s = broadcast %1 : f32 -> 4x8xf32
            %y = multiply %0 %s : 4x8xf32"""),
    ],
)  # fmt: skip
def test_other_arithmetic_is_as_it_was(types: str, result: str, body: str) -> None:
    text = program(types, result, body)
    assert raised(text) == (str(parse_text(text, create_context())), [])


CONSTANTS = {
    "i1": ("true", "and", "i1"), "i1 of both": ("[true, false]", "and", "i1"),
    "i2": ("[1, -2]", "xor", "i2"), "i64": ("-1", "and", "i64"), "ui64": ("7", "remainder", "ui64"),
    "ui16": ("0", "divide", "ui16"), "i32": ("-1", "shift_left", "i32"),
    "ui8": ("200", "shift_right_logical", "ui8"), "ui32": ("9", "shift_right_arithmetic", "ui32"),
}  # fmt: skip


def check_constant(constant: str, element: str, operation: str, result: str) -> None:
    """The pass leaves an operation on a constant as it is."""
    text = f"""
func.func @main(%p: tensor<2x{result}>, %q: tensor<2xi8>)
    -> (tensor<2x{result}>, tensor<2xf32>) {{
  %c = stablehlo.constant dense<{constant}> : tensor<2x{element}>
  %y = stablehlo.{operation}
  %f = stablehlo.convert %q : (tensor<2xi8>) -> tensor<2xf32>
  return %y, %f : tensor<2x{result}>, tensor<2xf32>
}}
"""
    assert raised(text) == (str(parse_text(text, create_context())), [])


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_any_integers_do_no_harm(name: str) -> None:
    constant, op, element = CONSTANTS[name]
    check_constant(constant, element, f"{op} %p, %c : tensor<2x{element}>", element)


@pytest.mark.parametrize("source", ["f8E4M3FN", "i1", "ui2", "complex<f32>", "bf16", "i64"])
@pytest.mark.parametrize("target", ["i8", "ui8", "i32", "i1"])
def test_conversions_of_any_constants_do_no_harm(source: str, target: str) -> None:
    written = {"i1": "true", "complex<f32>": "(1.0, 0.0)", "i64": "3", "ui2": "3"}
    conversion = f"convert %c : (tensor<2x{source}>) -> tensor<2x{target}>"
    check_constant(written.get(source, "1.0"), source, conversion, target)


def test_a_dynamic_shape_is_left_alone() -> None:
    text = """
func.func @main(%q: tensor<?x8xi8>, %s: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %c = stablehlo.convert %q : (tensor<?x8xi8>) -> tensor<?x8xf32>
  %y = stablehlo.multiply %c, %s : tensor<?x8xf32>
  return %y : tensor<?x8xf32>
}
"""
    assert raised(text)[0] == str(parse_text(text, create_context()))


NESTED = """
func.func @main(%x: tensor<4x8xf32>, %q: tensor<8x6xi8>, %s: tensor<6xf32>) -> tensor<4x6xf32> {
  %w = call @scaled(%q, %s) : (tensor<8x6xi8>, tensor<6xf32>) -> tensor<8x6xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}
func.func private @scaled(%q: tensor<8x6xi8>, %s: tensor<6xf32>) -> tensor<8x6xf32> {
  %c = stablehlo.convert %q : (tensor<8x6xi8>) -> tensor<8x6xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<6xf32>) -> tensor<8x6xf32>
  %y = stablehlo.multiply %c, %b : tensor<8x6xf32>
  return %y : tensor<8x6xf32>
}
"""


def test_functions_that_dequantize_are_inlined() -> None:
    text, remarks = raised(NESTED, "raise-dequantization{explain=true},fuse-block-contractions")
    assert not remarks
    assert text.count("func.func") == text.count("subquant.block_contraction") == 1


def test_other_functions_are_not_inlined() -> None:
    text = NESTED.replace("xi8>", "xf32>")
    assert raised(text)[0] == str(parse_text(text, create_context()))


def test_an_integer_weight_without_a_scale_is_one_of_a_contraction_only() -> None:
    def text(operands: str, dims: str, types: str, result: str) -> str:
        return f"""
func.func @main(%x: tensor<4x8xf32>, %q: tensor<6x8xi8>) -> ({result}, tensor<8x6xf32>) {{
  %c = stablehlo.convert %q : (tensor<6x8xi8>) -> tensor<6x8xf32>
  %t = stablehlo.transpose %c, dims = [1, 0] : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %y = stablehlo.dot_general {operands}, contracting_dims = {dims} : ({types}) -> {result}
  return %y, %t : {result}, tensor<8x6xf32>
}}
"""

    x, weight = "tensor<4x8xf32>", "tensor<8x6xf32>"
    right = text("%x, %t", "[1] x [0]", f"{x}, {weight}", "tensor<4x6xf32>")
    after, _ = raised(right, "raise-dequantization,fuse-block-contractions")
    assert after.count("subquant.block_contraction") == 1
    left = text("%t, %x", "[0] x [1]", f"{weight}, {x}", "tensor<6x4xf32>")
    assert "subquant" not in raised(left)[0]


def test_long_chains_take_no_longer_than_short_ones() -> None:
    """Each operation is visited once: no recursion, and none twice."""
    operations = ["%c = convert %0 : 4x8xi8 -> 4x8xf32", "%s = broadcast %1 : f32 -> 4x8xf32",
             "%m0 = multiply %c %s : 4x8xf32"]  # fmt: skip
    operations += [f"%m{n + 1} = multiply %m{n} %m{n} : 4x8xf32" for n in range(3000)]
    operations += ["%y = add %m3000 %m3000 : 4x8xf32"]
    text, _ = raised(program("4x8xi8, f32", "4x8xf32", "\n".join(operations)))
    assert text.count("subquant.dequantize") == 1


def test_a_conversion_that_wraps_is_a_step_before() -> None:
    text = program("4x8xui4, f32", "4x8xf32", """
        %i = convert %0 : 4x8xui4 -> 4x8xi4
        %y = scaled %i %1 : 4x8xi4 f32 -> 4x8xf32""")  # fmt: skip
    after, _ = raised(text)
    assert "stablehlo.convert %arg0 : (tensor<4x8xui4>) -> tensor<4x8xi4>" in after
    assert "quantized_type = !quant.any<i4:f32>" in after


# -- rows of tables -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """Slices of a dequantized 6x8 table along an axis, for indices of shape 2x3."""

    scales: tuple[int, int]  # their shape, one for each block
    axis: int = 0  # of the indices
    offset: int = 2  # of the other axis in the result
    is_taken: bool = True  # before they are dequantized

    @property
    def text(self) -> str:
        rows, columns = self.scales
        grid, apart = f"{rows}x{columns}", f"{rows}x{6 // rows}x{columns}x{8 // columns}"
        extent = (8, 6)[self.axis]
        shape = [2, 3]
        shape.insert(self.offset, extent)
        result = "x".join(map(str, shape))
        sizes = "1, 8" if self.axis == 0 else "6, 1"
        views = f"""
        %c = convert %0 : 6x8xi8 -> 6x8xf32
        %i = convert %2 : {grid}xi8 -> {grid}xf32
        %f = broadcast %i 0,2 : {grid}xf32 -> {apart}xf32
        %z = reshape %f : {apart}xf32 -> 6x8xf32
        %d = subtract %c %z : 6x8xf32
        %b = broadcast %1 0,2 : {grid}xf32 -> {apart}xf32
        %s = reshape %b : {apart}xf32 -> 6x8xf32
        %m = multiply %d %s : 6x8xf32
        %y = "stablehlo.gather"(%m, %3) {{slice_sizes = array<i64: {sizes}>, dimension_numbers = \
#stablehlo.gather<offset_dims = [{self.offset}], collapsed_slice_dims = [{self.axis}], \
start_index_map = [{self.axis}], index_vector_dim = 2>}} : (tensor<6x8xf32>, tensor<2x3xi32>) -> \
tensor<{result}xf32>"""
        types = "6x8xi8", f"{grid}xf32", f"{grid}xi8", "2x3xi32"
        body = views.replace("\\\n", "")
        return program(", ".join(types), f"{result}xf32", body)

    def meaning(self, q: np.ndarray, s: np.ndarray, z: np.ndarray, i: np.ndarray) -> np.ndarray:
        """The same in NumPy; indices out of range are those at the ends."""
        rows, columns = self.scales
        spread = [each.repeat(6 // rows, 0).repeat(8 // columns, 1) for each in (s, z)]
        table = (q.astype(np.float32) - spread[1]) * spread[0]
        table_rows = np.take(table, i, self.axis, mode="clip")
        return np.moveaxis(table_rows, 2 if self.axis == 0 else 0, self.offset)


TAKEN = {
    "rows with scales": Taken((6, 1)),
    "rows with scales of columns": Taken((1, 8)),
    "rows in blocks": Taken((6, 2)),
    "rows, columns first": Taken((6, 2), offset=0),
    "rows, columns between": Taken((1, 4), offset=1),
    "columns with scales": Taken((1, 8), axis=1, offset=0),
    "columns in blocks": Taken((3, 8), axis=1, offset=2),
    "columns with scales of rows": Taken((6, 1), axis=1, offset=1),
    "blocks of rows": Taken((3, 2), is_taken=False),
}
TABLES = Together({name: each.text for name, each in TAKEN.items()})


@pytest.mark.parametrize("name", TAKEN)
def test_rows_are_taken_of_integers(name: str) -> None:
    text, remarks = raised(TAKEN[name].text)
    assert not remarks
    assert text.count("subquant.dequantize") == 1
    dequantized = re.search(r"subquant\.dequantize.*-> tensor<(.*)xf32>", text)
    assert dequantized is not None
    assert (dequantized.group(1) != "6x8") == TAKEN[name].is_taken


@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
@ON_DEVICES
def test_taken_rows_have_the_same_bits(name: str, device: Device) -> None:
    rng, each = np.random.default_rng(6), TAKEN[name]
    q, z = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((6, 8), each.scales))
    s = rng.normal(size=each.scales).astype(np.float32)
    indices = rng.integers(-2, 10, (2, 3)).astype(np.int32)
    result = TABLES.function(name, device)(q, s, z, indices)
    assert (result.view(np.uint32) == each.meaning(q, s, z, indices).view(np.uint32)).all()
