"""Folded casts of constants, against the same casts of arguments."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import devices
import subquant
from numpy_evaluation import evaluate
from programs import Cast, casts, examples, module_text, same_bits
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.dense import dense_of_array
from subquant.dialects.quant import expressed_mlir_type, storage_mlir_type
from subquant.runtime import Device

FOLD = "fold-constant-casts"


def signless(stored: np.ndarray, cast: Cast) -> np.ndarray:
    """Storage values as signless integers, which MLIR reads as signed ones."""
    if cast.parameters.storage.signed:
        return stored
    half = 1 << (cast.parameters.storage.width - 1)
    return ((stored.astype(np.int64) + half) & (2 * half - 1)) - half


def constant_text(array: np.ndarray, cast: Cast, *, real: bool) -> str:
    with create_context(), ir.Location.unknown():
        parameters = cast.parameters
        make = expressed_mlir_type if real else storage_mlir_type
        element = make(parameters.expressed if real else parameters.storage)
        return f"%c = arith.constant {dense_of_array(array, element)}"


def program(number: int, cast: Cast, reals: np.ndarray, stored: np.ndarray) -> str:
    quantized = cast.tensor(cast.mlir_type())
    integers = cast.tensor(f"i{cast.parameters.storage.width}")
    floats = cast.tensor(cast.parameters.expressed.value)
    return f"""
func.func @q{number}() -> {quantized} {{
  {constant_text(reals, cast, real=True)}
  %q = "{cast.dialect}.qcast"(%c) : ({floats}) -> {quantized}
  return %q : {quantized}
}}
func.func @d{number}() -> {floats} {{
  {constant_text(signless(stored, cast), cast, real=False)}
  %q = "{cast.dialect}.scast"(%c) : ({integers}) -> {quantized}
  %x = "{cast.dialect}.dcast"(%q) : ({quantized}) -> {floats}
  return %x : {floats}
}}"""


@pytest.mark.long
@settings(max_examples=examples(24))
@given(generated=st.lists(casts(), min_size=1, max_size=4), seed=st.integers(0, 1 << 32))
def test_what_is_folded_is_what_casts_compute(generated: list[Cast], seed: int) -> None:
    generated = [
        dataclasses.replace(cast, dynamic=frozenset()) for cast in generated if not cast.unranked
    ]
    rng = np.random.default_rng(seed)
    inputs = [(cast.reals(rng), cast.stored(rng)) for cast in generated]
    texts = [program(number, cast, *inputs[number]) for number, cast in enumerate(generated)]
    folded = parse_text("\n".join(texts), create_context())
    run_pipeline(folded, parse_pipeline(FOLD))
    assert not any(name in str(folded) for name in ("qcast", "dcast"))
    computed = parse_text(module_text(generated), create_context())
    run_pipeline(computed, parse_pipeline("lower-quant-casts"))
    for number, (cast, (reals, stored)) in enumerate(zip(generated, inputs, strict=True)):
        (constant,) = evaluate(folded, f"q{number}", [])
        (integers,) = evaluate(computed, f"q{number}", [reals])
        mask = (1 << cast.parameters.storage.width) - 1
        np.testing.assert_array_equal(constant & mask, integers & mask, err_msg=f"{cast}")
        (constant,) = evaluate(folded, f"d{number}", [])
        (floats,) = evaluate(computed, f"d{number}", [signless(stored, cast)])
        assert same_bits(constant, floats), f"dequantize {cast}"


TYPES = """
!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i8<-127:127>:f32, 0.03125>
!y = !quant.uniform<i8:f32, 0.75:-7>
!b = !quant.uniform<i4:f16:{0:8, 1:1}, {{0.5:1, 0.25:2, 1.5:-3}, {0.125:0, 2.0:3, 0.75:-8}}>
"""


def functions(weight: str, block: str) -> str:
    """A product and casts, of constants (as text) or, if they are empty, of arguments."""
    arguments = "" if weight else ", %w: tensor<64x32xf32>, %b: tensor<16x3xf16>"
    statements = [
        f"  %{name} = stablehlo.constant {text}"
        for name, text in (("w", weight), ("b", block))
        if text
    ]
    return f"""
func.func @{"constants" if weight else "arguments"}(%x: tensor<5x64x!x>{arguments})
    -> (tensor<5x32x!y>, tensor<16x3x!b>, tensor<16x3xf16>) {{
{chr(10).join(statements)}
  %q = stablehlo.uniform_quantize %w : (tensor<64x32xf32>) -> tensor<64x32x!w>
  %y = stablehlo.dot_general %x, %q, contracting_dims = [1] x [0]
    : (tensor<5x64x!x>, tensor<64x32x!w>) -> tensor<5x32x!y>
  %blocks = quant.qcast %b : tensor<16x3xf16> to tensor<16x3x!b>
  %reals = quant.dcast %blocks : tensor<16x3x!b> to tensor<16x3xf16>
  return %y, %blocks, %reals : tensor<5x32x!y>, tensor<16x3x!b>, tensor<16x3xf16>
}}"""


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    weight = rng.integers(-300, 300, (64, 32)).astype(np.float32) / 64  # ties, and what saturates
    weight[:3, 0] = np.nan, np.inf, -np.inf
    x = rng.integers(-128, 128, (5, 64)).astype(np.int8)
    return [x, weight, rng.normal(scale=4, size=(16, 3)).astype(np.float16)]


def program_of(constants: list[np.ndarray]) -> str:
    with create_context(), ir.Location.unknown():
        elements = (ir.F32Type.get(), ir.F16Type.get())
        texts = [str(dense_of_array(*pair)) for pair in zip(constants, elements, strict=True)]
    return TYPES + functions(*texts) + functions("", "")


@devices.ON_DEVICES
def test_constants_give_what_arguments_give(device: Device) -> None:
    x, *constants = inputs()
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    executable = subquant.compile(program_of(constants), target=target, device=device)
    for folded, computed in zip(
        executable["constants"](x), executable["arguments"](x, *constants), strict=True
    ):
        np.testing.assert_array_equal(folded, computed, strict=True)


@pytest.mark.parametrize("rounding", ["nearest-even", "toward-zero"])
def test_a_weight_that_is_quantized_has_a_kernel(rounding: str) -> None:
    """It is prepacked for the kernel, except if its cast rounds toward zero."""
    remarks: list[str] = []
    compile_to_bytes(
        program_of(inputs()[1:]),
        CompileOptions(kernels="portable", rounding=rounding, explain=True),
        emit="mlir",
        on_remark=lambda remark: remarks.append(remark.message),
    )
    has_kernel = any("is computed by a kernel" in each for each in remarks)
    assert has_kernel == (rounding == "nearest-even")
