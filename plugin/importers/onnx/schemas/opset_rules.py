"""Converts a node of an older operator set to the form of the newest one.

An operator changes between operator sets in four ways: it takes more types, an attribute becomes an
input (``axes`` of Squeeze, operator set 13), a default changes (``axis`` of Softmax, 13), or the
meaning changes (GridSample's ``mode``, 20). More types need no conversion. There is a rule for each
other change, with the first operator set that has the new form::

    Squeeze(x) {axes = [0]}    (operator set 11)   ->   Squeeze(x, [0])
    Upsample(x, scales)        (operator set 9)    ->   Resize(x, , scales) {asymmetric, floor}

Source: ONNX, "Operator Changelog", and the operators' schemas of the package `onnx`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ....errors import SubquantError
from ....numerics.element_types import Array
from ..call import Call, Operand, type_of_dtype

OLDEST_OPSET = 7
"""The first operator set that is accepted: operators broadcast by attributes before."""


@dataclass(frozen=True)
class OlderNode:
    """A node of an operator set while it is converted; `call` has the node in the file."""

    call: Call
    opset: int
    operator: str
    attributes: dict[str, Any]
    inputs: list[Operand | None]

    def with_input(self, index: int, array: Array) -> OlderNode:
        """Return the node with a constant as an input, behind absent ones if there are fewer."""
        inputs = [*self.inputs, *[None] * (index + 1 - len(self.inputs))]
        inputs[index] = Operand(type_of_dtype(array.dtype), array, f"input {index}")
        return replace(self, inputs=inputs)

    def attribute_to_input(self, name: str, index: int, dtype: Any = np.int64) -> OlderNode:
        """Return the node with an attribute, if it is present, as an input."""
        if name not in self.attributes:
            return self
        value = np.asarray(self.attributes[name], dtype)
        return self.without(name).with_input(index, value)

    def without(self, *names: str) -> OlderNode:
        """Return the node without some attributes."""
        remaining = {name: value for name, value in self.attributes.items() if name not in names}
        return replace(self, attributes=remaining)

    def having(self, **attributes: Any) -> OlderNode:
        """Return the node with other values of some attributes."""
        return replace(self, attributes={**self.attributes, **attributes})

    def with_default(self, name: str, value: Any) -> OlderNode:
        """Return the node with an attribute that is stated or the default of its version."""
        return self if name in self.attributes else self.having(**{name: value})

    def operand(self, index: int) -> Operand:
        """Return an input that must be present."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise self.call.error(f"has no input {index}")
        return operand

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.operand(index).shape

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        """Return the dtype of an input."""
        dtype: np.dtype[Any] = np.dtype(self.operand(index).value.dtype)
        return dtype

    def error(self, problem: str) -> SubquantError:
        """Return an error at the node."""
        return self.call.unsupported(problem)


Results: TypeAlias = list[Operand]
Rule: TypeAlias = Callable[[OlderNode], "OlderNode | Results"]
"""The function returns the converted node, or the results of the nodes that replace it."""

_RULES: dict[str, list[tuple[int, Rule]]] = {}
"""The conversion rules by operator, each with the first operator set of the new form."""


def _before(opset: int, *operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for nodes of operator sets before `opset`."""

    def register(rule: Rule) -> Rule:
        for operator in operators:
            _RULES.setdefault(operator, []).append((opset, rule))
        return rule

    return register


_FLOAT = 1
"""The number of the element type FLOAT: ``TensorProto.DataType`` of ONNX."""


def _inputs_from(*names: str, dtype: Any = np.int64) -> Rule:
    """Return a rule that makes attributes inputs from number 1 on."""

    def rule(node: OlderNode) -> OlderNode:
        for index, name in enumerate(names, start=1):
            node = node.attribute_to_input(name, index, dtype)
        return node

    return rule


_before(9, "Upsample")(_inputs_from("scales", dtype=np.float32))
_before(10, "TopK")(_inputs_from("k"))
_before(10, "Slice")(_inputs_from("starts", "ends", "axes"))
_before(13, "Split")(_inputs_from("split"))
_before(13, "Squeeze", "Unsqueeze", "ReduceSum")(_inputs_from("axes"))
_before(18, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
       "ReduceMin", "ReduceProd", "ReduceSumSquare")(_inputs_from("axes"))  # fmt: skip
_before(20, "DFT")(lambda node: node.with_default("axis", 1).attribute_to_input("axis", 2))
_before(11, "Scatter")(lambda node: replace(node, operator="ScatterElements"))
_before(10, "Upsample")(lambda node: replace(node, operator="Resize"))
_before(16, "RoiAlign")(
    lambda node: node.with_default("coordinate_transformation_mode", "output_half_pixel")
)


@_before(11, "Clip")
def _clip_bounds(node: OlderNode) -> OlderNode:
    if node.dtype().kind in "iub":
        raise node.error(
            f"is of {node.operand(0).type} in operator set {node.opset}, expected floats"
        )
    most = float(np.finfo(np.float32).max)
    node = node.with_default("min", -most).with_default("max", most)
    with np.errstate(over="ignore"):  # f16: infinite, which bounds nothing
        for index, name in ((1, "min"), (2, "max")):
            node = node.attribute_to_input(name, index, node.dtype())
    return node


@_before(11, "Pad")
def _pad_widths(node: OlderNode) -> OlderNode:
    value = node.attributes.get("value", 0.0)
    padded = node.attribute_to_input("pads", 1).without("value")
    if node.attributes.get("mode", "constant") != "constant":
        return padded  # the value is for constant padding
    return padded.with_input(2, np.asarray(value, node.dtype()))


@_before(18, "Split")
def _split_count(node: OlderNode) -> OlderNode:
    """Without sizes, there is an equal part for each output."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return node
    return node.having(num_outputs=len(node.call.node.outputs))


@_before(12, "Dropout")
def _dropout_without_training(node: OlderNode) -> OlderNode | Results:
    """The ratio matters in training only, which operator sets before 12 do not have.

    These operator sets do not define the mask of inference: it is 0 everywhere, as in ONNX Runtime.
    Before operator set 10 it has the type of the operand.
    """
    outputs = node.call.node.outputs
    if len(outputs) < 2 or not outputs[1]:
        return node.without("ratio")
    operand = node.operand(0)
    is_boolean = node.opset >= 10
    mask = np.zeros(operand.shape, np.bool_ if is_boolean else node.dtype())
    mask_type = "BOOL" if is_boolean else operand.type
    return [operand, Operand(mask_type, mask)]


@_before(20, "GridSample")
def _grid_sample_mode(node: OlderNode) -> OlderNode:
    mode = node.attributes.get("mode", "bilinear")
    return node.having(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@_before(23, "QuantizeLinear")
def _divided_in_f32(node: OlderNode) -> OlderNode:
    """Quotients of f16 and bf16 were those of f32: the operator had no ``precision``."""
    is_narrow = node.dtype(1).itemsize == 2
    return node.with_default("precision", _FLOAT) if is_narrow else node


@_before(28, "Mod")
def _remainder_of_reals(node: OlderNode) -> OlderNode:
    if node.dtype().kind not in "iu" and not node.attributes.get("fmod", 0):
        raise node.error(
            f"has fmod = 0 and floats in operator set {node.opset}, expected 1; convert the model "
            "to operator set 28"
        )
    return node


@_before(9, "BatchNormalization")
def _spatial(node: OlderNode) -> OlderNode:
    if node.attributes.get("spatial", 1) != 1:
        raise node.error("has spatial = 0, statistics for each pixel, which is not lowered")
    return node.without("spatial")


@_before(14, "BatchNormalization")
def _statistics(node: OlderNode) -> OlderNode:
    """Outputs of statistics meant training."""
    if any(node.call.node.outputs[1:]):
        raise node.error("has the statistics of training as results; export it for inference")
    return node.without("momentum")


@_before(21, "GroupNormalization")
def _group_parameters(node: OlderNode) -> OlderNode:
    """``scale`` and ``bias`` of each group become those of each channel."""
    channels, groups = node.shape()[1], int(node.attributes["num_groups"])
    inputs = list(node.inputs)
    for index in (1, 2):
        operand = inputs[index]
        if operand is None or operand.shape != (groups,) or channels % max(groups, 1):
            raise node.error(f"has {groups} groups of {channels} channels and {operand}")
        spread = np.repeat(operand.value, channels // groups, 0)
        inputs[index] = Operand(operand.type, spread, operand.name)
    return replace(node, inputs=inputs)


@_before(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax_of_matrix(node: OlderNode) -> OlderNode | Results:
    """The axes from ``axis`` on were one axis: the tensor is reshaped to a matrix."""
    shape = node.shape()
    rank = len(shape)
    axis = node.attributes.get("axis", 1)
    if not -rank <= axis <= max(rank - 1, 0):
        raise node.error(f"has the axis {axis} of a tensor of {rank} dimensions")
    axis = axis % max(rank, 1)
    if axis == rank - 1 or 0 in shape:
        return node.having(axis=-1)
    call = node.call
    flat = np.array([math.prod(shape[:axis]), math.prod(shape[axis:])], np.int64)
    (matrix,) = call.apply("Reshape", [node.inputs[0], _constant(flat)])
    (result,) = call.apply(node.operator, [matrix], axis=-1)
    whole = _constant(np.array(shape, np.int64))
    return call.apply("Reshape", [result, whole])


def _constant(array: Array) -> Operand:
    return Operand(type_of_dtype(array.dtype), array, "constant")


@_before(11, "Resize")
def _resize_of_ten(node: OlderNode) -> OlderNode | Results:
    """``x_original = x_resized / scale``, rounded down, or up where an axis shrinks."""
    scales = node.inputs[1]
    mode = node.attributes.get("mode", "nearest")
    if scales is None or not scales.is_constant:
        raise node.error("has scales that are computed, expected constants")
    values = np.asarray(scales.value, np.float32).reshape(-1)

    def resized(part: Array, **options: str) -> OlderNode:
        inputs = [node.inputs[0], None, _constant(part)]
        options = {"coordinate_transformation_mode": "asymmetric", "mode": mode, **options}
        return replace(node, operator="Resize", attributes=options, inputs=inputs)

    if mode != "nearest":
        return resized(values)
    grown = np.where(values >= 1, values, np.float32(1))
    shrunk = np.where(values < 1, values, np.float32(1))
    if (shrunk == 1).all():
        return resized(grown, nearest_mode="floor")
    if (grown == 1).all():
        return resized(shrunk, nearest_mode="ceil")
    operand = node.operand(0)
    for part, rounding in ((grown, "floor"), (shrunk, "ceil")):
        step = resized(part, nearest_mode=rounding)
        inputs: Sequence[Operand | None] = [operand, *step.inputs[1:]]
        (operand,) = node.call.apply("Resize", inputs, **step.attributes)
    return [operand]


@_before(9, "Scan")
def _scan_of_a_batch(node: OlderNode) -> Results:
    """The first axis of all inputs was a batch: each element becomes a separate Scan."""
    if node.inputs[0] is not None:
        raise node.error("has sequence_lens, which is not lowered; export with operator set 9")
    operands = [each for each in node.inputs[1:] if each is not None]
    batches = {each.shape[:1] for each in operands}
    if len(batches) != 1 or batches & {(), (0,)}:
        raise node.error(f"has operands of shapes {[list(each.shape) for each in operands]}, "
                         "expected a batch in the first dimension of each")  # fmt: skip
    directions = node.attributes.get("directions")
    options = {
        "body": node.attributes["body"], "num_scan_inputs": node.attributes["num_scan_inputs"],
    }  # fmt: skip
    if directions is not None:
        options["scan_input_directions"] = directions
    computed = []
    for index in range(operands[0].shape[0]):
        items = [Operand(each.type, each.value[index], each.name) for each in operands]
        computed.append(node.call.apply_node("Scan", items, options, node.call.node.outputs))
    return [
        Operand(each[0].type, np.stack([part.value for part in each]))
        for each in zip(*computed, strict=True)
    ]


def convert_to_newest(call: Call, opset: int) -> Call | Results:
    """Return a node of ONNX's own domain in the form of the newest operator set.

    Rules of one operator run in the order of their operator sets, each on the result of the one
    before. Where several nodes replace the node, its results are returned.

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
    reached = opset
    while rules := [each for each in _RULES.get(older.operator, ()) if each[0] > reached]:
        reached, rule = min(rules, key=lambda each: each[0])
        converted = rule(older)  # it can replace the operator, whose later rules then hold
        if isinstance(converted, list):
            return converted
        older = converted
    node = replace(call.node, operator=older.operator, attributes=older.attributes)
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
