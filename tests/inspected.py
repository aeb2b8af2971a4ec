"""Quantized tensors to inspect, and their expected text."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from subquant.compiler.inspected_tensors import InspectedTensor
from subquant.compiler.reading import parse_text
from subquant.compiler.tensor_inspection import inspect_module
from subquant.dialects import create_context

PER_TENSOR = "tensor<4x6x!quant.uniform<u8:f32, 0.5:128>>"
PER_AXIS = "tensor<3x8x!quant.uniform<i8:f16:0, {1.0, 2.0, 4.0}>>"
SUB_CHANNEL = (
    "tensor<4x6x!quant.uniform<i4<-7:7>:f32:{0:2, 1:3}, {{0.5:1, 1.0:-2}, {2.0:3, 4.0:-7}}>>"
)


def inspect(text: str) -> list[InspectedTensor]:
    return inspect_module(parse_text(text, create_context(), "x.mlir"))


def argument(type_: str) -> InspectedTensor:
    (tensor,) = inspect(f"func.func @f(%arg0: {type_}) {{\n  return\n}}\n")
    return tensor


def grid_argument(rows: int, columns: int, block: int = 32) -> InspectedTensor:
    """Return a tensor whose scale in row r, column c is 2 ** ((r + c) % 8)."""
    text = ", ".join(
        "{" + ", ".join(f"{2.0 ** ((r + c) % 8)}" for c in range(columns)) + "}"
        for r in range(rows)
    )
    blocks = f"{{0:1, 1:{block}}}"
    return argument(f"tensor<{rows}x{columns * block}x!quant.uniform<i4:f32:{blocks}, {{{text}}}>>")


def show(renderable: Any, width: int = 100, height: int = 40, terminal: bool = False) -> str:
    output = io.StringIO()
    colours: Any = "truecolor" if terminal else None
    Console(
        file=output, width=width, height=height, force_terminal=terminal, color_system=colours
    ).print(renderable)
    return output.getvalue()
