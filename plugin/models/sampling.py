r"""Sampling of the next token from logits.

Each step keeps the first of the logits ``x`` in descending order:

============  ====================================================================================
option        tokens that are kept
============  ====================================================================================
top-k         the first ``k``; 0 keeps all
top-p         the fewest with ``sum(softmax(x)) >= p``, with the softmax of the top-k tokens; 1
              keeps all
min-p         those with ``softmax(x) >= p * max(softmax(x))``, which is ``x >= max(x) + log(p)``;
              0 keeps all
temperature   one of them is drawn with the probabilities ``softmax(x / temperature)``; at 0 it is
              the first, whatever the other options are
============  ====================================================================================

Order, definitions and defaults are llama.cpp's. Of equal logits the token with the lower number
comes first. Softmax is computed in f64.

Source: llama.cpp, ``llama-sampler.cpp`` and ``common.h``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.option_fields import option
from ..errors import ExecutionError, UsageError
from ..numerics.element_types import Array

_FIRST_SORTED = 1024
"""Tokens that are sorted first; they usually have most of the probability."""


@dataclass(frozen=True)
class Sampling:
    """Options of sampling; UsageError if one is out of its range."""

    temperature: float = option(
        0.8, "Sampling temperature; 0 takes the most likely token.", "NUMBER"
    )
    top_k: int = option(40, "Sample from the K most likely tokens; 0 for all.", "K")
    top_p: float = option(
        0.95, "Sample from the most likely tokens with this total probability.", "P"
    )
    min_p: float = option(
        0.05,
        "Sample from tokens of at least this probability relative to the most likely one.",
        "P",
    )
    seed: int | None = option(None, "Seed, for reproducible text.  [default: random]", "N")

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"the temperature is {self.temperature}, expected 0 or more")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}, expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p}, expected more than 0, and at most 1")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p is {self.min_p}, expected 0 to 1")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"the seed is {self.seed}, expected 0 or more")

    @classmethod
    def greedy(cls) -> Sampling:
        """Return the options with which the likeliest token is always taken."""
        return cls(temperature=0.0)


class Sampler:
    """Sampler of tokens, one after the other."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    @functools.cached_property
    def _random(self) -> np.random.Generator:
        """The generator; the first use imports it, which takes 11 ms of CPU time."""
        return np.random.default_rng(self._sampling.seed)

    def choose(self, logits: Array) -> int:
        """Return the next token from the logits of all tokens, ``[vocabulary]``.

        Raises:
            ExecutionError: the greatest is infinite, or there are NaN.
        """
        if self._sampling.temperature == 0:
            token = int(logits.argmax())
            _check(logits[token])
            return token
        tokens, probabilities = self.probabilities(logits)
        index = np.searchsorted(probabilities.cumsum(), self._random.random(), side="right")
        # The sum may be less than 1 by rounding, and the number drawn lie beyond.
        return int(tokens[min(int(index), len(tokens) - 1)])

    def probabilities(self, logits: Array) -> tuple[Array, Array]:
        """Return the tokens that may be drawn, and the probability of each; errors as `choose`.

        The likeliest comes first, but where no option leaves a token out.
        """
        options = self._sampling
        if options.temperature == 0:
            return np.array([self.choose(logits)]), np.ones(1)
        tokens = self._first(logits)
        x = logits[tokens].astype(np.float64)
        with np.errstate(over="ignore"):  # a small temperature leaves the likeliest
            weights = np.exp((x - x.max()) / options.temperature)
        return tokens, weights / weights.sum()

    def _first(self, logits: Array) -> Array:
        """Return the tokens that the options keep, in the order of `probabilities`."""
        options, size = self._sampling, len(logits)
        greatest = logits.max()
        _check(greatest)
        candidates = options.top_k if 0 < options.top_k < size else size
        if candidates == size and options.top_p == 1 and options.min_p == 0:
            return np.arange(size)  # no option needs the order; sorting takes 30 ms
        total = math.inf
        if candidates == size and options.top_p < 1:
            total = float(np.exp(logits - greatest, dtype=np.float64).sum())
        for count in dict.fromkeys((min(candidates, _FIRST_SORTED), candidates)):
            tokens = _greatest(logits, count)
            x = logits[tokens].astype(np.float64)
            retained = len(tokens)
            if options.top_p < 1:
                weights = np.exp(x - x[0])
                cumulative = weights.cumsum()
                # The sum over all top-k tokens, of which fewer may be sorted here.
                denominator = cumulative[-1] if count == candidates else total
                if denominator == math.inf:
                    continue
                retained = int(np.searchsorted(cumulative, options.top_p * denominator)) + 1
            if options.min_p > 0:
                retained = min(retained, int((x >= x[0] + math.log(options.min_p)).sum()))
            if retained < count:
                break
        return tokens[: min(retained, count)]


def _greatest(logits: Array, count: int) -> Array:
    """Return the indices of the greatest logits in descending order, equal logits by index."""
    if count < len(logits):
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        above = np.flatnonzero(logits > least)
        equal = np.flatnonzero(logits == least)[: count - len(above)]
        tokens = np.concatenate([above, equal])
        tokens.sort()
    else:
        tokens = np.arange(len(logits))
    order: Array = np.argsort(-logits[tokens], kind="stable")
    return tokens[order]


def _check(greatest: Any) -> None:
    if not np.isfinite(greatest):
        raise ExecutionError(
            f"the greatest of the model's logits is {greatest}, expected a number; the weights may "
            "be damaged"
        )
