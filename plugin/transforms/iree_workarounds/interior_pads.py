"""Pads between elements, whose result may be padded or put into another tensor, and of bytes.

IREE 3.13 folds a tensor that a pad between elements is inserted into, by an outer pad, a window's
padding or an update, into the inner one, and loses its steps: every element after the first lands
in a wrong place, on both targets. It looks through reshapes and slices too. A barrier after the
inner pad keeps the two apart. It loses the steps as well if the operand of the pad between elements
is itself padded; that operand, and that of a convolution or window that dilates it, is computed
apart.

On Vulkan it writes bytes that are computed where they are padded to other places; a barrier before
has them in memory first.

Source: StableHLO specification, ``pad``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter, ir
from ...dialects.windows import window_steps
from ...emit import linalg
from ..base import NoMatch
from .dynamic_shapes import is_refused_pad

__all__ = ["separate_bytes", "separate_dilated", "separate_pad"]

_BARRIER = "stablehlo.optimization_barrier"
_NARROW = ("i8", "ui8", "i16", "ui16")
_CONSTANTS = ("stablehlo.constant", "arith.constant", "util.global.load")


def separate_pad(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Put a barrier after a ``pad`` between elements, and compute its operand apart."""
    if not any(op.attributes["interior_padding"]):
        return NoMatch("pads at the ends only")
    if is_refused_pad(op):
        return NoMatch("becomes a loop nest")
    result = op.results[0]
    users = [(use.owner, use.operand_number) for use in result.uses if use.owner.name != _BARRIER]
    if not users:
        return NoMatch("is before a barrier")
    linalg.set_apart(op, [0])
    with ir.InsertionPoint.after(op):
        behind = emit.value(_BARRIER, [result], result.type)
    for user, number in users:
        user.operands[number] = behind
    return None


def separate_dilated(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Compute apart the operand that a ``convolution`` or ``reduce_window`` dilates."""
    is_window = op.name == "stablehlo.reduce_window"
    steps = window_steps(op, "base_dilations" if is_window else "lhs_dilation", 0)
    if all(step == 1 for step in steps):
        return NoMatch("dilates nothing")
    count = len(op.results) if is_window else 1
    if linalg.set_apart(op, range(count)):
        return None
    return NoMatch("dilates an operand that is computed apart")


def separate_bytes(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Put a barrier before a ``pad`` of narrow integers that are computed, where it moves fours.

    IREE 3.13 on Vulkan writes four at once, and to other places where rows of whole fours, before
    and after, begin inside one (tests/test_onnx_operators.py: 386 of 400 sums).
    """
    operand, (low, high) = (
        op.operands[0],
        ([int(n) for n in op.attributes[f"edge_padding_{end}"]] for end in ("low", "high")),
    )
    type_ = operand.type
    if not type_.has_static_shape or str(type_.element_type) not in _NARROW:
        return NoMatch("does not pad integers of 8 or 16 bits, of a static shape")
    if isinstance(operand.owner, ir.Block) or operand.owner.name in (_BARRIER, *_CONSTANTS):
        return NoMatch("pads what is in memory")
    inner, is_inside = 1, False
    for before, after, extent in reversed(list(zip(low, high, type_.shape, strict=True))):
        whole = inner * int(extent)
        total = whole + inner * (before + after)
        is_inside |= bool(inner * before % 4) and not whole % 4 and not total % 4
        inner = total
    if not is_inside:
        return NoMatch("begins at fours")
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = emit.value(_BARRIER, [operand], type_)
    return None
