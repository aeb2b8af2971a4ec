"""Block contractions on CPUs: the matcher, and the calls of quantization and blockwise GEMM.

Activations are ``M x K``, block-quantized weights ``N x K``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction
from ...emit import linalg
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements, is_invariant
from ...emit.kernel import KernelTable, items_per_workgroup
from ...emit.linalg import DimSize
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
"""Operations of an epilogue, at most, that is applied to accumulators in registers."""
_MAX_UNROLL_WITHOUT_SCALES = 8
"""Elements of K that are unrolled where no block ends, at most."""
_MIN_MACS_PER_ROW = 1 << 14
"""MACs for each row of activations for which a kernel is called, at least."""


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


class _Loops(NamedTuple):
    """Loops of a contraction of a matrix.

    Attributes:
        outer: those of the activations and the result, together M.
        batch: those of all operands.
        columns: those of the weight and the result, together N.
        inner: those of the activations and the weight, together K.
    """

    outer: list[int]
    batch: list[int]
    columns: list[int]
    inner: list[int]

    @classmethod
    def of(cls, contraction: BlockContraction) -> _Loops | MatchFailure:
        """The loops of a contraction; a failure if it is none of matrices."""
        if any(len(terms) > 1 for terms in contraction.indices[0]):
            return MatchFailure("it is a convolution")
        activations, weight, result = (
            [loop for [(loop, _)] in axes] for axes in contraction.indices
        )
        loops = cls(
            [loop for loop in activations if loop not in weight],
            [loop for loop in weight if loop in result and loop in activations],
            [loop for loop in weight if loop in result and loop not in activations],
            [loop for loop in weight if loop not in result],
        )
        if not set(loops.inner) <= set(activations):
            return MatchFailure("it sums over an axis of its weight alone")
        return loops


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

    Args:
        vectors: returns the vectors of a tile for N.
        has_shuffle: the kernel can look up a codebook.
        floats: the elements of the weight; None for integers.
    """
    if contraction.expressed is ExpressedType.F64:
        return MatchFailure("it is computed in f64")
    if contraction.storage_type.width > 8:
        return MatchFailure("its integers have more than 8 bits")
    loops = _Loops.of(contraction)
    if isinstance(loops, MatchFailure):
        return loops
    block = _block_along_k(contraction, loops, contraction.block_sizes)
    if block is None:
        return MatchFailure("its blocks are not contiguous along K")
    of_activations = contraction.activation_block_sizes or contraction.block_sizes
    activation_block = _block_along_k(contraction, loops, of_activations)
    if activation_block is None:
        return MatchFailure("blocks of its activations are not contiguous along K")
    shape = _weight_shape(contraction)
    n, k = (math.prod(shape[loop] for loop in each) for each in (loops.columns, loops.inner))
    activation_loops = [loop for [(loop, _)] in contraction.indices[0]]
    sizes = dict(zip(activation_loops, contraction.activations.type.shape, strict=True))
    batches = math.prod(
        shape[loop] if is_dynamic(sizes[loop]) else sizes[loop] for loop in loops.batch
    )
    if batches * n * k < _MIN_MACS_PER_ROW:
        return IS_SMALL
    outer_sizes = [int(sizes[loop]) for loop in loops.outer]
    is_static = not any(map(is_dynamic, outer_sizes))
    m = batches * math.prod(outer_sizes) if is_static else None
    if m == 0:
        return MatchFailure("M is 0")
    if not loops.columns:
        return MatchFailure("its weight has no axis N")
    codebook, uses_shuffle = None, False
    if floats is not None:
        if contraction.scales is None:  # all of K is one block, of which some k are unrolled
            block = math.gcd(k, _MAX_UNROLL_WITHOUT_SCALES)
        tiles = Tiles(floats.floats.bits, block, n, k, lanes, vectors(n), floats.floats.k_pack)
    else:
        if contraction.plane_bits is None:
            codebook = Codebook.of(contraction.storage, module_globals)
        uses_shuffle = has_shuffle and codebook is not None
        bits = _stored_bits(contraction)
        packed_bits = Codebook.INDEX_BITS if uses_shuffle else bits if bits < 7 else 8
        tiles = Tiles(packed_bits, block, n, k, lanes, vectors(n))
    if not tiles.is_valid:
        return MatchFailure(
            f"its block size {block} does not nest in packing steps of {tiles.k_per_step}"
        )
    if floats is None and not _are_zero_points_stored(contraction, module_globals):
        bits = _stored_bits(contraction)
        return MatchFailure(f"its zero points are not constants of {bits} bits")
    weight = BlockwiseWeight(
        *(contraction, loops.batch, loops.columns, loops.inner, tiles, codebook, uses_shuffle),
        floats=floats,
    )
    return BlockwiseMatch(weight, loops.outer, m, batches, activation_block)


def _weight_shape(contraction: BlockContraction) -> dict[int, int]:
    """The sizes of the loops of the weight."""
    loops = [loop for [(loop, _)] in contraction.indices[1]]
    return dict(zip(loops, contraction.storage_shape, strict=True))


def _block_along_k(
    contraction: BlockContraction, loops: _Loops, block_sizes: Sequence[int]
) -> int | None:
    """The consecutive k of a block; None if its elements are not consecutive.

    Args:
        block_sizes: the sizes of a block along the axes of the weight.
    """
    shape = _weight_shape(contraction)
    sizes = dict(zip(shape, block_sizes, strict=True))
    return contiguous_block(
        [shape[loop] for loop in loops.inner], [sizes[loop] for loop in loops.inner]
    )


def _stored_bits(contraction: BlockContraction) -> int:
    """The bits of an integer of the weight in memory."""
    return sum(contraction.plane_bits or (contraction.storage_type.width,))


def _are_zero_points_stored(contraction: BlockContraction, module_globals: ModuleGlobals) -> bool:
    """True if the zero points fit the bits of the weight in memory."""
    bits = _stored_bits(contraction)
    if contraction.storage_type.width == bits or contraction.zero_points is None:
        return True
    zero_points = constant_elements(contraction.zero_points, module_globals)
    return zero_points is not None and not ((zero_points < 0) | (zero_points >= 1 << bits)).any()


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
    activations, m_sizes = activation_matrix(match)
    m: DimSize = match.m if match.m is not None else linalg.dim(activations, 0)
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
    return result_tensor(match, value, m_sizes, result)


def activation_matrix(match: BlockwiseMatch) -> tuple[Value, list[DimSize]]:
    """Return the activations as ``M x K`` of f32, and the sizes of the loops of M."""
    contraction, weight = match.contraction, match.weight
    loops = [loop for [(loop, _)] in contraction.indices[0]]
    rows = [*weight.batch, *match.outer]
    order = [*rows, *weight.inner]
    tensor = emit_stablehlo.convert(contraction.activations, mlir_type(F32))
    tensor = emit_stablehlo.transpose(tensor, [loops.index(loop) for loop in order])
    shape = [int(size) for size in tensor.type.shape]
    rank = len(rows)
    m_sizes: list[DimSize] = [
        linalg.dim(tensor, axis) if is_dynamic(shape[axis]) else shape[axis] for axis in range(rank)
    ]
    if not rank:
        return emit_stablehlo.reshape(tensor, [1, weight.tiles.k]), m_sizes
    groups = [list(range(rank)), list(range(rank, len(order)))]
    return linalg.collapse(tensor, groups), m_sizes


def result_tensor(
    match: BlockwiseMatch, matrix: Value, m_sizes: Sequence[DimSize], type_: ir.Type
) -> Value:
    """Return the result of a contraction from ``M x N`` of f32, with the sizes of M's loops."""
    weight, sizes = match.weight, match.weight.loop_sizes
    n: list[DimSize] = [sizes[loop] for loop in weight.columns]
    if m_sizes:
        rank, total = len(m_sizes), len(m_sizes) + len(n)
        groups = [list(range(rank)), list(range(rank, total))]
        tensor = linalg.expand(matrix, groups, [*m_sizes, *n])
    else:
        tensor = emit_stablehlo.reshape(matrix, [sizes[loop] for loop in weight.columns])
    loops = [*weight.batch, *match.outer, *weight.columns]
    order = [loops.index(loop) for [(loop, _)] in match.contraction.indices[2]]
    tensor = emit_stablehlo.transpose(tensor, order)
    return linalg.cast(emit_stablehlo.convert(tensor, type_.element_type), type_)
