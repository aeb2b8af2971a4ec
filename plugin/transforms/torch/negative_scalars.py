"""Write negative integers that operators of floats take as floats.

torch-mlir 20261001 evaluates operators of constants with ``APInt::roundToDouble``, which has no
sign: ``sub.Scalar`` of 127.0 and -128 becomes ``127 - (2**64 - 128)``. Before::

    %int-128 = torch.constant.int -128
    %0 = torch.aten.sub.Scalar %x, %int-128, %int1 : !torch.vtensor<[],f32>, !torch.int, !torch.int

After::

    %float-128 = torch.constant.float -128.0
    %0 = torch.aten.sub.Scalar %x, %float-128, %int1 : !torch.vtensor<[],f32>, !torch.float, ...

Source: ``naryFolderHelper`` in ``lib/Dialect/Torch/IR/TorchOps.cpp`` of torch-mlir.
"""

from __future__ import annotations

import re

from ...core._mlir import Operation, ir
from ...emit.operation import value
from ..base import named, producer_named
from .negative_indices import torch_type

_OPERATORS = tuple(
    f"torch.aten.{name}"
    for name in (
        *(f"{each}.Scalar" for each in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")),
        *("add.Tensor", "sub.Tensor"),
    )
)
"""Operators that torch-mlir evaluates, and that take a number."""
_FLOATS = re.compile(r"!torch\.vtensor<\[.*\],b?f\d+>")


def write_negative_scalars(module: Operation) -> None:
    """Replace negative integer operands of operators whose first operand is a tensor of floats."""
    for op in named(module, _OPERATORS):
        if not _FLOATS.fullmatch(str(op.operands[0].type)):
            continue
        for index, operand in enumerate(op.operands):
            constant = producer_named(operand, "torch.constant.int")
            number = 0 if constant is None else ir.IntegerAttr(constant.attributes["value"]).value
            if number < 0:
                with ir.InsertionPoint(op), op.location:
                    attribute = ir.FloatAttr.get(ir.F64Type.get(), number)
                    op.operands[index] = value(
                        "torch.constant.float", [], torch_type("!torch.float"), {"value": attribute}
                    )
