"""``legalize-quant-to-math``: lower StableHLO on quantized values to StableHLO on integers.

Operations that are linear in the expressed values are computed on differences of storage values and
zero points, which are integers (``subquant.subtract_zero_point``), and requantized once at the end
(``subquant.requantize``): add, subtract, multiply, negate, abs, contractions, reductions, changes
of parameters. Comparisons and data movement work on the storage, after a change of parameters if an
operand's differ from the result's. Any other function is a table if its operands have few values;
else it is computed in the expressed type, between a dequantization and a quantization, as the
specification defines it. The rules are in `subquant.transforms.quantization.math`, one function per
operation; ``correct-zero-points``, ``lower-requantization`` and ``lower-saturation`` lower the
steps.

Quantized values and their storage are connected by ``subquant.scast``; operations that only move
data are checked here and keep their quantized types until ``convert-quantized-to-storage``.

Before::

    %s = stablehlo.add %x, %y : (tensor<4x!quant.uniform<i8:f32, 0.5:3>>,
                                 tensor<4x!quant.uniform<i8:f32, 0.25>>)
           -> tensor<4x!quant.uniform<i8:f32, 1.0:-1>>

After::

    %0 = "subquant.subtract_zero_point"(%x) : (tensor<4x!q1>) -> tensor<4xi32>
    %1 = "subquant.subtract_zero_point"(%y) : (tensor<4x!q2>) -> tensor<4xi32>
    %q = "subquant.requantize_2"(%0, %1) {scales = [dense<0.5>, dense<0.25>], ...}
           : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi8>
    %s = "subquant.scast"(%q) : (tensor<4xi8>) -> tensor<4x!quant.uniform<i8:f32, 1.0:-1>>

Sources: StableHLO specification, "Quantization computations" and each operation's section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...core._mlir import Operation, ir
from ...dialects.quant import is_quantized
from ...errors import Remark
from ...numerics.casts import Division
from ..base import (
    UNCHANGED,
    ModulePass,
    NoMatch,
    Pattern,
    Replacement,
    apply_patterns,
    has_type,
    named,
)
from .math.casts import STABLEHLO_CASTS
from .math.reduction import REDUCTIONS, legalize_reductions
from .math.rules import QuantizedOperation, Rule, rules


@dataclass(frozen=True)
class LegalizeQuantToMath(ModulePass):
    """Write every StableHLO operation on quantized values with integers.

    Options:
        division: see ``lower-quant-casts``.
        casts: the lowering of ``quant`` casts: ``keep`` leaves them to ``lower-quant-casts``,
            ``stablehlo`` writes them in operations that StableHLO's interpreter supports.
    """

    division: Division = "native"
    casts: Literal["keep", "stablehlo"] = "keep"

    def run(self, module: ir.Operation) -> Sequence[Remark] | None:
        """Legalize `module`.

        Raises:
            UnsupportedError: an operation that has no meaning for its quantized types.
        """
        lowered = rules() | (STABLEHLO_CASTS if self.casts == "stablehlo" else {})
        if not named(module, (*lowered, *REDUCTIONS)):
            return UNCHANGED
        legalize_reductions(named(module, REDUCTIONS))
        apply_patterns(module, {name: self._pattern(rule) for name, rule in lowered.items()})
        return None

    def _pattern(self, rule: Rule) -> Pattern:
        """A pattern for operations with quantized operands or results."""

        def pattern(op: Operation) -> Replacement:
            if not has_type(op, is_quantized):
                return NoMatch("has no quantized value")
            results = rule(QuantizedOperation(op, self.division))
            return NoMatch("keeps its quantized types") if results is None else results

        return pattern
