"""Diagnosis of f64 and i64 functions that IREE does not have, before IREE runs.

Symptom: IREE compiles most of a module, and then fails with a symbol (``undefined symbol: sin``) or
a SPIR-V operation.
Cause: IREE 3.13 leaves these functions to libm, which its executables do not link, or to SPIR-V
operations that do not take the type.
Test: none fails once IREE has them; tests/test_unsupported_functions.py fails if one is missing.

Functions of constants are left to IREE, which computes them on the CPU at compile time.
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...dialects.quant import element_type
from ...emit.linalg import depends_on_arguments
from ...emit.operation import is_used
from ...errors import name_of_location

_F64_FUNCTIONS = {
    "stablehlo.cbrt": "cbrt", "math.cbrt": "cbrt",
    "stablehlo.cosine": "cosine", "math.cos": "cosine",
    "stablehlo.sine": "sine", "math.sin": "sine",
    "stablehlo.tan": "tan", "math.tan": "tan",
    "stablehlo.tanh": "tanh", "math.tanh": "tanh",
    **{f"math.{name}": name for name in ("acos", "asin", "erf", "erfc", "log10", "log2")},
}  # fmt: skip
"""Functions of f64 that no target has."""

_F64_FUNCTIONS_ON_VULKAN = _F64_FUNCTIONS | {
    "stablehlo.exponential": "exponential", "math.exp": "exponential",
    "stablehlo.exponential_minus_one": "exponential_minus_one",
    "math.expm1": "exponential_minus_one", "stablehlo.log": "log", "math.log": "log",
    "stablehlo.log_plus_one": "log_plus_one", "math.log1p": "log_plus_one",
    "stablehlo.logistic": "logistic",
    "stablehlo.power": "power", "math.powf": "power",
    **{f"math.{name}": name for name in ("acosh", "asinh", "atanh", "cosh", "exp2", "sinh")},
}  # fmt: skip

_I64_FUNCTIONS_ON_VULKAN = {"stablehlo.count_leading_zeros": "count_leading_zeros"}


def why_absent(op: Operation, target: str) -> str:
    """Return the reason why IREE refuses an operation for a target; empty if it does not."""
    if op.name == "stablehlo.custom_call":
        return _why_outside(ir.StringAttr(op.attributes["call_target_name"]).value)
    is_vulkan = target.startswith("vulkan")
    f64_functions = _F64_FUNCTIONS_ON_VULKAN if is_vulkan else _F64_FUNCTIONS
    function, element, narrower = f64_functions.get(op.name), "f64", "f32"
    if function is None and is_vulkan:
        function, element, narrower = _I64_FUNCTIONS_ON_VULKAN.get(op.name), "i64", "i32"
    if function is None or not isinstance(op.results[0].type, ir.RankedTensorType):
        return ""
    is_absent = str(element_type(op.results[0].type)) == element
    if not is_used(op.results[0]) or not is_absent or not depends_on_arguments(op.results[0]):
        return ""
    name = name_of_location(op.location)
    owner = f" for {name}" if name else ""
    device = "Vulkan" if is_vulkan else "llvm-cpu"
    return (
        f"computes {function} of {element}{owner}, which IREE does not do on {device}; convert the "
        f"operand to {narrower}"
    )


def _why_outside(function: str) -> str:
    """Return why a function of LAPACK is refused; empty for others."""
    if not function.startswith("lapack_"):
        return ""
    return (
        f"calls '{function}' of LAPACK, with which JAX decomposes and solves matrices on CPUs, and "
        "which an executable does not have; write it with products and loops, or compute it before"
    )
