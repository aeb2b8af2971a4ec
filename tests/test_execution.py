"""Casts on devices, element for element against the NumPy reference.

Integers must be equal, reals equal to the bit. Many casts are compiled as one module; the inputs
are arguments, so that nothing is folded at compile time.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import subquant
from programs import PRODUCT, Cast, casts, examples, module_text, one_operation, same_bits
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import ExpressedType
from subquant.runtime import Device

F32 = [ExpressedType.F32]


def check(generated: list[Cast], device: Device, rounding: str = "nearest-even") -> None:
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    executable = subquant.compile(
        module_text(generated), target=target, device=device, rounding=rounding
    )
    rng = np.random.default_rng(len(generated))
    for number, cast in enumerate(generated):
        reals = cast.reals(rng) if rounding == "nearest-even" else cast.tame_reals(rng)
        got = executable[f"q{number}"](reals)
        expected = quantize(reals, cast.parameters, rounding)
        np.testing.assert_array_equal(got, expected, err_msg=f"quantize {cast}", strict=True)
        stored = cast.stored(rng)
        real = executable[f"d{number}"](stored)
        assert same_bits(real, dequantize(stored, cast.parameters)), f"dequantize {cast}"


@settings(max_examples=examples(3))
@given(generated=st.lists(casts(), min_size=8, max_size=12))
def test_llvm_cpu_equals_the_reference(generated: list[Cast], cpu: Device) -> None:
    check(generated, cpu)


@pytest.mark.long
@settings(max_examples=examples(2))
@given(
    generated=st.lists(
        casts(expressed=[ExpressedType.F32, ExpressedType.F64]), min_size=8, max_size=12
    )
)
def test_llvm_cpu_equals_the_reference_toward_zero(generated: list[Cast], cpu: Device) -> None:
    check([cast for cast in generated if cast.parameters.storage.width < 20], cpu, "toward-zero")


@pytest.mark.vulkan
@settings(max_examples=examples(2))
@given(generated=st.lists(casts(), min_size=8, max_size=12))
def test_vulkan_equals_the_reference(generated: list[Cast], vulkan: Device) -> None:
    check(generated, vulkan)


@pytest.mark.long
@pytest.mark.vulkan
@settings(max_examples=examples(2))
@given(generated=st.lists(casts(expressed=F32), min_size=6, max_size=8))
def test_vulkan_without_8bit_storage_equals_the_reference(
    generated: list[Cast], vulkan_32bit: Device
) -> None:
    check([cast for cast in generated if cast.parameters.storage.width < 32], vulkan_32bit)


INTEGER_CONTRACTIONS = """
func.func @linalg(%a: tensor<4x64xi8>, %b: tensor<64x64xi8>) -> tensor<4x64xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<4x64xi32>
  %i = linalg.fill ins(%zero : i32) outs(%e : tensor<4x64xi32>) -> tensor<4x64xi32>
  %0 = linalg.matmul ins(%a, %b : tensor<4x64xi8>, tensor<64x64xi8>)
      outs(%i : tensor<4x64xi32>) -> tensor<4x64xi32>
  return %0 : tensor<4x64xi32>
}
""" + one_operation(PRODUCT, ("4x64xi8", "64x64xi8"), "4x64xi32", name="stablehlo")
# IREE takes one input dialect a module.
TOSA_CONTRACTION = """
func.func @tosa(%a: tensor<1x4x64xi8>, %b: tensor<1x64x64xi8>) -> tensor<1x4x64xi32> {
  %z = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %0 = tosa.matmul %a, %b, %z, %z
      : (tensor<1x4x64xi8>, tensor<1x64x64xi8>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x4x64xi32>
  return %0 : tensor<1x4x64xi32>
}
"""


@pytest.mark.parametrize("device", ["cpu", "vulkan", "vulkan_32bit"])
def test_integer_contractions_of_every_dialect(device: str, request: pytest.FixtureRequest) -> None:
    """Sign extension survives, whichever dialect the i8 contraction is written in."""
    where = request.getfixturevalue(device)
    target = "vulkan" if where.is_vulkan else "llvm-cpu"
    executable = subquant.compile(INTEGER_CONTRACTIONS, target=target, device=where)
    rng = np.random.default_rng(5)
    a = rng.integers(-128, 128, (4, 64)).astype(np.int8)
    b = rng.integers(-128, 128, (64, 64)).astype(np.int8)
    expected = a.astype(np.int32) @ b.astype(np.int32)
    for name in ("linalg", "stablehlo"):
        np.testing.assert_array_equal(executable[name](a, b), expected, err_msg=name)
    executable = subquant.compile(TOSA_CONTRACTION, target=target, device=where)
    np.testing.assert_array_equal(executable.tosa(a[None], b[None])[0], expected)
