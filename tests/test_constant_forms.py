"""Constants that are resources (``dense_resource``), as importers write weights, or complex.

Elements of a resource are compared with its bytes, read by NumPy.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from devices import ON_DEVICES, compile_for, main_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import Remark, VerificationError
from subquant.runtime import Device

ELEMENTS = {
    "i8": np.int8,
    "i16": np.int16,
    "i64": np.int64,
    "ui8": np.uint8,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}


def with_resource(body: str, array: np.ndarray) -> str:
    """A program and its resource ``weight``."""
    data = array.tobytes().hex().upper()
    alignment = f"{array.dtype.itemsize:02X}000000"
    return (
        f'{body}\n{{-# dialect_resources: {{ builtin: {{ weight: "0x{alignment}{data}" }} }} #-}}'
    )


def constant(element: str, *shape: int) -> str:
    type_ = f"tensor<{'x'.join(map(str, (*shape, element)))}>"
    return f"""
func.func @main() -> {type_} {{
  %c = stablehlo.constant dense_resource<weight> : {type_}
  return %c : {type_}
}}"""


@pytest.mark.parametrize("element", ELEMENTS)
def test_elements(element: str) -> None:
    array = np.random.default_rng(1).integers(0, 100, (3, 5)).astype(ELEMENTS[element])
    for each in (array, np.full_like(array, 7), array[:, :0]):
        text = with_resource(constant(element, *each.shape), each)
        lowered = compile_to_bytes(text, CompileOptions(), emit="mlir").decode()
        assert "dense_resource<weight>" not in lowered
    np.testing.assert_array_equal(main_of(with_resource(constant(element, 3, 5), array))(), array)


@ON_DEVICES
def test_a_small_resource_of_bf16(device: Device) -> None:
    body = """
func.func @main(%x: tensor<4xbf16>) -> tensor<4xbf16> {
  %c = stablehlo.constant dense_resource<weight> : tensor<4xbf16>
  %y = stablehlo.multiply %x, %c : tensor<4xbf16>
  return %y : tensor<4xbf16>
}"""
    weight = np.array([1.5, 2.5, -3.5, 0.125], ml_dtypes.bfloat16)
    x = np.array([1, -2, 4, 8], ml_dtypes.bfloat16)
    result = compile_for(with_resource(body, weight), device).main(x)
    np.testing.assert_array_equal(np.asarray(result).view(np.uint16), (x * weight).view(np.uint16))


def test_a_weight_that_is_a_resource_has_a_kernel() -> None:
    body = """
func.func @main(%x: tensor<3x64xi8>) -> tensor<3x48xi32> {
  %w = arith.constant dense_resource<weight> : tensor<64x48xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<3x64xi8>, tensor<64x48xi8>) -> tensor<3x48xi32>
  return %y : tensor<3x48xi32>
}"""
    rng = np.random.default_rng(2)
    x, weight = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 64), (64, 48)))
    remarks: list[Remark] = []
    text, options = with_resource(body, weight), CompileOptions(explain=True)
    compile_to_bytes(text, options, emit="mlir", on_remark=remarks.append)
    assert "is computed by a kernel" in str(remarks[0])
    np.testing.assert_array_equal(main_of(text)(x), x.astype(np.int32) @ weight.astype(np.int32))


def test_a_resource_of_tosa() -> None:
    body = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %c = "tosa.const"() {values = dense_resource<weight> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
  %y = tosa.add %x, %c : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}"""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(main_of(with_resource(body, weight))(weight), 2 * weight)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (None, r"3:8: error: .* has the resource 'weight', which the module does not contain"),
        (5, r"3:8: error: .* has the resource 'weight' of 20 bytes; 'tensor<4xf32>' has 16 bytes"),
        (1, r"3:8: error: .* has the resource 'weight' of 4 bytes; 'tensor<4xf32>' has 16 bytes"),
    ],
)
def test_a_resource_that_does_not_fit_is_an_error(size: int | None, message: str) -> None:
    body = constant("f32", 4)
    text = body if size is None else with_resource(body, np.ones(size, np.float32))
    with pytest.raises(VerificationError, match=message):
        compile_to_bytes(text, CompileOptions())


@pytest.mark.parametrize("shape", [(3,), (5, 40), (0, 2)])
def test_complex_constants(shape: tuple[int, ...]) -> None:
    """MLIR prints more than 100 elements as the bytes of all."""
    rng = np.random.default_rng(3)
    array = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
    for each in (array, np.full_like(array, 2 - 3j)):
        sizes = "x".join(map(str, shape))
        elements = str([(z.real.item(), z.imag.item()) for z in each.ravel()])
        flat, text = f"tensor<{each.size}xcomplex<f32>>", f"tensor<{sizes}x"
        main = main_of(f"""
func.func @main(%x: {text}f32>) -> {text}f32> {{
  %c = stablehlo.constant dense<{elements}> : {flat}
  %d = stablehlo.reshape %c : ({flat}) -> {text}complex<f32>>
  %z = stablehlo.complex %x, %x : {text}complex<f32>>
  %s = stablehlo.multiply %z, %d : {text}complex<f32>>
  %y = stablehlo.imag %s : ({text}complex<f32>>) -> {text}f32>
  return %y : {text}f32>
}}""")
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(main(x), (x * (1 + 1j) * each).imag, rtol=1e-5, atol=1e-5)
