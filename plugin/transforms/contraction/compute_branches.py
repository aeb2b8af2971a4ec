"""Small branches: both are computed, and their results selected.

IREE reads the condition of a branch in the middle of a call, and each call allocates memory: a
function with a branch has no bound entry point (`subquant.iree_hooks.sync_entries`). Openwakeword's
hey_jarvis, a network and a branch with a second one, takes 26.8 us with the branch and 24.6 without
(Zen 4; LiteRT takes 25.7). Before::

    %y = "stablehlo.if"(%p) ({
      %1 = stablehlo.tanh %x : tensor<1x64xf32>
      stablehlo.return %1 : tensor<1x64xf32>
    }, {
      stablehlo.return %x : tensor<1x64xf32>
    }) : (tensor<i1>) -> tensor<1x64xf32>

After::

    %1 = stablehlo.tanh %x : tensor<1x64xf32>
    %y = stablehlo.select %p, %1, %x : tensor<i1>, tensor<1x64xf32>
"""

from __future__ import annotations

from ...core._mlir import Operation, ir
from ...dialects.quant import is_quantized
from ...emit.operation import value
from ..base import named, walk
from .estimate_work import nanoseconds_of

_MAX_NANOSECONDS = 20_000.0
"""The estimated time of both branches, at most, which is spent in every call."""
_INTEGER_DIVISIONS = ("stablehlo.divide", "stablehlo.remainder")
_IF = "stablehlo.if"


def compute_branches(module: Operation, instructions: str) -> None:
    """Replace each ``if`` of short branches without effects.

    Args:
        instructions: the instruction set of kernels, by which times are estimated.
    """
    for op in named(module, [_IF]):  # inner ones first
        bodies = [[each.operation for each in region.blocks[0].operations] for region in op.regions]
        if any(is_quantized(each.type) for each in op.results):
            continue  # `select` has no rule for them
        inner = [each for body in bodies for each in body[:-1]]
        if any(_may_fail(each) for outer in inner for each in (outer, *walk(outer))):
            continue
        times = [nanoseconds_of(each, instructions) for each in inner]
        if None in times or sum(filter(None, times)) > _MAX_NANOSECONDS:
            continue
        for each in inner:
            each.move_before(op)
        yes, no = (list(body[-1].operands) for body in bodies)
        with ir.InsertionPoint(op), op.location:
            for result, first, second in zip(op.results, yes, no, strict=True):
                operands = [op.operands[0], first, second]
                result.replace_all_uses_with(value("stablehlo.select", operands, result.type))
        op.erase()


def _may_fail(op: Operation) -> bool:
    """True for a division of integers, which the condition may protect from a zero."""
    is_division = op.name in _INTEGER_DIVISIONS
    return is_division and isinstance(op.results[0].type.element_type, ir.IntegerType)
