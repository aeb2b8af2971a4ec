"""Operators on tensors with a data-dependent dimension size (`bounded_tensor`).

A *handler* computes a node itself: it reads the valid rows only (NonZero, Concat), or changes their
number (Slice). Other operators keep the number where a rule of `axis_rules` says so, and are
refused by name elsewhere. No handler or rule lets padding into a valid row.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import UnsupportedError
from ..call import Call, Operand
from . import reduction_handlers, shape_handlers  # noqa: F401  (they register handlers)
from .axis_rules import RULES
from .bounded_node import HANDLERS, BoundedNode, Compute
from .bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor

SIZE_PRODUCERS = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))
"""Operators that compute a dimension size: those of the same inputs have the same one.

Exporters write ``boxes[mask]`` and ``scores[mask]`` with a NonZero each.
"""


def value_objects(inputs: Sequence[Operand | None]) -> list[Any]:
    """Return the objects whose identity shows that inputs of two nodes are the same."""
    objects: list[Any] = []
    for each in inputs:
        value = None if each is None else each.value
        objects += [value.value, value.count] if isinstance(value, BoundedTensor) else [value]
    return objects


def compute_bounded(call: Call, compute: Compute) -> list[Operand]:
    """Compute a node that takes bounded tensors.

    Args:
        call: the node, in the form of the newest operator set.
        compute: the importer.

    Raises:
        UnsupportedError: the operator combines rows, or tensors with different numbers of rows.
    """
    node = BoundedNode(call, compute)
    handler = HANDLERS.get(call.node.operator)
    results = None if handler is None else handler(node)
    if results is not None:
        return results
    rule = RULES.get(call.node.operator)
    axis = None if rule is None else rule(node)
    if axis is None:
        raise node.refusal()
    if not node.has_one_count:
        raise call.error(
            "takes tensors with data-dependent dimension sizes that need not be equal: "
            f"{DYNAMIC_SIZE_ADVICE}",
            UnsupportedError,
        )
    tensor = next(iter(node.tensors.values()))
    results = compute(node.with_arrays())
    if any(each.shape[axis] != tensor.shape[tensor.axis] for each in results):
        raise node.refusal()
    return [node.operand(each, axis, tensor.count) for each in results]
