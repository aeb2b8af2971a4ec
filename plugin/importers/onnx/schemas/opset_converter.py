"""Converts a node of an older operator set to the form of the newest one.

An operator changes between operator sets in four ways: it takes more types, an attribute becomes an
input (``axes`` of Squeeze, operator set 13), a default changes (``axis`` of Softmax, 13), or the
meaning changes (GridSample's ``mode``, 20). More types need no conversion. `opset_rules` has a rule
for each other change, with the first operator set that has the new form::

    Squeeze(x) {axes = [0]}    (operator set 11)   ->   Squeeze(x, [0])
    Upsample(x, scales)        (operator set 9)    ->   Resize(x, , scales) {asymmetric, floor}

Rules of one operator run in the order of their operator sets, each on the result of the one before.
Operator sets before 7 are not converted: operators broadcast by attributes there.

Source: ONNX, "Operator Changelog", and the operators' schemas of the package `onnx`.
"""

from __future__ import annotations

from dataclasses import replace

from ..call import Call
from ..reading.model import Node
from . import opset_rules  # noqa: F401  (it registers rules)
from .older_node import RULES, OlderNode, Results

OLDEST_OPSET = 7
"""The first operator set that is accepted; `opset_rules.py` converts nodes from it on."""


def convert_to_newest(call: Call, opset: int) -> Call | Results:
    """Return a node of ONNX's own domain in the form of the newest operator set.

    Args:
        call: the node in the file.
        opset: the operator set of the node.

    Returns:
        The converted node; or its results, where several nodes replace it.

    Raises:
        UnsupportedError: the operator set is older than `OLDEST_OPSET`, or has no such operator.
    """
    older = OlderNode(
        call, opset, call.node.operator, dict(call.node.attributes), list(call.inputs)
    )
    if opset < OLDEST_OPSET and _has_changed(call.node.operator, opset):
        raise older.error(
            f"is of operator set {opset}, expected {OLDEST_OPSET} or newer; convert the model with "
            "onnx.version_converter.convert_version"
        )
    applied: set[int] = set()
    while True:  # a rule can replace the operator, whose later rules then hold
        rules = sorted(RULES.get(older.operator, ()), key=lambda pair: pair[0])
        following = [(n, rule) for n, rule in rules if opset < n and id(rule) not in applied]
        if not following:
            break
        applied.add(id(following[0][1]))
        converted = following[0][1](older)
        if isinstance(converted, list):
            return converted
        older = converted
    if (older.operator, older.attributes, older.inputs) == (
        call.node.operator, dict(call.node.attributes), list(call.inputs)
    ):  # fmt: skip
        return call
    node: Node = replace(call.node, operator=older.operator, attributes=older.attributes)
    return replace(call, node=node, inputs=older.inputs)


def newest_opset() -> int:
    """Return the newest operator set that the package `onnx` knows."""
    from onnx import defs

    return int(defs.onnx_opset_version())


def _has_changed(operator: str, opset: int) -> bool:
    """Return True if an operator of an operator set has another version in `OLDEST_OPSET`."""
    from onnx import defs

    try:
        versions = [defs.get_schema(operator, n).since_version for n in (opset, OLDEST_OPSET)]
    except defs.SchemaError:
        return True
    return bool(versions[0] != versions[1])
