"""Block contractions on CPUs: the matcher, and the calls of quantization and blockwise GEMM.

Activations are ``M x K``, block-quantized weights ``N x K``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction
from ...emit import linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements, is_invariant
from ...emit.kernel import KernelTable, items_per_workgroup
from ...emit.linalg import Extent
from ...emit.operation import element_of, is_dynamic, mlir_type, tensor_type
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import F32, I8, I32
from ...numerics.parameters import ExpressedType
from ...numerics.requantization import EXACT
from ..cpu.blockwise_gemm import BlockwiseGemm
from ..cpu.quantize_rows import QuantizeRows
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import OPERATIONS, EpilogueMatch
from ..isa.base import InstructionSet
from ..pack.blockwise_weight import BlockwiseWeight, contiguous_block
from ..pack.codebook import Codebook
from ..pack.float_codes import FloatWeight
from ..pack.packed_weight import Tiles
from .match_failure import IS_SMALL, MatchFailure

_MAX_FUSED_OPERATIONS = 8
"""Operations of an epilogue that is applied to each vector of accumulators in its register."""
_MAX_UNROLL_WITHOUT_SCALES = 8
"""Elements of K that are unrolled at most where no block ends."""
_MIN_MACS_PER_ROW = 1 << 14
"""A kernel is called from this number of MACs for each row of activations on."""


@dataclass(frozen=True)
class BlockwiseMatch:
    """A block contraction that a kernel computes.

    `outer` has loops of the activations alone. M, of all batches, is None where it is dynamic. Each
    of the `batches` multiplies its own rows with a matrix of its own, or with that of its number in
    `choices`. Quantized activations share a scale for `activation_block` consecutive k.
    """

    weight: BlockwiseWeight
    outer: list[int]
    m: int | None
    batches: int
    activation_block: int
    epilogue: FusedEpilogue | None = None
    choices: Value | None = None

    @classmethod
    def of(
        cls, contraction: BlockContraction, target: InstructionSet, module_globals: ModuleGlobals
    ) -> BlockwiseMatch | MatchFailure:
        """Match a contraction with the kernels of CPUs."""
        if contraction.activation_type != "int8":
            if contraction.expressed is not ExpressedType.F32:
                return MatchFailure("its activations are neither quantized to int8 nor f32")
            # Packing at each call takes longer than IREE's loops.
            if not all(is_invariant(plane, module_globals) for plane in contraction.planes):
                return MatchFailure(
                    "its activations are not quantized to int8 and its weight is not constant"
                )
        return match_layout(
            contraction,
            module_globals,
            target.lanes,
            lambda n: target.vectors_per_tile(n, target.max_vectors_blockwise),
            has_shuffle=bool(target.shuffle_intrinsic),
        )

    @property
    def contraction(self) -> BlockContraction:
        """The contraction."""
        return self.weight.contraction

    @property
    def tiles(self) -> Tiles:
        """Layout of the weight of each batch."""
        return self.weight.tiles

    @property
    def has_float_activations(self) -> bool:
        """True if activations are multiplied as f32, not quantized to int8."""
        return self.contraction.activation_type != "int8"

    def with_epilogue(
        self, result: Value, target: InstructionSet, module_globals: ModuleGlobals
    ) -> BlockwiseMatch:
        """Fuse the operations after the contraction into the kernel, if it can compute them."""
        if not any(use.owner.name in OPERATIONS for use in result.uses):
            return self
        weight = self.weight
        loops = [loop for [(loop, _)] in self.contraction.indices[2]]
        is_matrix = loops == [*self.outer, *weight.columns] and element_of(result.type) == F32
        if weight.batch or len(weight.columns) != 1 or not is_matrix:
            return self
        axis = len(loops) - 1
        match = EpilogueMatch.of(result, axis, EXACT, module_globals, integer_only=False)
        if match is None or len(match.operations) > _MAX_FUSED_OPERATIONS:
            return self
        return replace(self, epilogue=FusedEpilogue.of(match, target))


def match_layout(
    contraction: BlockContraction,
    module_globals: ModuleGlobals,
    lanes: int,
    vectors: Callable[[int], int],
    *,
    has_shuffle: bool = False,
    floats: FloatWeight | None = None,
) -> BlockwiseMatch | MatchFailure:
    """Match a contraction with tiles of `lanes` lanes, the columns of a vector.

    `vectors` returns the vectors of a tile for N. With `has_shuffle` the kernel can look up a
    codebook. The elements of the weight are integers, or `floats`.
    """
    activations, storage, result = contraction.indices
    if contraction.expressed is ExpressedType.F64:
        return MatchFailure("it is computed in f64")
    if contraction.storage_type.width > 8:
        return MatchFailure("its integers have more than 8 bits")
    if any(len(terms) > 1 for terms in activations):
        return MatchFailure("it is a convolution")
    activation_loops, loops = ([loop for [(loop, _)] in axes] for axes in (activations, storage))
    result_loops = [loop for [(loop, _)] in result]
    outer = [loop for loop in activation_loops if loop not in loops]
    batch = [loop for loop in loops if loop in result_loops and loop in activation_loops]
    columns = [loop for loop in loops if loop in result_loops and loop not in activation_loops]
    inner = [loop for loop in loops if loop not in result_loops]
    if not set(inner) <= set(activation_loops):
        return MatchFailure("it sums over an axis of its weight alone")
    shape = dict(zip(loops, contraction.storage_shape, strict=True))
    sizes = dict(zip(loops, contraction.block_sizes, strict=True))
    block = contiguous_block([shape[loop] for loop in inner], [sizes[loop] for loop in inner])
    if block is None:
        return MatchFailure("its blocks are not contiguous along K")
    of_activations = contraction.activation_block_sizes or contraction.block_sizes
    sizes = dict(zip(loops, of_activations, strict=True))
    activation_block = contiguous_block(
        [shape[loop] for loop in inner], [sizes[loop] for loop in inner]
    )
    if activation_block is None:
        return MatchFailure("blocks of its activations are not contiguous along K")
    n, k = (math.prod(shape[loop] for loop in each) for each in (columns, inner))
    extents = dict(zip(activation_loops, contraction.activations.type.shape, strict=True))
    batches = math.prod(
        shape[loop] if is_dynamic(extents[loop]) else extents[loop] for loop in batch
    )
    if batches * n * k < _MIN_MACS_PER_ROW:
        return IS_SMALL
    outer_extents = [int(extents[loop]) for loop in outer]
    is_static = not any(map(is_dynamic, outer_extents))
    m = batches * math.prod(outer_extents) if is_static else None
    if m == 0:
        return MatchFailure("M is 0")
    if not columns:
        return MatchFailure("its weight has no axis N")
    if floats is not None:
        if contraction.scales is None:  # all of K is one block, of which some k are unrolled
            block = math.gcd(k, _MAX_UNROLL_WITHOUT_SCALES)
        codes = floats.floats
        tiles = Tiles(codes.bits, block, n, k, lanes, vectors(n), codes.k_pack)
        if not tiles.is_valid:
            return MatchFailure(
                f"its block size {block} does not nest in packing steps of {tiles.k_per_step}"
            )
        weight = BlockwiseWeight(contraction, batch, columns, inner, tiles, floats=floats)
        return BlockwiseMatch(weight, outer, m, batches, activation_block)
    codebook = None
    if contraction.plane_bits is None:
        codebook = Codebook.of(contraction.storage, module_globals)
    uses_shuffle = has_shuffle and codebook is not None
    bits = sum(contraction.plane_bits or (contraction.storage_type.width,))
    packed_bits = Codebook.INDEX_BITS if uses_shuffle else bits if bits < 7 else 8
    tiles = Tiles(packed_bits, block, n, k, lanes, vectors(n))
    if not tiles.is_valid:
        return MatchFailure(
            f"its block size {block} does not nest in packing steps of {tiles.k_per_step}"
        )
    if contraction.storage_type.width != bits and contraction.zero_points is not None:
        zero_points = constant_elements(contraction.zero_points, module_globals)
        if zero_points is None or ((zero_points < 0) | (zero_points >= 1 << bits)).any():
            return MatchFailure(f"its zero points are not constants of {bits} bits")
    weight = BlockwiseWeight(contraction, batch, columns, inner, tiles, codebook, uses_shuffle)
    return BlockwiseMatch(weight, outer, m, batches, activation_block)


# -- calls -----------------------------------------------------------------------------------------


def call_blockwise(
    match: BlockwiseMatch, kernels: KernelTable, result: ir.Type, target: InstructionSet
) -> Value:
    """Emit the calls, and return the result of the contraction and its epilogue."""
    tiles, batches, epilogue = match.tiles, match.batches, match.epilogue
    weight = match.weight.packed(kernels)
    # An f32 accumulator and a converted weight take registers of float activations.
    max_mr = max(1, target.mr * 3 // 4) if match.has_float_activations else target.mr
    if match.weight.floats is not None:
        max_mr = target.mr_float
    m_per_batch = 0 if match.m is None else match.m // batches
    kernel = BlockwiseGemm(
        weight.layout,
        target,
        match.m,
        min(max_mr, m_per_batch or max_mr),
        1,
        match.has_float_activations,
        batches,
        epilogue,
        None if match.choices is None else match.weight.batches,
        match.activation_block,
    )
    if kernel.amx_plan is not None and match.m is not None:
        # The loop without tiles seldom runs, and is short with one row at a time: language models
        # compile in 0.92 of the CPU time, and 128 rows times 1024 x 1024 take 1.3 ms, not 0.66.
        kernel = replace(kernel, mr=1)
    together = kernel.tiles_per_iteration
    macs = (m_per_batch or 1) * together * tiles.nr * tiles.k
    items = items_per_workgroup(-(-tiles.count // together), macs, batches)
    kernel = replace(kernel, tiles_per_workgroup=items * together)
    activations, extents = activation_matrix(match)
    m: Extent = match.m if match.m is not None else linalg.dim(activations, 0)
    operands = [activations]
    if not match.has_float_activations:
        layout = kernel.activation_layout
        quantize = QuantizeRows(
            *(match.m, layout, match.activation_block, target.lanes, weight.layout.row_sum_factor)
        )
        types = [
            tensor_type(layout.integers_shape(match.m), mlir_type(I8)),
            tensor_type(layout.words_shape(match.m), mlir_type(I32)),
        ]
        operands = kernels.call(quantize, quantize.kernel(), [activations], types, m)
    tables = epilogue.operands(tiles.count * tiles.nr) if epilogue else []
    choices = [] if match.choices is None else [match.choices]
    operands = [*weight.operands, *choices, *operands, *tables]
    type_ = tensor_type([match.m, tiles.n], mlir_type(F32))
    [value] = kernels.call(kernel, kernel.kernel(), operands, [type_], m)
    return result_tensor(match, value, extents, result)


def activation_matrix(match: BlockwiseMatch) -> tuple[Value, list[Extent]]:
    """Return the activations as ``M x K`` of f32, and the extents of the loops of M."""
    contraction, weight = match.contraction, match.weight
    loops = [loop for [(loop, _)] in contraction.indices[0]]
    rows = [*weight.batch, *match.outer]
    order = [*rows, *weight.inner]
    tensor = emit_stablehlo.convert(contraction.activations, mlir_type(F32))
    tensor = emit_stablehlo.transpose(tensor, [loops.index(loop) for loop in order])
    shape = [int(extent) for extent in tensor.type.shape]
    rank = len(rows)
    extents: list[Extent] = [
        linalg.dim(tensor, axis) if is_dynamic(shape[axis]) else shape[axis] for axis in range(rank)
    ]
    if not rank:
        return emit_stablehlo.reshape(tensor, [1, weight.tiles.k]), extents
    groups = [list(range(rank)), list(range(rank, len(order)))]
    return linalg.collapse(tensor, groups), extents


def result_tensor(
    match: BlockwiseMatch, matrix: Value, extents: Sequence[Extent], type_: ir.Type
) -> Value:
    """Return the result of a contraction from ``M x N`` of f32, with the extents of M's loops."""
    weight, sizes = match.weight, match.weight.loop_sizes
    n: list[Extent] = [sizes[loop] for loop in weight.columns]
    if extents:
        rank, total = len(extents), len(extents) + len(n)
        groups = [list(range(rank)), list(range(rank, total))]
        tensor = linalg.expand(matrix, groups, [*extents, *n])
    else:
        tensor = emit_stablehlo.reshape(matrix, [sizes[loop] for loop in weight.columns])
    loops = [*weight.batch, *match.outer, *weight.columns]
    order = [loops.index(loop) for [(loop, _)] in match.contraction.indices[2]]
    tensor = emit_stablehlo.transpose(tensor, order)
    return linalg.cast(emit_stablehlo.convert(tensor, type_.element_type), type_)
