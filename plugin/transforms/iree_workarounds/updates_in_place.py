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

It also computes an update where it writes it, in one dispatch that reads and writes the buffer:
what is updated with a part of itself, as a tensor that is shifted, reads what is written already.
That is wrong on every target; where nothing is computed, the call fails ("source and target ranges
must not overlap"). Such an update is computed before::

    %part = stablehlo.slice %x [0:8] : (tensor<9xi32>) -> tensor<8xi32>
    %more = stablehlo.add %part, %step : tensor<8xi32>
    %before = "util.optimization_barrier"(%more) : (tensor<8xi32>) -> tensor<8xi32>
    %r = stablehlo.dynamic_update_slice %x, %before, %one
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.dense import CONSTANTS
from ...dialects.quant import element_type
from ...emit import linalg, stablehlo
from ...emit.operation import parse_attribute, tensor_type
from ...numerics.element_types import BOOL
from ..base import NoMatch

__all__ = ["UPDATES", "in_own_buffer", "separate_updated"]

UPDATES = ("stablehlo.dynamic_update_slice", "stablehlo.scatter", "stablehlo.sort")
"""What IREE does in place, in the operands that become results."""

_OF_ELEMENTS = ("arith.", "chlo.", "linalg.", "math.", "stablehlo.", "tensor.")
_SAME_ELEMENTS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")


def separate_updated(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Give an operation of `UPDATES` its own tensors, and updates that are computed before."""
    updated = list(op.operands)[: len(op.results)]
    changed = False
    for number, operand in enumerate(updated):
        if not _is_constant(operand) and not _reads_buffer(operand):
            op.operands[number] = _filled(operand) or in_own_buffer(operand)
            changed = True
    computed = [] if op.name == "stablehlo.sort" else _tensors_after(op, len(updated))
    for number in computed:
        if any(_is_made_of(op, number, operand) for operand in updated):
            op.operands[number] = linalg.behind_barrier(op.operands[number])
            changed = True
    return None if changed else NoMatch("updates tensors that read buffers, with others")


def _tensors_after(op: Operation, number: int) -> list[int]:
    """The numbers of the operands from one on that are tensors with axes."""
    types = [operand.type for operand in op.operands]
    return [n for n in range(number, len(types)) if types[n].rank]


def _is_made_of(op: Operation, number: int, updated: Value) -> bool:
    """True if an operand is computed from a tensor, or from what that is computed from.

    A tensor is computed from little, as a rule: an argument, say, in a program of many updates. So
    the walk is from there to the operand, and not back from what may be made of the whole program.
    """
    sources = _sources(updated)
    return op.operands[number] in sources or op.operands[number] in _made_of(sources, op)


def _sources(value: Value) -> set[Value]:
    """What a value is computed from, and itself, without constants and what is before barriers."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        is_argument = isinstance(value.owner, ir.Block)
        if value in seen or (not is_argument and value.owner.operation.name in CONSTANTS):
            continue
        seen.add(value)
        if not is_argument and value.owner.operation.name != linalg.BARRIER:
            pending += value.owner.operation.operands
    return seen


def _made_of(sources: set[Value], end: Operation) -> set[Value]:
    """What is computed from some values, without what is behind barriers, or made by `end`."""
    seen: set[Value] = set()
    pending = list(sources)
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            if user == end or user.name == linalg.BARRIER:
                continue
            for result in user.results:
                if result not in seen:
                    seen.add(result)
                    pending.append(result)
    return seen


def _is_constant(value: Value) -> bool:
    """True for a constant, which IREE copies, or fills each buffer with."""
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name in CONSTANTS


def _filled(value: Value) -> Value | None:
    """A constant of equal elements that is broadcast, as one constant; loops write the first."""
    source = value
    while not isinstance(source.owner, ir.Block) and source.owner.operation.name in _SAME_ELEMENTS:
        source = source.owner.operation.operands[0]
    if not _is_constant(source) or not value.type.has_static_shape:
        return None
    attribute = source.owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    if isinstance(element_type(value.type), ir.ComplexType):
        return None  # which the bindings do not read
    splat = ir.DenseElementsAttr.get_splat(value.type, attribute.get_splat_value())
    return stablehlo.constant_of(splat)


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
        if producer.name in CONSTANTS:
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
