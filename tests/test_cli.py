"""The command line in depth: each option and each failure, with a line or two.

A call must exit with the expected status, print errors to standard error only, and write files
atomically.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

from subquant import __version__
from subquant.cli import COMMANDS, main
from subquant.compiler.cache import Cache
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import NAMED_PIPELINES
from subquant.core.versions import PINNED_VERSIONS
from subquant.transforms import PASSES

MODEL = """
!q = !quant.uniform<i8:f32, 0.5:1>
!u = !quant.uniform<u4<1:14>:f32:{0:2}, {1.0:2, 2.0:8}>
func.func @main(%x: tensor<4xf32>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  return %q : tensor<4x!q>
}
func.func @back(%q: tensor<4x!u>) -> tensor<4xf32> {
  %x = quant.dcast %q : tensor<4x!u> to tensor<4xf32>
  return %x : tensor<4xf32>
}
func.func @two(%a: i32, %b: i4, %h: bf16) -> (i32, i4, bf16) {
  %w = arith.extsi %b : i4 to i32
  %s = arith.addi %a, %w : i32
  return %s, %b, %h : i32, i4, bf16
}
func.func @divide(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %z = arith.divf %x, %y : tensor<2xf32>
  return %z : tensor<2xf32>
}
func.func @columns(%x: tensor<?x!u>) -> tensor<?xf32> {
  %y = quant.dcast %x : tensor<?x!u> to tensor<?xf32>
  return %y : tensor<?xf32>
}
func.func @nothing() {
  return
}
"""
QUANTIZED_I8 = "result[0]: 4xi8=3 5 7 127\n"
WRONG = "func.func private @f(tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)\n"
# Our passes accept a scalar tangent outside of loops, which IREE's virtual machine lacks.
SMALL = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n"
TANGENT = "func.func @main(%x: f32) -> f32 {\n  %r = math.tan %x : f32\n  return %r : f32\n}\n"


def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """Run the command line in this process; unhandled exceptions are raised."""
    return CliRunner(catch_exceptions=False).invoke(main, list(arguments), input=stdin)


def succeed(*arguments: str, stdin: str | bytes | None = None) -> Result:
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def fail(status: int, *arguments: str, stdin: str | bytes | None = None) -> str:
    """Run a call that must fail with `status`; return its standard error."""
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture
def folder(in_temporary_folder: Path) -> Path:
    Path("model.mlir").write_text(MODEL)
    return in_temporary_folder


@pytest.fixture(scope="session")
def executable_bytes() -> bytes:
    result = CliRunner().invoke(main, ["compile", "-", "-o", "-"], input=MODEL)
    assert result.exit_code == 0, result.stderr
    return result.stdout_bytes


@pytest.fixture
def vmfb(folder: Path, executable_bytes: bytes) -> str:
    Path("model.vmfb").write_bytes(executable_bytes)
    return "model.vmfb"


NO_EXECUTABLE = "; expected the output of 'subquant compile'"


def command_of(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


# -- earlier names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("--joined-products", "5"), {"fuse_below_macs": 5}),
        (("--fuse-below-macs", "6"), {"fuse_below_macs": 6}),
        (("--extent", "n=2", "--dim", "m=3"), {"dims": ("n=2", "m=3")}),
    ],
)
def test_earlier_option_names_are_accepted_and_hidden(
    old: tuple[str, ...], new: dict[str, object]
) -> None:
    context = command_of("compile").make_context(
        "compile", ["x.mlir", *old], **main.context_settings
    )
    assert context.params | new == context.params
    text = succeed("compile", "--help").stdout
    assert "--fuse-below-macs N" in text
    assert "--dim NAME=N" in text
    assert "--joined-products" not in text
    assert "--extent" not in text


def test_earlier_names_of_compile_options_are_accepted() -> None:
    options = CompileOptions(joined_products=5, extents=("n=2",))
    assert options == CompileOptions(fuse_below_macs=5, dims=("n=2",))
    assert (options.joined_products, options.extents) == (5, ("n=2",))
    assert replace(options, joined_products=7).fuse_below_macs == 7
    assert "joined_products" not in asdict(options)


# -- help and versions ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_has_an_example_and_every_option(command: str, option: str) -> None:
    shown = succeed(command, option).stdout
    assert f"\n  subquant {command} " in shown
    for parameter in command_of(command).params:
        if parameter.param_type_name == "option":
            assert set(parameter.opts) <= set(re.findall(r"-[-\w]+", shown))
        assert parameter.param_type_name == "argument" or parameter.help


def test_help_lists_the_commands() -> None:
    shown = succeed("--help").stdout
    assert "subquant exec model.mlir" in shown
    for command in COMMANDS:
        assert f"\n  {command} " in shown


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_list_has_the_help_of_each_command(command: str) -> None:
    click_command = command_of(command)
    assert click_command.name == command
    assert str(click_command.help).partition("\n\n")[0].replace("\n", " ") == COMMANDS[command]


def test_versions() -> None:
    shown = succeed("--version").stdout.splitlines()
    assert shown[0] == f"subquant {__version__}"
    assert [line.split()[0] for line in shown[1:]] == list(PINNED_VERSIONS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage: "),
        (["nothing"], "No such command 'nothing'"),
        (["--nothing"], "No such option '--nothing'"),
        (["compile"], "Missing argument 'MODEL...'"),
        (["run"], "Missing argument 'EXECUTABLE'"),
        (["exec"], "Missing argument 'MODEL'"),
        (["inspect"], "Missing argument 'FILE'"),
        (["opt"], "expected a MODEL; see 'subquant opt --help'"),
        (["compile", "a", "b"], "several models need a folder for the outputs; give it with -o"),
        (["compile", "a", "--emit", "exe"], "Invalid value for '--emit'"),
        (["compile", "a", "--rounding", "up"], "Invalid value for '--rounding'"),
        (["run", "a", "--atol", "x"], "Invalid value for '--atol'"),
        (["inspect", "a", "--picture", "b.svg"], "--plot needs --scales NAME"),
    ],
)
def test_usage_errors(folder: Path, arguments: list[str], message: str) -> None:
    assert message in fail(2, *arguments)


# -- compile --------------------------------------------------------------------------------------


def test_compile_writes_the_default_output(folder: Path) -> None:
    result = succeed("compile", "model.mlir")
    assert result.stdout == ""
    size = Path("model.vmfb").stat().st_size
    assert result.stderr == f"wrote model.vmfb ({size:,} bytes)\n"
    assert files() == ["model.mlir", "model.vmfb"]
    mask = os.umask(0)
    os.umask(mask)
    assert Path("model.vmfb").stat().st_mode & 0o777 == 0o666 & ~mask


def test_compile_to_standard_output_is_the_file(folder: Path) -> None:
    result = succeed("compile", "model.mlir", "-o", "-")
    assert result.stderr == ""
    Path("out.vmfb").write_bytes(result.stdout_bytes)
    assert succeed("run", "out.vmfb", "--input", "4xf32=1,2,3,1000").stdout == QUANTIZED_I8


def test_emit_mlir_can_be_compiled_again(folder: Path) -> None:
    text = succeed("compile", "model.mlir", "--emit", "mlir").stdout
    assert "quant.qcast" not in text
    assert "subquant.signature" in text
    result = succeed("exec", "-", "--input", "4xf32=1,2,3,1000", stdin=text)
    assert result.stdout == QUANTIZED_I8
    reals = succeed("exec", "-", "--input", "4xf32=1,2,3,1000", "--quantized-io", stdin=text)
    assert reals.stdout == "result[0]: 4xf32=1 2 3 63\n"  # the quantization is still known


def test_emit_bytecode_can_be_compiled_again(folder: Path) -> None:
    succeed("compile", "model.mlir", "--emit", "mlirbc", "-o", "model.mlirbc")
    data = Path("model.mlirbc").read_bytes()
    assert data.startswith(b"ML\xefR")
    assert succeed("compile", "model.mlir", "--emit", "mlirbc").stdout_bytes == data
    result = succeed("exec", "-", "--input", "4xf32=1,2,3,1000", stdin=data)
    assert result.stdout == QUANTIZED_I8


def test_emit_depends_on_the_options(folder: Path) -> None:
    text = succeed("compile", "model.mlir", "--emit", "mlir", "--rounding", "toward-zero").stdout
    assert "math.roundeven" not in text
    text = succeed(
        "compile",
        "model.mlir",
        "--emit",
        "mlir",
        "--target",
        "vulkan",
        "--vulkan-target",
        "generic",
    ).stdout
    assert "hal.device.targets" in text
    assert 'subquant.target = "vulkan:generic"' in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wrong.mlir", WRONG, "wrong.mlir:1:1: error: 'func.func' op dimension 5 along axis 0"),
        ("text.mlir", "hello", "text.mlir:1:1: error: custom op 'hello' is unknown"),
        ("cut.mlir", "func.func @f() {", "cut.mlir:1:15: error: "),
        ("bytes.mlir", b"\x00\xff", "error: 'bytes.mlir' is neither MLIR bytecode nor UTF-8 text"),
        ("x.npy", b"\x93NUMPY\x01\x00", "error: 'x.npy' is neither MLIR bytecode nor UTF-8"),
        ("cut.mlirbc", b"ML\xefR\x01", "cut.mlirbc"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "exec", "opt"])
def test_invalid_models(
    folder: Path, command: str, name: str, content: str | bytes, message: str
) -> None:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files()
    assert fail(1, command, name).startswith(message)
    assert files() == before


@pytest.mark.parametrize("command", ["compile", "run", "exec", "opt", "inspect"])
def test_files_that_cannot_be_read(folder: Path, command: str) -> None:
    assert fail(1, command, "none") == "error: cannot read 'none': No such file or directory\n"
    expected = "error: cannot read '.': Is a directory\n"
    if command == "inspect":  # of a folder of weights
        expected = "error: '.' holds no weights, expected model.safetensors or "
    assert fail(1, command, ".").startswith(expected)


def test_standard_input_is_named_in_errors(folder: Path) -> None:
    for command in ("compile", "exec", "opt", "inspect"):
        assert fail(1, command, "-", stdin="hello").startswith("<stdin>:1:1: error: "), command
        assert "UTF-8" in fail(1, command, "-", stdin=b"\xff")


@pytest.mark.parametrize("output", ["none/out.vmfb", "model.mlir/out.vmfb"])
def test_an_output_that_cannot_be_written(folder: Path, output: str) -> None:
    Path("a_folder").mkdir()
    for arguments in (["--emit", "mlirbc"], []):
        message = fail(1, "compile", "model.mlir", *arguments, "-o", output)
        assert message.startswith(f"error: cannot write '{output}': ")
        assert files() == ["a_folder", "model.mlir"]
    assert not list(Path("a_folder").iterdir())


def test_an_output_is_replaced_only_when_it_is_whole(folder: Path) -> None:
    Path("out.vmfb").write_text("before")
    Path("wrong.mlir").write_text(WRONG)
    fail(1, "compile", "wrong.mlir", "-o", "out.vmfb")
    assert Path("out.vmfb").read_text() == "before"
    succeed("compile", "model.mlir", "-o", "out.vmfb")
    assert Path("out.vmfb").read_bytes() != b"before"


# -- IREE fails -----------------------------------------------------------------------------------


def replay(stderr: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the replay command of an error in a shell."""
    (command,) = re.findall(r"^note: replay with: (.*)$", stderr, re.MULTILINE)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_refusal_by_iree_has_a_reproducer(folder: Path) -> None:
    Path("my tangent.mlir").write_text(TANGENT)
    Path("out").mkdir()
    errors = fail(1, "compile", "my tangent.mlir", "-o", "out/of here.vmfb")
    reason = "failed to legalize operation 'math.tan'"
    assert errors.startswith(f"my tangent.mlir:2:8: error: IREE refused the module: {reason}")
    assert [path.name for path in Path("out").iterdir()] == ["of here.reproducer.mlir"]
    replayed = replay(errors, folder)
    assert replayed.returncode == 1
    assert reason in replayed.stderr
    first_line = Path("out/of here.reproducer.mlir").read_text().splitlines()[0]
    assert shlex.split(first_line)[:2] == ["//", "iree-compile"]
    assert first_line.removeprefix("// ") in errors


def test_an_unwritable_reproducer_is_reported(folder: Path) -> None:
    Path("tangent.mlir").write_text(TANGENT)
    errors = fail(1, "compile", "tangent.mlir", "-o", "none/out.vmfb")
    assert "IREE refused the module" in errors
    assert "no reproducer was written to 'none/out.reproducer.mlir': No such file" in errors


def test_exec_leaves_the_reproducer_here(folder: Path) -> None:
    Path("tangent.mlir").write_text(TANGENT)
    assert "replay with: iree-compile tangent.reproducer.mlir" in fail(
        1, "exec", "tangent.mlir", "--input", "f32=1"
    )
    assert files() == ["model.mlir", "tangent.mlir", "tangent.reproducer.mlir"]
    assert "replay with: iree-compile stdin.reproducer.mlir" in fail(
        1, "exec", "-", "--input", "f32=1", stdin=TANGENT
    )


def test_an_unknown_flag_of_iree(folder: Path) -> None:
    errors = fail(1, "compile", "model.mlir", "--iree-flag=--no-such-flag")
    assert "error: IREE's compiler failed with status 1" in errors
    replayed = replay(errors, folder)
    assert replayed.returncode == 1
    assert "Unknown command line argument '--no-such-flag'" in replayed.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", "error: IREE's compiler crashed (signal 11)\n"),
        ("kill -KILL $$", "error: IREE's compiler crashed (signal 9)\n"),
        ("exit 3", "error: IREE's compiler failed with status 3: no message\n"),
        ("echo 'LLVM ERROR: x' >&2; exit 1", "error: IREE's compiler failed with status 1: LLVM"),
        ("exit 0", "error: IREE's compiler failed with status 0"),
        ("printf '\\377' >&2; exit 1", "error: IREE's compiler failed with status 1: \ufffd\n"),
    ],
)
def test_a_compiler_that_crashes(
    folder: Path, script: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = folder / "iree-compile"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr("subquant.compiler.iree_driver.compiler_path", lambda: str(compiler))
    monkeypatch.setattr("subquant.compiler.iree_driver.session_command", lambda: [str(compiler)])
    monkeypatch.delenv("SUBQUANT_CACHE")
    for text in (Path("model.mlir").read_text(), SMALL):  # which is compiled for a team, and not
        Path("model.mlir").write_text(text)
        assert fail(1, "compile", "model.mlir").startswith(message)
        assert files() == ["iree-compile", "model.mlir", "model.reproducer.mlir"]


def test_a_failure_is_not_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tangent.mlir").write_text(TANGENT)
    monkeypatch.setenv("SUBQUANT_CACHE", str(folder / "cache"))
    fail(1, "compile", "tangent.mlir")
    kinds = {record.fields["about"]["kind"] for _, record in Cache("cache").records()}
    assert kinds <= {"threads of a team"}


# -- run ------------------------------------------------------------------------------------------


def test_run_calls_main(vmfb: str) -> None:
    result = succeed("run", vmfb, "--input", "4xf32=1,2,3,1000")
    assert (result.stdout, result.stderr) == (QUANTIZED_I8, "")


def test_run_calls_another_function(vmfb: str) -> None:
    result = succeed(
        "run", vmfb, "--function", "two", "--input", "i32=5", "--input", "i4=-8",
        "--input", "bf16=0.5",
    )  # fmt: skip
    assert result.stdout == "result[0]: i32=-3\nresult[1]: i8=-8\nresult[2]: bf16=0.5\n"
    assert succeed("run", vmfb, "--function", "nothing").stdout == ""


def test_unsigned_storage(vmfb: str) -> None:
    stored = succeed("run", vmfb, "--function", "back", "--input", "4xu8=1,2,8,14")
    assert stored.stdout == "result[0]: 4xf32=-1 0 0 12\n"
    real = succeed(
        "run", vmfb, "--function", "back", "--quantized-io", "--input", "4xf32=-5,0.5,3,1e9"
    )
    assert real.stdout == "result[0]: 4xf32=-1 0 4 12\n"  # saturated, and ties to even


def test_run_on_another_cpu_device(vmfb: str) -> None:
    result = succeed("run", vmfb, "--device", "local-sync", "--input", "4xf32=1,2,3,1000")
    assert result.stdout == QUANTIZED_I8


@pytest.mark.parametrize("threads", ["1", "2"])
def test_run_with_threads(vmfb: str, threads: str) -> None:
    options = ("--threads", threads, "--input", "4xf32=1,2,3,1000")
    assert succeed("run", vmfb, *options).stdout == QUANTIZED_I8
    assert succeed("exec", "model.mlir", *options).stdout == QUANTIZED_I8


def test_invalid_numbers_of_threads(vmfb: str) -> None:
    options = ("--input", "4xf32=1,2,3,1000", "--threads")
    assert "expected 1 to 256 threads, got '0'" in fail(2, "run", vmfb, *options, "0")
    message = "the device 'vulkan' has no number of threads to choose, got 2; leave out threads"
    assert message in fail(2, "run", vmfb, "--device", "vulkan", *options, "2")
    assert message in fail(2, "exec", "model.mlir", "--target", "vulkan", *options, "2")


def test_outputs(vmfb: str) -> None:
    two = [
        "run", vmfb, "--function", "two", "--input", "i32=5", "--input", "i4=1",
        "--input", "bf16=0.5",
    ]  # fmt: skip
    result = succeed(*two, "--output", "@a.npy", "--output", "-", "--output", "@c.npy")
    assert result.stdout == "result[1]: i8=1\n"
    assert np.load("a.npy") == 6
    assert np.load("c.npy").view(ml_dtypes.bfloat16) == 0.5
    assert succeed(*two, "--output", "@a.npy").stdout == "result[1]: i8=1\nresult[2]: bf16=0.5\n"
    from_file = [text.replace("bf16=0.5", "@c.npy") for text in two]
    assert "result[2]: bf16=0.5\n" in succeed(*from_file).stdout


def test_an_output_on_standard_output(vmfb: str) -> None:
    result = succeed("run", vmfb, "--input", "4xf32=1", "--output", "@-")
    assert result.stdout_bytes.startswith(b"\x93NUMPY")


def test_json(vmfb: str) -> None:
    shown = json.loads(succeed("run", vmfb, "--input", "4xf32=1,2,3,1000", "--json").stdout)
    assert shown == {
        "function": "main",
        "results": [{"shape": [4], "dtype": "int8", "data": [3, 5, 7, 127]}],
    }
    divide = ["run", vmfb, "--function", "divide", "--json", "--input", "2xf32=1,0"]
    shown = json.loads(succeed(*divide, "--input", "2xf32=4,8").stdout)
    assert shown["results"][0]["data"] == [0.25, 0.0]
    shown = json.loads(succeed(*divide, "--input", "2xf32=0").stdout)
    assert shown["results"][0]["data"] == ["inf", "nan"]
    shown = json.loads(succeed("run", vmfb, "--function", "nothing", "--json").stdout)
    assert shown == {"function": "nothing", "results": []}


def test_expect(vmfb: str) -> None:
    run = ["run", vmfb, "--input", "4xf32=1,2,3,1000"]
    result = succeed(*run, "--expect", "4xi8=3,5,7,127")
    assert result.stdout == QUANTIZED_I8
    assert result.stderr == "1 of 1 results are as expected\n"
    np.save("y.npy", np.int8([3, 5, 7, 127]))
    succeed(*run, "--expect", "@y.npy")


def test_expect_fails_before_anything_is_written(vmfb: str) -> None:
    run = ["run", vmfb, "--input", "4xf32=1,2,3,1000", "--output", "@y.npy"]
    assert fail(1, *run, "--expect", "4xi8=3,5,7,126") == (
        "error: result 0 of 'main' differs from --expect: 1 of 4 elements differ, the first at "
        "[3]: expected 126, got 127\n"
    )
    assert "expected shape (3,) of int8, got (4,) of int8" in fail(1, *run, "--expect", "3xi8=3")
    assert "expected shape (4,) of int16" in fail(1, *run, "--expect", "4xi16=3,5,7,127")
    assert not Path("y.npy").exists()


def test_expect_with_a_tolerance(vmfb: str) -> None:
    run = ["run", vmfb, "--function", "divide", "--input", "2xf32=1", "--input", "2xf32=3"]
    fail(1, *run, "--expect", "2xf32=0.3333")
    succeed(*run, "--expect", "2xf32=0.3333", "--atol", "1e-4")
    fail(1, *run, "--expect", "2xf32=0.3333", "--atol", "1e-5")
    succeed(*run, "--expect", "2xf32=0.3333", "--rtol", "2e-4")
    fail(1, *run, "--expect", "2xf32=0.3333", "--rtol", "1e-5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "function 'main' takes 1 argument, got 0"),
        ("--input 4xf32=1 --input 4xf32=1", "function 'main' takes 1 argument, got 2"),
        ("--input 3xf32=1", "argument 0 of 'main' must have the shape 4, got 3"),
        ("--input f32=1", "argument 0 of 'main' must have the shape 4, got scalar"),
        ("--input 4xf64=1", "argument 0 of 'main' must be of dtype float32 (f32), got float64"),
        ("--input 4xi8=1", "argument 0 of 'main' must be of dtype float32 (f32), got int8"),
        ("--input @none.npy", "cannot read 'none.npy': No such file or directory"),
        ("--input @model.mlir", "cannot read 'model.mlir': not a .npy file (one array)"),
        ("--input @.", "cannot read '.': Is a directory"),
        (
            "--function back --input 4xi8=0,2,2,15",
            "argument 0 of 'back' must have storage values in 1:14, got 0:15",
        ),
        (
            "--function back --input 4xf32=1",
            "argument 0 of 'back' must be storage values (u4<1:14>), got float32; to give reals, "
            "set quantized_io (--quantized-io)",
        ),
        (
            "--function back --input 4xi8=1 --quantized-io",
            "argument 0 of 'back' must be reals, to be quantized, got int8; to give storage",
        ),
        (
            "--function two --input i32=1 --input i8=99 --input bf16=1",
            "argument 1 of 'two' must fit i4, got values 99:99",
        ),
        (
            "--function two --input i32=1 --input i4=1 --input f16=1",
            "argument 2 of 'two' must be of dtype bfloat16 (bf16), got float16",
        ),
        (
            "--function columns --input 6xu8=1",
            "function 'columns' stopped: dimension 0 of argument 0 must be 4 at run time",
        ),
        ("--device none --input 4xf32=1", "no device 'none'; expected a name or an IREE device"),
        ("--device vulkan://none --input 4xf32=1", "no Vulkan device 'vulkan://none' ("),
        ("--input 4xf32=1 --output @none/y.npy", "cannot write 'none/y.npy': No such file"),
        ("--input 4xf32=1 --output @.", "cannot write '.': "),
        ("--input 4xf32=1 --parameters a=none.irpa", "cannot read 'none.irpa': No such file"),
        ("--input 4xf32=1 --parameters a=model.mlir", "cannot read the parameters 'model.mlir': "),
    ],
)
def test_wrong_arguments(vmfb: str, arguments: str, message: str) -> None:
    before = files()
    errors = fail(1, "run", vmfb, *shlex.split(arguments))
    assert errors.startswith(f"error: {message}")
    assert files() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--function none",
            "no function is named 'none'; expected one of: main, back, two, divide, columns, "
            "nothing",
        ),
        ("--input 4xf32", "expected '=' and numbers after '4xf32'"),
        ("--input 4xi8=128", "128 does not fit i8 in '4xi8=128'"),
        ("--input 9999999999999999xf32=1", "9999999999999999 elements of type f32 do not fit in"),
        ("--input 4xf32=1 --output y.npy", "expected @file.npy or - for --output, got 'y.npy'"),
        ("--input 4xf32=1 --output @", "expected @file.npy or - for --output, got '@'"),
        (
            "--input 4xf32=1 --output - --output -",
            "function 'main' has 1 result, got 2 --output options",
        ),
        (
            "--input 4xf32=1 --expect 4xi8=3 --expect 4xi8=3",
            "function 'main' has 1 result, got 2 --expect options",
        ),
        ("--input 4xf32=1 --expect nonsense", "expected @file.npy or a literal"),
        ("--input 4xf32=1 --parameters none.irpa", "expected scope=file.irpa for --parameters"),
    ],
)
def test_wrong_options(vmfb: str, arguments: str, message: str) -> None:
    assert fail(2, "run", vmfb, *shlex.split(arguments)).startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        *((data, NO_EXECUTABLE) for data in (b"", b"PK\x03\x04", b"\0" * 999)),
        (b"\x93NUMPY", ", but an array; give it as an argument: --input @x.vmfb"),
        (b"module {}", ", but text; if it is a module, run it with: subquant exec x.vmfb"),
        (b"ML\xefR", ", but a module; run it with: subquant exec x.vmfb"),
    ],
)
def test_invalid_executables(folder: Path, content: bytes, hint: str) -> None:
    Path("x.vmfb").write_bytes(content)
    for command in ("run", "inspect"):
        assert fail(1, command, "x.vmfb") == f"error: 'x.vmfb' is no IREE executable{hint}\n"


def test_a_truncated_executable(vmfb: str) -> None:
    data = Path(vmfb).read_bytes()
    for length in (1, 100, 1000, len(data) // 2):
        Path("cut.vmfb").write_bytes(data[:length])
        assert "is no IREE executable" in fail(1, "run", "cut.vmfb", "--input", "4xf32=1")


def test_the_only_function_is_called(folder: Path) -> None:
    text = "func.func @{}(%x: f32) -> f32 {{\n  return %x : f32\n}}\n"
    result = succeed("exec", "-", "--input", "f32=2.5", stdin=text.format("one"))
    assert result.stdout == "result[0]: f32=2.5\n"
    both = text.format("one") + text.format("two")
    assert fail(2, "exec", "-", "--input", "f32=2.5", stdin=both) == (
        "error: several functions, and none is main; choose with --function: one, two\n"
    )


def test_exec_takes_the_options_of_both(folder: Path) -> None:
    result = succeed(
        "exec", "model.mlir", "--rounding", "toward-zero", "--target-cpu", "generic",
        "--device", "local-sync", "--input", "4xf32=0.4,-0.4,-1,3", "--json",
    )  # fmt: skip
    assert json.loads(result.stdout)["results"][0]["data"] == [1, 0, -1, 7]
    assert files() == ["model.mlir"]


def test_exec_on_the_wrong_device(folder: Path) -> None:
    assert fail(1, "exec", "model.mlir", "--device", "none").startswith("error: no device 'none'")


# -- opt ------------------------------------------------------------------------------------------


def test_opt_lists_the_passes() -> None:
    shown = succeed("opt", "--list-passes").stdout
    named = [line.split()[0] for line in shown.splitlines()]
    assert named == [*PASSES, *NAMED_PIPELINES]
    for description in PASSES.values():
        assert description in shown


def test_opt_prints_parsable_text(folder: Path) -> None:
    once = succeed("opt", "model.mlir").stdout
    assert succeed("opt", "-", stdin=once).stdout == once


def test_opt_writes_a_file(folder: Path) -> None:
    result = succeed("opt", "model.mlir", "--passes", "lower-quant-casts", "-o", "out.mlir")
    assert result.stdout == ""
    assert "quant.qcast" not in Path("out.mlir").read_text()
    assert fail(1, "opt", "model.mlir", "-o", "none/out.mlir").startswith(
        "error: cannot write 'none/out.mlir': "
    )


def test_opt_prints_the_parts_without_errors(folder: Path) -> None:
    text = f"func.func private @a()\n// -----\n{WRONG}// -----\nfunc.func private @b()\n"
    result = call("opt", "-", "--split-input-file", stdin=text)
    assert result.exit_code == 1
    assert "@a" in result.stdout
    assert "@b" in result.stdout
    assert result.stderr.startswith("<stdin>:3:1: error: 'func.func' op dimension 5")


def test_opt_verifies_diagnostics(folder: Path) -> None:
    text = f"// expected-error @+1 {{{{must be divisible}}}}\n{WRONG}"
    result = succeed("opt", "-", "--verify-diagnostics", stdin=text)
    assert result.output == ""
    other = text.replace("divisible", "prime")
    errors = fail(1, "opt", "-", "--verify-diagnostics", stdin=other)
    assert errors.startswith("<stdin>:2:1: error: unexpected error: ")
    assert "<stdin>:2:1: error: expected error was not produced: must be prime" in errors


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("none", "no pass is named 'none'; expected a C++ pass or one of: verify-quantization, "),
        ("cse{x=1}", "pass 'cse{x=1}' cannot be created: "),
        ("lower-quant-casts{x=1}", "pass 'lower-quant-casts' has no option 'x=1'"),
        ("cse,", "expected the name of a pass after ',' in 'cse,'"),
    ],
)
def test_opt_with_a_wrong_pipeline(folder: Path, passes: str, message: str) -> None:
    assert fail(2, "opt", "model.mlir", "--passes", passes).startswith(f"error: {message}")


# -- inspect --------------------------------------------------------------------------------------


def test_inspect_an_executable(vmfb: str) -> None:
    shown = succeed("inspect", vmfb).stdout
    assert shown.startswith("main\n  argument 0: tensor<4xf32>\n  result 0: tensor<4xquantized<")
    assert "two\n  argument 0: i32\n  argument 1: i4\n  argument 2: bf16\n" in shown
    functions = json.loads(succeed("inspect", vmfb, "--json").stdout)
    assert functions["two"]["outputs"] == ["i32", "i4", "bf16"]
    assert functions["nothing"] == {"inputs": [], "outputs": []}


def test_inspect_a_model(folder: Path) -> None:
    assert "@main" in succeed("inspect", "model.mlir").stdout
    from_input = succeed("inspect", "-", "--json", stdin=MODEL).stdout
    assert json.loads(from_input) == json.loads(succeed("inspect", "model.mlir", "--json").stdout)
    assert succeed("inspect", "-", stdin="").stdout == "nothing is quantized\n"


def test_inspect_a_missing_tensor(folder: Path) -> None:
    errors = fail(2, "inspect", "model.mlir", "--scales", "none")
    assert errors.startswith("error: no quantized tensor is named 'none'; expected one of: ")


# -- as a process ---------------------------------------------------------------------------------


def process(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "subquant", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def test_pipes_between_processes(folder: Path) -> None:
    compiled = process("compile", "-", "-o", "-", stdin=MODEL.encode())
    assert (compiled.returncode, compiled.stderr) == (0, b"")
    Path("model.vmfb").write_bytes(compiled.stdout)
    ran = process("run", "model.vmfb", "--input", "4xf32=1,2,3,1000")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, QUANTIZED_I8.encode(), b"")


def test_the_script_is_installed(folder: Path) -> None:
    script = Path(sys.executable).parent / "subquant"
    result = subprocess.run([script, "run", "none"], capture_output=True, check=False)
    assert result.returncode == 1
    assert result.stdout == b""
    assert result.stderr == b"error: cannot read 'none': No such file or directory\n"


def test_a_closed_pipe_is_no_error(folder: Path) -> None:
    many = "\n".join(f"func.func private @f{number}()" for number in range(20000))
    Path("many.mlir").write_text(many)
    command = f"{shlex.quote(sys.executable)} -m subquant opt many.mlir | head -1"
    result = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    assert result.stdout == b"module {\n"
    assert result.stderr == b""


def test_ctrl_c_while_the_command_line_is_imported() -> None:
    """The message is the same as later, without a traceback."""
    program = (
        "import sys, subquant.__main__ as entry\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'subquant.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "entry.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"\nAborted!\n")
