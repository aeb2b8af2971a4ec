"""Inputs that once ended, stopped or filled the process: each is an error of one line."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from programs import LONG, convolution_of, one_operation
from subquant.cli import main
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.lowering import bytecode_of
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context

SUBQUANT = str(Path(sys.executable).with_name("subquant"))
PROGRAM = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n"
ADD = PROGRAM.replace("return %x", "%y = stablehlo.add %x, %x : tensor<4xf32> return %y")
CONVOLUTION = one_operation(
    convolution_of("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, D, f]", "pad = [[1, 1], [1, 1]]"),
    ("1x4x4x2xf32", "3x3x2x2xf32"),
    "1x4x4x2xf32",
)
DYNAMIC_CONVOLUTION = """func.func @main(%a: tensor<9x26x26x32xf32>, %b: tensor<3x3x1x32xf32>) {
  %p = stablehlo.constant dense<2> : tensor<2x2xi64>
  %0 = "stablehlo.dynamic_conv"(%a, %b, %p) {
    dimension_numbers = #stablehlo.conv<raw input_batch_dimension = 0, input_feature_dimension = 3,
      input_spatial_dimensions = [1, 2], kernel_input_feature_dimension = 4,
      kernel_output_feature_dimension = 2, kernel_spatial_dimensions = [0, 1],
      output_batch_dimension = 0, output_feature_dimension = 3, output_spatial_dimensions = [1, 2]>,
    feature_group_count = 1 : i64
  } : (tensor<9x26x26x32xf32>, tensor<3x3x1x32xf32>, tensor<2x2xi64>) -> tensor<9x28x28x1xf32>
  return
}
"""
BROADCAST = """func.func @main(%a: tensor<1x3x!quant.uniform<i8:f32, 0.5>>, %s: tensor<3xi32>) {
  %0 = stablehlo.dynamic_broadcast_in_dim %a, %s, dims = [0, 1]
    : (tensor<1x3x!quant.uniform<i8:f32, 0.5>>, tensor<3xi32>)
    -> tensor<2x3x4x!quant.uniform<i8:f32:0, {0.5, 0.25}>>
  return
}
"""
RAGGED = one_operation(
    """"chlo.ragged_dot"(%0, %1, %2) {ragged_dot_dimension_numbers = #chlo.ragged_dot<
    lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2],
    rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [], rhs_group_dimensions = []>,
    precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>]}""",
    ("3x2x5xf32", "3x5x7xf32", "3xi64"),
    "3x2x7xf32",
)
SUBTRACT = one_operation('"chlo.broadcast_subtract"(%0)', ("f32",), "f32")
PARSED = "upstream's MLIR crashed while it parsed the module (SIG"
KILLERS = {
    "sparse": ("#C = #sparse_tensor.encoding<{}>\nfunc.func @f(tensor<4xf32, #C>)", PARSED),
    "convolution-number": (CONVOLUTION.replace("D", "99999999999"), PARSED),
    "convolution-memory": (CONVOLUTION.replace("D", "2000000000"), "GiB of memory while it parsed"),
    "dynamic-convolution": (
        DYNAMIC_CONVOLUTION,
        "crashed while it parsed the module (SIGABRT: Invalid non-spatial dimension.)",
    ),
    "result-number": (
        "func.func @main() -> i8 {\n  return %r#2147483647 : i8\n}\n",
        "took more than 1 GiB of memory while it parsed the module (--memory-gib)",
    ),
    "per-axis-broadcast": (BROADCAST, PARSED),
}


@pytest.fixture(autouse=True)
def here(in_temporary_folder: Path) -> Path:
    """Reproducers go to the current folder."""
    return in_temporary_folder


def fail(*arguments: str, stdin: bytes | None = None) -> str:
    """Run a command that must fail with one line, and return it."""
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert result.exit_code == 1, (result.output, result.exception)
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize("command", ["opt", "compile", "inspect"])
@pytest.mark.parametrize("name", KILLERS)
@pytest.mark.share(4)
def test_text_that_kills_the_parser(name: str, command: str) -> None:
    text, message = KILLERS[name]
    Path("model.mlir").write_text(text)
    line = fail(command, "model.mlir", "--memory-gib", "1")
    assert line.startswith("model.mlir: error: upstream's MLIR ")
    assert message in line
    assert line.endswith("; replay with: subquant opt model.reproducer.mlir\n")
    assert Path("model.reproducer.mlir").read_text() == text


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        (RAGGED, ["3x2x5xf32=1", "3x5x7xf32=1", "3xi64=1"], "exactly one ragged dimension"),
        (SUBTRACT, ["f32=1"], "'chlo.broadcast_subtract' op expected 2 operands, but found 1"),
    ],
    ids=["ragged_dot", "broadcast_subtract"],
)
def test_invalid_operations_of_chlo(text: str, inputs: list[str], message: str) -> None:
    """A pass of StableHLO crashes on them where the dialect, which verifies them, is not loaded."""
    Path("model.mlir").write_text(text)
    inputs_given = [part for value in inputs for part in ("--input", value)]
    for arguments in (["exec", "--interpret-only", *inputs_given], ["opt"], ["compile"]):
        result = CliRunner().invoke(main, [*arguments, "model.mlir"])
        assert result.exit_code == 1, (result.output, result.exception)
        first_line = result.stderr.splitlines()[0]
        assert first_line.startswith("model.mlir:3:10: error: ")
        assert message in first_line


def test_bytecode_that_kills_its_reader() -> None:
    """Each byte after the header in turn: errors and crashes, and never the end of this process."""
    whole = bytecode_of(parse_text(PROGRAM, create_context()))
    crashes = 0
    for position in range(20, len(whole), 3):
        Path("model.mlirbc").write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        result = CliRunner().invoke(main, ["opt", "model.mlirbc", "--memory-gib", "2"])
        assert result.exit_code in (0, 1), result.exception
        crashes += "upstream's MLIR" in result.stderr
    assert crashes


def test_executables_that_kill_iree() -> None:
    """A call of an imported function becomes one of a function that the module does not have."""
    data = compile_to_bytes(ADD)
    calls = list(re.finditer(rb"X.\0\0\x80", data, re.DOTALL))
    for call in calls[:4]:
        Path("model.vmfb").write_bytes(data[: call.end() - 1] + b"\x08" + data[call.end() :])
        assert fail("inspect", "model.vmfb") == (
            "error: 'model.vmfb' is damaged: IREE's runtime crashed while it read the file "
            "(SIGSEGV); compile the module again\n"
        )
    assert calls


def test_parameters_that_kill_iree(cpu: object) -> None:
    """A division by zero in IREE's GGUF reader: the file is checked, whatever its name is."""
    Path("model.vmfb").write_bytes(compile_to_bytes(PROGRAM))
    count = (1).to_bytes(8, "little")
    tensor = count + b"w" + (1).to_bytes(4, "little") + count + (4).to_bytes(4, "little") + bytes(8)
    gguf = b"GGUF" + (3).to_bytes(4, "little") + count + bytes(8) + tensor
    for name in ("p.gguf", "p.irpa", "p.safetensors", "p"):
        Path(name).write_bytes(gguf + bytes(64))
        line = fail("run", "model.vmfb", "--parameters", f"model={name}", "--input", "4xf32=1")
        assert line.startswith(f"{name}: error: tensor 'w' is of the GGML type 4, which has no")
    for name, content, message in (
        ("q.irpa", b"nothing", "error: "),
        ("q.safetensors", b"nothing", "not a safetensors file"),
        ("q.gguf", b"nothing", "cannot read the parameters 'q.gguf': not an .irpa, .gguf or"),
        ("q", b"", "cannot read the parameters 'q': not an .irpa, .gguf or .safetensors file"),
    ):
        Path(name).write_bytes(content)
        line = fail("run", "model.vmfb", "--parameters", f"model={name}", "--input", "4xf32=1")
        assert message in line


def test_a_chain_that_takes_the_parser_minutes() -> None:
    chain = "affine_map<(d0, d1) -> (" + " + ".join(["d0", "d1"] * 100_000) + ")>"
    Path("model.mlir").write_text(f'"t.x"() {{a = {chain}}} : () -> ()')
    line = fail("opt", "model.mlir", "--parse-seconds", "0.5")
    assert "took more than 0.5 s while it parsed the module (--parse-seconds)" in line


# -- files that are none --------------------------------------------------------------------------

COMMANDS = ("opt", "compile", "inspect", "exec", "run", "import", "quantize")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "long"])
def test_paths_that_are_no_files(command: str, kind: str) -> None:
    os.mkfifo("pipe")
    os.mkdir("folder")
    names = {"device": "/dev/zero", "pipe": "pipe", "folder": "folder", "long": "a" * 300}
    line = fail(command, names[kind])
    if kind == "folder":
        assert "Is a directory" in line or "holds no weights" in line
    elif command in ("import", "quantize"):
        assert "holds no weights" in line or "No such file" in line
    else:
        assert ("File name too long" if kind == "long" else "not a regular file") in line


@pytest.mark.parametrize("name", ["pipe.npy", "/dev/zero"])
def test_inputs_that_are_no_files(name: str, cpu: object) -> None:
    os.mkfifo("pipe.npy")
    Path("model.vmfb").write_bytes(compile_to_bytes(PROGRAM))
    assert "not a regular file" in fail("run", "model.vmfb", "--input", f"@{name}")
    assert "not a regular file" in fail("run", "model.vmfb", "--parameters", f"model={name}")


def test_a_pipe_in_place_of_a_cache_entry(here: Path) -> None:
    first = compile_to_bytes(PROGRAM, cache=here / "cache")
    entries = [path for path in (here / "cache").rglob("*") if path.is_file()]
    assert len(entries) >= 3
    for entry in entries:
        entry.unlink()
        os.mkfifo(entry)
    assert compile_to_bytes(PROGRAM, cache=here / "cache") == first
    assert all(entry.is_file() for entry in entries)
    steps: list[str] = []
    compile_to_bytes(PROGRAM, cache=here / "cache", progress=steps.append)
    assert steps[-1] == "cached"


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("subquant", SUBQUANT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.skipif(not LONG, reason="3 s; pipes that Python opens are tested")
def test_pipes_that_the_shell_opens() -> None:
    Path("model.mlir").write_text(PROGRAM)
    expected = run("subquant opt model.mlir").stdout
    assert "return" in expected
    for command in (
        "subquant opt - < model.mlir",
        "cat model.mlir | subquant opt -",
        "cat model.mlir | subquant opt /dev/stdin",
        "subquant opt <(cat model.mlir)",
    ):
        assert run(command).stdout == expected, command
    assert "nothing is quantized" in run("cat model.mlir | subquant inspect /dev/stdin").stdout
    assert run("subquant opt - < /dev/null").stdout == "module {\n}\n\n"
    endless = run("subquant opt - < /dev/zero")
    assert endless.returncode == 1
    assert endless.stderr == "error: cannot read '<stdin>': a device, not a file or a pipe\n"


def test_a_pipe_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquant.core.files.MAX_STREAM_BYTES", 1 << 22)
    reader, writer = os.pipe()

    def write() -> None:
        try:
            while True:
                os.write(writer, bytes(1 << 16))
        except BrokenPipeError:
            os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    line = fail("opt", f"/dev/fd/{reader}")
    assert "more than 4,194,304 bytes come from a pipe; write them to a file" in line
    os.close(reader)
    thread.join()


# -- standard streams, locales, names -------------------------------------------------------------


def test_closed_streams() -> None:
    Path("model.mlir").write_text(PROGRAM)
    without_errors = run("subquant compile model.mlir -o out.vmfb 2>&-; echo $?")
    assert (without_errors.stdout, Path("out.vmfb").is_file()) == ("0\n", True)
    assert run("subquant compile no.mlir 2>&-; echo $?").stdout == "1\n"
    without_output = run("subquant opt model.mlir >&-")
    assert without_output.returncode == 1
    assert without_output.stderr == "error: cannot write the output: Bad file descriptor\n"
    without_input = run("subquant opt - <&-")
    assert without_input.returncode == 1
    assert without_input.stderr == "error: cannot read '<stdin>': Bad file descriptor\n"
    assert run("subquant compile model.mlir -o all.vmfb <&- >&- 2>&-").returncode == 0
    assert run("subquant compile model.mlir -o out/ --emit mlirbc").returncode == 0
    many = run("subquant compile model.mlir -o out/ --emit mlirbc --resume >&-")  # it has a table
    assert many.returncode == 1
    assert many.stderr.endswith("cannot write the output: Bad file descriptor\n")
    assert Path("all.vmfb").read_bytes() == Path("out.vmfb").read_bytes()


@pytest.mark.parametrize("environment", ["env -u PYTHONUNBUFFERED", "env PYTHONUNBUFFERED=1"])
def test_an_output_that_is_cut_is_an_error(environment: str) -> None:
    """A full disk takes a part of the output, and fails for the rest."""
    functions = (f"func.func @f{n}(%x: f32) -> f32 {{ return %x : f32 }}\n" for n in range(40))
    Path("model.mlir").write_text("".join(functions))
    compile_it = f"{environment} subquant compile model.mlir --emit mlir"
    for command in (f"{compile_it} -o - >cut.mlir", f"{compile_it} -o whole.mlir && cat cut.mlir"):
        # Without bytecode, which Python writes cut.
        done = run(f"ulimit -f 1; export PYTHONDONTWRITEBYTECODE=1; {command}")
        assert done.returncode == 1
        assert re.fullmatch("error: cannot write .*: File too large\n", done.stderr)
    assert Path("cut.mlir").stat().st_size == 1024
    assert not Path("whole.mlir").exists()


def test_a_current_folder_that_was_removed() -> None:
    for arguments in ("compile a.mlir", "compile a.mlir -o out/", "compile '*.mlir' -o /tmp"):
        done = run(f"mkdir gone && cd gone && rmdir ../gone && subquant {arguments}")
        assert done.returncode == 1
        assert done.stderr == "error: the current folder was removed; change to another\n"


@pytest.mark.parametrize(
    "environment", ["PYTHONIOENCODING=ascii", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"]
)
def test_an_ascii_locale(environment: str) -> None:
    Path("model.mlir").write_text(
        'func.func private @"n\u4f60"(tensor<2x!quant.uniform<i8:f32, 0.5>>)\n'
    )
    shown = run(f"{environment} subquant inspect model.mlir")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "n\\u4f60" in shown.stdout
    wrong = run(f"{environment} subquant inspect 'n\u4f60.mlir'")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: cannot read 'n")


def test_names_at_the_file_systems_limit() -> None:
    stem = "a" * 250
    Path(f"{stem}.mlir").write_text(PROGRAM)
    assert CliRunner().invoke(main, ["compile", f"{stem}.mlir"]).exit_code == 0
    assert Path(f"{stem}.vmfb").is_file()
    Path(f"{stem}.mlir").write_text(KILLERS["sparse"][0])
    line = fail("compile", f"{stem}.mlir")
    assert line.endswith(f"replay with: subquant opt {'a' * 200}.reproducer.mlir\n")
    result = CliRunner().invoke(main, ["opt", "-", "-o", "b" * 300], input=PROGRAM)
    assert result.exit_code == 1
    assert "File name too long" in result.stderr


def test_files_of_any_name() -> None:
    name = os.fsdecode(b"\xff model.mlir")
    Path(name).write_text(PROGRAM)
    assert CliRunner().invoke(main, ["compile", name, "--emit", "mlir"]).exit_code == 0


def test_numbers_in_a_file_are_read() -> None:
    """The refused inputs above are read from a file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ones(4, np.float32))
    Path("x.npy").write_bytes(buffer.getvalue())
    Path("model.mlir").write_text(PROGRAM)
    result = CliRunner().invoke(main, ["exec", "model.mlir", "--input", "@x.npy"])
    assert result.output == "result[0]: 4xf32=1 1 1 1\n"
