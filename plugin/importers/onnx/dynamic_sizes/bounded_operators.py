"""Operators on tensors with a data-dependent dimension size (`bounded_tensor`).

A *handler* computes a node itself: it reads the valid rows only (NonZero, Concat), or changes their
number (Slice). A *rule* returns the axis of the results that has the rows, or None where the node
combines rows. The node then computes on the whole array, padding included, and its results have the
same count. That holds for broadcasting only where no other input has more than one element along
that axis: a single row would be repeated beside a longer axis. No handler or rule lets padding into
a valid row.

Source: ONNX, "Operator Schemas", operator set 28.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..call import Call, Operand
from .bounded_node import HANDLERS, BoundedNode, Compute
from .bounded_tensor import DYNAMIC_SIZE_ADVICE, BoundedTensor

_Rule: TypeAlias = Callable[[BoundedNode], "int | None"]


def elementwise(node: BoundedNode) -> int | None:
    """The rows of inputs that broadcast; None for several axes, or elements along another."""
    ranks = {i: len(node.shape(i)) for i in range(len(node.call.inputs)) if node.has(i)}
    rank = max(ranks.values())
    axes = {rank - ranks[index] + axis for index, axis in node.axes.items()}
    if len(axes) != 1:
        return None
    (axis,) = axes
    return axis if _is_broadcast(node, axis, rank, ranks) else None


def _is_broadcast(node: BoundedNode, axis: int, rank: int, ranks: Mapping[int, int]) -> bool:
    """Return True if other inputs have at most one element along the rows."""
    for index, own in ranks.items():
        own_axis = axis - (rank - own)
        if index not in node.tensors and own_axis >= 0 and node.shape(index)[own_axis] != 1:
            return False
    return True


def _first_input(node: BoundedNode) -> int | None:
    """Only the first input is bounded, and its axes stay."""
    return node.axes[0] if set(node.tensors) == {0} else None


def _along(default: int) -> _Rule:
    """The operator combines elements along the attribute ``axis``."""

    def rule(node: BoundedNode) -> int | None:
        own = _first_input(node)
        return None if own == node.axis(default) else own

    return rule


def _norm(node: BoundedNode) -> int | None:
    """The operator combines elements from ``axis`` on; scales are for those axes only."""
    own, axis = _first_input(node), node.axis(-1)
    rank = len(node.shape(0)) - axis
    is_inner = all(len(node.shape(index)) <= rank for index in (1, 2))
    return own if own is not None and own < axis and is_inner else None


def _without_axis(node: BoundedNode) -> int | None:
    """The operator reduces ``axis``, which is removed unless ``keepdims``."""
    own, axis = _first_input(node), node.axis(0)
    if own is None or own == axis:
        return None
    return own - 1 if not node.attribute("keepdims", 1) and axis < own else own


def _cumulative(node: BoundedNode) -> int | None:
    """The axis of the rows; None for a computed axis, or for sums that start at the last row."""
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
    """The rows of bounded indices, or of another axis; None along the rows, or of no elements."""
    axis, rank = node.axis(0), len(node.shape(1))
    if set(node.tensors) == {1}:
        return axis + node.axes[1] if node.shape(0)[axis] else None
    own = _first_input(node)
    if own is None or own == axis:
        return None
    return own if own < axis else own + rank - 1


def _gathered_elements(node: BoundedNode) -> int | None:
    """Each index takes one element of its own row."""
    axis = node.axis(0)
    return (
        node.axes[0]
        if set(node.tensors) == {0, 1} and set(node.axes.values()) == {node.axes[0]} - {axis}
        else None
    )


def _gathered_slices(node: BoundedNode) -> int | None:
    """The rows of bounded indices; None for bounded data, no elements, batches, index vectors."""
    is_supported = set(node.tensors) == {1} and not node.attribute("batch_dims", 0)
    if not is_supported or 0 in node.shape(0) or node.axes[1] == len(node.shape(1)) - 1:
        return None
    return node.axes[1]


def _one_hot(node: BoundedNode) -> int | None:
    own = _first_input(node)
    rank = len(node.shape(0)) + 1
    return None if own is None else own + (node.axis(-1, rank) <= own)


def _product(node: BoundedNode) -> int | None:
    """The rows: M of the left operand, N of the right, or a batch; None along K, for two sides."""
    ranks = [len(node.shape(index)) for index in (0, 1)]
    rank = max(ranks)
    if len(node.tensors) != 1:
        return None
    ((index, axis),) = node.axes.items()
    other_rank, own = ranks[1 - index], ranks[index]
    is_summed = axis == own - 1 if index == 0 or own == 1 else axis == own - 2
    if is_summed or min(ranks) < 1:
        return None
    if other_rank == 1:  # the result lacks that axis
        return axis if index == 0 else axis - (axis == own - 1)
    result_axis = rank - own + axis
    if axis < own - 2 and not _is_broadcast(node, result_axis, rank, {1 - index: other_rank}):
        return None
    return result_axis


def _gemm(node: BoundedNode) -> int | None:
    """The rows: M of A; None if B or C is bounded, A has them along K, or C has several rows."""
    own = node.axes.get(0)
    if set(node.tensors) != {0} or own != node.attribute("transA", 0):
        return None
    return 0 if len(node.shape(2)) < 2 or node.shape(2)[0] == 1 else None


def _images(node: BoundedNode) -> int | None:
    """The rows are the batch N of the first input."""
    return 0 if dict(node.axes) == {0: 0} else None


def _resized(node: BoundedNode) -> int | None:
    """The rows are the batch N; ``sizes`` would be those of the bound."""
    return None if node.has(3) else _images(node)


def _regions(node: BoundedNode) -> int | None:
    """The rows are regions, and the indices of their images."""
    return 0 if dict(node.axes) == {1: 0, 2: 0} else None


def _quantized(node: BoundedNode) -> int | None:
    """One scale, or one scale for each index of another axis."""
    own = _first_input(node)
    scale = node.shape(1)
    is_whole = math.prod(scale) == 1 or (len(scale) == 1 and node.axis(1) != own)
    return own if is_whole else None


def _expanded(node: BoundedNode) -> int | None:
    """The axis of the rows; None for a computed shape, or one that repeats them."""
    shape, own = node.constant(1), _first_input(node)
    if shape is None or own is None:
        return None
    rank = max(len(shape), len(node.shape(0)))
    axis = rank - len(node.shape(0)) + own
    shape_axis = axis - (rank - len(shape))
    return axis if shape_axis < 0 or shape[shape_axis] == 1 else None


def _repeated(node: BoundedNode) -> int | None:
    own, repeats = _first_input(node), node.constant(1)
    return own if own is not None and repeats is not None and repeats[own] == 1 else None


def _padded(node: BoundedNode) -> int | None:
    """The axis of the rows; None for computed pads or axes, and for pads of the rows."""
    own, pads, axes = _first_input(node), node.constant(1), node.constant(3)
    if own is None or pads is None or (axes is None and node.has(3)):
        return None
    rank = len(node.shape(0))
    padded = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    widths = {axis: (pads[n], pads[n + len(padded)]) for n, axis in enumerate(padded)}
    return own if widths.get(own, (0, 0)) == (0, 0) else None


_RULES: dict[str, _Rule] = {
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
    **dict.fromkeys(("ArgMax", "ArgMin"), _without_axis),
    **dict.fromkeys(("CumSum", "CumProd"), _cumulative),
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
         "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization",
         "LRN", "MaxPool", "SpaceToDepth"),
        _images,
    ),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantized),
    "CastLike": lambda node: node.axes.get(0),  # the second input only gives its type
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
    """Compute a node that takes bounded tensors; the importer computes others.

    Raises:
        UnsupportedError: the operator combines rows, or tensors with different numbers of rows.
    """
    node = BoundedNode(call, compute)
    handler = HANDLERS.get(call.node.operator)
    results = None if handler is None else handler(node)
    if results is not None:
        return results
    rule = _RULES.get(call.node.operator)
    axis = None if rule is None else rule(node)
    if axis is None:
        raise node.refusal()
    if not node.has_one_count:
        raise call.unsupported(
            "takes tensors with data-dependent dimension sizes that need not be equal: "
            f"{DYNAMIC_SIZE_ADVICE}"
        )
    tensor = next(iter(node.tensors.values()))
    results = compute(node.with_arrays())
    if any(each.shape[axis] != tensor.shape[tensor.axis] for each in results):
        raise node.refusal()
    return [node.operand(each, axis, tensor.count) for each in results]
