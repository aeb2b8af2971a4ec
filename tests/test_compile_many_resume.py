"""Batch compilation: up-to-date outputs, and runs that are interrupted."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import subquant
from compile_many_runs import BAD, BY_PASSES, PROGRAM, files, statuses, write
from processes import descendants_of, is_alive, wait_until
from subquant.batch import manifest as manifests
from subquant.batch.manifest import NAME, Manifest, Record
from subquant.compiler.digests import digest_of

pytestmark = pytest.mark.usefixtures("in_temporary_folder")


def test_only_what_is_not_up_to_date_is_made() -> None:
    write("a.mlir", "b.mlir", "c.mlir", "d.mlir", "e.mlir")
    arguments = ("*.mlir", "-o", "out", *BY_PASSES)
    assert {*statuses(*arguments).values()} == {"compiled"}
    before = files()
    repeated = (*arguments, "--resume")
    assert {*statuses(*repeated).values()} == {"up-to-date"}
    Path("a.mlir").write_text(PROGRAM.format(n=9))
    Path("out/b.mlirbc").write_bytes(before["b.mlirbc"][:-1])  # half
    Path("out/c.mlirbc").write_bytes(bytes(len(before["c.mlirbc"])))  # changed
    Path("out/d.mlirbc").unlink()
    assert statuses(*repeated) == {
        **dict.fromkeys(("a.mlir", "b.mlir", "c.mlir", "d.mlir"), "compiled"),
        "e.mlir": "up-to-date",
    }
    changed = files()
    assert changed.pop("a.mlirbc") != before.pop("a.mlirbc")
    assert changed == before
    assert {*statuses(*repeated, "--rounding", "toward-zero").values()} == {"compiled"}
    assert {*statuses(*arguments).values()} == {"compiled"}  # as it was not asked for
    write("f.mlir", text=BAD)
    for _ in range(2):
        assert statuses(*repeated)["f.mlir"] == "failed"


def test_what_is_up_to_date_is_said_at_once() -> None:
    """And needs no cluster."""
    write("a.mlir", "b.mlir", "c.mlir")
    arguments = ["c.mlir", "a.mlir", "b.mlir"]
    subquant.compile_many(arguments, "out", emit="mlirbc")
    actual = subquant.compile_many(arguments, "out", emit="mlirbc", resume=True, cluster="nowhere")
    assert {result.status for result in actual} == {"up-to-date"}
    write("c.mlir", text=BAD)
    ended: list[tuple[str, str]] = []
    subquant.compile_many(
        arguments, "out", emit="mlirbc", resume=True,
        on_result=lambda result: ended.append((result.name, result.status)),
    )  # fmt: skip
    assert ended == [("a.mlir", "up-to-date"), ("b.mlir", "up-to-date"), ("c.mlir", "failed")]


def test_other_versions_are_not_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.mlir")
    (first,) = subquant.compile_many(["a.mlir"], "out", emit="mlirbc", resume=True)
    (second,) = subquant.compile_many(["a.mlir"], "out", emit="mlirbc", resume=True)
    assert (first.status, second.status) == ("compiled", "up-to-date")
    assert second.passes_seconds == first.passes_seconds
    monkeypatch.setattr("subquant.compiler.keys.code_digest", lambda memo=None: "other code")
    (third,) = subquant.compile_many(["a.mlir"], "out", emit="mlirbc", resume=True)
    assert third.status == "compiled"


def test_a_manifest_survives_what_is_cut_or_strange(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("x").write_bytes(b"data")
    record = Record("x", "key", {"x": (4, digest_of(b"data"))}, 0.5, 1.5)
    manifest = Manifest(".")
    manifest.add(record)
    assert manifest.up_to_date("x", "other") is None
    with Path(NAME).open("ab") as file:
        file.write(b'{"version": 1, "output": "x", "key"')  # killed
    manifest = Manifest(".")
    assert manifest.up_to_date("x", "key") == record
    manifest.add(Record("y", "key", {"y": (4, "")}))
    with Path(NAME).open("ab") as file:
        file.write(
            b'\n{"version": 1, "output": "x", "key": "key", "files": {"x": [1e999, ""]}, '
            b'"passes_seconds": 1, "iree_seconds": 1}'
            b'\n{"version": 1, "output": "z", "key": "key", "files": {"z\\u0000": [0, ""], '
            b'"z": [0, ""]}, "passes_seconds": 1, "iree_seconds": 1}'
            b'\n[]\n{"version": 2}\n\xff\n{"version": 1, "files": {"x": 3}}\n"' + b"[" * 9999
        )
    manifest = Manifest(".")
    assert manifest.up_to_date("x", "key") == record
    assert manifest.up_to_date("y", "key") is None  # there is no such file
    assert manifest.up_to_date("z", "key") is None  # and can be none
    for _ in range(50):
        manifest.add(record)
    size = Path(NAME).stat().st_size
    with monkeypatch.context() as full:
        full.setattr(manifests, "write_atomically", fail)
        assert Manifest(".").up_to_date("x", "key") == record
    assert Path(NAME).stat().st_size == size
    assert Manifest(".").up_to_date("x", "key") == record
    assert Path(NAME).stat().st_size < size / 10
    Path("x").write_bytes(b"dat")
    assert Manifest(".").up_to_date("x", "key") is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full")
def test_a_manifest_that_cannot_be_written_is_named() -> None:
    manifest = Manifest(".")
    Path(NAME).symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device: '{NAME}'"):
        manifest.add(Record("x", "key", {}))


SLOW = """
import sys, time
from subquant.batch import tasks
from subquant.cli import main

before = tasks.compile_to_bytes

def compile_slowly(source, *arguments, **named):
    if source.file != "a.mlir":
        named["progress"]("parse")
        while True:
            before(b"func.func private @f()", emit="mlir")
    return before(source, *arguments, **named)

tasks.compile_to_bytes = compile_slowly
main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.share(4)
def test_what_is_done_stays_done(number: int) -> None:
    write("a.mlir", "b.mlir", "c.mlir")
    arguments = ["*.mlir", "-o", "out", *BY_PASSES, "--resume"]
    command = [sys.executable, "-c", SLOW, "compile", *arguments, "--jobs", "2", "--json", "r.json"]
    Path("temporary").mkdir()
    environment = {**os.environ, "TMPDIR": os.path.abspath("temporary")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        manifest = Path("out", NAME)
        assert wait_until(lambda: manifest.is_file() and b"\n" in manifest.read_bytes())
        assert wait_until(lambda: len(descendants_of(process.pid)) == 2)
        children = descendants_of(process.pid)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert wait_until(lambda: not any(is_alive(child) for child in children))
    assert [*files()] == ["a.mlirbc"]
    if number != signal.SIGKILL:
        assert os.listdir("temporary") == []
        assert process.returncode == (1 if number == signal.SIGINT else 128 + number)
        assert "1 compiled, 2 not-run" in errors.decode()
        assert "note: --resume compiles the rest" in errors.decode()
        report = json.loads(Path("r.json").read_text())
        assert [each["status"] for each in report["results"]] == ["compiled", "not-run", "not-run"]
    assert statuses(*arguments) == {
        "a.mlir": "up-to-date", "b.mlir": "compiled", "c.mlir": "compiled",
    }  # fmt: skip
