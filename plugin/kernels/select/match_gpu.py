"""Matcher of block contractions with the kernel of GPUs, which Vulkan runs."""

from __future__ import annotations

from ...dialects.block_contraction import BlockContraction
from ...emit.parameters import ModuleGlobals
from ...signature import MAX_LOOP_ITERATIONS
from ..gpu.thread_weight import THREAD_N
from .match_blockwise import BlockwiseMatch, match_layout
from .match_failure import MatchFailure

SPIRV, SPIRV_CPU = "spirv", "spirv-cpu"
"""Names in options of the kernels for GPUs, and for Vulkan devices that are CPUs."""
GPU_INSTRUCTIONS = (SPIRV, SPIRV_CPU)
THREADS_PER_TILE = 8
"""Adjacent threads of a workgroup that share a tile.

Together they read 128 bytes, which are whole cache lines; and llvmpipe, which runs eight threads in
a vector, reads consecutive memory: a 4096 x 4096 int4 GEMV takes it 2.6 ms, and 5.0 ms where 32
threads share a tile; of 8 bits 3.3 ms and 7.3 ms (two threads of Zen 4).
"""


def match_gpu(
    contraction: BlockContraction, module_globals: ModuleGlobals
) -> BlockwiseMatch | MatchFailure:
    """Match a contraction whose activations are floats or quantized to int8.

    Tiles are the same for all M, so that functions share a packed weight.
    """
    lanes = THREAD_N * THREADS_PER_TILE
    match = match_layout(contraction, module_globals, lanes, lambda n: 1)
    if isinstance(match, MatchFailure):
        return match
    if match.weight.batch:
        return MatchFailure("it has batch dimensions")
    tiles = match.tiles
    if tiles.steps * (1 + tiles.plane_vectors[0]) >= MAX_LOOP_ITERATIONS:
        return MatchFailure("its K is longer than the loops of some devices")
    return match
