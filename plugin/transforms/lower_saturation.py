"""``lower-saturation``: ``subquant.saturate`` becomes a clamp and a truncation.

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

from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import ir
from .base import ModulePass, NoMatch, apply_patterns
from .requantization import resize
from .tensor_builder import TensorBuilder

__all__ = ["LowerSaturation"]


@dataclass(frozen=True)
class LowerSaturation(ModulePass):
    """Lower ``subquant.saturate``."""

    name: ClassVar[str] = "lower-saturation"

    def run(self, module: ir.Operation) -> None:
        """Lower in `module`, which `verify-quantization` has accepted."""
        apply_patterns(module, {"subquant.saturate": _lower})


def _lower(op: Any, rewriter: Any) -> NoMatch | None:
    (value,) = op.operands
    low, high = (int(bound) for bound in op.attributes["range"])
    b, type_ = TensorBuilder(value), value.type
    value = b.op("arith.minsi", [value, b.constant(high, type_)], type_)
    value = b.op("arith.maxsi", [value, b.constant(low, type_)], type_)
    rewriter.replace_op(op, [resize(b, value, op.results[0].type.element_type)])
    return None
