"""Programs that IREE 3.13 refuses, and the workarounds of subquant.

A program through subquant is compiled, and the same program without the pass or flag that guards it
is still refused. When that test fails, IREE is fixed: remove the workaround in the message, and the
entry in docs/limits.md. Wrong results are in test_iree_limits_numbers.py (all targets) and
test_iree_limits_vulkan.py.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import subquant
from bare_iree import FIXED, assert_refused
from devices import ON_DEVICES, compile_for, run
from programs import PRODUCT, convolution_of, one_operation
from stablehlo_forms import SCATTERS, reduce_window, scatter
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import CompilerError
from subquant.runtime import Device

ODD = one_operation('"arith.trunci"(%0)', ["5x3xi32"], "5x3xi4")


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


@pytest.mark.long
def test_booleans_as_bytes_are_still_refused() -> None:
    message = b"restricted to workgroup distributed contexts"
    assert_refused(BOOLEANS.replace("TYPE", "i8"), message, "iree_workarounds/returned_booleans.py")


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
    taps = np.ndindex(3, 3)
    expected = sum(x[:, i : i + 3, j : j + 3].astype(np.float64) * w[i, j] for i, j in taps)
    mixed = re.sub(r"  %[fg] = .*\n", "", WIDENED_DEPTHWISE).replace("@main", "@mixed")
    mixed = mixed.replace("%f, %g", "%x, %w")
    mixed = mixed.replace("5x4xf32>, tensor<3x3x1x4xf32>", "5x4xf16>, tensor<3x3x1x4xf16>")
    executable = compile_for(WIDENED_DEPTHWISE + mixed, cpu)
    for function in (executable.main, executable.mixed):
        np.testing.assert_array_equal(function(x, w), expected)
    workaround = "_is_widened in iree_workarounds/convolutions.py"
    assert_refused(WIDENED_DEPTHWISE, b"expected collapsed type", workaround)


def test_reproducers_are_of_the_lowered_module(in_temporary_folder: object) -> None:
    """A refused module is reproduced as IREE got it."""
    text = "func.func @main(%n: index) -> tensor<?xf32> {\n  %c = arith.constant 1.0 : f32\n"
    text += "  %y = tensor.splat %c[%n] : tensor<?xf32>\n  return %y : tensor<?xf32>\n}"
    with pytest.raises(CompilerError, match="IREE refused the module") as caught:
        compile_to_bytes(text, reproducer="here.mlir")
    assert "replay with: iree-compile here.mlir" in str(caught.value)


REFUSED = {
    "scatter_axes": scatter(*SCATTERS["window-on-scattered"], "f32"),
    "window_ends": reduce_window(
        (4,), (1,), "window_dimensions = array<i64: 3>, window_strides = array<i64: 2>", "f32"
    ),
    "index_bounds (order_indices)": one_operation(
        """"stablehlo.gather"(%0, %1) {slice_sizes = array<i64: 1, 1>,
      dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1],
          operand_batching_dims = [0], start_indices_batching_dims = [1],
          start_index_map = [1], index_vector_dim = 0>}""",
        ["4x2xf32", "1x4xi32"],
        "4xf32",
    ),
    "index_bounds (widen_starts)": one_operation(
        '"stablehlo.dynamic_slice"(%0) {slice_sizes = array<i64>}', ["f32"], "f32"
    ),
    "dynamic_contractions (dots)": one_operation(PRODUCT, ["?x4xf32", "4x1xf32"], "?x1xf32"),
    "dynamic_contractions (convolutions)": one_operation(
        convolution_of("[b, 0, f]x[0, i, o]->[b, 0, f]"), ["1x?x2xf32", "3x2x3xf32"], "1x?x3xf32"
    ),
    "dynamic_windows": reduce_window(
        ("?", 4, 4, 2),
        ("?", 2, 2, 2),
        "window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>",
        "i8",
        "maximum",
    ),
    "dynamic_gathers": one_operation(
        """"stablehlo.gather"(%0, %1) {slice_sizes = array<i64: 1, 2>,
      dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
          start_index_map = [0], index_vector_dim = 1>}""",
        ["4x2xf32", "?x1xi32"],
        "?x2xf32",
    ),
    "dynamic_updates": one_operation(
        "stablehlo.dynamic_update_slice %0, %1, %2, %3",
        ["?x4xf32", "?x2xf32", "i32", "i32"],
        "?x4xf32",
    ),
    "dynamic_shapes (expand_pad)": one_operation(
        "stablehlo.pad %0, %1, low = [0, -1], high = [0, 0], interior = [0, 0]",
        ["?x4xf32", "f32"],
        "?x3xf32",
    ),
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


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.share(8)
def test_forms_that_are_still_refused(name: str) -> None:
    subquant.compile(REFUSED[name])
    assert_refused(REFUSED[name], b"", f"iree_workarounds/{name}")


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


@pytest.mark.long
def test_shared_fusions_still_exceed_the_stack() -> None:
    # With the short vectors of older CPUs the tiles are smaller, and fit.
    options = CompileOptions(
        target_cpu="haswell",
        kernels="none",
        iree_flags=("--iree-dispatch-creation-fuse-multi-use=true",),
    )
    try:
        compile_to_bytes(RESIDUAL_NORM, options, cache="")
    except CompilerError as error:
        assert "exceeded stack allocation limit" in error.message  # noqa: PT017
    else:
        pytest.fail(FIXED + "the flag fuse-multi-use in run_iree, and the entry in docs/limits.md")


def test_a_window_without_axes_is_compiled(cpu: Device) -> None:
    text = reduce_window((), (), "window_dimensions = array<i64>", "f32")
    assert compile_for(text, cpu).main(np.float32(2.5), np.float32(0)) == 2.5


GATHER_FROM_A_SLICE = """
func.func @main(%x: tensor<3x4x5xf32>, %i: tensor<3xi64>) -> tensor<3x3xf32> {
  %0 = stablehlo.slice %x [0:3, 0:4, 0:1] : (tensor<3x4x5xf32>) -> tensor<3x4x1xf32>
  %1 = stablehlo.reshape %0 : (tensor<3x4x1xf32>) -> tensor<3x4xf32>
  %2 = "stablehlo.gather"(%1, %i) {
    dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1],
                                          start_index_map = [1], index_vector_dim = 1>,
    slice_sizes = array<i64: 3, 1>
  } : (tensor<3x4xf32>, tensor<3xi64>) -> tensor<3x3xf32>
  return %2 : tensor<3x3xf32>
}
"""


@pytest.mark.long
def test_a_gather_from_a_slice_is_still_refused() -> None:
    message = b"LLVM Translation failed for operation: builtin.unrealized_conversion_cast"
    workaround = "`_gathered_operands` in partial_reads: only constant positions need it"
    assert_refused(GATHER_FROM_A_SLICE, message, workaround)


@ON_DEVICES
def test_a_gather_from_a_slice(device: Device) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    i = np.array([3, 0, 2])
    result = compile_for(GATHER_FROM_A_SLICE, device).main(x, i)
    np.testing.assert_array_equal(result, x[:, i, 0])


CROPPED = """
func.func @main(%x: tensor<?x8x8x4xf32>, %w: tensor<3x3x4x4xf32>) -> tensor<?x5x6x4xf32> {
  %0 = stablehlo.convolution(%x, %w)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[-1, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<?x8x8x4xf32>, tensor<3x3x4x4xf32>) -> tensor<?x5x6x4xf32>
  return %0 : tensor<?x5x6x4xf32>
}
"""


@pytest.mark.long
def test_negative_padding_of_a_dynamic_batch_is_still_refused() -> None:
    with pytest.raises(CompilerError, match=r"failed to legalize operation 'stablehlo\.convol"):
        compile_to_bytes(CROPPED, CompileOptions())


TO_BF16 = """
func.func @main(%x: tensor<64xi32>, %p: tensor<64xi1>) -> (tensor<64xbf16>, tensor<64xbf16>) {
  %f = stablehlo.convert %x : (tensor<64xi32>) -> tensor<64xf32>
  %y = stablehlo.convert %f : (tensor<64xf32>) -> tensor<64xbf16>
  %q = stablehlo.convert %p : (tensor<64xi1>) -> tensor<64xbf16>
  return %y, %q : tensor<64xbf16>, tensor<64xbf16>
}
"""


@ON_DEVICES
def test_integers_become_bf16(device: Device, device_name: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-(2**23), 2**23, 64).astype(np.int32)
    p = rng.integers(0, 2, 64).astype(bool)
    for actual, exact in zip(run(TO_BF16, device, x, p), (x, p), strict=True):
        np.testing.assert_array_equal(actual, exact.astype(ml_dtypes.bfloat16))


@pytest.mark.long
def test_conversions_of_integers_to_bf16_are_still_refused() -> None:
    message = b"undefined symbol: __truncsfbf2"
    workaround = "_convert_integers in iree_workarounds/expand_stablehlo.py"
    assert_refused(TO_BF16, message, workaround, cpu="haswell")  # newer ones have an instruction


COMPUTED_UPDATES = scatter(
    ((3000, 16), (2000, 1), (2000, 16)),
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1",
).replace('"stablehlo.scatter"(%0, %1, %2)', '"stablehlo.scatter"(%0, %1, %u)')
COMPUTED_UPDATES = COMPUTED_UPDATES.replace(
    "  %r:1 =", "  %u = stablehlo.negate %2 : tensor<2000x16xi32>\n  %r:1 =", 1
)


@ON_DEVICES
def test_large_updates_are_computed_before(device: Device) -> None:
    rng = np.random.default_rng(0)
    x, updates = (rng.integers(-99, 99, (n, 16)).astype(np.int32) for n in (3000, 2000))
    indices = rng.integers(0, 3000, (2000, 1)).astype(np.int32)
    expected = x.copy()
    np.subtract.at(expected, indices[:, 0], updates)
    actual = run(COMPUTED_UPDATES, device, x, indices, updates)
    np.testing.assert_array_equal(actual, expected)


def test_computed_updates_are_still_refused() -> None:
    message = b"exceeded stack allocation limit"
    assert_refused(COMPUTED_UPDATES, message, "iree_workarounds/scatter_updates.py")
