"""``raise-attention``: scores, softmax and weighted values become one ``subquant.attention``.

PyTorch's ``scaled_dot_product_attention`` without a mask is lowered to two contractions with a
batch of heads, and a softmax that is 0 where all scores are -inf::

    %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [1]
         : (tensor<12x128x32xf32>, tensor<12x32x64xf32>) -> tensor<12x128x64xf32>
    %e = exponential(%s - max(%s)), %p = %e / sum(%e)        (along the last axis)
    %w = stablehlo.select and(%s == -inf), 0, %p
    %y = stablehlo.dot_general %w, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
         : (tensor<12x128x64xf32>, tensor<12x64x32xf32>) -> tensor<12x128x32xf32>

After::

    %t = transpose %q, %k and %v to [positions, heads, elements]
    %a = "subquant.attention"(%tq, %tk, %tv, %zero) {causal = false, scale = 1.0 : f32, ...}
         : (tensor<128x12x32xf32>, tensor<64x12x32xf32>, ...) -> tensor<128x12x32xf32>
    %y = stablehlo.transpose %a, dims = [1, 0, 2]

All batch axes together are the heads. A kernel keeps the scores of some queries and keys in
registers and caches, where the contractions write all of them to memory. Reshapes of batch axes may
stand between the operations, and scores may be multiplied by a constant.

Left alone: other types than f32, dynamic shapes, weights with other uses, masks, values of another
size than keys, and head sizes that are no multiple of 4, which have no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import constant_attribute
from ...dialects.windows import dot_axes
from ...emit import stablehlo, subquant
from ...errors import Remark
from ..base import UNCHANGED, ModulePass, named, producer_named, producer_of, value_before

_ELEMENTS = 4
"""Head sizes of the kernel are multiples of it."""


@dataclass(frozen=True)
class RaiseAttention(ModulePass):
    """Raise attention without a mask."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Raise in `module`; never fails."""
        is_changed = False
        for op in named(module, ["stablehlo.dot_general"]):
            attention = _Attention.of(op)
            if attention is None:
                continue
            with ir.InsertionPoint(op), op.location:
                result = attention.emit()
            op.results[0].replace_all_uses_with(result)
            op.erase()
            is_changed = True
        return None if is_changed else UNCHANGED


@dataclass(frozen=True)
class _Product:
    """A contraction of matrices with leading batch axes: ``left [..., M, K]``, ``right``.

    Attributes:
        is_transposed: True if the right operand is ``[..., N, K]``, False for ``[..., K, N]``.
    """

    left: Value
    right: Value
    result: Value
    is_transposed: bool

    @classmethod
    def of(cls, op: Operation | None) -> _Product | None:
        """Read a ``dot_general`` of f32; None for other operations and axes."""
        if op is None:
            return None
        values = (*op.operands, op.results[0])
        if not all(map(_is_static_f32, values)):
            return None
        contracted, batch = dot_axes(op)
        rank = len(batch[0])
        axes = [*range(rank)]
        if not rank or batch != (axes, axes) or any(v.type.rank != rank + 2 for v in values):
            return None
        if contracted[0] != [rank + 1]:
            return None
        left, right, result = values
        return cls(left, right, result, contracted[1] == [rank + 1])


@dataclass(frozen=True)
class _Attention:
    """The products of an attention.

    Attributes:
        scale: the factor of the scores.
    """

    scores: _Product
    values: _Product
    scale: float

    @classmethod
    def of(cls, op: Operation) -> _Attention | None:
        """Match the product of weights and values; None for another operation."""
        values = _Product.of(op)
        softmax = None if values is None else _softmax_of(values.left)
        if values is None or softmax is None:
            return None
        scale, source = 1.0, _view_source(softmax)
        multiply = producer_named(source, "stablehlo.multiply")
        if multiply is not None:
            factor = _splat(multiply.operands[1])
            if factor is None:
                return None
            scale, source = factor, _view_source(multiply.operands[0])
        scores = _Product.of(producer_named(source, "stablehlo.dot_general"))
        if scores is None or scores.left.type.shape[-1] != values.result.type.shape[-1]:
            return None
        attention = cls(scores, values, scale)
        is_one_batch = prod(scores.result.type.shape[:-2]) == attention.heads
        return attention if is_one_batch and attention.head_size % _ELEMENTS == 0 else None

    @property
    def heads(self) -> int:
        """The size of the batch."""
        return prod(int(size) for size in self.values.result.type.shape[:-2])

    @property
    def head_size(self) -> int:
        """The elements of a query, key or value."""
        return int(self.values.result.type.shape[-1])

    def emit(self) -> Value:
        """Emit the attention, and return its result in the shape of the values' product."""
        query = self._by_position(self.scores.left, [1, 0, 2])
        keys = self._by_position(self.scores.right, [1, 0, 2] if self.scores.is_transposed else
                                 [2, 0, 1])  # fmt: skip
        values = self._by_position(self.values.right, [2, 0, 1] if self.values.is_transposed else
                                   [1, 0, 2])  # fmt: skip
        position = stablehlo.constant(0, ir.IntegerType.get_signless(32))
        result = subquant.attention(query, keys, values, position, self.scale, causal=False)
        shape = [int(size) for size in self.values.result.type.shape]
        return stablehlo.reshape(stablehlo.transpose(result, [1, 0, 2]), shape)

    def _by_position(self, operand: Value, order: Sequence[int]) -> Value:
        """Emit an operand as ``[positions, heads, elements]``."""
        rows, columns = (int(size) for size in operand.type.shape[-2:])
        return stablehlo.transpose(stablehlo.reshape(operand, [self.heads, rows, columns]), order)


def _softmax_of(weights: Value) -> Value | None:
    """The scores of a softmax that is 0 where all scores are -inf; None for other values."""
    views = [*_views(weights)]
    select = producer_named(views[-1], "stablehlo.select")
    if select is None or any(len([*view.uses]) != 1 for view in views):
        return None
    division = producer_named(_view_source(select.operands[2]), "stablehlo.divide")
    comparison_result = _reduced(select.operands[0], "stablehlo.and")
    comparison = None if comparison_result is None else producer_of(comparison_result)
    if division is None or comparison is None or _splat(select.operands[1]) != 0.0:
        return None
    exponential = producer_named(division.operands[0], "stablehlo.exponential")
    if exponential is None:
        return None
    difference = producer_named(exponential.operands[0], "stablehlo.subtract")
    if difference is None or comparison.name != "stablehlo.compare":
        return None
    scores, greatest = difference.operands
    is_compared = comparison.operands[0] == scores and _splat(comparison.operands[1]) == -np.inf
    is_softmax = (
        _is(_reduced(division.operands[1], "stablehlo.add"), exponential.results[0])
        and _is(_reduced(greatest, "stablehlo.maximum"), scores)
        and "EQ" in str(comparison.attributes["comparison_direction"])
    )
    return scores if is_compared and is_softmax else None


def _is(value: Value | None, other: Value) -> bool:
    return value is not None and value == other


def _reduced(value: Value, function: str) -> Value | None:
    """The operand of a reduction along the last axis, whose result is broadcast to its shape."""
    broadcast = producer_named(value, "stablehlo.broadcast_in_dim")
    if broadcast is None:
        return None
    rank = value.type.rank
    axes = [int(axis) for axis in broadcast.attributes["broadcast_dimensions"]]
    if axes not in ([*range(rank)], [*range(rank - 1)]):
        return None
    source = value_before(broadcast.operands[0], "stablehlo.reshape")
    reduction = producer_named(source, "stablehlo.reduce")
    if reduction is None or len(reduction.operands) != 2:
        return None
    operand: Value = reduction.operands[0]
    body = [each.operation.name for each in reduction.regions[0].blocks[0].operations]
    dimensions = [int(axis) for axis in reduction.attributes["dimensions"]]
    is_last = dimensions == [rank - 1] and list(operand.type.shape) == list(value.type.shape)
    return operand if is_last and body == [function, "stablehlo.return"] else None


def _views(value: Value) -> Iterator[Value]:
    """A value, and those before its reshapes of batch axes, and broadcasts that copy."""
    while True:
        yield value
        op = producer_named(value, "stablehlo.broadcast_in_dim", "stablehlo.reshape")
        if op is None:
            return
        source = op.operands[0]
        before, after = (list(each.type.shape) for each in (source, value))
        if op.name == "stablehlo.broadcast_in_dim":
            axes = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
            keeps_matrices = before == after and axes == [*range(len(after))]
        else:
            keeps_matrices = min(len(before), len(after)) > 2 and before[-2:] == after[-2:]
        if not keeps_matrices:
            return
        value = source


def _view_source(value: Value) -> Value:
    """Return the value ahead of its reshapes of batch axes, and of broadcasts that copy."""
    [*_, source] = _views(value)
    return source


def _is_static_f32(value: Value) -> bool:
    type_ = value.type
    is_ranked = isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    return is_ranked and isinstance(type_.element_type, ir.F32Type) and 0 not in type_.shape


def _splat(value: Value) -> float | None:
    """The number that all elements of a constant are; None for other values."""
    while (
        op := producer_named(value, "stablehlo.broadcast_in_dim", "stablehlo.reshape")
    ) is not None:
        value = op.operands[0]
    attribute = constant_attribute(value)
    if attribute is None or not attribute.is_splat:
        return None
    element = attribute.get_splat_value()
    return float(element.value) if isinstance(element, ir.FloatAttr) else None
