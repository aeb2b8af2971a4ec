"""Vocabulary of a model from GGUF properties: pieces, scores, types, token numbers.

===========================  =======================================================================
property                     meaning
===========================  =======================================================================
``tokenizer.ggml.model``     the kind: ``llama`` (pieces with scores) or ``gpt2`` (byte-level pairs)
``tokenizer.ggml.pre``       for ``gpt2``: how text is split before pairs are merged
``...tokens``                the piece of each token
``...scores``                for ``llama``: the score of each
``...token_type``            the type of each, a `PieceType`
``...merges``                for ``gpt2``: pairs, "left right", the first to be merged first
``...bos_token_id``          and ``eos``, ``eot``, ``eom``, ``unknown``, ``fim_pad``, ``fim_rep``,
                             ``fim_sep``: tokens with a meaning
``...add_bos_token``         whether text starts with the token ``bos``
``...add_space_prefix``      for ``llama``: whether text gets a space in front
===========================  =======================================================================

Another property of a vocabulary refuses the file, unless it is known to be irrelevant.

Source: the GGUF specification of ggml; defaults are llama.cpp's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.read_record import ReadRecord
from ..errors import InputError, UnsupportedError, expected_name, quoted
from ..numerics.element_types import Array
from .irrelevant_properties import irrelevant_vocabulary

KINDS = ("llama", "gpt2")
"""The kinds of vocabularies that there is a tokenizer for."""

_END_PIECES = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "[e~[",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
))  # fmt: skip
"""Pieces that are control tokens and end an answer, whatever the properties say of them.

Files name one such token, and models write others. Source: llama.cpp, ``llama-vocab.cpp``.
"""


class PieceType(enum.IntEnum):
    """Kind of a token, with the numbers of GGUF and SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Vocabulary; InputError for wrong properties, UnsupportedError without a tokenizer for it."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._record = ReadRecord(None)
        self._properties = self._record.track(
            "property",
            {key: value for key, value in properties.items() if key.startswith("tokenizer.")},
            irrelevant_vocabulary(str(properties.get("tokenizer.ggml.model"))),
        )
        self.kind: str = self._of("model", str)
        if self.kind not in KINDS:
            raise UnsupportedError(
                f"the model's vocabulary is of the kind {quoted(self.kind)} "
                f"(tokenizer.ggml.model), which there is no tokenizer for; "
                f"{expected_name(self.kind, KINDS)}"
            )
        self.split: str = self._of("pre", str, "default")
        listed = self._list("tokens", str)
        if "" in listed:  # llama.cpp names them so, too
            listed = [piece or f"[EMPTY_{number}]" for number, piece in enumerate(listed)]
        self.pieces: list[str] = listed
        self._ends = {n for n, piece in enumerate(listed) if piece in _END_PIECES}
        self.types = self._types()
        self.types[list(self._ends)] = PieceType.CONTROL
        self.start_token = self._token("bos_token_id", 1 if self.kind == "llama" else None)
        self.unknown_token = self._token("unknown_token_id", 0 if self.kind == "llama" else None)
        self.add_space: bool = self.kind == "llama" and self._of("add_space_prefix", bool, True)
        self._add_start: bool | None = self._of("add_bos_token", bool, None)

    def finish(self) -> None:
        """Check that every property was read, or changes no tokens; UnsupportedError otherwise."""
        self._record.finish("use a model without, or a tool that knows it")

    def adds_start(self, default: bool) -> bool:
        """Return True if text starts with the start token, and there is one."""
        adds = default if self._add_start is None else self._add_start
        return adds and self.start_token is not None

    def scores(self) -> Array:
        """The score of each piece, f32."""
        with np.errstate(over="ignore"):  # infinities are an error below
            scores = np.asarray(self._list("scores", (int, float)), np.float32)
        self._check_length("scores", len(scores))
        if not np.isfinite(scores).all():
            raise InputError("'tokenizer.ggml.scores' has infinities or NaN, expected numbers")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """The pairs of pieces that become one, the first to be merged first."""
        merges = []
        for number, pair in enumerate(self._list("merges", str)):
            cut = pair.find(" ", 1)  # a piece may be a space, and so begin with one
            if cut < 0 or cut == len(pair) - 1:
                raise InputError(
                    f"pair {number} of 'tokenizer.ggml.merges' is {quoted(pair)}, expected two "
                    "pieces with a space between them"
                )
            merges.append((pair[:cut], pair[cut + 1 :]))
        return merges

    def names_of(self, *types: PieceType) -> dict[int, str]:
        """Return the pieces of some types by token."""
        tokens: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return {token: self.pieces[token] for token in tokens}

    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""
        default = {"eos": 2 if self.kind == "llama" else None}
        named = [
            self._token(f"{name}_token_id", default.get(name))
            for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
        ]
        return frozenset(self._ends | {number for number in named if number is not None})

    def _of(self, name: str, kind: Any, *default: Any) -> Any:
        """A property, of a type."""
        key = f"tokenizer.ggml.{name}"
        if key not in self._properties:
            if default:
                return default[0]
            raise InputError(f"the model has no property '{key}'; it comes without a vocabulary")
        value = self._properties[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise InputError(
                f"'{key}' is of the type {type(value).__name__}, expected {kind.__name__}"
            )
        return value

    def _list(self, name: str, kind: Any) -> list[Any]:
        """A property that is a list of elements of a type, and not empty."""
        values: list[Any] = self._of(name, list)
        if not values or not isinstance(values[0], kind):  # a GGUF's elements are of one type
            raise InputError(f"'tokenizer.ggml.{name}' is empty, or has elements of a wrong type")
        return values

    def _types(self) -> Array:
        """The type of each piece, u8."""
        if "tokenizer.ggml.token_type" not in self._properties:
            return np.full(len(self.pieces), PieceType.NORMAL, np.uint8)
        types = np.asarray(self._list("token_type", int))
        self._check_length("token_type", len(types))
        known = (types >= min(PieceType)) & (types <= max(PieceType))
        return np.where(known, types, PieceType.NORMAL).astype(np.uint8)

    def _check_length(self, name: str, length: int) -> None:
        if length != len(self.pieces):
            raise InputError(
                f"'tokenizer.ggml.{name}' has {length} elements for {len(self.pieces)} tokens"
            )

    def _token(self, name: str, default: int | None) -> int | None:
        """The number of a token with a meaning, or None."""
        number: int | None = self._of(name, int, default)
        if number is None or 0 <= number < len(self.pieces):
            return number
        if number == default and f"tokenizer.ggml.{name}" not in self._properties:
            return None
        raise InputError(
            f"'tokenizer.ggml.{name}' is {number}, expected one of {len(self.pieces)} tokens"
        )
