"""Experts in each layout: kernels that read the chosen ones, and tokens grouped by them.

References are computed in float64 from the dequantized weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from instruction_sets import SOME
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.layouts import (
    BlockAffineLayout,
    BlockScaledFloat8Layout,
    InferenceTensor,
    LookupBlockScaledLayout,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedLayout,
    TensorScaledLayout,
    stack,
)
from subquant.models import experts
from subquant.models.configuration import Experts
from subquant.numerics.parameters import StorageType
from subquant.ops import trace_function
from subquant.ops.linear import chosen_linear
from subquant.runtime import Device, Executable
from subquant.weights import Theta

Array = np.ndarray[Any, Any]
Make = Callable[[np.random.Generator, int, int], "QuantizedLayout | Array"]
N, K = 128, 256
COUNT, CHOSEN = 6, 2
E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
LEVELS = np.linspace(-1, 1, 16, dtype=np.float32).tolist()


def floats(dtype: Any) -> Make:
    return lambda rng, n, k: rng.normal(size=(n, k)).astype(dtype)


def float8(block: tuple[int, int], form: str = "f8E4M3FN", dtype: Any = np.float32) -> Make:
    """Blocks of an extent of 0 are as long as the axis."""

    def make(rng: np.random.Generator, n: int, k: int) -> QuantizedLayout:
        codes = rng.integers(1, 0x70, (n, k)) | rng.integers(0, 2, (n, k)) << 7
        sizes = [size or extent for size, extent in zip(block, (n, k), strict=True)]
        grid = [-(-extent // size) for size, extent in zip(sizes, (n, k), strict=True)]
        planes = {"d": rng.uniform(0.5, 1, grid).astype(dtype), "qs": codes.astype(np.uint8)}
        metadata = {"block_shape": sizes, "format": form}
        return BlockScaledFloat8Layout((n, k), planes, metadata)

    return make


def lookup(block: int, table: list[Any], dtype: Any, has_divisor: bool = False) -> Make:
    def make(rng: np.random.Generator, n: int, k: int) -> QuantizedLayout:
        grid = (n, k // block)
        divisor = np.array(rng.uniform(90, 110), np.float32) if has_divisor else None
        planes = {
            "d": rng.uniform(1, 100, (*grid, 1)).astype(dtype),
            "qs": rng.integers(0, 256, (*grid, block // 2)).astype(np.uint8),
            "divisor": divisor,
        }
        return LookupBlockScaledLayout((n, k), planes, {"table": table})

    return make


def int4(block: int) -> Make:
    """A block of 0 is a row."""

    def make(rng: np.random.Generator, n: int, k: int) -> QuantizedLayout:
        stored = rng.integers(0, 16, (n, k)).astype(np.uint8)
        scales = rng.uniform(0.5, 1, (n, k // (block or k))).astype(np.float16)
        zeros = rng.integers(0, 16, scales.shape).astype(np.uint8)
        sizes = [1, block or k]
        return BlockAffineLayout.of(stored, scales, zeros, sizes, StorageType(4, False))

    return make


def scaled(
    axes: str, *, dtype: Any = np.int8, has_zero_points: bool = False, factor: float = 1
) -> Make:
    """Scales differ along the `axes`, "n" or "k"."""

    def make(rng: np.random.Generator, n: int, k: int) -> QuantizedLayout:
        grid = {"": (), "n": (n, 1), "k": (1, k)}[axes]
        planes = {
            "d": rng.uniform(0.5, 1, grid).astype(np.float32),
            "qs": rng.integers(-127, 128, (n, k)).astype(dtype),
            "m": rng.integers(-9, 10, grid).astype(dtype) if has_zero_points else None,
        }
        return TensorScaledLayout((n, k), planes, {"factor": float(np.float32(factor))})

    return make


INTEGERS: dict[str, Make] = {
    "int4 in groups": int4(32),
    "int4 for channels": int4(0),
    "int8 for channels": scaled("n"),
    "int8 for channels, zero points": scaled("n", has_zero_points=True),
    "int8 for tensors": scaled(""),
    "LLM.int8": scaled("n", factor=1 / 127),
    "MXFP4": lookup(32, E2M1, ml_dtypes.bfloat16),
    "NVFP4": lookup(16, E2M1, np.float16, has_divisor=True),
}
FLOATS: dict[str, Make] = {
    "bf16": floats(ml_dtypes.bfloat16),
    "f16": floats(np.float16),
    "FP8 for tensors": float8((0, 0)),
    "FP8 for channels": float8((1, 0), dtype=ml_dtypes.bfloat16),
    "FP8 in blocks": float8((32, 64)),
    "FP8 E5M2": float8((1, 0), "f8E5M2"),
    "NF4": lookup(64, LEVELS, np.float32),
}
OTHERS: dict[str, Make] = {
    "f32": floats(np.float32),
    "FP8 in blocks, some of which are shorter": float8((48, 100)),
    "FP8 E4M3FNUZ": float8((1, 0), "f8E4M3FNUZ"),
    "int16": scaled("n", dtype=np.int16),
    "int8 with a scale for each input": scaled("k"),
}
KINDS = {**INTEGERS, **FLOATS}


def stack_of(
    make: Make, seed: int, n: int = N, k: int = K, name: str = "e"
) -> tuple[InferenceTensor, Array]:
    """Return a stack of experts, and their values."""
    rng, tensors, values = np.random.default_rng(seed), list[InferenceTensor](), []
    for number in range(COUNT):
        weight, label = make(rng, n, k), f"{name}.{number}.weight"
        if isinstance(weight, QuantizedLayout):
            tensors.append(PlanarQuantizedTensor(weight, label))
            weight = weight.dequant()
        else:
            tensors.append(PrimitiveTensor(weight, label))
        values.append(weight.astype(np.float64))
    return stack(tensors, f"{name}.weight"), np.stack(values)


def lowered(function: Any, *inputs: Array, **options: Any) -> tuple[str, list[str]]:
    """Return the module that IREE compiles, and the remarks about contractions."""
    remarks: list[str] = []
    text = compile_to_bytes(
        trace_function(function, *inputs),
        CompileOptions(explain=True, **options),
        emit="mlir",
        on_remark=lambda each: remarks.append(each.message),
    )
    return text.decode(), [each for each in remarks if "kernel" in each]


def compiled(function: Any, *inputs: Array, **options: Any) -> Executable:
    device = options.pop("device", "llvm-cpu")
    data = compile_to_bytes(trace_function(function, *inputs), CompileOptions(**options))
    return Executable(data, device)


@pytest.mark.share(12)
@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_read_the_chosen_experts(kind: str, instructions: str) -> None:
    weight, _ = stack_of(KINDS[kind], 1)
    assert experts._has_kernel(weight, True)
    assert experts._has_kernel(weight, False) == (kind in INTEGERS)
    check_chosen(KINDS[kind], kernels=instructions)


@pytest.mark.vulkan
@pytest.mark.parametrize("kind", ["int8 for channels", "NVFP4"])
def test_chosen_experts_on_vulkan(kind: str, vulkan: Device) -> None:
    check_chosen(KINDS[kind], device=vulkan, target="vulkan", vulkan_target=vulkan.vulkan_target)


def check_chosen(make: Make, device: Device | str = "llvm-cpu", **options: Any) -> None:
    weight, values = stack_of(make, 1)
    x = np.random.default_rng(2).normal(size=(3, 5, K)).astype(np.float32)
    choices = np.array([4, 0, 4], np.int32)

    def function(x: Any, choices: Any) -> Any:
        return chosen_linear(x, weight, choices)

    text, remarks = lowered(function, x, choices, **options)
    assert len(remarks) == 1
    assert remarks[0].startswith("is computed by a kernel"), remarks
    assert "stablehlo.gather" not in text
    executable = compiled(function, x, choices, device=device, **options)
    check_sum(executable.main(x, choices), x, values[choices])


def check_sum(actual: Any, x: Array, values: Array) -> None:
    """Sums of f32 of K products, each of which has three roundings at most."""
    left, right = x.astype(np.float64), values.transpose(0, 2, 1)
    bound = 2.0**-24 * (K + 8) * (np.abs(left) @ np.abs(right))
    assert (np.abs(actual - left @ right) <= bound).all()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_experts_have_no_kernel(kind: str) -> None:
    weight, _ = stack_of(OTHERS[kind], 1)
    assert not experts._has_kernel(weight, True)
    x, choices = np.zeros((3, 5, K), np.float32), np.zeros(3, np.int32)
    _, remarks = lowered(
        lambda x, choices: chosen_linear(x, weight, choices), x, choices, kernels="portable"
    )
    assert not any(each.startswith("is computed by a kernel") for each in remarks)


# -- tokens in groups ------------------------------------------------------------------------------


def mixture(make: Make) -> tuple[Theta, dict[str, Array]]:
    """Return the tensors of a block, and their values."""
    router = np.random.default_rng(9).normal(size=(COUNT, K)).astype(np.float32)
    tensors: list[InferenceTensor] = [PrimitiveTensor(router, "ffn_gate_inp.weight")]
    values = {"router": router.astype(np.float64)}
    for seed, (role, n, k) in enumerate((("gate", N, K), ("up", N, K), ("down", K, N))):
        weight, values[role] = stack_of(make, seed, n, k, f"ffn_{role}_exps")
        tensors.append(weight)
    return Theta(tensors), values


def silu(x: Any) -> Any:
    return x / (np.float32(1) + np.exp(-x))


def mixed(values: dict[str, Array], x: Array) -> Array:
    """Return the results of tokens, one after another."""
    results = []
    for token in x.astype(np.float64):
        scores = values["router"] @ token
        best = np.argsort(-scores)[:CHOSEN]
        weights = np.exp(scores[best] - scores[best].max())
        total = np.zeros(K)
        for expert, weight in zip(best, weights / weights.sum(), strict=True):
            gate, up = (values[role][expert] @ token for role in ("gate", "up"))
            sigmoid = np.exp(-np.logaddexp(0, -gate))
            total += weight * (values["down"][expert] @ (gate * sigmoid * up))
        results.append(total)
    return np.stack(results)


GROUPED = ["int4 in groups", "int8 for channels, zero points", "NVFP4", "bf16", "FP8 in blocks"]
"""A kind for each form of decoding: integers with and without blocks, levels, floats."""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS if LONG else GROUPED)
@pytest.mark.share(6)
def test_tokens_are_grouped_by_experts(kind: str) -> None:
    theta, values = mixture(KINDS[kind])
    check_mixture(theta, values, is_grouped=True)


@pytest.mark.parametrize("kind", ["f32", "FP8 E4M3FNUZ"])
def test_tokens_without_kernels_are_computed_one_by_one(kind: str) -> None:
    """The short suite computes the numbers in NumPy: IREE compiles the loop for ten seconds."""
    theta, values = mixture(OTHERS[kind])
    check_mixture(theta, values, is_grouped=False)


def check_mixture(theta: Theta, values: dict[str, Array], *, is_grouped: bool) -> None:
    x = np.random.default_rng(5).normal(size=(40, K)).astype(np.float32) / 16
    settings = Experts(COUNT, CHOSEN, N, frozenset())

    def function(x: Any) -> Any:
        return experts.mix_experts(settings, theta, x, silu)

    text, _ = lowered(function, x)
    main = text[text.index("@main") :]
    assert main.count("entry_points = [@blockwise_gemm") == (3 if is_grouped else 0)
    assert ("scf.for" in main) == (not is_grouped)
    expected = mixed(values, x)
    actual = compiled(function, x).main(x) if is_grouped or LONG else function(x)
    errors = np.abs(actual - expected).max(-1) / np.abs(expected).max(-1)
    assert errors.max() < 1e-5


@pytest.mark.parametrize("count", [1, 40])
def test_gate_and_up_round_their_input_once(count: int) -> None:
    theta, _ = mixture(KINDS["int4 in groups"])
    settings = Experts(COUNT, CHOSEN, N, frozenset())
    text, _ = lowered(
        lambda x: experts.mix_experts(settings, theta, x, silu), np.zeros((count, K), np.float32),
        activations="int8", kernels="portable", fuse_below_macs=0,
    )  # fmt: skip
    main = text[text.index("@main") :]
    assert main.count("entry_points = [@blockwise_gemm") == 3
    assert main.count("entry_points = [@quantize_rows") == 2
