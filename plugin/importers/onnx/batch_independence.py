"""Whether a model treats the elements of its batch each alone: a loop over them is then the same.

Every tensor that depends on a batched argument must have exactly one axis whose extent is that of
the batch, which two traces of the shapes show; what has none is computed of several elements. And
every node must be known to keep the elements along that axis apart, which the shapes do not show:
a Softmax along it has the same shapes. What is not known here is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import Place, UnsupportedError
from .reading.model import Model, Node

__all__ = ["Traced", "check_batch", "unlike"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Traced:
    """What is known of a tensor after its program has been written.

    Args:
        shape: of it.
        is_constant: its elements are, so that they depend on no argument.
    """

    shape: Shape
    is_constant: bool


def unlike(model: Model) -> int:
    """A batch that no other extent of a model is likely to be."""
    extents = {n for each in model.inputs for n in each.shape or () if isinstance(n, int)}
    extents |= {n for tensor in model.constants.values() for n in tensor.data.shape}
    return next(n for n in (11, 13, 17, 19, 23, 29, 31, 37, 1009) if n not in extents)


def check_batch(
    model: Model,
    batched: list[str],
    one: Mapping[str, Traced],
    many: Mapping[str, Traced],
) -> None:
    """Check that elements of the batch are computed each alone.

    Args:
        model: as read.
        batched: the names of the arguments that have a batch, in their first dimension.
        one: all tensors that nodes compute, for a batch of one.
        many: likewise, for one of `unlike`.

    Raises:
        UnsupportedError: at a node that is not known to do so.
    """
    axes = dict.fromkeys(batched, 0)
    count = unlike(model)
    for node in model.nodes:
        given = {index: axes[name] for index, name in enumerate(node.inputs) if name in axes}
        if not given:
            continue
        outputs = [name for name in node.outputs if name and not many[name].is_constant]
        found: dict[str, int] = {}
        for name in outputs:
            axis = _axis_of(one[name].shape, many[name].shape, count)
            if axis is None:
                raise _mixed(node, f"computes '{name}' of several elements of the batch", model)
            found[name] = axis
        if outputs:
            rule = _RULES.get(node.operator)
            if rule is None or not rule(_Seen(node, model, given, many, found)):
                raise _mixed(node, "is not known to compute each element of the batch alone", model)
        axes |= found
    for output in model.outputs:
        if axes.get(output.name) != 0:
            raise UnsupportedError(
                f"the result '{output.name}' has no batch in its first dimension; give --batch a "
                "number",
                Place(model.file),
            )


def _mixed(node: Node, what: str, model: Model) -> UnsupportedError:
    return UnsupportedError(f"{node} {what}; give --batch a number", Place(model.file))


def _axis_of(one: Shape, many: Shape, count: int) -> int | None:
    """The only axis that has the extent of the batch."""
    if len(one) != len(many):
        return None
    axes = [axis for axis, (n, m) in enumerate(zip(one, many, strict=True)) if n != m]
    if len(axes) != 1 or (one[axes[0]], many[axes[0]]) != (1, count):
        return None
    return axes[0]


@dataclass(frozen=True)
class _Seen:
    """A node with the axes of the batch: of its inputs by number, of its results by name."""

    node: Node
    model: Model
    given: Mapping[int, int]
    shapes: Mapping[str, Traced]
    found: Mapping[str, int]

    def shape(self, index: int) -> Shape:
        """Of an input."""
        name = self.node.inputs[index]
        if name in self.shapes:
            return self.shapes[name].shape
        if name in self.model.constants:
            return tuple(self.model.constants[name].data.shape)
        (input_,) = (each for each in self.model.inputs if each.name == name)
        axis = self.given.get(index)
        return tuple(
            unlike(self.model) if a == axis else n if isinstance(n, int) else 1
            for a, n in enumerate(input_.shape or ())
        )

    def attribute(self, name: str, default: int) -> int:
        """An integer that the node says."""
        found = self.node.attributes.get(name, default)
        return found if isinstance(found, int) else default

    @property
    def version(self) -> int:
        """Of the operator set of the node."""
        return self.model.opsets[self.node.operator.rpartition(".")[0]]


def _elementwise(seen: _Seen) -> bool:
    """Each element of the result is one of its place, counted from the last axis."""
    rank = max((len(seen.shape(index)) for index in seen.given), default=0)
    found = set(seen.found.values())
    others = [i for i, name in enumerate(seen.node.inputs) if name and i not in seen.given]
    rank = max([rank, *(len(seen.shape(index)) for index in others)])
    axes = {rank - len(seen.shape(index)) + axis for index, axis in seen.given.items()}
    return len(axes) == 1 and found == axes


def _images(seen: _Seen) -> bool:
    """Of the first operand alone, whose first axis are images; places in all are not asked for."""
    return dict(seen.given) == {0: 0} and list(seen.found.values()) == [0]


def _same(seen: _Seen) -> bool:
    """Of the first operand alone, whose axes stay."""
    return set(seen.given) == {0} and set(seen.found.values()) == set(seen.given.values())


def _product(seen: _Seen) -> bool:
    """The batch is summed nowhere, or the result would not have it."""
    return set(seen.given) <= {0, 1} and len(set(seen.found.values())) == 1


def _first_rows(seen: _Seen) -> bool:
    """Only the left operand has a batch, which is one of rows."""
    return set(seen.given) == {0} and set(seen.found.values()) == set(seen.given.values())


def _reshaped(seen: _Seen) -> bool:
    """As many elements are before the batch as were."""
    if set(seen.given) != {0}:
        return False
    axis, shape = seen.given[0], seen.shape(0)
    return all(
        math.prod(seen.shapes[name].shape[:found]) == math.prod(shape[:axis])
        for name, found in seen.found.items()
    )


def _transposed(seen: _Seen) -> bool:
    rank = len(seen.shape(0))
    order = seen.node.attributes.get("perm", list(reversed(range(rank))))
    return set(seen.given) == {0} and all(
        order[found] == seen.given[0] for found in seen.found.values()
    )


def _joined(seen: _Seen) -> bool:
    """Every operand that has a batch has it on the axis of the result."""
    axes = set(seen.given.values())
    return len(axes) == 1 and set(seen.found.values()) == axes and all(
        index in seen.given for index, name in enumerate(seen.node.inputs)
        if name and not _is_parameter(seen, index)
    )  # fmt: skip


def _is_parameter(seen: _Seen, index: int) -> bool:
    return seen.node.operator.endswith("QLinearConcat") and (index < 2 or index % 3 != 2)


def _sliced(seen: _Seen) -> bool:
    """The batch whole, and in its order: no step is negative."""
    if not _same(seen):
        return False
    if len(seen.node.inputs) < 5 or not seen.node.inputs[4]:
        return True
    steps = seen.model.constants.get(seen.node.inputs[4])
    return steps is not None and bool((steps.data > 0).all())


def _along(default: int) -> Callable[[_Seen], bool]:
    """Along an axis, or that one and those after it, which are not the batch's."""

    def rule(seen: _Seen) -> bool:
        rank = len(seen.shape(0))
        before = seen.attribute("axis", default) % max(rank, 1)
        return _same(seen) and seen.given[0] < before

    return rule


def _softmax(seen: _Seen) -> bool:
    """Along one axis; before opset 13 along that one and all after it."""
    if seen.version < 13:
        return _along(1)(seen)
    rank = len(seen.shape(0))
    return _same(seen) and seen.given[0] != seen.attribute("axis", -1) % max(rank, 1)


def _gathered(seen: _Seen) -> bool:
    """From a table at indices of a batch, or from a batch along another axis."""
    axis = seen.attribute("axis", 0) % max(len(seen.shape(0)), 1)
    if set(seen.given) == {1}:
        return set(seen.found.values()) == {axis + seen.given[1]}
    return set(seen.given) == {0} and seen.given[0] != axis


def _norm(seen: _Seen) -> bool:
    """A norm along one axis, which is not the batch's."""
    return _same(seen) and seen.given[0] != seen.attribute("axis", -1) % len(seen.shape(0))


def _first(seen: _Seen) -> bool:
    """Operands and results have the batch in their first dimension, and elements are kept apart."""
    return {*seen.given.values(), *seen.found.values()} == {0}


def _first_without(index: int) -> Callable[[_Seen], bool]:
    """The rule `_first`, where an input has no batch."""
    return lambda seen: index not in seen.given and _first(seen)


def _with_past(index: int) -> Callable[[_Seen], bool]:
    """The rule `_first`, but keys and values of past and present are one tensor, 2 in front."""

    def rule(seen: _Seen) -> bool:
        axes = [axis for n, axis in seen.given.items() if n != index]
        present = dict(zip(seen.node.outputs, (0, 1), strict=False))
        return (
            set(axes) == {0}
            and seen.given.get(index, 1) == 1
            and all(axis == present.get(name) for name, axis in seen.found.items())
        )

    return rule


def _recurrent(seen: _Seen) -> bool:
    """Sequences, their lengths and their states: the batch is after the time, or in front."""
    is_first = bool(seen.attribute("layout", 0))
    inputs = {0: 1, 4: 0, 5: 1, 6: 1} if not is_first else {0: 0, 4: 0, 5: 0, 6: 0}
    results = dict(zip(seen.node.outputs, (0, 0, 0) if is_first else (2, 1, 1), strict=False))
    return (
        all(inputs.get(n) == axis for n, axis in seen.given.items())
        and all(results.get(name) == axis for name, axis in seen.found.items())
    )  # fmt: skip


_RULES: dict[str, Callable[[_Seen], bool]] = {
    **dict.fromkeys(
        ("Abs", "Add", "And", "BitShift", "Cast", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu",
         "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid",
         "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log",
         "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "PRelu",
         "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign",
         "Sqrt", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu", "Where", "Xor", "Dropout",
         "SwiGLU", "com.microsoft.BiasAdd", "com.microsoft.BiasGelu", "com.microsoft.FastGelu",
         "com.microsoft.Gelu", "com.microsoft.QLinearAdd", "com.microsoft.QLinearMul",
         "com.microsoft.QuickGelu"),
        _elementwise,
    ),
    **dict.fromkeys(
        ("Attention", "CausalConvWithState", "LinearAttention", "RotaryEmbedding", "TensorScatter",
         "com.microsoft.CausalConvWithState", "com.microsoft.EmbedLayerNormalization",
         "com.microsoft.LinearAttention", "com.microsoft.MultiHeadAttention",
         "com.microsoft.RotaryEmbedding", "com.microsoft.SkipLayerNormalization",
         "com.microsoft.SkipSimplifiedLayerNormalization"),
        _first,
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        _along(-1),
    ),
    "com.microsoft.Attention": _with_past(4),
    "com.microsoft.GroupQueryAttention": _first_without(9),  # a prompt reads its first element
    "com.microsoft.QAttention": _with_past(8),
    "LpNormalization": _norm,
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose",
         "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization",
         "InstanceNormalization", "LRN", "LpPool", "MaxPool", "QLinearConv", "Resize",
         "SpaceToDepth", "Upsample", "com.microsoft.QLinearAveragePool",
         "com.microsoft.QLinearConv", "com.microsoft.QLinearGlobalAveragePool"),
        _images,
    ),
    **dict.fromkeys(
        ("Gemm", "com.microsoft.MatMulNBits", "com.microsoft.MatMulIntegerToFloat",
         "com.microsoft.QGemm", "QLinearMatMul"),
        _first_rows,
    ),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear", "com.microsoft.QuantizeLinear",
         "com.microsoft.DequantizeLinear", "com.microsoft.QLinearSigmoid", "Expand", "Tile", "Pad",
         "com.microsoft.QLinearLeakyRelu", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum",
         "ReduceL2", "ReduceL1", "ReduceProd", "ReduceSumSquare", "Split"),
        _same,
    ),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(("Concat", "com.microsoft.QLinearConcat"), _joined),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "Gather": _gathered,
    "Slice": _sliced,
    "Transpose": _transposed,
}  # fmt: skip
