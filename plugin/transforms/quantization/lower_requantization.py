"""``lower-requantization``: lower ``subquant.requantize`` to integer arithmetic.

The sum of scaled integers is rounded to a whole number of steps of the result and its zero point is
added: exactly, or by one fixed-point multiplication and shift per term; the formulas are in
`subquant.numerics.requantization`. The clamp to the storage range is left to ``lower-saturation``.

Before::

    %s = "subquant.requantize"(%acc) {scales = [dense<0.125> : tensor<f64>],
           bounds = array<i64: 65024>, quantized_type = !quant.uniform<i8:f32, 0.5:3>}
         : (tensor<4xi32>) -> tensor<4xi8>

After, with ``requantization=fixed-point``::

    %0 = stablehlo.convert %acc : (tensor<4xi32>) -> tensor<4xi64>
    %1 = stablehlo.multiply %0, %multiplier : tensor<4xi64>
    %2 = stablehlo.add %1, %half : tensor<4xi64>
    %3 = stablehlo.shift_right_arithmetic %2, %shift : tensor<4xi64>
    %4 = stablehlo.add %3, %zero_point : tensor<4xi64>
    %s = "subquant.saturate"(%4) {range = array<i64: -128, 127>} : (tensor<4xi64>) -> tensor<4xi8>

Sources: the lowering's "Requantization Scaling" and "Output Zero-Point Addition"; StableHLO
specification, ``uniform_quantize``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir
from ...core.option_fields import FixedPointRounding, RequantizationForm
from ...dialects.integer_steps import read_requantize
from ...dialects.subquant import REQUANTIZE
from ...emit import Tensors
from ...emit.casts import saturate
from ...errors import Remark
from ...numerics.requantization import Requantization
from ..base import ModulePass, Replacement, apply_patterns


@dataclass(frozen=True)
class LowerRequantization(ModulePass):
    """Lower ``subquant.requantize``.

    Options:
        requantization: ``exact`` or ``fixed-point``.
        fixed_point_rounding: one of `subquant.numerics.fixed_point.ROUNDINGS`.
    """

    requantization: RequantizationForm = "exact"
    fixed_point_rounding: FixedPointRounding = "half-up"

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Lower in `module`, which `verify-quantization` has accepted."""
        how = Requantization(self.requantization, self.fixed_point_rounding)

        def lower(op: Operation) -> Replacement:
            step = read_requantize(op)
            form = Tensors(step.terms[0].value)
            rounded = step.rounded([form.emitted(term.value) for term in step.terms], how)
            return saturate(rounded.value, step.storage, rounded.bound)

        return apply_patterns(module, dict.fromkeys(REQUANTIZE, lower))
