"""Loop order of reductions, and their initial accumulators (Vulkan).

Symptom: some elements of a result are wrong or missing; or "failed to legalize operation
'ub.poison'".
Cause: IREE 3.13 distributes the loops of a reduction to threads in the order in which they are
written.
Test: `test_a_reduction_in_another_loop_order_is_still_wrong` and
`test_accumulators_of_one_size_are_still_shared` in tests/test_iree_limits_vulkan.py.

Results are wrong where

* a parallel loop is inside a reduction loop: threads share an element and do not wait for each
  other;
* the parallel loops are in another order than the axes of the result, as in ``(n, m, k) -> (m,
  n)``.

`order_loops` renumbers the loops: first those of the result's axes, in that order, then the other
parallel loops, then the reductions, as from ::

    (k, n, m) -> (m, k)        (m, n, k) -> (m, k)      // the left operand
    (k, n, m) -> (k, n)   to   (m, n, k) -> (k, n)      // the right operand
    (k, n, m) -> (m, n)        (m, n, k) -> (m, n)      // the result

IREE copies a ``linalg.fill`` into each dispatch that reads it. A ``linalg.generic`` with the same
elements is computed once, also for tensors that only have one shape after axes of one element are
removed or axes are joined. The first reduction then accumulates into it, and the second starts from
these results. `write_fill` writes each as ``linalg.fill``.

IREE refuses a contraction ('ub.poison' above) if an operand has four axes or more, the first of
them a parallel loop, and the last two the innermost loop of the result and then its outermost one.
`swap_last_axes` transposes the operand::

    (a, n, p, k) -> (n, k, p, a)     to     (a, n, p, k) -> (n, k, a, p)
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...emit import linalg
from ...emit.operation import integer
from ..base import walk
from .cross_thread_reads import reduction_loops

_MIN_REFUSED_RANK = 4
"""Minimum rank of an operand that IREE refuses."""
_WITH_MAPS = ("linalg.contract", "linalg.generic")
"""Operations whose loops are numbered by their indexing maps."""


def is_in_order(op: Operation) -> bool:
    """True unless `order_loops` would renumber the loops of a reduction."""
    order = _order(op)
    return order == list(range(len(order)))


def order_loops(op: Operation) -> None:
    """Renumber the loops of a reduction."""
    order = _order(op)
    if order == list(range(len(order))):
        return
    new_number = {old: new for new, old in enumerate(order)}
    with op.location:
        maps = [_renumbered(map_.value, new_number) for map_ in op.attributes["indexing_maps"]]
        op.attributes["indexing_maps"] = linalg.affine_maps(maps)
        if op.name == "linalg.generic":
            kinds = list(op.attributes["iterator_types"])
            op.attributes["iterator_types"] = ir.ArrayAttr.get([kinds[old] for old in order])
        for inner in walk(op):
            if inner.name == "linalg.index":
                inner.attributes["dim"] = integer(new_number[int(inner.attributes["dim"].value)])


def swap_last_axes(op: Operation) -> None:
    """Transpose operands, after `order_loops`, whose last two axes IREE refuses to read."""
    inputs = int(op.attributes["operandSegmentSizes"][0]) if _order(op) else 0
    for number in range(inputs if inputs > 1 else 0):
        operand = op.operands[number]
        maps = [map_.value for map_ in op.attributes["indexing_maps"]]
        axes = _reversed_axes(op, operand, maps[number])
        if axes is None:
            continue
        order = list(range(len(operand.type.shape)))
        order[axes[0]], order[axes[1]] = axes[1], axes[0]
        shape = [int(operand.type.shape[axis]) for axis in order]
        identity = linalg.identity_map(len(order))
        inverse = ir.AffineMap.get_permutation(order)  # of two axes: its own inverse
        with ir.InsertionPoint(op), op.location:
            output = linalg.empty(shape, operand.type.element_type)
            op.operands[number] = linalg.generic(
                [operand], output, [inverse, identity], lambda element, _: element
            )
            exprs = list(maps[number].results)
            maps[number] = ir.AffineMap.get(maps[number].n_dims, 0, [exprs[n] for n in order])
            op.attributes["indexing_maps"] = linalg.affine_maps(maps)


def _reversed_axes(op: Operation, operand: Value, map_: ir.AffineMap) -> tuple[int, int] | None:
    """The axes of an operand that are the innermost and, last, the outermost axis of the result.

    Axes of one element do not count.
    """
    result = op.results[0].type
    if not isinstance(operand.type, ir.ShapedType) or not map_.is_projected_permutation:
        return None
    if not (operand.type.has_static_shape and result.has_static_shape):
        return None
    written = [axis for axis, size in enumerate(result.shape) if size != 1]
    axes = [axis for axis, size in enumerate(operand.type.shape) if size != 1]
    loops = [map_.results[axis].position for axis in axes]
    if len(loops) < _MIN_REFUSED_RANK or len(written) < 2 or loops[0] not in written:
        return None
    return (axes[-2], axes[-1]) if loops[-2:] == [written[-1], written[0]] else None


def _order(op: Operation) -> list[int]:
    """The loops of a reduction in the order that IREE gets right; empty for another operation.

    The reductions of a ``linalg.contract`` are the loops that no axis of the result has.
    """
    if op.name not in _WITH_MAPS or not len(op.results):
        return []
    result = list(op.attributes["indexing_maps"])[-len(op.results)].value
    axes = [expr.position for expr in result.results if isinstance(expr, ir.AffineDimExpr)]
    is_reduction = [loop not in axes for loop in range(result.n_dims)]
    if op.name == "linalg.generic":
        is_reduction = reduction_loops(op)
    if not any(is_reduction):
        return []
    remaining = [loop for loop in range(result.n_dims) if loop not in axes]
    return [*axes, *sorted(remaining, key=is_reduction.__getitem__)]


def _renumbered(map_: ir.AffineMap, new_number: dict[int, int]) -> ir.AffineMap:
    """An affine map whose dimension ``d`` is ``new_number[d]``."""
    permutation = ir.AffineMap.get(
        map_.n_dims, 0, [ir.AffineExpr.get_dim(new_number[old]) for old in range(map_.n_dims)]
    )
    exprs = [expr.compose(permutation) for expr in map_.results]
    return ir.AffineMap.get(map_.n_dims, 0, exprs)


def write_fill(op: Operation) -> None:
    """Write a ``linalg.generic`` that yields one scalar for each element as ``linalg.fill``."""
    scalar = _scalar_of(op)
    if scalar is None:
        return
    with ir.InsertionPoint(op), op.location:
        filled = linalg.fill(scalar, op.operands[len(op.operands) - 1])
    op.results[0].replace_all_uses_with(filled)
    op.erase()


def _scalar_of(op: Operation) -> Value | None:
    """The scalar that a loop nest yields for each element of its only result, if it does."""
    inputs = int(op.attributes["operandSegmentSizes"][0])
    if inputs > 1 or len(op.results) != 1:
        return None
    body = op.regions[0].blocks[0]
    scalar = list(body.operations)[-1].operation.operands[0]
    if inputs and scalar == body.arguments[0]:
        scalar = op.operands[0]
    owner = scalar.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    return None if block == body or isinstance(scalar.type, ir.ShapedType) else scalar
