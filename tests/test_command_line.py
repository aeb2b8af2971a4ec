"""The command line: exit status, where output goes, files whole or not at all, reproducers."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from subquant.cli import main

CAST = """
!q = !quant.uniform<i8:f32:{1:4}, {{0.5:1, 2.0:-3}}>
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8x!q> {
  %q = quant.qcast %x : tensor<2x8xf32> to tensor<2x8x!q>
  return %q : tensor<2x8x!q>
}
"""
BAD = CAST.replace("2x8", "2x9")
# Our passes take it; IREE does not compile a splat of a dynamic shape.
REFUSED = """
func.func @main(%n: index) -> tensor<?xf32> {
  %c = arith.constant 1.0 : f32
  %y = tensor.splat %c[%n] : tensor<?xf32>
  return %y : tensor<?xf32>
}
"""
UNKNOWN = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = "nobody.knows"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def call(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin, catch_exceptions=False)


@pytest.fixture
def model(in_temporary_folder: Path) -> str:
    Path("cast.mlir").write_text(CAST)
    return "cast.mlir"


def test_compile_and_run(model: str) -> None:
    compiled = call("compile", model)
    assert compiled.exit_code == 0
    assert compiled.stdout == ""
    assert Path("cast.vmfb").is_file()
    result = call(
        "run", "cast.vmfb", "--input", "2x8xf32=0.25 0.75 -1 nan 0.25 1 -1 inf " + "1 " * 8
    )
    assert result.exit_code == 0
    assert result.stdout == "result[0]: 2x8xi8=[2 2 -1 0 -3 -2 -4 127][3 3 3 3 -2 -2 -2 -2]\n"


def test_exec_with_reals_in_and_out(model: str) -> None:
    result = call("exec", model, "--quantized-io", "--input", "2x8xf32=3")
    assert result.stdout == "result[0]: 2x8xf32=[3 3 3 3 2 2 2 2][3 3 3 3 2 2 2 2]\n"


def test_arrays_from_and_to_files(model: str) -> None:
    np.save("x.npy", np.full((2, 8), 3, np.float32))
    assert call("exec", model, "--input", "@x.npy", "--output", "@y.npy").stdout == ""
    got = np.load("y.npy")
    assert got.dtype == np.int8
    assert got.tolist() == [[7, 7, 7, 7, -2, -2, -2, -2]] * 2
    same = call("exec", model, "--input", "@x.npy", "--expect", "@y.npy")
    assert same.exit_code == 0
    assert "1 of 1 results are as expected" in same.stderr
    np.save("y.npy", got + np.int8(1))
    other = call("exec", model, "--input", "@x.npy", "--expect", "@y.npy")
    assert other.exit_code == 1
    assert "16 of 16 elements differ, the first at [0, 0]: expected 8, got 7" in other.stderr


def test_json(model: str) -> None:
    report = json.loads(call("exec", model, "--json", "--input", "2x8xf32=3").stdout)
    assert report["results"][0]["dtype"] == "int8"
    assert report["results"][0]["data"][0] == [7, 7, 7, 7, -2, -2, -2, -2]


def test_emit_stops_before_iree(model: str) -> None:
    text = call("compile", model, "--emit", "mlir").stdout
    assert "linalg.generic" in text
    assert "quant.qcast" not in text
    assert call("compile", model, "--emit", "mlirbc", "-o", "out.mlirbc").exit_code == 0
    assert Path("out.mlirbc").read_bytes().startswith(b"ML\xefR")


def test_standard_input(in_temporary_folder: Path) -> None:
    result = call("exec", "-", "--input", "2x8xf32=3", stdin=CAST)
    assert result.exit_code == 0
    wrong = call("compile", "-", stdin=BAD)
    assert wrong.stderr.startswith("<stdin>:4:8: error: tensor dimension size 9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "2x7xf32=1"], "argument 0 of 'main' must have the shape 2x8, got 2x7"),
        (["--input", "2x8xi8=1"], "argument 0 of 'main' must be of dtype float32 (f32), got int8"),
        ([], "function 'main' takes 1 arguments, got 0"),
        (["--input", "@none.npy"], "cannot read 'none.npy': No such file or directory"),
    ],
)
def test_wrong_arguments_exit_with_1(model: str, arguments: list[str], message: str) -> None:
    result = call("exec", model, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "nonsense"], "expected @file.npy or a literal"),
        (["--input", "2x8xf32=1", "--function", "other"], "no function is named 'other'"),
        (["--input", "2x8xf32=1", "--output", "y.npy"], "expected @file.npy or - for --output"),
        (["--target", "tpu"], "Invalid value for '--target'"),
        (["--parameters", "x"], "expected scope=file.irpa"),
    ],
)
def test_wrong_calls_exit_with_2(model: str, arguments: list[str], message: str) -> None:
    result = call("exec", model, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_wrong_input_leaves_no_file(in_temporary_folder: Path) -> None:
    Path("bad.mlir").write_text(BAD)
    result = call("compile", "bad.mlir", "-o", "out.vmfb")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "bad.mlir:4:8: error: tensor dimension size 9 at axis 1 must be divisible"
    )
    assert sorted(p.name for p in Path().iterdir()) == ["bad.mlir"]


def test_an_output_that_cannot_be_written(model: str) -> None:
    result = call("compile", model, "-o", "no/such/folder/out.vmfb")
    assert result.exit_code == 1
    assert "cannot write 'no/such/folder/out.vmfb'" in result.stderr
    assert sorted(p.name for p in Path().iterdir()) == ["cast.mlir"]


def test_iree_failure_leaves_a_reproducer_that_fails_the_same(in_temporary_folder: Path) -> None:
    Path("refused.mlir").write_text(REFUSED)
    result = call("compile", "refused.mlir")
    assert result.exit_code == 1
    assert "refused.mlir:4:8: error: IREE refused the module: " in result.stderr
    assert sorted(p.name for p in Path().iterdir()) == ["refused.mlir", "refused.reproducer.mlir"]
    line = next(line for line in result.stderr.splitlines() if "replay with: " in line)
    command = shlex.split(line.partition("replay with: ")[2])
    tool = Path(sys.executable).parent / command[0]
    replay = subprocess.run([tool, *command[1:]], capture_output=True, check=False)
    assert replay.returncode != 0
    assert b"tensor.splat" in replay.stderr


def test_an_operation_that_iree_would_crash_on(in_temporary_folder: Path) -> None:
    Path("unknown.mlir").write_text(UNKNOWN)
    result = call("compile", "unknown.mlir")
    assert result.exit_code == 1
    assert "unknown.mlir:3:8: error: 'nobody.knows' op is of a dialect that" in result.stderr


def test_a_crash_of_the_compiler_is_an_error(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Path("crash")
    crash.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crash.chmod(0o755)
    monkeypatch.setattr("subquant.compiler._compiler_path", lambda: str(crash.resolve()))
    monkeypatch.delenv("SUBQUANT_CACHE")
    result = call("compile", model)
    assert result.exit_code == 1
    assert "IREE's compiler crashed (signal 11)" in result.stderr
    assert Path("cast.reproducer.mlir").is_file()
    assert not Path("cast.vmfb").exists()


def test_foreign_files_are_refused(in_temporary_folder: Path) -> None:
    np.save("x.npy", np.zeros(4))
    Path("empty.vmfb").write_bytes(b"")
    for name in ("x.npy", "empty.vmfb"):
        result = call("run", name)
        assert result.exit_code == 1
        assert f"'{name}' is no IREE executable" in result.stderr


def test_an_executable_for_another_device(model: str, vulkan: object) -> None:
    call("compile", model, "-o", "cast.vmfb")
    result = call("run", "cast.vmfb", "--device", "vulkan", "--input", "2x8xf32=1")
    assert result.exit_code == 1
    assert "was compiled for llvm-cpu" in result.stderr


def test_opt(model: str) -> None:
    text = call("opt", model, "--passes", "lower-quant-casts{rounding=toward-zero},canonicalize")
    assert text.exit_code == 0
    assert "arith.fptosi" in text.stdout
    unknown = call("opt", model, "--passes", "no-such-pass")
    assert unknown.exit_code == 2
    assert "no pass is named 'no-such-pass'" in unknown.stderr


def test_inspect(model: str) -> None:
    call("compile", model)
    assert "%q" in call("inspect", model).stdout
    assert call("inspect", model, "--json").stdout.startswith("[")
    assert "sub-channel i8:f32 {1:4}" in call("inspect", "cast.vmfb").stdout
    assert call("inspect", model, "--scales", "q").exit_code == 0
    assert call("inspect", model, "--scales", "q", "--picture", "q.svg").exit_code == 0
    assert Path("q.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("command", ["compile", "run", "exec", "opt", "inspect"])
def test_help_shows_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"subquant {command} " in result.stdout.partition("Options:")[0].partition("\n")[2]


def test_as_a_process_without_a_traceback(in_temporary_folder: Path) -> None:
    Path("bad.mlir").write_text(BAD)
    result = subprocess.run(
        [sys.executable, "-m", "subquant", "compile", "bad.mlir"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "\x1b[" not in result.stderr  # no colour where there is no terminal
