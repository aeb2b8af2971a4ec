"""Runs of ``subquant quantize --calibrate`` that are interrupted, and go on after their blocks."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpoint_folders import FOLDERS
from command_line import call, fail, succeed
from gguf_models import SMALL, TinyModel
from programs import LONG
from subquant.calibration import layer_effects
from subquant.calibration.finished_blocks import FinishedBlocks, open_finished_blocks
from subquant.errors import UsageError

BLOCKS = 4


def arguments(folder: Path, output: str, *options: str, source: Path | None = None) -> list[str]:
    """The arguments of a run on a model of `BLOCKS` blocks, by default one that is written."""
    text = folder / "text.txt"
    text.write_text("the sea is blue and the sky is blue " * 80)
    if source is None:
        source = folder / "model.gguf"
        TinyModel(types=("F16",), blocks=BLOCKS, **SMALL).write(source)
    return [
        "quantize", str(source), *([] if "auto" in options else ["--bits", "4"]),
        "--calibrate", str(text),
        "--calibration-tokens", "256", "--held-out-tokens", "0", "-o", f"{folder}/{output}",
        *options,
    ]  # fmt: skip


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of the files of a folder."""
    if path.is_dir():
        return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
    return {"": path.read_bytes()}


def interrupt_at(monkeypatch: pytest.MonkeyPatch, name: str, call_number: int) -> None:
    """Let a method of `FinishedBlocks` raise as Ctrl-C does, at one of its calls."""
    method, calls = getattr(FinishedBlocks, name), 0

    def counting(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call_number:
            raise KeyboardInterrupt
        return method(*arguments)

    monkeypatch.setattr(FinishedBlocks, name, counting)


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("q.irpa", ["--method", "awq"]),
        ("q/", ["--method", "smoothquant", "--bits", "8", "--granularity", "axis"]),
        ("q.gguf", ["--asymmetric"]),
        ("q.gguf", ["--method", "imatrix"]),
        ("q/", []),
        ("q/", ["--asymmetric"]),
        ("q/", ["--method", "smoothquant", "--granularity", "axis", "--bits", "8"]),
        ("q.irpa", ["--method", "auto", "--bits-average", "4.5"]),
        ("q.gguf", ["--method", "auto", "--bits-average", "4.5"]),
    ],
)
@pytest.mark.share(6)
def test_the_result_has_the_same_bytes(
    output: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ends after a block, the second in the middle of a file, the third goes on."""
    source = FOLDERS / "llama" if output == "q/" else None
    (tmp_path / "whole").mkdir()
    run = arguments(tmp_path / "whole", output, *options, source=source)
    succeed(*run)
    expected = contents(tmp_path / "whole" / output)
    run = arguments(tmp_path, output, *options, source=source)
    unfinished = tmp_path / f"{output.rstrip('/')}.unfinished"
    for name, call_number, finished in (("add", 2, 1), ("_write", 2, 1)):
        with monkeypatch.context() as patched:
            interrupt_at(patched, name, call_number)
            result = call(*run)
        assert result.exit_code == 1
        assert "the same command goes on after the blocks in" in result.stderr
        assert not (tmp_path / output).exists()
        assert json.loads((unfinished / "progress.json").read_text())["blocks"] == finished
    monkeypatch.setattr("subquant.calibration.language_model.choose_quantizations", None)
    assert "goes on after 1 block of" in succeed(*run).stderr
    assert contents(tmp_path / output) == expected
    assert not unfinished.exists()


@pytest.mark.skipif(not LONG, reason="4 s; other tests interrupt other steps")
@pytest.mark.parametrize("output", ["q.irpa", "q.gguf"])
@pytest.mark.share(4)
def test_measuring_goes_on_after_measured_blocks(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs end while they measure the third block; the last run measures two blocks of four."""
    (tmp_path / "whole").mkdir()
    options = ["--method", "auto", "--bits-average", "4.5"]
    run = arguments(tmp_path / "whole", output, *options)
    succeed(*run)
    expected = contents(tmp_path / "whole" / output)
    run = arguments(tmp_path, output, *options)
    unfinished = tmp_path / f"{output}.unfinished"
    for name, call_number in (("add_measured", 3), ("_write", 1)):
        with monkeypatch.context() as patched:
            interrupt_at(patched, name, call_number)
            result = call(*run)
        assert result.exit_code == 1
        assert "the same command goes on after the blocks in" in result.stderr
        progress = json.loads((unfinished / "progress.json").read_text())
        assert [progress[name] for name in ("measured_blocks", "blocks", "choices")] == [2, 0, None]
        assert len(progress["measured"]) == 2 * 7
    states = unfinished / "float-states-2.irpa"
    assert {file.name for file in unfinished.iterdir()} == {"lock", "progress.json", states.name}
    written = states.read_bytes()
    states.write_bytes(written[:-1])
    assert f"'{states}' is damaged; remove the folder" in fail(1, *run)
    states.write_bytes(written)
    layers = []
    measure = layer_effects._measured_layer
    monkeypatch.setattr(
        layer_effects, "_measured_layer", lambda *each: layers.append(each) or measure(*each)
    )
    assert "goes on after 2 measured blocks of" in succeed(*run).stderr
    assert len(layers) == 2 * 7
    assert contents(tmp_path / output) == expected
    assert not unfinished.exists()


def test_a_run_that_is_interrupted_while_it_writes_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are finished: the next run writes the same output, and computes none."""
    run = arguments(tmp_path, "q.irpa")
    with monkeypatch.context() as patched:
        interrupt_at(patched, "remove", 1)
        assert call(*run).exit_code == 1
    written = contents(tmp_path / "q.irpa")
    (tmp_path / "q.irpa").unlink()
    monkeypatch.setattr(FinishedBlocks, "add", None)
    assert f"goes on after {BLOCKS} blocks of" in succeed(*run).stderr
    assert contents(tmp_path / "q.irpa") == written
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.gguf", "q.irpa", "text.txt"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.share(3)
def test_a_process_that_is_ended_by_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Nothing half-written stays, and the next run has the result of an uninterrupted one."""
    run = arguments(tmp_path, "whole.gguf")
    succeed(*run)
    run[-1] = str(tmp_path / "q.gguf")
    unfinished = tmp_path / "q.gguf.unfinished"
    wait = "import time; write = F.add; F.add = lambda *a: (write(*a), time.sleep(0.3))"
    code = f"from subquant.calibration.finished_blocks import FinishedBlocks as F; {wait}; "
    code += "from subquant.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *run], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (unfinished / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert (b"the same command goes on" in errors) == (number != signal.SIGKILL)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"model.gguf", "text.txt", "whole.gguf", unfinished.name}
    assert "goes on after" in succeed(*run).stderr
    assert contents(tmp_path / "q.gguf") == contents(tmp_path / "whole.gguf")
    assert not unfinished.exists()


def test_blocks_of_another_run_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = arguments(tmp_path, "q.irpa")
    with monkeypatch.context() as patched:
        interrupt_at(patched, "add", 3)
        call(*run)
    unfinished = tmp_path / "q.irpa.unfinished"
    message = "has the finished blocks of a run with another model, text, options or version"
    for changed in (
        [*run, "--block-size", "64"],
        [*run, "--method", "imatrix"],
        [*run, "--calibration-tokens", "128"],
    ):
        assert message in fail(2, *changed)
    text = tmp_path / "text.txt"
    before = text.read_text()
    text.write_text("the sky " + before)
    assert message in fail(2, *run)
    text.write_text(before)
    model = tmp_path / "model.gguf"
    shutil.copy(model, tmp_path / "copy.gguf")
    TinyModel(types=("F16",), blocks=BLOCKS, seed=1, **SMALL).write(model)
    assert message in fail(2, *run)
    shutil.copy(tmp_path / "copy.gguf", model)
    with monkeypatch.context() as patched:
        patched.setattr("subquant.calibration.finished_blocks.code_digest", lambda: "other")
        assert message in fail(2, *run)
    for name in ("block-1.irpa", "states-2.irpa", "progress.json"):
        file = unfinished / name
        data = file.read_bytes()
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :])
        assert f"{name}' is damaged; remove the folder to begin anew" in fail(1, *run)
        file.write_bytes(data)
    (unfinished / "mine.txt").write_text("")
    succeed(*run)
    assert [file.name for file in unfinished.iterdir()] == ["mine.txt"]


def test_two_runs_with_one_output(tmp_path: Path) -> None:
    folder = tmp_path / "q.irpa.unfinished"
    with (
        open_finished_blocks(folder, "key"),
        pytest.raises(UsageError, match="another run uses"),
        open_finished_blocks(folder, "key"),
    ):
        pass
    assert not folder.exists()
