"""``raise-dequantization``: dequantizing arithmetic becomes one operation.

JAX, PyTorch and others have no quantized types: their programs convert integers, subtract a zero
point, and multiply by a scale that they broadcast or reshape to blocks. This pass replaces that by
``subquant.dequantize``, per tensor, axis or block, so that weights stay packed, and
``fuse-block-contractions`` can match them.

Before::

    %0 = stablehlo.convert %q : (tensor<64x8xi4>) -> tensor<64x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<64x8xf32>) -> tensor<2x32x8xf32>
    %2 = stablehlo.broadcast_in_dim %s, dims = [0, 2] : (tensor<2x8xf32>) -> tensor<2x32x8xf32>
    %3 = stablehlo.multiply %1, %2 : tensor<2x32x8xf32>
    %w = stablehlo.reshape %3 : (tensor<2x32x8xf32>) -> tensor<64x8xf32>

After::

    %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 32, 1>, ...}
         : (tensor<64x8xi4>, tensor<2x8xf32>) -> tensor<64x8xf32>

The result has the same bits: each operation is a step of the dequantization, with the same
roundings in the same order, or moves elements only; `raising.arithmetic` gives the reasons.
Integers that are contracted as integers, with scales afterwards, stay as they are.

* A conversion alone is a dequantization with scale 1 (``x * 1`` is ``x``), where it is the right
  operand of a contraction, or a constant, parameter or packed argument.
* With transposed axes, or axes merged after that, the dequantization has the order of the storage.
  A transposition and a reshape follow it, and a contraction runs over the axes ahead of them.
* Integers of 2, 4 or 8 bits that shifts and masks extract from words, and that are concatenated,
  are a ``subquant.unpack`` (`raising.bit_fields`).
* Indices of 4 bits of a look-up in 16 entries are a ``subquant.unpack`` (`raising.lookup_indices`).
* A ``gather`` of rows moves ahead of the unpacking or the dequantization (`raising.gathers`).
* Private functions that convert or select integers of 2 to 16 bits, or gather rows, are inlined
  first: JAX emits one for each nested ``jax.jit``, and for ``jnp.where`` and ``jnp.take``.

Floats that are subtracted as zero points, and may be no integers, are split where a contraction
reads the result: with the nearest integer ``z'`` of the storage, ``(q - z) * s`` is ``(q - z') * s
- (z - z') * s``. It has the same bits where ``z`` is an integer of the storage, and elsewhere at
most 4 roundings of its own magnitude instead of 2: less than the contraction's sum.

Not raised: arithmetic that rounds twice, divides by other than powers of two, wraps, or has as many
scales as elements, or a dynamic shape. With ``explain=true``
each operation of this kind is reported with its location and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir, passmanager
from ...dialects.stablehlo import CONTRACTIONS
from ...dialects.subquant import UNPACK
from ...emit.operation import is_used
from ...errors import Remark
from ..base import UNCHANGED, ModulePass, NoMatch, is_public, named, producer_named
from .arithmetic import COMPUTATIONS, NO_INTEGER, STEPS, Arithmetic
from .contractions import split_contractions
from .dequantization_plan import DequantizationPlan
from .facts import MAX_STORAGE_BITS, ExpressedFact
from .field_arithmetic import BITS, SHIFTS
from .gathers import (
    gather_before_dequantizing,
    gather_before_unpacking,
    slice_before_unpacking,
    use_loop_invariants,
)
from .lookup_indices import unpack_lookup_indices
from .narrow_constants import NarrowStorage

_GATHER = "stablehlo.gather"
_INLINED = ("stablehlo.convert", "stablehlo.divide", _GATHER, *BITS)
"""Operations of dequantizing arithmetic in private functions."""
_STORED = (UNPACK, "arith.constant", "stablehlo.constant", "util.global.load")
_SOURCES = (*_STORED, "stablehlo.bitcast_convert", "stablehlo.iota")


@dataclass(frozen=True)
class RaiseDequantization(ModulePass):
    """Raise dequantizing arithmetic to ``subquant.dequantize``.

    Options:
        explain: return a remark on arithmetic that nearly is a dequantization.
    """

    explain: bool = False

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Raise in `module`; never fails."""
        is_narrow = any(_converts(op) for op in named(module, ["stablehlo.convert"]))
        if not is_narrow and not named(module, SHIFTS):
            return UNCHANGED
        _inline(module)
        for op in named(module, ["stablehlo.while"]):
            use_loop_invariants(op)
        for op in named(module, ["stablehlo.dynamic_slice"]):
            slice_before_unpacking(op)
        for op in named(module, [_GATHER]):
            gather_before_unpacking(op)
        unpack_lookup_indices(module)
        arithmetic, remarks = Arithmetic(), []
        steps = named(module, STEPS)
        for op in steps:
            why = arithmetic.follow(op)
            if why is not None:
                remarks.append(Remark.about(op, f"is left alone: {why.reason}"))
        unused: set[Operation] = set()
        sources: set[Operation] = set()
        packed_constants: dict[tuple[Value, NarrowStorage], Value] = {}
        for op in reversed(steps):
            result = op.results[0]
            if not is_used(result):
                if op in unused:
                    _erase(op, unused, sources)
                continue
            fact = arithmetic.of(result)
            if not isinstance(fact, ExpressedFact):
                continue
            if not _is_worth(fact, result):
                if fact.real_zero_points is not None and op.name == "stablehlo.subtract":
                    remarks.append(Remark.about(op, f"is left alone: {NO_INTEGER.reason}"))
                continue
            plan = DequantizationPlan.of(fact)
            if isinstance(plan, NoMatch):
                if op.name in COMPUTATIONS:
                    remarks.append(Remark.about(op, f"is left alone: {plan.reason}"))
                continue
            with ir.InsertionPoint(op), op.location:
                plan = plan.with_narrow_storage(packed_constants)
                split, raised = plan.emit()
            result.replace_all_uses_with(raised)
            split_contractions(split, raised, plan.split)
            _erase(op, unused, sources)
        sources.update(root.owner.operation for root, _ in packed_constants)
        while sources:
            op = sources.pop()
            if not is_used(op.results[0]):
                _erase(op, set(), sources)
        for op in named(module, [_GATHER]):
            gather_before_dequantizing(op)
        return remarks if self.explain else ()


def _erase(op: Operation, unused: set[Operation], sources: set[Operation]) -> None:
    """Erase an operation, and record the producers of its operands."""
    for operand in op.operands:
        if not isinstance(operand.owner, ir.Block):
            owner = operand.owner.operation
            (sources if owner.name in _SOURCES else unused).add(owner)
    op.erase()


def _converts(op: Operation) -> bool:
    """True for a conversion of integers of 2 to 16 bits to floats, or to wider integers."""
    source, target = op.operands[0].type, op.results[0].type
    if not isinstance(source, ir.ShapedType) or not isinstance(source.element_type, ir.IntegerType):
        return False
    narrow = 2 <= source.element_type.width <= 16
    return narrow and not isinstance(target.element_type, ir.ComplexType)


def _is_step(op: Operation) -> bool:
    """True for a conversion of narrow integers, a gather, and results of 2 to 16 bits."""
    if op.name == "stablehlo.convert":
        return _converts(op)
    if op.name == _GATHER:
        return True
    element = op.results[0].type.element_type
    return isinstance(element, ir.IntegerType) and 2 <= element.width <= MAX_STORAGE_BITS


def _inline(module: Operation) -> None:
    """Inline the functions of a module if a private one has dequantizing arithmetic."""
    for function in named(module, ["func.func"]):
        if not is_public(function) and any(map(_is_step, named(function, _INLINED))):
            pipeline = "builtin.module(inline{default-pipeline=})"
            passmanager.PassManager.parse(pipeline).run(module)
            return


def _is_worth(fact: ExpressedFact, result: Value) -> bool:
    """True unless integers are only converted, and are no weight of a contraction.

    Zero points that may be no integers are raised for contractions, whose sum rounds anyway.
    """
    if fact.real_zero_points is not None:
        return all(use.owner.operation.name in CONTRACTIONS for use in result.uses)
    if fact.scales:
        return True
    integers = fact.integers
    if integers.field is not None:
        return any(use.owner.operation.name in CONTRACTIONS for use in result.uses)
    if integers.storage is None:
        return False
    is_stored = producer_named(integers.storage.root, *_STORED) is not None
    return any(
        use.owner.operation.name in CONTRACTIONS and (use.operand_number == 1 or is_stored)
        for use in result.uses
    )
