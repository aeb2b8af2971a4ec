"""Convolutions of i8 with i32 results, which PyTorch writes as convolutions of i32.

Before::

    %0 = stablehlo.convert %x : (tensor<1x8x9x9xi8>) -> tensor<1x8x9x9xi32>
    %1 = stablehlo.convert %w : (tensor<16x8x3x3xi8>) -> tensor<16x8x3x3xi32>
    %y = stablehlo.convolution(%0, %1) ... -> tensor<1x16x7x7xi32>

After::

    %y = stablehlo.convolution(%x, %w) ... -> tensor<1x16x7x7xi32>

Products of i8 and their sums are the same in i32.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value
from ...emit.operation import erase_unused
from ..base import named, producer_named


def narrow_convolutions(module: Operation) -> None:
    """Let convolutions read the i8 operands that are widened to i32 for them."""
    for op in named(module, ["stablehlo.convolution"]):
        widenings = [_widening(operand) for operand in op.operands]
        for number, widening in enumerate(widenings):
            if all(widenings) and widening is not None:
                op.operands[number] = widening.operands[0]
        for widening in dict.fromkeys(widenings):
            if widening is not None:
                erase_unused(widening, also=lambda _: False)


def _widening(operand: Value) -> Operation | None:
    """Return the conversion of i8 to i32 that an operand is; None for another value."""
    convert = producer_named(operand, "stablehlo.convert")
    if convert is None:
        return None
    types = [str(each.type.element_type) for each in (convert.operands[0], operand)]
    return convert if types == ["i8", "i32"] else None
