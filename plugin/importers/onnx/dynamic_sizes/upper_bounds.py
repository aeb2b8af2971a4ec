"""Upper bounds of integers that a program computes, such as the number of iterations of a loop.

A bound follows from the nodes that compute a tensor: the Min of a number and a constant, the
extents of a tensor with a counted axis. Nodes that compute other numbers have none.
"""

from __future__ import annotations

import math

import numpy as np

from ..call import Call
from ..reading.model import Node

__all__ = ["most_of"]

_MAX_NODES = 64
"""The length of a chain of nodes that is followed."""

_SAME = ("Cast", "Gather", "Identity", "ReduceMax", "ReduceMin", "Reshape", "Slice", "Squeeze",
         "Unsqueeze")  # fmt: skip
"""Operators whose results have only elements of their first input."""


def most_of(call: Call, index: int) -> int | None:
    """Return an upper bound of the elements of an input; None if none is known."""
    if index >= len(call.node.inputs) or not call.node.inputs[index]:
        return None
    return _most(call, call.node.inputs[index], _MAX_NODES)


def _most(call: Call, name: str, depth: int) -> int | None:
    operand = call.graph.operand(name)
    if operand is not None and operand.is_constant:
        array = np.asarray(operand.value)
        return int(array.max()) if array.size and array.dtype.kind in "iu" else None
    node = call.graph.producer(name)
    if node is None or not depth or not node.inputs:
        return None
    return _most_of_node(call, node, depth - 1)


def _most_of_node(call: Call, node: Node, depth: int) -> int | None:
    first = call.graph.operand(node.inputs[0])
    if node.operator in ("Shape", "Size"):
        if first is None:
            return None
        extents = first.shape
        return math.prod(extents) if node.operator == "Size" else max(extents, default=0)
    if node.operator in _SAME:
        return _most(call, node.inputs[0], depth)
    if node.operator in ("Min", "Max"):
        bounds = [_most(call, each, depth) for each in node.inputs]
        known = [each for each in bounds if each is not None]
        if not known or (node.operator == "Max" and len(known) < len(bounds)):
            return None
        return min(known) if node.operator == "Min" else max(known)
    if node.operator == "Clip" and len(node.inputs) > 2 and node.inputs[2]:
        return _most(call, node.inputs[2], depth)
    return None
