"""Tokens to text, in 3 MB for 262,144 pieces, of which the library's tokenizer takes 120.

Source: the crate ``tokenizers`` 0.23, ``TokenizerImpl::decode`` and ``DecodeStream``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...numerics.element_types import Array

_REPLACEMENT = "\ufffd"
"""The character that stands for bytes of an incomplete one."""
_CHUNK = 1 << 13
"""Pieces that are read at a time: Python objects of all at once would take 25 MB."""


class PieceDecoder:
    """The pieces of a tokenizer of the library, and its decoder.

    Args:
        engine: a ``tokenizers.Tokenizer``, which is not kept.
    """

    def __init__(self, engine: Any) -> None:
        added = engine.get_added_tokens_decoder().values()
        self._special = frozenset(token.content for token in added if token.special)
        self._decoder = engine.decoder
        numbers: Sequence[int] = range(engine.get_vocab_size(with_added_tokens=True))
        if any(engine.id_to_token(number) is None for number in numbers):  # there are gaps
            numbers = sorted(set(engine.get_vocab(with_added_tokens=True).values()))
        pieces = bytearray()
        ends: list[Array] = []
        for start in range(0, len(numbers), _CHUNK):
            chunk = [engine.id_to_token(number).encode() for number in numbers[start:][:_CHUNK]]
            ends.append(len(pieces) + np.cumsum([len(piece) for piece in chunk], dtype=np.int32))
            pieces += b"".join(chunk)
        self._pieces = bytes(pieces)
        self._ends = np.concatenate([np.zeros(1, np.int32), *ends])
        self._numbers = numbers

    def decode(self, tokens: Iterable[int], *, special: bool) -> str:
        """Return the text of tokens, without those that have no piece.

        Args:
            special: whether control tokens stand for their names, in place of nothing.
        """
        pieces = [piece for token in tokens if (piece := self._piece(token)) is not None]
        if not special:
            pieces = [piece for piece in pieces if piece not in self._special]
        text: str = " ".join(pieces) if self._decoder is None else self._decoder.decode(pieces)
        return text

    def _piece(self, token: int) -> str | None:
        index = bisect_left(self._numbers, token)
        if index == len(self._numbers) or self._numbers[index] != token:
            return None
        return self._pieces[self._ends[index] : self._ends[index + 1]].decode()


class CheckpointTextStream:
    """Incremental decoder of tokens, which returns complete characters.

    A piece may be written otherwise at the start of a text (without its space, for example), so
    that new tokens are decoded together with those of the step before. A byte that makes the bytes
    before it invalid UTF-8 changes no text that was returned; the library raises there.

    Args:
        decode: returns the text of tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._first = 0
        """The first token of the step before."""
        self._count = 0
        """Tokens whose text was returned."""
        self._text_before = ""
        """The text of the tokens of the step before."""
        self._length = 0

    def put(self, token: int) -> str:
        """Append a token, and return the text that it completes, which may be empty."""
        self._tokens.append(token)
        text = self._decode(self._tokens[self._first :])
        if len(text) <= len(self._text_before) or text.endswith(_REPLACEMENT):
            return ""
        completed = text[len(self._text_before) :]
        self._first, self._count = self._count, len(self._tokens)
        self._text_before = self._decode(self._tokens[self._first :])
        self._length += len(completed)
        return completed

    def end(self) -> str:
        """Return the rest: U+FFFD for an incomplete character."""
        return self._decode(self._tokens)[self._length :]
