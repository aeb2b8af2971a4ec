"""Integers of AWQ and SmoothQuant: those of a block beside the whole method in float64.

The reference computes scales, folds and integers from the inputs of the layers, by the papers'
equations, and shares no code with `calibration` but the forward pass.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_models import SMALL, TinyModel
from subquant.calibration.block_runner import BlockRunner
from subquant.calibration.language_model import quantize_language_model
from subquant.calibration.layer import Calibration
from subquant.calibration.worker_threads import WorkerThreads
from subquant.layouts import PlanarQuantizedTensor, TensorScaledLayout
from subquant.models.source import ModelSource, open_model
from subquant.weights.quantizing import WeightQuantization

Arrays = dict[str, np.ndarray]

HEADS, KV_HEADS, SIZE = 4, 2, SMALL["size"]
VALUE_ROWS = np.array(
    [
        head // (HEADS // KV_HEADS) * SIZE + element
        for head in range(HEADS)
        for element in range(SIZE)
    ]
)
"""The row of ``attn_v`` that each input of ``attn_output`` comes from."""

FOLDS = [
    ("attn_norm", ("attn_q", "attn_k", "attn_v"), np.arange(SMALL["width"])),
    ("attn_v", ("attn_output",), VALUE_ROWS),
    ("ffn_norm", ("ffn_gate", "ffn_up"), np.arange(SMALL["width"])),
    ("ffn_up", ("ffn_down",), np.arange(SMALL["hidden"])),
]
"""The layer before, the layers that read it, and the channel of each of their inputs."""

CLIPPINGS = [1.15 - 0.025 * step for step in range(26)]
"""Factors of a block's range that the search of scales tries, 1.15 to 0.525."""


def block_and_inputs(folder: Path) -> tuple[ModelSource, list[np.ndarray], Arrays, Arrays]:
    """A model of one block with uneven norms, its tokens, its tensors and its layers' inputs."""
    rng = np.random.default_rng(0)
    norms = {
        f"blk.0.{name}.weight": np.where(rng.random(SMALL["width"]) < 0.1, 12, 1).astype(np.float32)
        for name in ("attn_norm", "ffn_norm")
    }
    model = TinyModel(blocks=1, weights=norms, **SMALL)
    source = open_model(model.write(folder / "model.gguf"))
    vocabulary = source.configuration.vocabulary
    chunks = [rng.integers(0, vocabulary, 64).astype(np.int32) for _ in range(4)]
    inputs: dict[str, list[np.ndarray]] = {}
    with WorkerThreads(1) as threads:
        runner = BlockRunner(source, chunks, threads)
        block = runner.weights(0)
        for state in runner.embeddings():
            observe = lambda name, x: inputs.setdefault(name, []).append(np.asarray(x))  # noqa: E731
            runner._run(0, runner.floats("blk.0"), state, observe)
    joined = {name: np.concatenate(each).astype(np.float64) for name, each in inputs.items()}
    tensors = {
        name.removesuffix(".weight"): tensor.stored_arrays[0].astype(np.float64)
        for name, tensor in block.items()
    }
    return source, chunks, tensors, joined


def rounded(
    weight: np.ndarray, size: int, bits: int, importance: np.ndarray, clippings: list[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric integers and the scale of each block ``[N, K / size]``, of the least square error.

    The greatest magnitude of a block has the least integer at the clipping 1. Scales are float16.
    """
    blocks = weight.reshape(len(weight), -1, size)
    weights = importance.reshape(1, -1, size)
    greatest = np.take_along_axis(blocks, abs(blocks).argmax(-1)[..., None], -1)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    least = np.full(blocks.shape[:2], np.inf)
    integers, scales = np.zeros(blocks.shape), np.zeros(blocks.shape[:2])
    for clipping in clippings:
        scale = (greatest / low * clipping).astype(np.float16).astype(np.float64)
        tried = np.clip(np.rint(blocks / scale), low, high)
        error = (weights * (tried * scale - blocks) ** 2).sum(-1)
        better = error < least
        least[better] = error[better]
        integers[better], scales[better] = tried[better], scale[better, 0]
    return integers.reshape(weight.shape), scales


def centered(values: np.ndarray) -> np.ndarray:
    return values / np.sqrt(values.max() * values.min())


def by_channel(values: np.ndarray, channels: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """Combine the values of the inputs of one channel; one value for each input."""
    return np.array([combine.reduce(values[channels == channel]) for channel in channels])


def awq(weights: list[np.ndarray], x: np.ndarray, channels: np.ndarray) -> np.ndarray:
    """Scales ``rms(x)**alpha`` of the least output error, for 4 bits in blocks of 32."""
    counts = by_channel(np.ones(len(channels)), channels, np.add)
    magnitudes = np.sqrt(by_channel((x**2).sum(0), channels, np.add) / counts)
    best, least = np.ones(len(channels)), np.inf
    for step in range(10):
        scales = centered(magnitudes ** (step / 10))
        error = 0.0
        for weight in weights:
            importance = ((x / scales) ** 2).sum(0)
            integers, block_scales = rounded(weight * scales, 32, 4, importance, CLIPPINGS[::4])
            values = integers * np.repeat(block_scales, 32, 1) / scales
            error += float(np.square(x @ (values - weight).T).sum())
        if error < least:
            best, least = scales, error
    return best


def smoothquant(weights: list[np.ndarray], x: np.ndarray, channels: np.ndarray) -> np.ndarray:
    """Scales ``max |x|**0.5 / max |w|**0.5``."""
    greatest_inputs = by_channel(abs(x).max(0), channels, np.maximum)
    greatest_weights = by_channel(abs(np.concatenate(weights)).max(0), channels, np.maximum)
    return centered(np.sqrt(greatest_inputs)) / centered(np.sqrt(greatest_weights))


@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_integers_are_those_of_the_method_in_float64(method: str, tmp_path: Path) -> None:
    """Scales of blocks are equal; integers differ in float32 at ties only, by 1."""
    source, chunks, tensors, inputs = block_and_inputs(tmp_path)
    folded, divided = dict(tensors), dict(inputs)
    for producer, consumers, channels in FOLDS:
        weights, x = [tensors[name] for name in consumers], inputs[consumers[0]]
        scales = (awq if method == "awq" else smoothquant)(weights, x, channels)
        assert scales.max() > 1.1 * scales.min()
        of_channel = np.ones(channels.max() + 1)
        of_channel[channels] = scales
        shape = (-1, 1) if folded[producer].ndim == 2 else (-1,)
        folded[producer] = folded[producer] / of_channel.reshape(shape)
        for name in consumers:
            folded[name], divided[name] = folded[name] * scales, x / scales
    bits, granularity = (4, "block") if method == "awq" else (8, "axis")
    how = WeightQuantization(bits, granularity)  # type: ignore[arg-type]
    dataset, _ = quantize_language_model(source, chunks, how, Calibration(method))  # type: ignore[arg-type]
    result = dataset.theta.flatten()
    layers = [name for _, consumers, _ in FOLDS for name in consumers]
    elements = ties = 0
    for name in layers:
        tensor = result[f"blk.0.{name}.weight"]
        assert isinstance(tensor, PlanarQuantizedTensor)
        layout = tensor.layout
        size = 32 if method == "awq" else folded[name].shape[1]
        importance = (divided[name] ** 2).sum(0)
        integers, scales = rounded(folded[name], size, bits, importance, CLIPPINGS)
        is_axiswise = isinstance(layout, TensorScaledLayout)
        stored = np.asarray(layout.planes["qs"] if is_axiswise else layout.stored(), np.float64)
        np.testing.assert_array_equal(layout.planes["d"].reshape(scales.shape), scales)
        assert abs(stored - integers).max() <= 1
        elements, ties = elements + stored.size, ties + int((stored != integers).sum())
    assert ties <= 1e-3 * elements
    for name in ("attn_norm", "ffn_norm"):
        norm = result[f"blk.0.{name}.weight"].stored_arrays[0]
        np.testing.assert_allclose(norm, folded[name], rtol=1e-5)
