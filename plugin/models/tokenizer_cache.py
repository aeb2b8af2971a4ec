"""Tokenizer cache: tables of a GGUF file's tokenizer, under the digest of the file's header.

Reading 262,144 pieces with scores, and writing them as SentencePiece's model, takes 0.3 s of CPU
time; the tables are read in 0.01 s. The cache (`subquant.compiler.cache`) has two records:

- one of the path: the size of the header, as a hint, which need not be right;
- one of the digest of the header and of subquant's code: where each list of the vocabulary ends,
  so that the reader passes over it, and the blob of the tables.

A header that differs in a byte has another digest, whatever the size and the times of the file.
Only tables of scored pieces are cached: the package ``tokenizers`` reads its own format no faster
than it builds a tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..compiler.digests import Digest, digest_of, digest_of_fields, identity_of_path
from ..compiler.keys import code_digest
from ..formats.gguf_splits import part_files
from ..numerics.element_types import Array
from .scored_pieces import PieceTables, ScoredPieces
from .tokenizer import AnyTokenizer, SpecialTokens, Tokenizer

if TYPE_CHECKING:
    from ..compiler.store import Store
    from ..formats.gguf import Lists

_TABLES = "tokenizer"
"""The name of the blob in its record."""
_LENGTH_BYTES = 8


class TokenizerCache:
    """Cache of the tokenizer of one GGUF file; `subquant.formats.gguf.KnownHeaders` of its reader.

    Args:
        store: the cache; nothing is cached in a folder that cannot be written.
        path: a model; nothing is cached of split files, and of other formats.
    """

    def __init__(self, store: Store, path: str | os.PathLike[str]) -> None:
        self._store, self._path = store, os.path.abspath(path)
        self._identity = identity_of_path(self._path)
        self._hint = digest_of_fields({"header of": self._path})
        self._tables: bytes | None = None
        self._key: Digest = ""
        self._header: tuple[int, Mapping[str, int]] | None = None

    @property
    def lists(self) -> Lists:
        """The argument of readers: this object, or True if nothing is cached of the file."""
        return self if part_files(self._path) == [self._path] else True

    def list_ends(self, data: mmap.mmap) -> Mapping[str, int] | None:
        """Find the tables of a header; return where its lists end, or None."""
        hint = self._store.recall(self._hint)
        if hint is None or int(hint) > len(data):
            return None
        key = self._key_of(data, int(hint))
        record = self._store.read(key)
        if record is None:
            return None
        self._tables = self._store.blob(record.blobs[_TABLES])
        if self._tables is None:
            return None
        self._store.use(key, record)
        ends: Mapping[str, int] = record.fields["list_ends"]
        return ends

    def add(self, data: mmap.mmap, size: int, list_ends: Mapping[str, int]) -> None:
        """Take note of the header that the next tokenizer is made of."""
        self._key, self._header = self._key_of(data, size), (size, list_ends)

    def find(self) -> Tokenizer | None:
        """Return the tokenizer of the header that was found; errors as `ScoredPieces`."""
        return None if self._tables is None else _tokenizer_of(self._tables)

    def keep(self, tokenizer: AnyTokenizer) -> None:
        """Write the tables of the tokenizer that was made of the header, if that is possible."""
        if self._header is None or not isinstance(tokenizer, Tokenizer):
            return
        if not isinstance(tokenizer.engine, ScoredPieces):
            return
        if identity_of_path(self._path) != self._identity:
            return  # the lists may have been read before a change, and the digest computed after
        size, list_ends = self._header
        tables = _bytes_of(tokenizer.special_tokens, tokenizer.engine.tables)
        with contextlib.suppress(OSError):
            blob = self._store.keep(tables)
            self._store.write(self._key, {"list_ends": dict(list_ends)}, {_TABLES: blob})
            self._store.remember(self._hint, str(size))
            self._store.evict(len(tables), {self._key, blob})

    def _key_of(self, data: mmap.mmap, size: int) -> Digest:
        with memoryview(data) as view, view[:size] as header:
            digest = digest_of(header)
        return digest_of_fields({"tokenizer of": digest, "code": code_digest(self._store)})


def _bytes_of(tokens: SpecialTokens, tables: PieceTables) -> bytes:
    """Return the blob: the length of the JSON text, the text, and the arrays."""
    arrays = [tables.types, tables.starts, tables.ends]
    text = json.dumps(
        {
            **tokens._asdict(),
            "user_defined": list(tokens.user_defined.items()),
            "control": list(tokens.control.items()),
            "add_space": tables.add_space,
        }
    ).encode("utf-8", "surrogatepass")
    planes = [each.tobytes() for each in arrays]
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *planes, tables.proto])


def _tokenizer_of(blob: bytes) -> Tokenizer:
    """Return the tokenizer of a blob."""
    start = _LENGTH_BYTES
    end = start + int.from_bytes(blob[:start], "little")
    fields = json.loads(blob[start:end])
    arrays: list[Array] = []
    for dtype in (np.uint8, np.int32, np.int32):
        array = np.frombuffer(blob, dtype, fields["size"], end).copy()  # the blob is released
        arrays.append(array)
        end += array.nbytes
    types, starts, ends = arrays
    tables = PieceTables(types, fields.pop("add_space"), blob[end:], starts, ends)
    for name in ("user_defined", "control"):
        fields[name] = dict(fields[name])
    return Tokenizer(ScoredPieces(tables), SpecialTokens(**fields))
