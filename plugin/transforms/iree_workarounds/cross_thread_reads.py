"""Loops whose threads read what other threads compute, on Vulkan.

IREE 3.13 fuses what is computed before and after a sum into its dispatch, and writes no barrier
between. A thread has one position along each loop, outermost first, in every part of a dispatch. So
it reads what it has computed itself where

* a sum is over the last axes of its operand, in order (a row sum), and
* what is made of the sum has the loops of the sum that do not reduce as its first ones, and so has
  what is made of that.

Elsewhere it reads what another thread may not have written yet::

    %e = stablehlo.exponential %x : tensor<8x2xf32>                // thread i writes row i
    %s = stablehlo.reduce(%e ...) across dimensions = [0]          // thread j reads column j
    %b = stablehlo.broadcast_in_dim %s, dims = [1]
    %r = stablehlo.divide %e, %b : tensor<8x2xf32>                 // thread i reads all sums

The same holds for elements that are read in another order than they are computed, where IREE
computes them again in the dispatch that reads them. It does so with bytes that are widened, and
used several times; where they are used once, it joins the two loops::

    %w = stablehlo.convert %x : (tensor<12x9xi8>) -> tensor<12x9xi32>   // thread ij writes ij
    %t = stablehlo.transpose %w, dims = [1, 0]                          // thread ij reads ji
    %n = stablehlo.negate %w

IREE makes transpositions of its own, too, of joins along another axis than the first, and moves
them: that is off, by flags (`subquant.compiler.compile_options`).

What is used by the sum alone is computed in its loop, and needs no other thread. But IREE takes
what is computed twice for one: ask after ``cse`` only.
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import element_type
from ...emit.operation import is_dynamic

__all__ = ["is_apart", "is_fused_by_elements", "is_row_sum", "is_spread", "read_elsewhere"]

_BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
_RESHAPES = (
    "stablehlo.reshape",
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
)
_SUMS = ("linalg.reduce", "stablehlo.reduce")
_OF_ELEMENTS = ("arith.", "chlo.", "math.", "stablehlo.")


def is_row_sum(op: Operation) -> bool:
    """True if a reduction is over the last axes of its operands, in order and of known extents.

    Rows of unknown extent are kept in workgroup memory, for which IREE refuses them.
    """
    shape = [int(extent) for extent in op.operands[0].type.shape]
    if op.name in ("linalg.reduce", "stablehlo.reduce"):
        axes = sorted(int(axis) for axis in op.attributes["dimensions"])
        first = len(shape) - len(axes)
        return axes == list(range(first, len(shape))) and not any(map(is_dynamic, shape[first:]))
    inputs = int(op.attributes["operandSegmentSizes"][0])
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    reduces = ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
    in_order = reduces == sorted(reduces)
    return in_order and all(
        map_ == ir.AffineMap.get_identity(map_.n_dims) for map_ in maps[:inputs]
    )


def is_apart(value: Value, is_summed: bool) -> bool:
    """True if a loop of its own may compute, in the same dispatch, what a value is computed from.

    That is what is used elsewhere too, and a broadcast that is widened or summed: IREE repeats
    both, instead of keeping them, and joins neither with the loop that reads it.
    """
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        producer = value.owner.operation
        if not _is_elementwise(producer) and producer.name not in (*_RESHAPES, *_BROADCASTS):
            continue
        operands = [v for v in producer.operands if isinstance(v.type, ir.RankedTensorType)]
        if len(list(value.uses)) > 1:
            return True
        if is_summed and _is_broadcast(producer):
            return True
        if any(_widens(v, value) and _is_broadcast(v.owner) for v in operands):
            return True
        pending += operands
    return False


def _widens(operand: Value, result: Value) -> bool:
    narrow, wide = (element_type(value.type) for value in (operand, result))
    is_number = all(isinstance(e, (ir.IntegerType, ir.FloatType)) for e in (narrow, wide))
    return is_number and wide.width > narrow.width


def _is_broadcast(owner: Operation | ir.Block) -> bool:
    if isinstance(owner, ir.Block):
        return False
    op = owner.operation
    if op.name in _BROADCASTS:
        return True
    if not _is_elementwise(op):
        return False
    axes = [_loops_of_axes(op, number) for number in range(len(op.operands) - 1)]
    return any(loops is not None and 0 < len(loops) < _loop_count(op) for loops in axes)


def is_spread(value: Value, by_rows: bool) -> bool:
    """True if what is made of a sum may be computed by other threads than the sum.

    Args:
        value: a result of the sum, or of a contraction.
        by_rows: the threads of the sum are those of its first axes (`is_row_sum`).
    """
    seen: set[Value] = set()
    # With each value: how many of its first axes are the sum's, or None where all are.
    pending: list[tuple[Value, int | None]] = [(value, None)]
    while pending:
        value, first = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            user = use.owner.operation
            loops = _loops_of_axes(user, use.operand_number)
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


def read_elsewhere(op: Operation) -> list[int]:
    """The operands, shared with others, that `op` reads at other positions than it computes."""
    if not _is_elementwise(op) and op.name not in ("stablehlo.transpose", *_BROADCASTS):
        return []
    found = []
    for number, operand in enumerate(op.operands):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue
        loops = _loops_of_axes(op, number)
        if not loops or -1 in loops:  # at an offset: IREE computes what each thread reads
            continue
        is_elsewhere = loops != list(range(len(loops))) or len(loops) != _loop_count(op)
        # The walk behind the operand comes last: of a chain it would grow with the square.
        if is_elsewhere and is_apart(operand, False):
            found.append(number)
    return found


def _loops_of_axes(user: Operation, number: int) -> list[int] | None:
    """The loops of `user` along which an operand is read, but for axes of one element.

    None where `user` computes in a dispatch of its own, or moves what it reads.
    """
    operand = user.operands[number].type
    if user.name == "linalg.generic":
        if any("reduction" in str(kind) for kind in user.attributes["iterator_types"]):
            return None
        map_ = user.attributes["indexing_maps"][number].value
        found = [expr for expr in map_.results if not isinstance(expr, ir.AffineConstantExpr)]
        return [expr.position if isinstance(expr, ir.AffineDimExpr) else -1 for expr in found]
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
    return [axis for axis, extent in zip(axes, operand.shape, strict=True) if extent != 1]


def _loop_count(user: Operation) -> int:
    if user.name == "linalg.generic":
        return len(user.attributes["iterator_types"])
    return sum(extent != 1 for extent in user.results[0].type.shape)


def is_fused_by_elements(op: Operation) -> bool:
    """True for what may be computed in the dispatch of its operands: elements, and their sums."""
    if op.name == "linalg.generic" and int(op.attributes["operandSegmentSizes"][0]) == 1:
        return True
    names = ("stablehlo.transpose", *_RESHAPES, *_BROADCASTS, *_SUMS)
    return op.name in names or _is_elementwise(op)


def _is_elementwise(op: Operation) -> bool:
    """True for an operation whose loops are the axes of its result."""
    if op.name == "linalg.generic":
        return not any("reduction" in str(kind) for kind in op.attributes["iterator_types"])
    if not op.name.startswith(_OF_ELEMENTS) or len(op.regions) or len(op.results) != 1:
        return False
    result = op.results[0].type
    if not isinstance(result, ir.RankedTensorType) or op.name in (*_RESHAPES, *_BROADCASTS):
        return False
    ranked = [v.type for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    return bool(ranked) and all(
        list(type_.shape) == list(result.shape) for type_ in ranked if len(type_.shape)
    )
