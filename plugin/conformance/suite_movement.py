"""Programs of the suite: operations that move values, and control flow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from .program import Attributes, Program, Quantized, Tensor
from .suite_types import (
    I32_OF_I8,
    TYPES,
    element_of,
    one_operation,
    region_body,
    result_types,
    tensor,
)

MOVES: dict[str, tuple[str, tuple[tuple[int, ...], ...], str, Attributes]] = {
    "broadcast_in_dim": ("broadcast_in_dim", ((3, 1),), "broadcast_dimensions = array<i64: 1, 2>",
                         {"shape": (2, 3, 4), "dimensions": (1, 2)}),
    "concatenate": ("concatenate", ((2, 3), (2, 4)), "dimension = 1 : i64", {"dimension": 1}),
    "pad": ("pad", ((3, 4), ()), "edge_padding_low = array<i64: 1, -1>, edge_padding_high = "
            "array<i64: 2, 0>, interior_padding = array<i64: 1, 0>",
            {"padding": ((1, 2, 1), (-1, 0, 0))}),
    "reshape": ("reshape", ((3, 4),), "", {"shape": (2, 6)}),
    "reverse": ("reverse", ((3, 4),), "dimensions = array<i64: 0, 1>", {"dimensions": (0, 1)}),
    "slice": ("slice", ((5, 6),), "start_indices = array<i64: 1, 0>, limit_indices = array<i64: "
              "5, 6>, strides = array<i64: 2, 3>", {"slices": ((1, 5, 2), (0, 6, 3))}),
    "transpose": ("transpose", ((2, 3, 4),), "permutation = array<i64: 2, 0, 1>",
                  {"permutation": (2, 0, 1)}),
    "optimization_barrier": ("identity", ((2, 3),), "", {}),
    "dynamic_slice": ("dynamic_slice", ((5, 6), (), ()), "slice_sizes = array<i64: 2, 3>",
                      {"sizes": (2, 3)}),
    "dynamic_update_slice": ("dynamic_update_slice", ((5, 6), (2, 3), (), ()), "", {}),
    "gather": ("gather", ((5, 6), (4, 1)), "dimension_numbers = #stablehlo.gather<offset_dims = "
               "[1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
               "slice_sizes = array<i64: 1, 6>, indices_are_sorted = false",
               {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,),
                "index_vector_dim": 1, "slice_sizes": (1, 6)}),
}  # fmt: skip
"""Oracle, shapes of the operands, attributes as text and for the oracle."""

_MOVED = ("i8", "u8", "i4", "u4", "i16", "i32", "i8_bf16")
_INDEXED = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1}
_PAIR = "tensor<2xi64>"
_DYNAMIC = {
    "broadcast_in_dim": ("dynamic_broadcast_in_dim", "tensor<3xi64>", "[2, 3, 4]"),
    "reshape": ("dynamic_reshape", "tensor<2xi64>", "[2, 6]"),
}


def moves() -> Iterator[Program]:
    """Yield the operations of `MOVES`, their dynamic forms, control flow and scatters."""
    for op, (oracle, shapes, text, attributes) in MOVES.items():
        first_index = _INDEXED.get(op, len(shapes))
        for name in _MOVED:
            arguments = tuple(
                tensor(shape, name if n < first_index else "int32")
                for n, shape in enumerate(shapes)
            )
            (result,) = result_types(oracle, arguments, attributes, (name,))
            inputs = dict.fromkeys(range(first_index, len(shapes)), (-2, 7))
            yield one_operation(op, name, arguments, result, text, attributes, oracle=oracle,
                                inputs=inputs)  # fmt: skip
        if op in _DYNAMIC:
            dynamic_op, type_, value = _DYNAMIC[op]
            for name in ("i8", "u4"):
                arguments = (tensor(shapes[0], name),)
                (result,) = result_types(oracle, arguments, attributes, (name,))
                yield one_operation(dynamic_op, name, arguments, result, text, attributes,
                                    oracle=oracle, constants={"s": (value, type_)})  # fmt: skip
    yield from _axis_moves()
    yield from _other_moves()
    yield from _scatters()


def _axis_moves() -> Iterator[Program]:
    """The operations that move per-axis values."""
    at = {axis: Quantized("i8", (0.1, 0.2, 0.3), (1, 2, 3), axis=axis) for axis in range(3)}
    rows: tuple[tuple[str, Tensor, Tensor, str, Attributes], ...] = (
        ("broadcast_in_dim", Tensor((3, 2), at[0]), Tensor((2, 3, 2), at[1]),
         "broadcast_dimensions = array<i64: 1, 2>", {"shape": (2, 3, 2), "dimensions": (1, 2)}),
        ("reshape", Tensor((3, 4), at[0]), Tensor((3, 2, 2), at[0]), "", {"shape": (3, 2, 2)}),
        ("transpose", Tensor((2, 3, 4), at[1]), Tensor((4, 2, 3), at[2]),
         "permutation = array<i64: 2, 0, 1>", {"permutation": (2, 0, 1)}),
    )  # fmt: skip
    for op, operand, result, text, attributes in rows:
        yield one_operation(op, "axis", (operand,), result, text, attributes)


def _other_moves() -> Iterator[Program]:
    for name in ("i8", "u8", "i16", "i32"):
        element = TYPES[name]
        assert isinstance(element, Quantized)
        plain = f"int{element.width}"
        bits = {"dtype": np.dtype(f"i{element.width // 8}")}
        yield one_operation("bitcast_convert", f"{name}-to-integer", (tensor((6,), name),),
                            tensor((6,), plain), "", bits, interpreted=False)  # fmt: skip
        yield one_operation("bitcast_convert", f"{name}-from-integer", (tensor((6,), plain),),
                            tensor((6,), name), "", {"dtype": element.dtype},
                            interpreted=False)  # fmt: skip
        yield one_operation("get_dimension_size", name, (tensor((4, 5), name, (0,)),),
                            tensor((), "int32"), "dimension = 0 : i64",
                            {"dimension": 0})  # fmt: skip
        yield one_operation("iota", name, (), tensor((3, 4), name), "iota_dimension = 1 : i64",
                            {"shape": (3, 4), "dimension": 1})  # fmt: skip
        yield one_operation("dynamic_iota", name, (), tensor((3, 4), name),
                            "iota_dimension = 0 : i64", {"shape": (3, 4), "dimension": 0},
                            oracle="iota", constants={"s": ("[3, 4]", _PAIR)})  # fmt: skip
        for direction in ("LT", "GT"):
            x = tensor((3, 9), name)
            region = (
                '{\n^bb0(%x: $e, %y: $e):\n  %p = "stablehlo.compare"(%x, %y) '
                f"<{{comparison_direction = #stablehlo<comparison_direction {direction}>}}> : "
                "($e, $e) -> tensor<i1>\n  stablehlo.return %p : tensor<i1>\n}"
            )
            yield one_operation("sort", f"{name}-{direction}", (x,), x,
                                "dimension = 1 : i64, is_stable = true",
                                {"dimension": 1, "direction": direction}, region=region,
                                types={"e": tensor((), name)})  # fmt: skip
        pads = {"l": ("[1, -1]", _PAIR), "h": ("[2, 0]", _PAIR), "i": ("[1, 0]", _PAIR)}
        yield one_operation("dynamic_pad", name, (tensor((3, 4), name), tensor((), name)),
                            tensor((8, 3), name), "", {"padding": ((1, 2, 1), (-1, 0, 0))},
                            oracle="pad", constants=pads)  # fmt: skip
        _, _, text, attributes = MOVES["gather"]
        yield one_operation("dynamic_gather", name,
                            (tensor((5, 6), name), tensor((4, 1), "int32")), tensor((4, 6), name),
                            re.sub(r" slice_sizes = [^>]*>,", "", text), attributes,
                            oracle="gather", inputs={1: (-2, 7)},
                            constants={"s": ("[1, 6]", _PAIR)})  # fmt: skip
        yield from _control(name)
    same = tensor((2, 2), "i8")
    yield Program("constant/i8", "constant", (), (same,),
                  "%r0 = stablehlo.constant() <{value = dense<[[1, -128], [127, 3]]> : "
                  "tensor<2x2xi8>}> : () -> $r0", "values",
                  {"value": (np.array([[1, -128], [127, 3]]) - 3) * float(np.float32(0.05))},
                  interpreted=False)  # fmt: skip


def _control(name: str) -> Iterator[Program]:
    x = tensor((4,), name)
    give = '{{ "stablehlo.return"(%a{n}) : ($a{n}) -> () }}'
    yield Program(f"if/{name}", "if", (tensor((), "i1"), x, x), (x,),
                  f'%r0 = "stablehlo.if"(%a0) ({give.format(n=1)}, {give.format(n=2)}) : '
                  "($a0) -> $r0", "if")  # fmt: skip
    branches = ", ".join(give.format(n=n) for n in (1, 2, 3))
    yield Program(f"case/{name}", "case", (tensor((), "int32"), x, x, x), (x,),
                  f'%r0 = "stablehlo.case"(%a0) ({branches}) : ($a0) -> $r0', "case",
                  inputs={0: (-1, 4)})  # fmt: skip
    body = (
        "%n = stablehlo.constant dense<0> : tensor<i32>\n"
        "%w:2 = stablehlo.while(%i = %n, %x = %a0) : tensor<i32>, $a0\n"
        "cond {\n"
        "  %l = stablehlo.constant dense<3> : tensor<i32>\n"
        "  %c = stablehlo.compare LT, %i, %l : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "  stablehlo.return %c : tensor<i1>\n"
        "} do {\n"
        "  %o = stablehlo.constant dense<1> : tensor<i32>\n"
        "  %j = stablehlo.add %i, %o : tensor<i32>\n"
        '  %s = "stablehlo.add"(%x, %x) : ($a0, $a0) -> $a0\n'
        "  stablehlo.return %j, %s : tensor<i32>, $a0\n"
        "}\n"
        '%r0 = "stablehlo.reshape"(%w#1) : ($r0) -> $r0'
    )
    element = TYPES[name]
    assert isinstance(element, Quantized)
    zero = int(element.zero_point)
    # Eight times the input stays in range, so no step saturates.
    yield Program(f"while/{name}", "while", (x,), (x,), body, "while", {"count": 3},
                  inputs={0: (zero - 8 if zero >= 8 else zero, zero + 8)})  # fmt: skip


def _scatters() -> Iterator[Program]:
    rows = (
        ("add-i8", "i8", "i8", "add"), ("add-i8-in-i32", "i8", I32_OF_I8, "add"),
        ("maximum-i8", "i8", "i8", "maximum"), ("minimum-u8", "u8", "u8", "minimum"),
        ("assign-i8", "i8", "i8", "assign"), ("assign-u4", "u4", "u4", "assign"),
        ("add-i16", "i16", "i16", "add"),
    )  # fmt: skip
    numbers = (
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, "
        "indices_are_sorted = false, unique_indices = false"
    )
    attributes = {"update_window_dims": (1,), "inserted_window_dims": (0,),
                  "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1}  # fmt: skip
    for variant, operand, accumulator, body in rows:
        source, target = element_of(operand), element_of(accumulator)
        assign = "{\n^bb0(%x0: $e, %y0: $e):\n  stablehlo.return %y0 : $e\n}"
        region = assign if body == "assign" else region_body(body)
        arguments = (Tensor((5, 3), source), tensor((4, 1), "int32"), Tensor((4, 3), source))
        # Distinct rows, one of them outside: the order of updates does not matter.
        yield one_operation("scatter", variant, arguments, Tensor((5, 3), target), numbers,
                            {**attributes, "body": body}, region=region,
                            types={"e": Tensor((), target)},
                            inputs={1: [[3], [0], [9], [1]]})  # fmt: skip
