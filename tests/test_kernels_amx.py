"""AMX kernels: exact in processes with and without permission for tiles.

Weights are arguments, so that the compiler cannot compute with them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter

import numpy as np
import pytest

import subquant
from amx_configuration import configurations_around
from amx_permission import results_without_permission
from integer_programs import convolution, drawn, padded_convolution, product
from programs import lowered_text
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import host_features, recorded_features
from subquant.core.cpu_features import simulated_host_cpu
from subquant.errors import UsageError
from subquant.kernels.conv_geometry import ConvGeometry
from subquant.kernels.isa.registry import fastest_instruction_set
from subquant.kernels.pack.k_runs import KRuns
from subquant.runtime import Device, Executable

needs_amx = pytest.mark.skipif(
    "amx-int8" not in (host_features() or ()), reason="this CPU has no AMX"
)


# -- integers -------------------------------------------------------------------------------------

WINDOWS = {
    "a line of tiles": ((1, 10, 34, 64), (3, 3, 64, 64), {}),
    "runs of two pieces": ((1, 9, 21, 32), (3, 3, 32, 40), {"padding": (1, 1)}),
    "runs that are read again": ((1, 9, 21, 36), (2, 3, 36, 17), {}),
    "runs of few integers": ((1, 13, 29, 3), (3, 3, 3, 24), {"strides": (2, 2)}),
    "one channel": ((1, 49, 10, 1), (10, 4, 1, 64), {"strides": (2, 2)}),
    "channels that are no words": ((2, 13, 19, 5), (2, 3, 5, 50), {"padding": (0, 2)}),
    "apart": ((2, 14, 12, 20), (3, 2, 20, 40), {"dilations": (2, 3), "padding": (2, 0)}),
    "odd lines": ((3, 7, 7, 64), (3, 3, 64, 96), {"padding": (1, 1)}),
    "steps of one position": ((2, 17, 9, 64), (1, 1, 64, 70), {"strides": (3, 2)}),
    "a weight that passes by": ((2, 12, 37, 64), (3, 3, 64, 90), {}),
    "one window": ((9, 4, 4, 40), (4, 4, 40, 100), {}),
}


@needs_amx
@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.share(8)
def test_convolutions_are_exact(case):
    x_shape, w_shape, options = WINDOWS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = convolution(x, w, **options)
    actual = subquant.compile(text, kernels="amx").main(x, w)
    np.testing.assert_array_equal(actual, expected)


AROUND = {
    # images x height x width x channels, window, padding (before and after), strides, dispatches
    "blocks of lines": ((2, 29, 38, 64), (3, 3, 64, 72), ((1, 1), (1, 1)), (2, 1), 1),
    "one line at a time": ((1, 9, 76, 66), (3, 3, 66, 16), ((1, 1), (1, 0)), (1, 2), 1),
    "all lines": ((3, 7, 7, 64), (3, 3, 64, 96), ((0, 2), (2, 0)), (1, 1), 1),
    "channels that are added": ((2, 21, 33, 3), (7, 7, 3, 24), ((3, 2), (2, 3)), (2, 2), 1),
    "lines that do not fit": ((1, 4, 110, 64), (3, 3, 64, 16), ((1, 1), (1, 1)), (1, 1), 2),
    "a large weight": ((1, 5, 8, 256), (3, 3, 256, 128), ((1, 1), (1, 1)), (1, 1), 2),
    "single positions": ((1, 40, 40, 64), (1, 1, 64, 32), ((1, 0), (0, 1)), (1, 1), 2),
}


@pytest.mark.parametrize("case", AROUND)
def test_what_is_around_pictures_is_put_in_by_the_kernel(case):
    x_shape, w_shape, padding, strides, dispatches = AROUND[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, _ = padded_convolution(x, w, padding, -7, strides)
    lowered = lowered_text(text, kernels="amx", target_cpu="sapphirerapids")
    assert "@amx_gemm" in lowered
    assert ("pad_copy" in lowered) == (dispatches == 2)


@needs_amx
@pytest.mark.parametrize("case", AROUND)
@pytest.mark.share(8)
def test_convolutions_with_padding_are_exact(case):
    x_shape, w_shape, padding, strides, _ = AROUND[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = padded_convolution(x, w, padding, -7, strides)
    actual = subquant.compile(text, kernels="amx").main(x, w)
    np.testing.assert_array_equal(actual, expected)


MATRICES = [
    (8, 256, 64), (15, 128, 33), (17, 64, 128), (33, 192, 16), (48, 68, 48), (70, 130, 100),
    (128, 1024, 96), (150, 500, 130), (256, 4, 64), (272, 64, 32),
]  # fmt: skip


@needs_amx
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "depth", "columns"), MATRICES)
@pytest.mark.share(14)
def test_matrices_are_exact(rows, depth, columns, threads):
    x, w = drawn(rows, depth), drawn(depth, columns, seed=1)
    executable = subquant.compile(product(rows, depth, columns), kernels="amx", threads=threads)
    np.testing.assert_array_equal(executable.main(x, w), x.astype(np.int32) @ w.astype(np.int32))


@needs_amx
@pytest.mark.skipif(bool(simulated_host_cpu()), reason="this machine may have no AMX")
def test_process_requests_tile_permission():
    """A process without permission computes the same numbers, without tiles."""
    x, w = drawn(16, 64), drawn(64, 32, seed=1)
    subquant.compile(product(16, 64, 32), kernels="amx").main(x, w)
    permitted = ctypes.c_uint64()
    status = ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(permitted))
    assert status == 0  # arch_prctl(ARCH_GET_XCOMP_PERM, ...)
    assert permitted.value >> 18 & 1


@needs_amx
@pytest.mark.skipif(bool(simulated_host_cpu()), reason="this machine may have no AMX")
def test_the_thread_keeps_its_tile_configuration():
    """llama.cpp configures the tiles of a thread once."""
    x, w = drawn(16, 64), drawn(64, 32, seed=1)
    main = subquant.compile(product(16, 64, 32), kernels="amx", threads=1).main
    main(x, w)  # requests the permission
    before, after = configurations_around(lambda: main(x, w))
    assert before.any()
    np.testing.assert_array_equal(after, before)


@needs_amx
def test_nothing_saturates_at_the_extremes():
    """All products have the greatest magnitude, of either sign."""
    rows, depth, columns = 40, 8192, 48
    executable = subquant.compile(product(rows, depth, columns), kernels="amx")
    for left, right in ((-128, -128), (-128, 127), (127, 127)):
        x, w = np.full((rows, depth), left, np.int8), np.full((depth, columns), right, np.int8)
        assert (executable.main(x, w) == depth * left * right).all()


@needs_amx
def test_operands_that_are_computed_lie_anywhere_in_memory():
    rows, depth, columns = 24, 100, 40
    text = product(rows, depth, columns).replace(
        "%y = stablehlo.dot_general %x,",
        f"%z = stablehlo.not %x : tensor<{rows}x{depth}xi8>\n  %y = stablehlo.dot_general %z,",
    )
    x, w = drawn(rows, depth), drawn(depth, columns, seed=1)
    actual = subquant.compile(text, kernels="amx").main(x, w)
    np.testing.assert_array_equal(actual, (~x).astype(np.int32) @ w.astype(np.int32))


# -- where tiles are not permitted ----------------------------------------------------------------


@needs_amx
@pytest.mark.parametrize("case", ["runs that are read again", "apart", "odd lines"])
@pytest.mark.share(6)
def test_a_process_that_may_not_use_tiles_computes_without(case, tmp_path):
    x_shape, w_shape, options = WINDOWS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = convolution(x, w, **options)
    program = compile_to_bytes(text, CompileOptions(kernels="amx"))
    for actual in results_without_permission(program, [x, w], tmp_path):
        np.testing.assert_array_equal(actual, expected)
    actual = Executable(program, Device("llvm-cpu", threads=1))["main"](x, w)
    np.testing.assert_array_equal(actual, expected)


# -- code -----------------------------------------------------------------------------------------


def counted(text, folder, cpu="sapphirerapids"):
    """Return the count of each instruction in the kernel of a program."""
    flag = f"--iree-hal-dump-executable-intermediates-to={folder}"
    compile_to_bytes(text, CompileOptions(target_cpu=cpu, iree_flags=(flag,)))
    [file] = folder.glob("*.s")
    return Counter(line.split()[0] for line in file.read_text().splitlines() if line.strip())


@pytest.mark.long
def test_a_tile_is_multiplied_as_often_as_registers_allow(tmp_path):
    actual = counted(product(64, 256, 96), tmp_path)
    assert actual["tdpbssd"] == 4
    assert actual["tileloadd"] == 4  # two of the weight, two of windows
    assert actual["tilezero"] == actual["tilestored"] == 4
    assert actual["ldtilecfg"] == 2 * actual["sttilecfg"] == 2 * actual["syscall"] == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "passing"),
    [
        (128, 512, 2048, 2),  # the largest that stays in the second cache
        (128, 512, 2080, 0),
        (64, 256, 2048, 0),  # all rows stay beside a tile
        (128, 256, 96, 0),  # the weight stays, too
        (64, 2048, 64, 0),  # 32 rows do not
        (32, 1024, 64, 0),  # each tile is read once
    ],
)
@pytest.mark.share(12)
def test_a_weight_passes_by_rows_that_stay_in_the_first_cache(
    rows, depth, columns, passing, tmp_path
):
    actual = counted(product(rows, depth, columns), tmp_path)
    assert actual["tileloaddt1"] == passing
    assert actual["tileloadd"] + actual["tileloaddt1"] == actual["tdpbssd"] == 4


def test_few_rows_are_multiplied_without_tiles(tmp_path):
    weight = np.ones((512, 96), np.int8)
    actual = counted(product(7, 512, 96, constant=weight), tmp_path)
    assert actual["vpdpbusd"]
    assert not actual["tdpbssd"] + actual["syscall"]


def test_a_cpu_without_tiles_gets_no_tiles(tmp_path):
    actual = counted(product(128, 256, 96), tmp_path, "znver4")
    assert actual["vpdpbusd"]
    assert not actual["tdpbssd"] + actual["syscall"]


def test_tiles_are_chosen_and_recorded():
    vectors = ["avx512f", "avx512bw", "avx512dq", "avx512vnni"]
    assert fastest_instruction_set([*vectors, "amx-int8"]).name == "amx"
    assert fastest_instruction_set(vectors).name == "avx512vnni"
    recorded = recorded_features(CompileOptions(target_cpu="sapphirerapids"))
    assert {"amx-tile", "amx-int8"} <= set(recorded.split(","))
    options = CompileOptions(kernels="amx", target_cpu="znver4")
    with pytest.raises(UsageError, match="kernels 'amx' need amx-int8, which the CPU 'znver4' "):
        compile_to_bytes(product(128, 256, 96), options)


# -- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "taps", "length", "pieces", "piece"),
    [
        (64, ((3, 30), (3, 1)), 192, 3, 64),
        (32, ((3, 30), (3, 1)), 96, 2, 48),
        (36, ((2, 30), (3, 1)), 108, 2, 56),
        (4, ((5, 1),), 20, 1, 20),
        (72, ((3, 2),), 72, 2, 36),
        (100, (), 100, 2, 52),
    ],
)
def test_pieces_read_each_multiplicand_once(channels, taps, length, pieces, piece):
    """The loaded pieces times the packed weight are the sum over all taps."""
    windows = ConvGeometry(1, 1, 1, 200, 200, 0, 1, taps)
    runs = KRuns(windows, channels)
    assert (runs.length, runs.pieces, runs.piece) == (length, pieces, piece)
    x, w = drawn(200 * channels), drawn(3, windows.tap_count * channels, seed=1)
    starts = np.zeros(1, np.int64)
    for count, apart in runs.outer:
        starts = (starts[:, None] + np.arange(count) * apart).reshape(-1)
    offsets = np.minimum(np.arange(pieces) * piece, length - piece)
    read = x[(starts[:, None, None] + offsets[:, None] + np.arange(piece)).reshape(-1)]
    axes = [range(0, count * distance, distance) for count, distance in windows.taps]
    pixels = [sum(offsets) for offsets in itertools.product(*axes)]
    expected = w.astype(int) @ x.reshape(200, channels)[pixels].reshape(-1)
    np.testing.assert_array_equal(runs.pack(w).astype(int) @ read, expected)
