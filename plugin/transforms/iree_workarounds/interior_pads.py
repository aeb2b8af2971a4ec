"""Barriers around ``pad`` with interior padding, and around pads of narrow integers.

Symptom: every element after the first is at a wrong index (all targets); padded bytes are at wrong
indices (Vulkan).
Cause: IREE 3.13 folds the destination of a pad with interior padding (by an outer pad, a window's
padding or an update; also through reshapes and slices) into the inner pad, and loses its strides.
It also loses the strides if the operand of the interior padding is itself padded.
Test: `test_elements_are_still_at_wrong_indices` and
`test_a_padded_operand_is_still_dilated_wrongly` in tests/test_iree_limits_numbers.py.

A barrier after the inner pad separates the two. The operand of interior padding, and of a
convolution or window that dilates it, is computed in another dispatch. On Vulkan, a barrier before
the pad stores computed bytes first.

Source: StableHLO specification, ``pad``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, ir
from ...dialects.windows import window_steps
from ...emit import linalg
from ..base import NoMatch, producer_of
from .dynamic_shapes import is_refused_pad

_BARRIER = "stablehlo.optimization_barrier"
_NARROW = ("i8", "ui8", "i16", "ui16")
_CONSTANTS = ("stablehlo.constant", "arith.constant", "util.global.load")


def separate_pad(op: Operation) -> NoMatch | None:
    """Put a barrier after a ``pad`` with interior padding, and compute its operand separately."""
    if not any(op.attributes["interior_padding"]):
        return NoMatch("has no interior padding")
    if is_refused_pad(op):
        return NoMatch("becomes a loop nest")
    result = op.results[0]
    users = [(use.owner, use.operand_number) for use in result.uses if use.owner.name != _BARRIER]
    if not users:
        return NoMatch("is before a barrier")
    linalg.separate_operands(op, [0])
    with ir.InsertionPoint.after(op):
        separate = emit.value(_BARRIER, [result], result.type)
    for user, number in users:
        user.operands[number] = separate
    return None


def separate_dilated(op: Operation) -> NoMatch | None:
    """Compute the operand that a ``convolution`` or ``reduce_window`` dilates separately."""
    is_window = op.name == "stablehlo.reduce_window"
    steps = window_steps(op, "base_dilations" if is_window else "lhs_dilation", 0)
    if all(step == 1 for step in steps):
        return NoMatch("dilates nothing")
    count = len(op.results) if is_window else 1
    if linalg.separate_operands(op, range(count)):
        return None
    return NoMatch("dilates an operand that is computed separately")


def separate_bytes(op: Operation) -> NoMatch | None:
    """Put a barrier before a ``pad`` of computed narrow integers where it shifts groups of four.

    IREE 3.13 on Vulkan stores four at once, and at wrong indices if padded rows of whole groups
    start inside a group (tests/test_onnx_operators.py: 386 of 400 results).
    """
    operand, type_ = op.operands[0], op.operands[0].type
    low, high = (list(map(int, op.attributes[f"edge_padding_{end}"])) for end in ("low", "high"))
    if not type_.has_static_shape or str(type_.element_type) not in _NARROW:
        return NoMatch("does not pad integers of 8 or 16 bits, of a static shape")
    producer = producer_of(operand)
    if producer is None or producer.name in (_BARRIER, *_CONSTANTS):
        return NoMatch("pads a tensor in memory")
    stride, is_misaligned = 1, False
    for before, after, size in reversed(list(zip(low, high, type_.shape, strict=True))):
        whole = stride * int(size)
        total = whole + stride * (before + after)
        is_misaligned |= bool(stride * before % 4) and not whole % 4 and not total % 4
        stride = total
    if not is_misaligned:
        return NoMatch("starts rows at multiples of four")
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = emit.value(_BARRIER, [operand], type_)
    return None
