"""``select-kernels``: block contractions that a kernel computes become calls of it.

Contractions whose activations are rounded to 8 bits are sums of products of small integers, which
CPUs have instructions for that IREE's code generation does not use. `subquant.kernels` writes loops
with these. What they do not compute (activations as reals, windows, weights of few elements) is
left to ``lower-block-contractions``.

Before::

    %y = "subquant.block_contraction"(%x, %q, %s) {activation_type = "int8", ...}
         : (tensor<4x4096xf32>, tensor<4096x2048xi8>, tensor<4096x128xf16>) -> tensor<4x4096xf32>

After::

    %i:3 = flow.dispatch @round_rows::@round_rows(%x)
    %y = flow.dispatch @block_product::@block_product(%tiles, %scales, %i#0, %i#1, %i#2)

The weight is laid out anew (`subquant.kernels.tiles`): a constant here, an argument or parameter by
operations of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .._mlir import Operation, ir
from ..dialects.block_contraction import BlockContraction
from ..dialects.subquant import BLOCK_CONTRACTION
from ..errors import Remark, UsageError, expected_name
from ..kernels.contraction import Product, Refusal
from ..kernels.executables import Library
from ..kernels.instructions import INSTRUCTIONS
from .base import UNCHANGED, ModulePass, named

__all__ = ["SelectKernels"]


@dataclass(frozen=True)
class SelectKernels(ModulePass):
    """Turn every ``subquant.block_contraction`` that a kernel computes into calls.

    Options:
        instructions: what kernels multiply with, a name in `INSTRUCTIONS`.
        explain: say of each contraction that is left why it is.
    """

    name: ClassVar[str] = "select-kernels"

    instructions: str = "portable"
    explain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instructions not in INSTRUCTIONS:
            raise UsageError(
                f"{self.name} knows no instructions '{self.instructions}'; "
                f"{expected_name(self.instructions, INSTRUCTIONS)}"
            )

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Select in `module`; never fails."""
        found = named(module, [BLOCK_CONTRACTION])
        if not found:
            return UNCHANGED
        remarks, library = [], Library(module)
        for op in found:
            product = Product.of(BlockContraction.of(op), self.instructions)
            if isinstance(product, Refusal):
                if self.explain:
                    remarks.append(Remark.about(op, f"has no kernel: {product.reason}"))
                continue
            with ir.InsertionPoint(op), op.location:
                result = product.emit(library, op.results[0].type)
            op.results[0].replace_all_uses_with(result)
            op.erase()
        return remarks
