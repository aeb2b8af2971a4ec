"""Tokenizer cache: the same tokens as from the file, and no tables of another header."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gguf_models import SMALL, TinyModel
from subquant.compiler.store import Store
from subquant.errors import InputError
from subquant.models.source import ModelSource, open_model
from subquant.models.tokenizer import AnyTokenizer, Tokenizer
from subquant.models.tokenizer_cache import TokenizerCache

LISTS = {f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type")}
TEXT = "Hello world, <start_of_turn>they were\n ö 🙂"


def write_model(path: Path, vocabulary: str = "llama") -> Path:
    architecture = "gemma3" if vocabulary == "llama" else "qwen2"
    return TinyModel(architecture, ("F32",), vocabulary=vocabulary, blocks=1, **SMALL).write(path)


def opened(store: Store, path: Path) -> tuple[ModelSource, AnyTokenizer, bool]:
    """The source, its tokenizer, and whether that came from the cache, as `load` gets it."""
    cache = TokenizerCache(store, path)
    source = open_model(path, lists=cache.lists)
    tokenizer = cache.find()
    if tokenizer is not None:
        return source, tokenizer, True
    fresh = source.tokenizer(keeps_vocabulary=True)
    cache.keep(fresh)
    return source, fresh, False


def test_the_cached_tokenizer_is_that_of_the_file(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "cache"), write_model(tmp_path / "model.gguf")
    source, expected, is_cached = opened(store, path)
    assert not is_cached
    assert source.properties.keys() >= LISTS
    second, tokenizer, is_cached = opened(store, path)
    assert is_cached
    assert not second.properties.keys() & LISTS
    assert second.properties == {k: v for k, v in source.properties.items() if k not in LISTS}
    assert second.configuration == source.configuration
    assert isinstance(tokenizer, Tokenizer)
    assert isinstance(expected, Tokenizer)
    assert tokenizer.special_tokens == expected.special_tokens
    for special in (False, True):
        tokens = expected.encode(TEXT, special=special)
        assert tokenizer.encode(TEXT, special=special) == tokens
        assert tokenizer.decode(tokens, special=True) == expected.decode(tokens, special=True)
    every = range(expected.size)
    assert [*map(tokenizer.bytes_of, every)] == [*map(expected.bytes_of, every)]


def test_a_header_that_changes_is_read_again(tmp_path: Path) -> None:
    """Also where size and times are those of before, and where the file is shorter."""
    store, path = Store(tmp_path / "cache"), write_model(tmp_path / "model.gguf")
    opened(store, path)
    assert opened(store, path)[2]
    data, before = path.read_bytes(), path.stat()
    path.write_bytes(data.replace(b"they", b"thex"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    _, tokenizer, is_cached = opened(store, path)
    assert not is_cached
    assert isinstance(tokenizer, Tokenizer)
    assert b"thex" in b" ".join(map(tokenizer.bytes_of, range(tokenizer.size)))
    assert opened(store, path)[2]
    path.write_bytes(data)
    assert isinstance(opened(store, path)[1], Tokenizer)
    assert opened(store, path)[2]
    other = tmp_path / "other.gguf"
    other.write_bytes(data[:100])
    path.unlink()
    other.rename(path)
    with pytest.raises(InputError, match="room for at most 3"):
        opened(store, path)


def test_damaged_tables_are_written_again(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "cache"), write_model(tmp_path / "model.gguf")
    tokens = opened(store, path)[1].encode(TEXT)
    (blob,) = (tmp_path / "cache" / "blobs").glob("*/*")
    blob.write_bytes(blob.read_bytes()[:-1])
    for is_cached in (False, True):
        _, tokenizer, cached = opened(store, path)
        assert cached == is_cached
        assert tokenizer.encode(TEXT) == tokens


def test_a_file_that_is_written_while_it_is_read_is_not_cached(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "cache"), write_model(tmp_path / "model.gguf")
    cache = TokenizerCache(store, path)
    source = open_model(path, lists=cache.lists)
    os.utime(path, (1, 1))
    cache.keep(source.tokenizer())
    assert not opened(store, path)[2]


def test_other_tokenizers_and_split_files_are_not_cached(tmp_path: Path) -> None:
    store, path = Store(tmp_path / "cache"), write_model(tmp_path / "model.gguf", "gpt2")
    for _ in range(2):
        assert not opened(store, path)[2]
    names = [tmp_path / f"a-0000{number}-of-00002.gguf" for number in (1, 2)]
    for name in names:
        name.write_bytes(b"")
    assert TokenizerCache(store, names[0]).lists is True
