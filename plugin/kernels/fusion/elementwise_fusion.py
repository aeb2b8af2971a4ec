"""Fusion of small elementwise operations between kernels into kernels of their own.

The norms, gates and rotations between the contractions of one token have a few hundred elements
each. IREE makes two or more dispatches of a norm, and a dispatch takes longer than its computation.
Here, reductions of the last axes and elementwise expressions become kernels, which
`subquant.kernels.fusion.dispatch_fusion` fuses with the activation quantization before a
contraction, and with small contractions. Before::

    %1 = stablehlo.multiply %x, %x : tensor<1x640xf32>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : ...
    %3 = stablehlo.multiply %2, %c : tensor<1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<1xf32>) -> tensor<1x640xf32>
    %5 = stablehlo.divide %x, %4 : tensor<1x640xf32>
    %6:3 = flow.dispatch @quantize_rows::@quantize_rows(%5)

After::

    %2 = flow.dispatch @sum::@sum(%x)
    %3 = flow.dispatch @elementwise::@elementwise(%2)
    %5 = flow.dispatch @elementwise_1::@elementwise_1(%x, %3)
    %6:3 = flow.dispatch @quantize_rows::@quantize_rows(%5)

and one dispatch after dispatch fusion. Elements are computed by the same operations in the same
order; sums add several vectors of partial sums, so they round differently from IREE's.

Up to 8 tokens that are read at once have the kernels of one token, with an outer loop, so that each
token has the bits that it has alone (`subquant.models.drafts` relies on it).

Operations between int8 contractions with M = 1 become kernels, too, if activations are quantized
at run time: IREE has three dispatches beside each contraction, for the greatest magnitude, the
scale and the rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core._mlir import Operation, Value, ir
from ...emit.constant_values import is_invariant
from ...emit.kernel import Kernel, KernelCall, KernelTable
from ...emit.operation import erase_unused, values_read
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import F16, F32, ElementType
from .elementwise_match import (
    CONSTANT,
    FUSED_OPERATIONS,
    LOADED_ELEMENTS,
    VIEWS,
    Expression,
    ExpressionBuilder,
    buffer_of,
    fold_of,
    is_elementwise,
    small_element,
)

_MAX_TOKENS = 8
"""Tokens that have kernels, at most; more are worth IREE's threads."""
_SMALL_M_KERNELS = ("f32_conv", "int8_conv")
"""Kernels whose operands and results become expressions of one token if M is 1."""


def fuse_elementwise(kernels: KernelTable, lanes: int) -> None:
    """Replace elementwise operations between the kernels of up to `_MAX_TOKENS` by kernels.

    The table has the calls of the other kernels; a vector has `lanes` f32 lanes.
    """
    blocks: dict[ir.Block, list[KernelCall]] = {}
    for call in kernels.calls:
        blocks.setdefault(call.operation.block, []).append(call)
    for block, calls in blocks.items():
        # From the last to the first: the users of a result are replaced before it is.
        for expression in _selected(calls, block, lanes, kernels.module_globals):
            op, result, kernel = expression.op, expression.op.results[0], expression.kernel
            with ir.InsertionPoint(op), op.location:
                [new] = kernels.call(kernel, kernel.kernel(), expression.operands, [result.type], 0)
            result.replace_all_uses_with(new)
            erase_unused(op, also=lambda each: each.name in FUSED_OPERATIONS)


def _selected(
    calls: Sequence[KernelCall], block: ir.Block, lanes: int, module_globals: ModuleGlobals
) -> list[Expression]:
    """The expressions of a block that save time: those connected to kernels with a small M.

    Between int8 contractions they are all expressions or none: IREE makes fewer dispatches of all
    operations than of the pieces between kernels.
    """
    kernels = [call.kernel for call in calls]
    operations = [call.operation for call in calls]
    tokens = min(filter(None, map(_tokens, kernels)), default=0)  # experts have more rows
    if tokens:
        elements: Collection[ElementType] = (F32, F16)
        expressions = expressions_of(block, lanes, tokens, elements, module_globals)
        return _connected(expressions, operations)
    contractions = [each for each in kernels if each.name != "pad_copy"]
    if not all(each.name in _SMALL_M_KERNELS and each.m == 1 for each in contractions):
        return []
    elements = (*LOADED_ELEMENTS, F16)
    expressions = _connected(expressions_of(block, lanes, 1, elements, module_globals), operations)
    absorbed = {op for each in expressions for op in each.absorbed}
    computed = {*operations, *(each.op for each in expressions)}
    return [] if _has_gap(block, computed, absorbed) else expressions


def _tokens(kernel: Kernel) -> int:
    """M of a kernel of a blockwise GEMM, up to `_MAX_TOKENS`; 0 for others."""
    is_blockwise = kernel.name in ("quantize_rows", "blockwise_gemm")
    return kernel.m if is_blockwise and kernel.m and kernel.m <= _MAX_TOKENS else 0


def _has_gap(
    block: ir.Block, kernels: Collection[Operation], absorbed: Collection[Operation]
) -> bool:
    """True if a kernel depends on another one through operations that no kernel computes."""
    operations = [each.operation for each in block.operations]
    dependents = set[Value]()
    for op in operations:
        if op in kernels or not dependents.isdisjoint(values_read(op)):
            dependents.update(op.results)
    needed = {value for op in kernels for value in values_read(op)}
    for op in reversed(operations):
        if op not in kernels and not needed.isdisjoint(op.results):
            is_computed = op in absorbed or op.name in (*VIEWS, CONSTANT)
            if not is_computed and not dependents.isdisjoint(op.results):
                return True
            needed.update(values_read(op))
    return False


def expressions_of(
    block: ir.Block,
    lanes: int,
    tokens: int,
    elements: Collection[ElementType],
    module_globals: ModuleGlobals,
) -> list[Expression]:
    """The expressions of a block with results of some element types, from the last to the first."""
    expressions, absorbed = [], set[Operation]()
    order = {each.operation: index for index, each in enumerate(block.operations)}
    for op in reversed(order):
        if op in absorbed or not (is_elementwise(op, tokens) or fold_of(op, tokens)):
            continue
        result = op.results[0]
        if is_invariant(result, module_globals) or small_element(result, tokens) not in elements:
            continue  # IREE computes invariants once
        expression = ExpressionBuilder(op, order, lanes, tokens, module_globals).build()
        if expression is not None:
            expressions.append(expression)
            absorbed.update(expression.absorbed)
    return expressions


def _connected(expressions: Sequence[Expression], calls: Sequence[Operation]) -> list[Expression]:
    """The expressions that exchange data with calls, directly or through other expressions."""
    neighbors: dict[Operation, set[Operation]] = {}
    operands = {each.op: each.operands for each in expressions}
    operands |= {call: tuple(map(buffer_of, call.operands)) for call in calls}
    for op, values in operands.items():
        for value in values:
            if not isinstance(value.owner, ir.Block) and value.owner.operation in operands:
                producer = value.owner.operation
                neighbors.setdefault(op, set()).add(producer)
                neighbors.setdefault(producer, set()).add(op)
    reached, pending = set(calls), list(calls)
    while pending:
        for other in neighbors.get(pending.pop(), set()) - reached:
            reached.add(other)
            pending.append(other)
    return [each for each in expressions if each.op in reached]
