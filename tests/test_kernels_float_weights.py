"""Kernels of weights of floats: decoded exactly, and summed in the order of K.

References are sums in float64, and where every product and sum is exact in f32, those numbers.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from block_programs import check_sum, tensor
from devices import main_of
from instruction_sets import EVERY, SOME
from programs import lowered_text
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.formats.irpa import Archive
from subquant.formats.irpa_writer import create_archive
from subquant.layouts import (
    BlockScaledFloat8Layout,
    BlockScaledI4Layout,
    LookupBlockScaledLayout,
    PlanarQuantizedTensor,
)
from subquant.layouts.activations import ActivationQuantization
from subquant.numerics.small_floats import FLOAT8_FORMATS
from subquant.ops import linear
from subquant.ops.activations import quantize_activations
from subquant.runtime import Executable
from test_packed_parameters import DEPTH, compiled, plain
from test_packed_parameters import program as program_of_tensors

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def int4_with_bf16_scales(shape=(100, 256), block=32):
    random = np.random.default_rng(4)
    blocks = (shape[0], shape[1] // block)
    planes = {
        "d": random.uniform(0.5, 2, (*blocks, 1)).astype(ml_dtypes.bfloat16),
        "qs": random.integers(0, 256, (*blocks, block // 2)).astype(np.uint8),
    }
    return PlanarQuantizedTensor(BlockScaledI4Layout(shape, planes, {"signed": False}), "int4")


def program(rows, weight, element, *, is_transposed=False):
    """A product of f32 rows with a constant weight of floats, ``N x K``."""
    columns, depth = weight.shape
    stored = weight.T if is_transposed else weight
    bits = np.ascontiguousarray(stored).view(np.uint16).tobytes().hex().upper()
    shape = "x".join(map(str, stored.shape))
    x, y = f"tensor<{rows}x{depth}xf32>", f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%x: {x}) -> {y} {{
  %c = arith.constant dense<"0x{bits}"> : tensor<{shape}x{element}>
  %w = stablehlo.convert %c : (tensor<{shape}x{element}>) -> tensor<{shape}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [{0 if is_transposed else 1}]
      : ({x}, tensor<{shape}xf32>) -> {y}
  return %y : {y}
}}"""


CASES = [
    (1, 640, 200),  # tiles that are read side by side, and a ragged one
    (5, 512, 64),
    (37, 256, 100),
    (13, 333, 70),  # K is odd
]


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_with_16_bit_floats(case, element, instructions):
    rows, depth, columns = case
    random = np.random.default_rng(0)
    weight = random.standard_normal((columns, depth)).astype(DTYPES[element])
    text = program(rows, weight, element, is_transposed=rows == 5)
    assert "@blockwise_gemm" in lowered_text(text, kernels=instructions)
    x = random.standard_normal((rows, depth)).astype(np.float32)
    check_sum(main_of(text, kernels=instructions)(x), x, weight, "mk,nk->mn")


@pytest.mark.parametrize("instructions", ["avx512vnni", "avx512vnni-amd"])
def test_16_bit_floats_are_prefetched_but_on_amd(instructions, tmp_path):
    weight = np.ones((64, 512), ml_dtypes.bfloat16)
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    options = CompileOptions(kernels=instructions, target_cpu="znver4", iree_flags=(flag,))
    compile_to_bytes(program(1, weight, "bf16"), options)
    [file] = tmp_path.glob("*.s")
    assert ("prefetcht0" in file.read_text()) == (instructions == "avx512vnni")


@pytest.mark.long
@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("element", DTYPES)
def test_every_16_bit_float_is_decoded_exactly(element, instructions):
    """The activations are unit vectors: a result is an element, and zeros times finite ones."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[element])
    codes = codes[np.isfinite(codes.astype(np.float32))]
    weight = codes[: codes.size // 256 * 256].reshape(-1, 256)
    text = program(256, weight, element)
    actual = main_of(text, kernels=instructions)(np.eye(256, dtype=np.float32))
    # Threads of IREE flush subnormal numbers of f32 to zero.
    expected = weight.astype(np.float32).T
    is_normal = np.abs(expected) >= np.finfo(np.float32).tiny
    np.testing.assert_array_equal(actual[is_normal], expected[is_normal])
    assert is_normal.mean() > 0.98


def parameter_of(name, shape, element):
    """A global that is a parameter of the scope ``model``."""
    type_ = tensor(shape, element)
    return f"""
"util.global"() {{sym_name = "{name}", sym_visibility = "private", type = {type_},
    initial_value = #flow.parameter.named<"model"::"{name}"> : {type_}}} : () -> ()"""


@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("element", DTYPES)
def test_rows_of_a_table_are_gathered_from_packed_tiles(element, instructions, cpu, tmp_path):
    random = np.random.default_rng(1)
    table = random.standard_normal((300, 72)).astype(DTYPES[element])
    with create_archive(tmp_path / "table.irpa") as archive:
        archive.add_tensor("table", table)
    bits, reals = tensor((300, 72), element), tensor((300, 72), "f32")
    text = f"""{parameter_of("table", (300, 72), element)}
func.func @rows(%i: tensor<2x3xi32>) -> tensor<2x3x72xf32> {{
  %w = "util.global.load"() {{global = @table}} : () -> {bits}
  %r = "stablehlo.gather"(%w, %i) {{dimension_numbers = #stablehlo.gather<offset_dims = [2],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>,
      slice_sizes = array<i64: 1, 72>}} : ({bits}, tensor<2x3xi32>) -> tensor<2x3x72x{element}>
  %f = stablehlo.convert %r : (tensor<2x3x72x{element}>) -> tensor<2x3x72xf32>
  return %f : tensor<2x3x72xf32>
}}
func.func @logits(%x: tensor<1x72xf32>) -> tensor<1x300xf32> {{
  %w = "util.global.load"() {{global = @table}} : () -> {bits}
  %f = stablehlo.convert %w : ({bits}) -> {reals}
  %y = stablehlo.dot_general %x, %f, contracting_dims = [1] x [1]
      : (tensor<1x72xf32>, {reals}) -> tensor<1x300xf32>
  return %y : tensor<1x300xf32>
}}"""
    data, packed, lowered = compiled(text, tmp_path / "table.irpa", tmp_path, kernels=instructions)
    assert "@gather_rows" in lowered
    [name] = Archive(packed)  # the table is in memory once, in two bytes an element
    assert name.startswith("table@")
    executable = Executable(data, cpu, {"model": packed})
    indices = np.array([[0, 299, 17], [-3, 1000, 64]], np.int32)
    expected = table.astype(np.float32)[np.clip(indices, 0, 299)]
    np.testing.assert_array_equal(executable["rows"](indices), expected)
    x = random.standard_normal((1, 72)).astype(np.float32)
    check_sum(executable["logits"](x), x, table, "mk,nk->mn")


def test_other_weights_of_floats_have_no_kernel():
    """Weights that are arguments would be packed at each call."""
    for weight, element in [("%a", "bf16"), ("%c", "f32")]:
        convert = f"stablehlo.convert {weight} : (tensor<256x128x{element}>) -> tensor<256x128xf32>"
        text = f"""
func.func @main(%x: tensor<4x128xf32>, %a: tensor<256x128xbf16>) -> tensor<4x256xf32> {{
  %c = arith.constant dense<1.0> : tensor<256x128xf32>
  %w = {convert}
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<4x128xf32>, tensor<256x128xf32>) -> tensor<4x256xf32>
  return %y : tensor<4x256xf32>
}}"""
        assert "@blockwise_gemm" not in lowered_text(text)


def float8(form, block, scale_type=np.float32, shape=(100, 256)):
    """A weight of 8-bit floats with all codes but those of NaN and infinities."""
    random = np.random.default_rng(0)
    codes = np.arange(256, dtype=np.uint8)
    finite = codes[np.isfinite(FLOAT8_FORMATS[form].table)]
    grid = [-(-n // size) for n, size in zip(shape, block, strict=True)]
    planes = {
        "d": random.uniform(0.5, 2, grid).astype(scale_type),
        "qs": random.choice(finite, shape),
    }
    metadata = {"block_shape": list(block), "format": form}
    layout = BlockScaledFloat8Layout(shape, planes, metadata)
    return PlanarQuantizedTensor(layout, f"{form}.{'x'.join(map(str, block))}")


def levels(block, scale_type=np.float32, shape=(100, 256)):
    """A weight of indices of the levels of NF4, of which one is 0."""
    random = np.random.default_rng(2)
    blocks = (shape[0], shape[1] // block)
    planes = {
        "d": random.uniform(0.5, 2, (*blocks, 1)).astype(scale_type),
        "qs": random.integers(0, 256, (*blocks, block // 2)).astype(np.uint8),
    }
    table = [*np.linspace(-1, 0, 8), *np.linspace(0.0796, 1, 8)]
    metadata = {"table": [float(np.float32(level)) for level in table]}
    return PlanarQuantizedTensor(LookupBlockScaledLayout(shape, planes, metadata), f"nf4.{block}")


SCALED = [
    *[float8(form, (100, 256)) for form in ("f8E4M3FN", "f8E5M2")],  # a scale for the tensor
    *[float8(form, (1, 256)) for form in ("f8E4M3FN", "f8E5M2")],
    *[float8(form, (50, 64)) for form in ("f8E4M3FN", "f8E5M2")],
    float8("f8E4M3FN", (1, 32), ml_dtypes.bfloat16),
    levels(64),
    levels(32, np.float16),
    int4_with_bf16_scales(),
]


@pytest.mark.long
@pytest.mark.share(8)
@pytest.mark.parametrize("instructions", SOME)
@pytest.mark.parametrize("rows", [1, 7])
def test_8_bit_floats_and_levels(rows, instructions, cpu, tmp_path):
    module = program_of_tensors(SCALED, types=[([rows, 256], np.float32)])
    data, packed, lowered = compiled(
        module, plain(SCALED, tmp_path), tmp_path, kernels=instructions
    )
    for tensor_ in SCALED:
        assert f'@"{tensor_.name}:qs"' not in lowered  # no reader of the original is left
    archive = Archive(packed)
    bytes_of = {name.partition(":")[0]: archive[name].length for name in archive}
    assert set(bytes_of) == {tensor_.name for tensor_ in SCALED}
    per_column = 256 // 2 + 256 // 32 * 2  # scales of two bytes stay
    assert bytes_of["int4"] % per_column == 0
    assert bytes_of["nf4.32"] % per_column == 0
    executable = Executable(data, cpu, {"model": packed})
    x = np.random.default_rng(3).standard_normal((rows, 256)).astype(np.float32)
    for tensor_ in SCALED:
        check_sum(executable[tensor_.name](x), x, tensor_.unpack().dequant(), "mk,nk->mn")


@pytest.mark.long
def test_scales_in_another_order_than_their_blocks(cpu, tmp_path):
    """Scales ``[block, column]`` have no kernel, which reads ``[column, block]``."""
    weight = float8("f8E4M3FN", (1, 32), shape=(32, 1024))
    module = str(program_of_tensors([weight], types=[([1, 1024], np.float32)]))
    spread = "dims = [0, 2] : (tensor<32x32xf32>)"
    assert module.count(spread) == 1
    module = module.replace(spread, spread.replace("0, 2", "2, 0"))
    data, packed, _ = compiled(module, plain([weight], tmp_path), tmp_path)
    x = np.random.default_rng(3).standard_normal((1, 1024)).astype(np.float32)
    planes = {**weight.layout.planes, "d": np.ascontiguousarray(weight.layout.planes["d"].T)}
    layout = BlockScaledFloat8Layout((32, 1024), planes, weight.layout.metadata)
    expected = PlanarQuantizedTensor(layout, "transposed").unpack().dequant()
    result = Executable(data, cpu, {"model": packed})[weight.name](x)
    check_sum(result, x, expected, "mk,nk->mn")


@pytest.mark.long
@pytest.mark.parametrize("instructions", EVERY)
def test_every_8_bit_float_is_decoded_exactly(instructions, cpu, tmp_path):
    """One activation is 1, so that a result is an element; NaN and infinities make others NaN."""
    tensors = []
    for form in ("f8E4M3FN", "f8E5M2"):
        codes = np.zeros((256, 64), np.uint8)
        codes[:, 5] = codes[:, 36] = np.arange(256)
        planes = {"d": np.ones((1, 1), np.float32), "qs": codes}
        metadata = {"block_shape": [256, 64], "format": form}
        layout = BlockScaledFloat8Layout((256, 64), planes, metadata)
        tensors.append(PlanarQuantizedTensor(layout, form))
    module = program_of_tensors(tensors, types=[([2, 64], np.float32)])
    data, packed, lowered = compiled(
        module, plain(tensors, tmp_path), tmp_path, kernels=instructions
    )
    assert len(re.findall(r"entry_points = \[@blockwise_gemm", lowered)) == 2
    executable = Executable(data, cpu, {"model": packed})
    x = np.zeros((2, 64), np.float32)
    x[0, 5] = x[1, 36] = 1
    for tensor_ in tensors:
        table = FLOAT8_FORMATS[tensor_.name].table
        expected = np.where(np.isinf(table), np.nan, table)  # times 0
        np.testing.assert_array_equal(executable[tensor_.name](x), [expected, expected])


def float4(*, has_divisor):
    """NVFP4: scales of f16 and their divisor, or the quotients as f32."""
    random, grid = np.random.default_rng(8), (64, DEPTH // 16)
    scales, divisor = random.integers(1, 448, (*grid, 1)).astype(np.float16), np.float32(1234.5)
    planes = {
        "d": scales if has_divisor else scales.astype(np.float32) / divisor,
        "qs": random.integers(0, 256, (*grid, 8), np.uint8),
        "divisor": np.array(divisor) if has_divisor else None,
    }
    table = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
    layout = LookupBlockScaledLayout((64, DEPTH), planes, {"table": table})
    return PlanarQuantizedTensor(layout, "float4.weight")


@pytest.mark.share(12)
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("activations", ["int8", "float", "4-bit floats"])
@pytest.mark.parametrize("instructions", SOME)
def test_kernels_divide_scales(instructions, activations, rows, cpu, tmp_path):
    """The archive has scales of 16 bits, and a divisor for each column."""
    settings = ActivationQuantization(
        "f4E2M1FN", "group", 16, scale_type="f8E4M3FN", global_scale=300.0
    )

    def layer(x, weight):
        is_rounded = activations == "4-bit floats"
        return linear(quantize_activations(x, settings) if is_rounded else x, weight)

    x = np.random.default_rng(3).standard_normal((rows, DEPTH)).astype(np.float32)
    results, sizes = [], []
    for has_divisor in (True, False):
        tensor, remarks = float4(has_divisor=has_divisor), []
        archive, weights = tmp_path / "packed.irpa", {"model": plain([tensor], tmp_path)}
        is_int8 = activations == "int8"
        options = CompileOptions(
            kernels=instructions, activations="int8" if is_int8 else "float", explain=True
        )
        data = compile_to_bytes(
            program_of_tensors([tensor], layer, [([rows, DEPTH], np.float32)]),
            options,
            parameters=archive,
            weights=weights,
            on_remark=remarks.append,
        )
        messages = [remark.message for remark in remarks if "kernel" in remark.message]
        assert any(message.startswith("is computed by a kernel") for message in messages), messages
        results.append(Executable(data, cpu, {"model": archive})["float4"](x))
        sizes.append(sum(entry.length for entry in Archive(archive).values()))
    np.testing.assert_array_equal(*results)
    assert sizes[1] - sizes[0] == 64 * (DEPTH // 16 * 2 - 4)
    if activations == "float":
        check_sum(results[0], x, tensor.unpack().dequant(), "mk,nk->mn")
