"""Remainder loops: peeled if that is faster than a mask."""

from __future__ import annotations

import re

import numpy as np
import pytest

import subquant
from programs import one_operation
from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.lowering import peels_loops
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context

SUMS = """
func.func @main(%x: tensor<33x103xi8>) -> tensor<33xi32> {
  %wide = stablehlo.convert %x : (tensor<33x103xi8>) -> tensor<33x103xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %y = stablehlo.reduce(%wide init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<33x103xi32>, tensor<i32>) -> tensor<33xi32>
  return %y : tensor<33xi32>
}"""
WINDOWS = one_operation(
    """stablehlo.convolution(%0, %1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}""",
    ["1x9x9x3xf32", "3x3x3x5xf32"],
    "1x7x7x5xf32",
)


@pytest.mark.parametrize(
    ("text", "features", "expected"),
    [
        (SUMS, "avx,avx2,fma", True),
        (SUMS, "avx,avx2,avx512f", True),
        (WINDOWS, "avx,avx2,fma", True),
        (WINDOWS, "avx,avx2,avx512f", False),
        (SUMS, "", False),
        (SUMS, "neon,dotprod", False),
    ],
)
def test_the_choice_of_peeling(text: str, features: str, expected: bool) -> None:
    assert peels_loops(parse_text(text, create_context()), features) == expected


def recorded_commands(
    monkeypatch: pytest.MonkeyPatch, refused: str | None = None
) -> list[list[object]]:
    """The compiler's commands from now on; one with a text is refused."""
    commands, run = [], iree_driver.run_supervised

    def recorded(command: list[str], *arguments: object, **keywords: object) -> object:
        commands.append(command)
        is_refused = refused is not None and any(refused in str(part) for part in command)
        flags = ["--nonsense"] if is_refused else []
        return run([*command, *flags], *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(iree_driver, "run_supervised", recorded)
    return commands


@pytest.mark.parametrize(
    ("cpu", "flags", "expected"),
    [
        ("haswell", (), ["peel"]),
        ("generic", (), []),
        ("haswell", ("--iree-llvmcpu-vector-pproc-strategy=none",), ["none"]),
    ],
)
def test_the_flag_of_the_compiler(
    cpu: str, flags: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed once, also if a flag of the user sets another strategy."""
    commands = recorded_commands(monkeypatch)
    compile_to_bytes(SUMS, CompileOptions(target_cpu=cpu, iree_flags=flags), cache="")
    texts = [part for part in commands[-1] if isinstance(part, str)]
    assert re.findall(r"vector-pproc-strategy=(\w+)", " ".join(texts)) == expected


def test_a_module_that_is_refused_is_compiled_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is tried once, and then the default."""
    commands = recorded_commands(monkeypatch, refused="pproc")
    assert compile_to_bytes(SUMS, CompileOptions(target_cpu="haswell"), cache="")
    assert sum("pproc" in " ".join(map(str, command)) for command in commands) == 1


def test_remainders_are_computed() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (33, 103)).astype(np.int8)
    np.testing.assert_array_equal(subquant.compile(SUMS).main(x), x.astype(np.int32).sum(1))
