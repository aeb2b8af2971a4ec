"""Functions of numbers of 64 bits that IREE 3.13 does not have: refused before it is run.

IREE refuses these after it has compiled most of a module, with the name of a symbol
(``undefined symbol: sin``) or of an operation of SPIR-V. Functions of constants are left to IREE,
which computes them on the CPU when it compiles.
"""

from __future__ import annotations

import re

from ...core._mlir import Operation, ir
from ...dialects.quant import element_type
from ...emit.linalg import is_of_the_call

__all__ = ["why_absent"]

_OF_F64 = {
    "stablehlo.cbrt": "cbrt", "math.cbrt": "cbrt",
    "stablehlo.cosine": "cosine", "math.cos": "cosine",
    "stablehlo.sine": "sine", "math.sin": "sine",
    "stablehlo.tan": "tan", "math.tan": "tan",
    "stablehlo.tanh": "tanh", "math.tanh": "tanh",
}  # fmt: skip
"""Functions of f64 that are absent on all devices."""

_OF_F64_ON_VULKAN = _OF_F64 | {
    "stablehlo.exponential": "exponential", "math.exp": "exponential",
    "stablehlo.exponential_minus_one": "exponential_minus_one",
    "math.expm1": "exponential_minus_one", "stablehlo.log": "log", "math.log": "log",
    "stablehlo.log_plus_one": "log_plus_one", "math.log1p": "log_plus_one",
    "stablehlo.logistic": "logistic",
    "stablehlo.power": "power", "math.powf": "power",
}  # fmt: skip

_OF_I64_ON_VULKAN = {"stablehlo.count_leading_zeros": "count_leading_zeros"}

_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')


def why_absent(op: Operation, target: str) -> str:
    """Return the reason why IREE refuses an operation; empty if it does not.

    Args:
        op: of the module that IREE gets.
        target: what the module is compiled for (``vulkan:generic``).
    """
    is_vulkan = target.startswith("vulkan")
    of_f64 = _OF_F64_ON_VULKAN if is_vulkan else _OF_F64
    function, element, other = of_f64.get(op.name), "f64", "f32"
    if function is None and is_vulkan:
        function, element, other = _OF_I64_ON_VULKAN.get(op.name), "i64", "i32"
    if function is None or not isinstance(op.results[0].type, ir.RankedTensorType):
        return ""
    is_used = any(True for _ in op.results[0].uses)
    is_absent = str(element_type(op.results[0].type)) == element
    if not is_used or not is_absent or not is_of_the_call(op.results[0]):
        return ""
    name = _NAME.match(str(op.location))
    owner = f" for {name.group(1)}" if name else ""
    device = "Vulkan" if is_vulkan else "llvm-cpu"
    return (
        f"computes {function} of {element}{owner}, which IREE does not do on {device}; convert the "
        f"operand to {other}"
    )
