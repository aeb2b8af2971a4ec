"""``select-kernels``: replace contractions by calls of kernels.

i8 x i8 -> i32 contractions, and block contractions whose activations are quantized to int8, are dot
products of small integers, for which CPUs have instructions that IREE's code generation does not
use. `subquant.kernels` emits loops with these instructions, and for f32 activations if the
block-quantized weight is constant. A contraction that no kernel computes (dynamic convolutions,
small weights) is left to IREE.

Row gathers from a table that is also a weight, such as tied token embeddings, read the packed tiles
of the weight (`subquant.kernels.select.gather_rows`). ``subquant.attention`` has a kernel
that reads only the keys that are attended (`subquant.kernels.cpu.attention`); without it, scores of
the whole context are computed.

For Vulkan (``instructions=spirv``) only block contractions have a kernel: each thread loads words
of the weight, and shifts and masks the integers of some columns out of them.

Before::

    %y = "subquant.block_contraction"(%x, %q, %s) {activation_type = "int8", ...}
         : (tensor<4x4096xf32>, tensor<4096x2048xi8>, tensor<4096x128xf16>) -> tensor<4x4096xf32>

After::

    %i:2 = flow.dispatch @quantize_rows::@quantize_rows(%x)
    %y = flow.dispatch @blockwise_gemm::@blockwise_gemm(%tiles, %i#0, %i#1)

Each contraction goes through four steps in one direction: match and plan (`kernels.select`), pack
(`kernels.pack`), kernel (`kernels.cpu`, `kernels.gpu`), and
epilogue (`kernels.epilogue`). Equal calls are merged: activations of several contractions are
quantized once. Elementwise functions of one tensor of bytes become look-ups
(`subquant.kernels.fusion.byte_functions`). Elementwise operations between the contractions of a
token become kernels (`subquant.kernels.fusion.elementwise_fusion`), and consecutive small calls
become one dispatch (`subquant.kernels.fusion.dispatch_fusion`).

A constant weight is packed here, and so is a parameter that the compilation reads
(`subquant.emit.parameters`). Other weights are packed by operations of the program; if they
are arguments, a clone of the function takes them prepacked
(`subquant.transforms.contraction.prepack_arguments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, replace

from ...core._mlir import Operation, Value, ir
from ...core.option_fields import FixedPointRounding, RequantizationForm, Rounding, pass_option
from ...dialects.attention import Attention
from ...dialects.block_contraction import BlockContraction
from ...dialects.subquant import ATTENTION, BLOCK_CONTRACTION, DEQUANTIZE
from ...emit import operation
from ...emit.constant_values import erase_unused
from ...emit.kernel import KernelCall, KernelTable
from ...emit.parameters import ModuleGlobals, ParameterStore
from ...errors import Remark, UsageError, expected_name
from ...kernels.cpu.blockwise_gemm import BlockwiseGemm
from ...kernels.epilogue.fused_epilogue import FusedEpilogue
from ...kernels.fusion.byte_functions import replace_byte_functions, separate_byte_functions
from ...kernels.fusion.concatenate_fusion import fuse_concatenations
from ...kernels.fusion.dispatch_fusion import DEFAULT_FUSE_BELOW_MACS, fuse_dispatches
from ...kernels.fusion.elementwise_fusion import fuse_elementwise
from ...kernels.fusion.loop_fusion import fuse_loops
from ...kernels.fusion.row_fusion import fuse_rows
from ...kernels.isa.base import InstructionSet
from ...kernels.isa.registry import INSTRUCTION_SETS
from ...kernels.pack.float_codes import erase_decoding
from ...kernels.select.addends import Addends
from ...kernels.select.attention import call_attention
from ...kernels.select.blockwise import BlockwiseMatch, call_blockwise
from ...kernels.select.call_int8 import call_int8
from ...kernels.select.chosen_matrices import match_chosen_matrices, match_chosen_weight
from ...kernels.select.conv_match import MIN_MACS, MIN_MACS_FUSED
from ...kernels.select.dynamic_m import DynamicMMatch, call_dynamic_m
from ...kernels.select.float_conv import FloatConvMatch, call_float_conv
from ...kernels.select.float_weight import match_float_weight
from ...kernels.select.gather_rows import (
    match_gather_floats,
    match_gather_rows,
    replace_gather_rows,
)
from ...kernels.select.gpu import GPU_INSTRUCTIONS, call_gpu, match_gpu
from ...kernels.select.match_failure import MatchFailure
from ...kernels.select.match_int8 import Int8Match
from ...kernels.select.pooling import replace_pooling
from ...kernels.select.sort import SORT, replace_sorts
from ...numerics.element_types import I32
from ...numerics.requantization import Requantization
from ..base import UNCHANGED, ModulePass, is_public, named, producer_named
from ..quantization.math.contraction import Contraction
from .compute_branches import compute_branches
from .differences import raise_differences
from .normalize_convolutions import normalize_convolutions
from .prepack_arguments import clone_for_prepacking, is_computed_from_argument
from .sink_transposes import sink_transposes
from .zero_points import correct_zero_points

_INT8 = ("stablehlo.dot_general", "stablehlo.convolution")
_OTHERS = ("stablehlo.reduce", "stablehlo.reduce_window", SORT)
"""Operations that have kernels in modules without contractions, too."""
_ZERO_POINT_SUBTRACTION = {
    *("arith.constant", "stablehlo.and", "stablehlo.broadcast_in_dim", "stablehlo.constant"),
    *("stablehlo.convert", "stablehlo.pad", "stablehlo.reshape", "stablehlo.subtract"),
    *("subquant.scast", "subquant.subtract_zero_point"),
}
"""Operations that subtract zero points: see `transforms.contraction.differences`."""


@dataclass(frozen=True)
class SelectKernels(ModulePass):
    """Replace every contraction that a kernel computes by calls.

    Args:
        parameters: source and destination of parameters; None where the program loads them all.

    Options:
        instructions: instruction set of the kernels, a name in `INSTRUCTION_SETS`; or ``spirv`` or
            ``spirv-cpu``: kernels of block contractions for Vulkan.
        requantization: form of the requantization in fused epilogues, see ``lower-requantization``.
        fixed_point_rounding: see ``lower-requantization``.
        integer_only: requantize without the faster f32 estimates.
        rounding: of quantizations, see ``lower-quant-casts``; only with ``nearest-even`` do kernels
            compute elementwise operations.
        fuse_below_macs: ``joined-products`` in a pipeline: consecutive calls of at most this number
            of int8 multiply-accumulates each become one dispatch, and a loop over one dispatch of
            them too; 0 for none.
        explain: report for each contraction whether a kernel computes it, or why not.
    """

    instructions: str = "portable"
    requantization: RequantizationForm = "exact"
    fixed_point_rounding: FixedPointRounding = "half-up"
    integer_only: bool = False
    rounding: Rounding = "nearest-even"
    fuse_below_macs: int = pass_option(DEFAULT_FUSE_BELOW_MACS, "joined_products")
    explain: bool = False
    parameters: InitVar[ParameterStore | None] = None

    def __post_init__(self, parameters: ParameterStore | None) -> None:
        super().__post_init__()
        object.__setattr__(self, "_parameters", parameters)
        known = (*INSTRUCTION_SETS, *GPU_INSTRUCTIONS)
        if self.instructions not in known:
            raise UsageError(
                f"{self.name} knows no instructions '{self.instructions}'; "
                f"{expected_name(self.instructions, known)}"
            )

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Select kernels in `module`; never fails."""
        return _Selection(self, module, vars(self)["_parameters"]).run()


class _Selection:
    """The selection of kernels for one module."""

    def __init__(
        self, options: SelectKernels, module: Operation, parameters: ParameterStore | None
    ) -> None:
        self._options, self._module = options, module
        self._instructions = options.instructions
        self._is_gpu = options.instructions in GPU_INSTRUCTIONS
        self._module_globals = ModuleGlobals(module, parameters)
        self._kernels = KernelTable(module, self._module_globals)
        self._min_macs = MIN_MACS
        self._remarks: list[tuple[Remark, list[KernelCall]]] = []

    def run(self) -> Sequence[Remark] | None:
        """Select kernels, merge and fuse their calls, and return the remarks."""
        options, module, kernels = self._options, self._module, self._kernels
        for op in named(module, ["stablehlo.dot"]):
            _generalize_dot(op)
        if not self._is_gpu:
            if options.fuse_below_macs:
                compute_branches(module, self._instructions)
            normalize_convolutions(module, self._target, self._module_globals, self._min_macs)
        int8 = [] if self._is_gpu else named(module, _INT8)
        if options.fuse_below_macs and not all(
            isinstance(Int8Match.of_shape(op), MatchFailure) for op in int8
        ):
            self._min_macs = MIN_MACS_FUSED
        for op in int8:
            self._contract_storage(op)
        candidates = self._candidates()
        if not candidates and (self._is_gpu or not named(module, _OTHERS)):
            return UNCHANGED
        functions = [
            op for op in named(module, ["func.func"]) if is_public(op) and len(op.regions[0].blocks)
        ]
        contractions = [op for op in candidates if op.name != ATTENTION]
        clones = clone_for_prepacking(functions, contractions, self._module_globals)
        if clones:
            candidates = self._candidates()
        if not self._is_gpu:
            self._replace_gathers(candidates)
        has_tables = not self._is_gpu and options.rounding == "nearest-even"
        barriers = []
        if has_tables:
            barriers = separate_byte_functions(module, self._module_globals, self._requantization)
        cloned = [each.clone.regions[0].blocks[0] for each in clones]
        # Consumers first: their calls convert activations, which the producing kernel may absorb.
        for op in reversed(candidates):
            self._select(op, is_clone=op.block in cloned)
        if has_tables:
            replace_byte_functions(kernels, module, barriers, self._target, self._requantization)
        kernels.merge_equal_calls()
        if not self._is_gpu:
            sink_transposes(module)
            replace_pooling(kernels, named(module, ["stablehlo.reduce_window"]), self._target.lanes)
            replace_sorts(kernels, named(module, [SORT]))
        fuses = not self._is_gpu and options.fuse_below_macs > 0
        if fuses and options.rounding == "nearest-even":
            fuse_elementwise(kernels, self._target.lanes)
            fuse_rows(kernels, module, self._target.lanes)
        if fuses:
            fuse_concatenations(kernels, options.fuse_below_macs)
        fused = fuse_dispatches(kernels, options.fuse_below_macs)
        if fuses:
            fuse_loops(kernels, options.fuse_below_macs)
        for clone in clones:
            clone.finish()
        return [_with_fusion(remark, calls, fused) for remark, calls in reversed(self._remarks)]

    @property
    def _requantization(self) -> Requantization:
        return Requantization(self._options.requantization, self._options.fixed_point_rounding)

    @property
    def _target(self) -> InstructionSet:
        """The instruction set; only for CPUs."""
        return INSTRUCTION_SETS[self._instructions]

    def _candidates(self) -> list[Operation]:
        names = () if self._is_gpu else (ATTENTION, *_INT8)
        return named(self._module, [BLOCK_CONTRACTION, *names])

    def _replace_gathers(self, contractions: Sequence[Operation]) -> None:
        """Replace row gathers from weights by kernels, before the contractions are replaced."""
        if not contractions or not named(self._module, ["stablehlo.gather"]):
            return
        dequantizations = named(self._module, [DEQUANTIZE])
        blockwise = [op for op in contractions if op.name == BLOCK_CONTRACTION]
        matches = match_gather_rows(dequantizations, blockwise, self._target, self._module_globals)
        products = [
            match_float_weight(op, self._target, self._module_globals)
            for op in contractions
            if op.name == "stablehlo.dot_general"
        ]
        weights = [
            each for each in products if not isinstance(each, MatchFailure) and each.choices is None
        ]
        if weights:
            matches += match_gather_floats(named(self._module, ["stablehlo.convert"]), weights)
        for match in matches:
            remark = Remark.about(
                match.operation, "is gathered from the packed weight of a contraction by a kernel"
            )
            first = len(self._kernels.calls)
            replace_gather_rows(match, self._kernels)
            if self._options.explain:
                self._remarks.append((remark, self._kernels.calls[first:]))

    def _select(self, op: Operation, *, is_clone: bool) -> None:
        """Replace an operation by a call, or report why not; float ones are not reported."""
        explain = self._options.explain
        is_integer = isinstance(op.operands[0].type.element_type, ir.IntegerType)
        is_float, remark = op.name in _INT8 and not is_integer, Remark.about(op, "")
        instructions = self._used_instructions(op) if explain else ""
        first = len(self._kernels.calls)
        with ir.InsertionPoint(op), op.location:
            failure = self._replace(op)
        calls = self._kernels.calls[first:]
        if any(isinstance(each.key, BlockwiseGemm) and each.key.amx_plan for each in calls):
            instructions = self._instructions
        if failure is None:
            message = f"is computed by a kernel ({instructions})"
        else:
            message = f"has no kernel: {failure.reason}"
        if explain and not is_clone and (failure is None or not is_float):
            self._remarks.append((replace(remark, message=message), calls))

    def _replace(self, op: Operation) -> MatchFailure | None:
        """Replace an operation and its fused epilogue by the result of a call."""
        kernels, type_ = self._kernels, op.results[0].type
        epilogue: FusedEpilogue | None = None
        addends: Addends | None = None
        is_float = op.name in _INT8 and isinstance(type_.element_type, ir.FloatType)
        value: Value | MatchFailure
        if op.name == BLOCK_CONTRACTION:
            value, epilogue = self._blockwise(op)
        elif op.name == ATTENTION:
            value = call_attention(Attention.of(op), self._target, kernels)
        elif is_float:
            value, epilogue = self._float_weight(op)
        elif DynamicMMatch.has_dynamic_shape(op):
            product = DynamicMMatch.of(op, self._module_globals)
            if isinstance(product, MatchFailure):
                return product
            value = call_dynamic_m(product, kernels, type_, self._target)
        else:
            value, epilogue, addends = self._int8(op)
        if isinstance(value, MatchFailure):
            return value
        result, operations = op.results[0], [op]
        if addends:
            operations += addends.additions
        if epilogue:
            operations += epilogue.match.operations
            result = epilogue.match.result
        result.replace_all_uses_with(value)
        results = {each.results[0] for each in operations}
        operands = [each for op in operations for each in op.operands if each not in results]
        for each in reversed(operations):
            each.erase()
        if is_float:
            for operand in dict.fromkeys(operands):
                erase_decoding(operand)
        else:
            erase_unused(*operands)
        return None

    def _blockwise(self, op: Operation) -> tuple[Value | MatchFailure, FusedEpilogue | None]:
        contraction, type_ = BlockContraction.of(op), op.results[0].type
        all_matrices, chosen = match_chosen_matrices(contraction)
        if chosen is not None and not chosen.is_invariant(self._module_globals):
            chosen.erase_unused()  # or each call would pack all matrices
            chosen = None
        contraction = contraction if chosen is None else all_matrices
        epilogue = None
        value: Value | MatchFailure
        if self._is_gpu:
            has_choices = chosen is not None
            match = match_gpu(contraction, self._module_globals, has_choices=has_choices)
        else:
            match = BlockwiseMatch.of(contraction, self._target, self._module_globals)
        if isinstance(match, MatchFailure):
            value = match
        else:
            match = replace(match, choices=None if chosen is None else chosen.choices)
            if self._is_gpu:
                value = call_gpu(match, self._kernels, type_, self._instructions)
            else:
                match = match.with_epilogue(op.results[0], self._target, self._module_globals)
                epilogue = match.epilogue
                value = call_blockwise(match, self._kernels, type_, self._target)
        if chosen is not None:
            chosen.erase_unused()
        return value, epilogue

    def _float_weight(self, op: Operation) -> tuple[Value | MatchFailure, FusedEpilogue | None]:
        epilogue, chosen = None, match_chosen_weight(op)
        weight = None if chosen is None else chosen.tensors["weight"]
        match = match_float_weight(op, self._target, self._module_globals, weight)
        value: Value | MatchFailure
        if isinstance(match, MatchFailure):
            value = match
        else:
            match = match.with_epilogue(op.results[0], self._target, self._module_globals)
            match = replace(match, choices=None if chosen is None else chosen.choices)
            epilogue = match.epilogue
            value = call_blockwise(match, self._kernels, op.results[0].type, self._target)
        if chosen is not None:
            chosen.erase_unused()
            return value, epilogue
        if isinstance(value, MatchFailure):
            return self._float_conv(op)
        return value, epilogue

    def _float_conv(self, op: Operation) -> tuple[Value | MatchFailure, FusedEpilogue | None]:
        conv = FloatConvMatch.of(op, self._target, self._module_globals, self._min_macs)
        if isinstance(conv, MatchFailure):
            return conv, None
        result = op.results[0]
        epilogue = conv.fused_epilogue(result, self._target, self._module_globals)
        value = call_float_conv(conv, self._kernels, result.type, self._target, epilogue)
        return value, epilogue

    def _int8(
        self, op: Operation
    ) -> tuple[Value | MatchFailure, FusedEpilogue | None, Addends | None]:
        module_globals = self._module_globals
        match = Int8Match.of(op, module_globals, self._min_macs)
        if isinstance(match, MatchFailure):
            shape = Int8Match.of_shape(op, self._min_macs)
            return shape if isinstance(shape, MatchFailure) else match, None, None
        options, result = self._options, op.results[0]
        addends = match.computed_addends(result, self._target, module_globals)

        def fused_epilogue(accumulators: Value, addend_bound: int = 0) -> FusedEpilogue | None:
            return match.fused_epilogue(
                accumulators,
                self._requantization,
                self._target,
                module_globals,
                integer_only=options.integer_only,
                addend_bound=addend_bound,
            )

        epilogue = fused_epilogue(addends.accumulators, addends.bound) if addends else None
        if addends is None or epilogue is None or epilogue.element.bits == I32.bits:
            addends, epilogue = None, fused_epilogue(result)
        last = addends.additions[-1] if addends else op
        with ir.InsertionPoint(last):
            value = call_int8(match, self._kernels, result.type, self._target, epilogue, addends)
        return value, epilogue, addends

    def _used_instructions(self, op: Operation) -> str:
        """Return the name of the instruction set that a contraction's kernel uses."""
        uses_amx = False
        if op.name in _INT8:
            match = Int8Match.of(op, self._module_globals, self._min_macs)
            uses_amx = not isinstance(match, MatchFailure) and match.uses_amx(self._target)
        return self._instructions if self._is_gpu or uses_amx else self._target.name_without_tiles

    def _contract_storage(self, op: Operation) -> None:
        """Contract quantized operands as i8, and correct zero points after, if a kernel matches.

        Otherwise ``correct-zero-points`` does it later, in the way that suits IREE's loops.
        """
        if DynamicMMatch.has_dynamic_shape(op):
            is_unmatched = isinstance(DynamicMMatch.of_shape(op), MatchFailure)
            if is_unmatched or is_computed_from_argument(op.operands[1]):
                return
        elif isinstance(Int8Match.of_shape(op, self._min_macs), MatchFailure):
            return
        with ir.InsertionPoint(op), op.location:
            raised, correct = raise_differences(op) or (None, None)
            value = correct_zero_points(raised or op, "after")
            if value is not None and correct is not None:
                value = correct(value)
        if value is None:
            return
        op.results[0].replace_all_uses_with(value)
        operands = list(op.operands)
        if raised is not None:
            operands += raised.operands
            raised.erase()
        op.erase()
        # An unused subtraction of zero points would be a second reader of the storage.
        producers = [producer_named(operand, *_ZERO_POINT_SUBTRACTION) for operand in operands]
        operation.erase_unused(
            *filter(None, producers), also=lambda op: op.name in _ZERO_POINT_SUBTRACTION
        )


def _generalize_dot(op: Operation) -> None:
    """Replace a ``dot`` of two matrices by a ``dot_general``."""
    if [operand.type.rank for operand in op.operands] == [2, 2]:
        with ir.InsertionPoint(op), op.location:
            left, right = op.operands
            result = Contraction.of(op).create(left, right, op.results[0].type.element_type)
        op.results[0].replace_all_uses_with(result)
        op.erase()


def _with_fusion(
    remark: Remark, calls: Sequence[KernelCall], fused: Mapping[KernelCall, int]
) -> Remark:
    """Append the number of other calls in the same dispatch to a remark."""
    count = max((fused.get(call, 0) for call in calls), default=0)
    if not count:
        return remark
    noun = "call" if count == 1 else "calls"
    return replace(
        remark, message=f"{remark.message}, in one dispatch with {count} other {noun} of kernels"
    )
