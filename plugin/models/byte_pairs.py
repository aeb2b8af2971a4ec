r"""Vocabularies of the kind ``gpt2``: pairs of bytes, merged in the order of a list.

Text is split by regular expressions, one after the other: each splits the pieces of the previous
one into its matches and the text between them. Bytes are then written as characters of a table, and
neighbors are merged: the pair that comes first in the list of merges becomes one piece, until no
neighbors are in the list. The ``tokenizers`` package does this.

``tokenizer.ggml.pre`` names the expressions. No file contains them; llama.cpp's are here.

Source: llama.cpp, ``llama-vocab.cpp``; the table of bytes is GPT-2's ``bytes_to_unicode``.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.requirements import require
from ..errors import InputError, UnsupportedError, expected_name, printable, quoted
from .vocabulary import Vocabulary


class _Split(NamedTuple):
    """Splitting of text: by expressions, or not at all if a text may be one piece."""

    patterns: tuple[str, ...]
    whole_pieces: bool = False
    add_start: bool = False


_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS_AND_DIGITS = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|"
    r"\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_2 = _Split((_WORDS,))
_DIGITS = _Split((r"\p{N}", _WORDS))
_LLAMA_3 = _Split((_WORDS_AND_DIGITS % "{1,3}",), whole_pieces=True, add_start=True)
_QWEN_2 = _Split((_WORDS_AND_DIGITS % "",))
_DEFAULT = _Split((r"[\p{P}$+<=>^~|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

SPLITS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN_2),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), _GPT_2),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS
    ),
    "default": _DEFAULT,
}
"""The ways of splitting by the name that ``tokenizer.ggml.pre`` has for them."""


class BytePairs:
    """Text to tokens by pairs, and tokens to bytes, of a vocabulary of the kind ``gpt2``.

    Raises:
        InputError: pairs are of pieces that the vocabulary does not have.
        UnsupportedError: the way of splitting is not known.
        EnvironmentProblem: ``tokenizers`` is not installed.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.split not in SPLITS:
            raise UnsupportedError(
                f"how text is split, {quoted(vocabulary.split)} (tokenizer.ggml.pre), is "
                f"not known; {expected_name(vocabulary.split, SPLITS)}"
            )
        split = SPLITS[vocabulary.split]
        tokenizers = require("tokenizers", "the vocabulary of this model", "models")
        self.add_start = split.add_start
        numbers = {piece: number for number, piece in enumerate(vocabulary.pieces)}
        if len(numbers) != len(vocabulary.pieces):
            raise InputError("two tokens of the model's vocabulary have the same piece")
        merges = vocabulary.merges()
        # The package panics if a merge gives a piece longer than all pieces.
        for left, right in merges:
            if left + right not in numbers:
                raise InputError(
                    f"the model's pair of {quoted(left)} and {quoted(right)} makes no piece of its "
                    "vocabulary"
                )
        try:
            model = tokenizers.models.BPE(numbers, merges, ignore_merges=split.whole_pieces)
        except Exception as error:  # the package raises no other class
            raise InputError(
                f"the tokenizers package refuses the model's pairs: {printable(str(error)[:200])}"
            ) from None
        before = tokenizers.pre_tokenizers
        steps = [before.Split(tokenizers.Regex(pattern), "isolated") for pattern in split.patterns]
        as_bytes = before.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.pre_tokenizer = before.Sequence([*steps, as_bytes])

    def encode(self, text: str, at_start: bool) -> list[int]:
        """The tokens of a text; where it stands makes no difference."""
        del at_start
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token that is not special."""
        piece: str = self._tokenizer.id_to_token(token)
        return b"".join(_BYTES.get(character) or character.encode() for character in piece)

    def rest(self) -> None:
        """Release nothing: building the tokenizer again would take a second."""


def _bytes_by_character() -> dict[str, bytes]:
    """Return GPT-2's table: visible characters are themselves, other bytes U+0100 and following."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    table = {chr(byte): bytes([byte]) for byte in shown}
    return table | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(hidden)}


_BYTES = _bytes_by_character()
