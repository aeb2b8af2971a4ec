"""Tensors that are updated in place, each in a buffer of its own.

IREE 3.13 takes computations that read no buffer (an iota, say) for as cheap as a constant: it
writes one for each operation that updates the result in place, takes the equal ones for one again,
and then all update the same buffer. Two argsorts of one length are wrong on every target.

A computation that reads a buffer is kept apart. So one that is updated is selected by a flag that
IREE does not look through, of its own for each update::

    %hidden = "util.optimization_barrier"(%true) : (i1) -> i1
    %flag = tensor.from_elements %hidden : tensor<i1>
    %own = stablehlo.select %flag, %iota, %zeros : tensor<i1>, tensor<9xi32>
    %sorted:2 = "stablehlo.sort"(%x, %own) ({...})
"""

from __future__ import annotations

from ... import emit
from ..._mlir import Operation, Rewriter, Value, ir
from ...dialects.quant import element_type
from ...emit import linalg, stablehlo
from ...emit.operation import parse_attribute, tensor_type
from ...numerics.element_types import BOOL
from ..base import NoMatch

__all__ = ["UPDATES", "in_own_buffer", "separate_updated"]

UPDATES = ("stablehlo.dynamic_update_slice", "stablehlo.scatter", "stablehlo.sort")
"""What IREE does in place, in the operands that become results."""

_CONSTANTS = ("arith.constant", "stablehlo.constant")
_OF_ELEMENTS = ("arith.", "chlo.", "linalg.", "math.", "stablehlo.", "tensor.")
_SAME_ELEMENTS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")


def separate_updated(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Give an operation of `UPDATES` its own tensors, where they are computed from no buffer."""
    found = [
        number
        for number, operand in enumerate(list(op.operands)[: len(op.results)])
        if not _is_filled(operand) and not _reads_buffer(operand)
    ]
    if not found:
        return NoMatch("updates tensors that read buffers")
    for number in found:
        op.operands[number] = in_own_buffer(op.operands[number])
    return None


def _is_filled(value: Value) -> bool:
    """True for a constant of equal elements, which IREE fills each buffer with."""
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in _SAME_ELEMENTS:
        value = value.owner.operation.operands[0]
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name in _CONSTANTS


def _reads_buffer(value: Value) -> bool:
    """True if a value is computed from an argument, a constant of several elements, or a flag."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value.owner, ir.Block):
            return True
        producer = value.owner.operation
        if producer.name in _CONSTANTS:
            attribute = producer.attributes["value"]
            if isinstance(value.type, ir.ShapedType) and not _is_splat(attribute):
                return True
        elif not _is_of_elements(producer):
            return True
        else:
            pending += producer.operands
    return False


def _is_of_elements(producer: Operation) -> bool:
    """True if a result depends on the operands alone, element by element or moved."""
    has_body = len(producer.regions) > 0 and not producer.name.startswith("linalg.")
    return producer.name.startswith(_OF_ELEMENTS) and not has_body


def _is_splat(attribute: ir.Attribute) -> bool:
    return isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat


def in_own_buffer(value: Value) -> Value:
    """A copy of a tensor, which a flag selects that IREE does not know."""
    true = emit.Scalars().known(1, BOOL).value
    # StableHLO's barriers would be taken for one; a tensor would be waited for by the host.
    hidden = emit.value("util.optimization_barrier", [true], true.type)
    flag = linalg.from_elements([hidden], tensor_type([], true.type))
    element = element_type(value.type)
    if isinstance(element, ir.ComplexType):
        complex_zero = parse_attribute(f"dense<(0.0, 0.0)> : {tensor_type([], element)}")
        zero = stablehlo.constant_of(complex_zero)
    else:
        zero = stablehlo.zero_of(element)
    zeros = emit.Tensors(value).broadcast(zero)
    return emit.value("stablehlo.select", [flag, value, zeros], value.type)
