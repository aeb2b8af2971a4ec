"""The language model that is timed and compared, and what it says exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from subquant.models import Configuration
from subquant.models.interface import empty_caches
from subquant.models.loading import default_cache
from subquant.models.packaged import path_of
from subquant.models.transformer import embed, logits, run_blocks
from subquant.weights.theta import Dataset

__all__ = ["exact_logits", "model_file"]

Array = np.ndarray[Any, Any]


def model_file() -> Path:
    """Gemma 3 270M, put together in the cache if it is not there."""
    return path_of("gemma3-270m", default_cache())


def exact_logits(source: Dataset, tokens: Sequence[int]) -> Callable[[int, int], Array]:
    """Run a model in NumPy, with weights that are dequantized and activations that stay floats.

    Args:
        source: the file.
        tokens: what is read.

    Returns:
        A function of a position and a number of positions, which gives their logits.
    """
    configuration = Configuration.of(source.properties, source.theta.flatten())
    caches = empty_caches(configuration, len(tokens))
    x = embed(configuration, source.theta, np.array(tokens, np.int32))
    x, _ = run_blocks(configuration, source.theta, x, np.int32(0), caches)
    return lambda start, count: logits(configuration, source.theta, x[start : start + count])
