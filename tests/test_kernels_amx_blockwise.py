"""Blockwise GEMMs with AMX tiles: results equal the specification's f32 operations to the bit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from amx_configuration import configurations_around
from amx_permission import results_without_permission
from block_programs import arrays, named, program, quantized_scales_program, with_constants
from devices import main_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import host_features
from subquant.core.cpu_features import simulated_host_cpu
from subquant.runtime import Device

needs_amx = pytest.mark.skipif(
    "amx-int8" not in (host_features() or ()), reason="this CPU has no AMX"
)
OPTIONS = {"activations": "int8", "kernels": "amx"}


def fma(left, right, addend):
    """``left * right + addend`` of f32, rounded once.

    The product is exact in f64. The sum is rounded to odd there, so that the rounding to f32 is
    that of the exact sum.
    """
    product, addend = left.astype(np.float64) * right, addend.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    is_even = total.view(np.int64) & 1 == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & is_even, odd, total).astype(np.float32)


def specified(x, q, scales, block, zeros=None, offsets=None):
    """The f32 operations of the kernels: offset products, then blocks, one after another."""
    rows, depth = x.shape
    blocks = x.reshape(rows, depth // block, block)
    row_scales = np.abs(blocks).max(2) * np.float32(1 / 127)
    integers = np.rint(blocks / row_scales[:, :, None]).astype(np.int64)
    accumulators = np.zeros((rows, q.shape[1]), np.float32)
    for number in range(depth // block if offsets is not None else 0):
        row_sums = (
            integers[:, number].sum(1).astype(np.float32)[:, None] * row_scales[:, number, None]
        )
        accumulators = fma(offsets[number], row_sums, accumulators)
    for number in range(depth // block):
        weight = q[number * block : (number + 1) * block].astype(np.int64)
        if zeros is not None:
            weight = weight - zeros[number]
        dots = (integers[:, number] @ weight).astype(np.float32)
        scale = row_scales[:, number, None]
        accumulators = fma(dots * scales[number], scale, accumulators)
    return accumulators


def check(case, **parameters):
    tensors = arrays(*case, **parameters)
    actual = main_of(program(*case, **parameters), **OPTIONS)(*tensors)
    expected = specified(block=case[3], **named(tensors, **parameters))
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


# A product with fewer than 2**14 weights has no kernel.
CASES = [
    # M, K, N, block, storage, zero points, offsets
    (9, 512, 40, 32, "u4", False, True),
    (16, 2048, 40, 32, "i4", False, False),  # rows of activations that would alias in the L1 cache
    (16, 256, 100, 64, "i4", True, False),
    (17, 1536, 48, 64, "u5", True, True),  # two tiles share a row
    (33, 896, 70, 32, "i6", False, True),  # seven blocks of a panel
    (128, 512, 64, 16, "u6", True, False),  # two blocks of a step, two units of a panel
    (150, 1312, 33, 32, "i4", False, True),  # two passes, a block of a panel
    (20, 512, 48, 128, "i3", True, False),  # two pieces of a block
    (16, 512, 48, 256, "i8", False, True),
    (24, 1024, 64, 16, "u2", True, False),
    (13, 480, 48, 32, "i8", False, False),  # nothing to unpack but the sign
    (14, 1056, 40, 96, "i8", True, False),  # a block is no multiple of the 64 k of a tile
]


@needs_amx
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "block", "storage", "zeros", "offsets"), CASES, ids=str
)
@pytest.mark.share(12)
def test_results_equal_the_specification_to_the_bit(
    rows, depth, columns, block, storage, zeros, offsets
):
    check((rows, depth, columns, block, storage), zeros=zeros, offsets=offsets)


def with_f16_scales(rows, depth, columns, block, storage):
    """The program with scales of f16."""
    text = program(rows, depth, columns, block, storage)
    return text.replace(
        f"tensor<{depth // block}x{columns}xf32>", f"tensor<{depth // block}x{columns}xf16>"
    )


@needs_amx
@pytest.mark.parametrize(
    "case", [(17, 512, 70, 32, "i4"), (20, 512, 48, 256, "i8"), (12, 1024, 40, 128, "u6")], ids=str
)
def test_scales_of_f16_take_no_conversion_of_integers(case):
    """The greatest dot products, of either sign, and small ones are exact."""
    x, q, scales = arrays(*case)
    scales = scales.astype(np.float16)
    x[0] = 127
    x[1] = -127
    q[:, 0], q[:, 1] = q.min(), q.max()
    expected = specified(x, q, scales.astype(np.float32), case[3])
    actual = main_of(with_f16_scales(*case), **OPTIONS)(x, q, scales)
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


@needs_amx
@pytest.mark.skipif(bool(simulated_host_cpu()), reason="this machine may have no AMX")
def test_the_thread_keeps_its_tile_configuration():
    tensors = arrays(9, 512, 40, 32)
    main = main_of(program(9, 512, 40, 32), Device("llvm-cpu", threads=1), **OPTIONS)
    main(*tensors)  # requests the permission
    before, after = configurations_around(lambda: main(*tensors))
    assert before.any()
    np.testing.assert_array_equal(after, before)


@needs_amx
def test_infinite_scales_give_infinities_and_nan():
    case = (17, 512, 70, 32, "i4")
    x, q, scales = arrays(*case)
    scales = scales.astype(np.float16)
    scales[3, 5], scales[7, 69], scales[8, 69] = np.inf, -np.inf, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        expected = specified(x, q, scales.astype(np.float32), 32)
    assert {*expected[:, 5]} == {-np.inf, np.inf}
    assert np.isnan(expected[:, 69]).any()
    actual = main_of(with_f16_scales(*case), **OPTIONS)(x, q, scales)
    np.testing.assert_array_equal(actual, expected)


@needs_amx
def test_integers_less_zero_points_that_exceed_a_byte_are_multiplied_without_tiles():
    check((16, 256, 80, 32, "u8"), zeros=True)


def superblock_sums(x, q, codes, outer, block, blocks):
    """The f32 operations where scales and offsets are integers times an f16 of a superblock."""
    rows, size = len(x), block * blocks
    grouped = x.reshape(rows, len(q) // size, size)
    row_scales = np.abs(grouped).max(2) * np.float32(1 / 127)
    integers = np.rint(grouped / row_scales[:, :, None]).astype(np.int64)
    factors, *offsets = (np.repeat(each.astype(np.int64), block, 0) for each in codes)
    products = (q.astype(np.int64) * factors).reshape(-1, size, q.shape[1])
    accumulators = np.zeros((rows, q.shape[1]), np.float32)
    for number, product in enumerate(products):
        scale, *offset_scale = (each[number].astype(np.float32) for each in outer)
        scaled = (integers[:, number] @ product).astype(np.float32) * scale
        for each in offsets:
            dots = integers[:, number] @ each[number * size : (number + 1) * size]
            scaled = fma(dots.astype(np.float32), np.tile(offset_scale[0], (rows, 1)), scaled)
        accumulators = fma(scaled, row_scales[:, number, None], accumulators)
    return accumulators


SUPERBLOCK_CASES = [
    # M, K, N, block, blocks, scales, storage, offsets
    (9, 512, 40, 16, 16, "u4", "u2", True),
    (17, 512, 40, 32, 8, "u6", "u4", True),
    (33, 1024, 70, 16, 16, "i8", "u6", False),  # an odd number of tiles, two of which share a row
    (128, 768, 48, 32, 8, "u6", "u5", True),  # superblocks are pipelined
    (150, 512, 33, 16, 16, "u4", "u2", True),  # two passes; products are bytes
    (256, 512, 33, 32, 4, "u6", "i4", False),  # two passes with an even number of tiles
    ("?", 512, 48, 32, 8, "i6", "u4", True),
]


@needs_amx
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("case", SUPERBLOCK_CASES, ids=str)
@pytest.mark.share(4)
def test_a_superblock_is_one_sum_of_integers(case, is_constant):
    m, depth, columns, block, blocks, inner, storage, has_offsets = case
    random = np.random.default_rng(5)

    def integers(name, *shape):
        low = -(1 << (int(name[1:]) - 1)) if name[0] == "i" else 0
        values = random.integers(low, low + (1 << int(name[1:])), shape)
        return values.astype(np.int8 if name[0] == "i" else np.uint8)

    q = integers(storage, depth, columns)
    codes = [integers(inner, depth // block, columns) for _ in range(1 + has_offsets)]
    outer = [
        random.uniform(-2, 2, (depth // block // blocks, columns)).astype(np.float16) for _ in codes
    ]
    text = quantized_scales_program(
        *(m, depth, columns, block, (blocks, blocks), inner, storage), offsets=has_offsets
    )
    tensors = [q, *codes, *outer]
    if is_constant:
        text, tensors = with_constants(text, *tensors), []
    main = main_of(text, **OPTIONS)
    for rows in (0, 16, 45, 129) if m == "?" else (m,):
        x = random.standard_normal((rows, depth)).astype(np.float32)
        actual = main(x, *tensors)
        np.testing.assert_array_equal(actual, superblock_sums(x, q, codes, outer, block, blocks))


@needs_amx
def test_dynamic_m_uses_tiles_from_16_rows_on():
    main = main_of(program("?", 256, 96, 32), **OPTIONS)
    for rows in (0, 1, 15, 16, 17, 45, 129):
        tensors = arrays(rows, 256, 96, 32, seed=rows)
        np.testing.assert_array_equal(main(*tensors), specified(*tensors, 32))


@needs_amx
def test_a_process_without_permission_computes_the_same(tmp_path):
    case = (40, 512, 70, 32)
    tensors = arrays(*case, zeros=True)
    compiled = compile_to_bytes(program(*case, zeros=True), CompileOptions(**OPTIONS))
    expected = specified(block=case[3], **named(tensors, zeros=True))
    for actual in results_without_permission(compiled, tensors, tmp_path):
        np.testing.assert_array_equal(actual, expected)


@needs_amx
def test_epilogue_is_applied_to_the_sums():
    case = (19, 256, 72, 32)
    text = program(*case).replace(
        "  return %y", "  %z = stablehlo.add %y, %y : tensor<19x72xf32>\n  return %z"
    )
    x, *weight = arrays(*case)
    actual = main_of(with_constants(text, *weight), **OPTIONS)(x)
    np.testing.assert_array_equal(actual, specified(x, *weight, 32) * 2)


def counted(case, folder, cpu="sapphirerapids"):
    """Return the count of each instruction of a program's kernels."""
    flag = f"--iree-hal-dump-executable-intermediates-to={folder}"
    options = CompileOptions(target_cpu=cpu, activations="int8", iree_flags=(flag,))
    compile_to_bytes(program(*case), options)
    [file] = folder.glob("*.s")
    return Counter(line.split()[0] for line in file.read_text().splitlines() if line.strip())


@pytest.mark.parametrize(
    ("rows", "cpu", "uses_tiles"),
    [(9, "sapphirerapids", True), (8, "sapphirerapids", False), (64, "znver4", False)],
)
def test_tiles_are_used_from_9_rows_on(rows, cpu, uses_tiles, tmp_path):
    actual = counted((rows, 512, 64, 32), tmp_path, cpu)
    assert actual["vpdpbusd"]
    assert bool(actual["tdpbssd"]) == bool(actual["syscall"]) == uses_tiles


@pytest.mark.parametrize(("rows", "instructions"), [(16, "amx"), (4, "avx512vnni")])
def test_remarks_name_the_instructions(rows, instructions):
    remarks = []
    options = CompileOptions(
        **OPTIONS, target_cpu="sapphirerapids", fuse_below_macs=0, explain=True
    )
    compile_to_bytes(program(rows, 512, 64, 32), options, emit="mlir", on_remark=remarks.append)
    messages = [each.message for each in remarks]
    assert f"is computed by a kernel ({instructions})" in messages
