"""Write remainders with the divisor's sign; torch-mlir 20261001 lowers them with the dividend's.

``aten.remainder`` becomes ``stablehlo.remainder``, which is ``fmod`` of C: ``remainder(-2, 3)``
would be -2 in place of 1. Before::

    %0 = torch.aten.remainder.Tensor %x, %y : ...
    %1 = torch.aten.fmod.Tensor %x, %y : ...

After::

    %r = torch.aten.remainder.Tensor %x, %y : ...
    %0 = torch.aten.where.self (%r != 0 and (%r < 0) != (%y < 0)), %r + %y, %r : ...
    %1 = torch.aten.remainder.Tensor %x, %y : ...

Source: ``remainder_kernel`` and ``fmod_kernel`` in ``aten/src/ATen/native/cpu/BinaryOpsKernel.cpp``
of PyTorch.
"""

from __future__ import annotations

import re

from ...core._mlir import Operation, Value, ir
from ...emit.operation import value
from ..base import named
from .negative_indices import torch_integer, torch_type

_REMAINDERS = ("torch.aten.remainder.Scalar", "torch.aten.remainder.Tensor")
_TRUNCATED = ("torch.aten.fmod.Scalar", "torch.aten.fmod.Tensor")
_TENSOR = re.compile(r"!torch\.vtensor<(\[.*\]),\w+>")


def write_remainders(module: Operation) -> None:
    """Correct ``remainder``, and write ``fmod``, which torch-mlir does not lower, by it."""
    for op in named(module, _REMAINDERS):
        _correct(op)
    for op in named(module, _TRUNCATED):
        dividend, divisor = op.operands
        suffix = op.name.rpartition(".")[2]
        with ir.InsertionPoint(op), op.location:
            truncated = value(
                f"torch.aten.remainder.{suffix}", [dividend, divisor], op.results[0].type
            )
        op.results[0].replace_all_uses_with(truncated)
        op.erase()


def _correct(op: Operation) -> None:
    """Add the divisor to remainders that are not 0 and have the other sign."""
    divisor, result = op.operands[1], op.results[0]
    match = _TENSOR.fullmatch(str(result.type))
    if match is None:
        return
    with ir.InsertionPoint(op), op.location:
        truncated = value(op.name, list(op.operands), result.type)
        if op.name == "torch.aten.remainder.Scalar":
            zeros = value("torch.aten.mul.Scalar", [truncated, torch_integer(0)], result.type)
            divisor = value(
                "torch.aten.add.Scalar", [zeros, divisor, torch_integer(1)], result.type
            )
        mask = torch_type(f"!torch.vtensor<{match.group(1)},i1>")
        is_negative = _below_zero(truncated)
        differs = value("torch.aten.logical_xor", [is_negative, _below_zero(divisor)], mask)
        is_nonzero = value("torch.aten.ne.Scalar", [truncated, torch_integer(0)], mask)
        condition = value("torch.aten.logical_and", [is_nonzero, differs], mask)
        moved = value("torch.aten.add.Tensor", [truncated, divisor, torch_integer(1)], result.type)
        corrected = value("torch.aten.where.self", [condition, moved, truncated], result.type)
    result.replace_all_uses_with(corrected)
    op.erase()


def _below_zero(tensor: Value) -> Value:
    match = _TENSOR.fullmatch(str(tensor.type))
    assert match is not None
    mask = torch_type(f"!torch.vtensor<{match.group(1)},i1>")
    return value("torch.aten.lt.Scalar", [tensor, torch_integer(0)], mask)
