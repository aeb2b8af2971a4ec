"""Programs to compile, as many as are wanted, of several kinds, no two of the same content."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

__all__ = ["KINDS", "make_programs", "networks"]


def _scale(source: random.Random) -> str:
    return f"{source.uniform(0.004, 0.4):.6f}"


def _type(source: random.Random) -> str:
    return f"!quant.uniform<i8:f32, {_scale(source)}:{source.randint(-9, 9)}>"


def _elementwise(source: random.Random) -> str:
    kind = source.choice(("add", "multiply", "subtract", "maximum"))
    shape = f"{source.randint(2, 40)}x{source.randint(8, 90)}"
    types = [_type(source) for _ in range(3)]
    x, y, z = (f"tensor<{shape}x{each}>" for each in types)
    return (
        f"func.func @main(%x: {x}, %y: {y}) -> {z} {{\n"
        f"  %0 = stablehlo.{kind} %x, %y : ({x}, {y}) -> {z}\n"
        f"  return %0 : {z}\n}}\n"
    )


def _casts(source: random.Random) -> str:
    rows, columns = source.randint(2, 12), 32 * source.randint(2, 6)
    scales = ", ".join(
        "{" + ", ".join(_scale(source) for _ in range(columns // 32)) + "}" for _ in range(rows)
    )
    element = f"!quant.uniform<i4:f32:{{0:1, 1:32}}, {{{scales}}}>"
    real, quantized = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x{columns}x{element}>"
    return (
        f"func.func @main(%x: {real}) -> {real} {{\n"
        f"  %0 = quant.qcast %x : {real} to {quantized}\n"
        f"  %1 = quant.dcast %0 : {quantized} to {real}\n"
        f"  return %1 : {real}\n}}\n"
    )


def _matmul(source: random.Random) -> str:
    m, k, n = (source.choice((8, 16, 24, 48, 64)) for _ in range(3))
    x, w, y = (
        f"tensor<{m}x{k}x{_type(source)}>",
        f"tensor<{k}x{n}x!quant.uniform<i8<-127:127>:f32, {_scale(source)}>>",
        f"tensor<{m}x{n}x{_type(source)}>",
    )
    return (
        f"func.func @main(%x: {x}, %w: {w}) -> {y} {{\n"
        f"  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {y}\n"
        f"  return %0 : {y}\n}}\n"
    )


def _convolution(source: random.Random) -> str:
    size, channels, features = source.randint(6, 14), source.choice((3, 8, 16)), 8
    x, w, y = (
        f"tensor<1x{size}x{size}x{channels}x{_type(source)}>",
        f"tensor<3x3x{channels}x{features}x!quant.uniform<i8<-127:127>:f32, {_scale(source)}>>",
        f"tensor<1x{size - 2}x{size - 2}x{features}x{_type(source)}>",
    )
    return (
        f"func.func @main(%x: {x}, %w: {w}) -> {y} {{\n"
        "  %0 = stablehlo.convolution(%x, %w) "
        "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],"
        f" window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}"
        f" : ({x}, {w}) -> {y}\n"
        f"  return %0 : {y}\n}}\n"
    )


def _layers(source: random.Random) -> str:
    """Layers with weights in the program, one after the other."""
    count, width, rows = source.randint(3, 6), 16, 4
    given = f"tensor<{rows}x{width}x{_type(source)}>"
    lines, now, value = [], given, "%x"
    for number in range(count):
        weights = ", ".join(str(source.randint(-127, 127)) for _ in range(width * width))
        scale = _scale(source)
        weight = f"tensor<{width}x{width}x!quant.uniform<i8<-127:127>:f32, {scale}>>"
        after = f"tensor<{rows}x{width}x{_type(source)}>"
        lines += [
            f"  %w{number} = stablehlo.constant() {{value = dense<[{weights}]> : "
            f"tensor<{width * width}xi8>}} : () -> tensor<{width * width}x"
            f"!quant.uniform<i8<-127:127>:f32, {scale}>>",
            f"  %v{number} = stablehlo.reshape %w{number} : (tensor<{width * width}x"
            f"!quant.uniform<i8<-127:127>:f32, {scale}>>) -> {weight}",
            f"  %y{number} = stablehlo.dot_general {value}, %v{number}, "
            f"contracting_dims = [1] x [0] : ({now}, {weight}) -> {after}",
        ]
        now, value = after, f"%y{number}"
    body = "\n".join(lines)
    return f"func.func @main(%x: {given}) -> {now} {{\n{body}\n  return {value} : {now}\n}}\n"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "elementwise": _elementwise,
    "casts": _casts,
    "matmul": _matmul,
    "convolution": _convolution,
    "layers": _layers,
}
"""What writes a program of each kind."""


def make_programs(count: int, seed: int = 0) -> dict[str, str]:
    """Return the text of so many programs by their names, the kinds in turn."""
    source = random.Random(seed)
    kinds = list(KINDS)
    programs: dict[str, str] = {}
    while len(programs) < count:
        kind = kinds[len(programs) % len(kinds)]
        programs[f"{kind}-{len(programs):04}"] = KINDS[kind](source)
    if len(set(programs.values())) != count:
        raise RuntimeError("two programs are equal; draw them with another seed")
    return programs


def networks() -> dict[str, Path]:
    """Return the models in the folder that the environment variable SUBQUANT_MODELS names.

    Raises:
        ValueError: there is no such folder, or no model in it.
    """
    folder = Path(os.environ.get("SUBQUANT_MODELS", ""))
    found = sorted(path for ending in ("tflite", "onnx") for path in folder.rglob(f"*.{ending}"))
    if not os.environ.get("SUBQUANT_MODELS") or not found:
        raise ValueError("set SUBQUANT_MODELS to a folder with .tflite or .onnx models")
    return {f"network-{path.stem}": path for path in found}
