"""The cache of executables: whole entries only, and one compilation for all that ask for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from subquant.compiler.cache import Cache
from subquant.compiler.compilation import compile_to_bytes
from subquant.errors import CompilerError

PROGRAM = "func.func @main(%x: tensor<4xi8>) -> tensor<4xi8> {\n  return %x : tensor<4xi8>\n}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_entries_are_whole(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    assert cache.read("key") is None
    cache.write("key", b"executable")
    assert cache.read("key") == b"executable"
    entry = tmp_path / "new/key"
    for broken in (entry.read_bytes()[:-1], b"", entry.read_bytes() + b"\0"):
        entry.write_bytes(broken)
        assert cache.read("key") is None


class Compiler:
    """Stands in for IREE's: the first call lasts until somebody waits for it, or fails."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.calls = 0
        self.started, self.awaited = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> bytes:
        self.calls += 1
        if self.calls > 1:
            return b"second"
        self.started.set()
        assert self.awaited.wait(60)
        if self.fails:
            raise CompilerError("refused")
        return b"first"


@pytest.mark.parametrize("fails", [False, True])
def test_one_compiles_and_the_others_wait(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And if the one fails, the next of those that wait compiles."""
    compiler = Compiler(fails)
    monkeypatch.setattr("subquant.compiler.compilation.run_iree", compiler)
    found: list[Any] = []

    def first() -> None:
        try:
            found.append(compile_to_bytes(PROGRAM, cache=tmp_path))
        except CompilerError as error:
            found.append(error.message)

    thread = threading.Thread(target=first)
    thread.start()
    assert compiler.started.wait(60)
    steps: list[str] = []

    def on_step(step: str) -> None:
        steps.append(step)
        if step.startswith("wait"):
            compiler.awaited.set()

    second = compile_to_bytes(PROGRAM, cache=tmp_path, progress=on_step)
    thread.join()
    last = "iree-compile" if fails else "cached"
    assert steps[-2:] == ["wait for the same compilation elsewhere", last]
    assert found == (["refused"] if fails else [b"first"])
    assert second == (b"second" if fails else b"first")
    assert compiler.calls == (2 if fails else 1)
    (entry,) = names(tmp_path)
    assert not entry.endswith(".lock")
    assert compile_to_bytes(PROGRAM, cache=tmp_path) == second


HOLD = """
import os, sys
from subquant.compiler.cache import Cache
with Cache(sys.argv[1]).reserved("key", lambda: None):
    os._exit(0)
"""


def test_a_process_that_dies_frees_its_key(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], check=True)
    assert names(tmp_path) == ["key.lock"]
    waits: list[str] = []
    with Cache(tmp_path).reserved("key", lambda: waits.append("waited")):
        assert names(tmp_path) == ["key.lock"]
    assert names(tmp_path) == []
    assert not waits


def test_locks_of_others_that_died_are_removed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], check=True)
    cache = Cache(tmp_path)
    with cache.reserved("held", lambda: None):
        with cache.reserved("other", lambda: None):
            assert names(tmp_path) == ["held.lock", "key.lock", "other.lock"]
        assert names(tmp_path) == ["held.lock"]
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(fails=False)
    compiler.awaited.set()
    monkeypatch.setattr("subquant.compiler.compilation.run_iree", compiler)
    (tmp_path / "file").write_text("no folder")
    for expected in (b"first", b"second"):
        assert compile_to_bytes(PROGRAM, cache=tmp_path / "file") == expected
