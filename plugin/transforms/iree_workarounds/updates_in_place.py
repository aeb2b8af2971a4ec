"""Tensors that are updated in place, each in a buffer of its own.

Symptom: two argsorts of one length are wrong, and so is a tensor that is updated with a part of
itself, or the call fails ("source and target ranges must not overlap") (all targets).
Cause: IREE 3.13 recomputes cheap computations that read no buffer (an iota, for example) for each
operation that updates the result in place, then merges the equal ones: all update the same buffer.
It also computes an update in the dispatch that reads and writes the buffer.
Test: `test_two_argsorts_are_still_wrong_without_flags` and
`test_a_shift_is_still_wrong_without_a_barrier` in tests/test_updates_in_place.py.

IREE does not recompute a computation that reads a buffer. So an updated computation is selected by
a flag that IREE cannot fold, one flag for each update::

    %hidden = "util.optimization_barrier"(%true) : (i1) -> i1
    %flag = linalg.fill ins(%hidden : i1) outs(%empty : tensor<i1>) -> tensor<i1>
    %own = stablehlo.select %flag, %iota, %zeros : tensor<i1>, tensor<9xi32>
    %sorted:2 = "stablehlo.sort"(%x, %own) ({...})

An update with a part of the updated tensor is computed first::

    %part = stablehlo.slice %x [0:8] : (tensor<9xi32>) -> tensor<8xi32>
    %more = stablehlo.add %part, %step : tensor<8xi32>
    %before = "util.optimization_barrier"(%more) : (tensor<8xi32>) -> tensor<8xi32>
    %r = stablehlo.dynamic_update_slice %x, %before, %one
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, constant_attribute
from ...dialects.quant import element_type
from ...emit import linalg, stablehlo
from ...emit.operation import all_producers, parse_attribute, splat, tensor_type
from ...numerics.element_types import BOOL
from ..base import NoMatch, producer_named, producer_of, value_before

UPDATES = ("stablehlo.dynamic_update_slice", "stablehlo.scatter", "stablehlo.sort")
"""Operations that IREE does in place, in the operands that become results."""

_ELEMENTWISE_DIALECTS = ("arith.", "chlo.", "linalg.", "math.", "stablehlo.", "tensor.")
_SAME_ELEMENTS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")


def separate_updated(op: Operation) -> NoMatch | None:
    """Give an operation of `UPDATES` tensors of its own, and updates that are computed first."""
    updated = list(op.operands)[: len(op.results)]
    changed = False
    for number, operand in enumerate(updated):
        # IREE copies a constant, or fills each buffer with it.
        if producer_named(operand, *CONSTANTS) is None and not _reads_buffer(operand):
            op.operands[number] = _as_splat(operand) or in_own_buffer(operand)
            changed = True
    count = len(op.operands)
    for number in range(count if op.name == "stablehlo.sort" else len(updated), count):
        has_axes = op.operands[number].type.rank > 0
        if has_axes and any(_shares_source(op, number, operand) for operand in updated):
            op.operands[number] = linalg.with_barrier(op.operands[number])
            changed = True
    return None if changed else NoMatch("updates tensors with buffers of their own")


def _shares_source(op: Operation, number: int, updated: Value) -> bool:
    """True if an operand shares a source with the updated tensor.

    A tensor usually has few sources: an argument, for example, in a program of many updates. So the
    walk goes from the sources to the operand, and not back over the whole program.
    """
    sources = _sources(updated)
    return op.operands[number] in sources or op.operands[number] in _computed_from(sources, op)


def _sources(value: Value) -> set[Value]:
    """A value and its sources, without constants and without sources of barriers."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        producer = producer_of(value)
        if value in seen or (producer is not None and producer.name in CONSTANTS):
            continue
        seen.add(value)
        if producer is not None and producer.name != linalg.BARRIER:
            pending += producer.operands
    return seen


def _computed_from(sources: set[Value], end: Operation) -> set[Value]:
    """The values computed from `sources`, without results of barriers, and of `end`."""
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


def _as_splat(value: Value) -> Value | None:
    """A broadcast splat as one constant; None for unlike or complex elements, dynamic shapes."""
    attribute = constant_attribute(value_before(value, *_SAME_ELEMENTS))
    if attribute is None or not attribute.is_splat or not value.type.has_static_shape:
        return None
    if isinstance(element_type(value.type), ir.ComplexType):
        return None  # the bindings do not read complex elements
    elements = ir.DenseElementsAttr.get_splat(value.type, attribute.get_splat_value())
    return stablehlo.constant_of(elements)


def _reads_buffer(value: Value) -> bool:
    """True if a source of a value is an argument, a constant that is no splat, or a flag."""

    def is_computed(value: Value) -> bool | None:
        producer = producer_of(value)
        if producer is None:
            return False
        if producer.name in CONSTANTS:
            attribute = producer.attributes["value"]
            is_splat = isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat
            return is_splat or not isinstance(value.type, ir.ShapedType)
        return None if _is_elementwise(producer) else False

    return not all_producers(value, is_computed)


def _is_elementwise(producer: Operation) -> bool:
    """True if a result depends on the operands alone, element by element or moved."""
    has_body = len(producer.regions) > 0 and not producer.name.startswith("linalg.")
    return producer.name.startswith(_ELEMENTWISE_DIALECTS) and not has_body


def in_own_buffer(value: Value) -> Value:
    """A copy of a tensor, which an opaque flag selects."""
    # IREE folds a selection of equal constants: where all elements are 0, the others are 1.
    source = value_before(value, *_SAME_ELEMENTS)
    attribute = constant_attribute(source)
    number = int(attribute is not None and attribute == _splat(0, source.type))
    scalar = stablehlo.constant_of(_splat(number, tensor_type([], element_type(value.type))))
    unselected = emit.Tensors(value).broadcast(scalar)
    return select_opaquely(value, unselected)


def select_opaquely(value: Value, other: Value) -> Value:
    """A copy of `value`, selected instead of `other` by a flag that IREE cannot fold."""
    true = emit.Scalars().known(1, BOOL).value
    # IREE would merge StableHLO's barriers; for a tensor the host would wait.
    hidden = emit.value("util.optimization_barrier", [true], true.type)
    # A dispatch may hold the fill, but not `tensor.from_elements` of a boolean.
    flag = linalg.filled([], hidden)
    return emit.value("stablehlo.select", [flag, value, other], value.type)


def _splat(number: int, type_: ir.Type) -> ir.Attribute:
    """A dense attribute whose elements are a real number."""
    if isinstance(element_type(type_), ir.ComplexType):
        return parse_attribute(f"dense<({number}.0, 0.0)> : {type_}")
    return splat(number, type_)
