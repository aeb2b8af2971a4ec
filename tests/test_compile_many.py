"""Batch compilation: the command, its reports, failures of single models, progress."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import subquant
from command_line import fail, succeed
from compile_many_runs import BAD, BY_PASSES, PROGRAM, files, invoke, statuses, write, write_onnx
from processes import SPARSE
from subquant.batch import tasks
from subquant.batch.manifest import NAME
from subquant.batch.models import Model
from subquant.batch.run import CompiledModel
from subquant.commands.compile_many import _Display
from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.keys import key_of_source
from subquant.core.reports import check_places
from subquant.errors import EnvironmentProblem, InputError, UsageError
from subquant.isolation.cancellation import CancellableWork
from subquant.isolation.command import CommandResult
from test_tflite import subtraction

pytestmark = pytest.mark.usefixtures("in_temporary_folder")


def test_one_failing_model_does_not_stop_the_others() -> None:
    write("a/x.mlir", "b/x.mlir")
    write("a/bad.mlir", text=BAD)
    Path("sub.tflite").write_bytes(subtraction())
    report = ("--json", "r.json", "--junit", "r.xml")
    arguments = ("a/*.mlir", "none.mlir", "sub.tflite", "b/x.mlir")
    result = invoke(*arguments, "-o", "out/", *BY_PASSES, "--jobs", "2", *report)
    assert result.exit_code == 1
    assert [
        re.sub(r"[\d,.]+ (bytes|s$)", r"N \1", line) for line in result.stderr.splitlines()
    ] == [
        "a/bad.mlir:2:3: error: 'foo.bar' op is of a dialect that neither MLIR nor IREE knows, and "
        "IREE's compiler would crash on it; lower it first",
        "wrote out/a/x.mlirbc (N bytes)",
        "error: cannot read 'none.mlir': No such file or directory",
        "wrote out/sub.mlirbc (N bytes)",
        "wrote out/b/x.mlirbc (N bytes)",
        "3 compiled, 2 failed in N s",
    ]
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["model", "status"], ["a/bad.mlir", "failed"], ["a/x.mlir", "compiled"],
        ["none.mlir", "failed"], ["sub.tflite", "compiled"], ["b/x.mlir", "compiled"],
    ]  # fmt: skip
    created = files()
    assert created == {
        f"{stem}.mlirbc": compile_to_bytes(Path(path), emit="mlirbc")
        for stem, path in (("a/x", "a/x.mlir"), ("b/x", "b/x.mlir"), ("sub", "sub.tflite"))
    }
    values = json.loads(Path("r.json").read_text())
    assert (values["version"], values["report"]) == (1, "compile")
    assert values["summary"] == {"compiled": 3, "up-to-date": 0, "failed": 2, "not-run": 0}
    bad, good, missing, *_ = values["results"]
    assert bad["message"].startswith("a/bad.mlir:2:3: error: 'foo.bar' op is of a dialect")
    assert bad["error"]["place"] == ["a/bad.mlir", 2, 3]
    assert (good["output"], good["size"]) == ("out/a/x.mlirbc", len(created["a/x.mlirbc"]))
    assert 0 < good["passes_seconds"] == good["seconds"]
    assert missing["error"]["class"] == "InputError"
    suite = ElementTree.parse("r.xml").find("testsuite")
    assert suite is not None
    assert [suite.get(name) for name in ("name", "tests", "failures")] == ["llvm-cpu", "5", "2"]
    failure = suite.find("testcase[@name='a/bad.mlir']/failure")
    assert failure is not None
    assert failure.get("type") == "UnsupportedError"


def test_executables_are_those_of_one_model_alone() -> None:
    """And the time of IREE's compiler is told from that of the passes."""
    write("x.mlir")
    (result,) = subquant.compile_many(["x.mlir"], "out", limits=subquant.Limits(parse_seconds=9))
    assert result.status == "compiled"
    assert result.output == Path("out/x.vmfb")
    assert result.output.read_bytes() == compile_to_bytes(Path("x.mlir"))
    assert result.is_cached or result.iree_seconds > 0 < result.passes_seconds


@pytest.mark.parametrize(
    ("cores", "variable", "set_to"),
    [(None, None, None), (1, None, "1"), (2, None, "2"), (12, None, None), (1, "7", None)],
)
def test_the_compilers_of_a_batch_share_the_cores(
    cores: int | None, variable: str | None, set_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user says how many threads they have, or IREE takes fewer by itself."""
    name = "IREE_COMPILER_TASK_COUNT"
    monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(name, variable)
    seen: list[dict[str, str]] = []

    def run_supervised(*_: object, variables: dict[str, str], **named: object) -> CommandResult:
        seen.append(variables)
        return CommandResult(0, b"", b"executable")

    monkeypatch.setattr(iree_driver, "run_supervised", run_supervised)
    with CancellableWork(cores).active():
        iree_driver.run_iree(b"", CompileOptions())
    assert seen == [{} if set_to is None else {name: set_to}]


def test_executables_do_not_depend_on_how_many_are_compiled() -> None:
    program, options = PROGRAM.format(n=1).encode(), CompileOptions()
    alone, key = compile_to_bytes(program, options), key_of_source(program, options)
    with CancellableWork(cores=1).active():
        assert compile_to_bytes(program, options, cache="") == alone
        assert key_of_source(program, options) == key


def test_the_clock_tells_steps_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(tasks.time, "perf_counter", lambda: now)
    clock = tasks.Clock()
    for step, seconds in (("parse", 1.0), ("pass canonicalize", 2.0), ("print", 4.0),
                          ("wait for the same compilation elsewhere", 8.0),
                          ("iree-compile", 16.0)):  # fmt: skip
        clock(step)
        now += seconds
    clock.stop()
    now += 32.0
    clock.stop()
    assert (clock.passes, clock.iree, clock.is_cached) == (7.0, 16.0, False)
    clock("cached")
    now += 64.0
    clock.stop()
    assert (clock.passes, clock.iree, clock.is_cached) == (7.0, 16.0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.mlir", "b.mlir"), "several models need a folder for the outputs"),
        (("a.mlir", "--resume"), "--resume needs a folder for the outputs; give it with -o"),
        (("*.mlir", "-o", "-"), "several models need a folder"),
        (("a.mlir", "--json", "r.json", "-o", "a.vmfb"), "'a.vmfb' is named like a file, and "),
        (("a.mlir", "b.mlir", "-o", "a.mlir"), "'a.mlir' is a file, and several models need"),
        (("a.mlir", "b.mlir", "-o", "out", "--weights", "m=w.gguf"), "--weights applies to one"),
        (("@empty.txt", "-o", "out"), "the list names no model"),
        (("none/*.mlir", "-o", "out"), "no file matches 'none/[*].mlir'"),
        (("a.mlir", "-o", "out/", "--jobs", "0"), "Invalid value for '--jobs'"),
        (("a.mlir", "-o", "out/", "--fuse-below-macs", "-1"), "must be 0 or more, got -1"),
    ],
)
def test_calls_that_make_no_sense(arguments: Sequence[str], message: str) -> None:
    write("a.mlir", "b.mlir")
    Path("empty.txt").write_text("# none\n")
    assert re.search(message, fail(2, "compile", *arguments))
    assert not Path("out").exists()


def test_one_path_and_no_jobs() -> None:
    write("a.mlir")
    (actual,) = subquant.compile_many(Path("a.mlir"), "out", emit="mlirbc")
    assert (actual.name, actual.status) == ("a.mlir", "compiled")
    with pytest.raises(UsageError, match="expected 1 or more jobs, got -1"):
        subquant.compile_many("*.mlir", "out", jobs=-1)


@pytest.mark.parametrize(
    ("option", "path", "message"),
    [
        ("--json", "none/r.json", "No such file or directory"),
        ("--junit", "a.mlir/r.xml", "Not a directory"),
        ("--json", ".", "Is a directory"),
    ],
)
def test_reports_that_cannot_be_written(option: str, path: str, message: str) -> None:
    """They are named before a run begins, and end none."""
    write("a.mlir")
    for command in (("compile", "a.mlir", "-o", "out/"), ("conformance", "--filter", "/abs/")):
        assert fail(1, *command, option, path) == f"error: cannot write '{path}': {message}\n"
    assert files() == {}
    check_places("new.json", "/dev/null", "/dev/null", None)
    with pytest.raises(UsageError, match=r"two reports would be written to './new'"):
        check_places("new", "./new")


def test_a_run_that_did_not_begin_has_no_table() -> None:
    pytest.importorskip("distributed")
    write("a.mlir", "b.mlir")
    options = ("-o", "out", "--cluster", "nowhere", "--json", "r.json")
    message = "error: 'nowhere' is no address of a Dask scheduler"
    assert fail(2, "compile", "*.mlir", *options).startswith(message)
    assert json.loads(Path("r.json").read_text())["summary"]["not-run"] == 2


def test_one_model_goes_to_a_file_unless_the_output_is_a_folder() -> None:
    write("a.mlir")
    succeed("compile", "a.mlir", "-o", "out", *BY_PASSES)
    assert Path("out").is_file()
    succeed("compile", "a.mlir", "-o", "there/", *BY_PASSES)
    assert [*files("there")] == ["a.mlirbc"]
    succeed("compile", "@-", "-o", "there", *BY_PASSES, stdin=b"a.mlir\0")


def test_constants_go_to_a_folder_of_archives() -> None:
    weights = np.arange(512, dtype=np.float32)
    constant = f"  %w = arith.constant dense<{weights.tolist()}> : tensor<512xf32>\n"
    text = PROGRAM.format(n=512).replace("%x, %x", "%x, %w").replace("  %y", f"{constant}  %y")
    write("a/x.mlir", text=text)
    arguments = ("a/x.mlir", "-o", "out/", "--parameters", "constants/", *BY_PASSES)
    assert statuses(*arguments) == {"a/x.mlir": "compiled"}
    compile_to_bytes(Path("a/x.mlir"), emit="mlirbc", parameters="alone.irpa")
    assert files("constants") == {"a/x.irpa": Path("alone.irpa").read_bytes()}
    assert statuses(*arguments, "--resume") == {"a/x.mlir": "up-to-date"}
    Path("constants/a/x.irpa").write_bytes(b"IRPA")
    assert statuses(*arguments, "--resume") == {"a/x.mlir": "compiled"}
    arguments = ("a/x.mlir", "-o", "out/", "--parameters", "elsewhere", *BY_PASSES, "--resume")
    assert statuses(*arguments) == {"a/x.mlir": "compiled"}


def test_a_crash_leaves_a_reproducer_beside_the_output() -> None:
    write("m/crash it.mlir", text=SPARSE)
    result = invoke("m/*", "-o", "out", "--jobs", "1")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == (
        "m/crash it.mlir: error: upstream's MLIR crashed while it parsed the module (SIGSEGV); "
        "replay with: subquant opt 'out/m/crash it.reproducer.mlir'"
    )
    assert files() == {"m/crash it.reproducer.mlir": SPARSE.encode()}
    write(f"{'x' * 250}.mlir", "y.mlir", text=SPARSE)
    Path("full/y.reproducer.mlir").mkdir(parents=True)  # where none can be written
    results = subquant.compile_many("*.mlir", "full", jobs=1)
    assert ["crashed" in str(each.error) for each in results] == [True, True]
    assert [*files("full")] == [f"{'x' * 200}.reproducer.mlir"]


def test_what_replays_an_error_is_named_as_the_caller_does() -> None:
    """In the note and in the reproducer, whose first line says it too."""
    write("m/x.mlir")
    (result,) = subquant.compile_many(["m/x.mlir"], "out", iree_flags=("--iree-opt-level=O9",))
    assert result.error is not None
    (note,) = result.error.notes
    assert note.startswith("replay with: iree-compile out/m/x.reproducer.mlir -o /dev/null ")
    first, second, *_ = Path("out/m/x.reproducer.mlir").read_text().splitlines()
    assert first == f"// {note.removeprefix('replay with: ')}"
    assert not second.startswith("//")


def test_an_error_is_not_lost_with_its_reproducer() -> None:
    write("m/x.mlir", text=SPARSE)
    Path("out/m/x.reproducer.mlir").mkdir(parents=True)
    (result,) = subquant.compile_many(["m/x.mlir"], "out")
    assert result.error is not None
    assert "upstream's MLIR crashed while it parsed the module" in result.error.message
    assert result.error.notes == ("'out/m/x.reproducer.mlir' cannot be written: Is a directory",)


def test_a_bug_in_one_model_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.mlir", "b.mlir")

    def compile_badly(source: tasks.Input, *arguments: object, **named: object) -> bytes:
        if source.file == "a.mlir":
            raise KeyError("missing")
        return b"whole"

    monkeypatch.setattr(tasks, "compile_to_bytes", compile_badly)
    first, second = subquant.compile_many(["a.mlir", "b.mlir"], "out")
    assert str(first.error).startswith(
        "a.mlir: error: subquant has a bug here, which is worth a report: KeyError: 'missing'\n"
        "note: Traceback"
    )
    assert (second.status, files()) == ("compiled", {"b.vmfb": b"whole"})


def test_what_takes_longest_begins_first() -> None:
    """Larger files start first; results are reported in the order of the input."""
    write("a.mlir", "b.mlir", "c.mlir", "d.mlir")
    for name, size in (("b", 1 << 18), ("c", 1 << 22), ("d", 1 << 13)):
        with Path(f"{name}.mlir").open("a") as file:
            file.write("// large\n" * (size // 9))
    ended: list[str] = []
    arguments = ["a.mlir", "none.mlir", "b.mlir", "c.mlir", "d.mlir"]
    results = subquant.compile_many(
        arguments, "out", emit="mlirbc", jobs=1, on_result=lambda result: ended.append(result.name)
    )
    assert [name for name in ended if name != "none.mlir"] == [
        "c.mlir", "b.mlir", "a.mlir", "d.mlir",
    ]  # fmt: skip
    assert [result.name for result in results] == arguments


def test_what_cannot_be_written_is_the_error_of_its_model() -> None:
    write("a/x.mlir", "b.mlir")
    Path("out").mkdir()
    Path("out/a").write_text("in the way")
    first, second = subquant.compile_many(["a/x.mlir", "b.mlir"], "out", emit="mlirbc")
    assert str(first.error) == "a/x.mlir: error: cannot write 'out/a': File exists"
    assert second.status == "compiled"
    Path("full").mkdir()
    Path("full/b.mlirbc").symlink_to("/dev/full")
    (third,) = subquant.compile_many(["b.mlir"], "full", emit="mlirbc", resume=True)
    expected = "b.mlir: error: cannot write 'full/b.mlirbc': No space left on device"
    assert str(third.error) == expected
    assert not Path("full", NAME).exists()


def test_another_cpu_than_the_callers_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="has another CPU than the client"):
        tasks.compile_model({"options": {}, "machine": ["other"]}, [], lambda step: None)


def test_files_beside_an_onnx_model_go_with_it() -> None:
    Path("m").mkdir()
    write_onnx("m/whole.onnx")
    write_onnx("m/parts.onnx", external="parts.bin")
    arguments = ("m/*.onnx", "-o", "out", *BY_PASSES, "--resume")
    assert {*statuses(*arguments).values()} == {"compiled"}
    assert files()["m/parts.mlirbc"] == files()["m/whole.mlirbc"]
    assert {*statuses(*arguments).values()} == {"up-to-date"}
    data = bytearray(Path("m/parts.bin").read_bytes())
    data[-1] ^= 1
    Path("m/parts.bin").write_bytes(data)
    assert statuses(*arguments) == {"m/parts.onnx": "compiled", "m/whole.onnx": "up-to-date"}
    assert files()["m/parts.mlirbc"] != files()["m/whole.mlirbc"]
    Path("m/parts.bin").unlink()
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "m/parts.onnx: error: cannot read 'm/parts.bin': No such file" in result.stderr


def test_messages_are_in_the_order_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    models = [Model(name, name, name) for name in "abcd"]
    display = _Display(models)
    display._is_terminal = False
    message = []
    with display.shown():
        for name in "dbac":
            error = InputError("is wrong") if name == "b" else None
            output = Path("c\n") if name == "c" else Path(name)
            result = CompiledModel(name, output, "failed" if error else "compiled", error=error)
            display.add(models["abcd".index(name)], result)
            message.append(capsys.readouterr().err)
    text_lines = {name: f"wrote {name} (0 bytes)\n" for name in "acd"} | {"b": "error: is wrong\n"}
    text_lines["c"] = "wrote c\\n (0 bytes)\n"
    assert message == ["", "", text_lines["a"] + text_lines["b"], text_lines["c"] + text_lines["d"]]


def test_a_terminal_shows_how_far_it_is() -> None:
    write("a.mlir", "b.mlir")
    write("c.mlir", text=BAD)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "subquant", "compile", "*.mlir", "-o", "out", *BY_PASSES]
    with subprocess.Popen(
        [*command, "--jobs", "1"], stdout=subprocess.PIPE, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:  # Linux's end of a terminal
                break
        assert process.stdout is not None
        table = process.stdout.read()
        assert process.wait() == 1
    os.close(ours)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.decode())
    assert "2/3" in text
    assert "1 running" in text
    assert "c.mlir:2:3: error: 'foo.bar' op" in text
    assert "wrote" not in text
    assert len(table.splitlines()) == 4
