"""The project's own programs: tables of operations, types, shapes and attributes.

A row of `UNARY`, `BINARY` and the other tables stands for one program or for one a type. Types are
named in `TYPES`; in a row, ``"i8 u8 > i8b"`` means operands of types i8 and u8 and a result of type
i8b. Shapes of element-wise programs go round `SHAPES`. Every program's inputs have a fixed seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .oracle import OPERATIONS
from .program import DTYPES, Program, Quantized, Tensor

__all__ = ["NOT_EXPRESSIBLE", "QUANTIZED_OPERATIONS", "TYPES", "programs"]

TYPES: dict[str, str | Quantized] = {
    "i8": Quantized("i8", 0.05, 3),
    "i8b": Quantized("i8", 0.11, -9),
    "i8c": Quantized("i8", 0.5),  # coarse: sums end in halves of a step
    "i8f": Quantized("i8", 0.003, 12),  # fine: results saturate
    "i8n": Quantized("i8", 0.07, bounds=(-127, 127)),
    "i8p": Quantized("i8", 0.0625),  # powers of two: ties are exact
    "i8u": Quantized("i8", 1.0),  # the integers themselves
    "i8_4": Quantized("i8", 4.0),
    "u8": Quantized("u8", 0.04, 128),
    "u8b": Quantized("u8", 0.1),
    "u8u": Quantized("u8", 1.0),
    "i4": Quantized("i4", 0.5, -1),
    "i4b": Quantized("i4", 0.75, 2),
    "i4u": Quantized("i4", 1.0),
    "u4": Quantized("u4", 0.25, 7),
    "u4b": Quantized("u4", 0.6),
    "i16": Quantized("i16", 0.001, -100),
    "i16b": Quantized("i16", 0.0025, 7),
    "u16": Quantized("u16", 0.0005, 32768),
    "i32": Quantized("i32", 1e-4, 5),
    "i32b": Quantized("i32", 0.0025),
    "i32u": Quantized("i32", 1.0),
    "i8_f16": Quantized("i8", 0.05, -3, expressed="f16"),
    "i8b_f16": Quantized("i8", 0.1, 2, expressed="f16"),
    "i8_bf16": Quantized("i8", 0.0625, 3, expressed="bf16"),
    "i8b_bf16": Quantized("i8", 0.125, -5, expressed="bf16"),
    "i8_f64": Quantized("i8", 0.05, 3, expressed="f64"),
    "i8b_f64": Quantized("i8", 0.12, 1, expressed="f64"),
    "i16_f64": Quantized("i16", 0.001, 9, expressed="f64"),
    "i32_f64": Quantized("i32", 1e-6, 9, expressed="f64"),
    "i32u_f16": Quantized("i32", 1.0, expressed="f16"),
    "i32_bf16": Quantized("i32", 0.0078125, expressed="bf16"),
    **{name: name for name in ("f16", "bf16", "f32", "f64", "i1")},
    **{f"int{width}": f"i{width}" for width in (8, 16, 32, 64)},
}
"""The types that rows name: storage, scale, zero point, and the expressed type unless f32."""

SHAPES: tuple[Tensor, ...] = (
    Tensor((7,), "f32"),
    Tensor((3, 5), "f32"),
    Tensor((), "f32"),
    Tensor((4, 6), "f32", dynamic=(0,)),
    Tensor((2, 0, 3), "f32"),
    Tensor((33,), "f32"),
    Tensor((2, 3, 2), "f32", dynamic=(1, 2)),
)
"""Shapes of element-wise programs; the third is a scalar, the fourth and last are dynamic."""


def _tensor(shape: Sequence[int], name: str, dynamic: tuple[int, ...] = ()) -> Tensor:
    return Tensor(tuple(shape), TYPES[name], dynamic)


def _split(row: str) -> tuple[list[str], list[str]]:
    operands, _, results = row.partition(">")
    return operands.split(), results.split()


def _results(
    op: str, arguments: Sequence[Tensor], attributes: Mapping[str, Any], names: Sequence[str]
) -> tuple[Tensor, ...]:
    """The result types: named elements, with the shapes that the operation gives."""
    with np.errstate(all="ignore"):
        kinds = [np.int64 if a.element in ("i32", "i64") else np.float64 for a in arguments]
        inputs = [np.zeros(a.shape, kind) for a, kind in zip(arguments, kinds, strict=True)]
        arrays = OPERATIONS[op](inputs, attributes)
    return tuple(_tensor(a.shape, name) for a, name in zip(arrays, names, strict=True))


def _generic(op: str, operands: int, attributes: str = "", region: str = "") -> str:
    """The text of an operation in generic form with one result."""
    values = ", ".join(f"%a{n}" for n in range(operands))
    types = ", ".join(f"$$a{n}".replace("$$", "$") for n in range(operands))
    properties = f" <{{{attributes}}}>" if attributes else ""
    body = f" ({region})" if region else ""
    return f'%r0 = "stablehlo.{op}"({values}){properties}{body} : ({types}) -> $r0'


# -- casts ----------------------------------------------------------------------------------------

_SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e10,
    -1e10,
    0.05,
    0.1,
    0.15,
    0.125,
    0.25,
    0.375,
    -0.125,
    2.5,
    3.5,
    6.3,
    -6.3,
    1e-40,
    65504.0,
    0.3,
    100.0,
)

QUANTIZE = (
    "f32 > i8", "f32 > i8b", "f32 > i8f", "f32 > i8n", "f32 > i8p", "f32 > u8", "f32 > u8b",
    "f32 > i4", "f32 > u4", "f32 > i16", "f32 > u16", "f32 > i32", "f32 > i32u",
    "f16 > i8_f16", "f16 > i8b_f16", "bf16 > i8_bf16", "bf16 > i8b_bf16", "bf16 > i32_bf16",
    "f64 > i8_f64", "f64 > i16_f64", "f64 > i32_f64",
)  # fmt: skip

DEQUANTIZE = (
    "i8", "i8b", "u8", "i4", "u4", "i16", "u16", "i32", "i8n", "i8_f16", "i8_bf16", "i8_f64",
    "i16_f64", "i32_f64", "i32_bf16",
)  # fmt: skip

REQUANTIZE = (
    "i8 > i8b", "i8b > i8", "i8c > i8p", "i8p > i8c", "i8 > u8", "u8 > i8", "i8 > i4", "i4 > i8",
    "u4 > i8", "i8 > i32", "i32 > i8", "i32b > u8", "i16 > i8", "i8 > i16", "u16 > i16",
    "i32 > i16", "i32 > i32b", "i8_f16 > i8b_f16", "i8_bf16 > i8b_bf16", "i8_f64 > i8b_f64",
    "i32_f64 > i8_f64",
)  # fmt: skip

_AXIS0 = Quantized("i8", (0.1, 0.25, 0.5), (3, -4, 0), axis=0)
_AXIS0_WIDE = Quantized("i32", (0.001, 0.002, 0.003), (0, 5, -6), axis=0)
_AXIS1 = Quantized("u8", (0.1, 0.3, 0.7, 1.5), (128, 0, 255, 7), axis=1)
_AXIS1_F16 = Quantized("i8", (0.125, 0.25, 0.5, 2.0), (1, 2, 3, 4), axis=1, expressed="f16")
_AXIS1_BF16 = Quantized("i4", (0.125, 0.25, 0.5, 2.0), axis=1, expressed="bf16")
_AXIS2_F64 = Quantized("i16", (0.125, 0.003), (100, -100), axis=2, expressed="f64")
_PER_AXIS = {
    "i8:0": (_AXIS0, (3, 4)), "i32:0": (_AXIS0_WIDE, (3, 4)), "u8:1": (_AXIS1, (2, 4)),
    "i8-f16:1": (_AXIS1_F16, (3, 4, 2)), "i4-bf16:1": (_AXIS1_BF16, (2, 4)),
    "i16-f64:2": (_AXIS2_F64, (3, 2, 2)),
}  # fmt: skip

_BLOCKS = {
    "i4-4": (Quantized("i4", ((0.5, 0.25), (1.0, 0.125)), blocks=((0, 2), (1, 4))), (4, 8)),
    "u4-8": (Quantized("u4", ((0.1, 0.2), (0.3, 0.4), (0.5, 0.6)), ((8, 7), (0, 15), (3, 4)),
                       blocks=((0, 1), (1, 8))), (3, 16)),
    "i8-2-bf16": (Quantized("i8", ((0.5,), (2.0,)), ((1,), (-1,)), expressed="bf16",
                            blocks=((0, 2), (1, 3))), (4, 3)),
    "i8-2-f16": (Quantized("i8", ((0.5,), (2.0,)), expressed="f16",
                           blocks=((0, 2), (1, 3))), (4, 3)),
}  # fmt: skip


def _cast(
    op: str, variant: str, operand: Tensor, result: Tensor, oracle: str, **more: Any
) -> Program:
    name = op.removeprefix("quant.")
    upstream = f"%r0 = {op} %a0 : $a0 to $r0"
    body = upstream if op.startswith("quant.") else _generic(op, 1)
    return Program(f"{name}/{variant}", name, (operand,), (result,), body, oracle,
                   interpreted=False, **more)  # fmt: skip


def _special(element: str) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return np.array(_SPECIAL).astype(DTYPES[element])


def _casts() -> Iterator[Program]:
    size = (len(_SPECIAL),)
    for row in QUANTIZE:
        (source,), (target,) = _split(row)
        inputs = {0: _special(source)}
        for op in ("uniform_quantize", "quant.qcast"):
            yield _cast(op, f"{target}-special", _tensor(size, source), _tensor(size, target),
                        "uniform_quantize", inputs=inputs)  # fmt: skip
        shape = SHAPES[QUANTIZE.index(row) % len(SHAPES)]
        yield _cast("uniform_quantize", f"{target}-random",
                    _tensor(shape.shape, source, shape.dynamic),
                    _tensor(shape.shape, target, shape.dynamic), "uniform_quantize",
                    inputs={0: (-200.0, 200.0)})  # fmt: skip
    for name in DEQUANTIZE:
        element = TYPES[name]
        assert isinstance(element, Quantized)
        shape = SHAPES[DEQUANTIZE.index(name) % len(SHAPES)]
        for op in ("uniform_dequantize", "quant.dcast"):
            yield _cast(op, name, _tensor(shape.shape, name, shape.dynamic),
                        Tensor(shape.shape, element.expressed, shape.dynamic),
                        "uniform_dequantize")  # fmt: skip
    for row in REQUANTIZE:
        (source,), (target,) = _split(row)
        yield _cast("uniform_quantize", f"{source}-to-{target}", _tensor((64,), source),
                    _tensor((64,), target), "identity")  # fmt: skip
    for name, (element, dims) in (_PER_AXIS | _BLOCKS).items():
        ops = ("uniform_quantize", "quant.qcast") if not element.blocks else ("quant.qcast",)
        backs = ("uniform_dequantize", "quant.dcast") if not element.blocks else ("quant.dcast",)
        for op in ops:
            yield _cast(op, f"axis-{name}" if not element.blocks else f"blocks-{name}",
                        Tensor(dims, element.expressed), Tensor(dims, element),
                        "uniform_quantize", inputs={0: (-20.0, 20.0)})  # fmt: skip
        for op in backs:
            yield _cast(op, f"axis-{name}" if not element.blocks else f"blocks-{name}",
                        Tensor(dims, element), Tensor(dims, element.expressed),
                        "uniform_dequantize")  # fmt: skip
    other = Quantized("i8", (0.2, 0.1, 0.4), (0, 5, -100), axis=0)
    yield _cast("uniform_quantize", "axis-to-axis", Tensor((3, 32), _AXIS0), Tensor((3, 32), other),
                "identity")  # fmt: skip
    yield _cast("uniform_quantize", "axis-to-tensor", Tensor((3, 32), _AXIS0),
                _tensor((3, 32), "i8"), "identity")  # fmt: skip
    yield _cast("uniform_quantize", "tensor-to-axis", _tensor((3, 32), "i8"),
                Tensor((3, 32), _AXIS0), "identity")  # fmt: skip
    moved = Quantized("i8", (0.1, 0.25, 0.5, 0.7), (3, -4, 0, 1), axis=1)
    yield _cast("uniform_quantize", "axis-moves", Tensor((3, 4), _AXIS0), Tensor((3, 4), moved),
                "identity")  # fmt: skip


# -- element by element ---------------------------------------------------------------------------

_MATH = ("i8 > i8", "i8 > i8b", "u8 > u8", "i4 > i4b", "u4 > u4", "i16 > i16b", "i8 > i8f",
         "i8_f16 > i8_f16", "i8_bf16 > i8_bf16", "i8_f64 > i8b_f64")  # fmt: skip
_EXACT = (
    "i8 > i8",
    "i8 > i8b",
    "u8 > u8b",
    "i4 > i4",
    "u4 > u4b",
    "i16 > i16b",
    "u16 > u16",
    "i32 > i32b",
    "i8p > i8c",
    "i8_f16 > i8b_f16",
    "i8_bf16 > i8_bf16",
    "i8_f64 > i8_f64",
)

UNARY: dict[str, tuple[str, ...]] = {
    "abs": _EXACT, "negate": _EXACT, "sign": _EXACT, "floor": _EXACT, "ceil": _EXACT,
    "round_nearest_afz": _EXACT, "round_nearest_even": _EXACT,
    "cbrt": _MATH, "cosine": _MATH, "exponential": _MATH, "exponential_minus_one": _MATH,
    "log": _MATH, "log_plus_one": _MATH, "logistic": _MATH, "rsqrt": _MATH, "sine": _MATH,
    "sqrt": _MATH, "tan": _MATH, "tanh": _MATH,
}  # fmt: skip

_ARITHMETIC = (
    "i8 i8 > i8", "i8 i8b > i8f", "i8p i8p > i8c", "i8u i8u > i8_4", "u8 u8b > u8", "i4 i4b > i4",
    "u4 u4b > u4", "i16 i16b > i16", "u16 u16 > u16", "i32 i32b > i32", "i8n i8n > i8n",
    "i8_f16 i8b_f16 > i8_f16", "i8_bf16 i8b_bf16 > i8_bf16", "i8_f64 i8b_f64 > i8_f64",
)  # fmt: skip
_FEW = ("i8 i8 > i8", "i8 i8b > i8", "u8 u8b > u8", "i4 i4b > i4", "u4 u4 > u4b", "i16 i16b > i16",
        "i8_bf16 i8_bf16 > i8_bf16", "i8_f64 i8b_f64 > i8_f64")  # fmt: skip

BINARY: dict[str, tuple[str, ...]] = {
    "add": _ARITHMETIC, "subtract": _ARITHMETIC, "multiply": _ARITHMETIC, "maximum": _ARITHMETIC,
    "minimum": _ARITHMETIC,
    "divide": _FEW, "power": _FEW, "remainder": _FEW, "atan2": _FEW,
}  # fmt: skip

COMPARE = ("i8 i8", "i8 i8b", "u8 u8", "i4 i4b", "i16 i16", "i8_bf16 i8b_bf16")


def _elementwise() -> Iterator[Program]:
    for op, rows in (UNARY | BINARY).items():
        for number, row in enumerate(rows):
            operands, (result,) = _split(row)
            shape = SHAPES[number % len(SHAPES)]
            types = [_tensor(shape.shape, name, shape.dynamic) for name in operands]
            yield Program(
                f"{op}/{'-'.join(operands)}-to-{result}", op, tuple(types),
                (_tensor(shape.shape, result, shape.dynamic),), _generic(op, len(types)), op,
            )  # fmt: skip
    axis = Quantized("i8", (0.1, 0.25, 0.5), axis=0)
    wide = Quantized("i32", (0.001, 0.002, 0.003), (1, 2, 3), axis=0)
    for name, element in (("axis-i8", axis), ("axis-i32", wide)):
        types = [Tensor((3, 4), element)] * 2
        yield Program(f"add/{name}", "add", tuple(types), (types[0],), _generic("add", 2), "add")
    for number, row in enumerate(COMPARE):
        direction = ("EQ", "NE", "LT", "LE", "GT", "GE")[number]
        types = [_tensor((40,), name) for name in row.split()]
        attribute = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        yield Program(f"compare/{direction}-{row.replace(' ', '-')}", "compare", tuple(types),
                      (_tensor((40,), "i1"),), _generic("compare", 2, attribute), "compare",
                      {"direction": direction})  # fmt: skip
    for row in ("i8 i8 i8 > i8", "i8 i8b i8 > i8b", "u8 u8 u8 > u8b", "i16 i16 i16 > i16"):
        operands, (result,) = _split(row)
        unsigned = operands[0].startswith("u")
        for dims, scalars in (((5,), ""), ((2, 9), "-scalars")):
            limits: tuple[int, ...] = () if scalars else dims
            yield Program(
                f"clamp/{'-'.join(operands)}-to-{result}{scalars}", "clamp",
                (_tensor(limits, operands[0]), _tensor(dims, operands[1]),
                 _tensor(limits, operands[2])),
                (_tensor(dims, result),), _generic("clamp", 3), "clamp",
                inputs={0: (0, 60) if unsigned else (-60, 0), 2: (70, 110)},
            )  # fmt: skip
    for row in (
        "i8 i8 > i8",
        "i8 i8 > i8b",
        "u4 u4 > u4",
        "i16 i16 > i16b",
        "i8_f16 i8_f16 > i8b_f16",
    ):
        operands, (result,) = _split(row)
        types = [_tensor((3, 5), "i1"), *(_tensor((3, 5), name) for name in operands)]
        yield Program(f"select/{'-'.join(operands)}-to-{result}", "select", tuple(types),
                      (_tensor((3, 5), result),), _generic("select", 3), "select")  # fmt: skip
    scalar = (_tensor((), "i1"), _tensor((4,), "i8"), _tensor((4,), "i8"))
    yield Program("select/scalar-predicate", "select", scalar, (scalar[1],),
                  _generic("select", 3), "select")  # fmt: skip
    for name, exponent, mantissa in (("i8", 5, 10), ("i8b", 8, 2), ("u8", 4, 3), ("i16", 5, 3)):
        attribute = f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32"
        types = [_tensor((32,), name)]
        yield Program(f"reduce_precision/{name}-e{exponent}m{mantissa}", "reduce_precision",
                      tuple(types), tuple(types), _generic("reduce_precision", 1, attribute),
                      "reduce_precision",
                      {"exponent_bits": exponent, "mantissa_bits": mantissa})  # fmt: skip
    for name in ("i8", "u4", "i16"):
        yield Program(f"is_finite/{name}", "is_finite", (_tensor((5,), name),),
                      (_tensor((5,), "i1"),), _generic("is_finite", 1), "is_finite")  # fmt: skip
    for row in ("i8 i8 > i8", "i8 i8b > i8f", "u8 u8 > u8", "i16 i16 > i16"):
        operands, (result,) = _split(row)
        types = [_tensor((6,), name) for name in operands]
        elements = {f"e{n}": _tensor((), name) for n, name in enumerate([*operands, result])}
        region = "{\n^bb0(%x: $e0, %y: $e1):\n" \
                 '  %s = "stablehlo.add"(%x, %y) : ($e0, $e1) -> $e2\n' \
                 "  stablehlo.return %s : $e2\n}"  # fmt: skip
        yield Program(f"map/{'-'.join(operands)}-to-{result}", "map", tuple(types),
                      (_tensor((6,), result),),
                      _generic("map", 2, "dimensions = array<i64: 0>", region), "add",
                      types=elements)  # fmt: skip


# -- contractions ---------------------------------------------------------------------------------

_CHANNELS = Quantized("i8", (0.1, 0.02, 0.3, 0.004), axis=1)
_CHANNELS_OUT = Quantized("i32", (0.005, 0.001, 0.015, 0.0002), axis=1)
_CHANNELS_I8 = Quantized("i8", (0.5, 0.1, 1.5, 0.02), (1, -2, 3, 0), axis=1)
_CHANNELS_I4 = Quantized("i4", (0.1, 0.02, 0.3, 0.004), axis=1)

DOT: dict[str, tuple[str | Quantized, str | Quantized, str | Quantized]] = {
    "i8-to-i8": ("i8", Quantized("i8", 0.07), "i8b"),
    "i8-to-i32": ("i8", Quantized("i8", 0.07), Quantized("i32", 0.0035)),
    "i8-to-i32-other-scale": ("i8", Quantized("i8", 0.07), "i32b"),
    "u8-to-u8": ("u8", Quantized("u8", 0.01), "u8b"),
    "i4-to-i4": ("i4", Quantized("i4", 0.3), "i4b"),
    "u4-to-u4": ("u4", Quantized("u4", 0.3), "u4b"),
    "i4-to-i8": ("i4", Quantized("i4", 0.3), "i8"),
    "i16-to-i32": ("i16", Quantized("i16", 0.002), "i32b"),
    "i16-to-i16": ("i16", Quantized("i16", 0.002), Quantized("i16", 0.5, 3)),
    "i8-saturates": ("i8", Quantized("i8", 0.07), "i8f"),
    "i8-ties": ("i8u", "i8u", "i8_4"),
    "i8-scale-near-one": ("i8u", Quantized("i8", 1.0005), "i32u"),
    "i8-narrow": ("i8n", "i8n", "i8n"),
    "f16": ("i8_f16", Quantized("i8", 0.1, expressed="f16"), "i8b_f16"),
    "bf16": ("i8_bf16", Quantized("i8", 0.125, expressed="bf16"), "i8b_bf16"),
    "f64": ("i8_f64", Quantized("i8", 0.1, expressed="f64"), "i8b_f64"),
    "axis-to-axis-i32": ("i8", _CHANNELS, _CHANNELS_OUT),
    "axis-to-axis-i8": ("i8", _CHANNELS, _CHANNELS_I8),
    "axis-to-tensor-i8": ("i8", _CHANNELS, "i8c"),
    "axis-i4-to-i8": (Quantized("i4", 0.5, 1), _CHANNELS_I4, _CHANNELS_I8),
    "hybrid": ("f32", "i8p", "f32"),
    "hybrid-u8": ("f32", "u8b", "f32"),
    "hybrid-i4": ("f32", "i4u", "f32"),
    "hybrid-axis": ("f32", _CHANNELS, "f32"),
    "hybrid-f16": ("f16", Quantized("i8", 0.1, expressed="f16"), "f16"),
    "hybrid-bf16": ("bf16", Quantized("i8", 0.1, expressed="bf16"), "bf16"),
    "hybrid-f64": ("f64", Quantized("i8", 0.1, expressed="f64"), "f64"),
}
"""Dots of 3x8 by 8x4: left, right and result type."""

DOT_DIMENSIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, Any]] = {
    "transposed-rhs": ((3, 8), (4, 8), ((), ()), ((1,), (1,))),
    "transposed-lhs": ((8, 3), (8, 4), ((), ()), ((0,), (0,))),
    "batch": ((2, 3, 5), (2, 5, 4), ((0,), (0,)), ((2,), (1,))),
    "batch-inside": ((3, 2, 5), (5, 4, 2), ((1,), (2,)), ((2,), (0,))),
    "two-batches": ((2, 3, 4, 5), (3, 2, 5), ((0, 1), (1, 0)), ((3,), (2,))),
    "two-contracted": ((3, 4, 5), (5, 4, 2), ((), ()), ((1, 2), (1, 0))),
    "vector-vector": ((9,), (9,), ((), ()), ((0,), (0,))),
    "matrix-vector": ((3, 9), (9,), ((), ()), ((1,), (0,))),
    "outer": ((3,), (4,), ((), ()), ((), ())),
    "nothing-contracted-of-zero": ((3, 0), (0, 2), ((), ()), ((1,), (0,))),
    "one-by-one": ((1, 1), (1, 1), ((), ()), ((1,), (0,))),
    "long": ((2, 515), (515, 3), ((), ()), ((1,), (0,))),
}
"""Shapes of both sides, batching dimensions and contracting dimensions."""


def _element(entry: str | Quantized) -> str | Quantized:
    return TYPES[entry] if isinstance(entry, str) else entry


def _dot(
    variant: str, lhs: Tensor, rhs: Tensor, result: str | Quantized, batch: Any, contract: Any,
    **more: Any,
) -> Program:  # fmt: skip
    terms = int(np.prod([lhs.shape[axis] for axis in contract[0]], dtype=np.int64))
    attributes = {"batch": batch, "contract": contract, "terms": terms}
    numbers = ", ".join(
        f"{side}_{kind}_dimensions = {list(dims)}"
        for kind, pair in (("batching", batch), ("contracting", contract))
        for side, dims in zip(("lhs", "rhs"), pair, strict=True)
    )
    (out,) = _results("dot_general", (lhs, rhs), attributes, ("f32",))
    dynamic = (0,) if 0 in lhs.dynamic else ()
    return Program(
        f"dot_general/{variant}", "dot_general", (lhs, rhs), (Tensor(out.shape, result, dynamic),),
        _generic("dot_general", 2, f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"),
        "dot_general", attributes, interpreted=terms > 0, **more,
    )  # fmt: skip


def _dots() -> Iterator[Program]:
    plain = ((), ()), ((1,), (0,))
    for variant, (left, right, out) in DOT.items():
        yield _dot(variant, Tensor((3, 8), _element(left)), Tensor((8, 4), _element(right)),
                   _element(out), *plain)  # fmt: skip
    for variant, (left_shape, right_shape, batch, contract) in DOT_DIMENSIONS.items():
        for kind, out in (("i8", "i8c"), ("i32", "i32b")):
            yield _dot(f"{variant}-to-{kind}", _tensor(left_shape, "i8"),
                       Tensor(right_shape, Quantized("i8", 0.07)), TYPES[out], batch,
                       contract)  # fmt: skip
        yield _dot(f"{variant}-hybrid", _tensor(left_shape, "f32"), _tensor(right_shape, "i8p"),
                   "f32", batch, contract)  # fmt: skip
    yield _dot("dynamic-rows", _tensor((5, 8), "i8", (0,)),
               Tensor((8, 4), Quantized("i8", 0.07)), TYPES["i8c"], *plain)  # fmt: skip
    yield _dot("dynamic-rows-axis", _tensor((5, 8), "i8", (0,)), Tensor((8, 4), _CHANNELS),
               _CHANNELS_I8, *plain)  # fmt: skip
    # The wrong numbers of reference/stablehlo-quantization.md, measured with IREE alone.
    for variant, x, y, rest in (
        ("wraps-instead-of-saturating", [[100]], [[100]], ("i8u", "i8_4", "i8u")),
        ("truncates-instead-of-rounding", [[7]], [[1]], ("i8u", "i8u", "i8_4")),
    ):
        a, b, c = (TYPES[name] for name in rest)
        yield _dot(variant, Tensor((1, 1), a), Tensor((1, 1), b), c, *plain,
                   inputs={0: x, 1: y})  # fmt: skip
    per_axis = Quantized("i8", (1.0, 2.0), axis=1), Quantized("i32", (1.0, 4.0), axis=1)
    yield _dot("first-scale-for-all", _tensor((1, 2), "i8u"), Tensor((2, 2), per_axis[0]),
               per_axis[1], *plain, inputs={0: [[4, 4]], 1: [[4, 4], [4, 4]]})  # fmt: skip
    # A sub-channel weight under a dot.
    for variant, element, shape, contract in (
        ("blocks-i4", Quantized("i4", ((0.5,), (0.25,), (1.0,)), blocks=((0, 4), (1, 5))),
         (12, 5), ((1,), (0,))),
        ("blocks-u4-rhs-transposed",
         Quantized("u4", ((0.5, 0.25),) * 5, ((8, 7),) * 5, blocks=((0, 1), (1, 6))), (5, 12),
         ((1,), (1,))),
    ):  # fmt: skip
        dot = _dot(variant, _tensor((3, 12), "f32"), Tensor(shape, "f32"), "f32", ((), ()),
                   contract)  # fmt: skip
        types = {"w": Tensor(shape, "f32")}
        body = "%w = quant.dcast %a1 : $a1 to $w\n" + dot.body.replace("%a1", "%w").replace(
            "$a1", "$w"
        )
        arguments = (dot.arguments[0], Tensor(shape, element))
        yield replace(dot, arguments=arguments, body=body, types=types, interpreted=False)


CONVOLUTION: dict[str, dict[str, Any]] = {
    "nhwc-valid": {},
    "nhwc-same": {"padding": ((1, 1), (1, 1))},
    "nhwc-uneven-padding": {"padding": ((0, 2), (3, 1))},
    "nhwc-negative-padding": {"padding": ((-1, 1), (1, -1))},
    "nhwc-strided": {"strides": (2, 3), "padding": ((1, 1), (1, 1))},
    "nhwc-lhs-dilated": {"lhs_dilation": (2, 2), "padding": ((1, 1), (1, 1))},
    "nhwc-rhs-dilated": {"rhs_dilation": (2, 1)},
    "nhwc-everything": {"strides": (2, 1), "padding": ((2, 1), (1, 3)), "lhs_dilation": (2, 1),
                        "rhs_dilation": (1, 2)},
    "nhwc-reversed": {"reversal": (True, True)},
    "nhwc-groups": {"groups": 2, "rhs": (2, 3, 1, 4)},
    "nhwc-depthwise": {"groups": 2, "rhs": (3, 3, 1, 2), "padding": ((1, 1), (1, 1))},
    "nhwc-batch-groups": {"batch_groups": 2, "lhs": (2, 5, 6, 2)},
    "nchw-oihw": {"layout": ("bf01", "oi01", "bf01"), "lhs": (1, 2, 5, 6), "rhs": (4, 2, 2, 3)},
    "nchw-oihw-padded": {"layout": ("bf01", "oi01", "bf01"), "lhs": (1, 2, 5, 6),
                         "rhs": (4, 2, 2, 3), "padding": ((1, 1), (2, 0))},
    "nhwc-ohwi": {"layout": ("b01f", "o01i", "b01f"), "rhs": (4, 2, 3, 2)},
    "mixed-layout": {"layout": ("f0b1", "1oi0", "01bf"), "lhs": (2, 5, 1, 6), "rhs": (3, 4, 2, 2),
                     "padding": ((1, 0), (0, 1))},
    "1d": {"layout": ("b0f", "0io", "b0f"), "lhs": (2, 7, 2), "rhs": (3, 2, 4),
           "padding": ((1, 1),)},
    "1d-dilated-groups": {"layout": ("bf0", "oi0", "bf0"), "lhs": (2, 4, 9), "rhs": (4, 2, 3),
                          "groups": 2, "rhs_dilation": (2,), "padding": ((2, 2),)},
    "3d": {"layout": ("b012f", "012io", "b012f"), "lhs": (1, 3, 4, 3, 2), "rhs": (2, 2, 2, 2, 4),
           "padding": ((1, 0), (0, 1), (1, 1))},
    "0d": {"layout": ("bf", "io", "bf"), "lhs": (3, 5), "rhs": (5, 4)},
    "pointwise": {"rhs": (1, 1, 2, 4)},
}  # fmt: skip
"""Convolutions of 1x5x6x2 (NHWC) by 2x3x2x4 (HWIO), and what differs from that."""

_OUT_AXIS = (0.1, 0.02, 0.3, 0.004)
CONVOLUTION_TYPES: dict[str, tuple[Any, Any, Any]] = {
    "i8-to-i8": ("i8", Quantized("i8", 0.07), "i8c"),
    "i8-to-i32": ("i8", Quantized("i8", 0.07), Quantized("i32", 0.0035)),
    "rhs-zero-point": ("i8", Quantized("i8", 0.07, -6), "i8c"),
    "u8": ("u8", Quantized("u8", 0.02, 128), "u8b"),
    "i4": ("i4", Quantized("i4", 0.3), "i4b"),
    "i16-to-i32": ("i16", Quantized("i16", 0.002), "i32b"),
    "saturates": ("i8", Quantized("i8", 0.07), "i8f"),
    "bf16": ("i8_bf16", Quantized("i8", 0.125, expressed="bf16"), "i8b_bf16"),
    "f16": ("i8_f16", Quantized("i8", 0.1, expressed="f16"), "i8b_f16"),
    "f64": ("i8_f64", Quantized("i8", 0.1, 3, expressed="f64"), "i8b_f64"),
    "axis-to-axis-i8": ("i8", "axis-i8", "out-i8"),
    "axis-to-axis-i32": ("i8", "axis-i8", "out-i32"),
    "axis-to-tensor": ("i8", "axis-i8", "i8c"),
    "hybrid": ("f32", "i8", "f32"),
    "hybrid-axis": ("f32", "axis-i8", "f32"),
    "hybrid-bf16": ("bf16", "i8_bf16", "bf16"),
}
"""Left, kernel and result types; ``axis-`` and ``out-`` have a scale for each output channel."""


def _convolution(variant: str, row: dict[str, Any], types: tuple[Any, Any, Any]) -> Program:
    layout = row.get("layout", ("b01f", "01io", "b01f"))
    count = len(layout[0]) - 2
    per_axis = {
        "axis-i8": Quantized("i8", _OUT_AXIS, axis=layout[1].index("o")),
        "out-i8": Quantized("i8", (0.5, 0.1, 1.5, 0.02), (1, -2, 3, 0), axis=layout[2].index("f")),
        "out-i32": Quantized("i32", tuple(s * 0.05 for s in _OUT_AXIS),
                             axis=layout[2].index("f")),
    }  # fmt: skip
    left, right, out = (per_axis.get(t) or _element(t) if isinstance(t, str) else t for t in types)
    lhs = Tensor(row.get("lhs", (1, 5, 6, 2)), left)
    rhs = Tensor(row.get("rhs", (2, 3, 2, 4)), right)
    attributes = {**row, "layout": layout}
    attributes["terms"] = rhs.shape and int(np.prod(rhs.shape)) // rhs.shape[layout[1].index("o")]
    (result,) = _results("convolution", (lhs, rhs), attributes, ("f32",))
    window = {
        "stride": [*row.get("strides", (1,) * count)],
        "pad": [[*pair] for pair in row.get("padding", ((0, 0),) * count)],
        "lhs_dilate": [*row.get("lhs_dilation", (1,) * count)],
        "rhs_dilate": [*row.get("rhs_dilation", (1,) * count)],
        "reverse": [*row.get("reversal", (False,) * count)],
    }
    numbers = "x".join(f"[{', '.join(part)}]" for part in layout[:2])
    numbers += f"->[{', '.join(layout[2])}]"
    text = ", ".join(f"{key} = {value}" for key, value in window.items()).lower()
    body = (
        f"%r0 = stablehlo.convolution(%a0, %a1) dim_numbers = {numbers}, "
        f"window = {{{text}}} {{batch_group_count = {row.get('batch_groups', 1)} : i64, "
        f"feature_group_count = {row.get('groups', 1)} : i64}} : ($a0, $a1) -> $r0"
    )
    return Program(f"convolution/{variant}", "convolution", (lhs, rhs),
                   (Tensor(result.shape, out),), body, "convolution", attributes)  # fmt: skip


def _convolutions() -> Iterator[Program]:
    for variant, row in CONVOLUTION.items():
        channels = "groups" not in variant and "depthwise" not in variant
        chosen = ["i8-to-i8", "i8-to-i32", "rhs-zero-point", "hybrid"]
        chosen += ["axis-to-axis-i8", "axis-to-axis-i32"] if channels else []
        for name in chosen:
            yield _convolution(f"{variant}-{name}", row, CONVOLUTION_TYPES[name])
    same = CONVOLUTION["nhwc-same"]
    for name, types in CONVOLUTION_TYPES.items():
        yield _convolution(f"same-{name}", same, types) if name not in (
            "i8-to-i8", "i8-to-i32", "rhs-zero-point", "hybrid", "axis-to-axis-i8",
            "axis-to-axis-i32",
        ) else _convolution(f"strided-dilated-{name}",
                            {**CONVOLUTION["nhwc-everything"], "rhs": (3, 2, 2, 4)},
                            types)  # fmt: skip
    for name in ("i8-to-i8", "i8-to-i32"):
        base = _convolution("dynamic", same, CONVOLUTION_TYPES[name])
        pads = "%p = stablehlo.constant dense<1> : tensor<2x2xi64>"
        attributes = (
            "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, "
            "batch_group_count = 1 : i64, feature_group_count = 1 : i64"
        )
        body = (
            f'{pads}\n%r0 = "stablehlo.dynamic_conv"(%a0, %a1, %p) <{{{attributes}}}> : '
            "($a0, $a1, tensor<2x2xi64>) -> $r0"
        )
        yield replace(base, name=f"dynamic_conv/{name}", op="dynamic_conv", body=body)


# -- reductions -----------------------------------------------------------------------------------


def _body(operation: str, name: str = "e", count: int = 1) -> str:
    """The region of a reduction over the scalar type ``$name``."""
    left = ", ".join(f"%x{n}: ${name}" for n in range(count))
    right = ", ".join(f"%y{n}: ${name}" for n in range(count))
    lines = [
        f'  %s{n} = "stablehlo.{operation}"(%x{n}, %y{n}) : (${name}, ${name}) -> ${name}'
        for n in range(count)
    ]
    values = ", ".join(f"%s{n}" for n in range(count))
    types = ", ".join([f"${name}"] * count)
    return (
        f"{{\n^bb0({left}, {right}):\n" + "\n".join(lines)
        + f"\n  stablehlo.return {values} : {types}\n}}"
    )  # fmt: skip


_I32_OF_I8 = Quantized("i32", 0.05, 3)
_Element = str | Quantized
REDUCE: dict[str, tuple[str, _Element, _Element, tuple[int, ...], tuple[int, ...]]] = {
    "add-i8-in-i32": ("add", "i8", _I32_OF_I8, (4, 300), (1,)),
    "add-i8-in-i32-no-zero-point": ("add", "i8u", "i32u", (3, 200), (1,)),
    "add-i8-in-i32-other-scale": ("add", "i8", Quantized("i32", 0.01, -7), (4, 30), (1,)),
    "add-u8-in-i32": ("add", "u8u", Quantized("i32", 1.0, 5), (300,), (0,)),
    "add-i4-in-i32": ("add", "i4u", "i32u", (3, 50), (0,)),
    "add-i8-in-i16": ("add", "i8u", Quantized("i16", 1.0), (3, 20), (1,)),
    "add-i8-in-i8": ("add", Quantized("i8", 0.5, 1), Quantized("i8", 0.5, 1), (2, 5), (1,)),
    "add-i16-in-i32": ("add", Quantized("i16", 1.0), "i32u", (2, 40), (1,)),
    "add-i32": ("add", "i32u", "i32u", (2, 12), (1,)),
    "add-all-axes": ("add", "i8u", "i32u", (3, 4, 5), (0, 1, 2)),
    "add-two-axes": ("add", "i8u", "i32u", (3, 4, 5), (0, 2)),
    "add-nothing": ("add", "i8u", "i32u", (3, 0), (1,)),
    "add-f16": ("add", Quantized("i8", 1.0, expressed="f16"), "i32u_f16", (2, 90), (1,)),
    "add-f64": ("add", "i8_f64", Quantized("i32", 0.05, 3, expressed="f64"), (2, 90), (1,)),
    "maximum-i8": ("maximum", "i8", "i8", (3, 20), (1,)),
    "maximum-i8-in-i32": ("maximum", "i8", _I32_OF_I8, (3, 20), (1,)),
    "maximum-u8": ("maximum", "u8", "u8", (3, 20), (0,)),
    "maximum-i16": ("maximum", "i16", "i16", (3, 20), (0,)),
    "minimum-i8": ("minimum", "i8", "i8", (3, 20), (1,)),
    "minimum-i4": ("minimum", "i4", "i4", (3, 9), (1,)),
    "minimum-i8-in-i32": ("minimum", "i8", _I32_OF_I8, (3, 20), (0,)),
    "multiply-i8-in-i32": ("multiply", "i8u", "i32u", (5, 4), (1,)),
    "multiply-i8": ("multiply", "i8u", "i8u", (3, 3), (1,)),
}  # fmt: skip
"""Body, operand type, accumulation and result type, shape, reduced dimensions."""

WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {"window_dimensions": (2, 3)},
    "strided": {"window_dimensions": (2, 2), "window_strides": (2, 2)},
    "padded": {"window_dimensions": (3, 3), "padding": ((1, 1), (0, 2))},
    "base-dilated": {"window_dimensions": (2, 2), "base_dilations": (2, 1)},
    "window-dilated": {"window_dimensions": (2, 2), "window_dilations": (2, 3)},
}
WINDOW_TYPES: dict[str, tuple[str, str | Quantized, str | Quantized]] = {
    "add-i8-in-i32": ("add", "i8", _I32_OF_I8),
    "add-u8-in-i32": ("add", "u8u", "i32u"),
    "maximum-i8": ("maximum", "i8", "i8"),
    "minimum-u8": ("minimum", "u8", "u8"),
    "maximum-i8-in-i32": ("maximum", "i8", _I32_OF_I8),
}


def _window_text(row: dict[str, Any], rank: int = 2) -> str:
    parts = []
    for key in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if key in row:
            parts.append(f"{key} = array<i64: {', '.join(map(str, row[key]))}>")
    if "padding" in row:
        pairs = [[*pair] for pair in row["padding"]]
        parts.append(f"padding = dense<{pairs}> : tensor<{rank}x2xi64>")
    return ", ".join(parts)


def _neutral(body: str, element: str | Quantized) -> int:
    """A storage value to start from: zero for a sum, one for a product, the ends for the others."""
    assert isinstance(element, Quantized)
    low, high = element.range
    zero = int(element.zero_point)
    return {"add": zero, "multiply": zero + 1, "maximum": low, "minimum": high}[body]


def _reductions() -> Iterator[Program]:
    for variant, (body, operand, accumulator, shape, axes) in REDUCE.items():
        source, target = _element(operand), _element(accumulator)
        arguments = (Tensor(shape, source), Tensor((), source))
        attributes = {"dimensions": axes, "body": body}
        (out,) = _results("reduce", arguments, attributes, ("f32",))
        dims = f"dimensions = array<i64: {', '.join(map(str, axes))}>"
        inputs: dict[int, Any] = {1: [_neutral(body, source)]}
        if body == "multiply":
            inputs[0] = (-3, 3)
        if variant == "add-i8-in-i8":
            inputs[0] = (-20, 20)  # a sum that saturates on the way depends on the order
        yield Program(f"reduce/{variant}", "reduce", arguments, (Tensor(out.shape, target),),
                      _generic("reduce", 2, dims, _body(body)), "reduce", attributes,
                      {"e": Tensor((), target)}, inputs)  # fmt: skip
    one, wide = Quantized("i8", 0.05, 3), _I32_OF_I8
    two = (Tensor((3, 40), one), Tensor((3, 40), one), Tensor((), one), Tensor((), one))
    text = _generic("reduce", 4, "dimensions = array<i64: 1>", _body("add", count=2))
    text = text.replace("%r0 =", "%r:2 =").replace("-> $r0", "-> ($r0, $r1)")
    fix = "\n".join(f'%r{n} = "stablehlo.reshape"(%r#{n}) : ($r{n}) -> $r{n}' for n in range(2))
    yield Program("reduce/two-operands", "reduce", two, (Tensor((3,), wide),) * 2,
                  f"{text}\n{fix}", "reduce", {"dimensions": (1,), "body": "add"},
                  {"e": Tensor((), wide)}, {2: [3], 3: [3]})  # fmt: skip
    for variant, row in WINDOWS.items():
        for name, (body, operand, accumulator) in WINDOW_TYPES.items():
            source, target = _element(operand), _element(accumulator)
            arguments = (Tensor((5, 6), source), Tensor((), source))
            attributes = {**row, "body": body}
            (out,) = _results("reduce_window", arguments, attributes, ("f32",))
            yield Program(f"reduce_window/{variant}-{name}", "reduce_window", arguments,
                          (Tensor(out.shape, target),),
                          _generic("reduce_window", 2, _window_text(row), _body(body)),
                          "reduce_window", attributes, {"e": Tensor((), target)},
                          {1: [_neutral(body, source)]})  # fmt: skip
    yield from _select_and_scatters()
    yield from _batch_norms()


def _select_and_scatters() -> Iterator[Program]:
    compare = (
        '{{\n^bb0(%x: $s, %y: $s):\n  %p = "stablehlo.compare"(%x, %y) '
        "<{{comparison_direction = #stablehlo<comparison_direction {direction}>}}> : "
        "($s, $s) -> tensor<i1>\n  stablehlo.return %p : tensor<i1>\n}}"
    )
    rows = (
        ("i8", "i8", "i8", "GE", (2, 2)), ("i8-in-i32", "i8", _I32_OF_I8, "GE", (2, 2)),
        ("i8-least", "i8", "i8", "LE", (2, 2)), ("u8", "u8", "u8", "GE", (2, 3)),
        ("i16", "i16", "i16", "GE", (2, 2)),
    )  # fmt: skip
    for variant, operand, accumulator, direction, window in rows:
        source, target = _element(operand), _element(accumulator)
        row = {"window_dimensions": window, "window_strides": window}
        small = tuple(n // w for n, w in zip((4, 6), window, strict=True))
        arguments = (Tensor((4, 6), source), Tensor(small, source), Tensor((), source))
        regions = f"{compare.format(direction=direction)}, {_body('add')}"
        yield Program(f"select_and_scatter/{variant}", "select_and_scatter", arguments,
                      (Tensor((4, 6), target),),
                      _generic("select_and_scatter", 3, _window_text(row), regions),
                      "select_and_scatter", {**row, "select": direction, "body": "add"},
                      {"e": Tensor((), target), "s": Tensor((), source)},
                      {2: [_neutral("add", source)]})  # fmt: skip


def _batch_norms() -> Iterator[Program]:
    for name in ("i8", "u8", "i16", "i8_bf16"):
        for feature, shape in ((1, (3, 4)), (1, (2, 3, 5))):
            count = shape[feature]
            x, v = _tensor(shape, name), _tensor((count,), name)
            attribute = f"epsilon = 0.5 : f32, feature_index = {feature} : i64"
            attributes = {"epsilon": 0.5, "feature_index": feature}
            element = TYPES[name]
            assert isinstance(element, Quantized)
            zero = int(element.zero_point)
            positive = (zero, element.range[1])
            rank = len(shape)
            yield Program(f"batch_norm_inference/{name}-{rank}d", "batch_norm_inference",
                          (x, v, v, v, v), (x,), _generic("batch_norm_inference", 5, attribute),
                          "batch_norm_inference", attributes, inputs={4: positive},
                          interpreted=False)  # fmt: skip
            if rank == 3 and name != "i8":
                continue
            text = f'%r:3 = "stablehlo.batch_norm_training"(%a0, %a1, %a2) <{{{attribute}}}> : ' \
                   "($a0, $a1, $a2) -> ($r0, $r1, $r2)"  # fmt: skip
            yield _three(f"batch_norm_training/{name}-{rank}d", "batch_norm_training", (x, v, v),
                         (x, v, v), text, attributes, {})  # fmt: skip
            text = (
                '%r:3 = "stablehlo.batch_norm_grad"(%a0, %a1, %a2, %a3, %a4) '
                f"<{{{attribute}}}> : ($a0, $a1, $a2, $a3, $a4) -> ($r0, $r1, $r2)"
            )
            yield _three(f"batch_norm_grad/{name}-{rank}d", "batch_norm_grad", (x, v, v, v, x),
                         (x, v, v), text, attributes, {3: positive})  # fmt: skip


def _three(
    name: str, op: str, arguments: tuple[Tensor, ...], results: tuple[Tensor, ...], text: str,
    attributes: Mapping[str, Any], inputs: Mapping[int, Any],
) -> Program:  # fmt: skip
    """A program whose operation has several results: they are named through a reshape."""
    names = "\n".join(
        f'%r{n} = "stablehlo.reshape"(%r#{n}) : ($r{n}) -> $r{n}' for n in range(len(results))
    )
    return Program(name, op, arguments, results, f"{text}\n{names}", op, attributes, {}, inputs,
                   interpreted=False)  # fmt: skip


# -- moving data ----------------------------------------------------------------------------------

MOVES: dict[str, tuple[str, tuple[tuple[int, ...], ...], str, dict[str, Any]]] = {
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
_DYNAMIC = {
    "broadcast_in_dim": ("dynamic_broadcast_in_dim", "tensor<3xi64>", "[2, 3, 4]"),
    "reshape": ("dynamic_reshape", "tensor<2xi64>", "[2, 6]"),
}


def _moves() -> Iterator[Program]:
    for op, (oracle, shapes, text, attributes) in MOVES.items():
        first_index = _INDEXED.get(op, len(shapes))
        for name in _MOVED:
            arguments = tuple(
                _tensor(shape, name if n < first_index else "int32")
                for n, shape in enumerate(shapes)
            )
            results = _results(oracle, arguments, attributes, (name,))
            inputs = dict.fromkeys(range(first_index, len(shapes)), (-2, 7))
            yield Program(f"{op}/{name}", op, arguments, results,
                          _generic(op, len(shapes), text), oracle, attributes,
                          inputs=inputs)  # fmt: skip
        if op in _DYNAMIC:
            dynamic_op, type_, value = _DYNAMIC[op]
            for name in ("i8", "u4"):
                arguments = (_tensor(shapes[0], name),)
                (result,) = _results(oracle, arguments, attributes, (name,))
                properties = f" <{{{text}}}>" if text else ""
                body = (
                    f"%s = stablehlo.constant dense<{value}> : {type_}\n"
                    f'%r0 = "stablehlo.{dynamic_op}"(%a0, %s){properties} : ($a0, {type_}) -> $r0'
                )
                yield Program(f"{dynamic_op}/{name}", dynamic_op, arguments, (result,), body,
                              oracle, attributes)  # fmt: skip
    yield from _axis_moves()
    yield from _other_moves()
    yield from _scatters()


def _axis_moves() -> Iterator[Program]:
    """The operations that move per-axis values."""
    at = {axis: Quantized("i8", (0.1, 0.2, 0.3), (1, 2, 3), axis=axis) for axis in range(3)}
    rows: tuple[tuple[str, str, Tensor, Tensor, str, dict[str, Any]], ...] = (
        ("broadcast_in_dim", "broadcast_in_dim", Tensor((3, 2), at[0]), Tensor((2, 3, 2), at[1]),
         "broadcast_dimensions = array<i64: 1, 2>", {"shape": (2, 3, 2), "dimensions": (1, 2)}),
        ("reshape", "reshape", Tensor((3, 4), at[0]), Tensor((3, 2, 2), at[0]), "",
         {"shape": (3, 2, 2)}),
        ("transpose", "transpose", Tensor((2, 3, 4), at[1]), Tensor((4, 2, 3), at[2]),
         "permutation = array<i64: 2, 0, 1>", {"permutation": (2, 0, 1)}),
    )  # fmt: skip
    for op, oracle, operand, result, text, attributes in rows:
        yield Program(f"{op}/axis", op, (operand,), (result,), _generic(op, 1, text), oracle,
                      attributes)  # fmt: skip


def _other_moves() -> Iterator[Program]:
    for name in ("i8", "u8", "i16", "i32"):
        element = TYPES[name]
        assert isinstance(element, Quantized)
        plain = f"int{element.width}"
        bits = {"dtype": np.dtype(f"i{element.width // 8}")}
        yield Program(f"bitcast_convert/{name}-to-integer", "bitcast_convert",
                      (_tensor((6,), name),), (_tensor((6,), plain),),
                      _generic("bitcast_convert", 1), "bitcast_convert", bits,
                      interpreted=False)  # fmt: skip
        yield Program(f"bitcast_convert/{name}-from-integer", "bitcast_convert",
                      (_tensor((6,), plain),), (_tensor((6,), name),),
                      _generic("bitcast_convert", 1), "bitcast_convert",
                      {"dtype": element.dtype}, interpreted=False)  # fmt: skip
        operand = _tensor((4, 5), name, (0,))
        yield Program(f"get_dimension_size/{name}", "get_dimension_size", (operand,),
                      (_tensor((), "int32"),),
                      _generic("get_dimension_size", 1, "dimension = 0 : i64"),
                      "get_dimension_size", {"dimension": 0})  # fmt: skip
        yield Program(f"iota/{name}", "iota", (), (_tensor((3, 4), name),),
                      '%r0 = "stablehlo.iota"() <{iota_dimension = 1 : i64}> : () -> $r0', "iota",
                      {"shape": (3, 4), "dimension": 1})  # fmt: skip
        yield Program(
            f"dynamic_iota/{name}",
            "dynamic_iota",
            (),
            (_tensor((3, 4), name),),
            "%s = stablehlo.constant dense<[3, 4]> : tensor<2xi64>\n"
            '%r0 = "stablehlo.dynamic_iota"(%s) <{iota_dimension = 0 : i64}> : '
            "(tensor<2xi64>) -> $r0",
            "iota",
            {"shape": (3, 4), "dimension": 0},
        )
        for direction in ("LT", "GT"):
            x = _tensor((3, 9), name)
            region = (
                '{\n^bb0(%x: $e, %y: $e):\n  %p = "stablehlo.compare"(%x, %y) '
                f"<{{comparison_direction = #stablehlo<comparison_direction {direction}>}}> : "
                "($e, $e) -> tensor<i1>\n  stablehlo.return %p : tensor<i1>\n}"
            )
            yield Program(f"sort/{name}-{direction}", "sort", (x,), (x,),
                          _generic("sort", 1, "dimension = 1 : i64, is_stable = true", region),
                          "sort", {"dimension": 1, "direction": direction},
                          {"e": _tensor((), name)})  # fmt: skip
        pads = "\n".join(
            f"%{n} = stablehlo.constant dense<{v}> : tensor<2xi64>"
            for n, v in (("l", "[1, -1]"), ("h", "[2, 0]"), ("i", "[1, 0]"))
        )
        yield Program(f"dynamic_pad/{name}", "dynamic_pad",
                      (_tensor((3, 4), name), _tensor((), name)), (_tensor((8, 3), name),),
                      f'{pads}\n%r0 = "stablehlo.dynamic_pad"(%a0, %a1, %l, %h, %i) : ($a0, $a1, '
                      "tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> $r0", "pad",
                      {"padding": ((1, 2, 1), (-1, 0, 0))})  # fmt: skip
        gather = MOVES["gather"]
        yield Program(f"dynamic_gather/{name}", "dynamic_gather",
                      (_tensor((5, 6), name), _tensor((4, 1), "int32")), (_tensor((4, 6), name),),
                      "%s = stablehlo.constant dense<[1, 6]> : tensor<2xi64>\n"
                      '%r0 = "stablehlo.dynamic_gather"(%a0, %a1, %s) <{'
                      + re.sub(r" slice_sizes = [^>]*>,", "", gather[2])
                      + "}> : ($a0, $a1, tensor<2xi64>) -> $r0", "gather", gather[3],
                      inputs={1: (-2, 7)})  # fmt: skip
        yield from _control(name)
    same = _tensor((2, 2), "i8")
    yield Program("constant/i8", "constant", (), (same,),
                  "%r0 = stablehlo.constant() <{value = dense<[[1, -128], [127, 3]]> : "
                  "tensor<2x2xi8>}> : () -> $r0", "values",
                  {"value": (np.array([[1, -128], [127, 3]]) - 3) * float(np.float32(0.05))},
                  interpreted=False)  # fmt: skip


def _control(name: str) -> Iterator[Program]:
    x = _tensor((4,), name)
    give = '{{ "stablehlo.return"(%a{n}) : ($a{n}) -> () }}'
    yield Program(f"if/{name}", "if", (_tensor((), "i1"), x, x), (x,),
                  f'%r0 = "stablehlo.if"(%a0) ({give.format(n=1)}, {give.format(n=2)}) : '
                  "($a0) -> $r0", "if")  # fmt: skip
    branches = ", ".join(give.format(n=n) for n in (1, 2, 3))
    yield Program(f"case/{name}", "case", (_tensor((), "int32"), x, x, x), (x,),
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
        ("add-i8", "i8", "i8", "add"), ("add-i8-in-i32", "i8", _I32_OF_I8, "add"),
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
        source, target = _element(operand), _element(accumulator)
        assign = "{\n^bb0(%x0: $e, %y0: $e):\n  stablehlo.return %y0 : $e\n}"
        region = assign if body == "assign" else _body(body)
        arguments = (Tensor((5, 3), source), _tensor((4, 1), "int32"), Tensor((4, 3), source))
        # Distinct rows, one of them outside: the order of updates does not matter.
        yield Program(f"scatter/{variant}", "scatter", arguments, (Tensor((5, 3), target),),
                      _generic("scatter", 3, numbers, region), "scatter",
                      {**attributes, "body": body}, {"e": Tensor((), target)},
                      {1: [[3], [0], [9], [1]]})  # fmt: skip


# -- linear algebra, and what one device does not run ---------------------------------------------


def _solvers() -> Iterator[Program]:
    for name in ("i8", "i16"):
        element = TYPES[name]
        assert isinstance(element, Quantized)
        zero, unit = int(element.zero_point), 20
        matrix = zero + unit * np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]])
        x = _tensor((3, 3), name)
        yield Program(f"cholesky/{name}", "cholesky", (x,), (x,),
                      _generic("cholesky", 1, "lower = true"), "cholesky", {"lower": True},
                      inputs={0: matrix}, interpreted=False, runs=False)  # fmt: skip


_GROUP = "replica_groups = dense<0> : tensor<1x1xi64>"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>"
_HOST = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true"

LEGALIZED: dict[str, tuple[str, str]] = {
    "all_gather": ("identity", '%r0 = "stablehlo.all_gather"(%a0) <{all_gather_dim = 0 : i64, '
                   f"{_GROUP}, {_CHANNEL}}}> : ($a0) -> $r0"),
    "all_reduce": ("identity", f'%r0 = "stablehlo.all_reduce"(%a0) <{{{_GROUP}}}> '
                   "(REGION) : ($a0) -> $r0"),
    "all_to_all": ("identity", '%r0 = "stablehlo.all_to_all"(%a0) <{split_dimension = 0 : i64, '
                   "concat_dimension = 0 : i64, split_count = 1 : i64, "
                   f"{_GROUP}}}> : ($a0) -> $r0"),
    "collective_broadcast": ("identity", '%r0 = "stablehlo.collective_broadcast"(%a0) '
                             f"<{{{_GROUP}}}> : ($a0) -> $r0"),
    "collective_reduce": ("identity", f'%r0 = "stablehlo.collective_reduce"(%a0) <{{{_GROUP}}}> '
                          "(REGION) : ($a0) -> $r0"),
    "collective_permute": ("identity", '%r0 = "stablehlo.collective_permute"(%a0) '
                           "<{source_target_pairs = dense<0> : tensor<1x2xi64>}> : ($a0) -> $r0"),
    "reduce_scatter": ("identity", '%r0 = "stablehlo.reduce_scatter"(%a0) <{scatter_dimension = 0 '
                       f": i64, {_GROUP}}}> (REGION) : ($a0) -> $r0"),
    "infeed": ("identity", "%t = stablehlo.create_token : !stablehlo.token\n"
               '%i:2 = "stablehlo.infeed"(%t) <{infeed_config = ""}> : (!stablehlo.token) -> '
               '($r0, !stablehlo.token)\n%r0 = "stablehlo.reshape"(%i#0) : ($r0) -> $r0'),
    "outfeed": ("identity", "%t = stablehlo.create_token : !stablehlo.token\n"
                '%o = "stablehlo.outfeed"(%a0, %t) <{outfeed_config = ""}> : ($a0, '
                '!stablehlo.token) -> !stablehlo.token\n%r0 = "stablehlo.reshape"(%a0) : ($a0) -> '
                "$r0"),
    "send": ("identity", "%t = stablehlo.create_token : !stablehlo.token\n"
             f'%o = "stablehlo.send"(%a0, %t) <{{{_HOST}}}> : ($a0, !stablehlo.token) -> '
             '!stablehlo.token\n%r0 = "stablehlo.reshape"(%a0) : ($a0) -> $r0'),
    "recv": ("identity", "%t = stablehlo.create_token : !stablehlo.token\n"
             f'%i:2 = "stablehlo.recv"(%t) <{{{_HOST.replace("type = 2", "type = 3")}}}> : '
             '(!stablehlo.token) -> ($r0, !stablehlo.token)\n'
             '%r0 = "stablehlo.reshape"(%i#0) : ($r0) -> $r0'),
    "async_start": ("identity", '%f = "stablehlo.async_start"(%a0) ({\n^bb0(%x: $a0):\n'
                    '  %y = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, '
                    f"{_GROUP}, {_CHANNEL}}}> : ($a0) -> $a0\n  stablehlo.return %y : $a0\n}}) : "
                    '($a0) -> !stablehlo.future<$r0>\n%r0 = "stablehlo.async_done"(%f) : '
                    "(!stablehlo.future<$r0>) -> $r0"),
}  # fmt: skip
"""What one device cannot execute: only checked to leave no quantized type."""


LEGALIZED["async_done"] = LEGALIZED["async_start"]


def _legalized() -> Iterator[Program]:
    for op, (oracle, text) in LEGALIZED.items():
        for name in ("i8", "u4"):
            x = _tensor((4, 2), name)
            yield Program(f"{op}/{name}", op, (x,), (x,), text.replace("REGION", _body("add")),
                          oracle, {}, {"e": _tensor((), name)}, runs=False,
                          interpreted=False)  # fmt: skip


NOT_EXPRESSIBLE = {
    "triangular_solve": "StableHLO's own verifier refuses quantized operands",
}
"""Operations that the specification lists and no program can be written for, with the reason."""

QUANTIZED_OPERATIONS = tuple(
    re.findall(
        r"\w+",
        """
        abs add all_gather all_reduce all_to_all async_done async_start atan2
        batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert
        broadcast_in_dim case cbrt ceil cholesky clamp collective_broadcast
        collective_permute collective_reduce compare concatenate constant convolution cosine
        divide dot_general dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota
        dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential
        exponential_minus_one floor gather get_dimension_size if infeed iota is_finite log
        log_plus_one logistic map maximum minimum multiply negate optimization_barrier
        outfeed pad power recv reduce reduce_precision reduce_scatter reduce_window
        remainder reshape reverse round_nearest_afz round_nearest_even rsqrt scatter select
        select_and_scatter send sign sine slice sort sqrt subtract tan tanh transpose
        triangular_solve uniform_dequantize uniform_quantize
        """,
    )
)
"""The operations whose tables in StableHLO's specification admit quantized types."""


def programs() -> list[Program]:
    """Return the programs of the suite, in order; names are unique."""
    made = [
        *_casts(), *_elementwise(), *_dots(), *_convolutions(), *_reductions(), *_moves(),
        *_solvers(), *_legalized(),
    ]  # fmt: skip
    names = [program.name for program in made]
    assert len(set(names)) == len(names), sorted({n for n in names if names.count(n) > 1})
    return made
