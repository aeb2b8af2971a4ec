"""Vocabularies of the kind ``llama``: pieces with scores, merged by SentencePiece.

Text is characters at first, spaces written as U+2581. Of all neighbours that make a piece together,
those with the highest score become one (the leftmost of several), until no two do. A character that
is no piece becomes the pieces ``<0xXX>`` of its bytes, or the unknown one where there are no such.

The ``sentencepiece`` package does this from a model, which is a protobuf; here it is written out of
the properties. With 262,144 pieces that takes 0.1 s, and SentencePiece another 0.1 s and 43 MB; as
pairs with ranks in the ``tokenizers`` package they would be half a million merges, which the file
does not have.

Source: https://github.com/google/sentencepiece, ``sentencepiece_model.proto``.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ..core.requirements import require
from ..errors import InputError, printable, quoted
from ..numerics.element_types import Array
from .memory import in_own_arena
from .vocabulary import PieceType, Vocabulary

_SPACE = "\u2581"
_CHUNK = 1 << 13
"""Pieces that are encoded at a time: Python objects of all at once would take 30 MB."""
_TAIL = 7
"""Bytes of a piece after its text in SentencePiece's protobuf: score and type, with tags."""

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")

_AS_TYPE = np.arange(len(PieceType) + 1, dtype=np.uint8)
_AS_TYPE[[PieceType.USER_DEFINED, PieceType.UNUSED]] = PieceType.NORMAL
"""Piece types for SentencePiece: user-defined pieces are cut out of the text first; unused pieces
are normal, as in llama.cpp."""


class PieceTables(NamedTuple):
    """Tables of `ScoredPieces`.

    Attributes:
        types: the type of each piece, u8.
        add_space: text gets a space in front.
        proto: SentencePiece's model.
        starts, ends: start and end of each piece's text in the model, i32.
    """

    types: Array
    add_space: bool
    proto: bytes
    starts: Array
    ends: Array


class ScoredPieces:
    """Text to tokens by scores, and tokens to bytes, of a vocabulary of the kind ``llama``.

    Raises:
        InputError: it makes no model.
        EnvironmentProblem: SentencePiece is not installed.
    """

    add_start = True

    def __init__(self, tables: PieceTables) -> None:
        self._package = require("sentencepiece", "the vocabulary of this model", "models")
        self.tables = tables
        self._processor = self._load()

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> ScoredPieces:
        """Make the pieces of a vocabulary; errors as the class."""
        return cls(PieceTables(vocabulary.types, vocabulary.add_space, *_model_proto(vocabulary)))

    def _load(self) -> Any:
        """Return SentencePiece's processor of the model."""
        load = partial(self._package.SentencePieceProcessor, model_proto=self.tables.proto)
        try:
            return in_own_arena(load)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"SentencePiece refuses the model's vocabulary: {printable(str(error)[:200])}"
            ) from None

    def encode(self, text: str, at_start: bool) -> list[int]:
        """The tokens of a text; at the start, or after a special token, it may get a space."""
        if self._processor is None:
            self._processor = self._load()
        text = (" " if self.tables.add_space and at_start else "") + text
        tokens: list[int] = self._processor.encode(text.replace(" ", _SPACE))
        return tokens

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token that is not special."""
        tables = self.tables
        piece = tables.proto[tables.starts[token] : tables.ends[token]]
        if tables.types[token] == PieceType.BYTE:
            return bytes([int(piece[3:5], 16)])
        return piece.replace(_SPACE.encode(), b" ")

    def rest(self) -> None:
        """Give back what only `encode` needs, until it is called again."""
        self._processor = None


def _model_proto(vocabulary: Vocabulary) -> tuple[bytes, Array, Array]:
    """Return SentencePiece's model: field 1 the pieces, 2 the trainer, 3 the normalizer.

    Returns:
        The model, and start and end of each piece's text in it.
    """
    types = _AS_TYPE[vocabulary.types]
    has_bytes = _set_bytes(vocabulary, types)
    unknown = np.flatnonzero(types == PieceType.UNKNOWN)
    types[unknown[1:]] = PieceType.CONTROL
    if not len(unknown) and vocabulary.unknown_token is not None:
        types[vocabulary.unknown_token] = PieceType.UNKNOWN
        unknown = np.array([vocabulary.unknown_token])
    trainer = _number(3, 2) + _number(4, len(types)) + _number(35, has_bytes)  # 2: merged pairs
    if len(unknown):
        trainer += _number(40, int(unknown[0]))
    normalizer = _text(1, b"identity") + _number(3, 0) + _number(4, 0) + _number(5, 0)
    ends = np.empty(len(types), [("t2", "u1"), ("score", "<f4"), ("t3", "u1"), ("type", "u1")])
    ends["t2"], ends["score"], ends["t3"], ends["type"] = 2 << 3 | 5, vocabulary.scores(), 24, types
    # No type is 0, so that NumPy's texts, which end before zeros, are whole.
    tails = ends.view(f"S{_TAIL}")
    heads: dict[int, bytes] = {}
    before: list[int] = []
    lengths: list[int] = []
    proto = bytearray()
    for start in range(0, len(types), _CHUNK):  # objects for all at once would take 30 MB
        chunk = slice(start, start + _CHUNK)
        texts = [piece.encode() for piece in vocabulary.pieces[chunk]]
        sizes = list(map(len, texts))
        heads.update((size, _head(size)) for size in set(sizes).difference(heads))
        fields = zip(map(heads.__getitem__, sizes), texts, tails[chunk].tolist(), strict=True)
        proto += b"".join(chain.from_iterable(fields))
        before += [len(heads[size]) for size in sizes]
        lengths += sizes
    text_ends = np.cumsum(np.array(before, np.int32) + lengths + _TAIL, dtype=np.int32) - _TAIL
    model = bytes(proto + _text(2, trainer) + _text(3, normalizer))
    return model, text_ends - np.array(lengths, np.int32), text_ends


def _head(length: int) -> bytes:
    """Return the tags and lengths before a piece's text of `length` bytes."""
    text = b"\n" + _varint(length)
    return b"\n" + _varint(len(text) + length + _TAIL) + text


def _set_bytes(vocabulary: Vocabulary, types: Array) -> bool:
    """Return True if there is a piece for each byte, as SentencePiece needs.

    The pieces of bytes are known by their names, as in llama.cpp: files without
    ``tokenizer.ggml.token_type``, or with another type for one of them, encode the same.
    """
    tokens = np.flatnonzero(types == PieceType.BYTE).tolist()
    pieces = [vocabulary.pieces[token] for token in tokens]
    wrong = [piece for piece in pieces if not _BYTE.fullmatch(piece)]
    if wrong:
        raise InputError(f"the model's piece {quoted(wrong[0])} is a byte, expected '<0xXX>'")
    if len({piece.upper() for piece in pieces}) == len(pieces) == 256:
        return True
    named = {
        piece.upper(): token
        for token, piece in enumerate(vocabulary.pieces)
        if piece.startswith("<0x") and _BYTE.fullmatch(piece)
    }
    types[tokens] = PieceType.NORMAL
    if len(named) == 256:
        of_bytes = list(named.values())
        types[of_bytes] = PieceType.BYTE
        is_text = vocabulary.types[of_bytes] == PieceType.NORMAL
        vocabulary.types[np.array(of_bytes)[is_text]] = PieceType.BYTE
    return len(named) == 256


def _varint(value: int) -> bytes:
    """Return a protobuf varint: 7 bits a byte, the lowest first."""
    low_bytes = bytearray()
    while value > 0x7F:
        low_bytes.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low_bytes, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
