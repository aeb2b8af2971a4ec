"""Addends of an integer matrix product that vary by row or by column, and are computed.

Corrections for zero points of both operands follow the product of a batch (scores of attention)::

    %acc = stablehlo.dot_general %q, %k ... -> tensor<6x400x400xi32>
    %r = stablehlo.broadcast_in_dim %row_sums, dims = [0, 1] : (tensor<6x400xi32>) -> ...
    %s = stablehlo.subtract %acc, %r * 2
    %c = stablehlo.broadcast_in_dim %column_sums, dims = [0, 2] : (tensor<6x400xi32>) -> ...
    %t = stablehlo.subtract %s, %c * 13

The kernel starts from them, so that it can requantize ``%t``. They are computed in the shape of the
rows and of the columns::

    %rows = %row_sums * -2 : tensor<6x400xi32>
    %columns = %column_sums * -13 : tensor<6x400xi32>
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import array_of_dense
from ...emit import ArrayLike, tensor
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements
from ...emit.operation import like, only_user, producer_of, tensor_type
from ...emit.parameters import ModuleGlobals

_ADDITIONS = ("stablehlo.add", "stablehlo.subtract")
_ELEMENTWISE = (*_ADDITIONS, "stablehlo.multiply", "stablehlo.negate", "stablehlo.convert")

_MAX_DEPTH = 3
"""Elementwise operations between a broadcast and an addition, at most."""

_Terms: TypeAlias = tuple[tuple[Value, bool], ...]
"""Values, and whether each is subtracted."""


@dataclass(frozen=True)
class Addends:
    """Computed numbers that are added to a product, ``batch... x M... x N``.

    Attributes:
        accumulators: the sum.
        additions: the operations that add, in their order.
        row_terms: the terms that are equal along N.
        column_terms: the terms that are equal along M.
        batch_rank: the number of batch axes.
    """

    accumulators: Value
    additions: tuple[Operation, ...]
    row_terms: _Terms
    column_terms: _Terms
    batch_rank: int

    @classmethod
    def of(
        cls,
        product: Value,
        batch_rank: int,
        module_globals: ModuleGlobals,
        *,
        takes_columns: bool,
    ) -> Addends | None:
        """Match the additions to a product up to the first constant; None for none."""
        last = product.type.rank - 1
        rows, columns = range(last), (*range(batch_rank), last)
        result, additions = product, list[Operation]()
        row_terms, column_terms = list[tuple[Value, bool]](), list[tuple[Value, bool]]()
        while (addition := only_user(result)) is not None and addition.name in _ADDITIONS:
            left, right = addition.operands
            other = right if left == result else left
            is_subtracted = addition.name == "stablehlo.subtract"
            if is_subtracted and left != result:
                break
            if constant_elements(other, module_globals) is not None:
                break
            if takes_columns and _varies_along(other, columns):
                column_terms.append((other, is_subtracted))
            elif _varies_along(other, rows):
                row_terms.append((other, is_subtracted))
            else:
                break
            additions.append(addition)
            [result] = addition.results
        if not additions:
            return None
        return cls(result, tuple(additions), tuple(row_terms), tuple(column_terms), batch_rank)

    def rows(self) -> Value | None:
        """Emit the sum of the terms of rows, i32 of ``batch... x M...``; None for zeros."""
        return _sum_along(self.row_terms, range(self.accumulators.type.rank - 1))

    def columns(self) -> Value | None:
        """Emit the sum of the terms of columns, i32 of ``batch... x N``; None for zeros."""
        axes = (*range(self.batch_rank), self.accumulators.type.rank - 1)
        return _sum_along(self.column_terms, axes)

    @property
    def bound(self) -> int:
        """The greatest magnitude of the sum of all terms, if nothing wraps."""
        return sum(_bound(term) for term, _ in (*self.row_terms, *self.column_terms))


def _varies_along(value: Value, axes: Sequence[int], depth: int = _MAX_DEPTH) -> bool:
    """True if operations show that integers are equal along all axes but `axes`."""
    op = producer_of(value)
    if op is None or not isinstance(value.type.element_type, ir.IntegerType):
        return False
    if op.name == "stablehlo.constant":
        return bool(op.attributes["value"].is_splat)
    if op.name == "stablehlo.broadcast_in_dim":
        dims, sizes = op.attributes["broadcast_dimensions"], op.operands[0].type.shape
        pairs = zip(dims, sizes, strict=True)
        return all(int(axis) in axes or int(size) == 1 for axis, size in pairs)
    if op.name not in _ELEMENTWISE or depth == 0:
        return False
    return all(_varies_along(each, axes, depth - 1) for each in op.operands)


def _sum_along(terms: _Terms, axes: Sequence[int]) -> Value | None:
    """Emit the sum of terms in the shape of `axes`; None without terms."""
    total: ArrayLike = None
    for term, is_subtracted in terms:
        own: ArrayLike = tensor(_along(term, axes))
        own = -own if is_subtracted else own
        total = own if total is None else total + own
    return None if total is None else total.value


def _along(value: Value, axes: Sequence[int]) -> Value:
    """Emit a value that varies along `axes` in their shape."""
    op = producer_of(value)
    assert op is not None  # `_varies`
    type_ = value.type
    shape = [int(type_.shape[axis]) for axis in axes]
    reduced = tensor_type(shape, type_.element_type)
    if op.name == "stablehlo.constant":
        splat = op.attributes["value"].get_splat_value()
        return emit_stablehlo.constant_of(ir.DenseElementsAttr.get_splat(reduced, splat))
    if op.name != "stablehlo.broadcast_in_dim":
        return like(op, [_along(each, axes) for each in op.operands], [reduced]).results[0]
    [operand] = op.operands
    dims, sizes = list(op.attributes["broadcast_dimensions"]), list(operand.type.shape)
    own = [
        (axes.index(int(axis)), int(n))
        for axis, n in zip(dims, sizes, strict=True)
        if int(axis) in axes
    ]
    reshaped = emit_stablehlo.reshape(operand, [n for _, n in own])
    return emit_stablehlo.broadcast(reshaped, reduced, [position for position, _ in own])


def _bound(value: Value, depth: int = 2 * _MAX_DEPTH) -> int:
    """The greatest magnitude of integers, from the last operations that compute them."""
    op, element = producer_of(value), value.type.element_type
    limit = int(1 << (element.width if element.is_unsigned else element.width - 1))
    if op is None or depth == 0:
        return limit
    if op.name == "stablehlo.constant":
        return int(np.abs(array_of_dense(op.attributes["value"])).max(initial=0))
    if op.name not in (*_ELEMENTWISE, "stablehlo.broadcast_in_dim", "stablehlo.reduce"):
        return limit
    bounds: list[int] = [_bound(each, depth - 1) for each in op.operands]
    if op.name == "stablehlo.multiply":
        return min(limit, math.prod(bounds))
    if op.name != "stablehlo.reduce":
        return min(limit, sum(bounds))
    if len(bounds) > 2 or op.regions[0].blocks[0].operations[0].name != "stablehlo.add":
        return limit
    count = int(math.prod(op.operands[0].type.shape) // math.prod(op.results[0].type.shape))
    return min(limit, bounds[0] * count + bounds[1])
