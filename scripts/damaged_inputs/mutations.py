"""Changes of text and of bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

NUMBERS = ("0", "-1", "1", "7", "63", "64", "65", "255", "256", "65535", "2147483647", "4294967295",
           "-9223372036854775808", "9223372036854775807", "18446744073709551616", "99999999999",
           "1e308", "-0.0", "0x7FC00000", "0xFF", "1" + "0" * 400)  # fmt: skip


TYPES = ("i0", "i1", "i4", "ui8", "si4", "i16", "i65", "i16777215", "index", "none", "f8E4M3FN",
         "bf16", "f64", "f128", "tf32", "complex<f32>", "vector<4xi8>", "memref<4xi8>",
         "tensor<*xf32>", "tensor<?xi8>", "tensor<4xi8, #stablehlo.bounds<4>>", "!quant.any<i8>",
         "!quant.uniform<u8:f32, 0.5:128>", "!quant.uniform<i4:f16:0, {1.0,2.0}>", "tuple<i8>",
         "!quant.uniform<i8:f32:{0:1, 1:2}, {{1.0, 2.0}}>", "!quant.calibrated<f32<-1.0:1.0>>",
         "!stablehlo.token", "!llvm.ptr", "!shape.shape", "() -> ()")  # fmt: skip


BOUNDARY_INTEGERS = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 9, 17, 127, 128, 255, 1 << 16, 2**31 - 1)
"""Values of integer fields: limits of types, and small counts."""


_TOKEN = re.compile(r'"[^"\n]*"|[%@#!^]?[\w.$]+|\S')


NUMBER = re.compile(r"(?<![\w.%#!@^])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


_TYPE = re.compile(r"\b(?:u?i\d+|f\d+|bf16|index)\b|tensor<[^<>]*>")


def mutate_text(rng: random.Random, text: str, rest: list[str]) -> str:
    """Return a text with a few changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        text = rng.choice(TEXT_MUTATIONS)(rng, text, rest)
    return text


def replace_match(rng: random.Random, text: str, pattern: re.Pattern[str], new: str) -> str:
    """Replace a drawn match of the pattern, if there is one."""
    actual = list(pattern.finditer(text))
    if not actual:
        return text
    match = rng.choice(actual)
    return text[: match.start()] + new + text[match.end() :]


def _change_number(rng: random.Random, text: str, _: list[str]) -> str:
    return replace_match(rng, text, NUMBER, rng.choice(NUMBERS))


def _change_type(rng: random.Random, text: str, _: list[str]) -> str:
    return replace_match(rng, text, _TYPE, rng.choice(TYPES))


def _change_token(rng: random.Random, text: str, rest: list[str]) -> str:
    tokens = _TOKEN.findall(rng.choice(rest))
    return replace_match(rng, text, _TOKEN, rng.choice(tokens) if tokens else "")


def _drop_token(rng: random.Random, text: str, _: list[str]) -> str:
    return replace_match(rng, text, _TOKEN, "")


def _swap_tokens(rng: random.Random, text: str, _: list[str]) -> str:
    actual = list(_TOKEN.finditer(text))
    if len(actual) < 2:
        return text
    first, second = sorted(rng.sample(actual, 2), key=lambda match: match.start())
    middle = text[first.end() : second.start()]
    return text[: first.start()] + second.group() + middle + first.group() + text[second.end() :]


def _cut_text(rng: random.Random, text: str, _: list[str]) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + text[start + rng.randrange(60) :]


def _repeat_lines(rng: random.Random, text: str, _: list[str]) -> str:
    text_lines = text.splitlines(keepends=True) or [""]
    position = rng.randrange(len(text_lines))
    repeated = text_lines[position : position + rng.randrange(1, 4)]
    return "".join([*text_lines[: position + 1], *repeated, *text_lines[position + 1 :]])


def _splice_lines(rng: random.Random, text: str, rest: list[str]) -> str:
    text_lines, more = text.splitlines(keepends=True), rng.choice(rest).splitlines(keepends=True)
    start, position = rng.randrange(len(more) + 1), rng.randrange(len(text_lines) + 1)
    return "".join(
        [*text_lines[:position], *more[start : start + rng.randrange(1, 6)], *text_lines[position:]]
    )


def _insert_characters(rng: random.Random, text: str, _: list[str]) -> str:
    position = rng.randrange(len(text) + 1)
    junk = rng.choice(("\0", "\x1b[2J", "\ufeff", "é", "{", "}}}", "<<<", '"', "//", "\\", "#", "!",
                       "%", "->", "\u202e", "dense<", "\ud7ff", "[" * 40, "-" * 300))  # fmt: skip
    return text[:position] + junk + text[position:]


TEXT_MUTATIONS: tuple[Callable[[random.Random, str, list[str]], str], ...] = (
    _change_number, _change_number, _change_type, _change_type, _change_token, _change_token,
    _drop_token, _swap_tokens, _cut_text, _repeat_lines, _splice_lines, _insert_characters,
)  # fmt: skip


def mutate_bytes(rng: random.Random, data: bytes, *, most: int = 8) -> bytes:
    """Return bytes with a few changes."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, most + 1)):
        position = rng.randrange(len(changed) + 1) if rng.random() < 0.7 else rng.randrange(
            min(len(changed), 200) + 1)  # fmt: skip
        kind = rng.randrange(7)
        if kind == 0 and position < len(changed):
            changed[position] ^= 1 << rng.randrange(8)
        elif kind == 1 and position < len(changed):
            changed[position] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del changed[position : position + rng.randrange(1, 40)]
        elif kind == 3:
            changed[position:position] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 4:
            number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40))
            size = rng.choice((4, 8))
            changed[position : position + size] = (number % 2 ** (8 * size)).to_bytes(
                size, "little"
            )
        elif kind == 5:
            changed[position:position] = changed[position : position + rng.randrange(1, 60)]
        else:
            del changed[position:]
    return bytes(changed)
