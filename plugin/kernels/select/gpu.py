"""Block contractions on GPUs, by Vulkan: the matcher, and the calls of quantization and GEMM."""

from __future__ import annotations

from dataclasses import replace

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction
from ...emit import linalg, stablehlo
from ...emit.kernel import KernelTable
from ...emit.linalg import DimSize
from ...emit.operation import mlir_type, tensor_type
from ...emit.parameters import ModuleGlobals
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ...numerics.parameters import StorageType
from ...signature import MAX_LOOP_ITERATIONS
from ..gpu.blockwise_gemm import GpuBlockwiseGemm
from ..gpu.quantize_rows import GpuQuantizeRows
from ..gpu.thread_weight import THREAD_N
from ..pack.packed_weight import Tiles
from .blockwise import BlockwiseMatch, activation_matrix, match_layout, result_tensor
from .gpu_matrix import SPIRV_MATRIX, SPIRV_MATRIX_8, call_matrix_gemm, matrix_grid
from .match_failure import MatchFailure

SPIRV, SPIRV_CPU = "spirv", "spirv-cpu"
"""Names in options of the kernels for GPUs, and for Vulkan devices that are CPUs."""
GPU_INSTRUCTIONS = (SPIRV, SPIRV_CPU, SPIRV_MATRIX, SPIRV_MATRIX_8)
THREADS_PER_TILE = 8
"""Adjacent threads of a workgroup that share a tile.

Together they read 128 bytes, which are whole cache lines; and llvmpipe, which runs eight threads in
a vector, reads consecutive memory: a 4096 x 4096 int4 GEMV takes it 2.6 ms, and 5.0 ms where 32
threads share a tile; of 8 bits 3.3 ms and 7.3 ms (two threads of Zen 4).
"""


def match_gpu(
    contraction: BlockContraction, module_globals: ModuleGlobals, *, has_choices: bool
) -> BlockwiseMatch | MatchFailure:
    """Match a contraction whose activations are floats or quantized to int8.

    Tiles are the same for all M, so that functions share a packed weight.

    Args:
        has_choices: the weight is that of all matrices, of which each batch chooses one.
    """
    lanes = THREAD_N * THREADS_PER_TILE
    match = match_layout(contraction, module_globals, lanes, lambda n: 1)
    if isinstance(match, MatchFailure):
        return match
    if match.weight.batch and not has_choices:
        return MatchFailure("it has batch dimensions")
    if has_choices and (match.m is None or match.m // match.batches > _MAX_UNROLLED_MACS):
        return MatchFailure(f"more than {_MAX_UNROLLED_MACS} rows choose a matrix")
    tiles = match.tiles
    if tiles.steps * (1 + tiles.plane_vectors[0]) >= MAX_LOOP_ITERATIONS:
        return MatchFailure("its K is longer than the loops of some devices")
    return match


# -- calls -----------------------------------------------------------------------------------------

_THREADS_PER_WORKGROUP = 32
"""A subgroup of GPUs has 16 to 64 threads; llvmpipe's has eight."""
_MAX_TILES_PER_THREAD = 4
"""With 2, a 4096 x 4096 int4 GEMV takes llvmpipe a tenth longer; with 8 as long."""
_MIN_MAX_MR = 4
"""Rows of a thread at most, at least this number; a dynamic M has it."""
_MAX_UNROLLED_MACS = 8
"""Rows times k-packs of a word, whose MACs are unrolled.

With one k-pack in a word (8 bits), 8 rows take llvmpipe a fifth less time than 4. With two, they
take up to a tenth less, but translate twice as long: 0.6 s instead of 0.3.
"""
_MIN_WORKGROUPS = 8
"""Threads get several tiles only while this number of workgroups is left for the cores of a GPU."""
_UNSIGNED_BYTES = StorageType(8, False)
"""The storage type of integers of up to 8 bits in a packed weight."""
_SPLIT_K_WORKGROUPS, _MAX_SPLIT_K, _MIN_STEPS_PER_SPLIT = 1024, 32, 4
"""Workgroups that keep a large GPU busy; split-K at most; steps of each part at least.

A 4096 x 4096 int4 GEMV takes an H200 0.031 ms with a split-K of 32, 0.076 with 16 and 0.41 without.
llvmpipe is busy without: 1024 x 1024 take it 0.71 ms instead of 0.42.
"""
_MAX_K_THREADS, _MIN_STEPS_PER_THREAD = {SPIRV: 16, SPIRV_MATRIX: 64}, 2
_MAX_PARTIAL_SUMS = {SPIRV: 1024, SPIRV_MATRIX: 3072}
"""Threads of a workgroup that share K at most, their steps at least, vectors of four partial sums.

16 with `THREADS_PER_TILE` are 128 threads, 1024 vectors 16 KiB, which each device of Vulkan has.
One row of 4096 x 4096 int4 takes an H100 22 us with 64 and 25 us with 32, and 45 with split-K.
"""
_ACTIVATION_COST_IN_TILES = 0.5
"""Loading activations costs about as much as half a tile."""


def call_gpu(
    match: BlockwiseMatch, kernels: KernelTable, result: ir.Type, instructions: str
) -> Value:
    """Emit the calls for one of `GPU_INSTRUCTIONS`, and return the result of the contraction."""
    tiles, m = match.tiles, match.m
    weight = match.weight.packed(kernels, is_planar=True)  # a thread loads vectors of each tensor
    grid = matrix_grid(match, weight.layout, instructions)
    if grid is not None:
        return call_matrix_gemm(match, weight, grid, kernels, result)
    mr, k_packs_per_word = _MIN_MAX_MR, 8 // tiles.plane_bits[0]
    if m is not None:  # M is divided evenly
        mr = -(-m // -(-m // max(_MIN_MAX_MR, _MAX_UNROLLED_MACS // k_packs_per_word)))
        if match.choices is not None:
            mr = m // match.batches
    # The tiles of a thread: the number that computes the fewest padding tiles.
    groups = -(-tiles.count // (_THREADS_PER_WORKGROUP // THREADS_PER_TILE))
    limit = min(_MAX_TILES_PER_THREAD, groups, groups * -(-(m or 1) // mr) // _MIN_WORKGROUPS)
    kernel = GpuBlockwiseGemm(
        weight.layout,
        min(
            range(max(1, limit), 0, -1),
            key=lambda n: -(-groups // n) * (n + _ACTIVATION_COST_IN_TILES),
        ),
        Cast(_UNSIGNED_BYTES, match.contraction.expressed),
        m,
        mr,
        _THREADS_PER_WORKGROUP,
        not match.has_float_activations,
        matrices=None if match.choices is None else match.weight.batches,
    )
    if instructions != SPIRV_CPU and (m is None or (m <= mr and instructions != SPIRV)):
        k_threads = _k_threads(tiles, mr, instructions)
        threads = THREADS_PER_TILE * k_threads
        kernel = replace(kernel, tiles_per_thread=1, threads=threads, k_threads=k_threads)
    elif instructions != SPIRV_CPU and m is not None:
        workgroups = kernel.kernel().workgroups * -(-m // mr)
        kernel = replace(kernel, split_k=_split_k(tiles, m, workgroups))
    activations, extents = activation_matrix(match)
    # IREE evaluates constant operands on the CPU, which has no SPIR-V.
    activations = linalg.in_separate_dispatch(activations)
    rows: DimSize = m if m is not None else linalg.dim(activations, 0)
    operands = [activations]
    if not match.has_float_activations:
        k, block_size = tiles.k, tiles.block_size
        quantize = GpuQuantizeRows(
            *(m, k, match.activation_block, block_size, _THREADS_PER_WORKGROUP)
        )
        types = [  # int8, four in a word, and the scales of blocks
            tensor_type([m, k // 4], mlir_type(I32)),
            tensor_type([m, k // block_size], mlir_type(F32)),
        ]
        operands = kernels.call(quantize, quantize.kernel(), [activations], types, rows)
    split = [kernel.split_k] if kernel.split_k > 1 else []
    type_ = tensor_type([m, *split, tiles.n], mlir_type(F32))
    choices = [] if match.choices is None else [match.choices]
    operands = [*weight.operands, *choices, *operands]
    [value] = kernels.call(kernel, kernel.kernel(), operands, [type_], rows)
    if split:
        value = stablehlo.reduce(value, [1])
    return result_tensor(match, value, extents, result)


def _k_threads(tiles: Tiles, mr: int, instructions: str) -> int:
    """Return the threads that share K: a power of two, with 2 steps or more for each.

    At least 4, which are the threads of a workgroup without.
    """
    device = SPIRV_MATRIX if instructions == SPIRV_MATRIX else SPIRV
    limit = min(
        _MAX_K_THREADS[device],
        _MAX_PARTIAL_SUMS[device] // (mr * THREADS_PER_TILE),
        tiles.steps // _MIN_STEPS_PER_THREAD,
    )
    return 1 << max(limit, _THREADS_PER_WORKGROUP // THREADS_PER_TILE).bit_length() - 1


def _split_k(tiles: Tiles, m: int, workgroups: int) -> int:
    """Return split-K: at most 32, 1024 workgroups in all, K / 2M, and 4 steps of K in each.

    There are `workgroups` without split-K. Partial sums are written and read once more; the weight
    has at least twice as many integers.
    """
    limit = min(
        _MAX_SPLIT_K,
        _SPLIT_K_WORKGROUPS // workgroups,
        tiles.steps // _MIN_STEPS_PER_SPLIT,
        tiles.k // (2 * m),
    )
    return next((n for n in range(limit, 1, -1) if tiles.steps % n == 0), 1)
