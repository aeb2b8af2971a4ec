"""ONNX Runtime's operators of transformers compared with ONNX Runtime, and refused nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx_models import computed, model, ms, node, text_of
from onnx_runtime import DrawnCases, Rng, Written, reals, within, written
from subquant.errors import UnsupportedError
from test_onnx_attention import attention, multi_head, quantized_attention


def rotary(rng: Rng, *, four: bool = False, **attributes: Any) -> Written:
    angles = np.outer(np.arange(12), 0.5 ** np.arange(4)).astype(np.float32)
    caches = {"i2": np.cos(angles), "i3": np.sin(angles)}
    x = reals(rng, 2, 2, 5, 8) if four else reals(rng, 2, 5, 16)
    positions = rng.integers(0, 12, (2, 5)) if four else np.array([3])
    return written(ms("RotaryEmbedding"), {"i0": x, "i1": positions}, caches, **attributes)


def embedded(rng: Rng, *, mask: bool) -> Written:
    feeds = {"i0": rng.integers(0, 9, (2, 4)).astype(np.int32),
             "i1": rng.integers(0, 2, (2, 4)).astype(np.int32)}  # fmt: skip
    if mask:
        feeds["i7"] = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    tables = {"i2": reals(rng, 9, 8), "i3": reals(rng, 6, 8), "i4": reals(rng, 2, 8),
              "i5": reals(rng, 8), "i6": reals(rng, 8)}  # fmt: skip
    return written(ms("EmbedLayerNormalization"), feeds, tables, 2, output_dtypes={1: np.int32})


def embedded_integers(rng: Rng, *, dtype: str, segments: bool) -> Written:
    """Tables of bytes, with a scale and a zero point each."""
    feeds = {"i0": rng.integers(0, 9, (2, 4)).astype(np.int32)}
    feeds["i7"] = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)
    numbers = [2, 3, 4, 5, 6] if segments else [2, 3, 5, 6]
    shapes = {2: (9, 8), 3: (6, 8), 4: (2, 8), 5: (8,), 6: (8,)}
    low = np.iinfo(dtype).min
    constants = {}
    for number in numbers:
        constants[f"i{number}"] = rng.integers(low, low + 256, shapes[number]).astype(dtype)
        constants[f"i{number + 6}"] = np.float32(rng.uniform(0.01, 0.1))
        constants[f"i{number + 11}"] = rng.integers(low, low + 256, ()).astype(dtype)
    if segments:
        feeds["i1"] = rng.integers(0, 2, (2, 4)).astype(np.int32)
    return written(ms("QEmbedLayerNormalization"), feeds, constants, 2,
                   output_dtypes={1: np.int32})  # fmt: skip


def gathered(rng: Rng, bits: int, *, zeros: bool) -> Written:
    """Rows of a table in blocks of 16, in bytes."""
    count = 8 // bits
    constants = {
        "i0": rng.integers(0, 256, (7, 48 // count)).astype(np.uint8),
        "i2": rng.uniform(0.01, 0.1, (7, 3)).astype(np.float32),
    }
    if zeros:
        constants["i3"] = rng.integers(0, 256, (7, -(-3 // count))).astype(np.uint8)
    return written(ms("GatherBlockQuantized"), {"i1": rng.integers(0, 7, (2, 3))}, constants,
                   bits=bits, block_size=16, gather_axis=0, quantize_axis=1)  # fmt: skip


def gemm_and(activation: str, numbers: dict[str, float], rng: Rng) -> Written:
    attributes = {f"activation_{name}": number for name, number in numbers.items()}
    return written(ms("FusedGemm"), {"i0": reals(rng, 3, 8)}, {"i1": reals(rng, 8, 5)},
                   activation=activation, **attributes)  # fmt: skip


GEMM_ACTIVATIONS: dict[str, dict[str, float]] = {
    "Elu": {"alpha": 0.7}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "Relu": {},
    "Selu": {"alpha": 1.6, "gamma": 1.1}, "Sigmoid": {}, "Softplus": {}, "Softsign": {},
    "Tanh": {}, "ThresholdedRelu": {"alpha": 0.5},
}  # fmt: skip
"""The activations that ONNX Runtime fuses with a Gemm, with their attributes."""
IMAGES, KERNELS = (2, 3, 6, 5), (4, 3, 3, 3)
CASES: dict[str, Callable[[Rng], Written]] = {
    "Gelu": lambda rng: written(ms("Gelu"), {"i0": reals(rng, 3, 8)}),
    "BiasGelu": lambda rng: written(ms("BiasGelu"), {"i0": reals(rng, 3, 8), "i1": reals(rng, 8)}),
    "FastGelu": lambda rng: written(ms("FastGelu"), {"i0": reals(rng, 3, 8), "i1": reals(rng, 8)}),
    "QuickGelu": lambda rng: written(ms("QuickGelu"), {"i0": reals(rng, 3, 8)}, alpha=1.5),
    "SkipLayerNormalization": lambda rng: written(
        ms("SkipLayerNormalization"), {"i0": reals(rng, 2, 3, 8), "i1": reals(rng, 2, 3, 8)},
        {"i2": reals(rng, 8), "i3": reals(rng, 8), "i4": reals(rng, 8)}, epsilon=1e-5,
    ),
    "SkipSimplifiedLayerNormalization": lambda rng: written(
        ms("SkipSimplifiedLayerNormalization"),
        {"i0": reals(rng, 2, 3, 8), "i1": reals(rng, 2, 3, 8)}, {"i2": reals(rng, 8)},
        epsilon=1e-5,
    ),
    "SimplifiedLayerNormalization": lambda rng: written(
        "SimplifiedLayerNormalization", {"i0": reals(rng, 2, 3, 8)}, {"i1": reals(rng, 8)},
        axis=-1, epsilon=1e-6,
    ),
    "EmbedLayerNormalization": functools.partial(embedded, mask=True),
    "EmbedLayerNormalization-no-mask": functools.partial(embedded, mask=False),
    "QEmbedLayerNormalization-int8": functools.partial(
        embedded_integers, dtype="int8", segments=True
    ),
    "QEmbedLayerNormalization-uint8": functools.partial(
        embedded_integers, dtype="uint8", segments=False
    ),
    "RotaryEmbedding": functools.partial(rotary, num_heads=2),
    "RotaryEmbedding-interleaved": functools.partial(rotary, num_heads=2, interleaved=1),
    "RotaryEmbedding-four": functools.partial(rotary, four=True),
    "Attention": attention,
    "Attention-mask": functools.partial(
        attention, mask=np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    ),
    "Attention-causal": functools.partial(attention, unidirectional=1),
    "QAttention": quantized_attention,
    "MultiHeadAttention": functools.partial(multi_head, length=5),
    "MultiHeadAttention-bias": functools.partial(multi_head, length=5, bias=True, added=(1, 2)),
    "FusedMatMul": lambda rng: written(
        ms("FusedMatMul"), {"i0": reals(rng, 2, 8, 3), "i1": reals(rng, 2, 4, 8)},
        transA=1, transB=1, alpha=0.5,
    ),
    "FusedConv": lambda rng: written(
        ms("FusedConv"), {"i0": reals(rng, *IMAGES), "i3": reals(rng, 2, 4, 4, 3)},
        {"i1": reals(rng, *KERNELS), "i2": reals(rng, 4)}, activation="Relu",
    ),
    "FusedGemm": lambda rng: written(
        ms("FusedGemm"), {"i0": reals(rng, 3, 8)}, {"i1": reals(rng, 5, 8), "i2": reals(rng, 5)},
        transB=1, activation="LeakyRelu", activation_alpha=0.2,
    ),
    **{
        f"FusedGemm-{activation}": functools.partial(gemm_and, activation, numbers)
        for activation, numbers in GEMM_ACTIVATIONS.items()
    },
    **{
        f"GatherBlockQuantized-{bits}{'-zeros' if zeros else ''}": functools.partial(
            gathered, bits=bits, zeros=zeros
        )
        for bits in (2, 4, 8)
        for zeros in (False, True)
    },
}  # fmt: skip


MODELS = DrawnCases(CASES, 2, within(2e-6))  # sums of up to 72 products, and functions of them
test_numpy_computes_what_onnx_runtime_does, test_the_cpu_computes_the_same = MODELS.tests()


def test_a_product_of_integers_stays_one() -> None:
    """FusedMatMul of dequantized operands."""
    constants = {
        "s": np.array(0.5, np.float32), "w": np.arange(-12, 12, dtype=np.int8).reshape(4, 6),
        "t": np.array(2.0, np.float32), "z": np.array(0, np.uint8),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("DequantizeLinear", ["w", "s"], ["b"]),
        node(ms("FusedMatMul"), ["a", "b"], ["p"], transB=1),
        node("QuantizeLinear", ["p", "t", "z"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": ("UINT8", (3, 6))}, {"y": ("UINT8", (3, 4))}, constants)
    assert "f32>" not in text_of(proto)
    x = np.random.default_rng(0).integers(0, 256, (3, 6)).astype(np.uint8)
    exact = x.astype(int) @ constants["w"].T.astype(int) / 8
    np.testing.assert_array_equal(computed(proto, None, x)[0], np.clip(np.rint(exact), 0, 255))


@pytest.mark.parametrize(
    ("operator", "count"),
    [("MatMulBnb4", 3), ("LongformerAttention", 7)],
)
def test_refused_nodes_are_named(operator: str, count: int) -> None:
    feeds = {f"i{n}": np.zeros((2, 4), np.float32) for n in range(count)}
    proto, _ = written(ms(operator), feeds, num_heads=2)
    with pytest.raises(UnsupportedError) as caught:
        text_of(proto)
    assert f"node 0 (com.microsoft.{operator}) 'the {operator}' is not lowered" in str(caught.value)
