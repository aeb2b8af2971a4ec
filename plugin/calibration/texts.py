"""Texts of a calibration: chunks that decide the integers, and chunks that are held out."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InputError
from ..models.source import ModelSource
from ..models.text_chunks import DEFAULT_CHUNK, text_chunks
from ..numerics.element_types import Array
from .layer import Calibration


class CutTexts(NamedTuple):
    """Chunks of tokens, int32 ``[T]`` each, which go through a model alone.

    Attributes:
        calibration: the chunks that decide the integers.
        held_out: the chunks that errors are measured with.
    """

    calibration: list[Array]
    held_out: list[Array]


def cut_texts(
    source: ModelSource, text: str | None, calibration: Calibration, held_out: str | None = None
) -> CutTexts:
    """Return the first chunks of a text to calibrate with, and the last of the others.

    A chunk has `DEFAULT_CHUNK` tokens, or the model's context if that is less. A text without
    tokens after those of the calibration has no chunks that are held out.

    Args:
        text: None for no chunks to calibrate with.
        held_out: a text of its own for the chunks that are held out.

    Raises:
        InputError: a text is too short, or the model has no embedding of a token.
        SubquantError: as `ModelSource.tokenizer`.
    """
    if text is None and held_out is None:
        return CutTexts([], [])
    tokenizer = source.tokenizer(keeps_vocabulary=True)
    length = min(DEFAULT_CHUNK, source.configuration.context)
    chunks: list[Array] = []
    held_out_chunks: list[Array] = []
    if text is not None:
        count = max(1, calibration.calibration_tokens // length)
        advice, name = "fewer --calibration-tokens", "calibration text"
        chunks = text_chunks(tokenizer, text, length, advice, count, name)
        chunks, held_out_chunks = chunks[:count], chunks[count:]
    if not calibration.held_out_tokens:
        held_out_chunks = []
    elif held_out is not None:
        advice = "--held-out-tokens 0 for none"
        held_out_chunks = text_chunks(tokenizer, held_out, length, advice, name="held-out text")
    held_out_chunks = held_out_chunks[-max(1, calibration.held_out_tokens // length) :]
    greatest = max(int(each.max()) for each in [*chunks, *held_out_chunks])
    if greatest >= source.configuration.vocabulary:
        raise InputError(
            f"the tokenizer of '{source.path}' has the token {greatest}, and the model "
            f"{source.configuration.vocabulary} rows of embeddings; give the model its tokenizer"
        )
    return CutTexts(chunks, held_out_chunks)
