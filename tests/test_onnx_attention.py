"""Attention beside ONNX Runtime: caches, masks, rotations, norms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_models import computed, model, ms, node
from onnx_runtime import DrawnCases, Rng, Written, of_onnx_runtime, reals, within, written
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import UnsupportedError
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]


def grouped(
    rng: Rng, *, batch: int = 1, length: int = 1, past: int | None = 5, total: int | None = None,
    lengths: list[int] | None = None, packed: bool = False, bias: bool = False, sinks: bool = False,
    positions: bool = False, fixed: bool = False, bits: int = 0, outputs: int = 3,
    channels: bool = False, **attributes: Any,
) -> Written:  # fmt: skip
    """Four heads of queries on two of keys, of 16 elements."""
    heads, groups, width = 4, 2, 16
    if total is None:
        total = length + (past or 0)
    if packed:
        feeds = {"i0": reals(rng, batch, length, (heads + 2 * groups) * width)}
    else:
        feeds = {"i0": reals(rng, batch, length, heads * width),
                 "i1": reals(rng, batch, length, groups * width),
                 "i2": reals(rng, batch, length, groups * width)}  # fmt: skip
    if past is not None:
        feeds |= {name: reals(rng, batch, groups, past, width) for name in ("i3", "i4")}
    dtypes: dict[int, Any] = {}
    if bits:
        dtypes = dict.fromkeys((1, 2), np.int8 if bits == 8 else np.uint8)
        kind = "PER_CHANNEL" if channels else "PER_TENSOR"
        attributes |= {"kv_cache_bit_width": bits, "k_quant_type": kind, "v_quant_type": kind}
        if past is not None:
            packed_width = width * bits // 8
            info = np.iinfo(dtypes[1])
            feeds |= {name: rng.integers(info.min, info.max, (batch, groups, past, packed_width))
                      .astype(dtypes[1]) for name in ("i3", "i4")}  # fmt: skip
    ends = np.array(lengths if lengths is not None else [total] * batch, np.int32) - 1
    constants: dict[str, Any] = {"i6": np.array(total, np.int32)}
    (constants if fixed else feeds)["i5"] = ends.astype(np.int32)
    if attributes.get("do_rotary"):
        angles = np.outer(np.arange(32), 0.5 ** np.arange(8)).astype(np.float32)
        constants |= {"i7": np.cos(angles), "i8": np.sin(angles)}
    if bits:
        shape = (1, groups, 1, width) if channels else (1,)
        low, high = (0.01, 0.03) if bits == 8 else (0.2, 0.5)
        constants |= {name: rng.uniform(low, high, shape).astype(np.float32)
                      for name in ("i12", "i13")}  # fmt: skip
    if positions:
        feeds["i9"] = rng.integers(0, 28, (batch, length))
    if bias:
        feeds["i10"] = reals(rng, 1, heads, length, total)
    if sinks:
        constants["i11"] = reals(rng, heads)
    return written(ms("GroupQueryAttention"), feeds, constants, outputs, output_dtypes=dtypes,
                   num_heads=heads, kv_num_heads=groups, **attributes)  # fmt: skip


ROTARY, SCORES = {"do_rotary": 1}, {"qk_output": 1, "outputs": 4}
GROUPED: dict[str, Callable[[Rng], Written]] = {
    f"GroupQueryAttention-{name}": functools.partial(grouped, **options)
    for name, options in {
        "step": {},
        "step-fixed": {"fixed": True},
        "step-rotary": ROTARY,
        "step-interleaved": ROTARY | {"rotary_interleaved": 1},
        "step-batch": ROTARY | {"batch": 3, "lengths": [6, 4, 1], "past": 5},
        "step-batch-fixed": ROTARY | {"batch": 2, "lengths": [6, 3], "past": 5, "fixed": True},
        "step-buffer": ROTARY | {"past": 9, "total": 4},
        "step-positions": ROTARY | {"positions": True},
        "step-packed": ROTARY | {"packed": True},
        "step-window": ROTARY | {"local_window_size": 3},
        "step-8-bits": ROTARY | {"bits": 8},
        "step-8-bits-channels": {"bits": 8, "channels": True, "batch": 2, "lengths": [6, 3]},
        "step-4-bits": ROTARY | {"bits": 4, "past": 9, "total": 5},
        "step-4-bits-channels": {"bits": 4, "channels": True},
        "prompt-8-bits": ROTARY | {"bits": 8, "length": 5, "past": 0},
        "chunk-8-bits": {"bits": 8, "length": 3, "past": 4},
        "chunk-4-bits": {"bits": 4, "length": 3, "past": 4, "channels": True},
        "prompt": ROTARY | {"length": 6, "past": None},
        "prompt-empty-past": ROTARY | {"length": 6, "past": 0},
        "prompt-buffer": {"length": 4, "past": 7, "total": 4},
        "prompt-batch": ROTARY | {"batch": 2, "length": 6, "past": None},
        "prompt-positions": ROTARY | {"batch": 2, "length": 3, "past": None, "positions": True},
        "prompt-window": {"length": 6, "past": None, "local_window_size": 2},
        "prompt-softcap": {"length": 6, "past": None, "softcap": 1.5, "scale": 0.7},
        "prompt-packed": ROTARY | {"length": 5, "past": None, "packed": True, "batch": 2},
        "prompt-bias": {"length": 5, "past": None, "bias": True},
        "prompt-sinks": {"length": 5, "past": None, "sinks": True},
        "prompt-smooth": {"length": 5, "past": None, "smooth_softmax": 1},
        "prompt-not-causal": {"length": 5, "past": None, "causal": 0},
        "scores": SCORES | {"length": 5, "past": None, "bias": True, "softcap": 2.0},
        "scores-window": SCORES | {"length": 3, "past": 4, "local_window_size": 3},
        "scores-buffer": SCORES | {"past": 9, "total": 4, "batch": 2, "lengths": [4, 2]},
        "shares": SCORES | {"qk_output": 2, "length": 5, "past": None, "sinks": True},
        "chunk": ROTARY | {"length": 3, "past": 4},
        "chunk-window": ROTARY | {"length": 3, "past": 4, "local_window_size": 2},
        "chunk-bias": {"length": 3, "past": 4, "bias": True},
    }.items()
}


def multi_head(
    rng: Rng, *, mask: Array | None = None, past: int = 0, bias: bool = False,
    added: tuple[int, int] | None = None, crossed: bool = False, length: int = 6, outputs: Any = 1,
    **attributes: Any,
) -> Written:  # fmt: skip
    """Two heads of 4 elements, 6 new keys; `added` is batch and heads of a bias of the scores."""
    feeds: dict[str, Any] = {"i0": reals(rng, 2, length, 8)}
    if crossed:
        feeds |= {"i1": reals(rng, 2, 2, 6, 4), "i2": reals(rng, 2, 2, 6, 4)}
    else:
        feeds |= {"i1": reals(rng, 2, 6, 8), "i2": reals(rng, 2, 6, 8)}
    if bias:
        feeds["i3"] = reals(rng, 24)
    if mask is not None:
        feeds["i4"] = np.asarray(mask, np.int32)
    if added is not None:
        feeds["i5"] = reals(rng, *added, length, 6 + past)
    if past:
        feeds |= {"i6": reals(rng, 2, 2, past, 4), "i7": reals(rng, 2, 2, past, 4)}
    return written(ms("MultiHeadAttention"), feeds, None, outputs, num_heads=2, **attributes)


def attention(
    rng: Rng, *, mask: Array | None = None, past: int = 0, added: bool = False, outputs: Any = 1,
    sizes: list[int] | None = None, **attributes: Any,
) -> Written:  # fmt: skip
    if sizes is not None:
        attributes["qkv_hidden_sizes"] = sizes
    width = sum(sizes or [8, 8, 8])
    feeds: dict[str, Any] = {"i0": reals(rng, 2, 5, 8)}
    if mask is not None:
        feeds["i3"] = np.asarray(mask, np.int32)
    if past:
        feeds["i4"] = reals(rng, 2, 2, 2, past, 4)
    if added:
        feeds["i5"] = reals(rng, 1, 2, 5, 5 + past)
    weights = {"i1": reals(rng, 8, width), "i2": reals(rng, width)}
    return written(ms("Attention"), feeds, weights, outputs, num_heads=2, **attributes)


def quantized_attention(
    rng: Rng, *, past: int = 0, mask: Array | None = None, outputs: int = 1, **attributes: Any
) -> Written:
    feeds: dict[str, Any] = {"i0": rng.integers(0, 256, (2, 5, 8)).astype(np.uint8)}
    if mask is not None:
        feeds["i5"] = np.asarray(mask, np.int32)
    if past:
        feeds["i8"] = reals(rng, 2, 2, 2, past, 4)
    constants = {
        # Of more bits, sums of two products saturate in ONNX Runtime on a CPU with AVX2 only.
        "i1": rng.integers(-64, 65, (8, 24)).astype(np.int8), "i2": reals(rng, 24),
        "i3": np.float32(0.02), "i4": np.float32(0.01), "i6": np.uint8(120), "i7": np.int8(3),
    }  # fmt: skip
    return written(ms("QAttention"), feeds, constants, outputs, num_heads=2, **attributes)


LEFT_PADDED = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
CAUSAL: dict[str, Any] = {"unidirectional": 1}
OTHERS: dict[str, Callable[[Rng], Written]] = {
    f"{operator}-{name}": functools.partial(make, **options)
    for operator, make, cases in (
        ("MultiHeadAttention", multi_head, {
            "ends": {"mask": np.array([4, 6])},
            "causal": CAUSAL,
            "mask": CAUSAL | {"mask": np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
                              "added": (2, 1)},
            "mask-of-rows": {"length": 5, "mask": np.tril(np.ones((2, 5, 6), int)), "bias": True},
            "crossed": {"crossed": True},
            "past": {"past": 3, "bias": True, "outputs": 3},
            "past-causal": CAUSAL | {"past": 3, "outputs": 3,
                                     "mask": np.array([[1] * 9, [0] * 4 + [1] * 5])},
            "step": {"past": 3, "length": 1, "added": (2, 1), "outputs": 3},
            "present": {"outputs": 3, "scale": 0.3},
            "scores": {"outputs": [0, 1, 2, 3], "past": 2},
        }),
        ("Attention", attention, {
            "ends": {"mask": np.array([3, 5])},
            "bounds": {"mask": np.array([3, 5, 1, 0])},
            "mask-of-rows": {"mask": np.tril(np.ones((2, 5, 5), int))},
            "padded-causal": CAUSAL | {"mask": LEFT_PADDED},
            "filler": {"mask": LEFT_PADDED, "mask_filter_value": -2.0},
            "past": CAUSAL | {"past": 3, "outputs": 2},
            "past-mask": {"past": 3, "outputs": 2, "mask": np.array([[0] * 2 + [1] * 6, [1] * 8])},
            "filler-alone": {"mask_filter_value": -2.0},
            "present": {"outputs": 2},
            "sizes": {"sizes": [8, 8, 12], "scale": 0.4},
        }),
        ("QAttention", quantized_attention, {
            "past": CAUSAL | {"past": 3, "outputs": 2},
            "past-mask": CAUSAL | {"past": 2, "outputs": 2,
                                   "mask": np.array([[0] + [1] * 6, [1] * 7])},
        }),
    )
    for name, options in cases.items()
}  # fmt: skip


def of_onnx(
    rng: Rng, *, heads: tuple[int, int] = (4, 2), length: int = 5, keys: int = 6, past: int = 0,
    mask: tuple[int, ...] | None = None, is_boolean: bool = False, flat: bool = False,
    ends: list[int] | None = None, opset: int = 24, outputs: Any = 1, **attributes: Any,
) -> Written:  # fmt: skip
    """Heads of 8 elements, values of 6."""
    shapes = [(2, heads[0], length, 8), (2, heads[1], keys, 8), (2, heads[1], keys, 6)]
    if flat:
        shapes = [(b, s, n * h) for b, n, s, h in shapes]
        attributes |= {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
    feeds: dict[str, Any] = {f"i{n}": reals(rng, *shape) for n, shape in enumerate(shapes)}
    if mask is not None:
        feeds["i3"] = reals(rng, *mask)
        if is_boolean:
            feeds["i3"] = feeds["i3"] > -0.5
    if past:
        feeds |= {"i4": reals(rng, 2, heads[1], past, 8), "i5": reals(rng, 2, heads[1], past, 6)}
    if ends is not None:
        feeds["i6"] = np.array(ends)
    return written("Attention", feeds, None, outputs, opset, **attributes)


SPECIFIED: dict[str, Callable[[Rng], Written]] = {
    f"onnx-{name}": functools.partial(of_onnx, **options)
    for name, options in {
        "plain": {"opset": 23},
        "flat": {"flat": True, "scale": 0.5},
        "causal": {"is_causal": 1, "keys": 5},
        "past": {"past": 3, "outputs": 3, "opset": 23},
        "past-causal": {"past": 3, "is_causal": 1, "keys": 5, "outputs": 3},
        "mask": {"mask": (5, 6)},
        "mask-of-heads": {"mask": (2, 4, 5, 6), "softcap": 2.0},
        "boolean": {"mask": (2, 1, 5, 6), "is_boolean": True},
        "boolean-causal": {"mask": (5, 5), "is_boolean": True, "is_causal": 1, "keys": 5},
        "scores": {"outputs": [0, 3]},
        "scores-softcap": {"outputs": [0, 3], "softcap": 1.0},
        "scores-1": {"outputs": [0, 3], "qk_matmul_output_mode": 1, "mask": (5, 6),
                     "softcap": 2.0},
        "scores-2": {"outputs": [0, 3], "qk_matmul_output_mode": 2, "mask": (5, 6),
                     "softcap": 2.0},
        "scores-3": {"outputs": [0, 3], "qk_matmul_output_mode": 3, "mask": (5, 6)},
        "ends": {"ends": [4, 6]},
        "ends-causal": {"ends": [5, 6], "is_causal": 1},
    }.items()
}  # fmt: skip


def rotary(
    rng: Rng, *, flat: bool = False, positions: bool = True, rotated_size: int = 0,
    **attributes: Any,
) -> Written:  # fmt: skip
    x = reals(rng, 2, 3, 5, 8)
    if flat:
        x, attributes = x.transpose(0, 2, 1, 3).reshape(2, 5, 24), attributes | {"num_heads": 3}
    angles = np.outer(np.arange(12), 0.5 ** np.arange((rotated_size or 8) // 2)).astype(np.float32)
    feeds: dict[str, Any] = {"i0": x}
    if positions:
        feeds["i3"] = rng.integers(0, 12, (2, 5))
    else:
        angles = angles[:10].reshape(2, 5, -1)
    return written("RotaryEmbedding", feeds, {"i1": np.cos(angles), "i2": np.sin(angles)}, 1, 23,
                   rotary_embedding_dim=rotated_size, **attributes)  # fmt: skip


SPECIFIED |= {
    "rotary": rotary,
    "rotary-flat": functools.partial(rotary, flat=True, interleaved=1),
    "rotary-partial": functools.partial(rotary, rotated_size=4),
    "rotary-partial-interleaved": functools.partial(
        rotary, rotated_size=4, interleaved=1, flat=True
    ),
    "rotary-no-positions": functools.partial(rotary, positions=False),
}


CASES = GROUPED | OTHERS | SPECIFIED


assert_close = within(2e-6)
"""Sums of up to 24 products of f32, and functions of them."""


MODELS = DrawnCases(CASES, 4, assert_close)
test_numpy_computes_what_onnx_runtime_does, test_the_cpu_computes_the_same = MODELS.tests()


@pytest.mark.parametrize("case", ["onnx-scores", "MultiHeadAttention-scores"])
def test_scores_are_a_result_on_the_cpu(case: str, cpu: Device) -> None:
    proto, feeds = MODELS[case]
    expected = computed(proto, None, *feeds.values())
    MODELS.compare(case, computed(proto, cpu, *feeds.values()), expected)


def test_halves_are_computed_in_f32() -> None:
    """GroupQueryAttention of f16; each rounds its results once, which is half a unit of 2."""
    proto, feeds = grouped(np.random.default_rng(0), length=4, past=None, do_rotary=1)
    halves = {
        name: value.astype(np.float16) if value.dtype == np.float32 else value
        for name, value in feeds.items()
    }
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    constants |= {name: constants[name].astype(np.float16) for name in ("i7", "i8")}
    proto, halves = written(
        ms("GroupQueryAttention"), halves, constants, 3, num_heads=4, kv_num_heads=2, do_rotary=1
    )
    expected = of_onnx_runtime(proto, halves)
    for result, target in zip(computed(proto, None, *halves.values()), expected, strict=True):
        assert result.dtype == np.float16
        np.testing.assert_allclose(result, target, rtol=0, atol=2.0**-8)


@pytest.mark.parametrize("packed", ["queries, keys and values", "keys and values"])
def test_packed_operands_are_those_side_by_side(packed: str) -> None:
    """ONNX Runtime's CPU refuses them: ``[B, S, N, 3, H]`` and ``[B, S, N, 2, H]``."""
    rng = np.random.default_rng(0)
    sides = [reals(rng, 2, 5, 8) for _ in range(3)]
    plain, _ = written(ms("MultiHeadAttention"), {f"i{n}": side for n, side in enumerate(sides)},
                       None, 1, num_heads=2)  # fmt: skip
    heads = [side.reshape(2, 5, 2, 4) for side in sides]
    feeds = {"i0": np.stack(heads, 3)}
    if packed == "keys and values":
        feeds = {"i0": sides[0], "i1": np.stack(heads[1:], 3)}
    proto, _ = written(ms("MultiHeadAttention"), feeds, None, 1, num_heads=2)
    (expected,) = computed(plain, None, *sides)
    (result,) = computed(proto, None, *feeds.values())
    np.testing.assert_array_equal(result, expected)


def test_a_dynamic_batch(cpu: Device) -> None:
    """Attention, a normalization and an LSTM are computed for each element alone."""
    rng = np.random.default_rng(0)
    nodes = [
        node(ms("MultiHeadAttention"), ["x", "x", "x", "", "mask"], ["a"], num_heads=2),
        node(ms("SkipLayerNormalization"), ["a", "x", "g"], ["b"]),
        node("Transpose", ["b"], ["t"], perm=[1, 0, 2]),
        node("LSTM", ["t", "w", "r"], ["h", "hn"], hidden_size=3),
        node("Squeeze", ["hn", "zero"], ["y"]),
    ]
    constants = {"g": reals(rng, 8), "w": reals(rng, 1, 12, 8), "r": reals(rng, 1, 12, 3),
                 "zero": np.array([0])}  # fmt: skip
    inputs = {"x": ("FLOAT", ("n", 5, 8)), "mask": ("INT32", ("n", 5))}
    proto = model(nodes, inputs, {"y": ("FLOAT", ("n", 3))}, constants)
    options = CompileOptions(batch="dynamic")
    main = Executable(compile_to_bytes(proto.SerializeToString(), options), cpu).main
    x, mask = reals(rng, 3, 5, 8), np.array([[1] * 5, [1, 1, 0, 0, 0], [0, 1, 1, 1, 1]], np.int32)
    (expected,) = computed(proto, None, x, mask)
    np.testing.assert_allclose(np.asarray(main(x, mask)), expected, rtol=0, atol=2e-6)


def test_a_batch_with_one_range_is_refused() -> None:
    """DynamicQuantizeLSTM quantizes the states of the whole batch."""
    constants = {"w": np.zeros((1, 8, 12), np.uint8), "r": np.zeros((1, 3, 12), np.uint8),
                 "s": np.ones(1, np.float32), "z": np.zeros(1, np.uint8)}  # fmt: skip
    names = ["t", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node(ms("DynamicQuantizeLSTM"), names, ["h"], hidden_size=3),
    ]
    inputs = {"x": ("FLOAT", ("n", 5, 8))}
    proto = model(nodes, inputs, {"h": ("FLOAT", (5, 1, "n", 3))}, constants)
    with pytest.raises(UnsupportedError, match="is not known to compute each element of the batch"):
        compile_to_bytes(proto.SerializeToString(), CompileOptions(batch="dynamic"), emit="mlir")


def decoder(length: int, past: int) -> onnx.ModelProto:
    """A layer as ONNX Runtime GenAI exports it: lengths are computed from the attention mask."""
    rng = np.random.default_rng(1)
    angles = np.outer(np.arange(16), 0.5 ** np.arange(8)).astype(np.float32)
    constants = {
        "g": reals(rng, 32), "qkv": reals(rng, 32, 64) * 0.2, "o": reals(rng, 32, 32) * 0.2,
        "cos": np.cos(angles), "sin": np.sin(angles), "one": np.array([1]),
        "second": np.array(1),
    }  # fmt: skip
    nodes = [
        node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
        node("Sub", ["count", "one"], ["less"]),
        node("Cast", ["less"], ["seqlens_k"], to=onnx.TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "second"], ["extent"]),
        node("Cast", ["extent"], ["total"], to=onnx.TensorProto.INT32),
        node("SimplifiedLayerNormalization", ["x", "g"], ["n"], axis=-1, epsilon=1e-6),
        node("MatMul", ["n", "qkv"], ["p"]),
        node(ms("GroupQueryAttention"),
             ["p", "", "", "past_key", "past_value", "seqlens_k", "total", "cos", "sin"],
             ["a", "key", "value"], num_heads=2, kv_num_heads=1, do_rotary=1),
        node("MatMul", ["a", "o"], ["b"]),
        node(ms("SkipSimplifiedLayerNormalization"), ["x", "b", "g"], ["y", "", "", "sum"],
             epsilon=1e-6),
    ]  # fmt: skip
    for number, each in enumerate(nodes):
        each.name = f"node {number}"
    whole = length + past
    caches = dict.fromkeys(("past_key", "past_value"), ("FLOAT", (1, 1, past, 16)))
    inputs = {"x": ("FLOAT", (1, length, 32)), "mask": ("INT64", (1, whole)), **caches}
    outputs = dict.fromkeys(("y", "sum"), ("FLOAT", (1, length, 32)))
    outputs |= dict.fromkeys(("key", "value"), ("FLOAT", (1, 1, whole, 16)))
    return model(nodes, inputs, outputs, constants)


@pytest.mark.long
@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 5), (3, 4)])
def test_a_decoder_computes_what_onnx_runtime_does(length: int, past: int, cpu: Device) -> None:
    proto, rng = decoder(length, past), np.random.default_rng(2)
    feeds = {"x": reals(rng, 1, length, 32), "mask": np.ones((1, length + past), np.int64),
             "past_key": reals(rng, 1, 1, past, 16),
             "past_value": reals(rng, 1, 1, past, 16)}  # fmt: skip
    expected = of_onnx_runtime(proto, feeds)
    for device in (None, cpu):
        for result, other in zip(computed(proto, device, *feeds.values()), expected, strict=True):
            np.testing.assert_allclose(result, other, rtol=0, atol=5e-6 * np.abs(other).max())
