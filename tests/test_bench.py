"""``subquant bench``: times, drawn arguments, and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import subquant
from command_line import call, succeed
from subquant.compiler.compilation import compile_to_bytes
from subquant.core.versions import PINNED_VERSIONS
from subquant.errors import UsageError
from subquant.runtime.machine import describe_machine
from subquant.runtime.timing import Times, draw_arguments, time_calls

TIME_EXPECTED = "expected a time above 0 s, and at most 86,400"


def test_times_are_summarized() -> None:
    times = Times.of([5_000_000, 1_000_000, 2_000_000, 4_000_000, 3_000_000])
    assert times == Times(5, 1.0, 2.0, 3.0, 4.0)
    assert times.is_disturbed
    assert not Times.of([1_000_000, 1_100_000, 1_200_000]).is_disturbed
    assert times.to_json()["median"] == 3.0


def test_calls_are_counted() -> None:
    called: list[int] = []
    assert len(time_calls(called.append, repeat=3, warm_up=2)) == 3
    assert called == [0, 1, 2, 3, 4]
    assert len(time_calls(called.append, seconds=1e-9)) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, f"{TIME_EXPECTED}, got 0"),
        ({"seconds": float("nan")}, f"{TIME_EXPECTED}, got nan"),
        ({"seconds": float("inf")}, f"{TIME_EXPECTED}, got inf"),
        ({"seconds": 1e23}, f"{TIME_EXPECTED}, got 1e"),
        ({"repeat": 0}, "expected 1 to 10,000,000 calls, got 0"),
        ({"repeat": 10**23}, "expected 1 to 10,000,000 calls, got 1000000"),
    ],
)
def test_no_time_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        time_calls(lambda number: None, **wrong)


def test_a_machine_is_described_without_its_name() -> None:
    import platform

    machine = describe_machine()
    assert int(machine["cores"]) >= 1
    assert machine["iree-base-compiler"]
    assert platform.node() not in machine.values()


PROGRAM = """
!x = !quant.uniform<i8<-20:20>:f32, 0.5:3>
func.func @main(%a: tensor<2x3x!x>, %b: tensor<3xf32>, %c: tensor<3xi8>) -> tensor<3xf32> {
  return %b : tensor<3xf32>
}
func.func @open(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "model.mlir"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture(scope="module")
def executable(model: str) -> str:
    path = model.removesuffix(".mlir") + ".vmfb"
    Path(path).write_bytes(compile_to_bytes(PROGRAM))
    return path


def test_a_model_is_compiled_and_timed(model: str) -> None:
    timed = succeed("bench", model, "--function", "main", "--repeat", "3", "--threads", "1")
    assert re.search(r"main: minimum [\d.]+ [mu]s, median [\d.]+ [mu]s .*, 3 calls\n", timed.stdout)
    assert re.search(r"compiled in [\d.]+ s, [\d,]+ bytes", timed.stderr)


def test_an_executable_is_timed(executable: str) -> None:
    arguments = ("--function", "open", "--input", "2xf32=1,2", "--seconds", "0.01", "--json")
    message = json.loads(succeed("bench", executable, *arguments).stdout)
    assert message["threads"] == subquant.load(executable).threads
    assert message["function"] == "open"
    assert message["milliseconds"]["minimum"] <= message["milliseconds"]["median"]
    assert message["machine"]["iree-base-runtime"] == PINNED_VERSIONS["iree-base-runtime"]
    assert "compile_seconds" not in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--function", "open"), "argument 0 (tensor<?xf32>) is of no known shape; give"),
        (("--function", "none"), "no function is named 'none'; expected one of: main, open"),
        (("--function", "main", "--seconds", "0"), f"{TIME_EXPECTED}, got 0.0"),
        (("--function", "main", "--threads", "0"), "expected 1 to 256 threads, got '0'"),
        (("--function", "main", "--input", "2xf32=1,2"), "takes 3 arguments, got 1"),
    ],
)
def test_what_cannot_be_timed(executable: str, arguments: Sequence[str], message: str) -> None:
    actual = call("bench", executable, *arguments)
    assert actual.exit_code in (1, 2), actual.stderr
    assert message in actual.stderr


def test_drawn_arguments_fit(executable: str) -> None:
    function = subquant.load(executable)["main"]
    assert function.signature is not None
    drawn = draw_arguments(function.signature, seed=1)
    assert [(array.shape, array.dtype.name) for array in drawn] == [
        ((2, 3), "int8"), ((3,), "float32"), ((3,), "int8"),
    ]  # fmt: skip
    assert np.abs(drawn[0]).max() <= 20
    np.testing.assert_array_equal(function(*drawn), drawn[1])
