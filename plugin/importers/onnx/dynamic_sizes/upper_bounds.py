"""Upper bounds of integers that a program computes, such as the number of iterations of a loop.

A bound follows from the nodes that compute a tensor: the Min of a number and a constant, the
dimension sizes of a bounded tensor. Other nodes have no bound.
"""

from __future__ import annotations

import math

import numpy as np

from ..call import Call
from ..reading.model import Node

_MAX_NODES = 64
"""Nodes of a chain that is followed to a bound, at most; with fewer, more Loops are refused."""
_ELEMENTS_OF_FIRST_INPUT = (
    "Cast", "Gather", "Identity", "ReduceMax", "ReduceMin", "Reshape", "Slice", "Squeeze",
    "Unsqueeze",
)  # fmt: skip
"""Operators whose results have only elements of their first input."""


def upper_bound(call: Call, index: int) -> int | None:
    """Return an upper bound of the elements of an input; None if none is known."""
    if index >= len(call.node.inputs) or not call.node.inputs[index]:
        return None
    return _bound_of_tensor(call, call.node.inputs[index], _MAX_NODES)


def _bound_of_tensor(call: Call, name: str, depth: int) -> int | None:
    """The bound of a constant or computed tensor; None beyond 64 nodes, or where it is unknown."""
    operand = call.graph.operand(name)
    if operand is not None and operand.is_constant:
        array = np.asarray(operand.value)
        return int(array.max()) if array.size and array.dtype.kind in "iu" else None
    node = call.graph.producer(name)
    if node is None or not depth or not node.inputs:
        return None
    return _bound_of_results(call, node, depth - 1)


def _bound_of_results(call: Call, node: Node, depth: int) -> int | None:
    """The bound of Shape, Size, Min, Max, Clip and of operators that move elements, else None."""
    if node.operator in ("Shape", "Size"):
        first = call.graph.operand(node.inputs[0])
        if first is None:
            return None
        return math.prod(first.shape) if node.operator == "Size" else max(first.shape, default=0)
    if node.operator in _ELEMENTS_OF_FIRST_INPUT:
        return _bound_of_tensor(call, node.inputs[0], depth)
    if node.operator in ("Min", "Max"):
        bounds = [_bound_of_tensor(call, each, depth) for each in node.inputs]
        known = [each for each in bounds if each is not None]
        if not known or (node.operator == "Max" and len(known) < len(bounds)):
            return None
        return min(known) if node.operator == "Min" else max(known)
    if node.operator == "Clip" and len(node.inputs) > 2 and node.inputs[2]:
        return _bound_of_tensor(call, node.inputs[2], depth)
    return None
