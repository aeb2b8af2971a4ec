r"""Perplexity of a language model on a text.

The tokens ``t`` of the text, the start token in front, are cut into chunks of ``n``; a shorter
rest is not used. Each chunk is read alone, with the start token in place of its first token
(if the model uses one), and its second half is scored, so that there is half a chunk to go by:

    nll_i = -log softmax(logits[i])[t[i + 1]]    for i in [floor(n / 2), n - 2] of each chunk
    perplexity = exp(mean(nll_i))

Its error is that of a mean of independent values, times the perplexity:
``sqrt((mean(nll_i ** 2) - mean(nll_i) ** 2) / (count - 1))``. All is computed in f64 from logits of
f32.

That is what llama.cpp's ``llama-perplexity`` computes, which takes texts of two chunks and more.

Source: llama.cpp, ``tools/perplexity/perplexity.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ExecutionError, UsageError
from .text_chunks import DEFAULT_CHUNK, text_chunks
from .tokenizer import AnyTokenizer

if TYPE_CHECKING:
    from .session import Session  # with IREE

_MAX_EXPONENT = 709.0
"""The largest argument of `math.exp`, which overflows from 709.8 on."""

_BATCH_TOKENS = 16
"""Tokens that one call scores, without effect on results: 17 MB of logits for 262,144 pieces."""


@dataclass(frozen=True)
class Perplexity:
    """Result of a perplexity measurement.

    Attributes:
        error: one standard deviation of the value.
        chunk: the tokens of a chunk.
        scored: the number of scored tokens.
    """

    value: float
    error: float
    chunks: int
    chunk: int
    scored: int


def measure_perplexity(
    session: Session,
    tokenizer: AnyTokenizer,
    text: str,
    *,
    chunk: int | None = None,
    progress: Callable[[int, int, float], object] | None = None,
) -> Perplexity:
    """Measure the perplexity of a text.

    Args:
        session: the session; its tokens are removed.
        text: names of control tokens in it are text.
        chunk: the tokens of a chunk, 4 or more; by default `DEFAULT_CHUNK`, or the context if that
            is less.
        progress: called after each chunk with its number, the number of chunks, and the perplexity
            so far.

    Raises:
        UsageError: the chunk is greater than the context, or less than 4 tokens.
        InputError: the text is shorter than a chunk.
        ExecutionError: the logits are no numbers.
    """
    chunk = min(DEFAULT_CHUNK, session.context) if chunk is None else chunk
    if not 4 <= chunk <= session.context:
        raise UsageError(
            f"the chunk is {chunk:,} tokens, expected 4 to the context of {session.context:,}"
        )
    chunks = text_chunks(tokenizer, text, chunk, "smaller chunks")
    surprises: list[float] = []
    for number, tokens in enumerate(chunks, 1):
        surprises += _scored(session, tokens.tolist(), chunk // 2)
        if progress is not None:
            progress(number, len(chunks), mean_perplexity(surprises)[0])
    value, error = mean_perplexity(surprises)
    return Perplexity(value, error, len(chunks), chunk, len(surprises))


def mean_perplexity(surprises: Sequence[float]) -> tuple[float, float]:
    """Return the perplexity of negative log-likelihoods, and its standard deviation."""
    mean = math.fsum(surprises) / len(surprises)
    squares = math.fsum(each * each for each in surprises) / len(surprises)
    spread = max(0.0, squares - mean * mean) / max(1, len(surprises) - 1)
    value = _exp(mean)
    return value, value * math.sqrt(spread)


def _scored(session: Session, tokens: Sequence[int], first: int) -> list[float]:
    """Return the negative log-likelihood of each token from ``first + 1`` on."""
    session.reset()
    session.prompt(tokens[:first])
    surprises = []
    for start in range(first, len(tokens) - 1, _BATCH_TOKENS):
        piece = tokens[start : min(start + _BATCH_TOKENS, len(tokens) - 1)]
        for index, logits in enumerate(session.all_logits(piece), start + 1):
            greatest = float(logits.max())
            if not math.isfinite(greatest):
                raise ExecutionError(
                    f"the greatest of the model's logits is {greatest}, expected a number"
                )
            total = float(np.exp(logits.astype(np.float64) - greatest).sum())
            # -log softmax(logits)[token]
            surprises.append(math.log(total) + greatest - float(logits[tokens[index]]))
    return surprises


def _exp(value: float) -> float:
    """``exp``, infinite where it is beyond the greatest number."""
    return math.exp(value) if value < _MAX_EXPONENT else math.inf
