"""Programs of the suite: StableHLO's ``uniform_quantize`` and the casts of ``quant``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .program import DTYPES, Program, Quantized, Tensor
from .suite_types import SHAPES, TYPES, generic, split, tensor

_SPECIAL = (
    0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e10, -1e10, 0.05, 0.1, 0.15,
    0.125, 0.25, 0.375, -0.125, 2.5, 3.5, 6.3, -6.3, 1e-40, 65504.0, 0.3, 100.0,
)  # fmt: skip

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
    body = upstream if op.startswith("quant.") else generic(op, 1)
    return Program(f"{name}/{variant}", name, (operand,), (result,), body, oracle,
                   interpreted=False, **more)  # fmt: skip


def casts() -> Iterator[Program]:
    """Yield casts to, from and between quantized types of every granularity."""
    size = (len(_SPECIAL),)
    for row in QUANTIZE:
        (source,), (target,) = split(row)
        with np.errstate(over="ignore"):
            inputs = {0: np.array(_SPECIAL).astype(DTYPES[source])}
        for op in ("uniform_quantize", "quant.qcast"):
            yield _cast(op, f"{target}-special", tensor(size, source), tensor(size, target),
                        "uniform_quantize", inputs=inputs)  # fmt: skip
        shape = SHAPES[QUANTIZE.index(row) % len(SHAPES)]
        yield _cast("uniform_quantize", f"{target}-random",
                    tensor(shape.shape, source, shape.dynamic),
                    tensor(shape.shape, target, shape.dynamic), "uniform_quantize",
                    inputs={0: (-200.0, 200.0)})  # fmt: skip
    for name in DEQUANTIZE:
        element = TYPES[name]
        assert isinstance(element, Quantized)
        shape = SHAPES[DEQUANTIZE.index(name) % len(SHAPES)]
        for op in ("uniform_dequantize", "quant.dcast"):
            yield _cast(op, name, tensor(shape.shape, name, shape.dynamic),
                        Tensor(shape.shape, element.expressed, shape.dynamic),
                        "uniform_dequantize")  # fmt: skip
    for row in REQUANTIZE:
        (source,), (target,) = split(row)
        yield _cast("uniform_quantize", f"{source}-to-{target}", tensor((64,), source),
                    tensor((64,), target), "identity")  # fmt: skip
    for name, (element, dims) in (_PER_AXIS | _BLOCKS).items():
        # StableHLO's operations have no sub-channel types.
        ops = ("quant.qcast",) if element.blocks else ("uniform_quantize", "quant.qcast")
        backs = ("quant.dcast",) if element.blocks else ("uniform_dequantize", "quant.dcast")
        variant = f"blocks-{name}" if element.blocks else f"axis-{name}"
        reals, stored = Tensor(dims, element.expressed), Tensor(dims, element)
        for op in ops:
            yield _cast(op, variant, reals, stored, "uniform_quantize", inputs={0: (-20.0, 20.0)})
        for op in backs:
            yield _cast(op, variant, stored, reals, "uniform_dequantize")
    other = Quantized("i8", (0.2, 0.1, 0.4), (0, 5, -100), axis=0)
    moved = Quantized("i8", (0.1, 0.25, 0.5, 0.7), (3, -4, 0, 1), axis=1)
    rows = Tensor((3, 32), _AXIS0)
    for variant, operand, result in (
        ("axis-to-axis", rows, Tensor((3, 32), other)),
        ("axis-to-tensor", rows, tensor((3, 32), "i8")),
        ("tensor-to-axis", tensor((3, 32), "i8"), rows),
        ("axis-moves", Tensor((3, 4), _AXIS0), Tensor((3, 4), moved)),
    ):
        yield _cast("uniform_quantize", variant, operand, result, "identity")
