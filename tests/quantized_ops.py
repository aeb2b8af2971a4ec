"""A program for each of the StableHLO operations that admit quantized types.

`PROGRAMS` has one row an operation. In it ``Q`` stands for a quantized element type; `program_text`
writes the row as a function, with element types in place of ``Q``. The tests of rules, verifiers
and passes read these rows; the programs that run are the conformance suite's
(`subquant.conformance.suite`).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from subquant.core._mlir import ir
from subquant.dialects import create_context
from subquant.dialects.stablehlo import why_illegal

PER_TENSOR = "!quant.uniform<i8:f32, 5.000000e-01>"

_UNARY = (
    "abs cbrt ceil cosine exponential exponential_minus_one floor log log_plus_one logistic "
    "negate round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh"
)
_BINARY = "add atan2 divide maximum minimum multiply power remainder subtract"
_GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
_WINDOW = "window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>"
_CONVOLUTION = (
    "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, "
    "batch_group_count = 1 : i64, feature_group_count = 1 : i64"
)
_NORMALIZED = "epsilon = 0.001 : f32, feature_index = 1 : i64"
_DOT = (
    "dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], "
    "rhs_contracting_dimensions = [0]>"
)
_GATHER = (
    "dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], "
    "start_index_map = [0], index_vector_dim = 1>"
)
_SCATTER = (
    "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
    "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
)
_CHANNEL = (
    "channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true"
)


@dataclass(frozen=True)
class Row:
    """Types of operands and results (``tensor<...>`` is left out), attributes, and regions."""

    operands: str
    results: str
    attributes: str = ""
    regions: tuple[str, ...] = ()


PROGRAMS: dict[str, Row] = {
    **dict.fromkeys(_UNARY.split(), Row("2x3xQ", "2x3xQ")),
    **dict.fromkeys(_BINARY.split(), Row("2x3xQ 2x3xQ", "2x3xQ")),
    "all_gather": Row("2x3xQ 2x3xQ", "2x6xQ 2x6xQ", f"all_gather_dim = 1 : i64, {_GROUPS}"),
    "all_reduce": Row("2x3xQ", "2x3xQ", _GROUPS, ("reduce",)),
    "all_to_all": Row(
        "4x3xQ",
        "2x6xQ",
        f"split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 2 : i64, {_GROUPS}",
    ),
    "async_done": Row("F2x3xQ", "2x3xQ"),
    "async_start": Row("4x3xQ", "F2x3xQ", "", ("slice",)),
    "batch_norm_grad": Row("2x3xQ 3xQ 3xQ 3xQ 2x3xQ", "2x3xQ 3xQ 3xQ", _NORMALIZED),
    "batch_norm_inference": Row("2x3xQ 3xQ 3xQ 3xQ 3xQ", "2x3xQ", _NORMALIZED),
    "batch_norm_training": Row("2x3xQ 3xQ 3xQ", "2x3xQ 3xQ 3xQ", _NORMALIZED),
    "bitcast_convert": Row("2x3xQ", "2x3xQ"),
    "broadcast_in_dim": Row("1x3xQ", "2x3x4xQ", "broadcast_dimensions = array<i64: 0, 1>"),
    "case": Row("i32", "2x3xQ", "", ("constant", "constant")),
    "cholesky": Row("3x3xQ", "3x3xQ", "lower = true"),
    "clamp": Row("Q 2x3xQ Q", "2x3xQ"),
    "collective_broadcast": Row("2x3xQ", "2x3xQ", _GROUPS),
    "collective_permute": Row(
        "2x3xQ", "2x3xQ", "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>"
    ),
    "collective_reduce": Row("2x3xQ", "2x3xQ", _GROUPS, ("reduce",)),
    "compare": Row(
        "2x3xQ 2x3xQ", "2x3xi1", "comparison_direction = #stablehlo<comparison_direction LT>"
    ),
    "concatenate": Row("2x3xQ 2x3xQ", "2x6xQ", "dimension = 1 : i64"),
    "constant": Row("", "2x3xQ", "value = dense<1> : tensor<2x3xi8>"),
    "convolution": Row("1x4x4x2xQ 3x3x2x5xQ", "1x2x2x5xQ", _CONVOLUTION),
    "dot_general": Row("2x3xQ 3x4xQ", "2x4xQ", _DOT),
    "dynamic_broadcast_in_dim": Row(
        "1x3xQ 3xi64", "2x3x4xQ", "broadcast_dimensions = array<i64: 0, 1>"
    ),
    "dynamic_conv": Row("1x4x4x2xQ 3x3x2x5xQ 2x2xi64", "1x2x2x5xQ", _CONVOLUTION),
    "dynamic_gather": Row("4x3xQ 2x1xi64 2xi64", "2x3xQ", _GATHER),
    "dynamic_iota": Row("2xi64", "2x3xQ", "iota_dimension = 0 : i64"),
    "dynamic_pad": Row("2x3xQ Q 2xi64 2xi64 2xi64", "4x5xQ"),
    "dynamic_reshape": Row("2x3xQ 3xi64", "1x2x3xQ"),
    "dynamic_slice": Row("4x3xQ i64 i64", "2x3xQ", "slice_sizes = array<i64: 2, 3>"),
    "dynamic_update_slice": Row("4x3xQ 2x3xQ i64 i64", "4x3xQ"),
    "gather": Row("4x3xQ 2x1xi64", "2x3xQ", f"{_GATHER}, slice_sizes = array<i64: 1, 3>"),
    "get_dimension_size": Row("2x3xQ", "i32", "dimension = 1 : i64"),
    "if": Row("i1", "2x3xQ", "", ("constant", "constant")),
    "infeed": Row("T", "2x3xQ T", 'infeed_config = ""'),
    "iota": Row("", "2x3xQ", "iota_dimension = 0 : i64"),
    "is_finite": Row("2x3xQ", "2x3xi1"),
    "map": Row("2x3xQ 2x3xQ", "2x3xQ", "dimensions = array<i64: 0, 1>", ("map",)),
    "optimization_barrier": Row("2x3xQ 2x3xQ", "2x3xQ 2x3xQ"),
    "outfeed": Row("2x3xQ T", "T", 'outfeed_config = ""'),
    "pad": Row(
        "2x3xQ Q",
        "4x5xQ",
        "edge_padding_low = array<i64: 1, 1>, edge_padding_high = array<i64: 1, 1>, "
        "interior_padding = array<i64: 0, 0>",
    ),
    "recv": Row("T", "2x3xQ T", _CHANNEL.replace("type = 2", "type = 3")),
    "reduce": Row("2x3xQ 2x3xQ Q Q", "2xQ 2xQ", "dimensions = array<i64: 1>", ("reduce",)),
    "reduce_precision": Row("2x3xQ", "2x3xQ", "exponent_bits = 5 : i32, mantissa_bits = 3 : i32"),
    "reduce_scatter": Row("2x4xQ", "2x2xQ", f"scatter_dimension = 1 : i64, {_GROUPS}", ("reduce",)),
    "reduce_window": Row("4x4xQ Q", "2x2xQ", _WINDOW, ("reduce",)),
    "reshape": Row("2x3xQ", "1x2x3xQ"),
    "reverse": Row("2x3xQ", "2x3xQ", "dimensions = array<i64: 1>"),
    "scatter": Row("4x3xQ 2x1xi64 2x3xQ", "4x3xQ", _SCATTER, ("reduce",)),
    "select": Row("2x3xi1 2x3xQ 2x3xQ", "2x3xQ"),
    "select_and_scatter": Row("4x4xQ 2x2xQ Q", "4x4xQ", _WINDOW, ("compare", "reduce")),
    "send": Row("2x3xQ T", "T", _CHANNEL),
    "slice": Row(
        "4x3xQ",
        "2x3xQ",
        "start_indices = array<i64: 1, 0>, limit_indices = array<i64: 3, 3>, "
        "strides = array<i64: 1, 1>",
    ),
    "sort": Row("2x3xQ 2x3xQ", "2x3xQ 2x3xQ", "dimension = 0 : i64", ("compare",)),
    "transpose": Row("2x3xQ", "3x2xQ", "permutation = array<i64: 1, 0>"),
    "triangular_solve": Row(
        "3x3xQ 3x2xQ",
        "3x2xQ",
        "left_side = true, lower = true, unit_diagonal = false, "
        "transpose_a = #stablehlo<transpose NO_TRANSPOSE>",
    ),
    "uniform_dequantize": Row("2x3xQ", "2x3xf32"),
    "uniform_quantize": Row("2x3xQ", "2x3xQ"),
}


def quantized_places(row: Row) -> int:
    """The number of operands and results that may be quantized."""
    return f"{row.operands} {row.results}".count("Q")


def program_text(name: str, elements: Sequence[str] | None = None, *, opaque: bool = False) -> str:
    """Write a function of one operation, with element types in the places of ``Q``.

    Opaque regions return the result of an unknown operation, which tells nothing about types;
    otherwise they add, compare and slice.
    """
    operands, results = operation_types(name, elements)
    names = [f"%a{n}" for n in range(len(operands))]
    values = ", ".join(f"%r#{n}" for n in range(len(results)))
    return (
        f"func.func @main({_arguments(operands)}) -> ({', '.join(results)}) {{\n"
        f"  {_operation(name, names, operands, results, opaque)}\n"
        f"  return {values} : {', '.join(results)}\n}}\n"
    )


def program_with_casts(name: str, elements: Sequence[str] | None = None) -> str:
    """Write the operation on floats, its operands dequantized and its results quantized."""
    elements = elements or [PER_TENSOR] * quantized_places(PROGRAMS[name])
    operands, results = operation_types(name, elements)
    reals = operation_types(name, [expressed_type(element) for element in elements])
    text_lines, names, values = [], [], []
    for n, (type_, real) in enumerate(zip(operands, reals[0], strict=True)):
        names.append(f"%a{n}" if type_ == real else f"%d{n}")
        if type_ != real:
            text_lines.append(f"%d{n} = stablehlo.uniform_dequantize %a{n} : ({type_}) -> {real}")
    text_lines.append(_operation(name, names, *reals, opaque=False))
    for n, (type_, real) in enumerate(zip(results, reals[1], strict=True)):
        values.append(f"%r#{n}" if type_ == real else f"%q{n}")
        if type_ != real:
            text_lines.append(f"%q{n} = stablehlo.uniform_quantize %r#{n} : ({real}) -> {type_}")
    return (
        f"func.func @main({_arguments(operands)}) -> ({', '.join(results)}) {{\n  "
        + "\n  ".join(text_lines)
        + f"\n  return {', '.join(values)} : {', '.join(results)}\n}}\n"
    )


def expressed_type(element: str) -> str:
    """The expressed type of a quantized element type; any other type as it is."""
    match = re.match(r"!quant\.uniform<[ui]\d+(?:<[-\d:]+>)?:(\w+)", element)
    return match.group(1) if match else element


def operation_types(
    name: str, elements: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """The types of an operation's operands and results."""
    row = PROGRAMS[name]
    arguments = iter(elements or [PER_TENSOR] * quantized_places(row))
    operands, results = (
        [_type_text(re.sub("Q", lambda _: next(arguments), part)) for part in pieces.split()]
        for pieces in (row.operands, row.results)
    )
    return operands, results


def _arguments(operands: Sequence[str]) -> str:
    return ", ".join(f"%a{n}: {type_}" for n, type_ in enumerate(operands))


def _operation(
    name: str, names: Sequence[str], operands: Sequence[str], results: Sequence[str], opaque: bool
) -> str:
    row = PROGRAMS[name]
    used, created = (
        [re.sub(r"^tensor<(\d+x)*|>$", "", type_) for type_ in types]
        for types in (operands, results)
    )
    regions = [_region_text(kind, name, used, created, opaque) for kind in row.regions]
    in_brackets = f" ({', '.join(regions)})" if regions else ""
    taken_names = ", ".join(names)
    return (
        f'%r:{len(results)} = "stablehlo.{name}"({taken_names}){in_brackets} {{{row.attributes}}}'
        f" : ({', '.join(operands)}) -> ({', '.join(results)})"
    )


def _type_text(short: str) -> str:
    if short == "T":
        return "!stablehlo.token"
    if short.startswith("F"):
        return f"!stablehlo.future<tensor<{short[1:]}>>"
    return f"tensor<{short}>"


def _region_text(
    kind: str, name: str, operands: list[str], results: list[str], opaque: bool
) -> str:
    if kind == "slice":
        types = f"(tensor<4x3x{PER_TENSOR}>) -> tensor<2x3x{PER_TENSOR}>"
        return (
            f"{{\n^bb0(%a: tensor<4x3x{PER_TENSOR}>):\n  %s = stablehlo.slice %a [1:3, 0:3] : "
            f"{types}\n  stablehlo.return %s : tensor<2x3x{PER_TENSOR}>\n}}"
        )
    if kind == "constant":
        created = [f"tensor<2x3x{element}>" for element in results]
        return _body([], created, opaque=True)
    if kind == "compare":
        pairs = operands[:1] if name == "select_and_scatter" else operands
        arguments = [f"tensor<{e}>" for e in itertools.chain(*zip(pairs, pairs, strict=True))]
        return _body(arguments, ["tensor<i1>"], opaque)
    if kind == "map":
        return _body([f"tensor<{e}>" for e in operands], [f"tensor<{results[0]}>"], opaque)
    returned = [f"tensor<{element}>" for element in results]
    return _body([*returned, *returned], returned, opaque)


def _body(arguments: list[str], returned: list[str], opaque: bool) -> str:
    """Add the n-th argument of each half, or compare the first two."""
    parameters = ", ".join(f"%x{n}: {type_}" for n, type_ in enumerate(arguments))
    text_lines = [f"^bb0({parameters}):"] if arguments else []
    values = [f"%s{n}" for n in range(len(returned))]
    for n, (value, type_) in enumerate(zip(values, returned, strict=True)):
        if opaque:
            text_lines.append(f'{value} = "test.make"() : () -> {type_}')
        elif type_ == "tensor<i1>":
            types = f"({arguments[0]}, {arguments[1]}) -> {type_}"
            text_lines.append(f"{value} = stablehlo.compare LT, %x0, %x1 : {types}")
        else:
            m = n + len(arguments) // 2
            types = f"({arguments[n]}, {arguments[m]}) -> {type_}"
            text_lines.append(f'{value} = "stablehlo.add"(%x{n}, %x{m}) : {types}')
    text_lines.append(f"stablehlo.return {', '.join(values)} : {', '.join(returned)}")
    return "{\n" + "\n".join(text_lines) + "\n}"


@cache
def context() -> ir.Context:
    return create_context()


def reason_against(name: str, elements: list[str] | tuple[str, ...]) -> str | None:
    """Ask the table about a program with these element types."""
    with context(), ir.Location.unknown():
        operands, results = (
            [ir.Type.parse(type_) for type_ in types] for types in operation_types(name, elements)
        )
        attributes: Any = ir.Attribute.parse(f"{{{PROGRAMS[name].attributes}}}")
        return why_illegal(f"stablehlo.{name}", operands, results, attributes)


# -- element types --------------------------------------------------------------------------------

I8 = "!quant.uniform<i8:f32, 0.5>"
OTHER = "!quant.uniform<i8:f32, 2.0:3>"
NARROW = "!quant.uniform<i8<-127:127>:f32, 0.5>"
I4 = "!quant.uniform<i4:f32, 0.5>"
I32 = "!quant.uniform<i32:f32, 0.5>"
U8 = "!quant.uniform<u8:f32, 0.5>"
HALF = "!quant.uniform<i8:f16, 0.5>"
I5 = "!quant.uniform<i5:f32, 0.5>"


def axis(dimension: int, *scales: float, storage: str = "i8", zero_point: int = 0) -> str:
    listed = ", ".join(f"{float(scale)}:{zero_point}" for scale in scales)
    return f"!quant.uniform<{storage}:f32:{dimension}, {{{listed}}}>"


TYPES = [I8, OTHER, NARROW, I4, I32, U8, HALF, I5, "f32", "f16"]
TYPES += [axis(0, 1, 2), axis(0, 1), axis(1, 1, 2, 3), axis(1, 1, 2, 3, 4), axis(2, 1, 2, 3)]
TYPES += [axis(3, 1, 2, 3, 4, 5), axis(0, 1, 2, 3)]

WHERE_THEY_DIFFER = {
    "add": [(I8, axis(1, 1, 2, 3), axis(1, 1, 2, 3)), (I8, NARROW, NARROW), (I8, U8, I8)],
    "convolution": [(U8, I8, U8)],
    "dot_general": [(U8, I8, U8)],
    "dynamic_conv": [(I8, axis(3, 1, 2, 3, 4, 5), I8), (U8, I8, U8)],
    "dynamic_gather": [(I8, OTHER)],
    "reduce": [(NARROW, I8, I8, I8, I8, I8)],
    "reduce_window": [(I8, NARROW, I8)],
    "scatter": [(OTHER, I4, OTHER)],
    "select": [(I8, OTHER, OTHER)],
    "select_and_scatter": [(NARROW, NARROW, I8, NARROW)],
}


def combinations(name: str, count: int) -> list[tuple[str, ...]]:
    """Element types of the quantized types of a program: all equal, and some mixed."""
    positions = quantized_places(PROGRAMS[name])
    choose = random.Random(name)
    actual = [*((type_,) * positions for type_ in TYPES), *WHERE_THEY_DIFFER.get(name, ())]
    for _ in range(count - len(actual)):
        mixed = [choose.choice(TYPES)] * positions
        for _ in range(choose.randint(1, 2)):
            mixed[choose.randrange(positions)] = choose.choice(TYPES)
        actual.append(tuple(mixed))
    return [types for types in dict.fromkeys(actual) if any("quant" in type_ for type_ in types)]


REFUSED_BY_THE_VERIFIER = {"triangular_solve"}
"""The specification admits quantized operands, the verifier of this version none."""
