"""Programs of the suite: operations that compute each element by itself."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program, Quantized, Tensor
from .suite_types import SHAPES, one_operation, split, tensor

_MATH = ("i8 > i8", "i8 > i8b", "u8 > u8", "i4 > i4b", "u4 > u4", "i16 > i16b", "i8 > i8f",
         "i8_f16 > i8_f16", "i8_bf16 > i8_bf16", "i8_f64 > i8b_f64")  # fmt: skip
"""Types of real functions, ``operand > result``, by the names of `suite_types.TYPES`."""
_EXACT = ("i8 > i8", "i8 > i8b", "u8 > u8b", "i4 > i4", "u4 > u4b", "i16 > i16b", "u16 > u16",
          "i32 > i32b", "i8p > i8c", "i8_f16 > i8b_f16", "i8_bf16 > i8_bf16",
          "i8_f64 > i8_f64")  # fmt: skip
"""Types of functions that are exact on integers; more of them, up to i32."""

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


def elementwise() -> Iterator[Program]:
    """Yield the operations of `UNARY`, `BINARY` and those with attributes of their own."""
    for op, rows in (UNARY | BINARY).items():
        for number, row in enumerate(rows):
            operands, (result,) = split(row)
            shape = SHAPES[number % len(SHAPES)]
            types = [tensor(shape.shape, name, shape.dynamic) for name in operands]
            yield one_operation(op, f"{'-'.join(operands)}-to-{result}", types,
                                tensor(shape.shape, result, shape.dynamic))  # fmt: skip
    axis = Quantized("i8", (0.1, 0.25, 0.5), axis=0)
    wide = Quantized("i32", (0.001, 0.002, 0.003), (1, 2, 3), axis=0)
    for name, element in (("axis-i8", axis), ("axis-i32", wide)):
        operand = Tensor((3, 4), element)
        yield one_operation("add", name, (operand, operand), operand)
    for number, row in enumerate(COMPARE):
        direction = ("EQ", "NE", "LT", "LE", "GT", "GE")[number]
        types = [tensor((40,), name) for name in row.split()]
        attribute = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        yield one_operation("compare", f"{direction}-{row.replace(' ', '-')}", types,
                            tensor((40,), "i1"), attribute, {"direction": direction})  # fmt: skip
    for row in ("i8 i8 i8 > i8", "i8 i8b i8 > i8b", "u8 u8 u8 > u8b", "i16 i16 i16 > i16"):
        operands, (result,) = split(row)
        unsigned = operands[0].startswith("u")
        for dims, scalars in (((5,), ""), ((2, 9), "-scalars")):
            limits: tuple[int, ...] = () if scalars else dims
            types = [tensor(*each) for each in zip((limits, dims, limits), operands, strict=True)]
            inputs = {0: (0, 60) if unsigned else (-60, 0), 2: (70, 110)}
            yield one_operation("clamp", f"{'-'.join(operands)}-to-{result}{scalars}", types,
                                tensor(dims, result), inputs=inputs)  # fmt: skip
    selected = ("i8 i8 > i8", "i8 i8 > i8b", "u4 u4 > u4", "i16 i16 > i16b",
                "i8_f16 i8_f16 > i8b_f16")  # fmt: skip
    for row in selected:
        operands, (result,) = split(row)
        types = [tensor((3, 5), "i1"), *(tensor((3, 5), name) for name in operands)]
        yield one_operation("select", f"{'-'.join(operands)}-to-{result}", types,
                            tensor((3, 5), result))  # fmt: skip
    value = tensor((4,), "i8")
    yield one_operation("select", "scalar-predicate", (tensor((), "i1"), value, value), value)
    for name, exponent, mantissa in (("i8", 5, 10), ("i8b", 8, 2), ("u8", 4, 3), ("i16", 5, 3)):
        attribute = f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32"
        operand = tensor((32,), name)
        bits = {"exponent_bits": exponent, "mantissa_bits": mantissa}
        yield one_operation("reduce_precision", f"{name}-e{exponent}m{mantissa}", (operand,),
                            operand, attribute, bits)  # fmt: skip
    for name in ("i8", "u4", "i16"):
        yield one_operation("is_finite", name, (tensor((5,), name),), tensor((5,), "i1"))
    for row in ("i8 i8 > i8", "i8 i8b > i8f", "u8 u8 > u8", "i16 i16 > i16"):
        operands, (result,) = split(row)
        types = [tensor((6,), name) for name in operands]
        elements = {f"e{n}": tensor((), name) for n, name in enumerate([*operands, result])}
        region = "{\n^bb0(%x: $e0, %y: $e1):\n" \
                 '  %s = "stablehlo.add"(%x, %y) : ($e0, $e1) -> $e2\n' \
                 "  stablehlo.return %s : $e2\n}"  # fmt: skip
        yield one_operation("map", f"{'-'.join(operands)}-to-{result}", types,
                            tensor((6,), result), "dimensions = array<i64: 0>", region=region,
                            oracle="add", types=elements)  # fmt: skip
