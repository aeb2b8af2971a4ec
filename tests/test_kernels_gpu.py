"""The blockwise GEMM kernel for GPUs, compared with float64 for every layout of weights.

Programs take the weight as an argument unless a test says otherwise, so that the compiler does not
evaluate it.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import subquant
from block_programs import arrays, exact_product, named, program, reference, with_constants
from devices import compile_for
from programs import LONG, lowered_text
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import ExecutionError, UsageError
from subquant.layouts import GgmlTensor
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.numerics.block_contraction import round_activations
from subquant.ops import linear, trace_function
from subquant.runtime import Executable

ON_VULKAN = pytest.mark.vulkan
ACTIVATIONS = pytest.mark.parametrize("activations", ["float", "int8"])

CASES = [
    (1, 256, 128, 32),
    (13, 256, 100, 64),  # ragged rows, and columns that fill no tile; a block of two steps
    (3, 512, 65, 64, "u8"),  # columns that fill no vector
    (33, 512, 500, 16, "u5"),  # four tiles a thread, two blocks a step, two planes
    (33, 256, 600, 32),  # three tiles a thread; some threads of the last workgroup have none
    (7, 1024, 40, 1024, "i8"),  # one block a column
    *(
        [
            (4, 512, 64, 32, "u2"),
            (2, 1024, 40, 128, "i3"),
            (4, 512, 64, 16, "i6"),
            (9, 512, 260, 16, "u3"),
            (1, 512, 30, 32, "u4"),
        ]
        if LONG
        else [(4, 512, 64, 32, "i6")]
    ),
]


REFERENCES = {"float": lambda *args, **named: exact_product(*args, **named)[0], "int8": reference}


@pytest.fixture
def matrix_device(vulkan):
    """A device with cooperative matrices: a GPU of NVIDIA, or llvmpipe of Mesa 26."""
    if not vulkan.matrix_target:
        pytest.skip("the device has no cooperative matrices")
    return vulkan


def check_close(result, expected, bound=3e-6):
    """Each product, or each block of them, adds a rounding of f32 or two."""
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() <= bound * np.abs(expected).max()


def check(case, device, activations, *, transposed=False, kernels="spirv", **parameters):
    inputs = arrays(*case, **parameters)
    text = program(*case, **parameters, transposed=transposed)
    executable = compile_for(text, device, activations=activations, kernels=kernels)
    arguments = [inputs[0], *(each.T.copy() for each in inputs[1:])] if transposed else inputs
    expected = REFERENCES[activations](block=case[3], **named(inputs, **parameters))
    check_close(executable.main(*arguments), expected)


@ON_VULKAN
@ACTIVATIONS
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.share(14)
def test_products_are_those_of_float64(case, activations, vulkan):
    check(case, vulkan, activations)


@ON_VULKAN
@ACTIVATIONS
@pytest.mark.share(4)
def test_cpu_devices_have_no_split_k(activations, vulkan):
    check((1, 256, 128, 32), vulkan, activations, kernels="spirv-cpu")


@ON_VULKAN
def test_the_device_says_which_kernels_it_has(vulkan):
    remarks = []
    compile_for(program(1, 1024, 256, 32), vulkan, explain=True, on_remark=remarks.append)
    kernels = "spirv-cpu" if vulkan.driver == "llvmpipe" else "spirv"
    assert [each.message for each in remarks] == [f"is computed by a kernel ({kernels})"]


@pytest.mark.long
@ON_VULKAN
def test_activations_of_nan_infinity_and_subnormals(vulkan):
    """A block of NaN or infinities is NaN, one of subnormals counts as zeros; as on CPUs."""
    x, q, scales = arrays(9, 128, 64, 32)
    x[1, 40], x[2, 99], x[3, 5], x[4, :32] = np.nan, np.inf, -np.inf, 1e-40
    x[5], x[6, 32:64], x[7, 3], x[8, 64:] = 0, 2.0**-101, 3e30, -0.0
    inputs, text = (x, q, scales), program(9, 128, 64, 32)
    result = compile_for(text, vulkan, activations="int8", kernels="spirv").main(*inputs)
    expected = subquant.compile(text, activations="int8").main(*inputs)
    assert np.isnan(expected[1:4]).all()
    assert np.isfinite(expected[4:]).all()
    bound = 3e-6 * np.abs(expected).max(1, keepdims=True, initial=0, where=np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    assert (np.abs(result - expected)[[0, *range(4, 9)]] <= bound[[0, *range(4, 9)]]).all()


SPLIT_K = {
    "one row": (program(1, 1024, 256, 32), 8),
    "as few steps as workgroups": (program(1, 352, 256, 32), 1),
    "steps that 8 does not divide": (program(1, 1120, 256, 32), 7),
    "many rows": (program(128, 1024, 256, 32), 4),
    "dynamic M": (program("?", 1024, 256, 32), 1),
}


@pytest.mark.parametrize("case", SPLIT_K)
@pytest.mark.parametrize("target", ["generic", "generic-cpu"])
def test_few_rows_have_split_k(case, target):
    """A large GPU needs more workgroups than a GEMV has tiles: they share K."""
    text, split_k = SPLIT_K[case]
    lowered = lowered_text(text, "vulkan", vulkan_target=target)
    match = re.search(r"@blockwise_gemm.*->\s*tensor<(?:\?|\d+)x(?:(\d+)x)?256xf32>", lowered)
    assert int(match[1] or 1) == (split_k if target == "generic" else 1)


@pytest.mark.parametrize("target", ["generic", "generic-cpu"])
def test_threads_of_a_workgroup_share_k_where_m_is_dynamic(target):
    lowered = lowered_text(program("?", 1024, 256, 32), "vulkan", vulkan_target=target)
    assert ("gpu.barrier" in lowered) == (target == "generic")


MATRIX_CASES = [
    (32, 1024, 96, 32),
    (20, 512, 80, 16, "u5"),  # rows and columns that fill no tile, two blocks a step, two planes
    (8, 1024, 40, 128, "u8"),  # blocks of four steps
]


@ON_VULKAN
@ACTIVATIONS
@pytest.mark.parametrize("case", MATRIX_CASES, ids=str)
def test_cooperative_matrices(case, activations, matrix_device):
    target = matrix_device.matrix_target
    text, inputs = program(*case), arrays(*case)
    executable = compile_for(text, matrix_device, activations=activations, vulkan_target=target)
    inputs[0][5] *= np.float32(2.0) ** np.linspace(-60, 60, case[1]).astype(np.float32)
    expected = REFERENCES[activations](*inputs, block=case[3])
    result = executable.main(*inputs)
    np.testing.assert_array_less(
        np.abs(result - expected).max(1), 3e-6 * np.abs(expected).max(1) + 1e-30
    )


@ON_VULKAN
@ACTIVATIONS
def test_infinities_and_nan_in_cooperative_matrices(activations, matrix_device):
    x, q, scales = arrays(16, 128, 64, 32)
    x[1, 40], x[2, 99], x[3, 5], x[4, :32], x[5] = np.nan, np.inf, -np.inf, 1e-40, 0
    text, target = program(16, 128, 64, 32), matrix_device.matrix_target
    options = {"activations": activations, "vulkan_target": target}
    result = compile_for(text, matrix_device, **options).main(x, q, scales)
    with np.errstate(invalid="ignore"):
        expected = subquant.compile(text, activations=activations).main(x, q, scales)
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))


@ACTIVATIONS
def test_shaders_of_cooperative_matrices_are_compiled(activations):
    """IREE accepts the operations, and the bindings' text of them."""
    text, options = program(128, 256, 256, 32), {"vulkan_target": "generic-matrix"}
    assert "subgroup_mma_compute" in lowered_text(text, "vulkan", **options)
    options = CompileOptions("vulkan", activations=activations, **options)
    assert b"SPV_KHR_cooperative_matrix" in compile_to_bytes(text, options)


@ON_VULKAN
def test_a_device_without_matrices_refuses_them(vulkan):
    target = "generic-matrix" if vulkan.subgroup != 32 else "generic-matrix-8"
    data = compile_to_bytes(
        program(1, 256, 128, 32), CompileOptions("vulkan", vulkan_target=target)
    )
    with pytest.raises(ExecutionError, match=f"--vulkan-target {vulkan.vulkan_target}"):
        Executable(data, vulkan)


@ON_VULKAN
@ACTIVATIONS
@pytest.mark.parametrize(("zeros", "offsets"), [(False, True), (True, False), (True, True)])
@pytest.mark.share(12)
def test_zero_points_and_offsets(zeros, offsets, activations, vulkan):
    case = (5, 256, 80, 32, "u5" if offsets else "i4")
    check(case, vulkan, activations, zeros=zeros, offsets=offsets, transposed=True)


@ON_VULKAN
@pytest.mark.parametrize(
    ("storage", "several"),
    [
        ("u5", 1),  # they change within a step, of two blocks
        ("i8", 4),  # one of each four steps
    ],
)
@pytest.mark.share(4)
def test_scales_that_are_quantized(storage, several, vulkan):
    rows, depth, columns, block = 9, 256, 80, 16
    count = depth // block
    x, q, _ = arrays(rows, depth, columns, block, storage)
    random = np.random.default_rng(1)
    codes = random.integers(-128, 128, (count, columns)).astype(np.int8)
    outer = random.uniform(0.5, 2, (count // several, columns)).astype(np.float32)
    scales = codes * np.repeat(outer.astype(np.float64), several, 0)
    kinds = f"tensor<{count}x{columns}xi8>", f"tensor<{len(outer)}x{columns}xf32>"
    reals = f"tensor<{count}x{columns}xf32>"
    text = program(rows, depth, columns, block, storage)
    text = text.replace(f"%s: {reals}", f"%codes: {kinds[0]}, %outer: {kinds[1]}")
    dequantize = f"""{{
  %s = "subquant.dequantize"(%codes, %outer) {{block_sizes = array<i64: {several}, 1>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}}
      : ({", ".join(kinds)}) -> {reals}
"""
    text = text.replace("{\n", dequantize, 1)
    result = compile_for(text, vulkan, kernels="spirv").main(x, q, codes, outer)
    check_close(result, exact_product(x, q, scales, block)[0])


@ON_VULKAN
@ACTIVATIONS
def test_dynamic_m(activations, vulkan):
    executable = compile_for(program("?", 256, 96, 32), vulkan, activations=activations)
    for rows in (1, 4, 5, 14):
        inputs = arrays(rows, 256, 96, 32, seed=rows)
        result = executable.main(*inputs)
        assert result.shape == (rows, 96)
        np.testing.assert_allclose(result, REFERENCES[activations](*inputs, 32), atol=3e-4)


@ON_VULKAN
@pytest.mark.parametrize("storage", ["u4", "u8", "i8"])
def test_sums_of_integers_are_exact_at_the_extremes(storage, vulkan):
    """All products have the greatest magnitude: the sums of a block are whole numbers in f32."""
    rows, depth, columns, block = 3, 512, 32, 128
    bits, signed = int(storage[1:]), storage[0] == "i"
    extreme = -(1 << (bits - 1)) if signed else (1 << bits) - 1
    x = np.full((rows, depth), 127, np.float32)
    q = np.full((depth, columns), extreme, np.int8 if signed else np.uint8)
    scales = np.ones((depth // block, columns), np.float32)
    text = program(rows, depth, columns, block, storage)
    executable = compile_for(text, vulkan, activations="int8")
    for activations in (x, -x):
        expected = np.full((rows, columns), float(activations[0, 0]) * extreme * depth)
        np.testing.assert_array_equal(executable.main(activations, q, scales), expected)


@ON_VULKAN
@ACTIVATIONS
@pytest.mark.parametrize("name", [*(sorted(BLOCK_TYPES) if LONG else ("IQ4_NL", "Q4_K", "Q6_K"))])
def test_types_of_ggml(name, activations, vulkan):
    """Constants, and scales that are quantized themselves."""
    import gguf

    rng, (count, depth) = np.random.default_rng(0), (72, 512)
    kind = gguf.GGMLQuantizationType[name]
    size, length = gguf.GGML_QUANT_SIZES[kind]
    reals = rng.standard_normal((count, depth)).astype(np.float32)
    try:
        stored = gguf.quants.quantize(reals, kind)
    except NotImplementedError:
        stored = rng.integers(0, 64, (count, depth // size * length), np.uint8)
    exact = gguf.quants.dequantize(stored, kind).astype(np.float64)
    x = rng.standard_normal((3, depth)).astype(np.float32)
    weight = GgmlTensor(stored.reshape(-1), name, (count, depth))
    module = trace_function(lambda operand: linear(operand, weight), x)
    options = CompileOptions("vulkan", activations=activations)
    result = Executable(compile_to_bytes(module, options), vulkan).main(x)
    bound = {"float": 3e-6, "int8": 0.02}[activations]
    check_close(result, x.astype(np.float64) @ exact.T, bound)
    if activations == "int8" and name in ("IQ4_NL", "Q4_K", "Q6_K"):
        rounded = round_activations(x, (1, size))  # K-quants: a scale for each superblock
        check_close(result, rounded.astype(np.float64) @ exact.T, 3e-6)


@ON_VULKAN
def test_constant_operands(vulkan):
    """IREE would evaluate a dispatch of constants on the CPU, which has no SPIR-V."""
    x, *weight = arrays(2, 64, 256, 32)
    text = with_constants(program(2, 64, 256, 32), *weight)
    argument = "%x: tensor<2x64xf32>"
    constant = f"  %x = arith.constant dense<{x.tolist()}> : tensor<2x64xf32>\n"
    text = text.replace(argument, "").replace("{\n", "{\n" + constant, 1)
    check_close(compile_for(text, vulkan).main(), exact_product(x, *weight, 32)[0])


# -- lowered programs ------------------------------------------------------------------------------


@ACTIVATIONS
@pytest.mark.parametrize("rows", [1, 128])
def test_the_weight_is_not_dequantized_to_memory(rows, activations):
    """No tensor or memref of floats has as many elements as the weight."""
    text = lowered_text(program(rows, 256, 512, 32), "vulkan", activations=activations)
    assert "@blockwise_gemm" in text
    floats = r"(?:tensor|memref)<((?:\d+x)+)(?:vector<4x)?(?:f16|bf16|f32|f64)"
    for extents in re.findall(floats, text):
        assert np.prod([int(n) for n in extents.split("x")[:-1]]) < 256 * 512


def remarks_of(text, **options):
    remarks = []
    options = CompileOptions("vulkan", explain=True, **options)
    compile_to_bytes(text, options, emit="mlir", on_remark=remarks.append)
    return [remark.message for remark in remarks]


def test_the_choice_is_explained_and_can_be_overridden():
    text = program(4, 256, 512, 32)
    assert "is computed by a kernel (spirv)" in remarks_of(text)
    lowered = lowered_text(text, "vulkan", kernels="none")
    assert "blockwise_gemm" not in lowered
    assert "linalg.generic" in lowered


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (program(4, 256, 512, 32).replace(":f32>", ":f64>").replace("xf32", "xf64"), "f64"),
        (program(4, 32, 16, 32), "it is small"),
        (program(1, 524288, 4, 32), "longer than the loops"),
    ],
    ids=["f64", "small", "long"],
)
def test_match_failures(text, reason):
    assert any(reason in message for message in remarks_of(text))


def test_kernels_of_other_targets_are_refused():
    text = program(4, 256, 512, 32)
    with pytest.raises(UsageError, match="'avx2' are those of CPUs; choose 'auto', 'spirv'"):
        lowered_text(text, "vulkan", kernels="avx2")
    with pytest.raises(UsageError, match="'spirv' are those of vulkan"):
        lowered_text(text, kernels="spirv")


def test_devices_without_bytes_keep_the_loops():
    text = lowered_text(program(4, 256, 512, 32), "vulkan", vulkan_target="generic-32bit")
    assert "blockwise_gemm" not in text
