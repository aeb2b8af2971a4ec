"""Equal tensors that are updated in place do not share a buffer: pads, sorts, scatters, updates.

See `subquant.transforms.iree_workarounds.updates_in_place`. Every program updates two tensors that
are equal at first, with different values; expected numbers are NumPy's.
"""

from __future__ import annotations

import numpy as np
import pytest

from bare_iree import CPU_FLAGS, FIXED, compile_bare
from devices import ON_DEVICES, compile_for, run
from subquant.runtime import Device, Executable


def twice(
    arguments: str,
    result: str,
    statements: str,
    value: str = "%0",
    aliases: str = "",
    shared: str = "",
) -> str:
    """A program that computes ``%0`` of ``%x``, and the same of ``%1`` and ``%y``."""

    def other(text: str) -> str:
        return text.replace("%0", "%1").replace("%x", "%y").replace("%i0", "%i1")

    return f"""{aliases}
func.func @main({arguments}) -> ({result}, {result}) {{
  {shared}
  {statements}
  {other(statements)}
  return {value}, {other(value)} : {result}, {result}
}}
"""


# -- interior padding -----------------------------------------------------------------------------

PADDED_PRODUCTS = """
!x = !quant.uniform<i8:f32, 0.5:-3>
!w = !quant.uniform<i8:f32, 0.5>
!o = !quant.uniform<i32:f32, 0.25>
func.func @main(%x: tensor<3x4x!x>, %y: tensor<3x4x!x>, %w: tensor<7x3x!w>)
    -> (tensor<6x3x!o>, tensor<6x3x!o>) {
  %z = stablehlo.constant() <{value = dense<-3> : tensor<i8>}> : () -> tensor<!x>
  %p = stablehlo.pad %x, %z, low = [1, 0], high = [0, 0], interior = [1, 1]
      : (tensor<3x4x!x>, tensor<!x>) -> tensor<6x7x!x>
  %q = stablehlo.pad %y, %z, low = [1, 0], high = [0, 0], interior = [1, 1]
      : (tensor<3x4x!x>, tensor<!x>) -> tensor<6x7x!x>
  %0 = stablehlo.dot_general %p, %w, contracting_dims = [1] x [0]
      : (tensor<6x7x!x>, tensor<7x3x!w>) -> tensor<6x3x!o>
  %1 = stablehlo.dot_general %q, %w, contracting_dims = [1] x [0]
      : (tensor<6x7x!x>, tensor<7x3x!w>) -> tensor<6x3x!o>
  return %0, %1 : tensor<6x3x!o>, tensor<6x3x!o>
}
"""


@ON_DEVICES
def test_products_of_two_padded_tensors(device: Device, device_name: str) -> None:
    """A quarter is the product of the scales, so results are sums of products of differences."""
    generator = np.random.default_rng(1)
    x, y = generator.integers(-128, 128, (2, 3, 4)).astype(np.int8)
    w = generator.integers(-128, 128, (7, 3)).astype(np.int8)
    for operand, actual in zip((x, y), run(PADDED_PRODUCTS, device, x, y, w), strict=True):
        padded = np.zeros((6, 7), np.int64)
        padded[1::2, ::2] = operand.astype(np.int64) + 3
        np.testing.assert_array_equal(actual, padded @ w.astype(np.int64))


TRANSPOSED = twice(
    "%x: tensor<1x4x5xCINx!x>, %y: tensor<1x4x5xCINx!x>, %w: tensor<3x3x2x4x!w>",
    "tensor<1x9x11x4x!o>",
    """%0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {pad = [[2, 2], [2, 2]], lhs_dilate = [2, 2]}
      {batch_group_count = 1 : i64, feature_group_count = GROUPS : i64}
      : (tensor<1x4x5xCINx!x>, tensor<3x3x2x4x!w>) -> tensor<1x9x11x4x!o>""",
    aliases="""!x = !quant.uniform<i8:f32, 0.5:7>
!w = !quant.uniform<i8:f32, 0.5>
!o = !quant.uniform<i32:f32, 0.25>""",
)


@ON_DEVICES
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(device: Device, device_name: str, groups: int) -> None:
    generator = np.random.default_rng(2)
    x, y = generator.integers(-128, 128, (2, 1, 4, 5, 2 * groups)).astype(np.int8)
    w = generator.integers(-128, 128, (3, 3, 2, 4)).astype(np.int8)
    text = TRANSPOSED.replace("CIN", str(2 * groups)).replace("GROUPS", str(groups))
    for operand, actual in zip((x, y), run(text, device, x, y, w), strict=True):
        padded = np.zeros((11, 13, 2 * groups), np.int64)
        padded[2:9:2, 2:11:2] = operand[0].astype(np.int64) - 7
        expected = np.zeros((9, 11, 4), np.int64)
        of_group = 4 // groups
        for group in range(groups):
            features = slice(group * 2, group * 2 + 2)
            outputs = slice(group * of_group, (group + 1) * of_group)
            for i, j in np.ndindex(9, 11):
                window = padded[i : i + 3, j : j + 3, features]
                kernel = w[..., outputs].astype(np.int64)
                expected[i, j, outputs] = np.einsum("hwc,hwco->o", window, kernel)
        np.testing.assert_array_equal(actual[0], expected)


# -- sorts, updates, scatters ---------------------------------------------------------------------

SORTS = twice(
    "%x: tensor<16xf32>, %y: tensor<16xf32>",
    "tensor<16xi32>",
    """%i0 = stablehlo.iota dim = 0 : tensor<16xi32>
  %0:2 = "stablehlo.sort"(%x, %i0) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
    %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) {dimension = 0 : i64}
      : (tensor<16xf32>, tensor<16xi32>) -> (tensor<16xf32>, tensor<16xi32>)""",
    value="%0#1",
)


def permutations() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.permutation(16).astype(np.float32) for _ in range(2)]


@ON_DEVICES
def test_two_argsorts(device: Device, device_name: str) -> None:
    arguments = permutations()
    for operand, actual in zip(arguments, run(SORTS, device, *arguments), strict=True):
        np.testing.assert_array_equal(actual, np.argsort(operand))


def test_two_argsorts_are_still_wrong_without_flags(cpu: Device) -> None:
    arguments = permutations()
    orders = Executable(compile_bare(SORTS, *CPU_FLAGS[1:]), cpu).main(*arguments)
    assert any(
        (order != np.argsort(x)).any() for order, x in zip(orders, arguments, strict=True)
    ), FIXED + "updates_in_place.py, and the fills of explicit_loops"


UPDATES = """
func.func @main(%x: tensor<2x3xELEMENT>, %y: tensor<2x3xELEMENT>, %at: tensor<i32>)
    -> (tensor<6x6xELEMENT>, tensor<6x6xELEMENT>) {
  %two = stablehlo.constant dense<TWO> : tensor<ELEMENT>
  %i = START
  %0 = stablehlo.dynamic_update_slice %i, %x, %at, %at
      : (tensor<6x7xELEMENT>, tensor<2x3xELEMENT>, tensor<i32>, tensor<i32>) -> tensor<6x7xELEMENT>
  %1 = stablehlo.dynamic_update_slice %i, %y, %at, %at
      : (tensor<6x7xELEMENT>, tensor<2x3xELEMENT>, tensor<i32>, tensor<i32>) -> tensor<6x7xELEMENT>
  %2 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [1]
      : (tensor<6x7xELEMENT>, tensor<6x7xELEMENT>) -> tensor<6x6xELEMENT>
  %3 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [1]
      : (tensor<6x7xELEMENT>, tensor<6x7xELEMENT>) -> tensor<6x6xELEMENT>
  return %2, %3 : tensor<6x6xELEMENT>, tensor<6x6xELEMENT>
}
"""


@ON_DEVICES
@pytest.mark.parametrize("element", ["i32", "i8", "f32"])
@pytest.mark.parametrize("start", ["iota", "constant", "broadcast"])
@pytest.mark.share(6)
def test_updates_of_equal_tensors(
    device: Device, device_name: str, element: str, start: str
) -> None:
    """The numbers are so small that products in i8 do not wrap."""
    two = "2.0" if element == "f32" else "2"
    written = {
        "iota": "stablehlo.iota dim = 0 : tensor<6x7xELEMENT>",
        "constant": f"stablehlo.constant dense<{two}> : tensor<6x7xELEMENT>",
        "broadcast": "stablehlo.broadcast_in_dim %two, dims = []"
        " : (tensor<ELEMENT>) -> tensor<6x7xELEMENT>",
    }[start]
    text = UPDATES.replace("START", written).replace("TWO", two).replace("ELEMENT", element)
    dtype = {"i32": np.int32, "i8": np.int8, "f32": np.float32}[element]
    x, y = np.random.default_rng(4).integers(-1, 2, (2, 2, 3)).astype(dtype)
    for operand, actual in zip((x, y), run(text, device, x, y, np.int32(1)), strict=True):
        whole = np.arange(6)[:, None] + np.zeros(7) if start == "iota" else np.full((6, 7), 2)
        whole = whole.astype(dtype)
        whole[1:3, 1:4] = operand
        np.testing.assert_array_equal(actual, whole @ whole.T)


SCATTERS = twice(
    "%at: tensor<2x1xi32>, %x: tensor<2x3xi32>, %y: tensor<2x3xi32>",
    "tensor<600x3xi32>",
    """%0 = "stablehlo.scatter"(%i, %at, %x) ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %s = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
      : (tensor<600x3xi32>, tensor<2x1xi32>, tensor<2x3xi32>) -> tensor<600x3xi32>""",
    shared="%i = stablehlo.iota dim = 0 : tensor<600x3xi32>",
)


@ON_DEVICES
def test_scatters_into_equal_tensors(device: Device, device_name: str) -> None:
    at = np.array([[3], [598]], np.int32)
    x, y = np.random.default_rng(5).integers(-99, 99, (2, 2, 3)).astype(np.int32)
    for operand, actual in zip((x, y), run(SCATTERS, device, at, x, y), strict=True):
        expected = np.broadcast_to(np.arange(600)[:, None], (600, 3)).copy()
        expected[at[:, 0]] += operand
        np.testing.assert_array_equal(actual, expected)


# -- updates of a tensor with a part of itself ----------------------------------------------------

SHIFTS = """
func.func @main(%x: tensor<33x7xELEMENT>, %y: tensor<33x7xELEMENT>, %at: tensor<i32>)
    -> tensor<33x7xELEMENT> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<32x7xELEMENT>
  %t = TENSOR : tensor<33x7xELEMENT>
  %p = stablehlo.slice %t [0:32, 0:7] : (tensor<33x7xELEMENT>) -> tensor<32x7xELEMENT>
  %u = UPDATE : tensor<32x7xELEMENT>
  WRITE
  return %r : tensor<33x7xELEMENT>
}
"""
WRITES = {
    "slice": """%r = stablehlo.dynamic_update_slice %t, %u, %at, %zero
      : (tensor<33x7xELEMENT>, tensor<32x7xELEMENT>, tensor<i32>, tensor<i32>)
        -> tensor<33x7xELEMENT>""",
    "scatter": """%rows = stablehlo.iota dim = 0 : tensor<32x1xi32>
  %ats = stablehlo.broadcast_in_dim %at, dims = [] : (tensor<i32>) -> tensor<32x1xi32>
  %places = stablehlo.add %rows, %ats : tensor<32x1xi32>
  %r = "stablehlo.scatter"(%t, %places, %u) ({
  ^bb0(%a: tensor<ELEMENT>, %b: tensor<ELEMENT>):
    stablehlo.return %b : tensor<ELEMENT>
  }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      unique_indices = true}
      : (tensor<33x7xELEMENT>, tensor<32x1xi32>, tensor<32x7xELEMENT>) -> tensor<33x7xELEMENT>""",
}
SAME = "stablehlo.and %x, %x"
SUM = "stablehlo.add %x, %y"


def shift_text(element: str, tensor: str, update: str, write: str) -> str:
    text = SHIFTS.replace("WRITE", WRITES[write]).replace("TENSOR", tensor)
    return text.replace("UPDATE", update).replace("ELEMENT", element)


@ON_DEVICES
@pytest.mark.parametrize("element", ["i8", "i32"])
@pytest.mark.parametrize("tensor", [SAME, SUM], ids=["argument", "computed"])
@pytest.mark.parametrize(
    "update", ["stablehlo.and %p, %p", "stablehlo.add %p, %three"], ids=["part", "sum"]
)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.share(6)
def test_a_tensor_is_shifted(
    device: Device, device_name: str, element: str, tensor: str, update: str, write: str
) -> None:
    dtype = {"i8": np.int8, "i32": np.int32}[element]
    x, y = np.random.default_rng(6).integers(-60, 60, (2, 33, 7)).astype(dtype)
    actual = run(shift_text(element, tensor, update, write), device, x, y, np.int32(1))
    whole = x + y if tensor == SUM else x.copy()
    whole[1:] = whole[:-1] + 3 * ("three" in update)
    np.testing.assert_array_equal(actual, whole)


def test_a_shift_is_still_wrong_without_a_barrier(cpu: Device) -> None:
    text = shift_text("i32", SUM, "stablehlo.add %p, %three", "slice")
    text = text.replace("%at, %zero", "%one, %zero").replace(
        "%zero =", "%one = stablehlo.constant dense<1> : tensor<i32>\n  %zero ="
    )
    x, y = np.random.default_rng(6).integers(-60, 60, (2, 33, 7)).astype(np.int32)
    actual = Executable(compile_bare(text), cpu).main(x, y, np.int32(1))
    whole = x + y
    whole[1:] = whole[:-1] + 3
    assert (actual != whole).any(), FIXED + "_shares_source of updates_in_place.py"


# -- variables that start with equal values -------------------------------------------------------

VARIABLE = """
"util.global"() {sym_name = "NAME", sym_visibility = "private", is_mutable, type = TYPE,
                 initial_value = dense<VALUE> : TYPE} : () -> ()
"""
WRITTEN = """
  %NAME_old = "util.global.load"() {global = @NAME} : () -> TYPE
  %NAME_new = stablehlo.dynamic_update_slice %NAME_old, %NAME, %at, %zero
      : (TYPE, tensor<1x4xELEMENT>, tensor<i32>, tensor<i32>) -> TYPE
  "util.global.store"(%NAME_new) {global = @NAME} : (TYPE) -> ()
  %NAME_sum = stablehlo.add %NAME_new, %NAME_new : TYPE
"""
STARTS = {
    "zeros": ("0", np.zeros((3, 4))),
    "twos": ("2", np.full((3, 4), 2)),
    "rows": ("[[1, 2, 3, 4], [5, 6, 7, 8], [9, 0, 1, 2]]", np.arange(1, 13).reshape(3, 4) % 10),
}


def variables_text(element: str, start: str, names: str = "abc") -> str:
    value = STARTS[start][0]
    if element[0] == "f":
        value = "".join(f"{part}.0" if part.isdigit() else part for part in value)
    sections = ["".join(text.replace("NAME", n) for n in names) for text in (VARIABLE, WRITTEN)]
    results = [", ".join(pair) for pair in ((f"%{n}_sum" for n in names), ["TYPE"] * len(names))]
    text = f"""{sections[0]}
func.func @main({", ".join(f"%{n}: tensor<1x4xELEMENT>" for n in names)}, %at: tensor<i32>)
    -> ({results[1]}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
{sections[1]}
  return {results[0]} : {results[1]}
}}"""
    return text.replace("VALUE", value).replace("TYPE", "tensor<3x4xELEMENT>").replace(
        "ELEMENT", element
    )  # fmt: skip


def written_rows(start: str, dtype: str) -> list[tuple[list[np.ndarray], int, list[np.ndarray]]]:
    """Arguments of three calls, the written row, and twice the variables afterwards."""
    generator, calls = np.random.default_rng(7), []
    state = [STARTS[start][1].astype(dtype) for _ in range(3)]
    for at in (1, 0, 1):
        rows = list(generator.integers(-9, 9, (3, 1, 4)).astype(dtype))
        for whole, row in zip(state, rows, strict=True):
            whole[at] = row
        calls.append((rows, at, [whole * 2 for whole in state]))
    return calls


@ON_DEVICES
@pytest.mark.parametrize("element", ["f16", "f32", "i8"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.share(18)
def test_variables_with_equal_first_values(
    device: Device, device_name: str, element: str, start: str
) -> None:
    dtype = {"f16": "float16", "f32": "float32", "i8": "int8"}[element]
    main = compile_for(variables_text(element, start), device).main
    for rows, at, expected in written_rows(start, dtype):
        for actual, value in zip(main(*rows, np.int32(at)), expected, strict=True):
            np.testing.assert_array_equal(actual, value)


def test_equal_variables_are_still_one_without_the_pass(cpu: Device) -> None:
    main = Executable(compile_bare(variables_text("f32", "zeros"), *CPU_FLAGS[1:]), cpu).main
    wrong = [
        (actual != value).any()
        for rows, at, expected in written_rows("zeros", "float32")
        for actual, value in zip(main(*rows, np.int32(at)), expected, strict=True)
    ]
    assert any(wrong), FIXED + "the pass separate-variables"
