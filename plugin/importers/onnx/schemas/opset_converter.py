"""Brings a node of an older operator set to the form of the newest one.

An operator changes between operator sets in four ways: it takes more types, an attribute becomes an
input (``axes`` of Squeeze, operator set 13), a default changes (``axis`` of Softmax, 13), or the
meaning changes (GridSample's ``mode``, 20). More types need no conversion. For each other change
there is a rule here, with the first operator set that has the new form::

    Squeeze(x) {axes = [0]}    (operator set 11)   ->   Squeeze(x, [0])
    Upsample(x, scales)        (operator set 9)    ->   Resize(x, , scales) {asymmetric, floor}

Rules of one operator run in the order of their operator sets, each on the result of the one before.
Operator sets before 7 are not converted: operators broadcast by attributes there.

Source: ONNX, "Operator Changelog", and the operators' schemas of the package `onnx`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ....errors import SubquantError, UnsupportedError
from ....numerics.element_types import Array
from ..call import Call, Operand, Typed, type_of_dtype
from ..reading.model import Node

__all__ = ["OLDEST_OPSET", "convert_to_newest", "newest_opset"]

OLDEST_OPSET = 7
"""The first operator set that is accepted."""


@dataclass(frozen=True)
class Older:
    """A node while it is being converted.

    Args:
        call: the node with its inputs, and the graph around it.
        opset: the operator set that the node is of.
        operator: the name of the operator, which a rule can replace.
        attributes: by name, as a rule leaves them.
        inputs: as a rule leaves them.
    """

    call: Call
    opset: int
    operator: str
    attributes: dict[str, Any]
    inputs: list[Operand | None]

    def with_input(self, index: int, array: Array) -> Older:
        """Return the node with a constant as an input, behind absent ones if there are fewer."""
        inputs = [*self.inputs, *[None] * (index + 1 - len(self.inputs))]
        inputs[index] = Operand(f"input {index}", type_of_dtype(array.dtype), array)
        return replace(self, inputs=inputs)

    def attribute_to_input(self, name: str, index: int, dtype: Any = np.int64) -> Older:
        """Return the node with an attribute, if it is present, as an input."""
        if name not in self.attributes:
            return self
        value = np.asarray(self.attributes[name], dtype)
        return self.without(name).with_input(index, value)

    def without(self, *names: str) -> Older:
        """Return the node without some attributes."""
        remaining = {name: value for name, value in self.attributes.items() if name not in names}
        return replace(self, attributes=remaining)

    def having(self, **attributes: Any) -> Older:
        """Return the node with other values of some attributes."""
        return replace(self, attributes={**self.attributes, **attributes})

    def with_default(self, name: str, value: Any) -> Older:
        """Return the node with the value of an attribute that is the default of its version."""
        return self if name in self.attributes else self.having(**{name: value})

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input."""
        return self.operand(index).shape

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        """Return the dtype of an input."""
        dtype: np.dtype[Any] = np.dtype(self.operand(index).value.dtype)
        return dtype

    def operand(self, index: int) -> Operand:
        """Return an input that must be present."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise self.call.error(f"has no input {index}")
        return operand

    def error(self, what: str) -> SubquantError:
        """Return an error at the node."""
        return self.call.error(what, UnsupportedError)


Results: TypeAlias = list[Typed]
Rule: TypeAlias = Callable[[Older], "Older | Results"]
"""Returns the converted node, or the results of the nodes that take its place."""

_RULES: dict[str, list[tuple[int, Rule]]] = {}


def _since(opset: int, *operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for nodes of operator sets before `opset`."""

    def register(rule: Rule) -> Rule:
        for operator in operators:
            _RULES.setdefault(operator, []).append((opset, rule))
        return rule

    return register


def convert_to_newest(call: Call, opset: int) -> Call | Results:
    """Return a node of ONNX's own domain in the form of the newest operator set.

    Args:
        call: the node as the file has it.
        opset: the operator set that the node is of.

    Returns:
        The converted node; or its results, where several nodes take its place.

    Raises:
        UnsupportedError: the operator set is older than `OLDEST_OPSET`, or has no such operator.
    """
    older = Older(call, opset, call.node.operator, dict(call.node.attributes), list(call.inputs))
    if opset < OLDEST_OPSET and _has_changed(call.node.operator, opset):
        raise older.error(
            f"is of operator set {opset}, expected {OLDEST_OPSET} or newer; convert the model with "
            "onnx.version_converter.convert_version"
        )
    done: set[int] = set()
    while True:  # a rule can replace the operator, whose later rules then hold
        rules = sorted(_RULES.get(older.operator, ()), key=lambda pair: pair[0])
        following = [(n, rule) for n, rule in rules if opset < n and id(rule) not in done]
        if not following:
            break
        done.add(id(following[0][1]))
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


# -- attributes that became inputs ----------------------------------------------------------------


_FLOAT = 1
"""The number of the element type FLOAT."""


@_since(10, "TopK")
def _k(node: Older) -> Older:
    return node.with_input(1, np.asarray([node.attributes["k"]], np.int64)).without("k")


@_since(10, "Slice")
def _slice_bounds(node: Older) -> Older:
    for index, name in enumerate(("starts", "ends", "axes"), start=1):
        node = node.attribute_to_input(name, index)
    return node


@_since(11, "Clip")
def _clip_bounds(node: Older) -> Older:
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


@_since(11, "Pad")
def _pad_widths(node: Older) -> Older:
    value = node.attributes.get("value", 0.0)
    padded = node.attribute_to_input("pads", 1).without("value")
    if node.attributes.get("mode", "constant") != "constant":
        return padded  # the value is for constant padding
    return padded.with_input(2, np.asarray(value, node.dtype()))


@_since(13, "Squeeze", "Unsqueeze", "ReduceSum")
@_since(18, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceProd", "ReduceSumSquare")  # fmt: skip
def _axes(node: Older) -> Older:
    return node.attribute_to_input("axes", 1)


@_since(13, "Split")
def _split_sizes(node: Older) -> Older:
    return node.attribute_to_input("split", 1)


@_since(18, "Split")
def _split_count(node: Older) -> Older:
    """Without sizes the parts are as many as the outputs."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return node
    return node.having(num_outputs=len(node.call.node.outputs))


@_since(12, "Dropout")
def _dropout_without_training(node: Older) -> Older | Results:
    """The ratio matters in training only, which operator sets before 12 do not ask for.

    They do not define the mask of inference: it is 0 everywhere, as in ONNX Runtime. Before
    operator set 10 it has the type of the operand.
    """
    outputs = node.call.node.outputs
    if len(outputs) < 2 or not outputs[1]:
        return node.without("ratio")
    operand = node.operand(0)
    is_boolean = node.opset >= 10
    mask = np.zeros(operand.shape, np.bool_ if is_boolean else node.dtype())
    mask_type = "BOOL" if is_boolean else operand.type
    return [Typed(operand.type, operand.value), Typed(mask_type, mask)]


@_since(20, "DFT")
def _dft_axis(node: Older) -> Older:
    return node.with_default("axis", 1).attribute_to_input("axis", 2)


# -- other names and defaults ---------------------------------------------------------------------


@_since(11, "Scatter")
def _scatter(node: Older) -> Older:
    return replace(node, operator="ScatterElements")


@_since(16, "RoiAlign")
def _roi_align(node: Older) -> Older:
    return node.with_default("coordinate_transformation_mode", "output_half_pixel")


@_since(20, "GridSample")
def _grid_sample_mode(node: Older) -> Older:
    mode = node.attributes.get("mode", "bilinear")
    return node.having(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@_since(23, "QuantizeLinear")
def _divided_in_f32(node: Older) -> Older:
    """Quotients of f16 and bf16 were those of f32: the operator had no ``precision``."""
    is_narrow = node.dtype(1).itemsize == 2
    return node.with_default("precision", _FLOAT) if is_narrow else node


@_since(28, "Mod")
def _remainder_of_reals(node: Older) -> Older:
    if node.dtype().kind not in "iu" and not node.attributes.get("fmod", 0):
        raise node.error(
            f"has fmod = 0 and floats in operator set {node.opset}, expected 1; convert the model "
            "to operator set 28"
        )
    return node


@_since(9, "BatchNormalization")
def _spatial(node: Older) -> Older:
    if node.attributes.get("spatial", 1) != 1:
        raise node.error("has spatial = 0, statistics for each place, which is not lowered")
    return node.without("spatial")


@_since(14, "BatchNormalization")
def _statistics(node: Older) -> Older:
    """Outputs of statistics were the sign of training."""
    if any(node.call.node.outputs[1:]):
        raise node.error("has the statistics of training as results; export it for inference")
    return node.without("momentum")


@_since(21, "GroupNormalization")
def _group_parameters(node: Older) -> Older:
    """``scale`` and ``bias`` of each group become those of each channel."""
    channels, groups = node.shape()[1], int(node.attributes["num_groups"])
    inputs = list(node.inputs)
    for index in (1, 2):
        operand = inputs[index]
        if operand is None or operand.shape != (groups,) or channels % max(groups, 1):
            raise node.error(f"has {groups} groups of {channels} channels and {operand}")
        spread = np.repeat(operand.value, channels // groups, 0)
        inputs[index] = Operand(operand.name, operand.type, spread)
    return replace(node, inputs=inputs)


# -- other meanings -------------------------------------------------------------------------------


@_since(13, "Softmax", "LogSoftmax", "Hardmax")
def _of_two_axes(node: Older) -> Older | Results:
    """All axes from one on were one axis: the result is that of a reshaped tensor."""
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
    return [Typed(each.type, each.value) for each in call.apply("Reshape", [result, whole])]


def _constant(array: Array) -> Operand:
    return Operand("constant", type_of_dtype(array.dtype), array)


@_since(9, "Upsample")
def _upsample_scales(node: Older) -> Older:
    return node.attribute_to_input("scales", 1, np.float32)


@_since(10, "Upsample")
def _upsample(node: Older) -> Older:
    return replace(node, operator="Resize")


@_since(11, "Resize")
def _resize_of_ten(node: Older) -> Older | Results:
    """``x_original = x_resized / scale``, cut; the next greater place where an axis shrinks."""
    scales = node.inputs[1]
    mode = node.attributes.get("mode", "nearest")
    if scales is None or not scales.is_constant:
        raise node.error("has scales that are computed, expected constants")
    values = np.asarray(scales.value, np.float32).reshape(-1)

    def resized(part: Array, **options: str) -> Older:
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
    return [Typed(operand.type, operand.value)]


@_since(9, "Scan")
def _scan_of_a_batch(node: Older) -> Results:
    """The first axis of all inputs was a batch: each element of it is a Scan of its own."""
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
        items = [Operand(each.name, each.type, each.value[index]) for each in operands]
        computed.append(node.call.apply_node("Scan", items, options, node.call.node.outputs))
    return [
        Typed(each[0].type, np.stack([part.value for part in each]))
        for each in zip(*computed, strict=True)
    ]
