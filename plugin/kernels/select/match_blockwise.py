"""Matcher of block contractions: activations ``M x K`` times block-quantized weights ``N x K``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...core._mlir import Value
from ...dialects.block_contraction import BlockContraction
from ...emit.constant_values import constant_elements, is_invariant
from ...emit.operation import element_of, is_dynamic
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import F32
from ...numerics.parameters import ExpressedType
from ...numerics.requantization import EXACT
from ..epilogue.fused_epilogue import FusedEpilogue
from ..epilogue.matcher import EpilogueMatch
from ..isa.base import InstructionSet
from ..pack.blockwise_weight import BlockwiseWeight, contiguous_block
from ..pack.codebook import Codebook
from ..pack.packed_weight import Tiles
from .match_failure import IS_SMALL, MatchFailure

_MAX_FUSED_OPERATIONS = 8
"""Operations of an epilogue that is applied to each vector of accumulators in its register."""
_MIN_MACS_PER_ROW = 1 << 14
"""A kernel is called from this number of MACs for each row of activations on."""


@dataclass(frozen=True)
class BlockwiseMatch:
    """A block contraction that a kernel computes.

    Attributes:
        outer: loops of the activations alone.
        m: rows of activations of all batches; None where M is dynamic.
    """

    weight: BlockwiseWeight
    outer: list[int]
    m: int | None
    epilogue: FusedEpilogue | None = None

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
) -> BlockwiseMatch | MatchFailure:
    """Match a contraction with tiles of `lanes` lanes.

    Args:
        lanes: columns of a vector.
        vectors: returns the vectors of a tile for N.
        has_shuffle: the kernel can look up a codebook.
    """
    activations, storage, result = contraction.indices
    if contraction.expressed is ExpressedType.F64:
        return MatchFailure("it is computed in f64")
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
    n, k, batches = (math.prod(shape[loop] for loop in each) for each in (columns, inner, batch))
    if batches * n * k < _MIN_MACS_PER_ROW:
        return IS_SMALL
    extents = dict(zip(activation_loops, contraction.activations.type.shape, strict=True))
    outer_extents = [int(extents[loop]) for loop in outer]
    is_static = not any(map(is_dynamic, outer_extents))
    m = batches * math.prod(outer_extents) if is_static else None
    if m == 0:
        return MatchFailure("M is 0")
    if not columns:
        return MatchFailure("its weight has no axis N")
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
    return BlockwiseMatch(weight, outer, m)
