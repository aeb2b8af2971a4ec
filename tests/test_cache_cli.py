"""``subquant cache``: listing, removal and verification of entries."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner, Result

from subquant.cli import main
from subquant.compiler.cache import Cache, CompileResult, description
from subquant.compiler.compile_options import CompileOptions
from subquant.core.files import open_input
from subquant.errors import InputError

PROGRAM, MODEL = "ab" * 32, "cd" * 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A program, its lowered module, a language model, and a digest."""
    monkeypatch.setenv("SUBQUANT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SUBQUANT_CACHE_SIZE", raising=False)
    cache, options = Cache(tmp_path / "cache"), CompileOptions("vulkan", dims=("n=2", "m=3"))
    about = description("program", "a/mobilenet.onnx", options)
    cache.add(PROGRAM, CompileResult(b"1" * 5000), about, lowered="12" * 32)
    assert cache.find(PROGRAM)
    about = description("language model", "gemma.gguf", CompileOptions())
    archive = tmp_path / "archive"
    archive.write_bytes(b"2" * 3_000_000)
    cache.add(MODEL, CompileResult(b"3"), {**about, "context": 64}, parameters=archive)
    cache.remember("34" * 32, "a digest")
    for path in (cache._path("records", PROGRAM), *(tmp_path / "cache/blobs").glob("*/*")):
        if path.stat().st_size < 1_000_000:
            os.utime(path, (time.time() - 7200,) * 2)
    return cache


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["cache", *arguments])
    assert result.exit_code == status, result.output
    return result


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_show(cache: Cache) -> None:
    header, rule, *rows, last = run("show").stdout.splitlines()
    assert header.split() == ["kind", "name", "options", "size", "last", "used"]
    assert set(rule) == {"─"}
    assert sorted(words("\n".join(rows))) == [
        ["language", "model", "gemma.gguf", "context=64", "2.87", "MiB", "now"],
        ["lowered", "module", "a/mobilenet.onnx", "target=vulkan", "dims=n=2,m=3", "12", "KiB",
         "now"],
        ["program", "a/mobilenet.onnx", "target=vulkan", "dims=n=2,m=3", "12", "KiB",
         "2", "h"],
    ]  # fmt: skip
    assert rows[-1].startswith("program")  # the entry that was used last is first
    assert last == (
        f"1 language model, 1 lowered module, 1 program; 2.89 MiB, of 10 GiB, in {cache.folder}"
    )


def test_show_as_json(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", "0")
    listing = json.loads(run("show", "--json").stdout)
    assert listing["folder"] == str(cache.folder)
    assert listing["limit"] is None
    assert listing["size"] == sum(
        s.size for kind in ("records", "blobs") for s in cache.files(kind)
    )
    entries = {entry["key"]: entry for entry in listing["entries"]}
    assert len(entries) == 4
    program = entries[PROGRAM]
    assert 7190 < program.pop("unused_seconds") < 7300
    assert program.pop("versions")["iree-base-compiler"] == "3.13.0"
    assert program == {
        "key": PROGRAM,
        "kind": "program",
        "name": "a/mobilenet.onnx",
        "options": {"target": "vulkan", "dims": ["n=2", "m=3"]},
        "size": 12 << 10,
        "is_whole": True,
    }
    assert entries[MODEL]["context"] == 64
    assert entries["34" * 32]["kind"] == "remembered"
    for path in (cache.folder / "blobs").glob("*/*"):
        path.unlink()
    listing = json.loads(run("show", "--json").stdout)
    assert [entry["is_whole"] for entry in listing["entries"] if entry["key"] == PROGRAM] == [False]


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is not there before something is compiled; one that is named must be."""
    monkeypatch.setenv("SUBQUANT_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", "2 GB")
    assert run("show").stdout == f"no entries; 0 B, of 1.86 GiB, in {tmp_path / 'none'}\n"
    assert run("verify").stdout == f"0 files of {tmp_path / 'none'}, all whole\n"
    assert run("clear", "--yes").stdout == f"removed 0 files of {tmp_path / 'none'}, 0 B\n"
    message = f"error: cannot read '{tmp_path / 'none'}': No such file or directory\n"
    assert run("show", "--cache", str(tmp_path / "none"), status=1).stderr == message
    (tmp_path / "none").write_text("")
    for name in ("show", "verify", "prune"):
        shown = run(name, status=1).stderr
        assert shown == f"error: cannot read '{tmp_path / 'none'}': Not a directory\n"


def test_prune(cache: Cache) -> None:
    assert run("prune").stdout.startswith("removed 0 files of ")
    assert run("prune", "--size", "10MB", "--age", "3h").stdout.startswith("removed 0 files of ")
    assert run("prune", "--age", "90m").stdout == f"removed 3 files of {cache.folder}, 16 KiB\n"
    assert cache.find(PROGRAM) is None
    shown = run("prune", "--size", "1MiB", "--cache", str(cache.folder)).stdout
    assert shown.startswith("removed ")
    assert sum(s.size for kind in ("records", "blobs") for s in cache.files(kind)) <= 1 << 20
    run("prune", "--size", "0")
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]


def test_prune_to_the_limit(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUANT_CACHE_SIZE", "100kB")
    run("prune")
    assert sum(s.size for kind in ("records", "blobs") for s in cache.files(kind)) <= 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "much"), "--size must be a size such as 10GiB, 500MB or 4096, got 'much'"),
        (
            ("--size", "9" * 400),
            "--size must be a size such as 10GiB, 500MB or 4096, got "
            f"'{'9' * 80}...' (400 characters)",
        ),
        (("--age", "1"), "--age must be an age such as 90m, 12h, 30d or 8w, got '1'"),
        (("--age", "1y"), "--age must be an age such as 90m, 12h, 30d or 8w, got '1y'"),
    ],
)
def test_prune_by_what_is_none(cache: Cache, arguments: tuple[str, ...], message: str) -> None:
    assert run("prune", *arguments, status=2).stderr == f"error: {message}\n"


def test_clear(cache: Cache) -> None:
    message = "error: cannot ask for confirmation: standard input is no terminal; add --yes\n"
    assert run("clear", status=2).stderr == message
    assert cache.find(PROGRAM)
    assert run("clear", "--yes").stdout.startswith("removed 7 files of ")
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 1)])
def test_clear_asks_on_a_terminal(cache: Cache, answer: bytes, status: int) -> None:
    here, there = pty.openpty()
    command = [sys.executable, "-m", "subquant", "cache", "clear"]
    process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there)
    os.close(there)
    shown = b""
    while not shown.endswith(b"[y/N]: "):
        shown += os.read(here, 1000)
    assert f"Remove all of {cache.folder}?".encode() in shown.replace(b"\r\n", b"")
    os.write(here, answer)
    assert process.wait(60) == status
    os.close(here)
    assert (cache.find(PROGRAM) is None) == (status == 0)


def test_verify(cache: Cache) -> None:
    assert run("verify").stdout == f"7 files of {cache.folder}, all whole\n"
    broken = [cache._path("records", PROGRAM), max((cache.folder / "blobs").glob("*/*"))]
    for path in broken:
        path.write_bytes(b"broken")
    shown = run("verify", status=1).stderr.splitlines()
    assert sorted(shown[:-1]) == sorted(f"{path} is damaged, and is removed" for path in broken)
    assert shown[-1] == (
        f"error: the cache '{cache.folder}' has 2 files damaged, 5 whole; removed entries are "
        "compiled again when needed"
    )
    assert run("verify").stdout == f"5 files of {cache.folder}, all whole\n"


def test_what_cannot_be_read_is_not_damaged(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache._path("records", PROGRAM)

    def open_other(other: Path) -> IO[bytes]:
        if other == path:
            raise InputError(f"cannot read '{other}': Permission denied")
        return open_input(other)

    monkeypatch.setattr("subquant.compiler.store_files.open_input", open_other)
    shown = run("verify", status=1).stderr.splitlines()
    assert shown[0] == f"{path} is unreadable, and stays"
    assert f"'{cache.folder}' has 1 file unreadable, 6 whole" in shown[1]
    assert path.exists()
