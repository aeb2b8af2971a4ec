"""Proof that a model computes the elements of its batch independently, as a loop over them does.

Every tensor that depends on a batched argument must have exactly one axis of the size of the batch,
which two traces of the shapes show: a tensor without one is computed from several elements. Every
node must also be known to keep the elements along that axis separate, which the shapes do not show:
a Softmax along it has the same shapes. Nodes that are not known here are refused, as are nodes with
graphs (If, Loop, Scan) that read a batched tensor, and sequences of batched tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...errors import Place, UnsupportedError
from ...numerics.element_types import Array
from ..batch_loop import is_alike_in_batches
from .reading.model import Model, Node, Subgraph

_Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorTrace:
    """A tensor of a program that has been written; one with a value depends on no argument."""

    shape: _Shape
    value: Array | None

    @property
    def is_constant(self) -> bool:
        """The tensor depends on no argument."""
        return self.value is not None


def batch_unlike_sizes(model: Model) -> int:
    """Return a batch that is probably no other dimension size of a model."""
    sizes = {n for each in model.inputs for n in each.shape or () if isinstance(n, int)}
    sizes |= {n for tensor in model.constants.values() for n in tensor.data.shape}
    return next(n for n in (11, 13, 17, 19, 23, 29, 31, 37, 1009) if n not in sizes)


def check_batch(
    model: Model,
    batched: list[str],
    one: Mapping[str, TensorTrace],
    many: Mapping[str, TensorTrace],
) -> None:
    """Check that a model computes the elements of its batch independently.

    Args:
        batched: the names of the arguments with the batch in their first dimension.
        one: all tensors that nodes compute, for a batch of one.
        many: the same tensors for a batch of `batch_unlike_sizes`.

    Raises:
        UnsupportedError: a node is not known to keep the elements separate.
    """
    axes = dict.fromkeys(batched, 0)
    batch = batch_unlike_sizes(model)

    def refusal(problem: str) -> UnsupportedError:
        return UnsupportedError(f"{problem}; give --batch a number", Place(model.file))

    for node in model.nodes:
        input_axes = {index: axes[name] for index, name in enumerate(node.inputs) if name in axes}
        outputs = [
            name for name in node.outputs if name and not (name in many and many[name].is_constant)
        ]
        if not outputs:
            continue
        captured = set(_captured_names(node))
        operands = [
            name for index, name in enumerate(node.inputs)
            if (node.operator, index) not in _SHAPE_INPUTS
        ]  # fmt: skip
        for name in (*operands, *sorted(captured)):
            if name not in one:
                continue
            values = one[name].value, many[name].value
            if not (
                values[0] is None
                or values[1] is None
                or is_alike_in_batches(values[0], values[1], batch)
            ):
                raise refusal(f"{node} computes with '{name}', which depends on the batch")
        is_batched = bool(input_axes) or not captured.isdisjoint(axes)
        if not is_batched and all(
            name not in many or one[name].shape == many[name].shape for name in outputs
        ):
            continue
        unknown = refusal(f"{node} is not known to compute each element of the batch alone")
        if not captured.isdisjoint(axes) or any(name not in many for name in outputs):
            raise unknown
        output_axes: dict[str, int] = {}
        for name in outputs:
            axis = _batch_axis(one[name].shape, many[name].shape, batch)
            if axis is None:
                raise refusal(f"{node} computes '{name}' of several elements of the batch")
            output_axes[name] = axis
        rule = _RULES.get(node.operator)
        context = _BatchedNode(node, model, input_axes, one, many, output_axes)
        if not (rule(context) if is_batched and rule else node.operator in _COPYING):
            raise unknown
        axes |= output_axes
    for output in model.outputs:
        if axes.get(output.name) != 0:
            raise refusal(f"the result '{output.name}' has no batch in its first dimension")


def _captured_names(node: Node) -> Iterator[str]:
    """Yield the names that the graphs of a node read, also those of tensors inside the graphs."""
    for graph in node.attributes.values():
        if isinstance(graph, Subgraph):
            yield from graph.outputs
            for inner in graph.nodes:
                yield from filter(None, inner.inputs)
                yield from _captured_names(inner)


def _batch_axis(one: _Shape, many: _Shape, batch: int) -> int | None:
    """Return the only axis of the size of the batch; None for none or several."""
    if len(one) != len(many):
        return None
    axes = [axis for axis, (n, m) in enumerate(zip(one, many, strict=True)) if n != m]
    if len(axes) != 1 or (one[axes[0]], many[axes[0]]) != (1, batch):
        return None
    return axes[0]


@dataclass(frozen=True)
class _BatchedNode:
    """A node with the axes of the batch: of its inputs by number, of its results by name.

    Args:
        one, traces: all tensors, for a batch of one and for one of `batch_unlike_sizes`.
    """

    node: Node
    model: Model
    input_axes: Mapping[int, int]
    one: Mapping[str, TensorTrace]
    traces: Mapping[str, TensorTrace]
    output_axes: Mapping[str, int]

    @property
    def result_axes(self) -> set[int]:
        """The axes of the batch in the results."""
        return set(self.output_axes.values())

    def shape(self, index: int) -> _Shape:
        """Return the shape of an input."""
        name = self.node.inputs[index]
        if name in self.traces:
            return self.traces[name].shape
        if name in self.model.constants:
            return tuple(self.model.constants[name].data.shape)
        (input_,) = (each for each in self.model.inputs if each.name == name)
        axis = self.input_axes.get(index)
        return tuple(
            batch_unlike_sizes(self.model) if a == axis else n if isinstance(n, int) else 1
            for a, n in enumerate(input_.shape or ())
        )

    def elements(
        self, traces: Mapping[str, TensorTrace], index: int, attribute: str
    ) -> list[int] | None:
        """Return the elements of a constant input, of an attribute if absent; None for others."""
        name = self.node.inputs[index] if index < len(self.node.inputs) else ""
        if name in self.model.constants:
            return [int(n) for n in self.model.constants[name].data.reshape(-1)]
        if name:
            value = traces[name].value if name in traces else None
            return None if value is None else [int(n) for n in value.reshape(-1)]
        value = self.node.attributes.get(attribute)
        return None if value is None else [int(n) for n in value]

    def copied_axis(self, index: int) -> int | None:
        """Return the axis along which a computed input has a copy for each element, if any."""
        name = self.node.inputs[index]
        if name not in self.one:
            return None
        shapes = self.one[name].shape, self.traces[name].shape
        return _batch_axis(*shapes, batch_unlike_sizes(self.model))

    def attribute(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.node.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def axis(self, default: int) -> int:
        """Return the attribute ``axis``, from 0, of the first input."""
        return self.attribute("axis", default) % max(len(self.shape(0)), 1)


_Rule = Callable[[_BatchedNode], bool]


def _elementwise(node: _BatchedNode) -> bool:
    """Inputs broadcast, with the batch on one axis."""
    ranks = {index: len(node.shape(index)) for index, name in enumerate(node.node.inputs) if name}
    rank = max(ranks.values())
    axes = {rank - ranks[index] + axis for index, axis in node.input_axes.items()}
    return len(axes) == 1 and node.result_axes == axes


def _images(node: _BatchedNode) -> bool:
    """Only the first input has a batch, N of its images; any sums are over other axes."""
    return dict(node.input_axes) == {0: 0} and list(node.output_axes.values()) == [0]


def _same_axes(node: _BatchedNode) -> bool:
    """Only the first input has a batch, and its axes stay."""
    return set(node.input_axes) == {0} and node.result_axes == {node.input_axes[0]}


def _product(node: _BatchedNode) -> bool:
    """Only the two factors have a batch, which is not summed: the results have it."""
    return set(node.input_axes) <= {0, 1} and len(node.result_axes) == 1


def _reshaped(node: _BatchedNode) -> bool:
    """The batch has as many elements in front as before."""
    if set(node.input_axes) != {0}:
        return False
    before = math.prod(node.shape(0)[: node.input_axes[0]])
    return all(
        math.prod(node.traces[name].shape[:axis]) == before
        for name, axis in node.output_axes.items()
    )


def _transposed(node: _BatchedNode) -> bool:
    order = node.node.attributes.get("perm", list(reversed(range(len(node.shape(0))))))
    return set(node.input_axes) == {0} and all(
        order[axis] == node.input_axes[0] for axis in node.result_axes
    )


def _concatenated(node: _BatchedNode) -> bool:
    """Every operand has the batch on the axis of the result, or is a constant copied along it."""
    axes, operator = set(node.input_axes.values()), node.node.operator
    operands = [
        index for index, name in enumerate(node.node.inputs)
        if name and not (operator.endswith("QLinearConcat") and (index < 2 or index % 3 != 2))
    ]  # fmt: skip
    has_batch = all(index in node.input_axes or node.copied_axis(index) in axes
                    for index in operands)  # fmt: skip
    return len(axes) == 1 and node.result_axes == axes and has_batch


def _sliced(node: _BatchedNode) -> bool:
    """Slices have all elements of the batch, in their order, whatever its size."""
    if not _same_axes(node):
        return False
    has_steps = len(node.node.inputs) > 4 and bool(node.node.inputs[4])
    starts, axes, steps = (
        node.elements(node.traces, index, name)
        for index, name in ((1, "starts"), (3, "axes"), (4, "steps"))
    )
    ends = [node.elements(traces, 2, "ends") for traces in (node.one, node.traces)]
    if starts is None or None in ends or (has_steps and steps is None):
        return False
    rank, batch = len(node.shape(0)), batch_unlike_sizes(node.model)
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    if node.input_axes[0] not in axes:
        return True
    index = axes.index(node.input_axes[0])
    end = [each[index] for each in ends if each is not None]
    is_whole = min(end) >= _WITHOUT_END or end == [1, batch]
    return starts[index] == 0 and is_whole and (steps is None or steps[index] == 1)


def _from_axis(node: _BatchedNode, default: int = -1) -> bool:
    """The operator combines elements from the attribute ``axis`` on, behind the batch."""
    return _same_axes(node) and node.input_axes[0] < node.axis(default)


def _along_axis(node: _BatchedNode, default: int = -1) -> bool:
    """The operator combines elements along the attribute ``axis``, which is not the batch."""
    return _same_axes(node) and node.input_axes[0] != node.axis(default)


def _cumulative(node: _BatchedNode) -> bool:
    """The operator adds up elements along input 1, an axis which is not the batch."""
    axes = node.elements(node.traces, 1, "axis")
    if not axes or not _same_axes(node):
        return False
    return node.input_axes[0] != axes[0] % len(node.shape(0))


def _softmax(node: _BatchedNode) -> bool:
    """Softmax combines elements along one axis, before operator set 13 from that axis on."""
    opset = node.attribute("opset", node.model.opsets[""])  # the attribute of QLinearSoftmax
    return _from_axis(node, 1) if opset < 13 else _along_axis(node)


def _gathered(node: _BatchedNode) -> bool:
    """Gathers at indices of a batch, or of a batch along another axis."""
    axis = node.axis(0)
    if set(node.input_axes) == {1}:
        return node.result_axes == {axis + node.input_axes[1]}
    return set(node.input_axes) == {0} and node.input_axes[0] != axis


def _first_axes(node: _BatchedNode) -> bool:
    """Inputs and results have the batch in front, and its elements are kept separate."""
    return {*node.input_axes.values(), *node.result_axes} == {0}


def _along_others(node: _BatchedNode) -> bool:
    """All inputs have the batch on the axis of the result; elements move along ``axis``."""
    axes = set(node.input_axes.values())
    is_whole = len(node.input_axes) == sum(map(bool, node.node.inputs))
    return is_whole and axes == node.result_axes and axes != {node.axis(0)}


def _einsum(node: _BatchedNode) -> bool:
    """The batch has one letter, which the result has, too."""
    equation = str(node.node.attributes.get("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if not arrow or "." in equation:
        return False
    operands = terms.split(",")
    letters = {operands[index][axis] for index, axis in node.input_axes.items()}
    return node.result_axes == {result.find(letter) for letter in letters}


def _with_past(index: int) -> _Rule:
    """The rule `_first_axes`, but past and present have keys and values, ``[2, B, ...]``."""

    def rule(node: _BatchedNode) -> bool:
        axes = [axis for n, axis in node.input_axes.items() if n != index]
        present = dict(zip(node.node.outputs, (0, 1), strict=False))
        return (
            set(axes) == {0}
            and node.input_axes.get(index, 1) == 1
            and all(axis == present.get(name) for name, axis in node.output_axes.items())
        )

    return rule


def _recurrent(node: _BatchedNode) -> bool:
    """Sequences, their lengths and states have the batch behind the time, or in front."""
    is_first = bool(node.attribute("layout", 0))
    inputs = {0: 1, 4: 0, 5: 1, 6: 1} if not is_first else {0: 0, 4: 0, 5: 0, 6: 0}
    axes = (0, 0, 0) if is_first else (2, 1, 1)
    results = dict(zip(node.node.outputs, axes, strict=False))
    return all(inputs.get(n) == axis for n, axis in node.input_axes.items()) and all(
        results.get(name) == axis for name, axis in node.output_axes.items()
    )


_WITHOUT_END = (1 << 31) - 1
"""Slices that end here or later have all elements up to the last one."""

_COPYING = frozenset(("Expand", "Tile"))
"""Operators that copy a tensor without a batch for each element of the batch."""

_SHAPE_INPUTS = {
    ("ConstantOfShape", 0), ("Expand", 1), ("Reshape", 1), ("Resize", 3), ("Slice", 2),
    ("Split", 1), ("Tile", 1),
}  # fmt: skip
"""Inputs that state sizes of results, which two traces show, by operator and number."""

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
         "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip",
         "Cos", "Cosh", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
         "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu",
         "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not",
         "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign",
         "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "SwiGLU", "Swish", "Tan",
         "Tanh", "ThresholdedRelu", "Where", "Xor", "com.microsoft.BiasAdd",
         "com.microsoft.BiasGelu", "com.microsoft.FastGelu", "com.microsoft.Gelu",
         "com.microsoft.QLinearAdd", "com.microsoft.QLinearMul", "com.microsoft.QLinearWhere",
         "com.microsoft.QuickGelu"),
        _elementwise,
    ),
    **dict.fromkeys(
        ("Attention", "CausalConvWithState", "GridSample", "LinearAttention", "RotaryEmbedding",
         "TensorScatter", "com.microsoft.CausalConvWithState",
         "com.microsoft.EmbedLayerNormalization",
         "com.microsoft.LinearAttention", "com.microsoft.MultiHeadAttention",
         "com.microsoft.QEmbedLayerNormalization",
         "com.microsoft.RotaryEmbedding", "com.microsoft.SkipLayerNormalization",
         "com.microsoft.SkipSimplifiedLayerNormalization"),
        _first_axes,
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        _from_axis,
    ),
    "com.microsoft.Attention": _with_past(4),
    # A prompt reads the first element of input 9.
    "com.microsoft.GroupQueryAttention": lambda node: (
        9 not in node.input_axes and _first_axes(node)
    ),
    "com.microsoft.QAttention": _with_past(8),
    "com.microsoft.FusedConv": lambda node: {*node.input_axes} <= {0, 3} and _first_axes(node),
    "Einsum": _einsum,
    "GatherElements": _along_others,
    "Trilu": lambda node: _same_axes(node) and node.input_axes[0] < len(node.shape(0)) - 2,
    **dict.fromkeys(("LpNormalization", "TopK", "com.microsoft.BiasSplitGelu"), _along_axis),
    **dict.fromkeys(("ArgMax", "ArgMin"), lambda node: _along_axis(node, 0)),
    **dict.fromkeys(("CumProd", "CumSum"), _cumulative),
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose",
         "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization",
         "InstanceNormalization", "LRN", "LpPool", "MaxPool", "QLinearConv", "Resize",
         "SpaceToDepth", "Upsample", "com.microsoft.QLinearAveragePool",
         "com.microsoft.NhwcMaxPool", "com.microsoft.QLinearConv",
         "com.microsoft.QLinearGlobalAveragePool"),
        _images,
    ),
    **dict.fromkeys(
        ("Gemm", "com.microsoft.FusedGemm", "com.microsoft.MatMulNBits",
         "com.microsoft.MatMulIntegerToFloat", "com.microsoft.QGemm", "QLinearMatMul"),
        _same_axes,
    ),
    **dict.fromkeys(("MatMul", "MatMulInteger", "com.microsoft.FusedMatMul"), _product),
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear", "com.microsoft.QuantizeLinear",
         "com.microsoft.DequantizeLinear", "com.microsoft.QLinearReduceMean",
         "com.microsoft.QLinearSigmoid", "Expand", "Tile", "Pad",
         "com.microsoft.QLinearLeakyRelu", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum",
         "ReduceL2", "ReduceL1", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd",
         "ReduceSumSquare", "Split"),
        _same_axes,
    ),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(("Concat", "com.microsoft.QLinearConcat"), _concatenated),
    **dict.fromkeys(("Hardmax", "Softmax", "LogSoftmax", "com.microsoft.QLinearSoftmax"), _softmax),
    "Gather": _gathered,
    "com.microsoft.GatherBlockQuantized": lambda node: (
        {*node.input_axes} == {1}
        and node.result_axes == {node.attribute("gather_axis", 0) + node.input_axes[1]}
    ),
    "Slice": _sliced,
    "Transpose": _transposed,
}  # fmt: skip
