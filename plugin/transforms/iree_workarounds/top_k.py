"""``chlo.top_k`` whose first one of equal elements comes first.

Symptom: of equal elements, one with a greater index comes first (all targets).
Cause: IREE 3.13 sorts with an order that is not stable.
Test: `test_equal_elements_are_still_out_of_order` in tests/test_top_k.py.

Source: CHLO, ``top_k``: "If two elements are equal, the lower-index element appears first"; floats
have the total order, as in ``jax.lax.top_k``.
"""

from __future__ import annotations

import math

from ...core._mlir import Operation, Value
from ...emit.operation import element_of
from ...emit.trace import traced
from ...numerics.ordering import greatest_first, ordered_keys, take_in_rows, total_order
from ..base import NoMatch, Replacement


def expand_top_k(op: Operation) -> Replacement:
    """Rewrite a ``top_k`` of a static shape by comparisons of integers."""
    type_, count = op.operands[0].type, int(op.attributes["k"].value)
    shape = [int(size) for size in type_.shape]
    if not type_.has_static_shape or not math.prod(shape) or not count:
        return NoMatch("has a dynamic shape, or no elements")
    element = element_of(type_)
    if element.bits == 1:
        return NoMatch("is of booleans")
    values = traced(op.operands[0]).reshape((-1, shape[-1]))
    keys = ordered_keys(values)
    if element.is_float:
        keys = total_order(keys)
    positions = greatest_first(keys, count)
    greatest = take_in_rows(values, positions)
    results: list[Value] = [
        each.reshape((*shape[:-1], count)).value for each in (greatest, positions)
    ]
    return results
