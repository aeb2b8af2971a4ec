"""MLIR in a child process: a crash, a hang or a lack of memory there is an error of one line."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

import subquant
from processes import PROGRAM, SPARSE, opt
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.reading import parse_bytes, parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.errors import (
    CompilerError,
    EnvironmentProblem,
    Place,
    UnsupportedError,
    UsageError,
    error_from_json,
    error_to_json,
)
from subquant.isolation import client
from subquant.isolation.client import ChildEnded, call
from subquant.isolation.limits import Limits, time_limit

CALL_OF_A_KERNEL = """"stream.executable"() ({
  builtin.module {
    func.func @k() {
      return
    }
  }
}) {sym_name = "k"} : () -> ()
func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = "flow.dispatch"(%x) {entry_points = [@k::@k]} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}
"""
RESULTS = """func.func @main(%a: tensor<4xi8>) -> tensor<4xi8> {
  return %r#2147483647 : tensor<4xi8>
}
"""


@pytest.fixture(autouse=True)
def here(in_temporary_folder: Path) -> Path:
    """Reproducers go to the current folder."""
    return in_temporary_folder


def error_of(text: str, passes: str | None = None, **options: object) -> CompilerError:
    with pytest.raises(CompilerError) as caught:
        opt(text, passes, **options)
    assert opt(PROGRAM)  # the next call has another child
    return caught.value


# -- crashes --------------------------------------------------------------------------------------


def test_a_crash_of_the_parser_is_one_line(here: Path) -> None:
    error = error_of(SPARSE)
    assert str(error) == (
        "x.mlir: error: upstream's MLIR crashed while it parsed the module (SIGSEGV); replay with: "
        "subquant opt subquant.reproducer.mlir"
    )
    assert error.exit_status == 1
    assert (here / "subquant.reproducer.mlir").read_text() == SPARSE


def test_a_crash_of_a_pass_names_the_pass(here: Path) -> None:
    passes = "verify-quantization,inline,canonicalize"
    assert str(error_of(CALL_OF_A_KERNEL, passes, reproducer="here.mlir")) == (
        "x.mlir: error: upstream's MLIR crashed in pass 'inline' (SIGSEGV); replay with: "
        'subquant opt here.mlir --passes "verify-quantization,inline"'
    )
    assert (here / "here.mlir").read_text() == CALL_OF_A_KERNEL


def test_the_error_quotes_the_last_output() -> None:
    text = "func.func @f(%a: tensor<1x4x4x2xf32>, %b: tensor<3x3x2x2xf32>) { %0 = "
    text += "stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 99999999999, f]x[0, 1, i, o]"
    assert "(SIGABRT: SmallVector unable to grow." in error_of(text).message


def test_the_input_is_its_own_reproducer(here: Path) -> None:
    (here / "sparse.mlir").write_text(SPARSE)
    with pytest.raises(CompilerError, match=r"replay with: subquant opt sparse\.mlir$"):
        compile_to_bytes("sparse.mlir", reproducer="sparse.mlir")
    with pytest.raises(CompilerError, match="no reproducer was written to 'no/x': No such file"):
        compile_to_bytes("sparse.mlir", reproducer="no/x")
    with pytest.raises(CompilerError, match=r"subquant opt subquant\.reproducer\.mlir$"):
        subquant.compile(SPARSE)
    assert sorted(os.listdir()) == ["sparse.mlir", "subquant.reproducer.mlir"]


def test_other_objects_are_no_source() -> None:
    with pytest.raises(UsageError, match="bytes of a model, or a module, got a int"):
        subquant.compile(3)  # type: ignore[arg-type]


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="no option is named 'batchs'; did you mean 'batch'"):
        subquant.compile(PROGRAM, batchs=2)


def test_a_module_of_the_bindings_is_sent_as_bytecode() -> None:
    module = parse_text(PROGRAM, create_context())
    before = str(module)
    assert b"tensor<4xf32>" in compile_to_bytes(module, emit="mlir")
    assert str(module) == before


def test_a_child_that_is_killed() -> None:
    """The child does not wait until the parent has read a step."""

    def kill(step: str) -> None:
        if step == "pass canonicalize":
            (child,) = [c for c in client._CHILDREN if c not in client._POOL.idle]
            os.kill(child._process.pid, signal.SIGKILL)

    passes = ",".join(["canonicalize"] * 5000)
    assert error_of(PROGRAM, passes, progress=kill).message.startswith(
        "upstream's MLIR was killed in pass 'canonicalize', as a system does that is out of memory"
    )


# -- limits ---------------------------------------------------------------------------------------


def test_the_time_of_the_parser_is_limited() -> None:
    chain = "affine_map<(d0, d1) -> (" + " + ".join(["d0", "d1"] * 100_000) + ")>"
    text = f'"t.x"() {{a = {chain}}} : () -> ()'
    error = error_of(text, limits=Limits(parse_seconds=0.05))
    assert error.message.startswith(
        "upstream's MLIR took more than 0.05 s while it parsed the module (--parse-seconds); "
    )


def test_the_time_of_each_pass_is_limited() -> None:
    chain = "\n".join(f"  %x{n + 1} = arith.addi %x{n}, %x0 : i64" for n in range(20_000))
    text = f"func.func @f(%x0: i64) -> i64 {{\n{chain}\n  return %x20000 : i64\n}}\n"
    error = error_of(text, "cse,canonicalize,cse", limits=Limits(pass_seconds=0.005))
    assert re.match(
        r"the module took more than 0\.005 s in pass '\w.*' \(--pass-seconds\); replay with: "
        r'subquant opt subquant\.reproducer\.mlir --passes "verify-quantization',
        error.message,
    )
    assert opt(text, "cse", limits=Limits(pass_seconds=100)).count("addi") == 20_000


def test_waiting_takes_time_too() -> None:
    assert call("test_mlir_client:wait", {"seconds": 0.3, "limit": 0.1}) == ("waited", [])
    with pytest.raises(ChildEnded) as ended:
        call("test_mlir_client:wait", {"seconds": 30, "limit": 0.01})
    assert ended.value.cause == "SIGALRM"


def wait(arguments: dict[str, float], blobs: object, steps: object) -> tuple[str, list[bytes]]:
    """Sleep, within a limit of time."""
    with time_limit(arguments["limit"]):
        time.sleep(arguments["seconds"])
    return "waited", []


def test_memory_is_limited() -> None:
    error = error_of(RESULTS, limits=Limits(memory_gib=0.5))
    assert error.message.startswith(
        "upstream's MLIR took more than 0.5 GiB of memory while it parsed the module (--memory-gib)"
    )


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_positive(value: float) -> None:
    for name in ("memory_gib", "parse_seconds", "pass_seconds"):
        message = f"option '{name.replace('_', '-')}' must be above 0, and at most 1e9"
        with pytest.raises(UsageError, match=message):
            Limits(**{name: value})


# -- calls ----------------------------------------------------------------------------------------


def test_steps_are_reported_when_they_begin() -> None:
    seen: list[str] = []
    opt(PROGRAM, "canonicalize,verify-quantization", progress=seen.append)
    assert seen == [
        "parse", "pass verify-quantization", "pass canonicalize", "pass verify-quantization",
        "print",
    ]  # fmt: skip


def test_a_step_that_raises_ends_the_child() -> None:
    def stop(step: str) -> None:
        raise UsageError(step)

    with pytest.raises(UsageError, match="parse"):
        opt(PROGRAM, progress=stop)
    assert opt(PROGRAM)


def test_other_exceptions_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"Traceback(.*\n)+.*KeyError: 'source'"):
        call("subquant.compiler.mlir_child:lower_module", {"options": {"iree_flags": []}})


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedError("is wrong", Place("a.mlir", 1, 2), ("one", "two")),
        EnvironmentProblem("is missing"),
    ],
)
def test_errors_come_over_the_pipe(error: UnsupportedError) -> None:
    error.op_name = "a.b"
    restored = error_from_json(error_to_json(error))
    assert type(restored) is type(error)
    assert (str(restored), restored.notes, restored.place) == (
        str(error).replace("error: is", "error: 'a.b' op is"), error.notes, error.place
    )  # fmt: skip
    for wrong in ({"class": "Place"}, {"class": "os"}, {"class": "UsageError", "place": 3}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            error_from_json({**error_to_json(error), **wrong})


@pytest.mark.parametrize(
    "words",
    [
        b"\xff" * 64,  # sizes
        b"\2\0\0\0\0\0\0\0" + b"\0" * 8 + b"{]",
        b"\2\0\0\0\0\0\0\0" + b"\0" * 8 + b"[]",
        b"\2\0\0\0\0\0\0\0" + b"\0" * 8 + b"{}",
        b"\2\0\0\0\0\0\0\0" + b"\1" + b"\0" * 7 + b"\0\0\0\0\0\0\0\x7f" + b"{}",  # a blob's size
        b"\2\0",
    ],
)
def test_an_invalid_answer(words: bytes) -> None:
    with pytest.raises(ChildEnded) as caught:
        call("test_mlir_client:write", {"words": list(words)}, limits=Limits(memory_gib=1))
    assert caught.value.cause == "an answer that makes no sense"
    assert opt(PROGRAM)


def write(arguments: dict[str, list[int]], blobs: object, steps: object) -> None:
    """Write anything like a broken child, and end."""
    for handle in range(3, 20):
        try:
            os.write(handle, bytes(arguments["words"]))
        except OSError:
            continue
    os._exit(0)


def test_output_of_cplusplus_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert "return" in opt(PROGRAM, "print-op-stats")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "func.return" in shown.err


# -- locations ------------------------------------------------------------------------------------


def test_lowered_modules_do_not_name_their_file(here: Path) -> None:
    """Executables record locations; they are the same bytes wherever a model lies."""
    (here / "a").mkdir()
    restored = []
    for path in (here / "x.mlir", here / "a" / "longer.mlir"):
        path.write_text(PROGRAM)
        restored.append(compile_to_bytes(path, emit="mlirbc"))
    assert {*restored, compile_to_bytes(PROGRAM, emit="mlirbc")} == {restored[0]}


def test_operations_without_a_location_get_one() -> None:
    """IREE 3.13 writes an uninitialized line for a dispatch without one: other bytes each time."""
    module = parse_text("func.func @main(%x: f32) -> f32 { return %x : f32 }", create_context())
    with module.context:
        function = module.body.operations[0]
        for op in (function, function.body.blocks[0].operations[0]):
            op.operation.location = ir.Location.unknown()
    assert "loc(unknown)" in module.operation.get_asm(enable_debug_info=True)
    lowered = parse_bytes(compile_to_bytes(module, emit="mlirbc"), create_context())
    assert "unknown" not in lowered.operation.get_asm(enable_debug_info=True)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_an_error_of_a_pass_has_the_name_of_the_file(here: Path, as_bytes: bool) -> None:
    (here / "x.mlir").write_text(PROGRAM.replace("{ ", '{ "foo.bar"() : () -> () '))
    source = (here / "x.mlir").read_bytes() if as_bytes else here / "x.mlir"
    with pytest.raises(UnsupportedError) as caught:
        compile_to_bytes(source)
    file = "-" if as_bytes else str(here / "x.mlir")
    assert caught.value.place == Place(file, 1, 55)


def test_an_error_of_irees_compiler_has_the_name_of_the_file(here: Path) -> None:
    (here / "x.mlir").write_text(
        "func.func @main(%x: f32) -> f32 {\n  %y = math.asinh %x : f32\n  return %y : f32\n}\n"
    )
    with pytest.raises(CompilerError, match="IREE refused the module") as caught:
        compile_to_bytes(here / "x.mlir", reproducer=os.devnull)
    assert caught.value.place == Place(str(here / "x.mlir"), 2, 8)
