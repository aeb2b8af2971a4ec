"""The command line in depth: each option and each failure, with a line or two.

A call must exit with the expected status, print errors to standard error only, and write files
atomically.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest

from command_line import INPUT, MODEL, QUANTIZED_I8, WRONG, call, fail, succeed
from subquant import __version__
from subquant.cli import COMMANDS, main
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import NAMED_PIPELINES
from subquant.core.versions import PINNED_VERSIONS
from subquant.transforms import PASSES

pytestmark = pytest.mark.usefixtures("model_folder")


def command_of(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("--joined-products", "5"), {"fuse_below_macs": 5}),
        (("--fuse-below-macs", "6"), {"fuse_below_macs": 6}),
        (("--extent", "n=2", "--dim", "m=3"), {"dims": ("n=2", "m=3")}),
    ],
)
def test_earlier_options_are_accepted_and_hidden(
    old: tuple[str, ...], new: dict[str, object]
) -> None:
    command = command_of("compile")
    context = command.make_context("compile", ["x.mlir", *old], **main.context_settings)
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
        (["compile", "a", "b"], "several models need a folder for the outputs; give it with -o"),
        (["compile", "a", "--emit", "exe"], "Invalid value for '--emit'"),
        (["compile", "a", "--rounding", "up"], "Invalid value for '--rounding'"),
        (["run", "a", "--atol", "x"], "Invalid value for '--atol'"),
        (["inspect", "a", "--picture", "b.svg"], "--plot needs --scales NAME"),
    ],
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    assert message in fail(2, *arguments)


def test_opt_lists_the_passes() -> None:
    shown = succeed("opt", "--list-passes").stdout
    assert [line.split()[0] for line in shown.splitlines()] == [*PASSES, *NAMED_PIPELINES]
    for description in PASSES.values():
        assert description in shown


def test_opt_prints_parsable_text() -> None:
    once = succeed("opt", "model.mlir").stdout
    assert succeed("opt", "-", stdin=once).stdout == once


def test_opt_writes_a_file() -> None:
    result = succeed("opt", "model.mlir", "--passes", "lower-quant-casts", "-o", "out.mlir")
    assert result.stdout == ""
    assert "quant.qcast" not in Path("out.mlir").read_text()
    message = "error: cannot write 'none/out.mlir': "
    assert fail(1, "opt", "model.mlir", "-o", "none/out.mlir").startswith(message)


def test_opt_prints_the_parts_without_errors() -> None:
    text = f"func.func private @a()\n// -----\n{WRONG}// -----\nfunc.func private @b()\n"
    result = call("opt", "-", "--split-input-file", stdin=text)
    assert result.exit_code == 1
    assert "@a" in result.stdout
    assert "@b" in result.stdout
    assert result.stderr.startswith("<stdin>:3:1: error: 'func.func' op dimension 5")


def test_opt_verifies_diagnostics() -> None:
    text = f"// expected-error @+1 {{{{must be divisible}}}}\n{WRONG}"
    assert succeed("opt", "-", "--verify-diagnostics", stdin=text).output == ""
    errors = fail(1, "opt", "-", "--verify-diagnostics", stdin=text.replace("divisible", "prime"))
    assert errors.startswith("<stdin>:2:1: error: unexpected error: ")
    assert "<stdin>:2:1: error: expected error was not produced: must be prime" in errors


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("none", "no pass is named 'none'; expected a C++ pass or one of: legalize-constants, "),
        ("cse{x=1}", "pass 'cse{x=1}' cannot be created: "),
        ("lower-quant-casts{x=1}", "pass 'lower-quant-casts' has no option 'x=1'"),
        ("cse,", "expected the name of a pass after ',' in 'cse,'"),
    ],
)
def test_opt_with_a_wrong_pipeline(passes: str, message: str) -> None:
    assert fail(2, "opt", "model.mlir", "--passes", passes).startswith(f"error: {message}")


def test_inspect_an_executable(vmfb: str) -> None:
    shown = succeed("inspect", vmfb).stdout
    result_type = "tensor<4x!quant.uniform<i8:f32, 0.5:1>>"
    assert shown.startswith(f"main\n  argument 0: tensor<4xf32>\n  result 0: {result_type}\n")
    assert "two\n  argument 0: i32\n  argument 1: i4\n  argument 2: bf16\n" in shown
    functions = json.loads(succeed("inspect", vmfb, "--json").stdout)
    assert functions["two"]["outputs"] == ["i32", "i4", "bf16"]
    assert functions["nothing"] == {"inputs": [], "outputs": []}


def test_inspect_a_model() -> None:
    assert "@main" in succeed("inspect", "model.mlir").stdout
    from_input = succeed("inspect", "-", "--json", stdin=MODEL).stdout
    assert json.loads(from_input) == json.loads(succeed("inspect", "model.mlir", "--json").stdout)
    assert succeed("inspect", "-", stdin="").stdout == "nothing is quantized\n"


def test_inspect_a_missing_tensor() -> None:
    errors = fail(2, "inspect", "model.mlir", "--scales", "none")
    assert errors.startswith("error: no quantized tensor is named 'none'; expected one of: ")


def process(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "subquant", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def test_pipes_between_processes() -> None:
    compiled = process("compile", "-", "-o", "-", stdin=MODEL.encode())
    assert (compiled.returncode, compiled.stderr) == (0, b"")
    Path("model.vmfb").write_bytes(compiled.stdout)
    ran = process("run", "model.vmfb", *INPUT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, QUANTIZED_I8.encode(), b"")


def test_the_script_is_installed() -> None:
    script = Path(sys.executable).parent / "subquant"
    result = subprocess.run([script, "run", "none"], capture_output=True, check=False)
    assert result.returncode == 1
    assert result.stdout == b""
    assert result.stderr == b"error: cannot read 'none': No such file or directory\n"


def test_a_closed_pipe_is_no_error() -> None:
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
