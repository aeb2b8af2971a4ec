"""Text-to-text tests: each ``// RUN:`` line of ``tests/filecheck/**/*.mlir`` is one test.

A RUN line is what lit would run, here without a shell or a process: commands joined by ``|``, with
``%s`` for the file, ``not`` before a command that must fail, and ``2>&1``. The commands are
``subquant`` (the command line, in this process) and ``filecheck`` (the package of that name, which
reads the file for its CHECK lines). A line that ends in a backslash goes on in the next RUN line.

Each pass has a folder with its name, and in it ``no-op.mlir``, which the pass must not change.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options
from filecheck.parser import Parser

from subquant.cli import main
from subquant.compiler.opt import run_opt
from subquant.compiler.reading import parse_text
from subquant.core._mlir import in_context_of
from subquant.dialects import create_context
from subquant.errors import SubquantError
from subquant.transforms import PASSES, load_pass
from subquant.transforms.base import UNCHANGED

FOLDER = Path(__file__).parent / "filecheck"
NEVER_FAILS = frozenset(re.findall(r"[\w-]+", """
    bound-loops contract-storage estimate-work expand-stablehlo fold-constants
    fuse-block-contractions isolate-contraction-operands legalize-qdq-to-quantized-op
    legalize-quantized-op-to-qdq lower-attention lower-block-contractions lower-packed-storage
    narrow-byte-sums narrow-requantization order-variables pack-narrow-storage
    quant-legalize-to-tosa-rescale raise-attention raise-dequantization raise-linalg select-kernels
    separate-variables
"""))  # fmt: skip

_RUN = re.compile(r"^\s*//\s*RUN:\s*(.*?)\s*$", re.MULTILINE)
_CHECK = re.compile(r"//\s*([A-Z][A-Z0-9_]*)((?:-[A-Z]+)*)(?:-\d+)?(?:\{[A-Z]+\})?:")
_DIRECTIVES = {"", "-LABEL", "-NEXT", "-SAME", "-NOT", "-DAG", "-EMPTY", "-COUNT"}
_SHOWN = 6000


@dataclass(frozen=True)
class Command:
    """One command of a RUN line."""

    words: tuple[str, ...]
    must_fail: bool = False
    with_errors: bool = False


@dataclass(frozen=True)
class Result:
    """Output and exit status of a command."""

    output: str
    errors: str
    status: int


class MalformedTest(Exception):
    """A file that is no test, or a RUN line that cannot be run."""


# -- reading --------------------------------------------------------------------------------------


def run_lines(text: str) -> list[str]:
    """Return the RUN lines of a file, continued lines joined."""
    text_lines: list[str] = []
    continued = False
    for part in _RUN.findall(text):
        body = part.removesuffix("\\").rstrip()
        if continued:
            text_lines[-1] += f" {body}"
        else:
            text_lines.append(body)
        continued = part.endswith("\\")
    if continued:
        raise MalformedTest(f"the last RUN line ends in a backslash: {text_lines[-1]}")
    return text_lines


def parse_run_line(line: str, path: Path) -> list[Command]:
    """Split a RUN line into its commands."""
    commands = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    pending: list[str] = []
    for word in [*lexer, "|"]:
        if word != "|":
            pending.append(word.replace("%s", str(path)))
            continue
        must_fail = pending[:1] == ["not"]
        words = [word for word in pending[must_fail:] if word != "2>&1"]
        if not words or words[0] not in ("subquant", "filecheck"):
            raise MalformedTest(f"expected subquant or filecheck, got '{' '.join(pending)}'")
        commands.append(Command(tuple(words), must_fail, "2>&1" in pending))
        pending = []
    return commands


def collect() -> Iterator[object]:
    paths = sorted(FOLDER.rglob("*.mlir"))
    for path in paths:
        name = path.relative_to(FOLDER).with_suffix("")
        text_lines = run_lines(path.read_text())
        if not text_lines:
            yield pytest.param(path, None, id=f"{name}")
        for number, line in enumerate(text_lines):
            yield pytest.param(path, line, id=f"{name}-{number}" if number else f"{name}")


# -- running --------------------------------------------------------------------------------------


def run_subquant(words: tuple[str, ...], arguments: str) -> Result:
    """Run the command line; an exception that it does not handle is raised."""
    result = CliRunner(catch_exceptions=False).invoke(main, list(words[1:]), input=arguments)
    return Result(result.stdout, result.stderr, result.exit_code)


def run_filecheck(words: tuple[str, ...], arguments: str) -> Result:
    """Compare text with the CHECK lines of a file."""
    options = parse_argv_options(list(words))
    for line in Path(options.match_filename).read_text().splitlines():
        match = _CHECK.search(line)
        if match and match[1] in options.check_prefixes and match[2] not in _DIRECTIVES:
            raise MalformedTest(f"no directive is named '{match[1]}{match[2]}': {line.strip()}")
    matcher = Matcher(options, FInput("<stdin>", arguments), Parser.from_opts(options))
    matcher.stderr = io.StringIO()
    status = matcher.run()
    return Result("", matcher.stderr.getvalue(), status)


def check_run_line(path: Path, line: str) -> None:
    """Run one RUN line; fail with the input, the output, and FileCheck's message."""
    arguments = ""
    for command in parse_run_line(line, path):
        run = run_subquant if command.words[0] == "subquant" else run_filecheck
        result = run(command.words, arguments)
        if (result.status != 0) != command.must_fail:
            expected = "to fail" if command.must_fail else "status 0"
            pytest.fail(
                f"{path}\nRUN: {line}\n"
                f"'{command.words[0]}' gave status {result.status}, expected {expected}\n"
                f"--- errors\n{result.errors}\n"
                f"--- its output\n{_shorten(result.output)}\n"
                f"--- its input\n{_shorten(arguments)}\n",
                pytrace=False,
            )
        arguments = result.errors + result.output if command.with_errors else result.output


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\n... ({len(text)} characters)"


# -- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "line"), list(collect()))
def test_run_line(path: Path, line: str | None) -> None:
    if line is None:
        raise MalformedTest(f"{path} has no RUN line")
    check_run_line(path, line)


@pytest.mark.parametrize("name", list(PASSES))
def test_every_pass_has_its_cases(name: str) -> None:
    files = {path.stem for path in (FOLDER / name).glob("*.mlir")}
    assert "no-op" in files
    assert ("invalid" in files) == (name not in NEVER_FAILS)
    assert files - {"no-op", "invalid"}, "expected a positive case"


def after(data: bytes, path: Path, passes: str | None) -> str:
    """The modules of a file after some passes, which must not fail."""
    result = run_opt(data, str(path), passes, split=True, verify_diagnostics=False)
    assert not result.errors
    assert result.text is not None
    return result.text


@pytest.mark.parametrize("name", list(PASSES))
@pytest.mark.share(6)
def test_no_op_leaves_the_module_as_it_is(name: str) -> None:
    path = FOLDER / name / "no-op.mlir"
    data = path.read_bytes()
    assert after(data, path, name) == after(data, path, None)


@pytest.mark.share(18)
@pytest.mark.parametrize("name", list(PASSES))
def test_a_pass_runs_twice(name: str) -> None:
    """A pass does not change its own output."""
    for path in sorted((FOLDER / name).glob("*.mlir")):
        if path.stem != "invalid":
            once = after(path.read_bytes(), path, name)
            assert after(once.encode(), path, name) == once, path


_IDENTITY = "func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}\n"
_SEPARATOR = re.compile(r"^// -----$", re.MULTILINE)
_ATTRIBUTES_ONLY = ("check-hand-off", "estimate-work", "pack-narrow-storage")
"""Passes that change attributes that no verifier knows, and then say that nothing changed."""
_UNCHANGED_WITHOUT_WORK = frozenset(re.findall(r"[\w-]+", """
    box-half-scalars canonicalize-reductions check-hand-off convert-quantized-to-storage
    convert-tosa-to-storage correct-zero-points expand-stablehlo fold-constant-casts fold-constants
    fuse-block-contractions legalize-constants legalize-integer-widths legalize-quant-to-math
    lower-block-contractions
    lower-quant-casts lower-requantization lower-saturation lower-tosa lower-tosa-rescale
    lower-tosa-variables lower-unranked-tensors narrow-byte-sums narrow-requantization
    pack-narrow-storage verify-quantization
"""))  # fmt: skip


@pytest.mark.parametrize("name", list(PASSES))
@pytest.mark.share(6)
def test_what_a_pass_calls_unchanged_is_unchanged(name: str) -> None:
    """A module is not verified after a pass that says so."""
    texts = [p.read_text() for p in sorted((FOLDER / name).glob("*.mlir")) if p.stem != "invalid"]
    unchanged = 0
    for part in [_IDENTITY, *(part for text in texts for part in _SEPARATOR.split(text))]:
        module = parse_text(part, create_context())
        before = str(module)
        with in_context_of(module.operation), contextlib.suppress(SubquantError):
            if load_pass(name)().run(module.operation) is UNCHANGED:
                unchanged += 1
                assert module.operation.verify()
                assert name in _ATTRIBUTES_ONLY or str(module) == before
    assert unchanged or name not in _UNCHANGED_WITHOUT_WORK


# -- the runner itself ----------------------------------------------------------------------------


def write_test(folder: Path, check: str) -> Path:
    path = folder / "case.mlir"
    path.write_text(f"// RUN: \n{check}\n{_IDENTITY}")
    return path


def test_a_line_that_is_met_passes(tmp_path: Path) -> None:
    path = write_test(tmp_path, "// CHECK: func.func @f(%[[X:.*]]: f32)\n// CHECK: return %[[X]]")
    check_run_line(path, "subquant opt %s | filecheck %s")


def test_a_line_that_is_not_met_shows_input_and_reason(tmp_path: Path) -> None:
    path = write_test(tmp_path, "// CHECK: func.func @g")
    with pytest.raises(pytest.fail.Exception) as caught:
        check_run_line(path, "subquant opt %s | filecheck %s")
    shown = str(caught.value)
    assert f"{path}\nRUN: subquant opt %s | filecheck %s" in shown
    assert f'{path}:2: error: Couldn\'t match "func.func @g".' in shown
    assert "return %arg0 : f32" in shown


def test_a_file_without_check_lines_fails(tmp_path: Path) -> None:
    path = write_test(tmp_path, "")
    with pytest.raises(pytest.fail.Exception, match="No check strings found"):
        check_run_line(path, "subquant opt %s | filecheck %s")


def test_a_failing_command_shows_its_error(tmp_path: Path) -> None:
    path = tmp_path / "case.mlir"
    path.write_text("func.func @f( {")
    with pytest.raises(pytest.fail.Exception, match=r"case.mlir:1:14: error: .*"):
        check_run_line(path, "subquant opt %s")
    check_run_line(path, "not subquant opt %s")


def test_not_needs_a_failure(tmp_path: Path) -> None:
    path = write_test(tmp_path, "")
    with pytest.raises(pytest.fail.Exception, match="status 0, expected to fail"):
        check_run_line(path, "not subquant opt %s")


def test_errors_go_where_they_are_sent(tmp_path: Path) -> None:
    path = tmp_path / "case.mlir"
    path.write_text("// CHECK: case.mlir:2:{{[0-9]+}}: error:\nfunc.func @f( {")
    check_run_line(path, "not subquant opt %s 2>&1 | filecheck %s")
    with pytest.raises(pytest.fail.Exception, match="is empty"):
        check_run_line(path, "not subquant opt %s | filecheck %s")


def test_a_misspelt_directive_is_an_error(tmp_path: Path) -> None:
    path = write_test(tmp_path, "// CHECK: func\n// CHECK-NXT: return")
    with pytest.raises(MalformedTest, match="no directive is named 'CHECK-NXT'"):
        check_run_line(path, "subquant opt %s | filecheck %s")


def test_an_unknown_command_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MalformedTest, match="expected subquant or filecheck, got 'mlir-opt"):
        check_run_line(tmp_path, "mlir-opt %s | filecheck %s")


def test_run_lines_are_joined_and_split() -> None:
    text_lines = run_lines("// RUN: a %s \\\n// RUN:   --b\n// a comment\n  // RUN: c\n")
    assert text_lines == ["a %s --b", "c"]
    with pytest.raises(MalformedTest, match="ends in a backslash"):
        run_lines("// RUN: a \\\n")
    commands = parse_run_line(
        'not subquant opt %s --passes "a{x=1 y=2},b" 2>&1|filecheck %s', Path("p")
    )
    assert commands == [
        Command(("subquant", "opt", "p", "--passes", "a{x=1 y=2},b"), True, True),
        Command(("filecheck", "p")),
    ]


def test_a_file_without_a_run_line_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MalformedTest, match="has no RUN line"):
        test_run_line(tmp_path / "case.mlir", None)
