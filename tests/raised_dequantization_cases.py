"""Ways to write a dequantization as arithmetic, and arithmetic that only looks like one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "i4": np.int8, "ui4": np.uint8, "i8": np.int8, "ui8": np.uint8, "i16": np.int16,
    "i32": np.int32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A way to write a dequantization.

    Attributes:
        arguments: the types, of storage first.
        result: the type.
        body: StableHLO of ``%0``, ``%1``... that gives ``%y``.
        meaning: the same in NumPy, step by step.
        blocks: of the dequantization.
        keeps: operations of StableHLO that are left, or come instead.
        packed: bits of the integers that are unpacked, or 0.
    """

    arguments: tuple[str, ...]
    result: str
    body: str
    meaning: Callable[..., np.ndarray]
    blocks: str
    keeps: tuple[str, ...] = ()
    packed: int = 0

    @property
    def text(self) -> str:
        names = ", ".join(f"%{n}: tensor<{each}>" for n, each in enumerate(self.arguments))
        return (
            f"func.func @main({names}) -> tensor<{self.result}> {{\n{self.body}\n"
            f"  return %y : tensor<{self.result}>\n}}\n"
        )


def shaped(view: str) -> str:
    """Lines of views, ``%a = broadcast %b 0,2 : 2x8xf32 -> 2x32x8xf32``, as StableHLO.

    ``%y = scaled %q %s 0 : 8x6xi8 8xf32 -> 8x6xf32`` converts and multiplies by scales.
    """
    operations = []
    for line in filter(None, map(str.strip, view.splitlines())):
        if "stablehlo." in line:
            operations.append(line)
            continue
        head, types = line.split(" : ")
        target, _, name, *rest = head.split()
        source, _, result = types.partition(" -> ")
        result = result or source
        if name == "scaled":
            stored, scales = source.split()
            dims, whole = "".join(rest[2:]), f"tensor<{result}>"
            operations += [
                f"{target}_c = stablehlo.convert {rest[0]} : (tensor<{stored}>) -> {whole}",
                f"{target}_s = stablehlo.broadcast_in_dim {rest[1]}, dims = [{dims}] : "
                f"(tensor<{scales}>) -> {whole}",
                f"{target} = stablehlo.multiply {target}_c, {target}_s : {whole}",
            ]
            continue
        if name in ("broadcast", "transpose"):
            name = {"broadcast": "broadcast_in_dim"}.get(name, name)
            dims = f", dims = [{rest[1] if len(rest) > 1 else ''}]"
            operations.append(f"{target} = stablehlo.{name} {rest[0]}{dims} : "
                         f"(tensor<{source}>) -> tensor<{result}>")  # fmt: skip
        elif name in ("bitcast_convert", "convert", "reshape"):
            types = f"(tensor<{source}>) -> tensor<{result}>"
            operations.append(f"{target} = stablehlo.{name} {rest[0]} : {types}")
        elif name == "concatenate":
            *fields, axis = rest
            types = f"({', '.join([f'tensor<{source}>'] * len(fields))}) -> tensor<{result}>"
            operations.append(
                f"{target} = stablehlo.{name} {', '.join(fields)}, dim = {axis} : {types}"
            )
        elif name == "compare":
            direction, *fields = rest
            types = f"(tensor<{source}>, tensor<{source}>) -> tensor<{result}>"
            operations.append(
                f"{target} = stablehlo.{name} {direction}, {', '.join(fields)} : {types}"
            )
        elif name == "constant":
            operations.append(f"{target} = stablehlo.constant dense<{rest[0]}> : tensor<{source}>")
        else:
            operations.append(f"{target} = stablehlo.{name} {', '.join(rest)} : tensor<{source}>")
    return "\n".join(f"  {line}" for line in operations)


F32 = np.float32
FORMS = {
    "per tensor": Form(("4x8xi8", "f32"), "4x8xf32", shaped("""
        %y = scaled %0 %1 : 4x8xi8 f32 -> 4x8xf32"""),
        lambda q, s: q.astype(F32) * s, "4, 8"),
    "per axis, the scale first": Form(("4x8xi8", "8xf32"), "4x8xf32", shaped("""
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %r = broadcast %1 1 : 8xf32 -> 1x8xf32
        %s = broadcast %r 0,1 : 1x8xf32 -> 4x8xf32
        %y = multiply %s %c : 4x8xf32"""),
        lambda q, s: s * q.astype(F32), "4, 1"),
    "blocks, reshaped and back": Form(("8x6xi4", "2x6xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xi4 -> 8x6xf32
        %b = reshape %c : 8x6xf32 -> 2x4x6xf32
        %s = broadcast %1 0,2 : 2x6xf32 -> 2x4x6xf32
        %m = multiply %b %s : 2x4x6xf32
        %y = reshape %m : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(s, 4, 0), "4, 1"),
    "blocks, the scales repeated": Form(("6x8xi4", "6x2xf32"), "6x8xf32", shaped("""
        %c = convert %0 : 6x8xi4 -> 6x8xf32
        %b = broadcast %1 0,1 : 6x2xf32 -> 6x2x4xf32
        %s = reshape %b : 6x2x4xf32 -> 6x8xf32
        %y = multiply %c %s : 6x8xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(s, 4, 1), "1, 4"),
    "blocks, stored as blocks": Form(("2x4x6xi4", "2x1x6xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 2x4x6xi4 -> 2x4x6xf32
        %s = broadcast %1 0,1,2 : 2x1x6xf32 -> 2x4x6xf32
        %m = multiply %c %s : 2x4x6xf32
        %y = reshape %m : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, s: (q.astype(F32) * s).reshape(8, 6), "4, 1"),
    "blocks along two axes": Form(("8x6xi8", "2x3xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xi8 -> 8x6xf32
        %b = reshape %c : 8x6xf32 -> 2x4x3x2xf32
        %s = broadcast %1 0,2 : 2x3xf32 -> 2x4x3x2xf32
        %m = multiply %b %s : 2x4x3x2xf32
        %y = reshape %m : 2x4x3x2xf32 -> 8x6xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(np.repeat(s, 4, 0), 2, 1), "4, 2"),
    "transposed after": Form(("6x8xi4", "6x2xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 6x8xi4 -> 6x8xf32
        %b = reshape %c : 6x8xf32 -> 6x2x4xf32
        %s = broadcast %1 0,1 : 6x2xf32 -> 6x2x4xf32
        %m = multiply %b %s : 6x2x4xf32
        %t = transpose %m 1,2,0 : 6x2x4xf32 -> 2x4x6xf32
        %y = reshape %t : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, s: (q.astype(F32) * np.repeat(s, 4, 1)).T, "1, 4", ("transpose",)),
    "scales of another order": Form(("6x8xi8", "2x6xf32"), "6x8xf32", shaped("""
        %c = convert %0 : 6x8xi8 -> 6x8xf32
        %t = transpose %1 1,0 : 2x6xf32 -> 6x2xf32
        %b = broadcast %t 0,1 : 6x2xf32 -> 6x2x4xf32
        %s = reshape %b : 6x2x4xf32 -> 6x8xf32
        %y = multiply %c %s : 6x8xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(s.T, 4, 1), "1, 4", ("transpose",)),
    "scales that come again": Form(("8x6xi8", "4xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xi8 -> 8x6xf32
        %b = broadcast %1 1 : 4xf32 -> 2x4x6xf32
        %s = reshape %b : 2x4x6xf32 -> 8x6xf32
        %y = multiply %c %s : 8x6xf32"""),
        lambda q, s: q.astype(F32) * np.tile(s, 2)[:, None], "1, 6"),
    "zero points as reals": Form(("8x6xi8", "2x6xi8", "2x6xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xi8 -> 8x6xf32
        %b = reshape %c : 8x6xf32 -> 2x4x6xf32
        %z = convert %1 : 2x6xi8 -> 2x6xf32
        %w = broadcast %z 0,2 : 2x6xf32 -> 2x4x6xf32
        %d = subtract %b %w : 2x4x6xf32
        %s = broadcast %2 0,2 : 2x6xf32 -> 2x4x6xf32
        %m = multiply %d %s : 2x4x6xf32
        %y = reshape %m : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, z, s: (q.astype(F32) - np.repeat(z, 4, 0)) * np.repeat(s, 4, 0), "4, 1"),
    "by a wider unsigned type": Form(("8x6xui4", "f32"), "8x6xf32", shaped("""
        %i = convert %0 : 8x6xui4 -> 8x6xui8
        %y = scaled %i %1 : 8x6xui8 f32 -> 8x6xf32"""),
        lambda q, s: q.astype(F32) * s, "8, 6"),
    "zero points as wider integers": Form(("8x6xi4", "8xi4", "f32"), "8x6xf32", shaped("""
        %i = convert %0 : 8x6xi4 -> 8x6xi8
        %z = convert %1 : 8xi4 -> 8xi8
        %w = broadcast %z 0 : 8xi8 -> 8x6xi8
        %d = subtract %i %w : 8x6xi8
        %y = scaled %d %2 : 8x6xi8 f32 -> 8x6xf32"""),
        lambda q, z, s: (q - z[:, None]).astype(F32) * s, "1, 6"),
    "a zero point that is a constant": Form(("8x6xui4", "8xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xui4 -> 8x6xf32
        %z = constant 8.0 : 8x6xf32
        %d = subtract %c %z : 8x6xf32
        %s = broadcast %1 0 : 8xf32 -> 8x6xf32
        %y = multiply %d %s : 8x6xf32"""),
        lambda q, s: (q.astype(F32) - 8) * s[:, None], "1, 6"),
    "a zero point that is added": Form(("8x6xi8", "8xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xi8 -> 8x6xf32
        %z = constant [-3.0,7.0] : 2xf32
        %w = broadcast %z 0 : 2xf32 -> 2x4x6xf32
        %v = reshape %w : 2x4x6xf32 -> 8x6xf32
        %d = add %v %c : 8x6xf32
        %s = broadcast %1 0 : 8xf32 -> 8x6xf32
        %y = multiply %d %s : 8x6xf32"""),
        lambda q, s: (q + np.repeat(np.array([-3, 7], F32), 4)[:, None]) * s[:, None], "1, 6"),
    "offsets": Form(("6x8xui8", "6x2xf32", "6x2xf32"), "6x8xf32", shaped("""
        %c = convert %0 : 6x8xui8 -> 6x8xf32
        %b = reshape %c : 6x8xf32 -> 6x2x4xf32
        %s = broadcast %1 0,1 : 6x2xf32 -> 6x2x4xf32
        %m = multiply %b %s : 6x2x4xf32
        %o = broadcast %2 0,1 : 6x2xf32 -> 6x2x4xf32
        %a = subtract %m %o : 6x2x4xf32
        %y = reshape %a : 6x2x4xf32 -> 6x8xf32"""),
        # Scales are of few bits, so that the product is exact: a sum may be fused with it.
        lambda q, s, o: q.astype(F32) * np.repeat(s, 4, 1) - np.repeat(o, 4, 1), "1, 4",
        ("negate",)),
    "offsets that are added": Form(("6x8xi8", "8xf32", "8xf32"), "6x8xf32", shaped("""
        %c = convert %0 : 6x8xi8 -> 6x8xf32
        %s = broadcast %1 1 : 8xf32 -> 6x8xf32
        %m = multiply %c %s : 6x8xf32
        %o = broadcast %2 1 : 8xf32 -> 6x8xf32
        %y = add %o %m : 6x8xf32"""),
        lambda q, s, o: o + q.astype(F32) * s, "6, 1"),
    "super-blocks": Form(("6x8xi4", "6x4xi8", "6xf32"), "6x8xf32", shaped("""
        %i = convert %1 : 6x4xi8 -> 6x4xf32
        %d = broadcast %2 0 : 6xf32 -> 6x4xf32
        %s = multiply %i %d : 6x4xf32
        %b = broadcast %s 0,1 : 6x4xf32 -> 6x4x2xf32
        %r = reshape %b : 6x4x2xf32 -> 6x8xf32
        %c = convert %0 : 6x8xi4 -> 6x8xf32
        %y = multiply %r %c : 6x8xf32"""),
        lambda q, i, d: q.astype(F32) * np.repeat(i.astype(F32) * d[:, None], 2, 1), "1, 2"),
    "in f16": Form(("4x8xi8", "4x1xf16"), "4x8xf16", shaped("""
        %y = scaled %0 %1 0,1 : 4x8xi8 4x1xf16 -> 4x8xf16"""),
        lambda q, s: q.astype(np.float16) * s, "1, 8"),
    "in bf16": Form(("4x8xi8", "4x1xi8", "4x1xbf16"), "4x8xbf16", shaped("""
        %c = convert %0 : 4x8xi8 -> 4x8xbf16
        %i = convert %1 : 4x1xi8 -> 4x1xbf16
        %z = broadcast %i 0,1 : 4x1xbf16 -> 4x8xbf16
        %d = subtract %c %z : 4x8xbf16
        %s = broadcast %2 0,1 : 4x1xbf16 -> 4x8xbf16
        %y = multiply %d %s : 4x8xbf16"""),
        lambda q, z, s: (q.astype(np.int32) - z).astype(ml_dtypes.bfloat16) * s, "1, 8"),
    "16 bits, which bf16 rounds": Form(("4x8xi16", "bf16"), "4x8xbf16", shaped("""
        %y = scaled %0 %1 : 4x8xi16 bf16 -> 4x8xbf16"""),
        lambda q, s: q.astype(F32).astype(ml_dtypes.bfloat16) * s, "4, 8"),
    "by bf16, exact, to f32": Form(("4x8xui8", "8xf32"), "4x8xf32", shaped("""
        %b = convert %0 : 4x8xui8 -> 4x8xbf16
        %y = scaled %b %1 1 : 4x8xbf16 8xf32 -> 4x8xf32"""),
        lambda q, s: q.astype(F32) * s, "4, 1"),
    "axes in another order": Form(("4x6xi8", "f32"), "24xf32", shaped("""
        %c = convert %0 : 4x6xi8 -> 4x6xf32
        %t = transpose %c 1,0 : 4x6xf32 -> 6x4xf32
        %r = reshape %t : 6x4xf32 -> 24xf32
        %s = broadcast %1 : f32 -> 24xf32
        %y = multiply %r %s : 24xf32"""),
        lambda q, s: q.T.reshape(24).astype(F32) * s, "4, 6", ("transpose",)),
    "divided by a power of two": Form(("4x8xi8",), "4x8xf32", shaped("""
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %s = constant 128.0 : 4x8xf32
        %y = divide %c %s : 4x8xf32"""),
        lambda q: q.astype(F32) / 128, "4, 8"),
    "divided by powers of two": Form(("4x3xi8", "3xi8"), "4x3xf32", shaped("""
        %c = convert %0 : 4x3xi8 -> 4x3xf32
        %i = convert %1 : 3xi8 -> 3xf32
        %z = broadcast %i 1 : 3xf32 -> 4x3xf32
        %d = subtract %c %z : 4x3xf32
        %p = constant [0.5,-8.0,16777216.0] : 3xf32
        %s = broadcast %p 1 : 3xf32 -> 4x3xf32
        %y = divide %d %s : 4x3xf32"""),
        lambda q, z: (q.astype(F32) - z) / np.array([0.5, -8, 2.0**24], F32), "4, 1"),
    "scaled, and divided by a power of two": Form(("4x8xi8", "8xf16"), "4x8xf32", shaped("""
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %f = convert %1 : 8xf16 -> 8xf32
        %s = broadcast %f 1 : 8xf32 -> 4x8xf32
        %m = multiply %c %s : 4x8xf32
        %p = constant 16.0 : 4x8xf32
        %y = divide %m %p : 4x8xf32"""),
        lambda q, s: q.astype(F32) * s.astype(F32) / 16, "4, 1", ("convert", "multiply")),
    "scales of groups and of channels": Form(("6x8xi4", "6x2xf16", "6xf16"), "6x8xf32", shaped("""
        %c = convert %0 : 6x8xi4 -> 6x8xf32
        %b = reshape %c : 6x8xf32 -> 6x2x4xf32
        %f = convert %1 : 6x2xf16 -> 6x2xf32
        %s = broadcast %f 0,1 : 6x2xf32 -> 6x2x4xf32
        %m = multiply %b %s : 6x2x4xf32
        %r = reshape %m : 6x2x4xf32 -> 6x8xf32
        %g = convert %2 : 6xf16 -> 6xf32
        %t = broadcast %g 0 : 6xf32 -> 6x8xf32
        %y = multiply %t %r : 6x8xf32"""),
        lambda q, s, t: q.astype(F32) * np.repeat(s.astype(F32), 4, 1) * t.astype(F32)[:, None],
        "1, 4", ("convert", "multiply")),
    "integers as scales, and a scale": Form(("6x8xi4", "6x2xi8", "bf16"), "6x8xf64", shaped("""
        %c = convert %0 : 6x8xi4 -> 6x8xf64
        %b = reshape %c : 6x8xf64 -> 6x2x4xf64
        %f = convert %1 : 6x2xi8 -> 6x2xf64
        %s = broadcast %f 0,1 : 6x2xf64 -> 6x2x4xf64
        %m = multiply %b %s : 6x2x4xf64
        %r = reshape %m : 6x2x4xf64 -> 6x8xf64
        %g = convert %2 : bf16 -> f64
        %t = broadcast %g : f64 -> 6x8xf64
        %y = multiply %r %t : 6x8xf64"""),
        lambda q, s, t: q * np.repeat(s.astype(float), 4, 1) * float(t), "1, 4",
        ("convert", "multiply")),
    "to bf16, which rounds first": Form(("4x8xi8", "8xbf16"), "4x8xbf16", shaped("""
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %f = convert %1 : 8xbf16 -> 8xf32
        %s = broadcast %f 1 : 8xf32 -> 4x8xf32
        %m = multiply %c %s : 4x8xf32
        %y = convert %m : 4x8xf32 -> 4x8xbf16"""),
        lambda q, s: (q.astype(F32) * s.astype(F32)).astype(ml_dtypes.bfloat16), "4, 1"),
    "to f32 what bf16 has rounded": Form(("6x8xi8", "6x2xbf16"), "8x6xf32", shaped("""
        %c = convert %0 : 6x8xi8 -> 6x8xbf16
        %b = reshape %c : 6x8xbf16 -> 6x2x4xbf16
        %s = broadcast %1 0,1 : 6x2xbf16 -> 6x2x4xbf16
        %m = multiply %b %s : 6x2x4xbf16
        %f = convert %m : 6x2x4xbf16 -> 6x2x4xf32
        %r = reshape %f : 6x2x4xf32 -> 6x8xf32
        %y = transpose %r 1,0 : 6x8xf32 -> 8x6xf32"""),
        lambda q, s: (q.astype(ml_dtypes.bfloat16) * np.repeat(s, 4, 1)).astype(F32).T, "1, 4",
        ("convert", "transpose")),
}  # fmt: skip


# -- integers of few bits in words ----------------------------------------------------------------


def of_bits(words: np.ndarray, bits: int, first: int, *, signed: bool) -> np.ndarray:
    """A bit field of each word as a number."""
    result = (words.astype(np.int64) >> first) & ((1 << bits) - 1)
    return np.where(result >> (bits - 1), result - (1 << bits), result) if signed else result


def extracted(way: str, name: str, first: int, word: str) -> Iterator[str]:
    """StableHLO for 4 bits of ``%0``, an 8x6 tensor of bytes, as ``%name``."""
    shape, four = f"tensor<8x6x{word}>", f"stablehlo.constant dense<4> : tensor<8x6x{word}>"

    def do(result: str, op: str, left: str, right: int) -> Iterator[str]:
        yield f"%{result}_c = stablehlo.constant dense<{right}> : {shape}"
        yield f"%{result} = stablehlo.{op} {left}, %{result}_c : {shape}"

    if way == "masks" and first:
        yield from do(f"{name}_m", "and", "%0", 240 if word == "ui8" else -16)
        yield from do(name, "shift_right_logical", f"%{name}_m", 4)
    elif way == "masks":
        yield from do(name, "and", "%0", 15)
    elif way == "divisions":
        yield from do(name, "divide" if first else "remainder", "%0", 16)
    elif way == "shifts" and first:
        yield from do(name, "shift_right_arithmetic", "%0", 4)
    elif way == "shifts":
        yield f"%{name}_4 = {four}"
        yield f"%{name}_l = stablehlo.shift_left %0, %{name}_4 : {shape}"
        yield from do(name, "shift_right_arithmetic", f"%{name}_l", 4)
    else:  # a sign by arithmetic
        yield from do(f"{name}_s", "shift_right_logical", "%0", first)
        yield from do(f"{name}_m", "and", f"%{name}_s", 15)
        if way == "signs by exclusive or":
            yield from do(f"{name}_x", "xor", f"%{name}_m", 8)
            yield from do(name, "subtract", f"%{name}_x", 8)
        else:
            yield from do(f"{name}_n", "subtract", f"%{name}_m", 16)
            yield f"%{name}_7 = stablehlo.constant dense<7> : {shape}"
            yield (f"%{name}_p = stablehlo.compare GT, %{name}_m, %{name}_7, SIGNED : "
                   f"({shape}, {shape}) -> tensor<8x6xi1>")  # fmt: skip
            yield (f"%{name} = stablehlo.select %{name}_p, %{name}_n, %{name}_m : "
                   f"tensor<8x6xi1>, {shape}")  # fmt: skip


WAYS = {"masks": "ui8", "divisions": "ui8", "shifts": "i8", "signs by exclusive or": "i8",
        "signs by choice": "i8"}  # fmt: skip
PLACES = {
    # Where the two are put, the shape with them, and that of the result.
    "columns": (2, "8x6x2", "8x12"), "rows": (1, "8x2x6", "16x6"), "halves": (0, "2x8x6", "16x6"),
    "halves of columns": (1, "8x2x6", "8x12"),
}  # fmt: skip


def nibbles(way: str, axis_name: str, order: str) -> Form:
    """Two integers of a byte, concatenated along an axis, with a zero point for unsigned ones.

    There is a scale for each row of the result.
    """
    word, (axis, apart, result) = WAYS[way], PLACES[axis_name]
    operations = [*extracted(way, "l", 0, word), *extracted(way, "h", 4, word)]
    dims = [n for n in range(3) if n != axis]
    one = "x".join("1" if n == axis else extent for n, extent in enumerate(apart.split("x")))
    for name in "lh":
        operations.append(f"%{name}_b = stablehlo.broadcast_in_dim %{name}, dims = {dims} : "
                     f"(tensor<8x6x{word}>) -> tensor<{one}x{word}>")  # fmt: skip
    both = ("%l_b, %h_b", "%h_b, %l_b")[order == "the high ones first"]
    part = f"tensor<{one}x{word}>"
    operations.append(f"%b = stablehlo.concatenate {both}, dim = {axis} : ({part}, {part}) -> "
                 f"tensor<{apart}x{word}>")  # fmt: skip
    rows = result.split("x")[0]
    signed = word == "i8"
    body = (
        "\n".join(f"  {line}" for line in operations)
        + "\n"
        + shaped(f"""
        %r = reshape %b : {apart}x{word} -> {result}x{word}
        %c = convert %r : {result}x{word} -> {result}xf32
        %z = constant 8.0 : {result}xf32
        {"" if signed else f"%d = subtract %c %z : {result}xf32"}
        %s = broadcast %1 0 : {rows}xf32 -> {result}xf32
        %y = multiply {"%c" if signed else "%d"} %s : {result}xf32""")
    )

    def meaning(words: np.ndarray, scales: np.ndarray) -> np.ndarray:
        fields = [of_bits(words, 4, first, signed=signed) for first in (0, 4)]
        fields = fields if order == "the low ones first" else fields[::-1]
        numbers = np.stack(fields, axis).reshape([int(n) for n in result.split("x")])
        return (numbers - (0 if signed else 8)).astype(F32) * scales[:, None]

    swapped = ("or", "shift_left", "shift_right_logical") if "high" in order else ()
    keeps = (*swapped, *(("transpose",) if axis_name != "columns" else ()))
    return Form((f"8x6x{word}", f"{rows}xf32"), f"{result}xf32", body, meaning, "", keeps, 4)


def of_words(bits: int, order: tuple[int, ...], *, signed: bool) -> Form:
    """Integers of 32-bit words along rows, shifted by constants, as GPTQ and AWQ lay them.

    Unsigned ones have zero points that are packed alike, along columns.
    """
    count = 32 // bits
    first = ",".join(str(bits * n) for n in order)
    last = ",".join(str(32 - bits - bits * n) for n in order)
    grid, rows = f"2x{count}x6", 2 * count
    if signed:
        shifts = f"""
        %f = constant [{last}] : {count}xi32
        %g = broadcast %f 1 : {count}xi32 -> {grid}xi32
        %h = shift_left %w %g : {grid}xi32
        %k = constant {32 - bits} : {grid}xi32
        %i = shift_right_arithmetic %h %k : {grid}xi32"""
    else:
        shifts = f"""
        %f = constant [{first}] : {count}xi32
        %g = broadcast %f 1 : {count}xi32 -> {grid}xi32
        %h = shift_right_logical %w %g : {grid}xi32
        %k = constant {(1 << bits) - 1} : {grid}xi32
        %i = and %h %k : {grid}xi32"""
    body = shaped(
        f"""
        %w = broadcast %0 0,2 : 2x6xi32 -> {grid}xi32
        {shifts}
        %r = reshape %i : {grid}xi32 -> {rows}x6xi32
        %y = scaled %r %1 1 : {rows}x6xi32 6xf32 -> {rows}x6xf32""".replace("\n        \n", "\n")
    )

    def meaning(words: np.ndarray, scales: np.ndarray) -> np.ndarray:
        fields = [of_bits(words, bits, bits * n, signed=signed) for n in order]
        return np.stack(fields, 1).reshape(rows, 6).astype(F32) * scales

    keeps = ("transpose",)
    return Form(("2x6xi32", "6xf32"), f"{rows}x6xf32", body, meaning, "", keeps, bits)


FORMS |= {
    f"{way}, {axis_name}, {order}": nibbles(way, axis_name, order)
    for way in WAYS
    for axis_name in PLACES
    for order in ("the low ones first", "the high ones first")
}
AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
FORMS |= {
    "words of 32 bits": of_words(4, tuple(range(8)), signed=False),
    "words of 32 bits, with signs": of_words(4, tuple(range(8)), signed=True),
    "words of 32 bits, interleaved": of_words(4, AWQ, signed=False),
    "words of 32 bits, interleaved, with signs": of_words(4, AWQ, signed=True),
    "words of 2 bits": of_words(2, tuple(range(16)), signed=False),
    "words of bytes": of_words(8, tuple(range(4)), signed=True),
    "zero points in words": Form(("2x6xi32", "1x6xi32", "6xf32"), "16x6xf32", shaped("""
        %f = stablehlo.iota dim = 0 : tensor<8xi32>
        %k = constant 4 : 8xi32
        %g = multiply %f %k : 8xi32
        %w = broadcast %0 0,2 : 2x6xi32 -> 2x8x6xi32
        %a = broadcast %g 1 : 8xi32 -> 2x8x6xi32
        %h = shift_right_logical %w %a : 2x8x6xi32
        %m = constant 15 : 2x8x6xi32
        %i = and %h %m : 2x8x6xi32
        %r = reshape %i : 2x8x6xi32 -> 16x6xi32
        %v = broadcast %1 0,2 : 1x6xi32 -> 1x8x6xi32
        %b = broadcast %g 1 : 8xi32 -> 1x8x6xi32
        %j = shift_right_logical %v %b : 1x8x6xi32
        %n = constant 15 : 1x8x6xi32
        %o = and %j %n : 1x8x6xi32
        %p = reshape %o : 1x8x6xi32 -> 8x6xi32
        %q = broadcast %p 1,2 : 8x6xi32 -> 2x8x6xi32
        %z = reshape %q : 2x8x6xi32 -> 16x6xi32
        %d = subtract %r %z : 16x6xi32
        %y = scaled %d %2 1 : 16x6xi32 6xf32 -> 16x6xf32"""),
        lambda w, z, s: (
            np.stack([of_bits(w, 4, 4 * n, signed=False) for n in range(8)], 1)
            - np.stack([of_bits(z, 4, 4 * n, signed=False) for n in range(8)], 1)
        ).reshape(16, 6).astype(F32) * s, "",
        ("transpose",), 4),
    "the low bits of bytes": Form(("8x6xui8", "f32"), "8x6xf32", shaped("""
        %m = constant 15 : 8x6xui8
        %l = and %0 %m : 8x6xui8
        %y = scaled %l %1 : 8x6xui8 f32 -> 8x6xf32"""),
        lambda w, s: (w & 15).astype(F32) * s, "8, 6", ("and",)),
    "three bits of bytes": Form(("8x6xui8", "f32"), "8x6xf32", shaped("""
        %k = constant 2 : 8x6xui8
        %h = shift_right_logical %0 %k : 8x6xui8
        %m = constant 7 : 8x6xui8
        %l = and %h %m : 8x6xui8
        %y = scaled %l %1 : 8x6xui8 f32 -> 8x6xf32"""),
        lambda w, s: (w >> 2 & 7).astype(F32) * s, "8, 6", ("and", "shift_right_logical")),
    "low bits of two tensors": Form(("8x6xui8", "8x6xui8", "f32"), "16x6xf32", shaped("""
        %m = constant 15 : 8x6xui8
        %l = and %0 %m : 8x6xui8
        %k = and %1 %m : 8x6xui8
        %b = concatenate %l %k 0 : 8x6xui8 -> 16x6xui8
        %y = scaled %b %2 : 16x6xui8 f32 -> 16x6xf32"""),
        lambda v, w, s: (np.concatenate([v, w]) & 15).astype(F32) * s, "16, 6",
        ("and", "concatenate")),
    "twice the low bits, with zero points": Form(("8x6xi8", "f32"), "16x6xf32", shaped("""
        %m = constant 15 : 8x6xi8
        %l = and %0 %m : 8x6xi8
        %k = and %0 %m : 8x6xi8
        %e = constant 8 : 8x6xi8
        %p = subtract %l %e : 8x6xi8
        %q = subtract %k %e : 8x6xi8
        %b = concatenate %p %q 0 : 8x6xi8 -> 16x6xi8
        %y = scaled %b %1 : 16x6xi8 f32 -> 16x6xf32"""),
        lambda w, s: np.tile((w & 15) - 8, (2, 1)).astype(F32) * s, "16, 6",
        ("and", "concatenate", "subtract")),
    "signs by choice, in a wider type": Form(("8x6xui8", "f32"), "8x12xf32", shaped("""
        %m = constant 15 : 8x6xui8
        %l = and %0 %m : 8x6xui8
        %k = constant 4 : 8x6xui8
        %h = shift_right_logical %0 %k : 8x6xui8
        %i = convert %l : 8x6xui8 -> 8x6xi32
        %j = convert %h : 8x6xui8 -> 8x6xi32
        %n = constant 8 : 8x6xi32
        %o = constant 16 : 8x6xi32
        %p = compare LT %i %n : 8x6xi32 -> 8x6xi1
        %q = subtract %i %o : 8x6xi32
        %t = stablehlo.select %p, %i, %q : tensor<8x6xi1>, tensor<8x6xi32>
        %u = compare GE %j %n : 8x6xi32 -> 8x6xi1
        %v = subtract %j %o : 8x6xi32
        %w = stablehlo.select %u, %v, %j : tensor<8x6xi1>, tensor<8x6xi32>
        %a = reshape %t : 8x6xi32 -> 8x6x1xi32
        %b = reshape %w : 8x6xi32 -> 8x6x1xi32
        %d = concatenate %a %b 2 : 8x6x1xi32 -> 8x6x2xi32
        %r = reshape %d : 8x6x2xi32 -> 8x12xi32
        %y = scaled %r %1 : 8x12xi32 f32 -> 8x12xf32"""),
        lambda w, s: np.stack([of_bits(w, 4, n, signed=True) for n in (0, 4)], -1)
        .reshape(8, 12).astype(F32) * s, "8, 12", (), 4),
    "divided by a constant that is converted": Form(("8x6xui8", "f32"), "8x12xf32", shaped("""
        %m = constant 15 : 8x6xui8
        %l = and %0 %m : 8x6xui8
        %n = constant 16 : i32
        %e = convert %n : i32 -> ui8
        %k = broadcast %e : ui8 -> 8x6xui8
        %h = divide %0 %k : 8x6xui8
        %a = reshape %l : 8x6xui8 -> 8x6x1xui8
        %b = reshape %h : 8x6xui8 -> 8x6x1xui8
        %d = concatenate %a %b 2 : 8x6x1xui8 -> 8x6x2xui8
        %r = reshape %d : 8x6x2xui8 -> 8x12xui8
        %y = scaled %r %1 : 8x12xui8 f32 -> 8x12xf32"""),
        lambda w, s: np.stack([of_bits(w, 4, n, signed=False) for n in (0, 4)], -1)
        .reshape(8, 12).astype(F32) * s, "8, 12", (), 4),
    "a byte as two integers": Form(("8x6xui8", "8xf32"), "8x12xf32", shaped("""
        %b = bitcast_convert %0 : 8x6xui8 -> 8x6x2xi4
        %r = reshape %b : 8x6x2xi4 -> 8x12xi4
        %y = scaled %r %1 0 : 8x12xi4 8xf32 -> 8x12xf32"""),
        lambda w, s: np.stack([of_bits(w, 4, n, signed=True) for n in (0, 4)], -1)
        .reshape(8, 12).astype(F32) * s[:, None], "1, 12", (), 4),
    "converted, and then put together": Form(("8x6xui8", "8xf32"), "8x12xf32", shaped("""
        %m = constant 15 : 8x6xui8
        %l = and %0 %m : 8x6xui8
        %n = constant 4 : 8x6xui8
        %h = shift_right_logical %0 %n : 8x6xui8
        %f = convert %l : 8x6xui8 -> 8x6xf32
        %g = convert %h : 8x6xui8 -> 8x6xf32
        %z = constant 7.0 : 8x6xf32
        %d = subtract %f %z : 8x6xf32
        %w = constant 7.0 : 8x6xf32
        %e = subtract %g %w : 8x6xf32
        %s = broadcast %1 0 : 8xf32 -> 8x6xf32
        %p = multiply %d %s : 8x6xf32
        %t = broadcast %1 0 : 8xf32 -> 8x6xf32
        %q = multiply %e %t : 8x6xf32
        %i = reshape %p : 8x6xf32 -> 8x6x1xf32
        %j = reshape %q : 8x6xf32 -> 8x6x1xf32
        %b = concatenate %i %j 2 : 8x6x1xf32 -> 8x6x2xf32
        %y = reshape %b : 8x6x2xf32 -> 8x12xf32"""),
        lambda w, s: (np.stack([of_bits(w, 4, n, signed=False) for n in (0, 4)], -1)
        .reshape(8, 12) - 7).astype(F32) * s[:, None], "1, 12", (), 4),
}  # fmt: skip


# -- refusals ---------------------------------------------------------------------------


Program = tuple[str, str, str]
"""Types of arguments and result, and a body."""


def less(zero_point: str, types: str = "", q: str = "i8", real: str = "f32") -> Program:
    """``(q - z) * s``, with operations that compute ``%z`` from the arguments from 1 on."""
    arguments = [f"4x8x{q}", *types.split(), real]
    scale = f"%{len(arguments) - 1}"
    return (
        ", ".join(arguments),
        f"4x8x{real}",
        f"""
        %c = convert %0 : 4x8x{q} -> 4x8x{real}
        {zero_point.strip()}
        %d = subtract %c %z : 4x8x{real}
        %s = broadcast {scale} : {real} -> 4x8x{real}
        %y = multiply %d %s : 4x8x{real}""",
    )


def scaled_twice(first: str, second: str, real: str = "f32") -> Program:
    """``q * s * t``, the scales converted from types."""
    return (
        f"4x8xi8, 8x{first}, 8x{second}",
        f"4x8x{real}",
        f"""
        %c = convert %0 : 4x8xi8 -> 4x8x{real}
        %f = convert %1 : 8x{first} -> 8x{real}
        %s = broadcast %f 1 : 8x{real} -> 4x8x{real}
        %m = multiply %c %s : 4x8x{real}
        %g = convert %2 : 8x{second} -> 8x{real}
        %t = broadcast %g 1 : 8x{real} -> 4x8x{real}
        %y = multiply %m %t : 4x8x{real}""",
    )


def divided(by: str, arguments: str = "") -> Program:
    """``q / s``, with operations that compute ``%s``."""
    return (
        f"4x8xi8{arguments}",
        "4x8xf32",
        f"""
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        {by.strip()}
        %y = divide %c %s : 4x8xf32""",
    )


ROW = "%z = broadcast %i 1 : 8x{0} -> 4x8x{0}"
REFUSED = {
    "a zero point that may be no integer": (
        *less("%z = broadcast %1 1 : 8xf32 -> 4x8xf32", "8xf32"), "not known to be an integer"),
    "a zero point between integers": (
        *less("%z = constant 0.5 : 4x8xf32"), "is not known to be an integer"),
    "a zero point out of the range": (
        *less("%z = constant 128.0 : 4x8xf32"), "has a zero point that is no number of i8"),
    "a zero point that is NaN": (
        *less("%z = constant 0x7FC00000 : 4x8xf32"), "is not known to be an integer"),
    "a zero point that is infinite": (
        *less("%z = constant 0x7F800000 : 4x8xf32"), "has a zero point that is no number of i8"),
    "a zero point that is scaled": (
        *less("""
        %i = convert %1 : 8xi8 -> 8xf32
        %t = broadcast %2 : f32 -> 8xf32
        %m = multiply %i %t : 8xf32
        %z = broadcast %m 1 : 8xf32 -> 4x8xf32""", "8xi8"),
        "has a zero point that is no integer of the program"),
    "a zero point that is a difference": (
        *less("""
        %i = convert %1 : 8xi8 -> 8xf32
        %j = convert %2 : 8xi8 -> 8xf32
        %m = subtract %i %j : 8xf32
        %z = broadcast %m 1 : 8xf32 -> 4x8xf32""", "8xi8 8xi8"),
        "has a zero point that is no integer of the program"),
    "wider zero points": (
        *less("%i = convert %1 : 8xi8 -> 8xf32\n" + ROW.format("f32"), "8xi8", "i4"),
        "has zero points of i8, and storage of i4"),
    "integers that the float rounds": (
        *less("%i = convert %1 : 8xi16 -> 8xbf16\n" + ROW.format("bf16"), "8xi16", "i16", "bf16"),
        "has zero points that bf16 rounds"),
    "a difference that the float rounds": (
        *less("%z = constant 1.0 : 4x8xf16", "", "i16", "f16"),
        "subtracts integers of i16, which f16 rounds"),
    "divides": (
        *divided("%s = broadcast %1 1 : 8xf32 -> 4x8xf32", ", 8xf32"),
        "divides, which rounds otherwise than a multiplication"),
    "divides by a number between": (
        *divided("%s = constant 3.0 : 4x8xf32"), "is no power of two"),
    "divides by zero": (*divided("%s = constant 0.0 : 4x8xf32"), "is no power of two"),
    "divides by the infinite": (
        *divided("%s = constant 0x7F800000 : 4x8xf32"), "is no power of two"),
    "divides by a power whose inverse is too large": (
        *divided("%s = constant 0x00000001 : 4x8xf32"), "is no power of two"),
    "multiplies by scales that are rounded together": (
        *scaled_twice("bf16", "bf16"), "and the product before is rounded"),
    "multiplies by scales that f16 rounds": (
        *scaled_twice("f16", "f16", "f16"), "and the product before is rounded"),
    "multiplies what bf16 has rounded": ("4x8xi8, 8xbf16, 8xf32", "4x8xf32", """
        %c = convert %0 : 4x8xi8 -> 4x8xbf16
        %s = broadcast %1 1 : 8xbf16 -> 4x8xbf16
        %m = multiply %c %s : 4x8xbf16
        %f = convert %m : 4x8xbf16 -> 4x8xf32
        %t = broadcast %2 1 : 8xf32 -> 4x8xf32
        %y = multiply %f %t : 4x8xf32""", "computes in f32 with what bf16 has rounded"),
    "rounds twice": ("4x8xi8, 8xf32", "4x8xbf16", """
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %s = broadcast %1 1 : 8xf32 -> 4x8xf32
        %m = multiply %c %s : 4x8xf32
        %y = convert %m : 4x8xf32 -> 4x8xbf16""", "rounds to bf16 what f32 has rounded before"),
    "some bits of words": ("4x8xi32, f32", "4x8xf32", """
        %k = constant 4 : 4x8xi32
        %h = shift_right_arithmetic %0 %k : 4x8xi32
        %m = constant 15 : 4x8xi32
        %l = and %h %m : 4x8xi32
        %y = scaled %l %1 : 4x8xi32 f32 -> 4x8xf32""",
        "takes some of the integers that words have, not all"),
    "scales that bf16 has not": ("4x8xi8, 8xf16", "4x8xbf16", """
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %f = convert %1 : 8xf16 -> 8xf32
        %s = broadcast %f 1 : 8xf32 -> 4x8xf32
        %m = multiply %c %s : 4x8xf32
        %y = convert %m : 4x8xf32 -> 4x8xbf16""", "has scales that are no numbers of bf16"),
    "multiplies for the second time": ("4x8xi8, 8xf32, 8xf32", "4x8xf32", """
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %s = broadcast %1 1 : 8xf32 -> 4x8xf32
        %m = multiply %c %s : 4x8xf32
        %t = broadcast %2 1 : 8xf32 -> 4x8xf32
        %y = multiply %m %t : 4x8xf32""", "multiplies for the second time, and each product is"),
    "subtracts in a type that wraps": ("4x8xi8, 4x8xi8, f32", "4x8xf32", """
        %d = subtract %0 %1 : 4x8xi8
        %y = scaled %d %2 : 4x8xi8 f32 -> 4x8xf32""",
        "subtracts in i8, which wraps; convert to a wider type"),
    "a constant beyond which a type wraps": ("4x8xi8, f32", "4x8xf32", """
        %z = constant -1 : 4x8xi8
        %d = subtract %0 %z : 4x8xi8
        %y = scaled %d %1 : 4x8xi8 f32 -> 4x8xf32""", "subtracts in i8, which wraps"),
    "a constant below which a type wraps": ("4x8xi8, f32", "4x8xf32", """
        %z = constant 1 : 4x8xi8
        %d = subtract %0 %z : 4x8xi8
        %y = scaled %d %1 : 4x8xi8 f32 -> 4x8xf32""", "subtracts in i8, which wraps"),
    "a scale for each element": ("4x8xi8, 4x8xf32", "4x8xf32", """
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %y = multiply %c %1 : 4x8xf32""", "has a scale for each element"),
    "integers that are broadcast": ("8xi8, 4xf32", "4x8xf32", """
        %c = convert %0 : 8xi8 -> 8xf32
        %b = broadcast %c 1 : 8xf32 -> 4x8xf32
        %s = broadcast %1 0 : 4xf32 -> 4x8xf32
        %y = multiply %b %s : 4x8xf32""", "has integers that are broadcast"),
    "extents that do not divide": ("4x6xi8, 3xf32", "3x8xf32", """
        %c = convert %0 : 4x6xi8 -> 4x6xf32
        %t = transpose %c 1,0 : 4x6xf32 -> 6x4xf32
        %r = reshape %t : 6x4xf32 -> 3x8xf32
        %u = transpose %r 1,0 : 3x8xf32 -> 8x3xf32
        %v = reshape %u : 8x3xf32 -> 3x8xf32
        %s = broadcast %1 0 : 3xf32 -> 3x8xf32
        %y = multiply %v %s : 3x8xf32""", "reshapes across axes whose extents do not divide"),
}  # fmt: skip


def program(types: str, result: str, body: str) -> str:
    return Form(tuple(types.split(", ")), result, shaped(body), np.asarray, "").text
