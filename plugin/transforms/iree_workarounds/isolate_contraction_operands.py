"""``isolate-contraction-operands``: keep casts out of contraction and pooling dispatches (Vulkan).

IREE 3.13 fuses a widening cast (a dequantization, say) into the dispatch of the operation that
uses it. For a contraction of some shapes, and for every operation with a sliding window, the fused
cast goes through workgroup memory, which is written and read without a barrier between: the result
is wrong, on every Vulkan target. A barrier between the two keeps the cast in a dispatch of its own.
It is of the kind that is gone when dispatches are made (`emit.linalg.apart`): the caller would wait
for what is behind the other one. The same goes for a tensor that a loop reads at positions of its
own choice, as a gather does its operand; for a sum over what loops made of a contraction's result,
where the threads of the contraction do not wait for each other before others add up; and for every
sum, and every loop that reads in another order, whose threads read what others have computed,
before it or after it: `iree.thread_positions` says which. What IREE refuses where a dispatch has
several results stands alone too: `iree.several_results`. That depends on what is used more than
once. IREE takes what is computed twice for one: so does this pass, first. It writes a function
where it is called, too: so does ``inline``, which comes before, as it leaves functions alone that
have barriers.

The loops of reductions are put into the order that IREE computes right, and initial accumulators
are written so that reductions do not share one; an operand whose axes IREE refuses to read is
transposed: `iree.loop_order`.

What a loop reads at its own position, as a gather of single elements does its indices, becomes an
input of the loop: that is fused safely, and IREE cannot resolve the extents of a dynamic tensor
that is read behind a barrier.

Before::

    %f = linalg.generic {...} ins(%q : tensor<1x8x8x3xi8>) ... -> tensor<1x8x8x3xf32>
    %r = linalg.conv_2d_nhwc_hwcf ins(%f, %w : ...)

After::

    %f = linalg.generic {...} ins(%q : tensor<1x8x8x3xi8>) ... -> tensor<1x8x8x3xf32>
    %g = "iree_tensor_ext.compute_barrier.start"(%f) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
    %r = linalg.conv_2d_nhwc_hwcf ins(%g, %w : ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ... import emit
from ...core._mlir import Operation, Value, ir, passmanager, register_upstream_passes
from ...dialects.stablehlo import OPERATIONS
from ...emit import linalg
from ...emit.operation import is_used
from ..base import ModulePass, named, walk
from ..quantization.math.contraction import CONTRACTIONS
from .cross_thread_reads import is_apart, is_row_sum, is_spread, read_elsewhere
from .loop_order import order_loops, swap_last_axes, write_fill
from .multi_result_dispatches import has_several_results, inserts_one_of_several

__all__ = ["IsolateContractionOperands"]

_OF_LINALG = (
    "linalg.batch_",
    "linalg.contract",
    "linalg.conv",
    "linalg.depthwise_conv",
    "linalg.dot",
    "linalg.matmul",
    "linalg.matvec",
    "linalg.pooling",
    "linalg.quantized_",
    "linalg.vecmat",
)
"""What the names of contractions and windows start with."""
_OF_STABLEHLO = frozenset(
    (
        *CONTRACTIONS,
        *(name for name, row in OPERATIONS.items() if row.reads != "shape"),
        "stablehlo.torch_index_select",
    )
)
_NOT_COMPUTED = (
    "arith.constant",
    "linalg.fill",
    "stablehlo.constant",
    "stablehlo.optimization_barrier",
    "tensor.empty",
    linalg.APART,
    linalg.BARRIER,
    linalg.TIE_SHAPE,
)


@dataclass(frozen=True)
class IsolateContractionOperands(ModulePass):
    """Put a barrier before each computed input of a contraction, a window or a gather."""

    name: ClassVar[str] = "isolate-contraction-operands"

    def run(self, module: Operation) -> None:
        """Rewrite `module`."""
        register_upstream_passes()
        passmanager.PassManager.parse("builtin.module(cse)").run(module)
        loops = [op for op in walk(module) if op.name == "linalg.generic"]
        for op in loops:
            _read_in_place(op)
        for op in named(module, ["linalg.generic"]):
            write_fill(op)
        for op in walk(module):
            order_loops(op)
            swap_last_axes(op)
            if _contracts(op) or (_reduces(op) and _reads_other_threads(op)):
                _isolate(op, _inputs(op), op)
            elif op.name == "tensor.extract" and op.parent.operation.name == "linalg.generic":
                _isolate(op, list(op.operands)[:1], op.parent.operation)
            if _contracts(op) or _reduces(op):
                by_rows = not _contracts(op) and is_row_sum(op)
                _isolate_results(
                    [
                        v
                        for v in op.results
                        if is_spread(v, by_rows) or (by_rows and has_several_results(v))
                    ]
                )
            for number in read_elsewhere(op):
                _isolate_operand(op, number, op)
            inserted = inserts_one_of_several(op)
            if inserted is not None:
                _isolate_operand(op, inserted, op)


def _read_in_place(op: Operation) -> None:
    """Give a loop as inputs the tensors that it reads at its own position."""
    while True:
        body = op.regions[0].blocks[0]
        rank = len(op.attributes["iterator_types"])
        reads = (inner for inner in walk(op) if inner.name == "tensor.extract")
        read = next(
            (r for r in reads if _is_at_own_position(r, rank) and _has_extents(r, op)), None
        )
        outputs = int(op.attributes["operandSegmentSizes"][1])
        if read is None or outputs != 1 or is_used(body.arguments[-1]):
            return
        op = _with_input(op, read)


def _is_at_own_position(read: Operation, rank: int) -> bool:
    tensor, *indices = read.operands
    if len(indices) != rank or not _is_computed(tensor):
        return False
    for axis, index in enumerate(indices):
        owner = index.owner
        if isinstance(owner, ir.Block) or owner.operation.name != "linalg.index":
            return False
        if int(owner.operation.attributes["dim"].value) != axis:
            return False
    return True


def _has_extents(read: Operation, loop: Operation) -> bool:
    """True if the tensor that is read is known to have the extents of the loop's result."""
    tensor, result = read.operands[0], loop.results[0]
    if list(tensor.type.shape) != list(result.type.shape):
        return False
    if result.type.has_static_shape:
        return True
    extents = _extents(loop)
    return extents is not None and extents == _extents(tensor.owner.operation)


def _extents(loop: Operation) -> list[Value] | None:
    """The dynamic extents of the tensor that a loop writes, where they are written out."""
    if loop.name != "linalg.generic":
        return None
    init = loop.operands[len(loop.operands) - 1].owner
    if isinstance(init, ir.Block) or init.operation.name != "tensor.empty":
        return None
    return list(init.operation.operands)


def _with_input(op: Operation, read: Operation) -> Operation:
    """The loop with the tensor of a read as its last input; the loop's result was not read."""
    *inputs, output = op.operands
    tensor, rank = read.operands[0], len(op.attributes["iterator_types"])
    *maps, last = (attribute.value for attribute in op.attributes["indexing_maps"])
    with ir.InsertionPoint(op), op.location:
        attributes = {
            "indexing_maps": linalg.affine_maps([*maps, linalg.identity_map(rank), last]),
            "operandSegmentSizes": linalg.segments(len(inputs) + 1, 1),
        }
        operands = [*inputs, tensor, output]
        created = emit.like(op, operands, attributes=attributes, take_bodies=True)
        body = created.regions[0].blocks[0]
        argument = body.arguments[-1]
        body.add_argument(argument.type, op.location)
        argument.set_type(tensor.type.element_type)
        indices = {index.owner.operation for index in list(read.operands)[1:]}
        read.results[0].replace_all_uses_with(argument)
        read.erase()
        for index in indices:
            if not is_used(index.results[0]):
                index.erase()
    op.results[0].replace_all_uses_with(created.results[0])
    op.erase()
    return created


def _isolate(op: Operation, operands: list[Value], before: Operation) -> None:
    """Put a barrier before `before` for each of the first `operands` of `op` that is computed."""
    for number in range(len(operands)):
        _isolate_operand(op, number, before)


def _isolate_operand(op: Operation, number: int, before: Operation) -> None:
    """Put a barrier before `before` for an operand of `op`, if it is computed."""
    if _is_computed(op.operands[number]):
        with ir.InsertionPoint(before), op.location:
            op.operands[number] = linalg.apart(op.operands[number])


def _isolate_results(results: list[Value]) -> None:
    """Put a barrier after each of some results."""
    for result in results:
        owner = result.owner.operation
        users = [(use.owner, use.operand_number) for use in result.uses]
        with ir.InsertionPoint.after(owner), owner.location:
            isolated = linalg.apart(result)
        for user, number in users:
            user.operands[number] = isolated


def _contracts(op: Operation) -> bool:
    if op.name in _OF_STABLEHLO or op.name.startswith(_OF_LINALG):
        return True
    if op.name != "linalg.generic":
        return False
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    reduces = any("reduction" in str(kind) for kind in op.attributes["iterator_types"])
    slides = not all(map_.is_projected_permutation for map_ in maps)
    return reduces and (slides or len(_inputs(op)) > 1)


def _reduces(op: Operation) -> bool:
    if op.name in ("linalg.reduce", "stablehlo.reduce"):
        return True
    return op.name == "linalg.generic" and any(
        "reduction" in str(kind) for kind in op.attributes["iterator_types"]
    )


def _reads_other_threads(op: Operation) -> bool:
    """True if a sum may read what other threads of its dispatch have computed."""
    inputs = _inputs(op)
    return _follows_contraction(inputs) or (
        not is_row_sum(op) and any(is_apart(v, True) for v in inputs)
    )


def _follows_contraction(values: list[Value]) -> bool:
    """True if loops without a sum of their own lead from a contraction to one of some values."""
    seen: set[Value] = set()
    pending = [value for value in values if isinstance(value.type, ir.RankedTensorType)]
    while pending:
        value = pending.pop()
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        producer = value.owner.operation
        if _contracts(producer):
            return True
        if producer.name in (linalg.APART, linalg.BARRIER) or _reduces(producer):
            continue
        pending += [v for v in producer.operands if isinstance(v.type, ir.RankedTensorType)]
    return False


def _inputs(op: Operation) -> list[Value]:
    """The operands without those that linalg accumulates into.

    IREE hoists a constant accumulator behind a barrier into a global, and accumulates into that:
    the second call would start from the result of the first.
    """
    operands = list(op.operands)
    if not op.name.startswith("linalg."):
        return operands
    return operands[: int(op.attributes["operandSegmentSizes"][0])]


def _is_computed(value: Value) -> bool:
    """True for a tensor that a cast could be fused from: not an argument, constant or barrier."""
    if not isinstance(value.type, ir.RankedTensorType) or isinstance(value.owner, ir.Block):
        return False
    producer = value.owner.operation
    while producer.name in ("tensor.collapse_shape", "tensor.expand_shape", "tensor.cast"):
        if isinstance(producer.operands[0].owner, ir.Block):
            return False
        producer = producer.operands[0].owner.operation
    return producer.name not in _NOT_COMPUTED
