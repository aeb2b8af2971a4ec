"""Prompt cache: keys and values of a prompt in a file, for later prompts that start alike.

::

    8 bytes   magic number
    8 bytes   length of the header, little endian
    header    JSON: {"key": text, "tokens": [...], "arrays": [[shape, type], ...]}
    arrays    the first rows of each cache, one for each token
    32 bytes  BLAKE3 of everything before

The key identifies model, options, versions and machine, as that of the compiled program does
(`subquant.compiler.keys`). A file of another key, or a damaged one, is not used: the whole prompt
is read, and the file is written anew. A file that is no prompt cache is refused, and stays.

A prompt is read in pieces of 128, 64 and 16 tokens, and a token's keys and values depend, by
roundings, on the piece that it is read in. So the tokens are reused up to the end of the last piece
that both prompts have in common, and at least one piece is read: logits have the same bits with and
without the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from ..core.files import open_atomically, open_input, writing
from ..errors import InputError
from ..numerics.cache_formats import formats_of
from ..numerics.element_types import AnyArray, DType
from .configuration import Configuration
from .interface import Shape, batches_of_size

_MAGIC = b"SQPROMPT"
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class _Prefix:
    """Tokens, and the rows of each cache, ``[tokens, kv_heads, row]``."""

    tokens: list[int]
    arrays: list[AnyArray]


class PromptCache:
    """File with the keys and values of a prompt.

    Args:
        path: the file; it may be missing.
        key: the key of model and options.
        notify: called with a line if a file is not used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: str,
        configuration: Configuration,
        shape: Shape,
        notify: Callable[[str], object] | None = None,
    ) -> None:
        self.reused = 0
        """Tokens of the last prompt that were not read, because the file has them."""
        self._path, self._key = Path(path), key
        self._configuration, self._shape = configuration, shape
        self._notify = notify or (lambda line: None)
        self._stored: _Prefix | None = None

    def load(self, tokens: Sequence[int]) -> list[AnyArray]:
        """Return the first rows of each cache for a prompt; an empty list if none is reused.

        Raises:
            InputError: the file cannot be read, or is no prompt cache.
        """
        self._stored = self._read()
        if self._stored is None:
            return []
        self.reused = reused_tokens(self._stored.tokens, tokens, self._shape.pieces)
        return [array[: self.reused] for array in self._stored.arrays] if self.reused else []

    def save(self, tokens: Sequence[int], caches: Iterator[AnyArray]) -> None:
        """Write a prompt's keys and values, unless the file has just these.

        Args:
            tokens: the tokens of the prompt.
            caches: keys and values of each block, with a row for each token or more.

        Raises:
            InputError: the file cannot be written.
        """
        if self._stored is not None and self._stored.tokens == list(tokens):
            return
        header = json.dumps(
            {
                "key": self._key,
                "tokens": list(tokens),
                "arrays": _layout_in_header(self._layout(len(tokens))),
            }
        ).encode()
        head = b"".join([_MAGIC, len(header).to_bytes(8, "little"), header])
        hasher = blake3(head)
        with writing(self._path), open_atomically(self._path) as file:
            file.write(head)
            for cache in caches:  # one after the other is copied from the device
                rows = np.ascontiguousarray(cache[: len(tokens)]).reshape(-1).view(np.uint8)
                hasher.update(rows.data)
                file.write(rows.data)
            file.write(hasher.digest())

    def _read(self) -> _Prefix | None:
        """Read the file; None if it is missing, damaged or of another key, with a remark."""
        if not self._path.exists():
            return None
        try:
            with open_input(self._path) as file:
                magic = file.read(len(_MAGIC))
                if magic != _MAGIC:
                    raise InputError(
                        f"'{self._path}' is no prompt cache; give another name, or remove the file"
                    )
                data = magic + file.read()
        except OSError as error:
            raise InputError(f"cannot read '{self._path}': {error.strerror or error}") from None
        payload, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        start = len(_MAGIC) + 8
        end = start + int.from_bytes(payload[len(_MAGIC) : start], "little")
        header = _header(payload[start:end]) if blake3(payload).digest() == digest else {}
        if header and header.get("key") != self._key:
            self._notify(
                f"the prompt cache '{self._path}' is of another model, version, machine or "
                "options; it is written anew"
            )
            return None
        prefix = self._prefix(header, payload[end:])
        if prefix is None:
            self._notify(f"the prompt cache '{self._path}' is damaged; it is written anew")
        return prefix

    def _prefix(self, header: dict[str, Any], data: bytes) -> _Prefix | None:
        """The tokens and arrays of a file; None unless it has this program's caches for them."""
        tokens, vocabulary = header.get("tokens"), self._configuration.vocabulary
        if not isinstance(tokens, list) or not 1 <= len(tokens) <= self._shape.context:
            return None
        if not all(type(token) is int and 0 <= token < vocabulary for token in tokens):
            return None
        layout = self._layout(len(tokens))
        if header.get("arrays") != _layout_in_header(layout):
            return None
        if len(data) != sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout):
            return None
        arrays, offset = [], 0
        for shape, dtype in layout:
            array = np.frombuffer(data, dtype, math.prod(shape), offset)
            arrays.append(array.reshape(shape))
            offset += array.nbytes
        return _Prefix(tokens, arrays)

    def _layout(self, count: int) -> Sequence[tuple[tuple[int, ...], DType]]:
        """The shape and the type of each array for a number of tokens."""
        c = self._configuration
        return [
            ((count, c.kv_heads, each.row_length(c.head_size)), each.element.dtype)
            for each in formats_of(self._shape.kv_cache)
        ] * c.blocks


def _header(data: bytes) -> dict[str, Any]:
    """The header of a file; empty if it is no JSON object."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def _layout_in_header(layout: Sequence[tuple[tuple[int, ...], DType]]) -> list[Any]:
    """The shapes and types of arrays as the header states them."""
    return [[list(shape), dtype.name] for shape, dtype in layout]


def pieces_of(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first token and size of each piece that a prompt is read in."""
    start = 0
    for size in sizes:
        pieces = batches_of_size(count - start, size, sizes)
        for number in range(pieces):
            yield start + number * size, size
        start = min(start + pieces * size, count)


def reused_tokens(stored: Sequence[int], tokens: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how many tokens of a prompt have the keys and values of a stored prompt.

    Nothing is reused of or for a prompt of one token, which ``next`` reads.
    """
    shorter = min(len(stored), len(tokens))
    if shorter == 1:
        return 0
    differing = (n for n in range(shorter) if stored[n] != tokens[n])
    equal, reused = next(differing, shorter), 0
    for old, new in zip(pieces_of(len(stored), sizes), pieces_of(len(tokens), sizes), strict=False):
        end = sum(new)
        if old != new or end > equal or end >= len(tokens):
            break
        reused = end
    return reused
