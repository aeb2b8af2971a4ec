"""A short run of ``scripts/fuzz`` over every kind of input, and its failures."""

from __future__ import annotations

import io
import os
import random
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dask_cluster import Cluster
from programs import LONG, load_script
from subquant.batch.engines.tasks import run_archive

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def fuzz() -> Any:
    """The command, and the modules of ``scripts/damaged_inputs``."""
    names = ("case", "cluster", "corpus", "kinds", "mutations", "outcomes", "running", "server")
    modules = {name: load_script(f"damaged_inputs.{name}") for name in names}
    return SimpleNamespace(**modules, main=load_script("fuzz").main)


@pytest.mark.skipif(not LONG, reason="6 s; scripts/fuzz tries inputs of every kind")
def test_inputs_of_every_kind(
    fuzz: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds of the first inputs of a run."""
    count = 60 if LONG else 20
    monkeypatch.setattr(sys, "argv", ["fuzz", "--count", str(count), "--seed", "11"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert printed.startswith(f"{count} inputs, 0 failures (seed 11; ")


def test_an_input_follows_from_seed_kind_and_number(fuzz: Any) -> None:
    corpus = fuzz.corpus.Corpus(texts=["func.func @f() { return }", "!a = i8"])
    cases = [fuzz.kinds.make_case(3, "text", number, corpus) for number in (5, 5, 6)]
    assert cases[0] == cases[1] != cases[2]
    assert fuzz.kinds.make_case(4, "text", 5, corpus) != cases[0]


def test_shares_of_a_run(fuzz: Any) -> None:
    """A longer run begins with a shorter one."""
    kinds = ["text", "npy"]
    assert list(fuzz.kinds.numbers_of(kinds, 40))[:10] == list(fuzz.kinds.numbers_of(kinds, 10))
    counts = [sum(name == kind for name, _ in fuzz.kinds.numbers_of(kinds, 320)) for kind in kinds]
    assert counts == [260, 60]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["opt", "x.mlir", "-o", "out"], None),
        (["opt", "nowhere.mlir", "-o", "out"], None),
        (["raise"], "raised: Traceback"),
        (["status"], "exit status 3"),
        (["partial"], "exit status 1, and out is there"),
        (["nothing"], "exit status 0, and out is not there"),
        (["silent"], "exit status 1 without an error"),
        (["traceback"], "a traceback"),
        (["escape"], "an escape sequence of the input"),
        (["left"], "left behind: some"),
    ],
)
def test_what_a_failure_is(
    fuzz: Any, arguments: list[str], wrong: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import subquant.cli

    real = subquant.cli.main

    def main(inputs: list[str], prog_name: str) -> None:
        if inputs[0] == "opt":
            real(inputs, prog_name=prog_name)
        if inputs[0] == "raise":
            raise RuntimeError
        if inputs[0] in ("partial", "status"):
            Path("out").write_text("x")
        if inputs[0] == "left":
            (tmp_path / "tmp/some").write_text("x")
        if inputs[0] == "traceback":
            os.write(2, b"Traceback (most recent call last):")
        if inputs[0] == "escape":
            os.write(1, b"\x1b[2J")
        if inputs[0] != "silent":
            os.write(2, b"a word")
        statuses = {"status": 3, "partial": 1, "silent": 1, "left": 1}
        raise SystemExit(statuses.get(inputs[0], 0))

    monkeypatch.setattr(subquant.cli, "main", main)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    folder = tmp_path / "case"
    folder.mkdir()
    has_no_output = arguments[0] in ("raise", "traceback", "escape", "left", "status")
    output = None if has_no_output else "out"
    case = fuzz.case.Case(arguments, {"x.mlir": b"func.func @f() { return }"}, output)
    fuzz.running.write_case(case, folder)
    with capsys.disabled():
        _, actual = fuzz.running.run_case(case, folder)
    assert (actual is None) == (wrong is None), actual
    assert (actual or "").startswith(wrong or "")


def test_changes_of_text_and_bytes(fuzz: Any) -> None:
    """All of them work on nothing, and change something of most."""
    for mutation in fuzz.mutations.TEXT_MUTATIONS:
        for number in range(20):
            assert isinstance(mutation(random.Random(number), "", [""]), str)
    text, data = "func.func @f(%x: tensor<4xi8>) { return }", bytes(range(100))
    rngs = [random.Random(number) for number in range(100)]
    assert sum(fuzz.mutations.mutate_text(rng, text, [text]) != text for rng in rngs) > 80
    assert sum(fuzz.mutations.mutate_bytes(rng, data) != data for rng in rngs) > 90
    assert fuzz.mutations.mutate_bytes(rngs[0], b"") is not None


# -- on a cluster ---------------------------------------------------------------------------------


class FakeServer:
    """Every second input fails, and leaves its files."""

    def __init__(self, fuzz: Any, folder: Path) -> None:
        self.fuzz, self.folder = fuzz, folder

    def run(self, name: str, number: int) -> Any:
        wrong = "a traceback" if number % 2 else None
        if wrong is not None:
            (self.folder / f"{name}-{number}/d").mkdir(parents=True)
            (self.folder / f"{name}-{number}/command").write_text(f"subquant {number}")
            (self.folder / f"{name}-{number}/d/a").write_bytes(b"\0\xff")
        return self.fuzz.outcomes.Outcome(name, number, number % 3, wrong, 0.5)

    def stop(self) -> None:
        pass


@pytest.fixture
def ranges(fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Return the outcome of a range of inputs, run as on a worker, with failures in ``kept``."""
    monkeypatch.setattr(fuzz.outcomes, "FAILURES", tmp_path / "kept")
    monkeypatch.setattr(
        fuzz.server, "Server", lambda seed, folder, seconds: FakeServer(fuzz, Path(folder))
    )

    def run(*arguments: str) -> bytes:
        results = tmp_path / "results"
        monkeypatch.setattr(sys, "argv", ["fuzz", *arguments, "--results", str(results)])
        fuzz.main()
        return results.read_bytes()

    return run


def test_a_range_comes_back_with_its_failures(
    fuzz: Any, ranges: Callable[..., bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = fuzz.outcomes.Tally(7)
    kinds = ("--kinds", "text,npy")
    for first in ("0", "6"):
        results = ranges(*kinds, "--first", first, "--count", "6")
        assert fuzz.cluster.add_results(results, tally) is None
    tally.show()
    work = list(fuzz.kinds.numbers_of(["text", "npy"], 12))
    failed = [f"{name}-{number}" for name, number in work if number % 2]
    assert failed
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == sorted(failed)
    for name in failed:
        retained = tmp_path / "kept" / name
        assert (retained / "command").read_text() == f"subquant {name.rpartition('-')[2]}"
        assert (retained / "d/a").read_bytes() == b"\0\xff"
        assert (retained / "wrong").read_text().endswith("a traceback")
    assert f"12 inputs, {len(failed)} failures (seed 7; exit status 0: " in capsys.readouterr().out


def test_inputs_of_other_packages_do_not_count(
    fuzz: Any, ranges: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = ranges("--count", "2")
    monkeypatch.setattr(fuzz.cluster, "generator_versions", lambda: {"jax": "0"})
    tally = fuzz.outcomes.Tally(0)
    assert "there, and here {'jax': '0'}" in fuzz.cluster.add_results(actual, tally)
    assert not tally.statuses


def test_the_archive_is_this_script(fuzz: Any) -> None:
    """Run as on a worker: it unpacks itself, and its folder is gone afterwards."""
    archive = fuzz.cluster.make_archive()
    names = set(zipfile.ZipFile(io.BytesIO(archive)).namelist())
    assert {"scripts/fuzz.py", "tests/tflite_cases.py", "examples/two_layer.mlir"} <= names
    for package in ("damaged_inputs", "pieces"):
        paths = (ROOT / "scripts" / package).glob("*.py")
        assert {path.relative_to(ROOT).as_posix() for path in paths} <= names
    value, blobs = run_archive({"arguments": ["--kinds", "none", "--results"]}, [archive], print)
    assert (value["status"], blobs) == (2, [])
    assert "no kinds are named none; expected some of text" in value["errors"]
    assert value["errors"].startswith("usage: fuzz.py ")


def test_a_cluster_that_is_not_there(
    fuzz: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--cluster", "nowhere"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 1
    message = capsys.readouterr()
    assert message.out == ""
    assert message.err.startswith("fuzz: error: 'nowhere' is no address of a Dask scheduler")


@pytest.mark.skipif(not LONG, reason="half a minute: two workers make what inputs are made from")
def test_a_cluster_runs_what_this_machine_runs(
    fuzz: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz.cluster, "INPUTS_PER_TASK", 30)
    message = []
    with Cluster(tmp_path) as cluster:
        for _ in range(2):
            cluster.start_worker()
        cluster.wait_for_workers(2)
        for where in (("--jobs", "2"), ("--cluster", cluster.address)):
            monkeypatch.setattr(sys, "argv", ["fuzz", "--count", "60", "--seed", "5", *where])
            with pytest.raises(SystemExit) as ended:
                fuzz.main()
            assert ended.value.code == 0
            message.append(capsys.readouterr().out.partition("slowest")[0])
    assert message[0] == message[1]
    assert message[0].startswith("60 inputs, 0 failures (seed 5; exit status 0: ")
