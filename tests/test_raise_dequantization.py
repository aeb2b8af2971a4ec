"""``raise-dequantization``: what dequantizes, to the bit, and what only looks like it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dequantization_forms import DTYPES, FORMS, REFUSED, Form, program
from devices import ON_DEVICES
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
from subquant.runtime import Device
from together import Together


def raised(text: str, passes: str = "raise-dequantization{explain=true}") -> tuple[str, list[str]]:
    """A program after the pass, and what it says."""
    module, remarks = parse_text(text, create_context()), []
    run_pipeline(module, parse_pipeline(passes), on_remark=lambda r: remarks.append(r.message))
    return str(module), remarks


def arguments_of(form: Form) -> list[np.ndarray]:
    """Storage and zero points of all bits, and scales; zeros and negative scales among them."""
    rng, found = np.random.default_rng(len(form.body)), []
    for each in form.arguments:
        *dims, element = each.split("x")
        shape, dtype = [int(n) for n in dims], np.dtype(DTYPES[element])
        if "i" in element:
            bits, unsigned = int(element.lstrip("ui")), element.startswith("u")
            low = 0 if unsigned else -(1 << (bits - 1))
            values = rng.integers(low, low + (1 << bits), shape)
            found.append(np.asarray(values).astype(dtype))
        else:
            values = np.asarray(rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, shape))
            if "subtract %m, %o" in form.body or "add %o, %m" in form.body:
                values = np.rint(values * 64) / 64
            found.append(values.astype(dtype))
    return found


PROGRAMS = Together({name: form.text for name, form in FORMS.items()})


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_raised(name: str) -> None:
    form = FORMS[name]
    text, remarks = raised(form.text)
    assert not remarks
    assert f"block_sizes = array<i64: {form.blocks}" in text
    assert text.count("subquant.dequantize") == (2 if name == "super-blocks" else 1), text
    assert set(re.findall(r"stablehlo\.(\w+)", text)) - MOVING == set(form.keeps), text
    unpacked = 0 if form.packed in (0, 8) else 2 if name == "zero points in words" else 1
    assert text.count("subquant.unpack") == unpacked
    assert text.count(f"{{bits = array<i64: {form.packed}>,") == unpacked


MOVING = {"bitcast_convert", "broadcast_in_dim", "constant", "reshape"}


@pytest.mark.parametrize("name", FORMS)
@ON_DEVICES
def test_it_has_the_same_bits(name: str, device: Device) -> None:
    form = FORMS[name]
    arguments = arguments_of(form)
    result = PROGRAMS.function(name, device)(*arguments)
    expected = form.meaning(*arguments)
    assert result.dtype == expected.dtype
    bits = f"u{result.dtype.itemsize}"
    assert (result.view(bits) == expected.astype(result.dtype).view(bits)).all()


PARTLY = (
    "second time",
    "before is rounded",
    "wraps",
    "rounded before",
    "has rounded",
    "no numbers of bf16",
)
"""Of what is refused so, a step before is raised."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone_and_why(name: str) -> None:
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
            %c = convert %0 : 4x8xi32 -> 4x8xf32
            %s = broadcast %1 : f32 -> 4x8xf32
            %y = multiply %c %s : 4x8xf32"""),
        ("4x8xi1, f32", "4x8xf32", """
            %c = convert %0 : 4x8xi1 -> 4x8xf32
            %s = broadcast %1 : f32 -> 4x8xf32
            %y = multiply %c %s : 4x8xf32"""),
        ("4x8xi8", "4x8xf32", "%y = convert %0 : 4x8xi8 -> 4x8xf32"),
        ("4x8xi8", "4x8xi32", "%y = convert %0 : 4x8xi8 -> 4x8xi32"),
        ("4x8xi8, i32", "4x8xi32", """
            %c = convert %0 : 4x8xi8 -> 4x8xi32
            %s = broadcast %1 : i32 -> 4x8xi32
            %y = multiply %c %s : 4x8xi32"""),
        ("4x8xf32, f32", "4x8xf32", """
            %s = broadcast %1 : f32 -> 4x8xf32
            %y = multiply %0 %s : 4x8xf32"""),
    ],
)  # fmt: skip
def test_other_arithmetic_is_as_it_was(types: str, result: str, body: str) -> None:
    text = program(types, result, body)
    assert raised(text) == (str(parse_text(text, create_context())), [])


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
    text = NESTED.replace("xi8>", "xf32>").replace("(tensor<8x6xf32>) ->", "(tensor<8x6xf32>) ->")
    assert raised(text)[0] == str(parse_text(text, create_context()))


def test_an_integer_weight_without_a_scale_is_one_of_a_contraction_only() -> None:
    text = """
func.func @main(%x: tensor<4x8xf32>, %q: tensor<6x8xi8>) -> (tensor<4x6xf32>, tensor<8x6xf32>) {
  %c = stablehlo.convert %q : (tensor<6x8xi8>) -> tensor<6x8xf32>
  %t = stablehlo.transpose %c, dims = [1, 0] : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %y = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0]
      : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  return %y, %t : tensor<4x6xf32>, tensor<8x6xf32>
}
"""
    after, _ = raised(text, "raise-dequantization,fuse-block-contractions")
    assert after.count("subquant.block_contraction") == 1
    left = text.replace(
        "%x, %t, contracting_dims = [1] x [0]", "%t, %x, contracting_dims = [1] x [0]"
    )
    left = left.replace("(tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>",
                        "(tensor<8x6xf32>, tensor<4x8xf32>) -> tensor<4x6xf32>")  # fmt: skip
    left = left.replace("[1] x [0]", "[0] x [1]").replace("tensor<4x6xf32>", "tensor<6x4xf32>")
    assert "subquant" not in raised(left)[0]


def test_long_chains_take_no_longer_than_short_ones() -> None:
    """Each operation is looked at once: no recursion, and nothing twice."""
    lines = ["%c = convert %0 : 4x8xi8 -> 4x8xf32", "%s = broadcast %1 : f32 -> 4x8xf32",
             "%m0 = multiply %c %s : 4x8xf32"]  # fmt: skip
    lines += [f"%m{n + 1} = multiply %m{n} %m{n} : 4x8xf32" for n in range(3000)]
    lines += ["%y = add %m3000 %m3000 : 4x8xf32"]
    text, _ = raised(program("4x8xi8, f32", "4x8xf32", "\n".join(lines)))
    assert text.count("subquant.dequantize") == 1


def test_a_conversion_that_wraps_is_a_step_before() -> None:
    text = program("4x8xui4, f32", "4x8xf32", """
        %i = convert %0 : 4x8xui4 -> 4x8xi4
        %c = convert %i : 4x8xi4 -> 4x8xf32
        %s = broadcast %1 : f32 -> 4x8xf32
        %y = multiply %c %s : 4x8xf32""")  # fmt: skip
    after, _ = raised(text)
    assert "stablehlo.convert %arg0 : (tensor<4x8xui4>) -> tensor<4x8xi4>" in after
    assert "quantized_type = !quant.any<i4:f32>" in after
