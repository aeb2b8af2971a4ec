"""Sine, cosine and tangent of f32, f16 and bf16, for every angle.

Symptom: errors of 3e-7 for angles up to 10, 3e-5 for a thousand, 3e-3 for 100,000, and infinities
beyond (llvm-cpu); Vulkan allows an error of 2**-11.
Cause: IREE 3.13 subtracts multiples of an f32 for pi / 2.
Test: `test_angles_are_still_inaccurate` in tests/test_angles.py.

Before::

    %y = stablehlo.sine %x : tensor<4xf32>

After: arithmetic of integers and f32, see `subquant.numerics.trigonometry`.

Source: StableHLO specification, ``sine``, ``cosine`` and ``tan``: operations from IEEE-754.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import tensor_or_scalar
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, AnyArray
from ...numerics.trigonometry import cosine, sine, tangent
from ..base import NoMatch, Replacement

_FUNCTIONS: dict[str, Callable[[AnyArray], AnyArray]] = {
    **dict.fromkeys(("math.cos", "stablehlo.cosine"), cosine),
    **dict.fromkeys(("math.sin", "stablehlo.sine"), sine),
    **dict.fromkeys(("chlo.tan", "math.tan", "stablehlo.tan"), tangent),
}
ANGLES = tuple(_FUNCTIONS)
"""Operations of `expand_angle`."""


def expand_angle(op: Operation) -> Replacement:
    """Rewrite a function of an angle, of tensors and in bodies of loops."""
    type_ = op.results[0].type
    if str(element_type(type_)) not in ("f32", "f16", "bf16"):
        return NoMatch("is not of f32 or narrower floats")
    if isinstance(type_, ir.VectorType):
        return NoMatch("is of vectors")
    x = tensor_or_scalar(op.operands[0])
    result: Value = convert(_FUNCTIONS[op.name](convert(x, F32)), x.element).value
    return result
