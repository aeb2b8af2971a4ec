"""Programs that IREE 3.13 gets wrong or refuses on Vulkan; see test_iree_limits.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bare_iree import FIXED, compile_bare, without_barriers
from devices import compile_for
from programs import LONG, convolution_of, lowered_text, one_operation
from spirv import loosely_computed, writes_tables
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.lowering import lower
from subquant.compiler.pipeline import compile_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.errors import ExecutionError, UnsupportedError
from subquant.runtime import Device, Executable
from subquant.transforms.iree_workarounds import check_hand_off, isolate_contraction_operands

ON_BOTH = pytest.mark.parametrize("device_name", ["vulkan", "vulkan_32bit"])
"""The device of the fixture ``device``."""

MATMUL = """
func.func @main(%a: tensor<4x64xi8>, %b: tensor<64x64xi8>) -> tensor<4x64xi32> {
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : tensor<4x64xi32>
  %i = linalg.fill ins(%zero : i32) outs(%e : tensor<4x64xi32>) -> tensor<4x64xi32>
  %0 = linalg.matmul ins(%a, %b : tensor<4x64xi8>, tensor<64x64xi8>)
      outs(%i : tensor<4x64xi32>) -> tensor<4x64xi32>
  return %0 : tensor<4x64xi32>
}
"""


CONVOLUTION = """
!q = !quant.uniform<i8:f32, 0.0625:3>
func.func @main(%q: tensor<2x9x10x3x!q>, %k: tensor<4x5x3x3xf32>) -> tensor<2x6x6x3xf32> {
  %f = quant.dcast %q : tensor<2x9x10x3x!q> to tensor<2x9x10x3xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x6x6x3xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<2x6x6x3xf32>) -> tensor<2x6x6x3xf32>
  %r = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>,
                                 strides = dense<1> : tensor<2xi64>}
      ins(%f, %k : tensor<2x9x10x3xf32>, tensor<4x5x3x3xf32>)
      outs(%i : tensor<2x6x6x3xf32>) -> tensor<2x6x6x3xf32>
  return %r : tensor<2x6x6x3xf32>
}
"""


def without(text: str, name: str) -> bytes:
    """Compile for Vulkan with one pass left out."""
    options = CompileOptions(target="vulkan")
    module = parse_text(text, create_context())
    steps = compile_pipeline(options)
    run_pipeline(module, [step for step in steps if step.name not in (name, "check-hand-off")])
    # The second run only adds the hand-off and the device description.
    done = parse_text(str(module), create_context())
    run_pipeline(done, [step for step in steps if step.name == "check-hand-off"])
    with done.context:
        devices = ir.Attribute.parse(f"[{options.device_attribute}]")
        done.operation.attributes["hal.device.targets"] = devices
    return compile_bare(str(done), *options.flags)


def compiled_here(
    text: str, device: Device, change: Callable[[str], str] = lambda text: text
) -> Executable:
    """Compile for a Vulkan device with the passes of this process, and change the lowered text."""
    options = CompileOptions(target="vulkan", vulkan_target=device.vulkan_target)
    module = parse_text(text, create_context())
    lower(module, options)
    return Executable(compile_bare(change(str(module)), *options.flags), device)


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    a = rng.integers(-128, 128, (4, 64)).astype(np.int8)
    b = rng.integers(-128, 128, (64, 64)).astype(np.int8)
    return a, b, a.astype(np.int32) @ b.astype(np.int32)


def convolution() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    q = rng.integers(-128, 128, (2, 9, 10, 3)).astype(np.int8)
    k = rng.standard_normal((4, 5, 3, 3)).astype(np.float32)
    f = (q.astype(np.float64) - 3) * 0.0625
    expected = np.zeros((2, 6, 6, 3))
    for i, j in np.ndindex(6, 6):
        expected[:, i, j] = np.einsum("bhwc,hwco->bo", f[:, i : i + 4, j : j + 5], k)
    return q, k, expected


@pytest.mark.vulkan
@ON_BOTH
def test_sign_extension_on_vulkan(device: Device, device_name: str) -> None:
    a, b, expected = operands()
    np.testing.assert_array_equal(compile_for(MATMUL, device).main(a, b), expected)


@pytest.mark.long
@pytest.mark.vulkan
def test_sign_extension_is_still_lost_without_the_pass(vulkan: Device) -> None:
    a, b, expected = operands()
    got = Executable(without(MATMUL, "expand-sign-extension"), vulkan).main(a, b)
    assert (got != expected).any(), FIXED + "the pass expand-sign-extension"


@pytest.mark.vulkan
@pytest.mark.parametrize("device_name", ["cpu", "vulkan", "vulkan_32bit"])
def test_a_cast_before_a_convolution(device: Device, device_name: str) -> None:
    """180 products of magnitude below 100, summed in any order in f32: within 1e-3."""
    q, k, expected = convolution()
    got = compile_for(CONVOLUTION, device).main(q, k)
    np.testing.assert_allclose(got, expected, atol=1e-3, rtol=0)


DOT = """
func.func @main(%a: tensor<3x8xf32>, %q: tensor<8x4xi8>) -> tensor<3x4xf32> {
  %f = stablehlo.convert %q : (tensor<8x4xi8>) -> tensor<8x4xf32>
  %g = stablehlo.add %f, %f : tensor<8x4xf32>
  %r = stablehlo.dot_general %a, %g, contracting_dims = [1] x [0]
      : (tensor<3x8xf32>, tensor<8x4xf32>) -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}
"""


def is_ever_wrong(executable: Executable, expected: np.ndarray, *arguments: np.ndarray) -> bool:
    """True if one of 50 calls is off by half: in a race, now and then a call is right."""
    calls = (executable.main(*arguments) for _ in range(50))
    return any((np.abs(result - expected) > 0.5).any() for result in calls)


@pytest.mark.long
@pytest.mark.vulkan
def test_a_cast_before_a_dot_is_still_wrong_without_the_pass(vulkan: Device) -> None:
    a, q, expected = np.ones((3, 8), np.float32), np.full((8, 4), 2, np.int8), np.full((3, 4), 32)
    np.testing.assert_array_equal(compile_for(DOT, vulkan).main(a, q), expected)
    executable = Executable(without(DOT, "isolate-contraction-operands"), vulkan)
    workaround = "the contractions of isolate-contraction-operands"
    assert is_ever_wrong(executable, expected, a, q), FIXED + workaround


@pytest.mark.long
@pytest.mark.vulkan
def test_a_cast_before_a_convolution_is_still_wrong_without_the_pass(vulkan: Device) -> None:
    q, k, expected = convolution()
    executable = Executable(without(CONVOLUTION, "isolate-contraction-operands"), vulkan)
    workaround = "the pass isolate-contraction-operands"
    assert is_ever_wrong(executable, expected, q, k), FIXED + workaround


SUM_OF_PRODUCTS = """
func.func @main(%x: tensor<6x3x32xf32>, %q: tensor<7x3x32xi8>, %s: tensor<3x7xf32>)
    -> tensor<6x7xf32> {
  %y = stablehlo.convert %q : (tensor<7x3x32xi8>) -> tensor<7x3x32xf32>
  %z = stablehlo.abs %y : tensor<7x3x32xf32>
  %0 = stablehlo.dot_general %x, %z, batching_dims = [1] x [1], contracting_dims = [2] x [2]
      : (tensor<6x3x32xf32>, tensor<7x3x32xf32>) -> tensor<3x6x7xf32>
  %1 = stablehlo.broadcast_in_dim %s, dims = [0, 2] : (tensor<3x7xf32>) -> tensor<3x6x7xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<3x6x7xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %3 = stablehlo.reduce(%2 init: %c) applies stablehlo.add across dimensions = [0]
      : (tensor<3x6x7xf32>, tensor<f32>) -> tensor<6x7xf32>
  return %3 : tensor<6x7xf32>
}
"""


def scaled_products() -> tuple[list[np.ndarray], np.ndarray]:
    """Small integers, so that every order of a sum gives the same."""
    generator = np.random.default_rng(3)
    shapes = ((6, 3, 32), (7, 3, 32), (3, 7))
    x, q, s = (generator.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return [x, q.astype(np.int8), s], np.einsum("ibk,jbk,bj->ij", x, abs(q), s)


@pytest.mark.vulkan
def test_a_sum_of_scaled_contractions(vulkan: Device) -> None:
    arguments, expected = scaled_products()
    actual = compile_for(SUM_OF_PRODUCTS, vulkan).main(*arguments)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.long
@pytest.mark.vulkan
def test_a_sum_of_scaled_contractions_is_still_wrong_without_barriers(
    vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IREE fuses the sum if its accumulators start from a loop, not a fill."""
    monkeypatch.setattr(isolate_contraction_operands, "write_fill", lambda op: None)
    arguments, expected = scaled_products()
    executable = compiled_here(
        SUM_OF_PRODUCTS, vulkan, lambda text: without_barriers(text, "tensor<3x6x7xf32>")
    )
    workaround = "the sums of isolate-contraction-operands"
    assert is_ever_wrong(executable, expected, *arguments), FIXED + workaround


PERMUTED = """
func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x4xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(LOOPS) -> (m, k)>,
                                        affine_map<(LOOPS) -> (k, n)>,
                                        affine_map<(LOOPS) -> (m, n)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%i : tensor<4x4xf32>) {
  ^bb0(%x: f32, %y: f32, %sum: f32):
    %p = arith.mulf %x, %y : f32
    %s = arith.addf %sum, %p : f32
    linalg.yield %s : f32
  } -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}
"""


def product_of_loops(loops: str, device: Device) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, so that every order of a sum gives the same."""
    a, b = np.random.default_rng(4).integers(1, 5, (2, 4, 4)).astype(np.float32)
    executable = compiled_here(PERMUTED.replace("LOOPS", loops), device)
    return executable.main(a, b), a @ b


@pytest.mark.vulkan
@ON_BOTH
@pytest.mark.parametrize("loops", ["m, n, k", "n, m, k"])
def test_a_reduction_in_any_loop_order(loops: str, device: Device, device_name: str) -> None:
    np.testing.assert_array_equal(*product_of_loops(loops, device))


@pytest.mark.long
@pytest.mark.vulkan
@ON_BOTH
def test_a_reduction_in_another_loop_order_is_still_wrong(
    device: Device, device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate_contraction_operands, "order_loops", lambda op: None)
    monkeypatch.setattr(check_hand_off, "is_in_order", lambda op: True)
    got, expected = product_of_loops("n, m, k", device)
    assert (got != expected).any(), (
        FIXED + "loop_order.py, and _in_order_of_result in lower-block-contractions"
    )


SHARED_START = one_operation(
    "stablehlo.dot_general %0, %1, batching_dims = [1, 2] x [1, 0], contracting_dims = [3] x [2]",
    ["4x4x1x4x4x!quant.uniform<u8:f32, 1.0>", "1x4x4x!quant.uniform<u8:f32, 1.0>"],
    "4x1x4x4x!quant.uniform<i32:f32, 1.0>",
)


def product_and_sums(device: Device) -> tuple[np.ndarray, np.ndarray]:
    """A product and its corrections, which have one shape without axes of one element."""
    generator = np.random.default_rng(7)
    a, w = (generator.integers(0, 256, shape) for shape in ((4, 4, 1, 4, 4), (1, 4, 4)))
    got = compiled_here(SHARED_START, device).main(a.astype(np.uint8), w.astype(np.uint8))
    return got, np.einsum("ijklm,kjl->jkim", a, w)


@pytest.mark.vulkan
def test_accumulators_of_one_size_are_separate(vulkan: Device) -> None:
    np.testing.assert_array_equal(*product_and_sums(vulkan))


@pytest.mark.long
@pytest.mark.vulkan
def test_accumulators_of_one_size_are_still_shared(
    vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate_contraction_operands, "write_fill", lambda op: None)
    got, expected = product_and_sums(vulkan)
    assert (got != expected).any(), FIXED + "write_fill in iree_workarounds/loop_order.py"


@pytest.mark.vulkan
def test_an_executable_for_8bit_storage_is_refused_without_it(vulkan_32bit: Device) -> None:
    """Loading it would end the process: SwiftShader stops at an illegal instruction."""
    data = compile_to_bytes(MATMUL, CompileOptions(target="vulkan"))
    with pytest.raises(ExecutionError, match="compile it with --vulkan-target generic-32bit"):
        Executable(data, vulkan_32bit)


@pytest.mark.parametrize("element", ["f16", "bf16", "f64"])
def test_types_that_a_32bit_device_lacks_are_refused(element: str) -> None:
    text = f"func.func @main(%x: tensor<4x{element}>) -> tensor<4x{element}> {{\n"
    text += f"  return %x : tensor<4x{element}>\n}}"
    options = CompileOptions(target="vulkan", vulkan_target="generic-32bit")
    with pytest.raises(UnsupportedError, match=f"uses '{element}', which a device with 32-bit"):
        compile_to_bytes(text, options)


WIDE_TABLE = """
func.func @main(%x: tensor<3x6xi32>) -> tensor<3x6xi32> {
  %factors = stablehlo.constant dense<[3000000000, 5, 7000000000, 1, 2, 9000000000]> : tensor<6xi64>
  %shift = stablehlo.constant dense<31> : tensor<3x6xi64>
  %wide = stablehlo.convert %x : (tensor<3x6xi32>) -> tensor<3x6xi64>
  %f = stablehlo.broadcast_in_dim %factors, dims = [1] : (tensor<6xi64>) -> tensor<3x6xi64>
  %p = stablehlo.multiply %wide, %f : tensor<3x6xi64>
  %s = stablehlo.shift_right_arithmetic %p, %shift : tensor<3x6xi64>
  %r = stablehlo.convert %s : (tensor<3x6xi64>) -> tensor<3x6xi32>
  return %r : tensor<3x6xi32>
}
"""


@pytest.mark.vulkan
def test_tables_of_i64_on_a_32bit_device(vulkan_32bit: Device) -> None:
    x = np.random.default_rng(5).integers(-99, 100, (3, 6)).astype(np.int32)
    factors = np.array([3000000000, 5, 7000000000, 1, 2, 9000000000])
    executable = compile_for(WIDE_TABLE, vulkan_32bit)
    np.testing.assert_array_equal(executable.main(x), (x.astype(np.int64) * factors) >> 31)


INLINED = "--iree-flow-inline-constants-max-byte-length"


def compile_without(flag: str, text: str, **options: Any) -> bytes:
    """Compile for Vulkan with one of IREE's flags left out."""
    flags = CompileOptions("vulkan", **options).flags
    retained = [each for each in flags if not each.startswith(flag)]
    assert len(retained) < len(flags)
    return compile_bare(lowered_text(text, "vulkan", **options), *retained)


@pytest.mark.long
def test_tables_of_i64_are_still_refused_inside_dispatches() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compile_without(INLINED, WIDE_TABLE, vulkan_target="generic-32bit")
    assert b"unresolved target materialization" in caught.value.stderr, FIXED + INLINED


LOOKUP = """
func.func @main(%x: tensor<150xi32>) -> tensor<150xi8> {
  %table = stablehlo.constant dense<ELEMENTS> : tensor<256xi8>
  %r = "stablehlo.gather"(%table, %x) {
      dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0],
                                            index_vector_dim = 1>,
      slice_sizes = array<i64: 1>} : (tensor<256xi8>, tensor<150xi32>) -> tensor<150xi8>
  return %r : tensor<150xi8>
}
"""


@pytest.mark.vulkan
@ON_BOTH
def test_a_table_is_a_buffer(device: Device, device_name: str) -> None:
    """Inside a dispatch each invocation would write it: 3.6 s of llvmpipe's compiler, for 0.06."""
    generator = np.random.default_rng(6)
    table = generator.integers(-128, 128, 256).astype(np.int8)
    x = generator.integers(0, 256, 150).astype(np.int32)
    text = LOOKUP.replace("ELEMENTS", str(table.tolist()))
    options = CompileOptions(target="vulkan", vulkan_target=device.vulkan_target)
    data = compile_to_bytes(text, options)
    np.testing.assert_array_equal(Executable(data, device).main(x), table[x])
    assert not writes_tables(data)


@pytest.mark.long
def test_a_table_is_still_written_inside_dispatches() -> None:
    text = LOOKUP.replace("ELEMENTS", str(list(range(-128, 128))))
    assert writes_tables(compile_without(INLINED, text)), FIXED + INLINED


SHIFT_REGISTER = """
tosa.variable @state = dense<-128> : tensor<1x2x40xi8>
func.func @main(%x: tensor<1x3x40xi8>) -> tensor<1x5x40xi8> {
  %0 = tosa.variable_read @state : tensor<1x2x40xi8>
  %1 = tosa.concat %0, %x {axis = 1 : i32} : (tensor<1x2x40xi8>, tensor<1x3x40xi8>) -> tensor<1x5x40xi8>
  %from = tosa.const_shape {values = dense<[0, 3, 0]> : tensor<3xindex>} : () -> !tosa.shape<3>
  %size = tosa.const_shape {values = dense<[1, 2, 40]> : tensor<3xindex>} : () -> !tosa.shape<3>
  %2 = tosa.slice %1, %from, %size : (tensor<1x5x40xi8>, !tosa.shape<3>, !tosa.shape<3>) -> tensor<1x2x40xi8>
  tosa.variable_write @state, %2 : tensor<1x2x40xi8>
  return %1 : tensor<1x5x40xi8>
}
"""  # noqa: E501


def shifted(executable: Executable) -> tuple[np.ndarray, np.ndarray]:
    steps = np.random.default_rng(3).integers(-128, 128, (4, 1, 3, 40)).astype(np.int8)
    got = np.stack([executable.main(step) for step in steps])
    before = np.concatenate([np.full((1, 1, 2, 40), -128, np.int8), steps[:-1, :, 1:]])
    return got, np.concatenate([before, steps], 2)


@pytest.mark.vulkan
def test_later_calls_of_a_program_with_variables(vulkan: Device) -> None:
    np.testing.assert_array_equal(*shifted(compile_for(SHIFT_REGISTER, vulkan)))


@pytest.mark.long
@pytest.mark.vulkan
def test_later_calls_are_still_wrong_with_recorded_command_buffers(vulkan: Device) -> None:
    flag = "--iree-hal-memoization=false"
    got, expected = shifted(Executable(compile_without(flag, SHIFT_REGISTER), vulkan))
    np.testing.assert_array_equal(got[0], expected[0])
    assert (got[1:] != expected[1:]).any(), FIXED + flag


DEPTHWISE = one_operation(
    convolution_of("[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]", groups=2),
    ["1x4x4x4x2xi32", "2x2x2x1x4xi32"],
    "1x3x3x3x4xi32",
)


@pytest.mark.long
@pytest.mark.vulkan
def test_depthwise_convolutions_of_three_axes_are_still_wrong(vulkan: Device) -> None:
    x, k = np.ones((1, 4, 4, 4, 2), np.int32), np.ones((2, 2, 2, 1, 4), np.int32)
    got = compile_for(DEPTHWISE, vulkan).main(x, k)
    np.testing.assert_array_equal(got, np.full((1, 3, 3, 3, 4), 8))
    bare = Executable(without(DEPTHWISE, "expand-stablehlo"), vulkan).main(x, k)
    assert (np.asarray(bare) != 8).any(), FIXED + "_split_channel_outputs of convolutions.py"


FLOATS = """
func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8x!q>) {
  %0 = stablehlo.multiply %x, %y : tensor<8xf32>
  %1 = stablehlo.add %0, %x : tensor<8xf32>
  %2 = stablehlo.uniform_quantize %1 : (tensor<8xf32>) -> tensor<8x!q>
  return %1, %2 : tensor<8xf32>, tensor<8x!q>
}
""".replace("!q", "!quant.uniform<i8:f32, 0.05:3>")


@pytest.mark.skipif(not LONG, reason="6 s; shaders change with IREE's version only")
@pytest.mark.parametrize("target", ["generic", "generic-32bit"])
def test_drivers_may_not_compute_floats_otherwise(target: str) -> None:
    """NVIDIA's rounds products and sums together, and has no NaN, where nothing forbids that."""
    options = CompileOptions("vulkan", vulkan_target=target)
    assert not loosely_computed(compile_to_bytes(FLOATS, options))
    as_iree = replace(options, iree_flags=("--iree-hal-indirect-command-buffers=true",))
    actual = loosely_computed(compile_to_bytes(FLOATS, as_iree))
    assert any(each.startswith("operation") for each in actual)
    assert any(each.startswith("entry point") for each in actual)
