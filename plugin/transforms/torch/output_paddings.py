"""Output paddings of transposed convolutions, which torch-mlir reads from the last axis on.

torch-mlir 20261001 gives the first output padding to the last axis: results of dynamic size had
another shape. Before::

    %p = torch.prim.ListConstruct %int1, %int0   // one row, no column
    %0 = torch.aten.convolution %x, %w, %bias, %stride, %padding, %dilation, %true, %p, %groups

After::

    %p = torch.prim.ListConstruct %int0, %int1
    %0 = torch.aten.convolution %x, %w, %bias, %stride, %padding, %dilation, %true, %p, %groups
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...emit.operation import value
from ..base import named, producer_named

_POSITIONS = {
    "torch.aten.convolution": 7,
    "torch.aten.conv_transpose1d": 5,
    "torch.aten.conv_transpose2d.input": 5,
    "torch.aten.conv_transpose3d.input": 5,
}
"""The number of the operand ``output_padding`` by operator."""


def reverse_output_paddings(module: Operation) -> None:
    """Reverse the output paddings of all convolutions; those that are not transposed have zeros."""
    for op in named(module, tuple(_POSITIONS)):
        number = _POSITIONS[op.name]
        sizes = producer_named(op.operands[number], "torch.prim.ListConstruct")
        if sizes is not None and len(set(sizes.operands)) > 1:
            with ir.InsertionPoint(op), op.location:
                reverse = value(sizes.name, list(sizes.operands)[::-1], sizes.results[0].type)
            op.operands[number] = reverse
