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
from programs import Cast, casts, module_text, same_bits
from subquant.quantization import ExpressedType, dequantize, quantize
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


@settings(max_examples=24)
@given(generated=st.lists(casts(), min_size=8, max_size=12))
def test_llvm_cpu_equals_the_reference(generated: list[Cast], cpu: Device) -> None:
    check(generated, cpu)


@settings(max_examples=4)
@given(
    generated=st.lists(
        casts(expressed=[ExpressedType.F32, ExpressedType.F64]), min_size=8, max_size=12
    )
)
def test_llvm_cpu_equals_the_reference_toward_zero(generated: list[Cast], cpu: Device) -> None:
    narrow = [cast for cast in generated if cast.parameters.storage.width < 20]
    check(narrow, cpu, "toward-zero")


@pytest.mark.vulkan
@settings(max_examples=6)
@given(generated=st.lists(casts(), min_size=8, max_size=12))
def test_vulkan_equals_the_reference(generated: list[Cast], vulkan: Device) -> None:
    check(generated, vulkan)


@pytest.mark.vulkan
@settings(max_examples=3)
@given(generated=st.lists(casts(expressed=F32), min_size=6, max_size=8))
def test_vulkan_without_8bit_storage_equals_the_reference(
    generated: list[Cast], vulkan_32bit: Device
) -> None:
    narrow = [cast for cast in generated if cast.parameters.storage.width < 32]
    check(narrow, vulkan_32bit)
