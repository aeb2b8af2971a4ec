"""``lower-saturation``: lower ``subquant.saturate`` to a clamp and a truncation.

The last step of a requantization.

Before::

    %s = "subquant.saturate"(%v) {range = array<i64: -128, 127>} : (tensor<4xi64>) -> tensor<4xi8>

After::

    %0 = stablehlo.minimum %v, %c127 : tensor<4xi64>
    %1 = stablehlo.maximum %0, %c_128 : tensor<4xi64>
    %s = stablehlo.convert %1 : (tensor<4xi64>) -> tensor<4xi8>

Source: the lowering's "Clamping and Casting".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, ir
from ...emit import tensor
from ...emit.operation import element_of
from ...errors import Remark
from ...numerics.array_functions import convert
from ..base import ModulePass, Replacement, apply_patterns


@dataclass(frozen=True)
class LowerSaturation(ModulePass):
    """Lower ``subquant.saturate``."""

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Lower in `module`, which `verify-quantization` has accepted."""
        return apply_patterns(module, {"subquant.saturate": _lower})


def _lower(op: Operation) -> Replacement:
    (value,) = op.operands
    low, high = (int(bound) for bound in op.attributes["range"])
    clamped = np.maximum(np.minimum(tensor(value), high), low)
    result = convert(clamped, element_of(op.results[0].type))
    return result.value
