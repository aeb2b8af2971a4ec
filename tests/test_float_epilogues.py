"""Scale, bias, activation and quantization in f32 after an int8 contraction, in its kernel.

Results have the bits of NumPy, which rounds each operation once. The operations are in the kernel:
the program has no other dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import subquant
from subquant.compiler.mlir_client import optimize

INSTRUCTIONS = ("avx512vnni", "avx2", "portable")
M, K, N = 37, 96, 72


@dataclass(frozen=True)
class Chain:
    """Operations after ``f32(acc) * scale + bias``: ``activation``, then a quantization.

    Attributes:
        bounds: of a clamp ahead of the quantization; None for infinity.
        result: ``i8``, ``ui8``, or ``f32`` without quantization.
        flipped_bits: of bytes, -128 to make unsigned ones signed.
    """

    bounds: tuple[float | None, float | None] = (None, None)
    inverse: float = 3.0
    zero_point: int = -7
    low: int = -128
    high: int = 127
    result: str = "i8"
    scale: float = 1e-4
    flipped_bits: int = 0

    def text(self, scales: np.ndarray, bias: np.ndarray, weight: np.ndarray) -> str:
        f32, i32 = f"tensor<{M}x{N}xf32>", f"tensor<{M}x{N}xi32>"
        quantized = f"tensor<{M}x{N}x{self.result}>"
        result = quantized.replace("ui8", "i8")

        def splat(number: float) -> str:
            return f'dense<"0x{np.float32(number).tobytes().hex().upper()}"> : tensor<f32>'

        def row(numbers: np.ndarray) -> str:
            return f'dense<"0x{numbers.tobytes().hex().upper()}"> : tensor<{N}xf32>'

        operations = [
            f"func.func @main(%x: tensor<{M}x{K}xi8>) -> {result} {{",
            f'%w = stablehlo.constant dense<"0x{weight.tobytes().hex().upper()}"> : '
            f"tensor<{N}x{K}xi8>",
            f"%s = stablehlo.constant {row(scales)}",
            f"%b = stablehlo.constant {row(bias)}",
            f"%scale = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<{N}xf32>) -> {f32}",
            f"%bias = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<{N}xf32>) -> {f32}",
            "%acc = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : "
            f"(tensor<{M}x{K}xi8>, tensor<{N}x{K}xi8>) -> {i32}",
            f"%f = stablehlo.convert %acc : ({i32}) -> {f32}",
            f"%scaled = stablehlo.multiply %f, %scale : {f32}",
            f"%y = stablehlo.add %scaled, %bias : {f32}",
        ]
        last = "%y"
        for name, number in zip(("maximum", "minimum"), self.bounds, strict=True):
            if number is not None:
                operations += [
                    f"%c{name} = stablehlo.constant {splat(number)}",
                    f"%b{name} = stablehlo.broadcast_in_dim %c{name}, dims = [] : "
                    f"(tensor<f32>) -> {f32}",
                    f"%{name} = stablehlo.{name} {last}, %b{name} : {f32}",
                ]
                last = f"%{name}"
        if self.result != "f32":
            operations += [
                f"%ci = stablehlo.constant {splat(self.inverse)}",
                f"%bi = stablehlo.broadcast_in_dim %ci, dims = [] : (tensor<f32>) -> {f32}",
                f"%real = stablehlo.multiply {last}, %bi : {f32}",
                f"%rounded = stablehlo.round_nearest_even %real : {f32}",
                f"%cz = stablehlo.constant {splat(self.zero_point)}",
                f"%bz = stablehlo.broadcast_in_dim %cz, dims = [] : (tensor<f32>) -> {f32}",
                f"%moved = stablehlo.add %rounded, %bz : {f32}",
                f"%low = stablehlo.constant {splat(self.low)}",
                f"%high = stablehlo.constant {splat(self.high)}",
                "%clamped = stablehlo.clamp %low, %moved, %high : "
                f"(tensor<f32>, {f32}, tensor<f32>) -> {f32}",
                f"%q = stablehlo.convert %clamped : ({f32}) -> {quantized}",
            ]
            last = "%q"
        if self.result == "ui8":
            operations += [
                f"%bits = stablehlo.bitcast_convert %q : ({quantized}) -> {result}",
                f"%sign = stablehlo.constant dense<{self.flipped_bits}> : {result}",
                f"%flipped = stablehlo.xor %bits, %sign : {result}",
            ]
            last = "%flipped"
        return "\n".join([*operations, f"return {last} : {result}", "}"])

    def expected(
        self, x: np.ndarray, scales: np.ndarray, bias: np.ndarray, weight: np.ndarray
    ) -> np.ndarray:
        acc = x.astype(np.int64) @ weight.astype(np.int64).T
        y = acc.astype(np.float32) * scales + bias
        low, high = self.bounds
        y = y if low is None else np.maximum(y, np.float32(low))
        y = y if high is None else np.minimum(y, np.float32(high))
        if self.result == "f32":
            return y
        rounded = np.rint(y * np.float32(self.inverse)) + np.float32(self.zero_point)
        clamped = np.clip(rounded, np.float32(self.low), np.float32(self.high))
        integers = clamped.astype(np.int8 if self.result == "i8" else np.uint8)
        return integers.view(np.int8) ^ np.int8(self.flipped_bits)


CHAINS = {
    "f32": Chain(result="f32"),
    "f32_clamped": Chain((0.0, 6.0), result="f32"),
    "i8": Chain(),
    "narrow": Chain(low=-127),
    "relu": Chain((0.0, None)),
    "relu_at_low": Chain((0.0, None), zero_point=-128),
    "relu6": Chain((0.0, 6.0), inverse=41.7, zero_point=-128),
    "hardtanh": Chain((-1.3, 1.1), inverse=17.0, zero_point=5),
    "u8": Chain((0.0, None), result="ui8", low=0, high=255, zero_point=3, inverse=21.0),
    "u8_as_i8": Chain((0.0, 5.0), result="ui8", low=0, high=255, inverse=51.0, flipped_bits=-128),
    "large_reals": Chain(inverse=4e4, zero_point=-3),
}


@pytest.mark.parametrize("kernels", INSTRUCTIONS)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.share(6)
def test_chains_have_the_bits_of_numpy(name: str, kernels: str) -> None:
    chain, rng = CHAINS[name], np.random.default_rng(3)
    weight = rng.integers(-127, 128, (N, K), np.int8)
    scales = (rng.random(N) * chain.scale + 1e-6).astype(np.float32)
    bias = rng.standard_normal(N).astype(np.float32)
    x = rng.integers(-128, 128, (M, K), np.int8)
    text = chain.text(scales, bias, weight)
    lowered = optimize(text.encode(), "-", f"cse,select-kernels{{instructions={kernels}}}").text
    assert lowered is not None
    main = lowered[lowered.index("func.func @main") :]
    assert main.count("flow.dispatch") == 1
    assert not any(f"stablehlo.{each}" in main for each in ("add", "convert", "multiply"))
    result = np.asarray(subquant.compile(text, kernels=kernels).main(x))
    expected = chain.expected(x, scales, bias, weight)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)
    if chain.result != "f32":
        assert np.unique(expected).size > 2  # not all are clamped


def test_chains_that_are_clamped_to_one_number() -> None:
    weight, numbers = np.ones((N, K), np.int8), np.ones(N, np.float32)
    text = Chain(low=7, high=7).text(numbers, numbers, weight)
    assert (subquant.compile(text).main(np.ones((M, K), np.int8)) == 7).all()


@pytest.mark.long
@pytest.mark.parametrize("kernels", INSTRUCTIONS)
@pytest.mark.parametrize("cast", ["quant.dcast", "stablehlo.uniform_dequantize"])
def test_products_of_casts_are_of_integers(cast: str, kernels: str) -> None:
    rng = np.random.default_rng(4)
    scales = (rng.random(N) + 0.5).astype(np.float32)
    weight = rng.integers(-128, 128, (N, K), np.int8)
    x = rng.integers(0, 256, (M, K), np.uint8)
    per_axis = ", ".join(f"{scale:.9e}" for scale in scales)

    def dequantized(name: str, result: str, shape: str, type_: str) -> str:
        source, target = f"tensor<{shape}x!{type_}>", f"tensor<{shape}xf32>"
        if cast == "quant.dcast":
            return f"%{result} = quant.dcast %{name} : {source} to {target}"
        return f"%{result} = {cast} %{name} : ({source}) -> {target}"

    text = f"""
!x = !quant.uniform<u8:f32, 0.1:201>
!w = !quant.uniform<i8:f32:0, {{{per_axis}}}>
func.func @main(%x: tensor<{M}x{K}x!x>) -> tensor<{M}x{N}xf32> {{
  %i = stablehlo.constant dense<"0x{weight.tobytes().hex().upper()}"> : tensor<{N}x{K}xi8>
  %w = quant.scast %i : tensor<{N}x{K}xi8> to tensor<{N}x{K}x!w>
  {dequantized("x", "fx", f"{M}x{K}", "x")}
  {dequantized("w", "fw", f"{N}x{K}", "w")}
  %y = stablehlo.dot_general %fx, %fw, contracting_dims = [1] x [1]
      : (tensor<{M}x{K}xf32>, tensor<{N}x{K}xf32>) -> tensor<{M}x{N}xf32>
  return %y : tensor<{M}x{N}xf32>
}}
"""
    result = np.asarray(subquant.compile(text, kernels=kernels).main(x))
    acc = (x.astype(np.int64) - 201) @ weight.astype(np.int64).T
    assert np.array_equal(result, acc.astype(np.float32) * (np.float32(0.1) * scales))
