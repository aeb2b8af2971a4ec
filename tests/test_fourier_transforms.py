"""``stablehlo.fft`` of all types: NumPy's transforms in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bare_iree import assert_refused
from devices import compile_for
from subquant.runtime import Device

Array = np.ndarray[Any, Any]

LENGTHS: list[tuple[Sequence[int], Sequence[int]]] = [
    ((2, 300), (300,)),
    ((3, 37), (37,)),
    ((4, 256), (256,)),
    ((5, 1), (1,)),
    ((2, 6, 10), (6, 10)),
    ((2, 4, 6, 5), (4, 6, 5)),
]
"""Shapes of real tensors, and the lengths of their last axes."""


def functions() -> list[tuple[str, Callable[..., Array], list[Array]]]:
    """Functions as text, with NumPy's transforms, and operands: real and imaginary parts."""
    rng = np.random.default_rng(0)
    cases: list[tuple[str, Callable[..., Array], list[Array]]] = []
    for number, (shape, lengths) in enumerate(LENGTHS):
        axes = range(len(shape) - len(lengths), len(shape))
        half = (*shape[:-1], shape[-1] // 2 + 1)
        for kind, transform in (("FFT", np.fft.fftn), ("IFFT", np.fft.ifftn)):
            operands = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
            text = function(f"{kind}_{number}", kind, lengths, shape, shape)
            cases.append((text, with_axes(transform, axes), operands))
        operands = [rng.standard_normal(shape).astype(np.float32)]
        text = function(f"RFFT_{number}", "RFFT", lengths, shape, half)
        cases.append((text, with_axes(np.fft.rfftn, axes), operands))
        operands = [rng.standard_normal(half).astype(np.float32) for _ in range(2)]
        text = function(f"IRFFT_{number}", "IRFFT", lengths, half, shape)
        cases.append((text, with_axes(np.fft.irfftn, axes, lengths), operands))
    return cases


def with_axes(
    transform: Callable[..., Array], axes: range, lengths: Sequence[int] | None = None
) -> Callable[..., Array]:
    return lambda x: transform(x, s=lengths, axes=tuple(axes))


def function(
    name: str, kind: str, lengths: Sequence[int], shape: Sequence[int], result: Sequence[int]
) -> str:
    source, target = (f"tensor<{'x'.join(map(str, each))}x" for each in (shape, result))
    is_real = kind == "RFFT"
    to_real = kind == "IRFFT"
    arguments = f"%re: {source}f32>" + ("" if is_real else f", %im: {source}f32>")
    operand = "%re" if is_real else "%z"
    operand_type = f"{source}f32>" if is_real else f"{source}complex<f32>>"
    result_type = f"{target}f32>" if to_real else f"{target}complex<f32>>"
    joined = "" if is_real else f"%z = stablehlo.complex %re, %im : {operand_type}"
    transform = (
        f"%y = stablehlo.fft {operand}, type = {kind}, length = {list(lengths)} "
        f": ({operand_type}) -> {result_type}"
    )
    if to_real:
        return f"""
func.func @{name}({arguments}) -> {result_type} {{
  {joined}
  {transform}
  return %y : {result_type}
}}"""
    return f"""
func.func @{name}({arguments}) -> ({target}f32>, {target}f32>) {{
  {joined}
  {transform}
  %r = stablehlo.real %y : ({result_type}) -> {target}f32>
  %i = stablehlo.imag %y : ({result_type}) -> {target}f32>
  return %r, %i : {target}f32>, {target}f32>
}}"""


@pytest.mark.parametrize("device_name", ["cpu", "vulkan"])
def test_transforms(device: Device) -> None:
    cases = functions()
    executable = compile_for("".join(text for text, _, _ in cases), device)
    for text, transform, operands in cases:
        name = text.split("@")[1].split("(")[0]
        operands64 = [each.astype(np.float64) for each in operands]
        expected = transform(
            operands64[0] if len(operands) == 1 else operands64[0] + 1j * operands64[1]
        )
        results = executable[name](*operands)
        actual = results[0] + 1j * results[1] if isinstance(results, tuple) else results
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * scale, err_msg=name)


@pytest.mark.long
def test_transforms_are_still_refused() -> None:
    text = function("main", "RFFT", [300], [2, 300], [2, 151])
    assert_refused(text, b"stablehlo.fft", "iree_workarounds/fourier_transforms.py")
