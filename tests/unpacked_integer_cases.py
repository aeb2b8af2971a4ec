"""Dequantizations of integers of few bits that bytes and words hold."""

from __future__ import annotations

import numpy as np

from raised_dequantization_cases import F32, Form, shaped


def of_bits(words: np.ndarray, bits: int, first: int, *, signed: bool) -> np.ndarray:
    """A bit field of each word as a number."""
    result = (words.astype(np.int64) >> first) & ((1 << bits) - 1)
    return np.where(result >> (bits - 1), result - (1 << bits), result) if signed else result


def byte_halves(words: np.ndarray, *, signed: bool) -> np.ndarray:
    """The two integers of each byte of 8 rows, the low bits first: 12 columns."""
    return np.stack([of_bits(words, 4, n, signed=signed) for n in (0, 4)], -1).reshape(8, 12)


WAYS = {
    "masks": ("ui8", """
        %l = and %0 15 : 8x6xui8""", """
        %m = and %0 240 : 8x6xui8
        %h = shift_right_logical %m 4 : 8x6xui8"""),
    "divisions": ("ui8", """
        %l = remainder %0 16 : 8x6xui8""", """
        %h = divide %0 16 : 8x6xui8"""),
    "shifts": ("i8", """
        %m = shift_left %0 4 : 8x6xi8
        %l = shift_right_arithmetic %m 4 : 8x6xi8""", """
        %h = shift_right_arithmetic %0 4 : 8x6xi8"""),
    "signs by exclusive or": ("i8", *(f"""
        %{name}_w = shift_right_logical %0 {first} : 8x6xi8
        %{name}_m = and %{name}_w 15 : 8x6xi8
        %{name}_x = xor %{name}_m 8 : 8x6xi8
        %{name} = subtract %{name}_x 8 : 8x6xi8""" for name, first in (("l", 0), ("h", 4)))),
    "signs by choice": ("i8", *(f"""
        %{name}_w = shift_right_logical %0 {first} : 8x6xi8
        %{name}_m = and %{name}_w 15 : 8x6xi8
        %{name}_n = subtract %{name}_m 16 : 8x6xi8
        %{name}_7 = constant 7 : 8x6xi8
        %{name}_p = compare GT %{name}_m %{name}_7 SIGNED : 8x6xi8 -> 8x6xi1
        %{name} = stablehlo.select %{name}_p, %{name}_n, %{name}_m : tensor<8x6xi1>, tensor<8x6xi8>
        """ for name, first in (("l", 0), ("h", 4)))),
}  # fmt: skip
"""Type of a byte, and how its low 4 bits become ``%l``, its high ones ``%h``."""
PLACES = {
    # Where the two are put, the shape with them, and that of the result.
    "columns": (2, "8x6x2", "8x12"), "rows": (1, "8x2x6", "16x6"), "halves": (0, "2x8x6", "16x6"),
    "halves of columns": (1, "8x2x6", "8x12"),
}  # fmt: skip


def nibbles(way: str, axis_name: str, order: str) -> Form:
    """Two integers of a byte, concatenated along an axis, with a zero point for unsigned ones.

    There is a scale for each row of the result.
    """
    (word, low, high), (axis, apart, result) = WAYS[way], PLACES[axis_name]
    dims = ",".join(str(n) for n in range(3) if n != axis)
    one = "x".join("1" if n == axis else extent for n, extent in enumerate(apart.split("x")))
    both = ("%l_b %h_b", "%h_b %l_b")[order == "the high ones first"]
    rows = result.split("x")[0]
    signed = word == "i8"
    body = shaped(f"""{low}{high}
        %l_b = broadcast %l {dims} : 8x6x{word} -> {one}x{word}
        %h_b = broadcast %h {dims} : 8x6x{word} -> {one}x{word}
        %b = concatenate {both} {axis} : {one}x{word} -> {apart}x{word}
        %r = reshape %b : {apart}x{word} -> {result}x{word}
        %c = convert %r : {result}x{word} -> {result}xf32
        {"" if signed else f"%d = subtract %c 8.0 : {result}xf32"}
        %y = scaled %{"c" if signed else "d"} %1 0 : {result}xf32 {rows}xf32 -> {result}xf32""")

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
    grid, rows = f"2x{count}x6", 2 * count
    if signed:
        first = "shift_left", [32 - bits - bits * n for n in order]
        second = "shift_right_arithmetic", 32 - bits
    else:
        first = "shift_right_logical", [bits * n for n in order]
        second = "and", (1 << bits) - 1
    body = shaped(f"""
        %w = broadcast %0 0,2 : 2x6xi32 -> {grid}xi32
        %f = constant {str(first[1]).replace(" ", "")} : {count}xi32
        %g = broadcast %f 1 : {count}xi32 -> {grid}xi32
        %h = {first[0]} %w %g : {grid}xi32
        %i = {second[0]} %h {second[1]} : {grid}xi32
        %r = reshape %i : {grid}xi32 -> {rows}x6xi32
        %y = scaled %r %1 1 : {rows}x6xi32 6xf32 -> {rows}x6xf32""")

    def meaning(words: np.ndarray, scales: np.ndarray) -> np.ndarray:
        fields = [of_bits(words, bits, bits * n, signed=signed) for n in order]
        return np.stack(fields, 1).reshape(rows, 6).astype(F32) * scales

    keeps = ("transpose",)
    return Form(("2x6xi32", "6xf32"), f"{rows}x6xf32", body, meaning, "", keeps, bits)


UNPACKED = {
    f"{way}, {axis_name}, {order}": nibbles(way, axis_name, order)
    for way in WAYS
    for axis_name in PLACES
    for order in ("the low ones first", "the high ones first")
}
AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
UNPACKED |= {
    "words of 32 bits": of_words(4, tuple(range(8)), signed=False),
    "words of 32 bits, with signs": of_words(4, tuple(range(8)), signed=True),
    "words of 32 bits, interleaved": of_words(4, AWQ, signed=False),
    "words of 32 bits, interleaved, with signs": of_words(4, AWQ, signed=True),
    "words of 2 bits": of_words(2, tuple(range(16)), signed=False),
    "words of bytes": of_words(8, tuple(range(4)), signed=True),
    "zero points in words": Form(("2x6xi32", "1x6xi32", "6xf32"), "16x6xf32", shaped("""
        %f = stablehlo.iota dim = 0 : tensor<8xi32>
        %g = multiply %f 4 : 8xi32
        %w = broadcast %0 0,2 : 2x6xi32 -> 2x8x6xi32
        %a = broadcast %g 1 : 8xi32 -> 2x8x6xi32
        %h = shift_right_logical %w %a : 2x8x6xi32
        %i = and %h 15 : 2x8x6xi32
        %r = reshape %i : 2x8x6xi32 -> 16x6xi32
        %v = broadcast %1 0,2 : 1x6xi32 -> 1x8x6xi32
        %b = broadcast %g 1 : 8xi32 -> 1x8x6xi32
        %j = shift_right_logical %v %b : 1x8x6xi32
        %o = and %j 15 : 1x8x6xi32
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
        %l = and %0 15 : 8x6xui8
        %y = scaled %l %1 : 8x6xui8 f32 -> 8x6xf32"""),
        lambda w, s: (w & 15).astype(F32) * s, "8, 6", ("and",)),
    "three bits of bytes": Form(("8x6xui8", "f32"), "8x6xf32", shaped("""
        %h = shift_right_logical %0 2 : 8x6xui8
        %l = and %h 7 : 8x6xui8
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
        %l = and %0 15 : 8x6xui8
        %h = shift_right_logical %0 4 : 8x6xui8
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
        lambda w, s: byte_halves(w, signed=True).astype(F32) * s, "8, 12", (), 4),
    "divided by a constant that is converted": Form(("8x6xui8", "f32"), "8x12xf32", shaped("""
        %l = and %0 15 : 8x6xui8
        %n = constant 16 : i32
        %e = convert %n : i32 -> ui8
        %k = broadcast %e : ui8 -> 8x6xui8
        %h = divide %0 %k : 8x6xui8
        %a = reshape %l : 8x6xui8 -> 8x6x1xui8
        %b = reshape %h : 8x6xui8 -> 8x6x1xui8
        %d = concatenate %a %b 2 : 8x6x1xui8 -> 8x6x2xui8
        %r = reshape %d : 8x6x2xui8 -> 8x12xui8
        %y = scaled %r %1 : 8x12xui8 f32 -> 8x12xf32"""),
        lambda w, s: byte_halves(w, signed=False).astype(F32) * s, "8, 12", (), 4),
    "a byte as two integers": Form(("8x6xui8", "8xf32"), "8x12xf32", shaped("""
        %b = bitcast_convert %0 : 8x6xui8 -> 8x6x2xi4
        %r = reshape %b : 8x6x2xi4 -> 8x12xi4
        %y = scaled %r %1 0 : 8x12xi4 8xf32 -> 8x12xf32"""),
        lambda w, s: byte_halves(w, signed=True).astype(F32) * s[:, None], "1, 12", (), 4),
    "converted, and then put together": Form(("8x6xui8", "8xf32"), "8x12xf32", shaped("""
        %l = and %0 15 : 8x6xui8
        %h = shift_right_logical %0 4 : 8x6xui8
        %f = convert %l : 8x6xui8 -> 8x6xf32
        %g = convert %h : 8x6xui8 -> 8x6xf32
        %d = subtract %f 7.0 : 8x6xf32
        %e = subtract %g 7.0 : 8x6xf32
        %p = scaled %d %1 0 : 8x6xf32 8xf32 -> 8x6xf32
        %q = scaled %e %1 0 : 8x6xf32 8xf32 -> 8x6xf32
        %i = reshape %p : 8x6xf32 -> 8x6x1xf32
        %j = reshape %q : 8x6xf32 -> 8x6x1xf32
        %b = concatenate %i %j 2 : 8x6x1xf32 -> 8x6x2xf32
        %y = reshape %b : 8x6x2xf32 -> 8x12xf32"""),
        lambda w, s: (byte_halves(w, signed=False) - 7).astype(F32) * s[:, None], "1, 12", (), 4),
}  # fmt: skip
