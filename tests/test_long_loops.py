"""Reductions longer than the loops of Mesa's llvmpipe, and loops that are refused there.

See `subquant.transforms.iree_workarounds.long_loops`. Operands are small integers,
so that every order of a sum gives the same; expected numbers are NumPy's.
"""

from __future__ import annotations

import numpy as np
import pytest

import subquant
from devices import run
from programs import PRODUCT, one_operation
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.errors import ExecutionError
from subquant.iree_hooks.entry_names import SET_LOOP_LIMIT
from subquant.runtime import Device, Executable
from subquant.runtime.open_device import iree_runtime

pytestmark = pytest.mark.vulkan


def small(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-9, 10, shape).astype(np.int32)


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "axes", "rows"),
    [
        ((70000,), [0], None),  # a divisor cuts it
        ((2, 70001), [1], None),  # it is padded: no divisor
        ((2, 70001), [1], "?"),
        ((9001, 3), [0], None),
        ((3, 300, 2, 300), [1, 3], None),
    ],
)
def test_reductions(
    vulkan: Device, shape: tuple[int, ...], axes: list[int], rows: str | None
) -> None:
    """The initial value pads the parts, and does not change the result."""
    whole = "x".join([rows or str(shape[0]), *map(str, shape[1:])])
    sizes = [rows or str(n) if axis == 0 else str(n) for axis, n in enumerate(shape)]
    result = "".join(f"{n}x" for axis, n in enumerate(sizes) if axis not in axes)
    text = f"""
func.func @main(%x: tensor<{whole}xi32>) -> tensor<{result}i32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = {axes}
      : (tensor<{whole}xi32>, tensor<i32>) -> tensor<{result}i32>
  return %s : tensor<{result}i32>
}}"""
    x = small(*shape)
    np.testing.assert_array_equal(run(text, vulkan, x), x.sum(tuple(axes)))


ARGMAX = """
func.func @main(%x: tensor<2x70001xi32>) -> (tensor<2xi32>, tensor<2xi32>) {
  %least = stablehlo.constant dense<-2147483648> : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %i = stablehlo.iota dim = 1 : tensor<2x70001xi32>
  %r:2 = stablehlo.reduce(%x init: %least), (%i init: %zero) across dimensions = [1]
      : (tensor<2x70001xi32>, tensor<2x70001xi32>, tensor<i32>, tensor<i32>)
        -> (tensor<2xi32>, tensor<2xi32>)
      reducer(%a: tensor<i32>, %b: tensor<i32>) (%j: tensor<i32>, %k: tensor<i32>) {
    %c = stablehlo.compare GE, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %v = stablehlo.select %c, %a, %b : tensor<i1>, tensor<i32>
    %w = stablehlo.select %c, %j, %k : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<i32>, tensor<i32>
  }
  return %r#0, %r#1 : tensor<2xi32>, tensor<2xi32>
}
"""


def test_a_reduction_of_several_operands(vulkan: Device) -> None:
    x = np.random.default_rng(2).permutation(140002).reshape(2, 70001).astype(np.int32)
    greatest, index = run(ARGMAX, vulkan, x)
    np.testing.assert_array_equal(greatest, x.max(1))
    np.testing.assert_array_equal(index, x.argmax(1))


@pytest.mark.parametrize(
    ("rows", "columns", "length"),
    [(1, 2, 70001), (8, 33, 8200), (2, 8, 65536)],  # 33: an invocation has eight elements
)
@pytest.mark.parametrize("element", ["i8", "f32"])
def test_contractions(vulkan: Device, rows: int, columns: int, length: int, element: str) -> None:
    """Sums are integers below 2**24, which f32 holds."""
    wide = {"i8": "i32", "f32": "f32"}[element]
    types = [f"{rows}x{length}x{element}", f"{length}x{columns}x{element}"]
    text = one_operation(PRODUCT, types, f"{rows}x{columns}x{wide}")
    dtype = {"i8": np.int8, "f32": np.float32}[element]
    a, b = small(rows, length), small(length, columns)
    actual = run(text, vulkan, a.astype(dtype), b.astype(dtype))
    np.testing.assert_array_equal(actual, a @ b)


UNSIGNED = one_operation(
    PRODUCT,
    ["1x32768x!quant.uniform<u8:f32, 1.0>", "32768x2x!quant.uniform<u8:f32, 1.0>"],
    "1x2x!quant.uniform<i32:f32, 4.0>",
)


def test_products_of_unsigned_storage(vulkan: Device) -> None:
    """A quarter of a sum below 2**31, to the nearest, ties to even."""
    generator = np.random.default_rng(3)
    a, w = (generator.integers(0, 256, s).astype(np.uint8) for s in ((1, 32768), (32768, 2)))
    expected = np.rint((a.astype(np.int64) @ w.astype(np.int64)) / 4)
    np.testing.assert_array_equal(run(UNSIGNED, vulkan, a, w), expected)


DYNAMIC = {
    "a reduction": (
        """
func.func @main(%x: tensor<2x?xi32>) -> tensor<2xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
      : (tensor<2x?xi32>, tensor<i32>) -> tensor<2xi32>
  return %s : tensor<2xi32>
}""",
        "stablehlo.reduce",
        lambda n: [small(2, n)],
        lambda x: x.sum(1),
    ),
    "a reduction of two axes of what is computed": (
        """
func.func @main(%x: tensor<?x3x?xi32>) -> tensor<3xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %y = stablehlo.multiply %x, %x : tensor<?x3x?xi32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 2]
      : (tensor<?x3x?xi32>, tensor<i32>) -> tensor<3xi32>
  return %s : tensor<3xi32>
}""",
        "stablehlo.reduce",
        lambda n: [small(n // 10, 3, 5)],  # two loops, which both count
        lambda x: (x * x).sum((0, 2)),
    ),
    "a contraction": (
        one_operation(PRODUCT, ["2x?xi32", "?x3xi32"], "2x3xi32"),
        "stablehlo.dot_general",
        lambda n: [small(2, n), small(n, 3)],
        lambda a, b: a @ b,
    ),
    "a loop": (
        """
func.func @main(%x: tensor<?xi32>, %i: tensor<i32>) -> tensor<i32> {
  %s = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>],
      iterator_types = ["reduction"]} ins(%x : tensor<?xi32>) outs(%i : tensor<i32>) {
  ^bb0(%a: i32, %o: i32):
    %r = arith.addi %a, %o : i32
    linalg.yield %r : i32
  } -> tensor<i32>
  return %s : tensor<i32>
}""",
        "linalg.generic",
        lambda n: [small(n), np.int32(7)],
        lambda x, i: x.sum() + i,
    ),
}
"""Programs, the operation with the loop, arguments of a length, and expected results."""


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_loop_of_unknown_length_is_refused_where_it_would_end(vulkan: Device, name: str) -> None:
    """65,535 times 9 * 9 fits an i32."""
    text, what, arguments, expected = DYNAMIC[name]
    main = subquant.compile(text, target="vulkan", device=vulkan).main
    np.testing.assert_array_equal(main(*arguments(65535)), expected(*arguments(65535)))
    if not vulkan.ends_long_loops:
        pytest.skip("the Vulkan device is not llvmpipe")
    with pytest.raises(ExecutionError, match=rf"the loops of '{what}' at -:\d+:\d+ run more than"):
        main(*arguments(65540))


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_loop_of_unknown_length_runs_elsewhere(vulkan_32bit: Device, name: str) -> None:
    text, _, arguments, expected = DYNAMIC[name]
    actual = run(text, vulkan_32bit, *arguments(65540))
    np.testing.assert_array_equal(actual, expected(*arguments(65540)))


def test_a_sort_of_unknown_length(vulkan: Device) -> None:
    """Each element is compared with each: 255 elements, and not 300."""
    main = subquant.compile(SORT.replace("300", "?"), target="vulkan", device=vulkan).main
    x = np.random.default_rng(4).permutation(300).astype(np.float32)
    np.testing.assert_array_equal(main(x[:255]), np.sort(x[:255]))
    if not vulkan.ends_long_loops:
        pytest.skip("the Vulkan device is not llvmpipe")
    with pytest.raises(ExecutionError, match=r"loops of .stablehlo.sort. at -:3:8 run more"):
        main(x)


def test_llvmpipe_still_ends_loops(vulkan: Device) -> None:
    """Runs as in another runtime, which does not bound loops."""
    if not vulkan.ends_long_loops:
        pytest.skip("the Vulkan device is not llvmpipe")
    text, _, arguments, expected = DYNAMIC["a reduction"]
    executable = Executable(compile_to_bytes(text, CompileOptions(target="vulkan")), vulkan)
    unbounded(executable)
    (x,) = arguments(70000)
    assert (executable.main(x) != expected(x)).any(), (
        "Mesa is fixed: remove iree_workarounds/long_loops.py and bound-loops for newer ones"
    )


def unbounded(executable: Executable) -> None:
    """Remove the loop limit that the runtime has set."""
    most = iree_runtime().VmVariantList(1)
    most.push_int((1 << 63) - 1)
    handle = executable._module.lookup_function(SET_LOOP_LIMIT)
    executable.main._invoker.invoke(handle, most, iree_runtime().VmVariantList(0))


SORT = """
func.func @main(%x: tensor<300xf32>) -> tensor<300xf32> {
  %0 = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) {dimension = 0 : i64} : (tensor<300xf32>) -> tensor<300xf32>
  return %0 : tensor<300xf32>
}
"""


def test_a_loop_that_a_device_ends_is_refused(vulkan: Device) -> None:
    """300 elements with 299 others, which one invocation compares."""
    data = compile_to_bytes(SORT, CompileOptions(target="vulkan"))
    if not vulkan.ends_long_loops:
        pytest.skip("the Vulkan device is not llvmpipe")
    with pytest.raises(ExecutionError, match=r"a loop 89700 times for 'stablehlo.sort' at -:3:8"):
        Executable(data, vulkan)


def test_that_loop_runs_elsewhere(vulkan_32bit: Device) -> None:
    x = np.random.default_rng(4).permutation(300).astype(np.float32)
    np.testing.assert_array_equal(run(SORT, vulkan_32bit, x), np.arange(300))
