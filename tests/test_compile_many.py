"""Batch compilation: names, reports, up-to-date outputs, interrupted runs."""

from __future__ import annotations

import errno
import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import subquant
from onnx_models import model, node
from processes import descendants_of, is_alive, wait_until
from subquant.batch import manifest as manifests
from subquant.batch import tasks
from subquant.batch.manifest import NAME, Manifest, Record
from subquant.batch.models import Model, find_models, name_outputs
from subquant.batch.run import CompiledModel
from subquant.cli import main
from subquant.commands.compile_many import _Display
from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.digests import digest_of
from subquant.compiler.keys import key_of_source
from subquant.core.reports import check_places
from subquant.errors import EnvironmentProblem, InputError, UsageError
from subquant.isolation.cancellation import CancellableWork
from subquant.isolation.command import CommandResult
from test_tflite import subtraction

PROGRAM = """func.func @main(%x: tensor<{n}xf32>) -> tensor<{n}xf32> {{
  %y = arith.addf %x, %x : tensor<{n}xf32>
  return %y : tensor<{n}xf32>
}}
"""
BAD = 'func.func @main() {\n  "foo.bar"() : () -> ()\n  return\n}\n'
CRASHES = "#C = #sparse_tensor.encoding<{}>\nfunc.func private @f(tensor<4x4xf32, #C>)\n"
BY_PASSES = ("--emit", "mlirbc")  # without IREE, which takes longer


@pytest.fixture(autouse=True)
def here(in_temporary_folder: Path) -> Path:
    """Outputs are named from the current folder."""
    return in_temporary_folder


def write(*paths: str, text: str | None = None) -> None:
    """Write a program to each path, each another one."""
    for number, path in enumerate(paths, 1):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(PROGRAM.format(n=number) if text is None else text)


def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["compile", *arguments], input=stdin)


def files(folder: str = "out") -> dict[str, bytes]:
    """The outputs of a folder, by their paths in it."""
    actual = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*")}
    return {name: path.read_bytes() for name, path in actual.items()
            if path.is_file() and name != NAME}  # fmt: skip


def statuses(*arguments: str) -> dict[str, str]:
    """Return the report's entry of each model."""
    result = invoke(*arguments, "--json", "report.json")
    assert result.exit_code in (0, 1), result.output
    report = json.loads(Path("report.json").read_text())
    return {each["name"]: each["status"] for each in report["results"]}


# -- which models there are -----------------------------------------------------------------------


def test_patterns_lists_and_paths_are_models_once_and_in_order(here: Path) -> None:
    write("b.mlir", "a.mlir", "m/deep/c.mlir", "m/d.tflite", "x[1].mlir", "@odd.mlir", ".h.mlir")
    assert find_models(["*.mlir", "a.mlir"], "out") == [
        "@odd.mlir",
        "a.mlir",
        "b.mlir",
        "x[1].mlir",
    ]
    assert find_models(["b.mlir", "m/**/*.*", "./b.mlir"], "out") == [
        "b.mlir", "m/d.tflite", "m/deep/c.mlir",
    ]  # fmt: skip
    assert find_models(["x[1].mlir", "@odd.mlir"], "out") == ["x[1].mlir", "@odd.mlir"]
    Path("list.txt").write_text("# these\n\n  m/d.tflite \nno such.mlir\n*.mlir\r\n")
    assert find_models(["@list.txt"], "out") == [
        "m/d.tflite", "no such.mlir", "@odd.mlir", "a.mlir", "b.mlir", "x[1].mlir",
    ]  # fmt: skip
    Path("list.txt").write_bytes(b"\xef\xbb\xbfm/d.tflite\r\n")
    assert find_models(["@list.txt"], "out") == ["m/d.tflite"]
    by_null = b"# a.mlir\0 b .mlir\0\xff.mlir\0"
    assert find_models(["@-"], "out", lambda: by_null) == [
        "# a.mlir", " b .mlir", os.fsdecode(b"\xff.mlir"),
    ]  # fmt: skip


def test_patterns_find_what_glob_does(here: Path) -> None:
    write("a.mlir", "x/b.mlir", "x/y/c.mlir", "x/[z]/d.mlir", ".h/e.mlir", "x/.i.mlir", "w/f.txt")
    Path("linked").symlink_to("x/y")
    for pattern in ("**", "**/*.mlir", "./**/*.mlir", "x/**/c.mlir", "x/**", "**/y/**/*.*",
                    "?/**/*", ".h/**/*.mlir", "**/[[]z]/*", f"{Path.cwd()}/**/*.mlir",
                    "x//**//*.mlir"):  # fmt: skip
        expected = {each for each in glob.glob(pattern, recursive=True) if os.path.isfile(each)}
        actual = {*find_models([pattern], "out")}
        assert {*map(os.path.abspath, actual)} == {*map(os.path.abspath, expected)}, pattern
    assert "linked/c.mlir" in find_models(["**/c.mlir"], "out")


def test_links_to_folders_above_are_no_end(here: Path) -> None:
    """Each further level of them would be twice as many."""
    write("m/a.mlir")
    Path("m/up").symlink_to("..")
    Path("m/here").symlink_to(".")
    assert find_models(["**/*.mlir"], "out") == ["m/a.mlir"]


def test_outputs_are_not_matched(here: Path) -> None:
    write("a.mlir", "out/a.mlir", "out/deep/b.mlir", "outer/c.mlir")
    assert find_models(["**/*.mlir"], "out/") == ["a.mlir", "outer/c.mlir"]
    assert find_models(["out/a.mlir"], "out") == ["out/a.mlir"]  # which is said, not matched
    assert len(find_models(["**/*.mlir"], ".")) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no*.mlir"], "no file matches 'no[*].mlir'"),
        (["m"], "'m' is a folder; give a pattern, such as 'm/[*][*]/[*].mlir'"),
        (["a.mlir", "-"], "standard input is one model; give it alone"),
    ],
)
def test_what_is_no_model(words: Sequence[str], message: str) -> None:
    write("m/a.mlir")
    with pytest.raises(UsageError, match=message):
        find_models(words, "out")


def test_a_list_in_a_list_is_refused(here: Path) -> None:
    Path("list.txt").write_text("@other.txt\n")
    with pytest.raises(InputError, match=r"'list\.txt' names another list, '@other\.txt'"):
        find_models(["@list.txt"], "out")
    with pytest.raises(InputError, match=r"cannot read 'none\.txt': No such file"):
        find_models(["@none.txt"], "out")


def test_outputs_mirror_the_paths_of_models(here: Path) -> None:
    actual = name_outputs(["a/x.mlir", "b/x.mlir", "./y.b.tflite"], "out", "vmfb")
    assert [each.output for each in actual] == ["a/x.vmfb", "b/x.vmfb", "y.b.vmfb"]
    actual = name_outputs([f"{here}/a/x.mlir", "a/b/../y.onnx"], "out", "mlir", "a")
    assert [each.output for each in actual] == ["x.mlir", "y.mlir"]


def test_models_outside_of_the_current_folder(here: Path) -> None:
    """Outputs are named from the folder that all models share."""
    result = name_outputs(["../e/a/x.mlir", "../e/b/c/y.mlir"], "out", "vmfb")
    assert [each.output for each in result] == ["a/x.vmfb", "b/c/y.vmfb"]
    assert [each.output for each in name_outputs(["../e/x.mlir"], "out", "vmfb")] == ["x.vmfb"]
    result = name_outputs(["x.mlir", "../e/x.mlir"], "out", "vmfb")
    assert [each.output for each in result] == [f"{here.name}/x.vmfb", "e/x.vmfb"]


@pytest.mark.parametrize(
    ("paths", "base", "message"),
    [
        (
            ["a/x.mlir", "a/x.onnx"],
            None,
            "'a/x.mlir' and 'a/x.onnx' would both become 'out/a/x.mlirbc'; rename one",
        ),
        (["b/x.mlir"], "a", "'b/x.mlir' does not lie in the folder 'a'"),
        (["out/x.mlirbc"], "out", "the output 'out/x.mlirbc' is a model; give another folder"),
    ],
)
def test_names_that_cannot_be(paths: Sequence[str], base: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        name_outputs(paths, "out", "mlirbc", base)


# -- the command ----------------------------------------------------------------------------------


def test_one_failing_model_does_not_stop_the_others(here: Path) -> None:
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
    rows = [line.split()[:2] for line in result.stdout.splitlines()]
    assert rows == [
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


def test_executables_are_those_of_one_model_alone(here: Path) -> None:
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

    def run_supervised(
        *arguments: object, variables: dict[str, str], **named: object
    ) -> CommandResult:
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
        (
            ("a.mlir", "--json", "r.json", "-o", "a.vmfb"),
            "'a.vmfb' is named like a file, and several",
        ),
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
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert re.search(message, result.stderr)
    assert not Path("out").exists()


def test_one_path_and_no_jobs(here: Path) -> None:
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
def test_reports_that_cannot_be_written_are_no_end_of_a_run(
    option: str, path: str, message: str, here: Path
) -> None:
    """They are said at its beginning."""
    write("a.mlir")
    for command in (("compile", "a.mlir", "-o", "out/"), ("conformance", "--filter", "/abs/")):
        result = CliRunner().invoke(main, [*command, option, path])
        assert result.exit_code == 1
        assert result.stderr == f"error: cannot write '{path}': {message}\n"
    assert files() == {}
    check_places("new.json", "/dev/null", "/dev/null", None)
    with pytest.raises(UsageError, match=r"two reports would be written to './new'"):
        check_places("new", "./new")


def test_a_run_that_did_not_begin_has_no_table(here: Path) -> None:
    pytest.importorskip("distributed")
    write("a.mlir", "b.mlir")
    result = invoke("*.mlir", "-o", "out", "--cluster", "nowhere", "--json", "r.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: 'nowhere' is no address of a Dask scheduler")
    assert json.loads(Path("r.json").read_text())["summary"]["not-run"] == 2


def test_one_model_goes_to_a_file_unless_the_output_is_a_folder(here: Path) -> None:
    write("a.mlir")
    assert invoke("a.mlir", "-o", "out", *BY_PASSES).exit_code == 0
    assert Path("out").is_file()
    assert invoke("a.mlir", "-o", "there/", *BY_PASSES).exit_code == 0
    assert [*files("there")] == ["a.mlirbc"]
    result = invoke("@-", "-o", "there", *BY_PASSES, stdin=b"a.mlir\0")
    assert result.exit_code == 0, result.output


def test_constants_go_to_a_folder_of_archives(here: Path) -> None:
    weights = np.arange(512, dtype=np.float32)
    text = (
        PROGRAM.format(n=512)
        .replace("%x, %x", "%x, %w")
        .replace("  %y", f"  %w = arith.constant dense<{weights.tolist()}> : tensor<512xf32>\n  %y")
    )
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


def test_a_crash_leaves_a_reproducer_beside_the_output(here: Path) -> None:
    write("m/crash it.mlir", text=CRASHES)
    result = invoke("m/*", "-o", "out", "--jobs", "1")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == (
        "m/crash it.mlir: error: upstream's MLIR crashed while it parsed the module (SIGSEGV); "
        "replay with: subquant opt 'out/m/crash it.reproducer.mlir'"
    )
    assert files() == {"m/crash it.reproducer.mlir": CRASHES.encode()}
    write(f"{'x' * 250}.mlir", "y.mlir", text=CRASHES)
    Path("full/y.reproducer.mlir").mkdir(parents=True)  # where none can be written
    results = subquant.compile_many("*.mlir", "full", jobs=1)
    assert ["crashed" in str(each.error) for each in results] == [True, True]
    assert [*files("full")] == [f"{'x' * 200}.reproducer.mlir"]


def test_what_replays_an_error_is_named_as_the_caller_does(here: Path) -> None:
    """In the note and in the reproducer, whose first line says it too."""
    write("m/x.mlir")
    (result,) = subquant.compile_many(["m/x.mlir"], "out", iree_flags=("--no-such-flag",))
    assert result.error is not None
    (note,) = result.error.notes
    assert note.startswith("replay with: iree-compile out/m/x.reproducer.mlir -o /dev/null ")
    first, second, *_ = Path("out/m/x.reproducer.mlir").read_text().splitlines()
    assert first == f"// {note.removeprefix('replay with: ')}"
    assert not second.startswith("//")


def test_an_error_is_not_lost_with_its_reproducer(here: Path) -> None:
    write("m/x.mlir", text=CRASHES)
    Path("out/m/x.reproducer.mlir").mkdir(parents=True)
    (result,) = subquant.compile_many(["m/x.mlir"], "out")
    assert result.error is not None
    assert "upstream's MLIR crashed while it parsed the module" in result.error.message
    assert result.error.notes == ("'out/m/x.reproducer.mlir' cannot be written: Is a directory",)


def test_a_bug_in_one_model_is_its_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_takes_longest_begins_first(here: Path) -> None:
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


def test_what_cannot_be_written_is_the_error_of_its_model(here: Path) -> None:
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


def test_another_cpu_than_the_callers_is_refused(here: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="has another CPU than the client"):
        tasks.compile_model({"options": {}, "machine": ["other"]}, [], lambda step: None)


# -- ONNX -----------------------------------------------------------------------------------------


def write_onnx(path: str, *, external: str | None = None) -> None:
    """A model that adds a weight, of a file of its own if that has a name."""
    weight = np.arange(8, dtype=np.float32)
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": ("FLOAT", [8])}, {"y": ("FLOAT", [8])},
                  {"w": weight})  # fmt: skip
    if external is None:
        Path(path).write_bytes(proto.SerializeToString())
    else:
        onnx.save(proto, path, save_as_external_data=True, location=external, size_threshold=0)


def test_files_beside_an_onnx_model_go_with_it(here: Path) -> None:
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


# -- up-to-date outputs ---------------------------------------------------------------------------


def test_only_what_is_not_up_to_date_is_made(here: Path) -> None:
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


def test_what_is_up_to_date_is_said_at_once(here: Path) -> None:
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


def test_other_versions_are_not_up_to_date(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.mlir")
    (first,) = subquant.compile_many(["a.mlir"], "out", emit="mlirbc", resume=True)
    (second,) = subquant.compile_many(["a.mlir"], "out", emit="mlirbc", resume=True)
    assert (first.status, second.status) == ("compiled", "up-to-date")
    assert second.passes_seconds == first.passes_seconds
    monkeypatch.setattr("subquant.compiler.keys.code_digest", lambda memo=None: "other code")
    (third,) = subquant.compile_many(["a.mlir"], "out", emit="mlirbc", resume=True)
    assert third.status == "compiled"


def test_a_manifest_survives_what_is_cut_or_strange(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    other = Record("y", "key", {"y": (4, "")})
    manifest.add(other)
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
def test_a_manifest_that_cannot_be_written_is_named(here: Path) -> None:
    manifest = Manifest(".")
    Path(NAME).symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device: '{NAME}'"):
        manifest.add(Record("x", "key", {}))


# -- how it looks ---------------------------------------------------------------------------------


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


def test_a_terminal_shows_how_far_it_is(here: Path) -> None:
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


# -- ends -----------------------------------------------------------------------------------------

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
def test_what_is_done_stays_done(here: Path, number: int) -> None:
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
