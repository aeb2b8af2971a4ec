"""Prompt caches: reused tokens, logits with the same bits, and files that are not used."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from command_line import call, succeed
from gguf_models import SMALL, TinyModel
from programs import LONG
from subquant.errors import InputError
from subquant.models import Model, load
from subquant.models.prompt_cache import pieces_of, reused_tokens

CONTEXTS = [80, 400] if LONG else [80]


@pytest.mark.parametrize("sizes", [(128, 64, 16), (128, 16), (16,)])
def test_pieces_are_the_largest_that_are_three_quarters_full(sizes: tuple[int, ...]) -> None:
    for count in range(1, 400):
        expected, start = [], 0
        while start < count:
            fits = [size for size in sizes if count - start >= size * 3 / 4]
            size = fits[0] if fits else sizes[-1]
            expected.append((start, size))
            start += size
        assert list(pieces_of(count, sizes)) == expected


def test_whole_pieces_are_reused() -> None:
    rng, sizes = np.random.default_rng(0), (128, 64, 16)
    for _ in range(500):
        stored = rng.integers(0, 9, rng.integers(1, 400)).tolist()
        common = int(rng.integers(0, len(stored) + 1))
        tokens = [*stored[:common], 10, *range(int(rng.integers(0, 300)))]
        count = reused_tokens(stored, tokens, sizes)
        assert count <= common
        assert count < len(tokens)
        before = [piece for piece in pieces_of(len(stored), sizes) if piece[0] < count]
        assert before == [piece for piece in pieces_of(len(tokens), sizes) if piece[0] < count]
        # The rest alone has the pieces that it has behind the reused tokens.
        rest = [(start + count, size) for start, size in pieces_of(len(tokens) - count, sizes)]
        assert [*before, *rest] == list(pieces_of(len(tokens), sizes))
    assert reused_tokens([1] * 300, [1] * 300, sizes) == 288
    assert reused_tokens([1] * 40, [1] * 40, sizes) == 32
    assert reused_tokens([1] * 32, [1] * 32, sizes) == 16
    assert reused_tokens([1] * 40, [1], sizes) == 0


@pytest.fixture(scope="module", params=CONTEXTS)
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "tiny.gguf"
    return TinyModel("gemma3", ["Q8_0"], blocks=1, context=request.param, **SMALL).write(path)


@pytest.fixture(scope="module")
def model(model_file: Path) -> Model:
    return load(model_file, cache=model_file.parent / "cache")


def test_logits_have_the_bits_of_a_prompt_that_is_read(model: Model, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(1), tmp_path / "prompt.cache"
    base = rng.integers(3, 300, model.context).tolist()
    reused = 0
    for count, common in [(50, 0), (33, 33), (60, 33), (79, 79), (79, 70), (1, 1), (17, 1),
                          (300, 17), (300, 300), (140, 140), (270, 135), (399, 270)]:  # fmt: skip
        if count >= model.context:
            continue
        tokens = [*base[:common], *rng.integers(3, 300, count - common).tolist()]
        plain, file = model.session(), model.prompt_cache(path)
        session = model.session(file)
        np.testing.assert_array_equal(session.prompt(tokens), plain.prompt(tokens))
        np.testing.assert_array_equal(session.next(7), plain.next(7))
        assert session.position == plain.position == count + 1
        assert file.reused <= min(common, count - 1)
        reused += file.reused
        base[:count] = tokens
    assert reused > 60


def test_commands_reuse_a_prompt(
    model_file: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBQUANT_CACHE", str(model_file.parent / "cache"))
    file, prompt = tmp_path / "prompt.cache", "the world " * 8
    options = ("generate", "--model", model_file, "--seed", "3", "--max-tokens", "5")
    expected = json.loads(succeed(*options, "--prompt", f"{prompt} and", "--json").stdout)
    for text in (prompt, f"{prompt} and"):
        arguments = (*options, "--prompt", text, "--prompt-cache", file)
        actual = json.loads(succeed(*arguments, "--json").stdout)
    assert actual["tokens"] == expected["tokens"]
    assert actual["reused_tokens"] == 16
    assert "16 of them from the prompt cache" in call(*arguments).stderr
    other = call(*arguments, "--kv-cache", "f32") if LONG else None
    assert other is None or "is of another model, version, machine or options" in other.stderr


def test_caches_are_copied_one_after_the_other(model: Model, tmp_path: Path) -> None:
    session = model.session()
    session.prompt(range(3, 20))
    assert session._caches is not None
    alive = weakref.WeakValueDictionary[int, np.ndarray]()

    def copies() -> Iterator[np.ndarray]:
        for number, cache in enumerate(session._caches or ()):
            assert len(alive) <= 1
            copy = alive[number] = np.array(cache)
            yield copy
            del copy

    model.prompt_cache(tmp_path / "prompt.cache").save(range(3, 20), copies())
    rows = model.prompt_cache(tmp_path / "prompt.cache").load(range(3, 40))
    assert len(rows) == len(session._caches) > 1
    for expected, actual in zip(session._caches, rows, strict=True):
        np.testing.assert_array_equal(np.asarray(expected)[:16], actual)


def forged(valid: bytes) -> Iterator[bytes]:
    """Files with a valid digest, and another header or other arrays."""
    end = 16 + int.from_bytes(valid[8:16], "little")
    header, arrays = json.loads(valid[16:end]), valid[end:-32]
    count = len(header["tokens"])
    headers = [b"", b"[]", b"[" * 9999, b"\xff", *(json.dumps(each).encode() for each in (
        {"key": header["key"]}, {**header, "arrays": None}, {**header, "arrays": [[[1], "f2"]]},
        *({**header, "tokens": tokens} for tokens in (
            7, [], [3] * (count - 1), ["3"] * count, [-1] * count, [10**9] * count, [3] * 999)),
    ))]  # fmt: skip
    files = [b"SQPROMPT" + len(each).to_bytes(8, "little") + each + arrays for each in headers]
    files += [valid[:8] + b"\xff" * 8 + valid[16:-32], valid[:-34], valid[:-32] + b"00", valid[:12]]
    for data in files:
        yield data + blake3(data).digest()


def test_other_files_are_not_used(model: Model, tmp_path: Path) -> None:
    """A file of another key, and damaged ones, are written anew; one of another kind stays."""
    path, notes, tokens = tmp_path / "prompt.cache", list[str](), list(range(3, 45))
    expected = model.session(model.prompt_cache(path)).prompt(tokens)
    valid = path.read_bytes()
    damaged = bytearray(valid)
    damaged[len(damaged) // 2] ^= 1
    for data in (bytes(damaged), valid[:-1], valid[:8], valid[:-200]):
        path.write_bytes(data)
        file = model.prompt_cache(path, notes.append)
        np.testing.assert_array_equal(model.session(file).prompt(tokens), expected)
        assert notes.pop() == f"the prompt cache '{path}' is damaged; it is written anew"
        assert file.reused == 0
        assert path.read_bytes() == valid
    for data in forged(valid):
        path.write_bytes(data)
        file = model.prompt_cache(path, notes.append)
        assert file.load(tokens) == []
        assert notes.pop() == f"the prompt cache '{path}' is damaged; it is written anew"
    path.write_bytes(valid)
    file = model.prompt_cache(path, notes.append)
    file._key = "another"
    assert file.load(tokens) == []
    assert "is of another model, version, machine or options; it is written anew" in notes.pop()
    path.write_text("a text")
    with pytest.raises(InputError, match="is no prompt cache; give another name, or remove"):
        model.session(model.prompt_cache(path)).prompt(tokens)
    assert path.read_text() == "a text"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"cannot read .*: not a regular file"):
        model.session(model.prompt_cache(path)).prompt(tokens)
    missing = model.prompt_cache(tmp_path / "none" / "prompt.cache")
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        model.session(missing).prompt(tokens)
