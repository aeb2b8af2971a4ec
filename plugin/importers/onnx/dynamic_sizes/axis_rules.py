"""Operators that keep the rows of a tensor with a counted axis (`bounded`) apart.

A rule returns the counted axis of the results of a node, or None where the node combines rows. The
node then computes on the whole array, padding included, and its results have the same count. That
holds for broadcasting only where no other input has more than one element along the counted axis: a
single row would be repeated beside a longer axis.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ....errors import UnsupportedError
from ....numerics.element_types import AnyArray
from ..call import Call, Operand, Typed
from .bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor

__all__ = ["RULES", "BoundedNode", "Compute", "elementwise"]

Compute: TypeAlias = Callable[[Call], list[Operand]]
"""Computes a node whose inputs have no counted axis."""


@dataclass(frozen=True)
class BoundedNode:
    """A node with tensors that have a counted axis."""

    call: Call
    compute: Compute

    @property
    def bounded(self) -> Mapping[int, BoundedTensor]:
        """The tensors with a counted axis, by input."""
        return {
            index: each.value
            for index, each in enumerate(self.call.inputs)
            if each is not None and isinstance(each.value, BoundedTensor)
        }

    @property
    def axes(self) -> Mapping[int, int]:
        """The counted axes, by input."""
        return {index: each.axis for index, each in self.bounded.items()}

    def shape(self, index: int) -> tuple[int, ...]:
        """The extents of an input; none for one that is absent."""
        inputs = self.call.inputs
        each = inputs[index] if index < len(inputs) else None
        return () if each is None else each.shape

    def constant(self, index: int) -> list[int] | None:
        """The elements of an input that is constant, None for others and absent ones."""
        inputs = self.call.inputs
        each = inputs[index] if index < len(inputs) else None
        if each is None or not each.is_constant:
            return None
        return [int(n) for n in np.asarray(each.value).reshape(-1)]

    def has(self, index: int) -> bool:
        """An input is present."""
        inputs = self.call.inputs
        return index < len(inputs) and inputs[index] is not None

    def attribute(self, name: str, default: int) -> int:
        """An integer attribute; the importer records that it is read."""
        found = self.call.node.attributes.get(name, default)
        return found if isinstance(found, int) else default

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute ``axis``, from 0."""
        rank = len(self.shape(0)) if rank is None else rank
        return self.attribute("axis", default) % max(rank, 1)

    def plain(self, changed: Mapping[int, AnyArray] | None = None) -> Call:
        """The node with arrays in place of tensors with a counted axis.

        Args:
            changed: other values of some inputs.
        """
        inputs: list[Operand | None] = list(self.call.inputs)
        for index, each in self.bounded.items():
            operand = self.call.input(index)
            inputs[index] = Operand(operand.name, operand.type, each.value)
        for index, value in (changed or {}).items():
            operand = self.call.input(index)
            inputs[index] = Operand(operand.name, operand.type, value)
        return replace(self.call, inputs=inputs)

    def read_all(self) -> None:
        """Record that all inputs and attributes are read."""
        self.call.read_parts.inputs.update(range(len(self.call.inputs)))
        self.call.read_parts.attributes.update(self.call.node.attributes)

    def refusal(self) -> UnsupportedError:
        """The error that the operator combines rows."""
        names = ", ".join(str(self.call.input(index)) for index in self.bounded)
        error = self.call.error(
            f"combines the rows of {names}, or takes one of them: {DYNAMIC_SIZE_ADVICE}",
            UnsupportedError,
        )
        assert isinstance(error, UnsupportedError)
        return error

    @staticmethod
    def operand(result: Operand | Typed, axis: int, count: AnyArray) -> Operand:
        """A result with a counted axis."""
        return Operand("", result.type, BoundedTensor(result.value, axis, count))


# -- rules ----------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[BoundedNode], int | None]


def elementwise(node: BoundedNode) -> int | None:
    """All inputs broadcast; the counted axis meets no longer one."""
    ranks = {i: len(node.shape(i)) for i in range(len(node.call.inputs)) if node.has(i)}
    rank = max(ranks.values())
    axes = {rank - ranks[index] + axis for index, axis in node.axes.items()}
    if len(axes) != 1:
        return None
    (axis,) = axes
    return axis if _is_broadcast(node, axis, rank, ranks) else None


def _is_broadcast(node: BoundedNode, axis: int, rank: int, ranks: Mapping[int, int]) -> bool:
    """Return True if inputs without a counted axis have one element, or none, along one."""
    for index, own in ranks.items():
        place = axis - (rank - own)
        if index not in node.bounded and place >= 0 and node.shape(index)[place] != 1:
            return False
    return True


def _first_input(node: BoundedNode) -> int | None:
    """Only the first input has a counted axis, which stays."""
    return node.axes[0] if set(node.bounded) == {0} else None


def _along(default: int) -> Rule:
    """Combine elements along the attribute ``axis``."""

    def rule(node: BoundedNode) -> int | None:
        own = _first_input(node)
        return None if own == node.axis(default) else own

    return rule


def _norm(node: BoundedNode) -> int | None:
    """Combine elements from the attribute ``axis`` on; scales are for those axes only."""
    own, axis = _first_input(node), node.axis(-1)
    rank = len(node.shape(0)) - axis
    is_inner = all(len(node.shape(index)) <= rank for index in (1, 2))
    return own if own is not None and own < axis and is_inner else None


def _without_axis(default: int) -> Rule:
    """Reduce the attribute ``axis``, which goes unless ``keepdims``."""

    def rule(node: BoundedNode) -> int | None:
        own, axis = _first_input(node), node.axis(default)
        if own is None or own == axis:
            return None
        return own - 1 if not node.attribute("keepdims", 1) and axis < own else own

    return rule


def _cumulative(node: BoundedNode) -> int | None:
    """From the first row on, padding comes after what counts."""
    own, axes = _first_input(node), node.constant(1)
    if own is None or not axes:
        return None
    is_own = axes[0] % len(node.shape(0)) == own
    return None if is_own and node.attribute("reverse", 0) else own


def _transposed(node: BoundedNode) -> int | None:
    rank = len(node.shape(0))
    order = node.call.node.attributes.get("perm", list(reversed(range(rank))))
    own = _first_input(node)
    return None if own is None or own not in order else list(order).index(own)


def _gathered(node: BoundedNode) -> int | None:
    """At indices with a counted axis, or along another axis than the counted one."""
    axis, rank = node.axis(0), len(node.shape(1))
    if set(node.bounded) == {1}:
        return axis + node.axes[1] if node.shape(0)[axis] else None
    own = _first_input(node)
    if own is None or own == axis:
        return None
    return own if own < axis else own + rank - 1


def _gathered_elements(node: BoundedNode) -> int | None:
    """One element for each index, from the same row."""
    axis = node.axis(0)
    return (
        node.axes[0]
        if set(node.bounded) == {0, 1} and set(node.axes.values()) == {node.axes[0]} - {axis}
        else None
    )


def _gathered_slices(node: BoundedNode) -> int | None:
    """At indices with a counted axis, of a tensor without one."""
    is_plain = set(node.bounded) == {1} and not node.attribute("batch_dims", 0)
    if not is_plain or 0 in node.shape(0) or node.axes[1] == len(node.shape(1)) - 1:
        return None
    return node.axes[1]


def _one_hot(node: BoundedNode) -> int | None:
    own = _first_input(node)
    rank = len(node.shape(0)) + 1
    return None if own is None else own + (node.axis(-1, rank) <= own)


def _product(node: BoundedNode) -> int | None:
    """Rows of the left operand, columns of the right one, or a batch."""
    ranks = [len(node.shape(index)) for index in (0, 1)]
    rank = max(ranks)
    if len(node.bounded) != 1:
        return None
    ((index, axis),) = node.axes.items()
    other, own = ranks[1 - index], ranks[index]
    is_summed = axis == own - 1 if index == 0 or own == 1 else axis == own - 2
    if is_summed or min(ranks) < 1:
        return None
    if other == 1:  # that axis goes
        return axis if index == 0 else axis - (axis == own - 1)
    place = rank - own + axis
    if axis < own - 2 and not _is_broadcast(node, place, rank, {1 - index: other}):
        return None
    return place


def _gemm(node: BoundedNode) -> int | None:
    """Rows of A; C has no rows of its own."""
    own = node.axes.get(0)
    if set(node.bounded) != {0} or own != node.attribute("transA", 0):
        return None
    return 0 if len(node.shape(2)) < 2 or node.shape(2)[0] == 1 else None


def _images(node: BoundedNode) -> int | None:
    """Images are the first axis of the first input."""
    return 0 if dict(node.axes) == {0: 0} else None


def _resized(node: BoundedNode) -> int | None:
    """Images are the first axis; sizes in numbers would be those of the bound."""
    return None if node.has(3) else _images(node)


def _regions(node: BoundedNode) -> int | None:
    """Regions and the numbers of their images."""
    return 0 if dict(node.axes) == {1: 0, 2: 0} else None


def _quantized(node: BoundedNode) -> int | None:
    """One scale, or one for each index of another axis."""
    own = _first_input(node)
    scale = node.shape(1)
    is_whole = math.prod(scale) == 1 or (len(scale) == 1 and node.axis(1) != own)
    return own if is_whole else None


def _expanded(node: BoundedNode) -> int | None:
    shape, own = node.constant(1), _first_input(node)
    if shape is None or own is None:
        return None
    rank = max(len(shape), len(node.shape(0)))
    axis = rank - len(node.shape(0)) + own
    place = axis - (rank - len(shape))
    return axis if place < 0 or shape[place] == 1 else None


def _repeated(node: BoundedNode) -> int | None:
    own, repeats = _first_input(node), node.constant(1)
    return own if own is not None and repeats is not None and repeats[own] == 1 else None


def _padded(node: BoundedNode) -> int | None:
    own, pads, axes = _first_input(node), node.constant(1), node.constant(3)
    if own is None or pads is None or (axes is None and node.has(3)):
        return None
    rank = len(node.shape(0))
    padded = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    widths = {axis: (pads[n], pads[n + len(padded)]) for n, axis in enumerate(padded)}
    return own if widths.get(own, (0, 0)) == (0, 0) else None


def _like(node: BoundedNode) -> int | None:
    """The second input gives its type only."""
    return node.axes.get(0)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitCast",
         "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu",
         "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
         "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
         "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul",
         "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
         "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish",
         "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor"),
        elementwise,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK"),
                    _along(-1)),
    "Split": _along(0),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
                    _norm),
    **dict.fromkeys(("ArgMax", "ArgMin"), _without_axis(0)),
    **dict.fromkeys(("CumSum", "CumProd"), _cumulative),
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
         "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization",
         "LRN", "MaxPool", "SpaceToDepth"),
        _images,
    ),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantized),
    "CastLike": _like,
    "Expand": _expanded,
    "Gather": _gathered,
    "GatherElements": _gathered_elements,
    "GatherND": _gathered_slices,
    "Gemm": _gemm,
    "MatMul": _product,
    "OneHot": _one_hot,
    "Pad": _padded,
    "Resize": _resized,
    "RoiAlign": _regions,
    "Tile": _repeated,
    "Transpose": _transposed,
}  # fmt: skip
