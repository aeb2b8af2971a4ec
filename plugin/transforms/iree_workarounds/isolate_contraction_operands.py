"""``isolate-contraction-operands``: dispatches of their own for operands of contractions (Vulkan).

Symptom: wrong results, by data races, on every Vulkan target.
Cause: IREE 3.13 fuses a widening cast (a dequantization, for example) into the dispatch of its
consumer. For contractions of some shapes, and for every operation with a sliding window, the fused
cast goes through workgroup memory, which is written and read without a barrier.
Test: `test_a_cast_before_a_dot_is_still_wrong_without_the_pass` and others in
tests/test_iree_limits_vulkan.py.

A barrier keeps the cast in a dispatch of its own. It is `emit.linalg.in_separate_dispatch`, which
is gone when dispatches are formed: with IREE's other barrier the caller would wait. Barriers also
separate

* a tensor that a loop reads at computed positions, as a gather reads its operand.
* a reduction over consumers of a contraction's result: the threads of the contraction do not wait
  for each other before others reduce.
* every reduction, and every loop in another order, whose threads read elements of other threads,
  before or after it: `cross_thread_reads`.
* tensors in dispatches with several results, which IREE refuses or gives private memory:
  `multi_result_dispatches`.

The last two depend on the number of users. IREE merges equal computations, so this pass runs
``cse`` first. IREE also inlines functions; so does ``inline``, which runs before, because IREE does
not inline functions with barriers.

The loops of reductions are put into the order that IREE gets right, initial accumulators are
written so that reductions do not share one, and an operand whose axes IREE refuses to read is
transposed: `loop_order`.

A tensor that a loop reads at its own position, as a gather of single elements reads its indices,
becomes an input of the loop: it is fused safely, and IREE cannot resolve the sizes of a dynamic
tensor that is read behind a barrier.

Before::

    %f = linalg.generic {...} ins(%q : tensor<1x8x8x3xi8>) ... -> tensor<1x8x8x3xf32>
    %r = linalg.conv_2d_nhwc_hwcf ins(%f, %w : ...)

After::

    %f = linalg.generic {...} ins(%q : tensor<1x8x8x3xi8>) ... -> tensor<1x8x8x3xf32>
    %g = "iree_tensor_ext.compute_barrier.start"(%f) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
    %r = linalg.conv_2d_nhwc_hwcf ins(%g, %w : ...)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Value, ir, passmanager, register_upstream_passes
from ...dialects.stablehlo import CONTRACTIONS, OPERATIONS
from ...emit import linalg
from ...emit.operation import all_producers, is_used
from ..base import ModulePass, named, producer_named, producer_of, replace_uses, value_before, walk
from .cross_thread_reads import (
    has_consumers_in_other_threads,
    is_reduction,
    is_row_reduction,
    is_separate,
    operands_of_other_threads,
    reduction_loops,
)
from .loop_order import order_loops, swap_last_axes, write_fill
from .multi_result_dispatches import (
    has_several_results,
    inserts_one_of_several,
    values_read_elsewhere,
)

_LINALG_PREFIXES = tuple(
    f"linalg.{prefix}"
    for prefix in (
        *("batch_", "contract", "conv", "depthwise_conv", "dot", "matmul", "matvec", "pooling"),
        *("quantized_", "vecmat"),
    )
)
"""Prefixes of the linalg contractions, convolutions and poolings."""
_STABLEHLO_OPERATIONS = frozenset(
    (
        *CONTRACTIONS,
        *(name for name, row in OPERATIONS.items() if row.reads != "shape"),
        "stablehlo.torch_index_select",
    )
)
_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape", "tensor.cast")
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
    """Put a barrier before each computed input of a contraction, window or gather."""

    def run(self, module: Operation) -> None:
        """Rewrite `module`."""
        register_upstream_passes()
        passmanager.PassManager.parse("builtin.module(cse)").run(module)
        for op in named(module, ["linalg.generic"]):
            _read_in_place(op)
        for op in named(module, ["linalg.generic"]):
            write_fill(op)
        for op in walk(module):
            order_loops(op)
            swap_last_axes(op)
            if _contracts(op) or (is_reduction(op) and _reads_other_threads(op)):
                _isolate(op, range(len(_inputs(op))), op)
            elif op.name == "tensor.extract" and op.parent.operation.name == "linalg.generic":
                _isolate(op, [0], op.parent.operation)
            if _contracts(op) or is_reduction(op):
                by_rows = not _contracts(op) and is_row_reduction(op)
                for value in values_read_elsewhere(op, _inputs(op)) if by_rows else ():
                    with ir.InsertionPoint.after(value.owner.operation), op.location:
                        replace_uses(value, linalg.in_separate_dispatch)
                isolated = [
                    value
                    for value in op.results
                    if has_consumers_in_other_threads(value, by_rows)
                    or (by_rows and has_several_results(value))
                ]
                for value in isolated:
                    with ir.InsertionPoint.after(op), op.location:
                        replace_uses(value, linalg.in_separate_dispatch)
            _isolate(op, operands_of_other_threads(op), op)
            inserted = inserts_one_of_several(op)
            if inserted is not None:
                _isolate(op, [inserted], op)


def _read_in_place(op: Operation) -> None:
    """Give a loop as inputs the tensors that it reads at its own position."""
    while True:
        body = op.regions[0].blocks[0]
        rank = len(op.attributes["iterator_types"])
        reads = (inner for inner in walk(op) if inner.name == "tensor.extract")
        read = next(
            (r for r in reads if _is_at_own_position(r, rank) and _has_sizes_of_result(r, op)), None
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
        producer = producer_named(index, "linalg.index")
        if producer is None or int(producer.attributes["dim"].value) != axis:
            return False
    return True


def _has_sizes_of_result(read: Operation, loop: Operation) -> bool:
    """True if the tensor that is read has the sizes of the loop's result."""
    tensor, result = read.operands[0], loop.results[0]
    if list(tensor.type.shape) != list(result.type.shape):
        return False
    if result.type.has_static_shape:
        return True
    sizes = _dynamic_sizes(loop)
    return sizes is not None and sizes == _dynamic_sizes(tensor.owner.operation)


def _dynamic_sizes(loop: Operation) -> list[Value] | None:
    """The dynamic sizes of the tensor that a loop writes, from its ``tensor.empty``."""
    if loop.name != "linalg.generic":
        return None
    init = producer_named(loop.operands[len(loop.operands) - 1], "tensor.empty")
    return None if init is None else list(init.operands)


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


def _isolate(op: Operation, numbers: Iterable[int], before: Operation) -> None:
    """Put a barrier before `before` for each of some operands of `op` that is computed."""
    for number in numbers:
        if _is_computed(op.operands[number]):
            with ir.InsertionPoint(before), op.location:
                op.operands[number] = linalg.in_separate_dispatch(op.operands[number])


def _contracts(op: Operation) -> bool:
    if op.name in _STABLEHLO_OPERATIONS or op.name.startswith(_LINALG_PREFIXES):
        return True
    if op.name != "linalg.generic":
        return False
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    slides = not all(map_.is_projected_permutation for map_ in maps)
    return any(reduction_loops(op)) and (slides or len(_inputs(op)) > 1)


def _reads_other_threads(op: Operation) -> bool:
    """True if a reduction may read elements that other threads of its dispatch compute."""
    inputs = _inputs(op)
    return _follows_contraction(inputs) or (
        not is_row_reduction(op) and any(is_separate(value, True) for value in inputs)
    )


def _follows_contraction(values: list[Value]) -> bool:
    """True if elementwise loops lead from a contraction to one of the values."""

    def is_no_contraction(value: Value) -> bool | None:
        producer = producer_of(value)
        if producer is None or not isinstance(value.type, ir.RankedTensorType):
            return True
        if _contracts(producer):
            return False
        is_end = producer.name in (linalg.APART, linalg.BARRIER) or is_reduction(producer)
        return True if is_end else None

    return not all(all_producers(value, is_no_contraction) for value in values)


def _inputs(op: Operation) -> list[Value]:
    """The operands except linalg's accumulators.

    IREE hoists a constant accumulator behind a barrier into a global, and accumulates into it: the
    second call would start from the result of the first.
    """
    operands = list(op.operands)
    if not op.name.startswith("linalg."):
        return operands
    return operands[: int(op.attributes["operandSegmentSizes"][0])]


def _is_computed(value: Value) -> bool:
    """True for a tensor from which a cast could be fused: no argument, constant or barrier."""
    if not isinstance(value.type, ir.RankedTensorType):
        return False
    producer = producer_of(value_before(value, *_RESHAPES))
    return producer is not None and producer.name not in _NOT_COMPUTED
