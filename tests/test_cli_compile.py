"""``subquant compile`` and ``exec``: outputs, invalid models, and failures of IREE's compiler."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import INPUT, QUANTIZED_I8, WRONG, fail, files, succeed
from subquant.compiler.cache import Cache

pytestmark = pytest.mark.usefixtures("model_folder")

SMALL = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }\n"
# Our passes accept a scalar hyperbolic sine outside of loops, which IREE's virtual machine lacks.
HYPERBOLIC = "func.func @main(%x: f32) -> f32 {\n  %r = math.asinh %x : f32\n  return %r : f32\n}\n"


def test_compile_writes_the_default_output() -> None:
    result = succeed("compile", "model.mlir")
    assert result.stdout == ""
    size = Path("model.vmfb").stat().st_size
    assert result.stderr == f"wrote model.vmfb ({size:,} bytes)\n"
    assert files() == ["model.mlir", "model.vmfb"]
    os.umask(mask := os.umask(0))
    assert Path("model.vmfb").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("name", ["out.mlir", "out.onnx"])
def test_an_executable_is_not_named_like_a_model(name: str) -> None:
    result = fail(2, "compile", "model.mlir", "-o", name)
    assert f"'{name}' is named like a model; write the module for IREE with --emit mlir" in result
    assert files() == ["model.mlir"]


def test_compile_to_standard_output_is_the_file() -> None:
    result = succeed("compile", "model.mlir", "-o", "-")
    assert result.stderr == ""
    Path("out.vmfb").write_bytes(result.stdout_bytes)
    assert succeed("run", "out.vmfb", *INPUT).stdout == QUANTIZED_I8


def test_emit_mlir_can_be_compiled_again() -> None:
    text = succeed("compile", "model.mlir", "--emit", "mlir").stdout
    assert "quant.qcast" not in text
    assert "subquant.signature" in text
    assert succeed("exec", "-", *INPUT, stdin=text).stdout == QUANTIZED_I8
    reals = succeed("exec", "-", *INPUT, "--quantized-io", stdin=text)
    assert reals.stdout == "result[0]: 4xf32=1 2 3 63\n"  # the quantization is still known


def test_the_module_is_printed_after_passes() -> None:
    options = ("--mlir-print-ir-after-change", "--mlir-elide-elementsattrs-if-larger=1")
    result = succeed("compile", "model.mlir", "--emit", "mlir", *options)
    names = re.findall(r"^// -----// IR Dump After (\S+) //----- //$", result.stderr, re.MULTILINE)
    assert {"lower-quant-casts", "convert-quantized-to-storage"} < set(names)
    assert "check-integer-only" not in names
    assert "dense_resource<__elided__>" in result.stderr
    assert "dense_resource<__elided__>" in result.stdout
    # The last pass that changes the module leaves the module that is written.
    assert result.stderr.split("//----- //\n")[-1].strip() == result.stdout.strip()
    message = fail(2, "compile", "model.mlir", "--mlir-print-ir-after=narrow-byte-sum")
    assert message == (
        "error: --mlir-print-ir-after: the pipeline has no pass 'narrow-byte-sum'; did you mean "
        "'narrow-byte-sums'?\n"
    )
    message = fail(2, "compile", "model.mlir", "-o", "out/", "--mlir-print-ir-after-all")
    assert message == "error: the options --mlir-... apply to one model; compile it alone\n"


def test_emit_bytecode_can_be_compiled_again() -> None:
    succeed("compile", "model.mlir", "--emit", "mlirbc", "-o", "model.mlirbc")
    data = Path("model.mlirbc").read_bytes()
    assert data.startswith(b"ML\xefR")
    assert succeed("compile", "model.mlir", "--emit", "mlirbc").stdout_bytes == data
    assert succeed("exec", "-", *INPUT, stdin=data).stdout == QUANTIZED_I8


def test_emit_depends_on_the_options() -> None:
    text = succeed("compile", "model.mlir", "--emit", "mlir", "--rounding", "toward-zero").stdout
    assert "math.roundeven" not in text
    message = fail(2, "compile", "model.mlir", "--vulkan-target", "generic")
    assert message == "error: --vulkan-target needs --target vulkan\n"
    message = fail(2, "compile", "model.mlir", "--fixed-point-rounding", "gemmlowp")
    assert message == "error: --fixed-point-rounding needs --requantization fixed-point\n"
    vulkan = ("--target", "vulkan", "--vulkan-target", "generic")
    assert "--target-cpu is for" in fail(2, "exec", "model.mlir", *vulkan, "--target-cpu=haswell")
    text = succeed("compile", "model.mlir", "--emit", "mlir", *vulkan).stdout
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
def test_invalid_models(command: str, name: str, content: str | bytes, message: str) -> None:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files()
    assert fail(1, command, name).startswith(message)
    assert files() == before


@pytest.mark.parametrize("command", ["compile", "run", "exec", "opt", "inspect"])
def test_files_that_cannot_be_read(command: str) -> None:
    assert fail(1, command, "none") == "error: cannot read 'none': No such file or directory\n"
    expected = "error: cannot read '.': Is a directory, expected a file\n"
    if command == "compile":
        expected = expected.rstrip() + "; compile its models with: "
    if command == "inspect":  # of a folder of weights
        expected = "error: '.' holds no weights, expected model.safetensors or "
    assert fail(1, command, ".").startswith(expected)


def test_standard_input_is_named_in_errors() -> None:
    for command in ("compile", "exec", "opt", "inspect"):
        assert fail(1, command, "-", stdin="hello").startswith("<stdin>:1:1: error: "), command
        assert "UTF-8" in fail(1, command, "-", stdin=b"\xff")


@pytest.mark.parametrize("output", ["none/out.vmfb", "model.mlir/out.vmfb"])
def test_an_output_that_cannot_be_written(output: str) -> None:
    Path("a_folder").mkdir()
    for arguments in (["--emit", "mlirbc"], []):
        message = fail(1, "compile", "model.mlir", *arguments, "-o", output)
        assert message.startswith(f"error: cannot write '{output}': ")
        assert files() == ["a_folder", "model.mlir"]
    assert not list(Path("a_folder").iterdir())


def test_an_output_is_replaced_only_when_it_is_whole() -> None:
    Path("out.vmfb").write_text("before")
    Path("wrong.mlir").write_text(WRONG)
    fail(1, "compile", "wrong.mlir", "-o", "out.vmfb")
    assert Path("out.vmfb").read_text() == "before"
    succeed("compile", "model.mlir", "-o", "out.vmfb")
    assert Path("out.vmfb").read_bytes() != b"before"


def replay(stderr: str) -> subprocess.CompletedProcess[str]:
    """Run the replay command of an error in a shell."""
    (command,) = re.findall(r"^note: replay with: (.*)$", stderr, re.MULTILINE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    return subprocess.run(
        ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )


def test_a_refusal_by_iree_has_a_reproducer() -> None:
    Path("my asinh.mlir").write_text(HYPERBOLIC)
    Path("out").mkdir()
    errors = fail(1, "compile", "my asinh.mlir", "-o", "out/of here.vmfb")
    reason = "failed to legalize operation 'math.asinh'"
    assert errors.startswith(f"my asinh.mlir:2:8: error: IREE refused the module: {reason}")
    assert [path.name for path in Path("out").iterdir()] == ["of here.reproducer.mlir"]
    replayed = replay(errors)
    assert replayed.returncode == 1
    assert reason in replayed.stderr
    first_line = Path("out/of here.reproducer.mlir").read_text().splitlines()[0]
    assert shlex.split(first_line)[:2] == ["//", "iree-compile"]
    assert first_line.removeprefix("// ") in errors


def test_an_unwritable_reproducer_is_reported() -> None:
    Path("asinh.mlir").write_text(HYPERBOLIC)
    errors = fail(1, "compile", "asinh.mlir", "-o", "none/out.vmfb")
    assert "IREE refused the module" in errors
    assert "no reproducer was written to 'none/out.reproducer.mlir': No such file" in errors


def test_exec_leaves_the_reproducer_here() -> None:
    Path("asinh.mlir").write_text(HYPERBOLIC)
    errors = fail(1, "exec", "asinh.mlir", "--input", "f32=1")
    assert "replay with: iree-compile asinh.reproducer.mlir" in errors
    assert files() == ["asinh.mlir", "asinh.reproducer.mlir", "model.mlir"]
    errors = fail(1, "exec", "-", "--input", "f32=1", stdin=HYPERBOLIC)
    assert "replay with: iree-compile stdin.reproducer.mlir" in errors


def test_an_unknown_flag_of_iree() -> None:
    message = fail(2, "compile", "model.mlir", "--iree-flag=--iree-opt-leve=O2")
    assert message == (
        "error: --iree-flag: iree-compile has no flag '--iree-opt-leve=O2'; did you mean "
        "'--iree-opt-level=O2'?\n"
    )


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
def test_crashes_of_the_compiler(
    script: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Path("iree-compile").absolute()
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr("subquant.compiler.iree_driver.compiler_path", lambda: str(compiler))
    monkeypatch.setattr("subquant.compiler.iree_driver.session_command", lambda: [str(compiler)])
    monkeypatch.delenv("SUBQUANT_CACHE")
    for text in (Path("model.mlir").read_text(), SMALL):  # which is compiled for a team, and not
        Path("model.mlir").write_text(text)
        assert fail(1, "compile", "model.mlir").startswith(message)
        assert files() == ["iree-compile", "model.mlir", "model.reproducer.mlir"]


def test_a_failure_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("asinh.mlir").write_text(HYPERBOLIC)
    monkeypatch.setenv("SUBQUANT_CACHE", os.path.abspath("cache"))
    fail(1, "compile", "asinh.mlir")
    # Records without a description have digests of files of the environment, where they are old.
    fields = [record.fields for _, record in Cache("cache").records()]
    assert {each["about"]["kind"] for each in fields if "about" in each} <= {"worker pool program"}
