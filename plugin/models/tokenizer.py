"""Text to tokens and back, with the vocabulary that the model's file has.

The tokens are llama.cpp's:

1. Special tokens are cut out of the text, the longest first, wherever they stand: pieces that are
   defined by users always, and control tokens such as ``<start_of_turn>`` if asked for. Text that
   somebody else wrote is encoded with ``special=False``, so that it can end no turn and begin none.
   Most special tokens of Phi 3 remove the white space after them.
2. What lies between them becomes pieces, by scores (`scored_pieces`) or by pairs (`byte_pairs`).
3. In front stands the model's start token, if the file says so.

Tokens stand for bytes, not for characters: one character may take several. `Tokenizer.stream` holds
bytes back until they are whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from ..errors import InputError
from .byte_pairs import BytePairs
from .memory import return_free_memory
from .scored_pieces import ScoredPieces
from .vocabulary import PieceType, Vocabulary


def check_text(text: str) -> None:
    """Check that a text has no halves of characters, which no UTF-8 has.

    Raises:
        InputError: it has; arguments of commands do where their bytes are no UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        is_byte = 0xDC80 <= half <= 0xDCFF  # as Python writes them
        byte = f", or the byte 0x{half - 0xDC00:02x}, which is no text here" if is_byte else ""
        raise InputError(
            f"the text is not Unicode: character {error.start} is half of one (U+{half:04X}){byte}"
        ) from None


class AnyStream(Protocol):
    """Incremental decoder of tokens: see `TextStream`."""

    def put(self, token: int) -> str:
        """Append a token, and return the text that it completes, which may be empty."""

    def end(self) -> str:
        """Return the rest."""


class AnyTokenizer(Protocol):
    """The tokenizer of any kind of model: see `Tokenizer`."""

    size: int
    start_token: int | None
    adds_start: bool
    end_tokens: frozenset[int]

    def encode(self, text: str, *, start: bool = True, special: bool = True) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Return the text of tokens."""

    def name_of(self, token: int | None) -> str:
        """Return the name of a control token; nothing for another, or for none."""

    def rest(self) -> None:
        """Release the memory that only `encode` needs."""

    def stream(self) -> AnyStream:
        """Return an incremental decoder."""


class SpecialTokens(NamedTuple):
    """Size of a vocabulary, and its tokens with a meaning.

    Attributes:
        user_defined: names of the tokens that text has always, by token.
        control: names of control tokens and of the unknown one, by token.
        stripping: tokens that remove the white space after them.
    """

    size: int
    start_token: int | None
    adds_start: bool
    end_tokens: Sequence[int]
    user_defined: Mapping[int, str]
    control: Mapping[int, str]
    stripping: Sequence[int] = ()


_WHITE_SPACE = " \t\n\v\f\r"
_NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")
"""Special tokens of Phi 3 that leave the white space after them."""


def _stripping(name: str, special: Mapping[int, str]) -> list[int]:
    """Return the special tokens that remove white space, of a model with a name.

    GGUF files do not have this property of tokens: llama.cpp knows Phi 3 by the name of the model.
    Source: llama.cpp, ``llama_vocab::impl::load`` and ``tokenizer_st_partition``.
    """
    if not any(each in name.lower() for each in ("phi-3", "phi3")):
        return []
    return [token for token, text in special.items() if text not in _NOT_STRIPPING]


class Tokenizer:
    """Turns text into tokens and back; `from_properties` makes that of a file."""

    def __init__(self, engine: ScoredPieces | BytePairs, tokens: SpecialTokens) -> None:
        self.engine = engine
        """The encoder of text between special tokens."""
        self.special_tokens = tokens
        self.size = tokens.size
        """The size of the vocabulary."""
        self.start_token = tokens.start_token
        """The token that text starts with, if there is one; see `adds_start`."""
        self.adds_start = tokens.adds_start
        """True if `encode` puts the start token in front."""
        self.end_tokens = frozenset(tokens.end_tokens)
        """The tokens that end an answer."""
        self._adds_space = isinstance(engine, ScoredPieces) and engine.tables.add_space
        stripping = frozenset(tokens.stripping)
        self._always = _Special(tokens.user_defined, stripping)
        self._also_control = _Special({**tokens.user_defined, **tokens.control}, stripping)

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Tokenizer:
        """Make the tokenizer of a GGUF file, from its properties.

        Raises:
            InputError: the vocabulary is wrong.
            UnsupportedError: it is of a kind that there is no tokenizer for, or has a property that
                no tokenizer knows.
            EnvironmentProblem: the package that it needs is not installed.
        """
        vocabulary = Vocabulary(properties)
        is_scored = vocabulary.kind == "llama"
        engine = ScoredPieces.of(vocabulary) if is_scored else BytePairs(vocabulary)
        user_defined = vocabulary.names_of(PieceType.USER_DEFINED)
        control = vocabulary.names_of(PieceType.CONTROL, PieceType.UNKNOWN)
        tokens = SpecialTokens(
            len(vocabulary.pieces),
            vocabulary.start_token,
            vocabulary.adds_start(engine.add_start),
            sorted(vocabulary.end_tokens()),
            user_defined,
            control,
            _stripping(str(properties.get("general.name", "")), {**user_defined, **control}),
        )
        vocabulary.finish()
        return cls(engine, tokens)

    def encode(self, text: str, *, start: bool = True, special: bool = True) -> list[int]:
        """Return the tokens of a text; InputError for halves of characters, which no UTF-8 has.

        Args:
            start: True for the start token in front, if the file asks for it.
            special: whether the names of control tokens in the text mean these.
        """
        check_text(text)
        first = self.start_token if start and self.adds_start else None
        tokens = [] if first is None else [first]
        at_start = True
        for part in (self._also_control if special else self._always).cut(text):
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self.engine.encode(part, at_start)
            at_start = isinstance(part, int)
        return tokens

    def bytes_of(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token; InputError if there is no such token.

        Args:
            special: whether control tokens stand for their names, in place of nothing.
        """
        if not 0 <= token < self.size:
            raise InputError(f"there is no token {token}, expected one of {self.size}")
        name = self._also_control.names.get(token)
        if name is None:
            return self.engine.bytes_of(token)
        return name.encode() if special or token in self._always.names else b""

    def name_of(self, token: int | None) -> str:
        """Return the name of a control token; nothing for another, or for none."""
        return "" if token is None else self._also_control.names.get(token, "")

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """Return the text of tokens, U+FFFD for invalid UTF-8; InputError if one does not exist.

        A space that `encode` put in front is left out.
        """
        pieces = [self.bytes_of(token, special=special) for token in tokens]
        text = b"".join(pieces).decode(errors="replace")
        return text.removeprefix(" ") if self._adds_space else text

    def rest(self) -> None:
        """Release the memory that only `encode` needs, 45 MB for 262,144 pieces with scores.

        `encode` may be called again; the first time it takes 0.1 s longer.
        """
        self.engine.rest()
        return_free_memory()

    def stream(self) -> TextStream:
        """Return an incremental decoder."""
        return TextStream(self)


class TextStream:
    """Incremental decoder of tokens, which returns complete characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, token: int) -> str:
        """Append a token, and return the text that it completes, which may be empty."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def end(self) -> str:
        """Return the rest: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


class _Special:
    """Special tokens, which text contains by name.

    Thousands of names would each be searched for in the whole text. Nearly all begin with the same
    few characters, and those are looked for first.
    """

    _BEGINNING = 3

    def __init__(self, names: Mapping[int, str], stripping: frozenset[int]) -> None:
        self.names = names
        """The names by token."""
        self._stripping = stripping

        def beginning(token: int) -> str:
            return self.names[token][: self._BEGINNING]

        self._groups = [
            (start, tuple(group))
            for start, group in groupby(sorted(sorted(names), key=beginning), beginning)
        ]

    def cut(self, text: str) -> list[str | int]:
        """The text with the tokens cut out: those with the longest names first, from the left."""
        present = [
            token
            for start, group in self._groups
            if start in text
            for token in group
            if self.names[token] in text
        ]
        segments: list[str | int] = [text] if text else []
        for token in sorted(present, key=lambda token: -len(self.names[token].encode())):
            segments = [
                piece
                for segment in segments
                for piece in (self._cut(segment, token) if isinstance(segment, str) else [segment])
            ]
        return segments

    def _cut(self, text: str, token: int) -> list[str | int]:
        """A text with a token in place of its name."""
        first, *following = text.split(self.names[token])
        if token in self._stripping:
            following = [each.lstrip(_WHITE_SPACE) for each in following]
        segments: list[str | int] = []
        for between in (first, *following):
            segments += [between, token] if between else [token]
        return segments[:-1]
