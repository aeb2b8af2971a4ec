"""Accurate functions of one operand of f32, f16 and bf16.

Symptoms:

* ``sine``, ``cosine``, ``tan``: errors of 3e-7 for angles up to 10, 3e-5 for a thousand, 3e-3 for
  100,000, and infinities beyond (llvm-cpu); Vulkan allows an error of 2**-11,
* ``asin``, ``acos``, ``sinh``, ``cosh``, ``erfc``: errors of 24 to 64 units in the last place.

Causes: IREE 3.13 subtracts multiples of an f32 for pi / 2; CHLO's expansions lose bits in
``1 - x**2``, ``x + log(1/2)`` and ``x**2``.
Test: `test_angles_are_still_inaccurate` in tests/test_angles.py.

Before::

    %y = stablehlo.sine %x : tensor<4xf32>

After: arithmetic of integers and f32, see `subquant.numerics.trigonometry` and `exponentials`.

Source: StableHLO specification, ``sine``, ``cosine`` and ``tan``: operations from IEEE-754.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit import tensor_or_scalar
from ...numerics import trigonometry
from ...numerics.array_functions import convert
from ...numerics.element_types import F32, AnyArray
from ...numerics.exponentials import cosh, erfc, sinh
from ..base import NoMatch, Replacement

_FUNCTIONS: dict[str, Callable[[AnyArray], AnyArray]] = {
    **dict.fromkeys(("math.cos", "stablehlo.cosine"), trigonometry.cosine),
    **dict.fromkeys(("math.sin", "stablehlo.sine"), trigonometry.sine),
    **dict.fromkeys(("chlo.tan", "math.tan", "stablehlo.tan"), trigonometry.tangent),
    **dict.fromkeys(("chlo.acos", "math.acos"), trigonometry.arccosine),
    **dict.fromkeys(("chlo.asin", "math.asin"), trigonometry.arcsine),
    **dict.fromkeys(("chlo.cosh", "math.cosh"), cosh),
    **dict.fromkeys(("chlo.erfc", "math.erfc"), erfc),
    **dict.fromkeys(("chlo.sinh", "math.sinh"), sinh),
}
FLOAT_FUNCTIONS = tuple(_FUNCTIONS)
"""Operations of `expand_float_function`."""


def expand_float_function(op: Operation) -> Replacement:
    """Rewrite a function of one operand, of tensors and in bodies of loops."""
    type_ = op.results[0].type
    if str(element_type(type_)) not in ("f32", "f16", "bf16"):
        return NoMatch("is not of f32 or narrower floats")
    if isinstance(type_, ir.VectorType):
        return NoMatch("is of vectors")
    x = tensor_or_scalar(op.operands[0])
    result: Value = convert(_FUNCTIONS[op.name](convert(x, F32)), x.element).value
    return result
