"""Limits of IREE 3.13, and the workarounds of subquant.

For each limit a program through subquant is right, and the same program without the pass or flag
that guards it is still wrong. When the second test fails, IREE is fixed: remove the workaround in
the message, and the entry in docs/limits.md.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import subquant
from bare_iree import FIXED, assert_refused, compile_bare, without_barriers
from devices import ON_DEVICES, compile_for
from spirv import loosely_computed, writes_tables
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.lowering import lower
from subquant.compiler.pipeline import compile_pipeline, run_pipeline
from subquant.compiler.reading import parse_text
from subquant.compiler.target_features import host_features
from subquant.dialects import create_context
from subquant.errors import CompilerError, ExecutionError, UnsupportedError
from subquant.runtime import Device, Executable
from subquant.transforms.iree_workarounds import check_hand_off, isolate_contraction_operands

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
        from subquant.core._mlir import ir

        devices = ir.Attribute.parse(f"[{options.device_attribute}]")
        done.operation.attributes["hal.device.targets"] = devices
    return compile_bare(str(done), *options.flags)


def compiled_here(text: str, device: Device) -> Executable:
    """Compile for a Vulkan device with the passes of this process, which a test may change."""
    options = CompileOptions(target="vulkan", vulkan_target=device.vulkan_target)
    module = parse_text(text, create_context())
    lower(module, options)
    return Executable(compile_bare(str(module), *options.flags), device)


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
@pytest.mark.parametrize("device", ["vulkan", "vulkan_32bit"])
def test_sign_extension_on_vulkan(device: str, request: pytest.FixtureRequest) -> None:
    a, b, expected = operands()
    executable = compile_for(MATMUL, request.getfixturevalue(device))
    np.testing.assert_array_equal(executable.main(a, b), expected)


@pytest.mark.vulkan
def test_sign_extension_is_still_lost_without_the_pass(vulkan: Device) -> None:
    a, b, expected = operands()
    got = Executable(without(MATMUL, "expand-sign-extension"), vulkan).main(a, b)
    assert (got != expected).any(), FIXED + "the pass expand-sign-extension"


@pytest.mark.vulkan
@pytest.mark.parametrize("device", ["cpu", "vulkan", "vulkan_32bit"])
def test_a_cast_before_a_convolution(device: str, request: pytest.FixtureRequest) -> None:
    """180 products of magnitude below 100, summed in any order in f32: within 1e-3."""
    q, k, expected = convolution()
    got = compile_for(CONVOLUTION, request.getfixturevalue(device)).main(q, k)
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


@pytest.mark.vulkan
def test_a_cast_before_a_dot(vulkan: Device) -> None:
    a, q = np.ones((3, 8), np.float32), np.full((8, 4), 2, np.int8)
    executable = compile_for(DOT, vulkan)
    np.testing.assert_array_equal(executable.main(a, q), np.full((3, 4), 32))


@pytest.mark.vulkan
def test_a_cast_before_a_dot_is_still_wrong_without_the_pass(vulkan: Device) -> None:
    a, q = np.ones((3, 8), np.float32), np.full((8, 4), 2, np.int8)
    executable = Executable(without(DOT, "isolate-contraction-operands"), vulkan)
    # A race: now and then it is right.
    assert any((executable.main(a, q) != 32).any() for _ in range(50)), (
        FIXED + "the contractions of isolate-contraction-operands"
    )


@pytest.mark.vulkan
def test_a_cast_before_a_convolution_is_still_wrong_without_the_pass(vulkan: Device) -> None:
    q, k, expected = convolution()
    executable = Executable(without(CONVOLUTION, "isolate-contraction-operands"), vulkan)
    # A race: now and then it is right.
    wrong = (np.abs(executable.main(q, k) - expected).max() > 1 for _ in range(50))
    assert any(wrong), FIXED + "the pass isolate-contraction-operands"


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
    main = compile_for(SUM_OF_PRODUCTS, vulkan).main
    np.testing.assert_array_equal(main(*arguments), expected)


@pytest.mark.vulkan
def test_a_sum_of_scaled_contractions_is_still_wrong_without_barriers(
    vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IREE fuses the sum if its accumulators start from a loop, not a fill."""
    monkeypatch.setattr(isolate_contraction_operands, "write_fill", lambda op: None)
    arguments, expected = scaled_products()
    options = CompileOptions(target="vulkan")
    module = parse_text(SUM_OF_PRODUCTS, create_context())
    lower(module, options)
    text = without_barriers(str(module), "tensor<3x6x7xf32>")
    assert text != str(module)
    executable = Executable(compile_bare(text, *options.flags), vulkan)
    assert any((executable.main(*arguments) != expected).any() for _ in range(50)), (
        FIXED + "the sums of isolate-contraction-operands"
    )


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
@pytest.mark.parametrize("device", ["vulkan", "vulkan_32bit"])
@pytest.mark.parametrize("loops", ["m, n, k", "n, m, k"])
def test_a_reduction_in_any_loop_order(
    loops: str, device: str, request: pytest.FixtureRequest
) -> None:
    got, expected = product_of_loops(loops, request.getfixturevalue(device))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.vulkan
@pytest.mark.parametrize("device", ["vulkan", "vulkan_32bit"])
def test_a_reduction_in_another_loop_order_is_still_wrong(
    device: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate_contraction_operands, "order_loops", lambda op: None)
    monkeypatch.setattr(check_hand_off, "is_in_order", lambda op: True)
    got, expected = product_of_loops("n, m, k", request.getfixturevalue(device))
    assert (got != expected).any(), (
        FIXED + "loop_order.py, and _in_order_of_result in lower-block-contractions"
    )


SHARED_START = """
!a = !quant.uniform<u8:f32, 1.0>
!y = !quant.uniform<i32:f32, 1.0>
func.func @main(%a: tensor<4x4x1x4x4x!a>, %w: tensor<1x4x4x!a>) -> tensor<4x1x4x4x!y> {
  %0 = stablehlo.dot_general %a, %w, batching_dims = [1, 2] x [1, 0],
      contracting_dims = [3] x [2]
      : (tensor<4x4x1x4x4x!a>, tensor<1x4x4x!a>) -> tensor<4x1x4x4x!y>
  return %0 : tensor<4x1x4x4x!y>
}
"""


def product_and_sums(device: Device) -> tuple[np.ndarray, np.ndarray]:
    """A product and its corrections, which have one shape without axes of one element."""
    generator = np.random.default_rng(7)
    a, w = (generator.integers(0, 256, shape) for shape in ((4, 4, 1, 4, 4), (1, 4, 4)))
    got = compiled_here(SHARED_START, device).main(a.astype(np.uint8), w.astype(np.uint8))
    return got, np.einsum("ijklm,kjl->jkim", a, w)


@pytest.mark.vulkan
def test_accumulators_of_one_size_are_separate(vulkan: Device) -> None:
    np.testing.assert_array_equal(*product_and_sums(vulkan))


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


def test_tables_of_i64_are_still_refused_inside_dispatches() -> None:
    options = CompileOptions(target="vulkan", vulkan_target="generic-32bit")
    text = compile_to_bytes(WIDE_TABLE, options, emit="mlir").decode()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compile_bare(text, *(flag for flag in options.flags if not flag.startswith(INLINED)))
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
@pytest.mark.parametrize("device", ["vulkan", "vulkan_32bit"])
def test_a_table_is_a_buffer(device: str, request: pytest.FixtureRequest) -> None:
    """Inside a dispatch each invocation would write it: 3.6 s of llvmpipe's compiler, for 0.06."""
    generator = np.random.default_rng(6)
    table = generator.integers(-128, 128, 256).astype(np.int8)
    x = generator.integers(0, 256, 150).astype(np.int32)
    where = request.getfixturevalue(device)
    text = LOOKUP.replace("ELEMENTS", str(table.tolist()))
    options = CompileOptions(target="vulkan", vulkan_target=where.vulkan_target)
    data = compile_to_bytes(text, options)
    np.testing.assert_array_equal(Executable(data, where).main(x), table[x])
    assert not writes_tables(data)


def test_a_table_is_still_written_inside_dispatches() -> None:
    options = CompileOptions(target="vulkan")
    text = LOOKUP.replace("ELEMENTS", str(list(range(-128, 128))))
    text = compile_to_bytes(text, options, emit="mlir").decode()
    data = compile_bare(text, *(flag for flag in options.flags if not flag.startswith(INLINED)))
    assert writes_tables(data), FIXED + INLINED


FUSED = """
func.func @main(%a: tensor<1024xf32>, %b: tensor<1024xf32>, %c: tensor<1024xf32>)
    -> tensor<1024xf32> {
  %p = arith.mulf %a, %b : tensor<1024xf32>
  %s = arith.addf %p, %c : tensor<1024xf32>
  return %s : tensor<1024xf32>
}
"""


@pytest.mark.skipif(
    host_features() is not None and host_features().isdisjoint(("fma", "neon")),
    reason="this CPU has no fused multiply-add",
)
def test_llvm_cpu_still_fuses_a_product_and_a_sum(cpu: Device) -> None:
    a, b, c = np.random.default_rng(3).standard_normal((3, 1024)).astype(np.float32)
    got = compile_for(FUSED, cpu).main(a, b, c)
    assert (got != a * b + c).any(), FIXED + "the known limit about a * b + c"
    np.testing.assert_allclose(got, a * b + c, rtol=1e-5, atol=1e-6)


def test_runtimes_still_flush_subnormals(cpu: Device) -> None:
    tiny = np.full(1024, 1e-40, np.float32)
    got = compile_for(FUSED, cpu).main(tiny, np.ones_like(tiny), np.zeros_like(tiny))
    assert not got.any(), FIXED + "the check of subnormal scales"


CHECKED = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %d = tensor.dim %x, %c0 : tensor<?xf32>
  %ok = arith.cmpi eq, %d, %c4 : index
  cf.assert %ok, "must be 4"
  %y = arith.addf %x, %x : tensor<?xf32>
  return %y : tensor<?xf32>
}
"""


def test_assertions_are_kept_by_our_flags_only(cpu: Device) -> None:
    five = np.ones(5, np.float32)
    with pytest.raises(ExecutionError, match="must be 4"):
        compile_for(CHECKED, cpu).main(five)
    plain = Executable(compile_bare(CHECKED), cpu)
    assert plain.main(five).size == 5, FIXED + "--iree-opt-strip-assertions=false"


DOUBLE = """
func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
  %y = arith.addf %x, %x : tensor<4xf64>
  return %y : tensor<4xf64>
}
"""


def test_f64_is_kept_by_our_flags_only(cpu: Device) -> None:
    x = np.full(4, 0.1)
    np.testing.assert_array_equal(compile_for(DOUBLE, cpu).main(x), x + x)
    plain = Executable(compile_bare(DOUBLE), cpu)
    assert plain.main.signature is not None
    element_taken = plain.main.signature.inputs[0].element
    assert element_taken == "f32", FIXED + "--iree-input-demote-f64-to-f32=false"


HALF = "func.func @main(%x: f16) -> f16 {\n  return %x : f16\n}"


def test_f16_scalars_need_a_box(cpu: Device) -> None:
    assert compile_for(HALF, cpu).main(np.float16(1.5)) == np.float16(1.5)
    plain = Executable(compile_bare(HALF), cpu)
    assert plain.main(np.float16(1.5)) == 0, FIXED + "the pass box-half-scalars"


ODD = """
func.func @main(%x: tensor<5x3xi32>) -> tensor<5x3xi4> {
  %y = arith.trunci %x : tensor<5x3xi32> to tensor<5x3xi4>
  return %y : tensor<5x3xi4>
}
"""


def test_i4_tensors_of_odd_size_need_containers(cpu: Device) -> None:
    x = np.arange(-7, 8, dtype=np.int32).reshape(5, 3)
    np.testing.assert_array_equal(compile_for(ODD, cpu).main(x), x.clip(-8, 7))
    message = b"does not have integral number of total bytes"
    assert_refused(ODD, message, "legalize-integer-widths for i4")


BOOLEANS = """
func.func @main(%x: tensor<8x64xf32>, %y: tensor<8xf32>) -> (tensor<8xi1>, tensor<8xTYPE>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %t = stablehlo.compare GT, %s, %y : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  %i = stablehlo.convert %t : (tensor<8xi1>) -> tensor<8xTYPE>
  return %t, %i : tensor<8xi1>, tensor<8xTYPE>
}
"""


@pytest.mark.parametrize("element", ["i8", "ui8"])
def test_booleans_and_the_same_as_bytes(element: str, cpu: Device) -> None:
    x, y = np.ones((8, 64), np.float32), np.arange(60, 68, dtype=np.float32)
    text = BOOLEANS.replace("TYPE", element)
    chosen = re.sub(
        r"  %i = .*\n",
        f"  %one = stablehlo.constant dense<1> : tensor<8x{element}>\n"
        f"  %none = stablehlo.constant dense<0> : tensor<8x{element}>\n"
        f"  %i = stablehlo.select %t, %one, %none : tensor<8xi1>, tensor<8x{element}>\n",
        text.replace("@main", "@chosen"),
    )
    executable = compile_for(text + chosen, cpu)
    for function in (executable.main, executable.chosen):
        for actual in function(x, y):
            np.testing.assert_array_equal(actual, y < 64)


def test_booleans_as_bytes_are_still_refused() -> None:
    message = b"restricted to workgroup distributed contexts"
    assert_refused(BOOLEANS.replace("TYPE", "i8"), message, "iree_workarounds/returned_booleans.py")


UNSIGNED_MULTIPLICANDS = """
func.func @booleans(%x: tensor<3x5xf32>, %y: tensor<3x5xf32>, %w: tensor<5x4xi8>)
    -> tensor<3x4xi32> {
  %t = stablehlo.compare LT, %x, %y : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xi1>
  %f = stablehlo.convert %t : (tensor<3x5xi1>) -> tensor<3x5xi8>
  %r = stablehlo.dot_general %f, %w, contracting_dims = [1] x [0]
      : (tensor<3x5xi8>, tensor<5x4xi8>) -> tensor<3x4xi32>
  return %r : tensor<3x4xi32>
}
func.func @floats(%x: tensor<3x5xf32>, %w: tensor<?x4xui8>) -> tensor<3x4xf32> {
  %f = stablehlo.convert %w : (tensor<?x4xui8>) -> tensor<?x4xf32>
  %r = stablehlo.dot %x, %f : (tensor<3x5xf32>, tensor<?x4xf32>) -> tensor<3x4xf32>
  return %r : tensor<3x4xf32>
}
func.func @batches(%x: tensor<2x3x5xui16>, %w: tensor<2x5x4xi64>) -> tensor<2x3x4xi64> {
  %i = stablehlo.convert %x : (tensor<2x3x5xui16>) -> tensor<2x3x5xi32>
  %f = stablehlo.convert %i : (tensor<2x3x5xi32>) -> tensor<2x3x5xi64>
  %r = stablehlo.dot_general %f, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<2x3x5xi64>, tensor<2x5x4xi64>) -> tensor<2x3x4xi64>
  return %r : tensor<2x3x4xi64>
}
func.func @windows(%x: tensor<1x7x5xui8>, %w: tensor<1x5x4xui8>) -> tensor<1x7x4xui32> {
  %f = stablehlo.convert %x : (tensor<1x7x5xui8>) -> tensor<1x7x5xui32>
  %g = stablehlo.convert %w : (tensor<1x5x4xui8>) -> tensor<1x5x4xui32>
  %r = stablehlo.convolution(%f, %g) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x7x5xui32>, tensor<1x5x4xui32>) -> tensor<1x7x4xui32>
  return %r : tensor<1x7x4xui32>
}
func.func @direct(%x: tensor<3x5xui8>, %w: tensor<5x4xui8>) -> tensor<3x4xi32> {
  %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<3x5xui8>, tensor<5x4xui8>) -> tensor<3x4xi32>
  return %r : tensor<3x4xi32>
}
func.func @depthwise(%x: tensor<1x7x4xui8>, %w: tensor<3x1x4xui8>) -> tensor<1x5x4xui32> {
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 4 : i64}
      : (tensor<1x7x4xui8>, tensor<3x1x4xui8>) -> tensor<1x5x4xui32>
  return %r : tensor<1x5x4xui32>
}
func.func @groups(%x: tensor<1x7x6xui16>, %w: tensor<1x3x4xui16>) -> tensor<1x7x4xui32> {
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
      : (tensor<1x7x6xui16>, tensor<1x3x4xui16>) -> tensor<1x7x4xui32>
  return %r : tensor<1x7x4xui32>
}
"""


def unsigned_multiplicands() -> dict[str, tuple[list[np.ndarray], np.ndarray]]:
    """Arguments and results of each function."""
    random = np.random.default_rng(0)
    x, y = random.integers(-9, 10, (2, 3, 5)).astype(np.float32)
    w = random.integers(-128, 128, (5, 4)).astype(np.int8)
    bytes_ = random.integers(128, 256, (5, 4)).astype(np.uint8)
    words = random.integers(1 << 15, 1 << 16, (2, 3, 5)).astype(np.uint16)
    wide = random.integers(-(1 << 40), 1 << 40, (2, 5, 4))
    line = random.integers(0, 256, (1, 7, 5)).astype(np.uint8)
    indices, taps = line[..., :4].copy(), bytes_[:3, None].copy()
    deep = sum(indices[:, i : i + 5].astype(np.int64) * taps[i, 0] for i in range(3))
    channels = random.integers(1 << 12, 1 << 14, (1, 7, 6)).astype(np.uint16)
    weight = random.integers(1 << 15, 1 << 16, (1, 3, 4)).astype(np.uint16)
    halves = [channels[..., n : n + 3].astype(np.int64) for n in (0, 3)]
    sides = [half @ weight[0, :, n : n + 2] for half, n in zip(halves, (0, 2), strict=True)]
    return {
        "direct": ([line[0, :3], bytes_], line[0, :3].astype(np.int64) @ bytes_.astype(np.int64)),
        "depthwise": ([indices, taps], deep),
        "groups": ([channels, weight], np.concatenate(sides, 2) % (1 << 32)),
        "booleans": ([x, y, w], (x < y).astype(np.int64) @ w.astype(np.int64)),
        "floats": ([x, bytes_], x.astype(np.float64) @ bytes_),
        "batches": ([words, wide], words.astype(np.int64) @ wide),
        "windows": ([line, bytes_[None]], line.astype(np.int64) @ bytes_.astype(np.int64)),
    }


@ON_DEVICES
def test_unsigned_multiplicands_are_widened(device: Device, device_name: str) -> None:
    executable = compile_for(UNSIGNED_MULTIPLICANDS, device)
    for name, (arguments, expected) in unsigned_multiplicands().items():
        np.testing.assert_array_equal(executable[name](*arguments), expected, err_msg=name)


def test_multiplicands_are_still_read_as_signed(cpu: Device) -> None:
    arguments, expected = unsigned_multiplicands()["booleans"]
    text = UNSIGNED_MULTIPLICANDS.partition("func.func @floats")[0]
    actual = Executable(compile_bare(text), cpu)["booleans"](*arguments)
    np.testing.assert_array_equal(actual, -expected, err_msg=FIXED + "unsigned_multiplicands.py")


NEIGHBORS = """
func.func @main(%x: tensor<?x2x?xi8>) -> (tensor<?xi32>, tensor<?x2x?xi8>) {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.negate %x : tensor<?x2x?xi8>
  %w = stablehlo.convert %n : (tensor<?x2x?xi8>) -> tensor<?x2x?xi32>
  %s = stablehlo.reduce(%w init: %z) applies stablehlo.add across dimensions = [1, 2]
      : (tensor<?x2x?xi32>, tensor<i32>) -> tensor<?xi32>
  return %s, %n : tensor<?xi32>, tensor<?x2x?xi8>
}
"""


def test_neighboring_axes_still_get_the_size_of_another(cpu: Device) -> None:
    x = np.arange(1, 13, dtype=np.int8).reshape(2, 2, 3)
    _, right = subquant.compile(NEIGHBORS).main(x)
    np.testing.assert_array_equal(right, -x)
    _, bare = Executable(compile_bare(NEIGHBORS), cpu)["main"](x)
    wrong = (np.asarray(bare) != -x).any()
    assert wrong, FIXED + "iree_workarounds/dynamic_reductions.py, and the known limit"


WIDENED_DEPTHWISE = """
func.func @main(%x: tensor<1x5x5x4xf16>, %w: tensor<3x3x1x4xf16>) -> tensor<1x3x3x4xf32> {
  %f = stablehlo.convert %x : (tensor<1x5x5x4xf16>) -> tensor<1x5x5x4xf32>
  %g = stablehlo.convert %w : (tensor<3x3x1x4xf16>) -> tensor<3x3x1x4xf32>
  %r = stablehlo.convolution(%f, %g) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {} {batch_group_count = 1 : i64, feature_group_count = 4 : i64}
      : (tensor<1x5x5x4xf32>, tensor<3x3x1x4xf32>) -> tensor<1x3x3x4xf32>
  return %r : tensor<1x3x3x4xf32>
}
"""


def test_a_widened_depthwise_convolution(cpu: Device) -> None:
    """In the program, and by the convolution itself."""
    x, w = (
        np.arange(np.prod(shape), dtype=np.float16).reshape(shape) % 7
        for shape in ((1, 5, 5, 4), (3, 3, 1, 4))
    )
    indices = [(i, j) for i in range(3) for j in range(3)]
    expected = sum(x[:, i : i + 3, j : j + 3].astype(np.float64) * w[i, j] for i, j in indices)
    mixed = re.sub(r"  %[fg] = .*\n", "", WIDENED_DEPTHWISE).replace("@main", "@mixed")
    mixed = mixed.replace("%f, %g", "%x, %w")
    mixed = mixed.replace("5x4xf32>, tensor<3x3x1x4xf32>", "5x4xf16>, tensor<3x3x1x4xf16>")
    executable = compile_for(WIDENED_DEPTHWISE + mixed, cpu)
    for function in (executable.main, executable.mixed):
        np.testing.assert_array_equal(function(x, w), expected)
    workaround = "_is_widened in iree_workarounds/convolutions.py"
    assert_refused(WIDENED_DEPTHWISE, b"expected collapsed type", workaround)


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
    got, expected = shifted(compile_for(SHIFT_REGISTER, vulkan))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.vulkan
def test_later_calls_are_still_wrong_with_recorded_command_buffers(vulkan: Device) -> None:
    options = CompileOptions(target="vulkan")
    module = compile_to_bytes(SHIFT_REGISTER, options, emit="mlir").decode()
    flags = [flag for flag in options.flags if flag != "--iree-hal-memoization=false"]
    assert len(flags) < len(options.flags)
    got, expected = shifted(Executable(compile_bare(module, *flags), vulkan))
    np.testing.assert_array_equal(got[0], expected[0])
    assert (got[1:] != expected[1:]).any(), FIXED + "--iree-hal-memoization=false"


def test_reproducers_are_of_the_lowered_module(in_temporary_folder: object) -> None:
    """A refused module is reproduced as IREE got it."""
    text = "func.func @main(%n: index) -> tensor<?xf32> {\n  %c = arith.constant 1.0 : f32\n"
    text += "  %y = tensor.splat %c[%n] : tensor<?xf32>\n  return %y : tensor<?xf32>\n}"
    with pytest.raises(CompilerError, match="IREE refused the module") as caught:
        compile_to_bytes(text, reproducer="here.mlir")
    assert "replay with: iree-compile here.mlir" in str(caught.value)


PAD = "stablehlo.pad %{}, %z, low = [{}], high = [{}], interior = [{}]"
MISPLACED = {
    "broadcast_axes": (
        """
func.func @main(%x: tensor<2x2x2xi32>) -> tensor<2x2x2xi32> {
  %r = stablehlo.broadcast_in_dim %x, dims = [1, 2, 0] : (tensor<2x2x2xi32>) -> tensor<2x2x2xi32>
  return %r : tensor<2x2x2xi32>
}
""",
        np.arange(8, dtype=np.int32).reshape(2, 2, 2),
        lambda x: x.transpose(2, 0, 1),
    ),
    "interior_pads": (
        f"""
func.func @main(%x: tensor<2x2xi32>) -> tensor<2x4xi32> {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %d = {PAD.format("x", "0, 0", "0, 0", "0, 1")}
      : (tensor<2x2xi32>, tensor<i32>) -> tensor<2x3xi32>
  %r = {PAD.format("d", "0, 1", "0, 0", "0, 0")}
      : (tensor<2x3xi32>, tensor<i32>) -> tensor<2x4xi32>
  return %r : tensor<2x4xi32>
}}
""",
        np.array([[1, 2], [3, 4]], np.int32),
        lambda x: np.array([[0, a, 0, b] for a, b in x]),
    ),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_elements_are_still_at_wrong_indices(cpu: Device, name: str) -> None:
    text, x, function = MISPLACED[name]
    np.testing.assert_array_equal(subquant.compile(text).main(x), function(x))
    got = Executable(compile_bare(text), cpu)["main"](x)
    assert (np.asarray(got) != function(x)).any(), FIXED + f"iree_workarounds/{name}.py"


REFUSED = {
    "scatter_axes": """
func.func @main(%x: tensor<4x5xf32>, %i: tensor<3x1xi32>, %u: tensor<3x2x5xf32>)
    -> tensor<4x5xf32> {
  %r = "stablehlo.scatter"(%x, %i, %u) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1, 2],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
      : (tensor<4x5xf32>, tensor<3x1xi32>, tensor<3x2x5xf32>) -> tensor<4x5xf32>
  return %r : tensor<4x5xf32>
}
""",
    "window_ends": """
func.func @main(%x: tensor<4xf32>, %i: tensor<f32>) -> tensor<1xf32> {
  %r = "stablehlo.reduce_window"(%x, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>}
      : (tensor<4xf32>, tensor<f32>) -> tensor<1xf32>
  return %r : tensor<1xf32>
}
""",
    "index_bounds (order_indices)": """
func.func @main(%x: tensor<4x2xf32>, %i: tensor<1x4xi32>) -> tensor<4xf32> {
  %r = "stablehlo.gather"(%x, %i) {slice_sizes = array<i64: 1, 1>,
      dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1],
          operand_batching_dims = [0], start_indices_batching_dims = [1],
          start_index_map = [1], index_vector_dim = 0>}
      : (tensor<4x2xf32>, tensor<1x4xi32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
""",
    "index_bounds (widen_starts)": """
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %r = "stablehlo.dynamic_slice"(%x) {slice_sizes = array<i64>} : (tensor<f32>) -> tensor<f32>
  return %r : tensor<f32>
}
""",
    "dynamic_contractions (dots)": """
func.func @main(%x: tensor<?x4xf32>, %w: tensor<4x1xf32>) -> tensor<?x1xf32> {
  %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<?x4xf32>, tensor<4x1xf32>) -> tensor<?x1xf32>
  return %r : tensor<?x1xf32>
}
""",
    "dynamic_contractions (convolutions)": """
func.func @main(%x: tensor<1x?x2xf32>, %k: tensor<3x2x3xf32>) -> tensor<1x?x3xf32> {
  %r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x?x2xf32>, tensor<3x2x3xf32>) -> tensor<1x?x3xf32>
  return %r : tensor<1x?x3xf32>
}
""",
    "dynamic_windows": """
func.func @main(%x: tensor<?x4x4x2xi8>, %i: tensor<i8>) -> tensor<?x2x2x2xi8> {
  %r = "stablehlo.reduce_window"(%x, %i) ({
  ^bb0(%a: tensor<i8>, %b: tensor<i8>):
    %s = stablehlo.maximum %a, %b : tensor<i8>
    stablehlo.return %s : tensor<i8>
  }) {window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}
      : (tensor<?x4x4x2xi8>, tensor<i8>) -> tensor<?x2x2x2xi8>
  return %r : tensor<?x2x2x2xi8>
}
""",
    "dynamic_gathers": """
func.func @main(%w: tensor<4x2xf32>, %i: tensor<?x1xi32>) -> tensor<?x2xf32> {
  %r = "stablehlo.gather"(%w, %i) {slice_sizes = array<i64: 1, 2>,
      dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
          start_index_map = [0], index_vector_dim = 1>}
      : (tensor<4x2xf32>, tensor<?x1xi32>) -> tensor<?x2xf32>
  return %r : tensor<?x2xf32>
}
""",
    "dynamic_updates": """
func.func @main(%x: tensor<?x4xf32>, %u: tensor<?x2xf32>, %i: tensor<i32>) -> tensor<?x4xf32> {
  %r = stablehlo.dynamic_update_slice %x, %u, %i, %i
      : (tensor<?x4xf32>, tensor<?x2xf32>, tensor<i32>, tensor<i32>) -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
""",
    "dynamic_shapes (expand_pad)": """
func.func @main(%x: tensor<?x4xf32>, %z: tensor<f32>) -> tensor<?x3xf32> {
  %r = stablehlo.pad %x, %z, low = [0, -1], high = [0, 0], interior = [0, 0]
      : (tensor<?x4xf32>, tensor<f32>) -> tensor<?x3xf32>
  return %r : tensor<?x3xf32>
}
""",
    "index_switches": """
func.func @main(%k: index, %x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
  %r = scf.index_switch %k -> tensor<f32>
  case 0 { scf.yield %x : tensor<f32> }
  case 1 { scf.yield %y : tensor<f32> }
  default { scf.yield %x : tensor<f32> }
  return %r : tensor<f32>
}
""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_are_still_refused(name: str) -> None:
    subquant.compile(REFUSED[name])
    assert_refused(REFUSED[name], b"", f"iree_workarounds/{name}")


DEPTHWISE = """
func.func @main(%x: tensor<1x4x4x4x2xi32>, %k: tensor<2x2x2x1x4xi32>) -> tensor<1x3x3x3x4xi32> {
  %y = stablehlo.convolution(%x, %k)
      dim_numbers = [b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 2 : i64}
      : (tensor<1x4x4x4x2xi32>, tensor<2x2x2x1x4xi32>) -> tensor<1x3x3x3x4xi32>
  return %y : tensor<1x3x3x3x4xi32>
}
"""


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


@pytest.mark.parametrize("target", ["generic", "generic-32bit"])
def test_drivers_may_not_compute_floats_otherwise(target: str) -> None:
    """NVIDIA's rounds products and sums together, and has no NaN, where nothing forbids that."""
    options = CompileOptions("vulkan", vulkan_target=target)
    assert not loosely_computed(compile_to_bytes(FLOATS, options))
    as_iree = replace(options, iree_flags=("--iree-hal-indirect-command-buffers=true",))
    actual = loosely_computed(compile_to_bytes(FLOATS, as_iree))
    assert any(each.startswith("operation") for each in actual)
    assert any(each.startswith("entry point") for each in actual)


RESIDUAL_NORM = """
!q = !quant.uniform<u8:f32, 0.05:128>
func.func @main(%x: tensor<128x384xf32>, %y: tensor<128x384xf32>)
    -> (tensor<128x384x!q>, tensor<128x384xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %count = stablehlo.constant dense<384.0> : tensor<128x384xf32>
  %least = stablehlo.constant dense<1.0e-5> : tensor<128x384xf32>
  %sum = stablehlo.add %x, %y : tensor<128x384xf32>
  %s = stablehlo.reduce(%sum init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<128x384xf32>, tensor<f32>) -> tensor<128xf32>
  %sb = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<128xf32>) -> tensor<128x384xf32>
  %mean = stablehlo.divide %sb, %count : tensor<128x384xf32>
  %d = stablehlo.subtract %sum, %mean : tensor<128x384xf32>
  %d2 = stablehlo.multiply %d, %d : tensor<128x384xf32>
  %v = stablehlo.reduce(%d2 init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<128x384xf32>, tensor<f32>) -> tensor<128xf32>
  %vb = stablehlo.broadcast_in_dim %v, dims = [0] : (tensor<128xf32>) -> tensor<128x384xf32>
  %variance = stablehlo.divide %vb, %count : tensor<128x384xf32>
  %positive = stablehlo.add %variance, %least : tensor<128x384xf32>
  %r = stablehlo.rsqrt %positive : tensor<128x384xf32>
  %n = stablehlo.multiply %d, %r : tensor<128x384xf32>
  %q = stablehlo.uniform_quantize %n : (tensor<128x384xf32>) -> tensor<128x384x!q>
  return %q, %sum : tensor<128x384x!q>, tensor<128x384xf32>
}
"""


@pytest.mark.parametrize("rows", [(128, 384), (1, 26880)], ids=["rows", "one long row"])
def test_a_residual_sum_and_its_norm(rows: tuple[int, int], cpu: Device) -> None:
    """The quotient of the quantization is within 1e-3 of float64's: it may be on either side."""
    text = RESIDUAL_NORM.replace("128x384", f"{rows[0]}x{rows[1]}").replace("384.0", f"{rows[1]}.0")
    text = text.replace("tensor<128x", f"tensor<{rows[0]}x")
    x, y = np.random.default_rng(8).standard_normal((2, *rows)).astype(np.float32)
    got, total = compile_for(text, cpu).main(x, y)
    np.testing.assert_array_equal(total, x + y)
    d = (x + y).astype(np.float64)
    d -= d.mean(axis=1, keepdims=True)
    quotient = d / np.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-5) / 0.05 + 128
    assert np.abs(got - np.clip(quotient, 0, 255)).max() <= 0.5 + 1e-3


def test_shared_fusions_still_exceed_the_stack() -> None:
    # With the short vectors of older CPUs the tiles are smaller, and fit.
    options = CompileOptions(
        target_cpu="haswell", iree_flags=("--iree-dispatch-creation-fuse-multi-use=true",)
    )
    fused = "the flag fuse-multi-use in run_iree, and the entry in docs/limits.md"
    try:
        compile_to_bytes(RESIDUAL_NORM, options, cache="")
    except CompilerError as error:
        assert "exceeded stack allocation limit" in error.message  # noqa: PT017
    else:
        pytest.fail(FIXED + fused)


PARTIAL_READS = {
    "reduce_window": """
      %1 = "stablehlo.reduce_window"(%0, %zero) <{
        window_dimensions = array<i64: 1, 1, 1, 1>, window_strides = array<i64: 1, 2, 2, 1>
      }> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %r = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %r : tensor<f32>
      }) : (tensor<1x9x9x4xf32>, tensor<f32>) -> tensor<1x5x5x4xf32>""",
    "depthwise convolution": """
      %1 = stablehlo.convolution(%0, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {stride = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 4 : i64}
        : (tensor<1x9x9x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x5x5x4xf32>""",
    "tosa": """
      %1 = tosa.max_pool2d %0 {
        kernel = array<i64: 1, 1>, stride = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>
      } : (tensor<1x9x9x4xf32>) -> tensor<1x5x5x4xf32>""",
    "linalg": """
      %e = tensor.empty() : tensor<1x5x5x4xf32>
      %1 = linalg.generic {
        indexing_maps = [affine_map<(b, i, j, c) -> (b, i * 2, j * 2, c)>,
                         affine_map<(b, i, j, c) -> (b, i, j, c)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]
      } ins(%0 : tensor<1x9x9x4xf32>) outs(%e : tensor<1x5x5x4xf32>) {
      ^bb0(%a: f32, %o: f32):
        linalg.yield %a : f32
      } -> tensor<1x5x5x4xf32>""",
}


def partial_read(name: str) -> str:
    """Return a program that reads a part of an operand, and all of it elsewhere."""
    return f"""
    func.func @main(%x: tensor<1x9x9x4xf32>, %w: tensor<1x1x1x4xf32>)
        -> (tensor<1x5x5x4xf32>, tensor<1x9x9x4xf32>) {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.abs %x : tensor<1x9x9x4xf32>
      {PARTIAL_READS[name]}
      %2 = stablehlo.negate %0 : tensor<1x9x9x4xf32>
      return %1, %2 : tensor<1x5x5x4xf32>, tensor<1x9x9x4xf32>
    }}
    """


def test_a_window_without_axes_is_compiled(cpu: Device) -> None:
    text = """
    func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = "stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %r = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %r : tensor<f32>
      }) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }
    """
    assert compile_for(text, cpu).main(np.float32(2.5)) == 2.5


def partial_arguments() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(9).standard_normal((1, 9, 9, 4)).astype(np.float32)
    return x, np.ones((1, 1, 1, 4), np.float32)


@ON_DEVICES
@pytest.mark.parametrize("name", PARTIAL_READS)
def test_an_operand_that_is_read_in_part_is_written_whole(name: str, device: Device) -> None:
    x, w = partial_arguments()
    part, whole = compile_for(partial_read(name), device).main(x, w)
    np.testing.assert_array_equal(part, np.abs(x)[:, ::2, ::2])
    np.testing.assert_array_equal(whole, -np.abs(x))


def test_an_operand_that_is_read_in_part_is_still_written_in_part(cpu: Device) -> None:
    x, w = partial_arguments()
    _, whole = Executable(compile_bare(partial_read("reduce_window")), cpu).main(x, w)
    assert (np.asarray(whole) != -np.abs(x)).any(), (
        FIXED + "iree_workarounds/partial_reads.py, and the entry in docs/limits.md"
    )


GATHER = """
func.func @main(%x: tensor<3x4xf32>) -> (tensor<2x4xf32>, tensor<3x4xf32>) {
  %i = stablehlo.constant dense<0> : tensor<2xi32>
  %0 = stablehlo.abs %x : tensor<3x4xf32>
  %1 = "stablehlo.gather"(%0, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
                                          start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 4>
  }> : (tensor<3x4xf32>, tensor<2xi32>) -> tensor<2x4xf32>
  %2 = stablehlo.negate %0 : tensor<3x4xf32>
  return %1, %2 : tensor<2x4xf32>, tensor<3x4xf32>
}
"""


@ON_DEVICES
def test_an_operand_of_a_gather_at_one_position_is_written_whole(device: Device) -> None:
    x = np.random.default_rng(10).standard_normal((3, 4)).astype(np.float32)
    part, whole = compile_for(GATHER, device).main(x)
    np.testing.assert_array_equal(part, np.abs(x)[[0, 0]])
    np.testing.assert_array_equal(whole, -np.abs(x))


DILATIONS = {
    "pad": """
      %1 = stablehlo.pad %0, %zero, low = [0, 0], high = [0, 0], interior = [1, 1]
        : (tensor<5x6xf32>, tensor<f32>) -> tensor<9x11xf32>""",
    "reduce_window": """
      %1 = "stablehlo.reduce_window"(%0, %zero) <{
        window_dimensions = array<i64: 1, 1>, base_dilations = array<i64: 2, 2>
      }> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %r = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %r : tensor<f32>
      }) : (tensor<5x6xf32>, tensor<f32>) -> tensor<9x11xf32>""",
    "convolution": """
      %image = stablehlo.reshape %0 : (tensor<5x6xf32>) -> tensor<1x5x6x1xf32>
      %w = stablehlo.constant dense<1.0> : tensor<1x1x1x1xf32>
      %r = stablehlo.convolution(%image, %w)
        dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {lhs_dilate = [2, 2]}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x5x6x1xf32>, tensor<1x1x1x1xf32>) -> tensor<1x9x11x1xf32>
      %1 = stablehlo.reshape %r : (tensor<1x9x11x1xf32>) -> tensor<9x11xf32>""",
}


def padded_and_dilated(name: str) -> str:
    """Return a program that dilates a padded tensor."""
    return f"""
    func.func @main(%x: tensor<3x4xf32>) -> tensor<9x11xf32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.pad %x, %zero, low = [1, 1], high = [1, 1], interior = [0, 0]
        : (tensor<3x4xf32>, tensor<f32>) -> tensor<5x6xf32>
      {DILATIONS[name]}
      return %1 : tensor<9x11xf32>
    }}
    """


def dilated() -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    expected = np.zeros((9, 11), np.float32)
    expected[::2, ::2] = np.pad(x, 1)
    return x, expected


@ON_DEVICES
@pytest.mark.parametrize("name", DILATIONS)
def test_a_padded_operand_is_dilated(name: str, device: Device) -> None:
    x, expected = dilated()
    got = compile_for(padded_and_dilated(name), device).main(x)
    np.testing.assert_array_equal(got, expected)


def test_a_padded_operand_is_still_dilated_wrongly(cpu: Device) -> None:
    x, expected = dilated()
    got = Executable(compile_bare(padded_and_dilated("pad")), cpu).main(x)
    assert (np.asarray(got) != expected).any(), (
        FIXED + "the operand's barrier in iree_workarounds/interior_pads.py"
    )


RESOURCE = """
func.func @main(%x: tensor<4xbf16>) -> tensor<4xbf16> {
  %c = stablehlo.constant dense_resource<weight> : tensor<4xbf16>
  %y = stablehlo.multiply %x, %c : tensor<4xbf16>
  return %y : tensor<4xbf16>
}
{-# dialect_resources: { builtin: { weight: "0x02000000C03F204060C0003E" } } #-}
"""


@ON_DEVICES
def test_a_small_resource_of_bf16(device: Device) -> None:
    x = np.array([1, -2, 4, 8], ml_dtypes.bfloat16)
    got = compile_for(RESOURCE, device).main(x)
    expected = np.array([1.5, -5, -14, 1], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(got).view(np.uint16), expected.view(np.uint16))


def test_a_small_resource_of_bf16_is_still_refused() -> None:
    message = b"all of {value, result} have same type"
    assert_refused(RESOURCE, message, "_write_elements in fold-constants")
