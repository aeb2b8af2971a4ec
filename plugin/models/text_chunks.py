"""Texts as chunks of tokens, each of which a model reads alone."""

from __future__ import annotations

import numpy as np

from ..errors import InputError, counted
from ..numerics.element_types import Array
from .tokenizer import AnyTokenizer

DEFAULT_CHUNK = 512
"""Tokens of a chunk, as in llama.cpp; another number gives another perplexity."""


def text_chunks(
    tokenizer: AnyTokenizer,
    text: str,
    length: int,
    advice: str,
    least: int = 1,
    name: str = "text",
) -> list[Array]:
    """Return the whole chunks of a text, int32 ``[length]`` each; a shorter rest is not used.

    The start token is in place of the first token of each chunk, if the model uses one. Names of
    control tokens in the text are text.

    Args:
        advice: the remedy for a text that is too short, beside a longer text; for the message.
        least: the number of chunks that the text must have.
        name: of the text, for the message.

    Raises:
        InputError: the text has fewer chunks.
    """
    tokens = tokenizer.encode(text, special=False)
    count = len(tokens) // length
    if count < least:
        raise InputError(
            f"the {name} has {counted(len(tokens), 'token')}, expected {least * length:,} at "
            f"least; give a longer text, or {advice}"
        )
    chunks: Array = np.array(tokens[: count * length], np.int32).reshape((count, length))
    if tokenizer.adds_start and tokenizer.start_token is not None:
        chunks[:, 0] = tokenizer.start_token
    return list(chunks)
