"""``select-kernels``: contractions that a kernel computes become calls of it.

Contractions of 8-bit integers, and those with weights in blocks whose activations are rounded to 8
bits, are sums of products of small integers, which CPUs have instructions for that IREE's code
generation does not use. `subquant.kernels` writes loops with these, and for activations as reals
where the weight in blocks is a constant or a parameter. What they do not compute (dynamic windows,
weights of few elements) is left as it is.

Rows of a weight that are looked up, such as those of a model's tokens in a table that gives the
logits, are read in the tiles of the weight (`subquant.kernels.select.match_gather_rows`).

``subquant.attention`` is a kernel of its own (`subquant.kernels.cpu.attention`), which reads the
keys that are attended; without it, scores of the whole context are computed.

For Vulkan (``instructions=spirv``) those with weights in blocks alone have a kernel, of activations
as reals too: each thread reads words of the weight, and shifts and masks the integers of some
columns out of them.

Before::

    %y = "subquant.block_contraction"(%x, %q, %s) {activation_type = "int8", ...}
         : (tensor<4x4096xf32>, tensor<4096x2048xi8>, tensor<4096x128xf16>) -> tensor<4x4096xf32>

After::

    %i:3 = flow.dispatch @round_rows::@round_rows(%x)
    %y = flow.dispatch @block_product::@block_product(%tiles, %scales, %i#0, %i#1, %i#2)

Activations of several products are rounded once. What is computed between products of one token is
a kernel, too (`subquant.kernels.fusion.elementwise_fusion`); calls of small kernels that follow one
another become one (`subquant.kernels.fusion.dispatch_fusion`).

The weight is laid out anew (`subquant.kernels.pack.packed_weight`): a constant here, and a
parameter that the compilation is given (`subquant.kernels.pack.parameters`); an argument or another
parameter by operations of the program. For weights that are arguments there is a copy of the
function that takes them laid out (`subquant.kernels.pack.prepack_arguments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...core._mlir import Operation, Value, ir, stablehlo
from ...core.option_fields import FixedPointRounding, RequantizationForm
from ...dialects.attention import Attention
from ...dialects.block_contraction import BlockContraction
from ...dialects.subquant import ATTENTION, BLOCK_CONTRACTION, DEQUANTIZE
from ...emit import ArrayLike, operation, tensor
from ...errors import Remark, UsageError, expected_name
from ...kernels.constant_values import erase_unused
from ...kernels.epilogue.fused_epilogue import FusedEpilogue
from ...kernels.fusion.dispatch_fusion import DEFAULT_FUSED_MACS, fuse_dispatches
from ...kernels.fusion.elementwise_fusion import fuse_elementwise
from ...kernels.isa.registry import INSTRUCTION_SETS
from ...kernels.kernel_table import KernelCall, KernelTable
from ...kernels.pack.parameters import known_globals
from ...kernels.pack.prepack_arguments import copies_of, is_argument_behind
from ...kernels.select.match_attention import emit_attention
from ...kernels.select.match_blockwise import Product
from ...kernels.select.match_dynamic_m import RowContraction
from ...kernels.select.match_failure import MatchFailure
from ...kernels.select.match_gather_rows import lookups_of
from ...kernels.select.match_gpu import OF_THREADS, ThreadContraction
from ...kernels.select.match_int8 import IntegerContraction
from ...numerics.element_types import Array
from ...numerics.requantization import Requantization
from ..base import UNCHANGED, ModulePass, is_public, named
from ..quantization.math.differences import raise_differences
from ..quantization.math.zero_points import correct_zero_points

__all__ = ["SelectKernels"]

_INTEGERS = ("stablehlo.dot_general", "stablehlo.convolution")
_OF_DIFFERENCES = {
    *("arith.constant", "stablehlo.and", "stablehlo.broadcast_in_dim", "stablehlo.constant"),
    *("stablehlo.convert", "stablehlo.pad", "stablehlo.reshape", "stablehlo.subtract"),
    *("subquant.scast", "subquant.subtract_zero_point"),
}
"""Operations that zero points are subtracted by: see `transforms.math.differences`."""


@dataclass(frozen=True)
class SelectKernels(ModulePass):
    """Turn every contraction that a kernel computes into calls.

    Options:
        instructions: what kernels multiply with, a name in `INSTRUCTION_SETS`, or ``spirv`` or
            ``spirv-cpu``: those of weights in blocks for devices of many threads.
        requantization: as of ``lower-requantization``, for sums that a kernel finishes.
        fixed_point_rounding: as of ``lower-requantization``.
        integer_only: requantize without floats, which tell sooner what integers give.
        joined_products: calls of at most so many products of 8 bits become one, where they follow
            one another; 0 for none.
        explain: say of each contraction whether a kernel computes it, or why not.
    """

    name: ClassVar[str] = "select-kernels"

    instructions: str = "portable"
    requantization: RequantizationForm = "exact"
    fixed_point_rounding: FixedPointRounding = "half-up"
    integer_only: bool = False
    joined_products: int = DEFAULT_FUSED_MACS
    explain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (*INSTRUCTION_SETS, *OF_THREADS)
        if self.instructions not in known:
            raise UsageError(
                f"{self.name} knows no instructions '{self.instructions}'; "
                f"{expected_name(self.instructions, known)}"
            )

    @property
    def _is_of_threads(self) -> bool:
        return self.instructions in OF_THREADS

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Select in `module`; never fails."""
        with known_globals(module):
            return self._select(module)

    def _select(self, module: Operation) -> Sequence[Remark] | None:
        integers = () if self._is_of_threads else _INTEGERS
        contractions = named(module, integers)
        is_alone = not self.joined_products or all(
            isinstance(IntegerContraction.of_shape(op), MatchFailure) for op in contractions
        )
        for op in contractions:
            _contract_storage(op, is_alone)
        attentions = () if self._is_of_threads else (ATTENTION,)
        found = named(module, [BLOCK_CONTRACTION, *attentions, *integers])
        if not found:
            return UNCHANGED
        functions = [op for op in named(module, ["func.func"]) if is_public(op) and _has_body(op)]
        copies = copies_of(functions, [op for op in found if op.name != ATTENTION])
        copied = [each.copy.regions[0].blocks[0] for each in copies]
        if copies:
            found = named(module, [BLOCK_CONTRACTION, *attentions, *integers])
        kernels = KernelTable(module)
        remarks: list[tuple[Remark, list[KernelCall]]] = []
        self._look_up(module, found, kernels, remarks)
        # From the last to the first: what a contraction does with its activations may be done by
        # the kernel that computes them.
        for op in reversed(found):
            told, is_copy = not _is_of_floats(op), op.block in copied
            at = Remark.about(op, "")
            used = self._used(op, is_alone) if self.explain else ""
            before = len(kernels.calls)
            with ir.InsertionPoint(op), op.location:
                refusal = self._replace(op, kernels, is_alone)
            if refusal is None:
                said = f"is computed by a kernel ({used})"
            else:
                said = f"has no kernel: {refusal.reason}"
            if self.explain and not is_copy and (told or refusal is None):
                remarks.append((replace(at, message=said), kernels.calls[before:]))
        kernels.merge_equal_calls()
        if not self._is_of_threads and self.joined_products:
            fuse_elementwise(kernels, INSTRUCTION_SETS[self.instructions].lanes)
        joined = fuse_dispatches(kernels, self.joined_products)
        for copy in copies:
            copy.finish()
        return [_with_others(remark, calls, joined) for remark, calls in reversed(remarks)]

    def _look_up(
        self,
        module: Operation,
        found: Sequence[Operation],
        kernels: KernelTable,
        remarks: list[tuple[Remark, list[KernelCall]]],
    ) -> None:
        """Look rows up in the tiles of contractions that are not replaced yet."""
        if self._is_of_threads:
            return
        contractions = [op for op in found if op.name == BLOCK_CONTRACTION]
        if not contractions or not named(module, ["stablehlo.gather"]):
            return
        dequantizations = named(module, [DEQUANTIZE])
        for lookup in lookups_of(dequantizations, contractions, self.instructions):
            remark = Remark.about(
                lookup.operation, "is looked up in the tiles of a product by a kernel"
            )
            before = len(kernels.calls)
            lookup.replace(kernels)
            if self.explain:
                remarks.append((remark, kernels.calls[before:]))

    def _replace(self, op: Operation, kernels: KernelTable, is_alone: bool) -> MatchFailure | None:
        """Call a kernel in the place of a contraction and what follows it."""
        result, replaced = op.results[0], [op]
        epilogue: FusedEpilogue | None = None
        if op.name == BLOCK_CONTRACTION:
            planner = ThreadContraction if self._is_of_threads else Product
            product = planner.of(BlockContraction.of(op), self.instructions)
            if isinstance(product, MatchFailure):
                return product
            if not self._is_of_threads:
                product = product.with_what_follows(result)
            made, epilogue = product.emit(kernels, result.type), product.epilogue
        elif op.name == ATTENTION:
            attended = emit_attention(Attention.of(op), self.instructions, kernels)
            if isinstance(attended, MatchFailure):
                return attended
            made = attended
        elif RowContraction.has_dynamic_rows(op):
            rows = RowContraction.of(op)
            if isinstance(rows, MatchFailure):
                return rows
            made = rows.emit(kernels, result.type, self.instructions)
        else:
            contraction = IntegerContraction.of(op, is_alone=is_alone)
            if isinstance(contraction, MatchFailure):
                shape = IntegerContraction.of_shape(op, is_alone=is_alone)
                return shape if isinstance(shape, MatchFailure) else contraction
            how = Requantization(self.requantization, self.fixed_point_rounding)
            epilogue = contraction.fused_epilogue(
                result, how, self.instructions, integer_only=self.integer_only
            )
            made = contraction.emit(kernels, result.type, self.instructions, epilogue)
            if isinstance(made, MatchFailure):
                return made
        if epilogue:
            replaced += epilogue.match.operations
            result = epilogue.match.result
        result.replace_all_uses_with(made)
        results = {each.results[0] for each in replaced}
        given = [value for each in replaced for value in each.operands if value not in results]
        for each in reversed(replaced):
            each.erase()
        for value in dict.fromkeys(given):
            erase_unused(value)
        return None

    def _used(self, op: Operation, is_alone: bool) -> str:
        """The name of the instructions that the kernel of a contraction multiplies with."""
        if op.name in _INTEGERS:
            contraction = IntegerContraction.of(op, is_alone=is_alone)
            if not isinstance(contraction, MatchFailure) and contraction.has_tiles(
                self.instructions
            ):
                return self.instructions
        if self._is_of_threads:
            return self.instructions
        return INSTRUCTION_SETS[self.instructions].name_without_tiles


def _with_others(
    remark: Remark, calls: Sequence[KernelCall], joined: Mapping[KernelCall, int]
) -> Remark:
    """What is said of a contraction, with how many other calls are done in the same dispatch."""
    others = max((joined.get(call, 0) for call in calls), default=0)
    if not others:
        return remark
    noun = "call" if others == 1 else "calls"
    return replace(
        remark, message=f"{remark.message}, in one dispatch with {others} other {noun} of kernels"
    )


def _has_body(function: Operation) -> bool:
    return len(function.regions[0].blocks) > 0


def _is_of_floats(op: Operation) -> bool:
    """True for what no kernel is looked for."""
    element = op.operands[0].type.element_type
    return op.name in _INTEGERS and not isinstance(element, ir.IntegerType)


def _contract_storage(op: Operation, is_alone: bool) -> None:
    """Contract the storage of quantized operands, and correct the sums, where a kernel will do it.

    ``correct-zero-points``, which comes later, does so in the way that is best for IREE's loops.
    """
    if RowContraction.has_dynamic_rows(op):
        is_left = isinstance(RowContraction.of_shape(op), MatchFailure)
        if is_left or is_argument_behind(op.operands[1]):
            return
    elif isinstance(IntegerContraction.of_shape(op, is_alone=is_alone), MatchFailure):
        return
    with ir.InsertionPoint(op), op.location:
        raised, more = raise_differences(op) or (None, None)
        value = correct_zero_points(raised or op, "after")
        if value is not None and more is not None:
            value = _with_features(op, value, more)
    if value is not None:
        op.results[0].replace_all_uses_with(value)
        given = list(op.operands)
        if raised is not None:
            given += raised.operands
            raised.erase()
        op.erase()
        for each in dict.fromkeys(given):
            _erase_unread(each)


def _erase_unread(value: Value) -> None:
    """Erase a difference that nobody reads any more, or its storage would have two readers."""

    def may_go(op: Operation) -> bool:
        return op.name in _OF_DIFFERENCES

    if not isinstance(value.owner, ir.Block) and may_go(value.owner.operation):
        operation.erase_unused(value.owner.operation, may_go)


def _with_features(op: Operation, sums: Value, more: Array) -> Value:
    """The sums of a convolution, and a number for each feature."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    shape = [1] * sums.type.rank
    shape[numbers.output_feature_dimension] = more.size
    total: ArrayLike = tensor(sums) + more.reshape(shape)
    return total.value
