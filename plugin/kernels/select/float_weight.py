"""Matcher of matrix products with a constant weight of 16-bit floats.

The operation is a ``stablehlo.dot_general`` whose right operand is widened from bf16 or f16, and
maybe transposed. It is computed as a block contraction without scales; `call_blockwise` calls the
kernel, which adds products in f32 and in the order of K::

    acc = fma(weight[n, k], activations[m, k], acc)    for k = 0, 1, ..., K - 1

Other loops read the widened weight, or widen it at each call: IREE 3.13 reads a bf16 weight with
2 GB/s, the kernel as fast as memory (docs/performance/kernels.md).
"""

from __future__ import annotations

from ...core._mlir import Operation, Value, ir
from ...dialects.block_contraction import BlockContraction, Term
from ...dialects.windows import dot_loops
from ...emit.constant_values import is_constant
from ...emit.operation import producer_named
from ...emit.parameters import ModuleGlobals
from ...numerics.parameters import ExpressedType, StorageType
from ..isa.base import InstructionSet
from ..pack.float_codes import FloatCodes
from .blockwise import BlockwiseMatch, match_layout
from .match_failure import MatchFailure

_NO_FLOATS = MatchFailure("it is no product of floats with a weight of 16-bit floats")


def match_float_weight(
    op: Operation, target: InstructionSet, module_globals: ModuleGlobals
) -> BlockwiseMatch | MatchFailure:
    """Match a ``stablehlo.dot_general`` with the kernel of weights of floats."""
    types = [each.type for each in (*op.operands, *op.results)]
    if op.name != "stablehlo.dot_general" or not isinstance(types[2].element_type, ir.F32Type):
        return _NO_FLOATS
    if not isinstance(types[0].element_type, ir.F32Type | ir.F16Type | ir.BF16Type):
        return _NO_FLOATS
    storage, order = _widened(op.operands[1])
    floats = FloatCodes.of(storage)
    if floats is None or not storage.type.has_static_shape:
        return _NO_FLOATS
    if not is_constant(storage, module_globals):
        return MatchFailure("its weight is not constant")
    (left, right, result), count = dot_loops(op)
    axes: list[int] = [0] * len(right)
    for axis, loop in zip(order, right, strict=True):
        axes[axis] = loop
    activations, stored, results = ([[(loop, 1)] for loop in each] for each in (left, axes, result))
    indices: tuple[list[list[Term]], list[list[Term]], list[list[Term]]]
    indices = activations, stored, results
    contraction = BlockContraction(
        *(op.operands[0], storage, None, None, None, indices, count),
        tuple(int(extent) for extent in storage.type.shape),
        StorageType(floats.bits, signed=False),
        ExpressedType.F32,
    )
    return match_layout(
        contraction,
        module_globals,
        target.lanes,
        lambda n: target.vectors_per_tile(n, target.max_vectors_float),
        floats=floats,
    )


def _widened(weight: Value) -> tuple[Value, list[int]]:
    """Return a weight before it is widened and transposed, and its axis for each of the weight's.

    A widened float is exact, so that both may be in any order.
    """
    order = list(range(weight.type.rank))
    while (op := producer_named(weight, "stablehlo.convert", "stablehlo.transpose")) is not None:
        operand = op.operands[0]
        if op.name == "stablehlo.transpose":
            order = [int(op.attributes["permutation"][axis]) for axis in order]
        elif FloatCodes.of(operand) is None or not isinstance(weight.type.element_type, ir.F32Type):
            break
        weight = operand
    return weight, order
