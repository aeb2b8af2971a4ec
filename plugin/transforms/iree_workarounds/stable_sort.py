"""``sort`` that keeps the order of equal elements, and has a nonnegative dimension.

Symptom: equal elements change their order; IREE refuses a negative dimension (all targets).
Cause: IREE 3.13 ignores ``is_stable``, and counts dimensions from the front only; the default is
-1.
Test: none; tests/test_stablehlo_rare_forms.py covers it.

The position of each element along the sorted dimension becomes one more operand. It decides if the
comparator orders neither of two elements first::

    before(a, b) or (not before(b, a) and position(a) < position(b))

Source: StableHLO specification, ``sort``, ``is_stable``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...dialects.windows import sorted_axis
from ...emit import stablehlo
from ...emit.operation import integer, is_used, mlir_type, tensor_type
from ...numerics.element_types import I32
from ..base import NoMatch, Replacement


def stabilize_sort(op: Operation) -> Replacement:
    """Rewrite a stable ``sort`` with the positions as an operand."""
    like = op.operands[0].type
    axis = sorted_axis(op)
    op.attributes["dimension"] = integer(axis)
    if "is_stable" not in op.attributes or not op.attributes["is_stable"].value:
        return NoMatch("need not be stable")
    block = op.regions[0].blocks[0]
    *comparator, terminator = [operation.operation for operation in block.operations]
    if _equal_elements_are_identical(op, comparator):
        return NoMatch("has equal elements that are identical")
    if not like.has_static_shape:
        return NoMatch("sorts a dynamic shape")
    if any(len(operation.regions) for operation in comparator):
        return NoMatch("has control flow in its comparator")
    i32 = mlir_type(I32)
    positions = stablehlo.iota(tensor_type([int(n) for n in like.shape], i32), axis)
    results = [*(result.type for result in op.results), positions.type]
    created = emit.like(op, [*op.operands, positions], results)
    old = list(block.arguments)
    types = [*(argument.type for argument in old), *[tensor_type([], i32)] * 2]

    def before(*arguments: Value) -> list[Value]:
        *new, here, there = arguments
        swapped = [new[n ^ 1] for n in range(len(new))]  # the arguments are pairs of two elements
        first, second = (
            emit.tensor(
                _inlined_comparator(comparator, terminator, dict(zip(old, elements, strict=True)))
            )
            for elements in (new, swapped)
        )
        return [(first | (~second & (emit.tensor(here) < emit.tensor(there)))).value]

    stablehlo.fill_body(created.regions[0], types, before)
    return list(created.results)[:-1]


def use_all_results(op: Operation) -> NoMatch | None:
    """Use all results of a ``sort``: on Vulkan IREE crashes otherwise, for some lengths."""
    results = list(op.results)
    are_used = [is_used(result) for result in results]
    if all(are_used) or not any(are_used):
        return NoMatch("has results that are all used, or all unused")
    with ir.InsertionPoint.after(op):
        barrier = emit.create(
            "stablehlo.optimization_barrier", results, [result.type for result in results]
        )
    for result, new in zip(results, barrier.results, strict=True):
        result.replace_all_uses_except(new, barrier)
    return None


def _equal_elements_are_identical(op: Operation, comparator: list[Operation]) -> bool:
    """True for one operand of integers that are compared directly."""
    if len(op.operands) != 1 or len(comparator) != 1 or comparator[0].name != "stablehlo.compare":
        return False
    element = element_type(op.operands[0].type)
    arguments = list(op.regions[0].blocks[0].arguments)
    return isinstance(element, ir.IntegerType) and sorted(
        arguments.index(value) if value in arguments else -1 for value in comparator[0].operands
    ) == [0, 1]


def _inlined_comparator(
    comparator: list[Operation], terminator: Operation, values: dict[Value, Value]
) -> Value:
    """Copy a comparator's operations for other arguments; return its result."""
    for operation in comparator:
        copied = operation.clone()
        for number, operand in enumerate(operation.operands):
            copied.operands[number] = values.get(operand, operand)
        values |= dict(zip(operation.results, copied.results, strict=True))
    result = terminator.operands[0]
    return values.get(result, result)
