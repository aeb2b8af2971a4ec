"""Sums of squares for llvm-cpu, as those of norms and variances, in vectors.

Symptom: the squares of 128 x 4 x 256 f32 take 84 us to add up along the last axis, with the
magnitude below 6.6 (``subquant bench``, one thread of a Xeon with AMX).
Cause: IREE 3.13 takes a product that is added up for a contraction, and unrolls its vectors to
scalars (`LLVMCPUVirtualVectorLoweringPass`).
Test: none: results are the same but for roundings.

The magnitude of a square is the square (of NaN the sign may differ), and IREE finds no contraction
with it between::

    %s = stablehlo.multiply %x, %x : tensor<128x640xf32>
    %r = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : ...

becomes ::

    %s = stablehlo.multiply %x, %x : tensor<128x640xf32>
    %m = stablehlo.abs %s : tensor<128x640xf32>
    %r = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [1] : ...
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...dialects.quant import element_type
from ...emit.operation import value
from ..base import NoMatch

_MAX_STEP_ROWS = 8
"""Sums of up to 8 rows keep IREE's order of additions, which is that of a row alone.

The tokens of a draft or a batch of a language model, 8 at most, have the bits of single tokens.
"""


def separate_squares(op: Operation) -> NoMatch | None:
    """Put a magnitude between squares of f32 or f64 and their sum."""
    square = op.operands[0].owner
    if len(op.results) != 1 or isinstance(square, ir.Block):
        return NoMatch("reduces no single result of an operation")
    is_square = square.name == "stablehlo.multiply" and square.operands[0] == square.operands[1]
    if not is_square:
        return NoMatch("reduces no squares")
    if not isinstance(element_type(op.operands[0].type), (ir.F32Type, ir.F64Type)):
        return NoMatch("has other elements than f32 and f64")
    shape = op.operands[0].type.shape
    if not shape or 0 <= int(shape[0]) <= _MAX_STEP_ROWS:
        return NoMatch("has few rows")
    if op.regions[0].blocks[0].operations[0].operation.name != "stablehlo.add":
        return NoMatch("is no sum")
    op.operands[0] = value("stablehlo.abs", [op.operands[0]], op.operands[0].type)
    return None
