"""Matcher of matrix products with a constant weight of floats.

The operation is a ``stablehlo.dot_general`` whose right operand is a weight as in
`subquant.kernels.pack.float_codes`, maybe transposed. `call_blockwise` calls the kernel, which
decodes elements exactly, and adds products in f32 and in the order of K. Without scales::

    acc = fma(weight[n, k], activations[m, k], acc)    for k = 0, 1, ..., K - 1

and with scales of blocks::

    dot = fma(weight[n, k], activations[m, k], dot)    for each k of block b
    acc = fma(dot, scale[n, b], acc)                   for b = 0, 1, ...

Other loops decode the weight for each row of activations, or write it as f32 at each call: IREE
3.13 reads a bf16 weight with 2 GB/s, the kernel as fast as memory (docs/performance/kernels.md).
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.block_contraction import BlockContraction, Term
from ...dialects.windows import dot_loops
from ...emit.operation import producer_named
from ...emit.parameters import ModuleGlobals
from ...numerics.parameters import ExpressedType, StorageType
from ..isa.base import InstructionSet
from ..pack.float_codes import FloatWeight
from .blockwise import BlockwiseMatch, match_layout
from .match_failure import MatchFailure

_NO_FLOATS = MatchFailure("it is no product of floats with a constant weight of few bits")
_BITS_OF_CODES = StorageType(8, signed=False)


def match_float_weight(
    op: Operation,
    target: InstructionSet,
    module_globals: ModuleGlobals,
    weight: Value | None = None,
) -> BlockwiseMatch | MatchFailure:
    """Match a ``stablehlo.dot_general`` with the kernel of weights of floats.

    Args:
        weight: all matrices, if the right operand is a choice of them.
    """
    types = [each.type for each in (*op.operands, *op.results)]
    if op.name != "stablehlo.dot_general" or not isinstance(types[2].element_type, ir.F32Type):
        return _NO_FLOATS
    if not isinstance(types[0].element_type, ir.F32Type | ir.F16Type | ir.BF16Type):
        return _NO_FLOATS
    weight = op.operands[1] if weight is None else weight
    order = list(range(weight.type.rank))
    while (transpose := producer_named(weight, "stablehlo.transpose")) is not None:
        order = [int(transpose.attributes["permutation"][axis]) for axis in order]
        weight = transpose.operands[0]
    floats = FloatWeight.of(weight, module_globals)
    if floats is None:
        return _NO_FLOATS
    (left, right, result), count = dot_loops(op)
    axes = [right[order.index(axis)] for axis in range(len(right))]
    activations, stored, results = ([[(loop, 1)] for loop in each] for each in (left, axes, result))
    indices: tuple[list[list[Term]], list[list[Term]], list[list[Term]]]
    indices = activations, stored, results
    contraction = BlockContraction(
        *(op.operands[0], weight, floats.scales, None, None, indices, count),
        *(floats.block_sizes, _BITS_OF_CODES, ExpressedType.F32),
    )
    limit = target.max_vectors_float
    if floats.scales is not None:  # the dot products of a block take registers, too
        limit = max(min(2, limit), limit // 2)
    return match_layout(
        contraction,
        module_globals,
        target.lanes,
        lambda n: target.vectors_per_tile(n, limit),
        floats=floats,
    )
