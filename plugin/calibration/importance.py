"""Importance matrices of llama.cpp by our own forward pass: mean squares of the inputs of layers.

The tokens go through the float model, block by block, as in `language_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..models.architectures import EXPERT_LAYERS
from ..models.source import ModelSource
from ..numerics.element_types import Array
from .block_runner import BlockRunner
from .expert_layers import expert_inputs
from .worker_threads import WorkerThreads


def input_importance(
    source: ModelSource,
    chunks: Sequence[Array],
    on_block: Callable[[int, int], None],
    threads: int | None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the mean squares of the inputs of the blocks' linear layers, and inputs of experts.

    Args:
        chunks: tokens, int32 ``[T]`` each, which go through the model alone; at least one.
        on_block: called before each block with its number, from 0, and their count.
        threads: the number of threads, by default one for each core; results do not depend on it.

    Returns:
        Mean squares by the names of weights in GGUF files, ``blk.0.attn_q.weight``: float32
        ``[K]``, or ``[experts, K]`` with 0 for an expert without inputs. The numbers of inputs
        of experts, integers ``[experts]``.
    """
    means: dict[str, Array] = {}
    counts: dict[str, Array] = {}
    with WorkerThreads(threads) as workers:
        mixture = source.configuration.experts
        experts = 0 if mixture is None else mixture.count
        runner = BlockRunner(source, chunks, workers)
        states, count = runner.embeddings(), source.configuration.blocks
        for number in range(count):
            on_block(number, count)
            block = runner.weights(number)
            moments = runner.moments(number, block, states)
            names: dict[str, list[str]] = {}
            for name, first_name in moments.first_names.items():
                names.setdefault(first_name, []).append(name)
            for first_name, layers in names.items():
                inputs = moments.pop(first_name)
                squares = np.diag(inputs.matrix) / np.float32(inputs.tokens)
                means |= {f"blk.{number}.{layer}.weight": squares for layer in layers}
            for layer in EXPERT_LAYERS if moments.routed else ():
                name = f"blk.{number}.{layer}.weight"
                means[name], counts[name] = _of_experts(
                    [expert_inputs(moments, layer, each) for each in range(experts)]
                )
            states = runner.run(number, block, states)
            source.release_pages()
    return means, counts


def _of_experts(inputs: Sequence[Array | None]) -> tuple[Array, Array]:
    """Return the mean squares of the inputs of experts, and their numbers, see above."""
    k = next(each.shape[1] for each in inputs if each is not None)
    means = [
        np.zeros(k, np.float32) if each is None else np.square(each).mean(0) for each in inputs
    ]
    return np.stack(means), np.array([0 if each is None else len(each) for each in inputs])
