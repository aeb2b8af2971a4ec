"""Detection of loops that read elements which other threads of the same dispatch compute (Vulkan).

Symptom: wrong results, by a data race.
Cause: IREE 3.13 fuses the producers and consumers of a reduction into its dispatch, and emits no
barrier between the fused loops.
Test: `test_column_reductions_are_still_wrong_without_barriers` and
`test_bytes_are_still_read_in_two_orders_without_barriers` in tests/test_cross_thread_moves.py.

A thread has one position along each loop, outermost first, in every loop of a dispatch. So a thread
reads only its own elements where

* a reduction is over the last axes of its operand, in order (a row reduction), and
* the first loops of each consumer are the parallel loops of the reduction, and so are the first
  loops of its consumers.

Elsewhere it reads elements that another thread may not have written yet::

    %e = stablehlo.exponential %x : tensor<8x2xf32>                // thread i writes row i
    %s = stablehlo.reduce(%e ...) across dimensions = [0]          // thread j reads column j
    %b = stablehlo.broadcast_in_dim %s, dims = [1]
    %r = stablehlo.divide %e, %b : tensor<8x2xf32>                 // thread i reads all of %s

The same holds for elements that are read in another order than they are computed, where IREE
computes them again in the dispatch that reads them. It does so with widened bytes that are used
several times; where they are used once, it joins the two loops::

    %w = stablehlo.convert %x : (tensor<12x9xi8>) -> tensor<12x9xi32>   // thread ij writes ij
    %t = stablehlo.transpose %w, dims = [1, 0]                          // thread ij reads ji
    %n = stablehlo.negate %w

IREE also adds transpositions of its own, of concatenations along another axis than the first, and
moves them: flags turn that off (`subquant.compiler.compile_options`).

A tensor that only the reduction uses is computed in its loop, and needs no other thread. IREE
merges equal computations into one: ask only after ``cse``.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...emit.operation import all_producers, is_dynamic
from ..base import producer_of
from .unsigned_multiplicands import is_narrower

_BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
_RESHAPES = ("stablehlo.reshape", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape")
_REDUCTIONS = ("linalg.reduce", "stablehlo.reduce")
_ELEMENTWISE_DIALECTS = ("arith.", "chlo.", "math.", "stablehlo.")


def is_reduction(op: Operation) -> bool:
    """True for a reduction of StableHLO or linalg, and a loop nest with a reduction."""
    if op.name == "linalg.generic":
        return any(reduction_loops(op))
    return op.name in _REDUCTIONS


def is_row_reduction(op: Operation) -> bool:
    """True if a reduction is over the last axes of its operands, in order and with static sizes.

    Rows of dynamic size are kept in workgroup memory, for which IREE refuses them.
    """
    shape = [int(size) for size in op.operands[0].type.shape]
    if op.name in _REDUCTIONS:
        axes = sorted(int(axis) for axis in op.attributes["dimensions"])
        first = len(shape) - len(axes)
        return axes == list(range(first, len(shape))) and not any(map(is_dynamic, shape[first:]))
    inputs = int(op.attributes["operandSegmentSizes"][0])
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    loops = reduction_loops(op)
    return loops == sorted(loops) and all(
        map_ == ir.AffineMap.get_identity(map_.n_dims) for map_ in maps[:inputs]
    )


def is_separate(value: Value, is_reduced: bool) -> bool:
    """True if a separate loop of the same dispatch may compute the sources of a value.

    That holds for a source that has other users, and for a broadcast that is widened or reduced:
    IREE repeats both instead of storing them, and joins neither with the loop that reads it.
    """

    def is_joined(value: Value) -> bool | None:
        """True to stop, False if a separate loop may compute the value, None to go on."""
        producer = producer_of(value)
        if producer is None or not isinstance(value.type, ir.RankedTensorType):
            return True
        if not _is_elementwise(producer) and producer.name not in (*_RESHAPES, *_BROADCASTS):
            return True
        if len(list(value.uses)) > 1 or (is_reduced and _is_broadcast(producer)):
            return False
        ranked = (v for v in producer.operands if isinstance(v.type, ir.RankedTensorType))
        if any(is_narrower(v.type, value.type) and _is_broadcast(producer_of(v)) for v in ranked):
            return False
        return None

    return not all_producers(value, is_joined)


def reduction_loops(op: Operation) -> list[bool]:
    """For each loop of a ``linalg.generic``, True if it is a reduction."""
    return ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]


def _is_broadcast(op: Operation | None) -> bool:
    if op is None or op.name in _BROADCASTS:
        return op is not None
    if not _is_elementwise(op):
        return False
    axes = [_loops_of_operand(op, number) for number in range(len(op.operands) - 1)]
    return any(loops is not None and 0 < len(loops) < _loop_count(op) for loops in axes)


def has_consumers_in_other_threads(value: Value, by_rows: bool) -> bool:
    """True if other threads than those of a reduction may compute its consumers.

    The value is a result of the reduction, or of a contraction. With `by_rows` the threads of the
    reduction are those of its first axes (`is_row_reduction`).
    """
    seen: set[Value] = set()
    # With each value: the number of its first axes that are the reduction's; None if all are.
    pending: list[tuple[Value, int | None]] = [(value, None)]
    while pending:
        value, first = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            user = use.owner.operation
            loops = _loops_of_operand(user, use.operand_number)
            if loops is None:
                continue
            if first is not None:
                if user.name in _RESHAPES:
                    continue
                if loops[:first] != list(range(first)):
                    return True
                pending += [(result, first) for result in user.results]
                continue
            rank = len(loops)
            if loops != list(range(rank)):
                return True
            is_whole = rank == _loop_count(user)
            if not is_whole and not by_rows and rank:
                return True
            if is_whole or user.name in _RESHAPES:
                pending += [(result, None) for result in user.results]
            elif rank:
                pending += [(result, rank) for result in user.results]
    return False


def operands_of_other_threads(op: Operation) -> list[int]:
    """The shared operands that `op` reads at other positions than it computes."""
    if not _is_elementwise(op) and op.name not in ("stablehlo.transpose", *_BROADCASTS):
        return []
    numbers = []
    for number, operand in enumerate(op.operands):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue
        loops = _loops_of_operand(op, number)
        if not loops or -1 in loops:  # at an offset: each thread computes the elements it reads
            continue
        is_elsewhere = loops != list(range(len(loops))) or len(loops) != _loop_count(op)
        # The walk over the operand's sources comes last: for a chain it is quadratic.
        if is_elsewhere and is_separate(operand, False):
            numbers.append(number)
    return numbers


def _loops_of_operand(user: Operation, number: int) -> list[int] | None:
    """The loops of `user` along which an operand is read, without axes of one element.

    None if `user` computes in a dispatch of its own, or moves its operand.
    """
    operand = user.operands[number].type
    if user.name == "linalg.generic":
        if any(reduction_loops(user)):
            return None
        map_ = user.attributes["indexing_maps"][number].value
        exprs = [expr for expr in map_.results if not isinstance(expr, ir.AffineConstantExpr)]
        return [expr.position if isinstance(expr, ir.AffineDimExpr) else -1 for expr in exprs]
    if user.name == "stablehlo.transpose":
        permutation = [int(axis) for axis in user.attributes["permutation"]]
        axes = [permutation.index(axis) for axis in range(len(permutation))]
    elif user.name in _BROADCASTS and not number:
        axes = [int(axis) for axis in user.attributes["broadcast_dimensions"]]
    elif user.name in _RESHAPES or _is_elementwise(user):
        axes = list(range(len(operand.shape)))
        if user.name in _RESHAPES:
            return axes
    else:
        return None
    return [axis for axis, size in zip(axes, operand.shape, strict=True) if size != 1]


def _loop_count(user: Operation) -> int:
    if user.name == "linalg.generic":
        return len(user.attributes["iterator_types"])
    return sum(size != 1 for size in user.results[0].type.shape)


def is_fusible(op: Operation) -> bool:
    """True for an operation that IREE may fuse with its producers: elementwise, or a reduction."""
    if op.name == "linalg.generic" and int(op.attributes["operandSegmentSizes"][0]) == 1:
        return True
    names = ("stablehlo.transpose", *_RESHAPES, *_BROADCASTS, *_REDUCTIONS)
    return op.name in names or _is_elementwise(op)


def _is_elementwise(op: Operation) -> bool:
    """True for an operation whose loops are the axes of its result."""
    if op.name == "linalg.generic":
        return not any(reduction_loops(op))
    if not op.name.startswith(_ELEMENTWISE_DIALECTS) or len(op.regions) or len(op.results) != 1:
        return False
    result = op.results[0].type
    if not isinstance(result, ir.RankedTensorType) or op.name in (*_RESHAPES, *_BROADCASTS):
        return False
    ranked = [v.type for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    return bool(ranked) and all(
        list(type_.shape) == list(result.shape) for type_ in ranked if len(type_.shape)
    )
