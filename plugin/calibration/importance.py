"""Importance matrices of llama.cpp by our own forward pass: mean squares of the inputs of layers.

The tokens go through the float model, block by block, as in `language_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..models.source import ModelSource
from ..numerics.element_types import Array
from .block_runner import BlockRunner
from .worker_threads import WorkerThreads


def input_importance(
    source: ModelSource,
    chunks: Sequence[Array],
    on_block: Callable[[int, int], None] = lambda number, count: None,
    threads: int | None = None,
) -> dict[str, Array]:
    """Return the mean squares of the inputs of the blocks' linear layers, float32 ``[K]``.

    Args:
        chunks: tokens, int32 ``[T]`` each, which go through the model alone; at least one.
        on_block: called before each block with its number, from 0, and their count.
        threads: the number of threads, by default one for each core; results do not depend on it.

    Returns:
        Arrays by the names of weights in GGUF files, ``blk.0.attn_q.weight``.
    """
    means: dict[str, Array] = {}
    with WorkerThreads(threads) as workers:
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
            states = runner.run(number, block, states)
            source.release_pages()
    return means
