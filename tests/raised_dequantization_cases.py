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
    """A way to write a dequantization."""

    arguments: tuple[str, ...]  # types, of storage first
    result: str  # the type
    body: str  # StableHLO of ``%0``, ``%1``... that gives ``%y``
    meaning: Callable[..., np.ndarray]  # the same in NumPy, step by step
    blocks: str  # of the dequantization
    keeps: tuple[str, ...] = ()  # operations of StableHLO that are left, or come instead
    packed: int = 0  # bits of the integers that are unpacked, or 0

    @property
    def text(self) -> str:
        names = ", ".join(f"%{n}: tensor<{each}>" for n, each in enumerate(self.arguments))
        return (
            f"func.func @main({names}) -> tensor<{self.result}> {{\n{self.body}\n"
            f"  return %y : tensor<{self.result}>\n}}\n"
        )


def shaped(view: str) -> str:
    """Lines of views, ``%a = broadcast %b 0,2 : 2x8xf32 -> 2x32x8xf32``, as StableHLO.

    ``%y = scaled %q %s 0,2 : 8x6xi8 2x6xf16 -> 2x4x6xf32`` converts and reshapes ``%q``, converts
    and broadcasts the scales ``%s``, and multiplies; ``less`` subtracts. The number in
    ``%y = and %x 15 : 8x6xui8`` becomes a constant.
    """
    return "\n".join(f"  {each}" for line in view.strip().splitlines() for each in stablehlo(line))


def stablehlo(line: str) -> Iterator[str]:
    """The operations of one line."""
    if "stablehlo." in line or not line.strip():
        yield line.strip()
        return
    head, types = line.split(" : ")
    target, _, name, *operands = head.split()
    source, _, result = types.partition(" -> ")
    tensor = f"tensor<{result or source}>"
    types, listed = f"(tensor<{source}>) -> {tensor}", ", ".join(operands)
    match name, operands:
        case "scaled" | "less", [value, spread, *dims]:
            yield from elementwise(target, name, (value, spread, "".join(dims)), source, result)
        case "broadcast", [value, *dims]:
            dimensions = f"dims = [{''.join(dims)}]"
            yield f"{target} = stablehlo.broadcast_in_dim {value}, {dimensions} : {types}"
        case "transpose", [value, permutation]:
            yield f"{target} = stablehlo.transpose {value}, dims = [{permutation}] : {types}"
        case "bitcast_convert" | "convert" | "reshape", _:
            yield f"{target} = stablehlo.{name} {listed} : {types}"
        case "concatenate", [left, right, axis]:
            types = f"(tensor<{source}>, tensor<{source}>) -> {tensor}"
            yield f"{target} = stablehlo.concatenate {left}, {right}, dim = {axis} : {types}"
        case "compare", _:
            types = f"(tensor<{source}>, tensor<{source}>) -> {tensor}"
            yield f"{target} = stablehlo.compare {listed} : {types}"
        case "constant", [value]:
            yield f"{target} = stablehlo.constant dense<{value}> : {tensor}"
        case _, [left, right] if right[0] != "%":
            yield f"{target}_k = stablehlo.constant dense<{right}> : {tensor}"
            yield f"{target} = stablehlo.{name} {left}, {target}_k : {tensor}"
        case _:
            yield f"{target} = stablehlo.{name} {listed} : {tensor}"


def elementwise(
    target: str, name: str, operands: tuple[str, str, str], types: str, result: str
) -> Iterator[str]:
    """The operations of ``scaled`` or ``less``; the types may differ in elements and shapes."""
    value, spread, dims = operands
    stored, narrow = types.split()
    element = result.rpartition("x")[2]
    real, reals = ("".join(each.rpartition("x")[:2]) + element for each in (stored, narrow))
    if real != stored:
        yield from stablehlo(f"{target}_c = convert {value} : {stored} -> {real}")
        value = f"{target}_c"
    if real != result:
        yield from stablehlo(f"{target}_r = reshape {value} : {real} -> {result}")
        value = f"{target}_r"
    if reals != narrow:
        yield from stablehlo(f"{target}_f = convert {spread} : {narrow} -> {reals}")
        spread = f"{target}_f"
    yield from stablehlo(f"{target}_s = broadcast {spread} {dims} : {reals} -> {result}")
    operation = {"scaled": "multiply", "less": "subtract"}[name]
    yield from stablehlo(f"{target} = {operation} {value} {target}_s : {result}")


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
        %m = scaled %0 %1 0,2 : 8x6xi4 2x6xf32 -> 2x4x6xf32
        %y = reshape %m : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(s, 4, 0), "4, 1"),
    "blocks, the scales repeated": Form(("6x8xi4", "6x2xf32"), "6x8xf32", shaped("""
        %c = convert %0 : 6x8xi4 -> 6x8xf32
        %b = broadcast %1 0,1 : 6x2xf32 -> 6x2x4xf32
        %s = reshape %b : 6x2x4xf32 -> 6x8xf32
        %y = multiply %c %s : 6x8xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(s, 4, 1), "1, 4"),
    "blocks, stored as blocks": Form(("2x4x6xi4", "2x1x6xf32"), "8x6xf32", shaped("""
        %m = scaled %0 %1 0,1,2 : 2x4x6xi4 2x1x6xf32 -> 2x4x6xf32
        %y = reshape %m : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, s: (q.astype(F32) * s).reshape(8, 6), "4, 1"),
    "blocks along two axes": Form(("8x6xi8", "2x3xf32"), "8x6xf32", shaped("""
        %m = scaled %0 %1 0,2 : 8x6xi8 2x3xf32 -> 2x4x3x2xf32
        %y = reshape %m : 2x4x3x2xf32 -> 8x6xf32"""),
        lambda q, s: q.astype(F32) * np.repeat(np.repeat(s, 4, 0), 2, 1), "4, 2"),
    "transposed after": Form(("6x8xi4", "6x2xf32"), "8x6xf32", shaped("""
        %m = scaled %0 %1 0,1 : 6x8xi4 6x2xf32 -> 6x2x4xf32
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
        %d = less %0 %1 0,2 : 8x6xi8 2x6xi8 -> 2x4x6xf32
        %m = scaled %d %2 0,2 : 2x4x6xf32 2x6xf32 -> 2x4x6xf32
        %y = reshape %m : 2x4x6xf32 -> 8x6xf32"""),
        lambda q, z, s: (q.astype(F32) - np.repeat(z, 4, 0)) * np.repeat(s, 4, 0), "4, 1"),
    "by a wider unsigned type": Form(("8x6xui4", "f32"), "8x6xf32", shaped("""
        %i = convert %0 : 8x6xui4 -> 8x6xui8
        %y = scaled %i %1 : 8x6xui8 f32 -> 8x6xf32"""),
        lambda q, s: q.astype(F32) * s, "8, 6"),
    "zero points as wider integers": Form(("8x6xi4", "8xi4", "f32"), "8x6xf32", shaped("""
        %d = less %0 %1 0 : 8x6xi4 8xi4 -> 8x6xi8
        %y = scaled %d %2 : 8x6xi8 f32 -> 8x6xf32"""),
        lambda q, z, s: (q - z[:, None]).astype(F32) * s, "1, 6"),
    "a zero point that is a constant": Form(("8x6xui4", "8xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xui4 -> 8x6xf32
        %d = subtract %c 8.0 : 8x6xf32
        %y = scaled %d %1 0 : 8x6xf32 8xf32 -> 8x6xf32"""),
        lambda q, s: (q.astype(F32) - 8) * s[:, None], "1, 6"),
    "a zero point that is added": Form(("8x6xi8", "8xf32"), "8x6xf32", shaped("""
        %c = convert %0 : 8x6xi8 -> 8x6xf32
        %z = constant [-3.0,7.0] : 2xf32
        %w = broadcast %z 0 : 2xf32 -> 2x4x6xf32
        %v = reshape %w : 2x4x6xf32 -> 8x6xf32
        %d = add %v %c : 8x6xf32
        %y = scaled %d %1 0 : 8x6xf32 8xf32 -> 8x6xf32"""),
        lambda q, s: (q + np.repeat(np.array([-3, 7], F32), 4)[:, None]) * s[:, None], "1, 6"),
    "offsets": Form(("6x8xui8", "6x2xf32", "6x2xf32"), "6x8xf32", shaped("""
        %m = scaled %0 %1 0,1 : 6x8xui8 6x2xf32 -> 6x2x4xf32
        %a = less %m %2 0,1 : 6x2x4xf32 6x2xf32 -> 6x2x4xf32
        %y = reshape %a : 6x2x4xf32 -> 6x8xf32"""),
        # Scales are of few bits, so that the product is exact: a sum may be fused with it.
        lambda q, s, o: q.astype(F32) * np.repeat(s, 4, 1) - np.repeat(o, 4, 1), "1, 4",
        ("negate",)),
    "offsets that are added": Form(("6x8xi8", "8xf32", "8xf32"), "6x8xf32", shaped("""
        %m = scaled %0 %1 1 : 6x8xi8 8xf32 -> 6x8xf32
        %o = broadcast %2 1 : 8xf32 -> 6x8xf32
        %y = add %o %m : 6x8xf32"""),
        lambda q, s, o: o + q.astype(F32) * s, "6, 1"),
    "super-blocks": Form(("6x8xi4", "6x4xi8", "6xf32"), "6x8xf32", shaped("""
        %s = scaled %1 %2 0 : 6x4xi8 6xf32 -> 6x4xf32
        %b = broadcast %s 0,1 : 6x4xf32 -> 6x4x2xf32
        %r = reshape %b : 6x4x2xf32 -> 6x8xf32
        %c = convert %0 : 6x8xi4 -> 6x8xf32
        %y = multiply %r %c : 6x8xf32"""),
        lambda q, i, d: q.astype(F32) * np.repeat(i.astype(F32) * d[:, None], 2, 1), "1, 2"),
    "in f16": Form(("4x8xi8", "4x1xf16"), "4x8xf16", shaped("""
        %y = scaled %0 %1 0,1 : 4x8xi8 4x1xf16 -> 4x8xf16"""),
        lambda q, s: q.astype(np.float16) * s, "1, 8"),
    "in bf16": Form(("4x8xi8", "4x1xi8", "4x1xbf16"), "4x8xbf16", shaped("""
        %d = less %0 %1 0,1 : 4x8xi8 4x1xi8 -> 4x8xbf16
        %y = scaled %d %2 0,1 : 4x8xbf16 4x1xbf16 -> 4x8xbf16"""),
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
        %y = scaled %r %1 : 24xf32 f32 -> 24xf32"""),
        lambda q, s: q.T.reshape(24).astype(F32) * s, "4, 6", ("transpose",)),
    "divided by a power of two": Form(("4x8xi8",), "4x8xf32", shaped("""
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %y = divide %c 128.0 : 4x8xf32"""),
        lambda q: q.astype(F32) / 128, "4, 8"),
    "divided by powers of two": Form(("4x3xi8", "3xi8"), "4x3xf32", shaped("""
        %d = less %0 %1 1 : 4x3xi8 3xi8 -> 4x3xf32
        %p = constant [0.5,-8.0,16777216.0] : 3xf32
        %s = broadcast %p 1 : 3xf32 -> 4x3xf32
        %y = divide %d %s : 4x3xf32"""),
        lambda q, z: (q.astype(F32) - z) / np.array([0.5, -8, 2.0**24], F32), "4, 1"),
    "scaled, and divided by a power of two": Form(("4x8xi8", "8xf16"), "4x8xf32", shaped("""
        %m = scaled %0 %1 1 : 4x8xi8 8xf16 -> 4x8xf32
        %y = divide %m 16.0 : 4x8xf32"""),
        lambda q, s: q.astype(F32) * s.astype(F32) / 16, "4, 1", ("convert", "multiply")),
    "scales of groups and of channels": Form(("6x8xi4", "6x2xf16", "6xf16"), "6x8xf32", shaped("""
        %m = scaled %0 %1 0,1 : 6x8xi4 6x2xf16 -> 6x2x4xf32
        %r = reshape %m : 6x2x4xf32 -> 6x8xf32
        %g = convert %2 : 6xf16 -> 6xf32
        %t = broadcast %g 0 : 6xf32 -> 6x8xf32
        %y = multiply %t %r : 6x8xf32"""),
        lambda q, s, t: q.astype(F32) * np.repeat(s.astype(F32), 4, 1) * t.astype(F32)[:, None],
        "1, 4", ("convert", "multiply")),
    "integers as scales, and a scale": Form(("6x8xi4", "6x2xi8", "bf16"), "6x8xf64", shaped("""
        %m = scaled %0 %1 0,1 : 6x8xi4 6x2xi8 -> 6x2x4xf64
        %r = reshape %m : 6x2x4xf64 -> 6x8xf64
        %y = scaled %r %2 : 6x8xf64 bf16 -> 6x8xf64"""),
        lambda q, s, t: q * np.repeat(s.astype(float), 4, 1) * float(t), "1, 4",
        ("convert", "multiply")),
    "to bf16, which rounds first": Form(("4x8xi8", "8xbf16"), "4x8xbf16", shaped("""
        %m = scaled %0 %1 1 : 4x8xi8 8xbf16 -> 4x8xf32
        %y = convert %m : 4x8xf32 -> 4x8xbf16"""),
        lambda q, s: (q.astype(F32) * s.astype(F32)).astype(ml_dtypes.bfloat16), "4, 1"),
    "to f32 what bf16 has rounded": Form(("6x8xi8", "6x2xbf16"), "8x6xf32", shaped("""
        %m = scaled %0 %1 0,1 : 6x8xi8 6x2xbf16 -> 6x2x4xbf16
        %f = convert %m : 6x2x4xbf16 -> 6x2x4xf32
        %r = reshape %f : 6x2x4xf32 -> 6x8xf32
        %y = transpose %r 1,0 : 6x8xf32 -> 8x6xf32"""),
        lambda q, s: (q.astype(ml_dtypes.bfloat16) * np.repeat(s, 4, 1)).astype(F32).T, "1, 4",
        ("convert", "transpose")),
}  # fmt: skip


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
        %y = scaled %d {scale} : 4x8x{real} {real} -> 4x8x{real}""",
    )


def scaled_twice(first: str, second: str, real: str = "f32") -> Program:
    """``q * s * t``, the scales converted from types."""
    return (
        f"4x8xi8, 8x{first}, 8x{second}",
        f"4x8x{real}",
        f"""
        %f = convert %1 : 8x{first} -> 8x{real}
        %m = scaled %0 %f 1 : 4x8xi8 8x{real} -> 4x8x{real}
        %g = convert %2 : 8x{second} -> 8x{real}
        %y = scaled %m %g 1 : 4x8x{real} 8x{real} -> 4x8x{real}""",
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
        %m = scaled %1 %2 : 8xi8 f32 -> 8xf32
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
        %m = scaled %0 %1 1 : 4x8xi8 8xbf16 -> 4x8xbf16
        %y = scaled %m %2 1 : 4x8xbf16 8xf32 -> 4x8xf32""",
        "computes in f32 with what bf16 has rounded"),
    "rounds twice": ("4x8xi8, 8xf32", "4x8xbf16", """
        %m = scaled %0 %1 1 : 4x8xi8 8xf32 -> 4x8xf32
        %y = convert %m : 4x8xf32 -> 4x8xbf16""", "rounds to bf16 what f32 has rounded before"),
    "some bits of words": ("4x8xi32, f32", "4x8xf32", """
        %h = shift_right_arithmetic %0 4 : 4x8xi32
        %l = and %h 15 : 4x8xi32
        %y = scaled %l %1 : 4x8xi32 f32 -> 4x8xf32""",
        "takes some of the integers that words have, not all"),
    "scales that bf16 has not": ("4x8xi8, 8xf16", "4x8xbf16", """
        %m = scaled %0 %1 1 : 4x8xi8 8xf16 -> 4x8xf32
        %y = convert %m : 4x8xf32 -> 4x8xbf16""", "has scales that are no numbers of bf16"),
    "multiplies for the second time": ("4x8xi8, 8xf32, 8xf32", "4x8xf32", """
        %m = scaled %0 %1 1 : 4x8xi8 8xf32 -> 4x8xf32
        %y = scaled %m %2 1 : 4x8xf32 8xf32 -> 4x8xf32""",
        "multiplies for the second time, and each product is"),
    "subtracts in a type that wraps": ("4x8xi8, 4x8xi8, f32", "4x8xf32", """
        %d = subtract %0 %1 : 4x8xi8
        %y = scaled %d %2 : 4x8xi8 f32 -> 4x8xf32""",
        "subtracts in i8, which wraps; convert to a wider type"),
    "a constant beyond which a type wraps": ("4x8xi8, f32", "4x8xf32", """
        %d = subtract %0 -1 : 4x8xi8
        %y = scaled %d %1 : 4x8xi8 f32 -> 4x8xf32""", "subtracts in i8, which wraps"),
    "a constant below which a type wraps": ("4x8xi8, f32", "4x8xf32", """
        %d = subtract %0 1 : 4x8xi8
        %y = scaled %d %1 : 4x8xi8 f32 -> 4x8xf32""", "subtracts in i8, which wraps"),
    "a scale for each element": ("4x8xi8, 4x8xf32", "4x8xf32", """
        %c = convert %0 : 4x8xi8 -> 4x8xf32
        %y = multiply %c %1 : 4x8xf32""", "has a scale for each element"),
    "integers that are broadcast": ("8xi8, 4xf32", "4x8xf32", """
        %c = convert %0 : 8xi8 -> 8xf32
        %b = broadcast %c 1 : 8xf32 -> 4x8xf32
        %y = scaled %b %1 0 : 4x8xf32 4xf32 -> 4x8xf32""", "has integers that are broadcast"),
    "extents that do not divide": ("4x6xi8, 3xf32", "3x8xf32", """
        %c = convert %0 : 4x6xi8 -> 4x6xf32
        %t = transpose %c 1,0 : 4x6xf32 -> 6x4xf32
        %r = reshape %t : 6x4xf32 -> 3x8xf32
        %u = transpose %r 1,0 : 3x8xf32 -> 8x3xf32
        %v = reshape %u : 8x3xf32 -> 3x8xf32
        %y = scaled %v %1 0 : 3x8xf32 3xf32 -> 3x8xf32""",
        "reshapes across axes whose sizes do not divide"),
}  # fmt: skip


def program(types: str, result: str, body: str) -> str:
    return Form(tuple(types.split(", ")), result, shaped(body), np.asarray, "").text
