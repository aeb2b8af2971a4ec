"""IREE computes constant expressions before the first call where that can gain time."""

from __future__ import annotations

import numpy as np
import pytest

from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.constant_hoisting import hoists_constants
from subquant.compiler.lowering import lower
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context

_WEIGHT = np.random.default_rng(0).integers(-127, 128, (256, 64)).astype(np.int8)
_FLAG = "--iree-opt-const-expr-hoisting=false"


def product(more: str = "", result: str = "%y") -> str:
    """A matrix product with a constant weight, and operations after it."""
    return f"""
func.func @main(%x: tensor<4x256xi8>) -> tensor<4x64xi32> {{
  %w = stablehlo.constant dense<"0x{_WEIGHT.tobytes().hex()}"> : tensor<256x64xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x256xi8>, tensor<256x64xi8>) -> tensor<4x64xi32>
  {more}
  return {result} : tensor<4x64xi32>
}}"""


ALIKE = product(
    """%c = stablehlo.constant dense<3> : tensor<4x64xi32>
  %z = stablehlo.add %y, %c : tensor<4x64xi32>""",
    "%z",
)
TABLE = product(
    """%i = stablehlo.iota dim = 1 : tensor<4x64xi32>
  %t = stablehlo.multiply %i, %i : tensor<4x64xi32>
  %z = stablehlo.add %y, %t : tensor<4x64xi32>""",
    "%z",
)


NO_KERNEL = """
func.func @main(%x: tensor<3x0xf32>, %y: tensor<0x2xf32>) -> tensor<3x2xf32> {
  %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<3x0xf32>, tensor<0x2xf32>) -> tensor<3x2xf32>
  return %z : tensor<3x2xf32>
}"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [(product(), False), (ALIKE, False), (TABLE, True), (NO_KERNEL, True)],
)
def test_tables_are_computed_once(text: str, expected: bool) -> None:
    """Elements that kernels do not read count, but not those that are alike."""
    module = parse_text(text, create_context())
    lower(module, CompileOptions(target_cpu="haswell"))
    assert hoists_constants(module) == expected


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        (product(), (), [_FLAG]),
        (TABLE, (), []),
        (product(), ("--iree-opt-const-expr-hoisting=true",), []),
    ],
)
def test_the_flag_of_the_compiler(
    text: str, flags: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed unless the user decides."""
    commands, run = [], iree_driver.run_supervised

    def recorded(command: list[str], *arguments: object, **keywords: object) -> object:
        commands.append(command)
        return run(command, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(iree_driver, "run_supervised", recorded)
    compile_to_bytes(text, CompileOptions(iree_flags=flags), cache="")
    assert [part for part in commands[-1] if part == _FLAG] == expected
