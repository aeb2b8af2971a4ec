"""``correct-zero-points``: contractions of differences become contractions of storage values.

The second step of a quantized matmul or convolution, after the integer accumulation. Style
``after`` contracts the storage and corrects the sum by the sums of rows and columns; those of a
constant operand are computed here. Style ``inside`` subtracts before; ``mixed`` does so where the
right operand has no zero point, and is ``after`` elsewhere. The formulas are those of
`subquant.transforms.contraction.zero_points`.

Before::

    %a = "subquant.subtract_zero_point"(%x) : (tensor<2x8x!qx>) -> tensor<2x8xi32>
    %b = "subquant.subtract_zero_point"(%w) : (tensor<8x4x!qw>) -> tensor<8x4xi32>
    %acc = stablehlo.dot_general %a, %b, ... : (tensor<2x8xi32>, tensor<8x4xi32>) -> tensor<2x4xi32>

After (the zero point of ``%x`` is 3, that of ``%w`` is 0)::

    %0 = stablehlo.dot_general %x8, %w8, ... : (tensor<2x8xi8>, tensor<8x4xi8>) -> tensor<2x4xi32>
    %1 = stablehlo.reduce(%w32 init: %c0) applies stablehlo.add across dimensions = [0] ...
    %2 = stablehlo.multiply %1b, %c3 : tensor<2x4xi32>
    %acc = stablehlo.subtract %0, %2 : tensor<2x4xi32>

Source: the lowering's "Zero-Point Correction", in both of its ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, ir
from ...core.option_fields import ZeroPoints
from ...dialects.stablehlo import CONTRACTIONS
from ...emit.operation import is_used
from ...errors import Remark
from ..base import UNCHANGED, ModulePass, NoMatch, Replacement, apply_patterns
from ..quantization.math.operands import Operand, difference_of_blocks
from .zero_points import correct_zero_points


@dataclass(frozen=True)
class CorrectZeroPoints(ModulePass):
    """Lower ``subquant.subtract_zero_point``.

    Options:
        style: ``after`` the sum, ``inside`` it, or ``mixed``.
    """

    style: ZeroPoints = "after"

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Lower in `module`, which `verify-quantization` has accepted."""

        def contract(op: Operation) -> Replacement:
            value = correct_zero_points(op, self.style)
            return NoMatch("does not contract two differences") if value is None else value

        contracted = apply_patterns(module, dict.fromkeys(CONTRACTIONS, contract))
        subtracted = apply_patterns(module, {"subquant.subtract_zero_point": _subtract})
        return UNCHANGED if contracted is subtracted is UNCHANGED else None


def _subtract(op: Operation) -> Replacement:
    """Subtract where no contraction took the operands, or nothing where nobody uses it any more."""
    if not is_used(op.results[0]):
        return op.operands[0]  # no use is left to replace: the operation is erased
    operand = Operand.of(op.operands[0], op, blocks=True)
    return difference_of_blocks(operand).value
