"""`subquant.block_contraction` beside its meaning in NumPy, and weights in packed storage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from block_programs import check_sum, program, tensor
from devices import ON_DEVICES, main_of
from programs import one_operation, run_passes
from subquant.compiler.compilation import compile_to_bytes
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.block_contraction import activation_blocks, terms_of
from subquant.formats.irpa_writer import create_archive
from subquant.numerics.block_contraction import contract_blocks
from subquant.numerics.casts import dequantize_blocks
from subquant.numerics.packed_integers import PLANE_BITS, pack_planes
from subquant.numerics.parameters import ExpressedType, StorageType
from subquant.runtime import Device, Executable
from subquant.transforms.base import walk


def cases_on_devices(cases: Iterable[str], *vulkan_cases: str) -> pytest.MarkDecorator:
    """Every case on the CPU, and some on Vulkan."""
    on_vulkan = [pytest.param(case, "vulkan", marks=pytest.mark.vulkan) for case in vulkan_cases]
    pairs = [*((case, "cpu") for case in cases), *on_vulkan]
    return pytest.mark.parametrize(("case", "device_name"), pairs)


ROWS = ("(m, n, k)", ("(m, k)", "(n, k)", "(m, n)"))
AFFINE = {
    "two batches": (
        "(b, m, n, k)", ("(b, m, k)", "(b, k, n)", "(n, b, m)"),
        (2, 3, 5, 8), (1, 4, 1), ("f32", "f32", "f16"),
    ),
    "scalar rows": (
        "(n, k, l)", ("(l, k)", "(k, n, l)", "(n)"), (6, 4, 6), (2, 3, 6), ("f32", "f16", "f32"),
    ),
    "half": (*ROWS, (2, 3, 16), (1, 8), ("f16",) * 3),
    "double": ("(m, n, k)", ("(k, m)", "(n, k)", "(n, m)"), (2, 4, 6), (2, 6), ("f64",) * 3),
    "window": (
        "(n, y, x, f, i, j, c)", ("(n, c, y * 2 + i, x + j * 3)", "(f, c, i, j)", "(n, f, y, x)"),
        (2, 2, 3, 4, 3, 2, 6), (2, 3, 1, 1), ("f32",) * 3,
    ),
}  # fmt: skip

PACKED = {
    "rows": (*ROWS, (3, 5, 32), (1, 16), ("f32", "f16", "f32")),
    "whole rows": (*ROWS, (3, 5, 24), (1, 24), ("f32",) * 3),
    "elements": ("(n, k)", ("(k)", "(n, k)", "(n)"), (3, 16), (1, 1), ("f32",) * 3),
    "columns": (
        "(m, n, k)", ("(k, m)", "(k, n)", "(m, n)"), (3, 16, 6), (3, 1), ("f32", "f32", "f16"),
    ),
    "columns in blocks": (
        "(b, m, n, k)", ("(m, b, k)", "(b, k, n)", "(n, m, b)"),
        (2, 3, 16, 6), (1, 2, 8), ("f32",) * 3,
    ),
    "features of a window": (
        "(n, y, f, i, c)", ("(n, y * 2 + i, c)", "(f, i, c)", "(n, f, y)"),
        (2, 3, 4, 3, 16), (2, 1, 8), ("f32",) * 3,
    ),
    "positions of a window": (
        "(y, f, c, i)", ("(y + i * 2, c)", "(f, c, i)", "(y, f)"),
        (5, 4, 6, 8), (2, 3, 1), ("f32",) * 3,
    ),
}  # fmt: skip
"""Their last axis of storage fills bytes whatever the integers' bits are."""


@cases_on_devices(AFFINE, "half", "window")
@pytest.mark.parametrize("parameters_there", ["", "z", "o", "zo"])
@pytest.mark.share(12)
def test_the_operation_beside_its_meaning(case: str, device: Device, parameters_there: str) -> None:
    """Any orders of axes, with zero points and offsets or without."""
    check_operation(AFFINE[case], device, parameters_there, StorageType.parse("u4"))


@cases_on_devices(PACKED, "rows", "columns")
@pytest.mark.parametrize("storage", ["u2", "i3", "i4", "u5", "i6", "u8<0:63>"])
@pytest.mark.share(12)
def test_planes_beside_their_meaning(case: str, device: Device, storage: str) -> None:
    """Integers in the bytes of planes, signed and unsigned."""
    type_ = StorageType.parse(storage)
    planes = PLANE_BITS[6 if type_.width == 8 else type_.width]
    there = "zo" if type_.width % 2 else ""
    check_operation(PACKED[case], device, there, type_, planes=planes)


@cases_on_devices((*PACKED, *AFFINE), "rows", "window")
@pytest.mark.share(6)
def test_activations_of_8_bits_beside_their_meaning(case: str, device: Device) -> None:
    """One scale for the elements that one scale of the weight multiplies."""
    planes = (4,) if case in PACKED else None
    form, type_ = (PACKED | AFFINE)[case], StorageType.parse("u4")
    check_operation(form, device, "o", type_, planes=planes, activations="int8")


SUPERBLOCKS = {
    "rows": (*ROWS, (3, 5, 64), (1, 8), ("f32", "f16", "f32")),
    "all of a row": (*ROWS, (3, 5, 32), (1, 8), ("f32", "f16", "f32")),
    "columns": (
        "(m, n, k)", ("(k, m)", "(k, n)", "(m, n)"), (3, 16, 64), (8, 1), ("f32", "f32", "f16"),
    ),
}  # fmt: skip


@cases_on_devices(SUPERBLOCKS, "rows", "columns")
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.share(3)
def test_activations_of_8_bits_in_blocks_of_their_own(
    case: str, device: Device, is_packed: bool
) -> None:
    """One scale for several blocks of the weight."""
    form, planes = SUPERBLOCKS[case], (4,) if is_packed else None
    sizes = tuple(size * 4 if size > 1 else 1 for size in form[3])
    check_operation(
        *(form, device, "o", StorageType.parse("u4")),
        planes=planes, activations="int8", activation_sizes=sizes,
    )  # fmt: skip


def check_operation(
    form: Any,
    device: Device,
    parameters_there: str,
    storage: StorageType,
    *,
    planes: tuple[int, ...] | None = None,
    activations: str | None = None,
    activation_sizes: tuple[int, ...] | None = None,
) -> None:
    """Run one operation, compiled, beside `contract_blocks`."""
    loops, results, extents, blocks, types = form
    maps = [f"affine_map<{loops} -> {result}>" for result in results]
    with create_context():
        indices = [terms_of(ir.Attribute.parse(map_).value) or [] for map_ in maps]
    shapes = [
        [1 + sum((extents[loop] - 1) * factor for loop, factor in axis) for axis in axes]
        for axes in indices
    ]
    grid = [n // b for n, b in zip(shapes[1], blocks, strict=True)]
    real, scale, offset = types
    rng = np.random.default_rng(11)
    q = rng.integers(storage.minimum, storage.maximum + 1, shapes[1])
    word = f"i{storage.width}"
    arguments: dict[str, tuple[str, np.ndarray]] = {
        "x": (tensor(shapes[0], real), rng.standard_normal(shapes[0])),
        "q": (tensor(shapes[1], word), q),
        "s": (tensor(grid, scale), rng.uniform(0.1, 1, grid)),
    }
    if "z" in parameters_there:
        z = rng.integers(storage.minimum, storage.maximum + 1, grid)
        arguments["z"] = (tensor(grid, word), z)
    if "o" in parameters_there:
        arguments["o"] = (tensor(grid, offset), rng.standard_normal(grid))
    if planes is not None:
        for name, plane in zip("qh", pack_planes(q.astype(np.int8), planes), strict=False):
            arguments[name] = (tensor(plane.shape, "i8"), plane.view(np.int8))
    dtypes = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    arrays = {
        name: value.astype(dtypes.get(re.findall(r"[fi]\d+", type_)[-1], np.int8))
        for name, (type_, value) in arguments.items()
    }
    there = [int(name in arguments) for name in "xqszoh"]
    out = tensor(shapes[2], real)
    types = ", ".join(type_ for type_, _ in arguments.values())
    more = f"plane_bits = array<i64: {', '.join(map(str, planes))}>, " if planes else ""
    more += f'activation_type = "{activations}", ' if activations else ""
    if activation_sizes is not None:
        listed = ", ".join(map(str, activation_sizes))
        more += f"activation_block_sizes = array<i64: {listed}>, "
    parameters = ", ".join(f"%{name}: {type_}" for name, (type_, _) in arguments.items())
    text = f"""
func.func @main({parameters}) -> {out} {{
  %y = "subquant.block_contraction"({", ".join(f"%{name}" for name in arguments)})
      {{block_sizes = array<i64: {", ".join(map(str, blocks))}>,
       indexing_maps = [{", ".join(maps)}], {more}
       operandSegmentSizes = array<i32: {", ".join(map(str, there))}>,
       quantized_type = !quant.any<{storage}:{real}>}} : ({types}) -> {out}
  return %y : {out}
}}
"""
    got = main_of(text, device)(*arrays.values())
    expressed = ExpressedType(real)
    z, o = arguments["z"][1] if "z" in arguments else None, arrays.get("o")
    accumulators = None
    if activations is not None:
        result_loops = {loop for axis in indices[2] for loop, _ in axis}
        summed = set(range(len(extents))) - result_loops
        accumulators = activation_blocks(indices, summed, activation_sizes or blocks, shapes[1])
    expected = contract_blocks(
        arrays["x"], q, arrays["s"], indices, extents, blocks, expressed, z, o, accumulators
    )
    assert got.shape == expected.shape
    # The order of a sum, products and sums of the weight fused or not, and the result's rounding.
    reals = dequantize_blocks(q, arrays["s"], z, blocks, expressed, o)
    bound = np.abs(arrays["x"]).max() * (np.abs(reals).max() + 20) * np.prod(extents)
    unit = {"f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}[real]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=bound * unit)


def reals_and_scales(seed: int, *shapes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    reals, scales = rng.standard_normal(shapes[0]), rng.uniform(0.1, 1, shapes[1])
    return reals.astype(np.float32), scales.astype(np.float32)


@ON_DEVICES
@pytest.mark.parametrize("depth", [32, 24, 33])
@pytest.mark.parametrize("quantized", ["i2", "u3", "i4", "u4", "i5", "u6"])
@pytest.mark.share(12)
def test_weights_of_few_bits_are_packed(quantized: str, depth: int, device: Device) -> None:
    """Arguments whose rows fill bytes; the runtime packs them."""
    function = main_of(program(3, depth, 8, depth, quantized, transposed=True), device)
    arguments = function.signature.inputs[1]
    storage = StorageType.parse(quantized)
    bits = PLANE_BITS[storage.width]
    pinned = device.has_8bit_storage and depth != 33
    assert arguments.plane_bits == (bits if pinned else None)
    size = 8 * depth * storage.width // 8
    packed = f"{8}x{size // 8}" if len(bits) == 1 else size
    assert arguments.abi == ((f"tensor<{packed}xi8>",) if pinned else arguments.abi)
    low, count = storage.minimum, 2**storage.width
    q = (np.arange(8 * depth) * 7 % count + low).reshape((8, depth)).astype(np.int8)
    x, s = reals_and_scales(8, (3, depth), (8, 1))
    check_sum(function(x, q, s), x, q * s, "mk,nk->mn")


@ON_DEVICES
@pytest.mark.parametrize("quantized", ["i2", "i3", "u4", "i5", "u6"])
@pytest.mark.share(4)
def test_packed_arguments_that_no_contraction_reads(quantized: str, device: Device) -> None:
    """Every integer that there is, written out again."""
    storage = StorageType.parse(quantized)
    weight = f"3x80x!quant.uniform<{quantized}:f32:0, {{1.0, 0.5:1, 2.0}}>"
    function = main_of(one_operation('"quant.dcast"(%0)', (weight,), "3x80xf32"), device)
    assert (function.signature.inputs[0].plane_bits is not None) == device.has_8bit_storage
    values = np.arange(240).reshape((3, 80)) * 7 % (2**storage.width) + storage.minimum
    expected = (values - np.array([[0], [1], [0]])) * np.array([[1.0], [0.5], [2.0]])
    np.testing.assert_array_equal(function(values.astype(np.int8)), expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_packed_parameters(bits: int, cpu: Device, tmp_path: Path) -> None:
    """A global of narrow integers; the file has the bytes of its planes."""
    text = program(3, 32, 8, 16, f"i{bits}", transposed=True)
    stored = f"tensor<8x32xi{bits}>"
    load = f'  %q = "util.global.load"() {{global = @w}} : () -> {stored}\n'
    text = f"""
"util.global"() {{sym_name = "w", sym_visibility = "private", type = {stored},
    initial_value = #flow.parameter.named<"model"::"w"> : {stored}}} : () -> ()
{text.replace(f", %q: {stored}", "").replace('  %w = "', f'{load}  %w = "', 1)}"""
    limit = 2 ** (bits - 1)
    q = np.random.default_rng(13).integers(-limit, limit, (8, 32)).astype(np.int8)
    packed = np.concatenate([plane.reshape(-1) for plane in pack_planes(q, PLANE_BITS[bits])])
    assert packed.size == q.size * bits // 8
    path = tmp_path / "w.irpa"
    with create_archive(path) as writer:
        writer.add_tensor("w", packed)
    x, s = reals_and_scales(13, (3, 32), (8, 2))
    actual = Executable(compile_to_bytes(text), cpu, parameters={"model": path}).main(x, s)
    check_sum(actual, x, q * np.repeat(s, 16, 1), "mk,nk->mn")


def test_constants_of_4_bits_are_two_to_a_byte(cpu: Device) -> None:
    q = np.random.default_rng(9).integers(-8, 8, (256, 512)).astype(np.int8)
    text = f"""
func.func @main(%x: tensor<512xf32>, %s: tensor<256x16xf32>) -> tensor<256xf32> {{
  %q = stablehlo.constant dense<{q.tolist()}> : tensor<256x512xi4>
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, 32>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>}}
      : (tensor<256x512xi4>, tensor<256x16xf32>) -> tensor<256x512xf32>
  %y = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
      : (tensor<256x512xf32>, tensor<512xf32>) -> tensor<256xf32>
  return %y : tensor<256xf32>
}}
"""
    executable = compile_to_bytes(text)
    assert len(executable) < q.size  # with the program
    x, s = reals_and_scales(10, (512,), (256, 16))
    check_sum(Executable(executable, cpu).main(x, s), x, q * np.repeat(s, 32, 1), "k,nk->n")


@pytest.mark.parametrize(
    ("left", "weight", "blocks", "scales", "reason"),
    [
        ("4x7", "7x2", "4, 1", "2x2", "has a ragged last block"),
        ("4x?", "8x2", "4, 1", "2x2", "has blocks along a dimension that is dynamic in the other"),
        ("4x8", "?x2", "4, 1", "2x2", "has a weight of a dynamic shape"),
    ],
)
def test_why_a_contraction_is_left_alone(
    left: str, weight: str, blocks: str, scales: str, reason: str
) -> None:
    text = f"""
func.func @main(%x: tensor<{left}xf32>, %q: tensor<{weight}xi8>, %s: tensor<{scales}xf32>)
    -> tensor<4x2xf32> {{
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: {blocks}>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}}
      : (tensor<{weight}xi8>, tensor<{scales}xf32>) -> tensor<{weight}xf32>
  %y = stablehlo.dot %x, %w : (tensor<{left}xf32>, tensor<{weight}xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}}
"""
    _, (remark,) = run_passes(text, "fuse-block-contractions{explain=true}")
    assert remark.place is not None
    assert remark.place.line == 7
    assert f"is left alone: {reason}" in remark.message


def written_out(
    x: np.ndarray, weight: np.ndarray, shape: tuple[int, ...], extents: tuple[int, ...], at: Any
) -> np.ndarray:
    """The sum of products, index by index; `at` says where the loops' indices are in each."""
    result = np.zeros(shape)
    for index in np.ndindex(*extents):
        here, there, where = at(*index)
        result[where] += x[here] * weight[there]
    return result


def test_the_meaning_in_numpy_is_a_sum_of_products() -> None:
    """Small integers and powers of two: every sum is exact, in whatever order."""
    generator, f32 = np.random.default_rng(5), ExpressedType.F32
    stored = generator.integers(-8, 8, (3, 6))
    scales = 2.0 ** generator.integers(-2, 3, (3, 3))
    zero_points = generator.integers(-2, 3, (3, 3))
    offsets = generator.integers(-3, 4, (3, 3)).astype(np.float32)
    blocks = [np.repeat(grid, 2, axis=1) for grid in (scales, zero_points, offsets)]
    weight = (stored - blocks[1]) * blocks[0] + blocks[2]
    m, n, k = 0, 1, 2
    dot = [[[(m, 1)], [(k, 1)]], [[(n, 1)], [(k, 1)]], [[(m, 1)], [(n, 1)]]]
    x = generator.integers(-4, 5, (4, 6)).astype(np.float32)
    np.testing.assert_array_equal(
        contract_blocks(x, stored, scales, dot, (4, 3, 6), (1, 2), f32, zero_points, offsets),
        written_out(x, weight, (4, 3), (4, 3, 6), lambda m, n, k: ((m, k), (n, k), (m, n))),
    )
    # A window of three taps, three apart, that moves by two: [batch, position, feature].
    b, o, f, w, c = range(5)
    window = [
        [[(b, 1)], [(o, 2), (w, 3)], [(c, 1)]],
        [[(w, 1)], [(c, 1)], [(f, 1)]],
        [[(b, 1)], [(o, 1)], [(f, 1)]],
    ]
    kernel = generator.integers(-8, 8, (3, 4, 5))
    grid = 2.0 ** generator.integers(-2, 3, (3, 2, 5))
    x = generator.integers(-4, 5, (2, 13, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        contract_blocks(x, kernel, grid, window, (2, 4, 5, 3, 4), (1, 2, 1), f32),
        written_out(
            x,
            kernel * np.repeat(grid, 2, axis=1),
            (2, 4, 5),
            (2, 4, 5, 3, 4),
            lambda b, o, f, w, c: ((b, 2 * o + 3 * w, c), (w, c, f), (b, o, f)),
        ),
    )


def test_a_vector_times_a_weight() -> None:
    """``stablehlo.dot`` contracts the last axis of the left operand, whatever its rank."""
    weight = "tensor<4x3x!quant.uniform<i8:f32:{0:2,1:1}, {{0.5,1.0,2.0},{0.25,4.0,8.0}}>>"
    text = f"""
func.func @main(%x: tensor<4xf32>, %q: {weight}) -> tensor<3xf32> {{
  %w = quant.dcast %q : {weight} to tensor<4x3xf32>
  %y = "stablehlo.dot"(%x, %w) : (tensor<4xf32>, tensor<4x3xf32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}}
"""
    module, _ = run_passes(text, "fuse-block-contractions")
    (fused,) = [op for op in walk(module.operation) if op.name == "subquant.block_contraction"]
    maps = [str(attribute.value) for attribute in fused.attributes["indexing_maps"]]
    assert maps == ["(d0, d1) -> (d1)", "(d0, d1) -> (d1, d0)", "(d0, d1) -> (d0)"]
