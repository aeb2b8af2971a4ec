"""Functions of f64 that IREE lacks: each is refused before IREE runs, the others compile."""

from __future__ import annotations

import pytest

from programs import LONG, one_operation
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.errors import UnsupportedError
from subquant.numerics.function_tables import BINARY_FUNCTIONS, UNARY_FUNCTIONS
from subquant.transforms.iree_workarounds.unsupported_functions import why_absent

MATH = (
    *("ceil", "cos", "exp", "expm1", "floor", "log", "log1p", "round", "roundeven", "rsqrt"),
    *("cbrt", "sin", "sqrt", "tan", "tanh", "atan2", "powf"),
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "erf", "erfc"),
    *("exp2", "log2", "log10", "absf", "trunc"),
)
FUNCTIONS = [f"stablehlo.{name}" for name in (*UNARY_FUNCTIONS, *BINARY_FUNCTIONS)]
FUNCTIONS += [f"math.{name}" for name in MATH]
IS_BINARY = {f"stablehlo.{name}" for name in BINARY_FUNCTIONS} | {"math.atan2", "math.powf"}


def function_text(name: str) -> str:
    count = 2 if name in IS_BINARY else 1
    operands = ", ".join(["%0", "%1"][:count])
    symbol = name.replace(".", "_")
    return one_operation(f'"{name}"({operands})', ["8xf64"] * count, "8xf64", name=symbol)


@pytest.mark.skipif(not LONG, reason="4 s; changes with IREE's version only")
@pytest.mark.parametrize("target", ["llvm-cpu", "vulkan"])
@pytest.mark.share(4)
def test_functions_of_f64_compile_or_are_refused(target: str, context: ir.Context) -> None:
    """IREE refuses one that `why_absent` does not know: ``undefined symbol: cos``."""
    supported = []
    for name in FUNCTIONS:
        module = parse_text(function_text(name), context)
        if not why_absent(module.body.operations[0].regions[0].blocks[0].operations[0], target):
            supported.append(name)
    assert "stablehlo.floor" in supported
    assert "stablehlo.sine" not in supported
    compile_to_bytes("".join(map(function_text, supported)), CompileOptions(target=target))


def test_a_function_of_lapack_is_named() -> None:
    text = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y = stablehlo.custom_call @lapack_spotrf_ffi(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}"""
    message = r"3:8: error: .* calls 'lapack_spotrf_ffi' of LAPACK"
    with pytest.raises(UnsupportedError, match=message):
        compile_to_bytes(text, CompileOptions())
