"""``subquant run`` and ``exec``: arguments, results, devices and expected results."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from command_line import INPUT, QUANTIZED_I8, fail, files, succeed

ONE_RESULT = "function 'main' has 1 result"
NAMES = "main, back, two, divide, columns, nothing"
NO_EXECUTABLE = "; expected the output of 'subquant compile'"

pytestmark = pytest.mark.usefixtures("model_folder")


@pytest.mark.parametrize("device", [(), ("--device", "local-sync")], ids=["default", "local-sync"])
def test_run_calls_main(vmfb: str, device: tuple[str, ...]) -> None:
    result = succeed("run", vmfb, *device, *INPUT)
    assert (result.stdout, result.stderr) == (QUANTIZED_I8, "")


def test_run_reads_standard_input(vmfb: str) -> None:
    assert succeed("run", "-", *INPUT, stdin=Path(vmfb).read_bytes()).stdout == QUANTIZED_I8
    assert "is no IREE executable, but text" in fail(1, "run", "-", stdin="text")


def test_run_calls_another_function(vmfb: str) -> None:
    inputs = ("--input", "i32=5", "--input", "i4=-8", "--input", "bf16=0.5")
    result = succeed("run", vmfb, "--function", "two", *inputs)
    assert result.stdout == "result[0]: i32=-3\nresult[1]: i8=-8\nresult[2]: bf16=0.5\n"
    assert succeed("run", vmfb, "--function", "nothing").stdout == ""


def test_unsigned_storage(vmfb: str) -> None:
    stored = succeed("run", vmfb, "--function", "back", "--input", "4xu8=1,2,8,14")
    assert stored.stdout == "result[0]: 4xf32=-1 0 0 12\n"
    reals = ("--quantized-io", "--input", "4xf32=-5,0.5,3,1e9")
    real = succeed("run", vmfb, "--function", "back", *reals)
    assert real.stdout == "result[0]: 4xf32=-1 0 4 12\n"  # saturated, and ties to even


@pytest.mark.parametrize("threads", ["1", "2"])
def test_run_with_threads(vmfb: str, threads: str) -> None:
    options = ("--threads", threads, *INPUT)
    assert succeed("run", vmfb, *options).stdout == QUANTIZED_I8
    assert succeed("exec", "model.mlir", *options).stdout == QUANTIZED_I8


def test_invalid_numbers_of_threads(vmfb: str) -> None:
    options = (*INPUT, "--threads")
    assert "expected 1 to 256 threads, got '0'" in fail(2, "run", vmfb, *options, "0")
    message = "the device 'vulkan' has no number of threads to choose, got 2; leave out threads"
    assert message in fail(2, "run", vmfb, "--device", "vulkan", *options, "2")
    assert message in fail(2, "exec", "model.mlir", "--target", "vulkan", *options, "2")


def test_outputs(vmfb: str) -> None:
    inputs = ("--input", "i32=5", "--input", "i4=1", "--input", "bf16=0.5")
    two = ["run", vmfb, "--function", "two", *inputs]
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
    shown = json.loads(succeed("run", vmfb, *INPUT, "--json").stdout)
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
    run = ["run", vmfb, *INPUT]
    result = succeed(*run, "--expect", "4xi8=3,5,7,127")
    assert result.stdout == QUANTIZED_I8
    assert result.stderr == "1 of 1 results are as expected\n"
    np.save("y.npy", np.int8([3, 5, 7, 127]))
    succeed(*run, "--expect", "@y.npy")


def test_expect_fails_before_anything_is_written(vmfb: str) -> None:
    run = ["run", vmfb, *INPUT, "--output", "@y.npy"]
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
    assert fail(1, "run", vmfb, *shlex.split(arguments)).startswith(f"error: {message}")
    assert files() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--function none", f"no function is named 'none'; expected one of: {NAMES}\n"),
        ("--input 4xf32", "expected '=' and numbers after '4xf32'"),
        ("--input 4xi8=128", "128 does not fit i8 in '4xi8=128'"),
        ("--input 9999999999999999xf32=1", "9999999999999999 elements of type f32 do not fit in"),
        ("--input 4xf32=1 --output y.npy", "expected @file.npy or - for --output, got 'y.npy'"),
        ("--input 4xf32=1 --output @", "expected @file.npy or - for --output, got '@'"),
        ("--input 4xf32=1 --output - --output -", f"{ONE_RESULT}, got 2 --output options"),
        (
            "--input 4xf32=1 --expect 4xi8=3 --expect 4xi8=3",
            f"{ONE_RESULT}, got 2 --expect options",
        ),
        ("--input 4xf32=1 --rtol 0.1", "--rtol needs --expect\n"),
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
def test_invalid_executables(content: bytes, hint: str) -> None:
    Path("x.vmfb").write_bytes(content)
    for command in ("run", "inspect"):
        assert fail(1, command, "x.vmfb") == f"error: 'x.vmfb' is no IREE executable{hint}\n"


def test_a_truncated_executable(vmfb: str) -> None:
    data = Path(vmfb).read_bytes()
    for length in (1, 100, 1000, len(data) // 2):
        Path("cut.vmfb").write_bytes(data[:length])
        assert "is no IREE executable" in fail(1, "run", "cut.vmfb", "--input", "4xf32=1")


def test_the_only_function_is_called() -> None:
    text = "func.func @{}(%x: f32) -> f32 {{\n  return %x : f32\n}}\n"
    result = succeed("exec", "-", "--input", "f32=2.5", stdin=text.format("one"))
    assert result.stdout == "result[0]: f32=2.5\n"
    assert fail(
        2, "exec", "-", "--input", "f32=2.5", stdin=text.format("one") + text.format("two")
    ) == ("error: several functions, and none is main; choose with --function: one, two\n")


def test_exec_takes_the_options_of_both() -> None:
    result = succeed(
        "exec", "model.mlir", "--rounding", "toward-zero", "--target-cpu", "generic",
        "--device", "local-sync", "--input", "4xf32=0.4,-0.4,-1,3", "--json",
    )  # fmt: skip
    assert json.loads(result.stdout)["results"][0]["data"] == [1, 0, -1, 7]
    assert files() == ["model.mlir"]


def test_exec_on_the_wrong_device() -> None:
    assert fail(1, "exec", "model.mlir", "--device", "none").startswith("error: no device 'none'")
