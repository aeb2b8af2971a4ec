"""Programs of operations in forms that are seldom written, with inputs.

Numbers are small integers, so that sums are exact in any order. The initial values of a
select_and_scatter are neutral: how often they are added is left to implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from programs import convolution_of, one_operation

QUANTIZED = "!quant.uniform<i8:f32, 0.5:3>"
RNG = np.random.default_rng(11)

Program: TypeAlias = "tuple[str, list[np.ndarray]]"
"""The text, and the inputs."""


def typed(shape: Sequence[object], element: str) -> str:
    return "".join(f"{extent}x" for extent in shape) + element


def values(*shape: int, dtype: type = np.int32, low: int = -9, high: int = 9) -> np.ndarray:
    return RNG.integers(low, high, shape, endpoint=True).astype(dtype)


def region(op: str, element: str) -> str:
    """The region of a reduction that computes with an operation."""
    scalar = f"tensor<{element}>"
    return f"""{{
  ^bb0(%l: {scalar}, %r: {scalar}):
    %s = stablehlo.{op} %l, %r : {scalar}
    stablehlo.return %s : {scalar}
  }}"""


PART_OF_ROWS = (
    "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1"
)


def scatter(
    shapes: Sequence[Sequence[int]],
    numbers: str,
    element: str = "i32",
    index: str = "i32",
    total: str = "",
    name: str = "main",
) -> str:
    """Add updates to an input of an element type, in another type on request."""
    total = total or element
    operation = f"""\"stablehlo.scatter"(%0, %1, %2) ({region("add", total)})
      {{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}}"""
    operands = map(typed, shapes, (element, index, element))
    return one_operation(operation, [*operands], typed(shapes[0], total), name=name)


SCATTERS = {
    "window-on-scattered": (
        ((4, 5), (3, 1), (3, 2, 5)),
        "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
    ),
    "one-window": (
        ((4, 5), (2,), (2, 3)),
        "update_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 0",
    ),
    "part-of-a-row": (
        ((4, 5), (3, 1), (3, 2)), PART_OF_ROWS,
    ),
    "inserted-not-scattered": (
        ((4, 5), (3,), (3,)),
        "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
    ),
    "later-axes": (
        ((2, 3, 4), (2, 5), (2, 5)),
        "update_window_dims = [0], inserted_window_dims = [1, 2], "
        "scatter_dims_to_operand_dims = [2, 1], index_vector_dim = 0",
    ),
    "batches": (
        ((2, 3, 4, 2), (2, 2, 3, 2), (2, 2, 3, 2, 2)),
        "update_window_dims = [3, 4], inserted_window_dims = [1], input_batching_dims = [0], "
        "scatter_indices_batching_dims = [1], scatter_dims_to_operand_dims = [2, 1], "
        "index_vector_dim = 3",
    ),
}  # fmt: skip


def reduction(
    operation: str,
    elements: tuple[str, str, str],
    attributes: str,
    shapes: tuple[Sequence[object], Sequence[object]],
    op: str = "add",
    name: str = "main",
) -> str:
    """A reduction; elements are of operand, body and result, shapes of operand and result."""
    source, total, result = elements
    text = f'"{operation}"(%0, %1) ({region(op, total)}) {{{attributes}}}'
    operands = [typed(shapes[0], source), source]
    return one_operation(text, operands, typed(shapes[1], result), name=name)


def reduce_window(
    shape: Sequence[int], counts: Sequence[int], attributes: str, element: str, op: str = "add"
) -> str:
    elements = element, element, element
    return reduction("stablehlo.reduce_window", elements, attributes, (shape, counts), op)


def select_and_scatter(
    operation: str,
    elements: tuple[str, str, str],
    attributes: str,
    shapes: tuple[Sequence[int], Sequence[int]],
    name: str = "main",
) -> str:
    """Add sources to the first of the greatest elements of windows; elements as for `reduction`."""
    source, total, result = elements
    scalar = f"tensor<{source}>"
    text = f"""\"{operation}"(%0, %1, %2) ({{
  ^bb0(%l: {scalar}, %r: {scalar}):
    %p = stablehlo.compare GE, %l, %r : ({scalar}, {scalar}) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }}, {region("add", total)}) {{{attributes}}}"""
    operands = [*(typed(shape, source) for shape in shapes), source]
    return one_operation(text, operands, typed(shapes[0], result), name=name)


ONE_POSITION = "window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>"
DILATED = (
    "window_dimensions = array<i64: 3, 2>, window_strides = array<i64: 5, 1>, "
    "base_dilations = array<i64: 2, 1>, padding = dense<[[1, 1], [0, 3]]> : tensor<2x2xi64>"
)
SELECT_AND_SCATTER = select_and_scatter(
    "stablehlo.select_and_scatter",
    ("ELEMENT", "ELEMENT", "ELEMENT"),
    "window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 2, 1>, "
    "padding = dense<[[0, 1], [0, 0]]> : tensor<2x2xi64>",
    ((4, 2), (2, 2)),
)
DYNAMIC_CONV = one_operation(
    """"stablehlo.dynamic_conv"(%0, %1, %2) {
      dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>,
      window_strides = array<i64: 2, 2>, lhs_dilation = array<i64: 2, 1>,
      batch_group_count = 1 : i64, feature_group_count = 1 : i64}""",
    ["1x5x4x2xi32", "2x3x2x3xi32", "2x2xi64"],
    "1x4x3x3xi32",
)
BROADCAST = """
func.func @main(%x: tensor<2x2x2xELEMENT>) -> (tensor<2x2x2xELEMENT>, tensor<2x3x2x2xELEMENT>) {
  %y = stablehlo.broadcast_in_dim %x, dims = [1, 2, 0]
      : (tensor<2x2x2xELEMENT>) -> tensor<2x2x2xELEMENT>
  %z = stablehlo.broadcast_in_dim %x, dims = [2, 3, 0]
      : (tensor<2x2x2xELEMENT>) -> tensor<2x3x2x2xELEMENT>
  return %y, %z : tensor<2x2x2xELEMENT>, tensor<2x3x2x2xELEMENT>
}
"""
GATHER = one_operation(
    """"stablehlo.gather"(%0, %1) {slice_sizes = array<i64: 2, 1, 3, 1>,
      dimension_numbers = #stablehlo.gather<offset_dims = [0, 1], collapsed_slice_dims = [1],
          operand_batching_dims = [3], start_indices_batching_dims = [2],
          start_index_map = [2, 1], index_vector_dim = 0>}""",
    ["4x4x3x2xi32", "2x3x2xi32"],
    "2x3x3x2xi32",
)
WITHOUT_AXES = """
func.func @main(%x: tensor<ELEMENT>, %u: tensor<ELEMENT>) -> (tensor<ELEMENT>, tensor<ELEMENT>) {
  %y = "stablehlo.dynamic_slice"(%x) {slice_sizes = array<i64>}
      : (tensor<ELEMENT>) -> tensor<ELEMENT>
  %z = "stablehlo.dynamic_update_slice"(%x, %u)
      : (tensor<ELEMENT>, tensor<ELEMENT>) -> tensor<ELEMENT>
  return %y, %z : tensor<ELEMENT>, tensor<ELEMENT>
}
"""
ALL_PADDING = one_operation(
    convolution_of("[b, 0, f]x[0, i, o]->[b, 0, f]", "stride = [9], pad = [[4, 0]]"),
    ["1x2x1xi32", "2x1x1xi32"],
    "1x1x1xi32",
)
DEPTHWISE = one_operation(
    convolution_of("[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]", groups=2),
    ["1x4x4x4x2xELEMENT", "2x2x2x1x6xELEMENT"],
    "1x3x3x3x6xELEMENT",
)
DILATED_AND_PADDED = one_operation(
    convolution_of(
        "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
        "stride = [2, 3], pad = [[0, 2], [4, 4]], lhs_dilate = [1, 2]",
    ),
    ["2x1x2x3xELEMENT", "3x2x3x3xELEMENT"],
    "2x1x4x3xELEMENT",
)
PADDED_TWICE = """
func.func @main(%x: tensor<2x1x2x3xELEMENT>, %z: tensor<ELEMENT>)
    -> (tensor<2x3x11x3xELEMENT>, tensor<2x11x3xELEMENT>) {
  %d = stablehlo.pad %x, %z, low = [0, 0, 0, 0], high = [0, 0, 0, 0], interior = [0, 0, 1, 0]
      : (tensor<2x1x2x3xELEMENT>, tensor<ELEMENT>) -> tensor<2x1x3x3xELEMENT>
  %y = stablehlo.pad %d, %z, low = [0, 0, 4, 0], high = [0, 2, 4, 0], interior = [0, 0, 0, 0]
      : (tensor<2x1x3x3xELEMENT>, tensor<ELEMENT>) -> tensor<2x3x11x3xELEMENT>
  %f = stablehlo.reshape %d : (tensor<2x1x3x3xELEMENT>) -> tensor<2x3x3xELEMENT>
  %b = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<ELEMENT>) -> tensor<2x11x3xELEMENT>
  %i = stablehlo.constant dense<0> : tensor<i32>
  %j = stablehlo.constant dense<4> : tensor<i32>
  %u = stablehlo.dynamic_update_slice %b, %f, %i, %j, %i : (tensor<2x11x3xELEMENT>,
      tensor<2x3x3xELEMENT>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x11x3xELEMENT>
  return %y, %u : tensor<2x3x11x3xELEMENT>, tensor<2x11x3xELEMENT>
}
"""
SORT = """
func.func @main(%x: tensor<9xELEMENT>, %y: tensor<9xELEMENT>) -> tensor<9xELEMENT> {
  %r:2 = "stablehlo.sort"(%x, %y) ({
  ^bb0(%a: tensor<ELEMENT>, %b: tensor<ELEMENT>, %c: tensor<ELEMENT>, %d: tensor<ELEMENT>):
    %l = stablehlo.add %a, %a : tensor<ELEMENT>
    %r = stablehlo.add %b, %b : tensor<ELEMENT>
    %p = stablehlo.compare GT, %l, %r : (tensor<ELEMENT>, tensor<ELEMENT>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true}
      : (tensor<9xELEMENT>, tensor<9xELEMENT>) -> (tensor<9xELEMENT>, tensor<9xELEMENT>)
  return %r#1 : tensor<9xELEMENT>
}
"""
DTYPES = {"i32": np.int32, "i16": np.int16, "ui8": np.uint8, "f32": np.float32}


def drawn(
    text: str,
    element: str,
    *shapes: Sequence[int],
    low: int = -9,
    high: int = 9,
    more: Sequence[int] = (),
) -> Program:
    """A program of an element type, with drawn arrays and more scalars."""
    dtype = DTYPES.get(element, np.int8)
    arrays = [values(*shape, dtype=dtype, low=low, high=high) for shape in shapes]
    return text.replace("ELEMENT", element), [*arrays, *map(dtype, more)]


PROGRAMS: dict[str, Program] = {
    **{
        f"scatter-{name}": (
            scatter(shapes, numbers),
            [values(*shapes[0]), values(*shapes[1], low=-1, high=4), values(*shapes[2])],
        )
        for name, (shapes, numbers) in SCATTERS.items()
    },
    "scatter-f32": (
        scatter(*SCATTERS["window-on-scattered"], "f32"),
        [values(4, 5, dtype=np.float32), values(3, 1), values(3, 2, 5, dtype=np.float32)],
    ),
    "reduce_window-one-position": drawn(
        reduce_window((4, 6), (1, 6), ONE_POSITION, "f32"), "f32", (4, 6), ()),
    "reduce_window-dilated": drawn(
        reduce_window((3, 2), (1, 4), DILATED, "i32", "maximum"), "i32", (3, 2), ()),
    "select_and_scatter": drawn(SELECT_AND_SCATTER, "i32", (4, 2), (2, 2), more=[0]),
    "select_and_scatter-f32": drawn(SELECT_AND_SCATTER, "f32", (4, 2), (2, 2), more=[0]),
    "broadcast_in_dim": drawn(BROADCAST, "i32", (2, 2, 2)),
    "gather": (GATHER, [values(4, 4, 3, 2), values(2, 3, 2, low=-1, high=4)]),
    "slices-without-axes": drawn(WITHOUT_AXES, "i32", (), ()),
    "convolution-of-padding": drawn(ALL_PADDING, "i32", (1, 2, 1), (2, 1, 1)),
    "depthwise": drawn(DEPTHWISE, "i32", (1, 4, 4, 4, 2), (2, 2, 2, 1, 6)),
    **{
        f"dilated-and-padded-{element}": drawn(
            DILATED_AND_PADDED, element, (2, 1, 2, 3), (3, 2, 3, 3), low=-2, high=2)
        for element in ("i8", "i16", "f32")
    },
    "padded-twice": drawn(PADDED_TWICE, "f32", (2, 1, 2, 3), more=[0]),
    **{
        f"sort-{element}": drawn(SORT, element, (9,), (9,), low=low, high=high)
        for element, low, high in (("i8", -128, 127), ("ui8", 0, 255), ("i16", -32768, 32767))
    },
    **{
        f"scatter-{element}": (
            scatter(((6,), (8, 1), (8,)), "inserted_window_dims = [0], "
                    "scatter_dims_to_operand_dims = [0], index_vector_dim = 1", element),
            [values(6, dtype=dtype, low=0, high=100), values(8, 1, low=0, high=5),
             values(8, dtype=dtype, low=0, high=100)],
        )
        for element, dtype in (("i8", np.int8), ("ui8", np.uint8), ("i16", np.int16))
    },
    "reduce_window-unsigned": drawn(
        reduce_window((4,), (6,), "window_dimensions = array<i64: 3>, "
                      "padding = dense<2> : tensor<1x2xi64>", "ui8", "maximum"),
        "ui8", (4,), low=0, high=255, more=[7],
    ),
    "dynamic_conv": (
        DYNAMIC_CONV,
        [values(1, 5, 4, 2), values(2, 3, 2, 3), np.array([[-1, 1], [3, 1]])],
    ),
}  # fmt: skip

SYMMETRIC = QUANTIZED.replace(":3", ":0")
QUANTIZED_PROGRAMS: dict[str, Program] = {
    "broadcast_in_dim": drawn(BROADCAST, QUANTIZED, (2, 2, 2)),
    "depthwise": drawn(DEPTHWISE, SYMMETRIC, (1, 4, 4, 4, 2), (2, 2, 2, 1, 6)),
    "dilated-and-padded": drawn(DILATED_AND_PADDED, SYMMETRIC, (2, 1, 2, 3), (3, 2, 3, 3)),
    "padded-twice": drawn(PADDED_TWICE, QUANTIZED, (2, 1, 2, 3), more=[3]),
    "slices-without-axes": drawn(WITHOUT_AXES, QUANTIZED, (), ()),
    "reduce_window": drawn(
        reduce_window((4, 6), (1, 6), ONE_POSITION, QUANTIZED), QUANTIZED, (4, 6), ()
    ),
}
