"""Checks of MLIR text that upstream's parser reads wrongly without an error.

The parser treats a NUL character as the end of the text, and truncates a sub-channel zero point
that does not fit its storage, which the parsed module does not show any more. On storage types that
are no integers it crashes (the sub-channel form) or has a vague message, so these errors name the
type and its location.

Text that only crashes the parser is left to the child process (`mlir_client`). But nested types and
attributes are compared and printed in quadratic time of their depth, so that a text of 40 kB would
take a minute: their depth is limited.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import ParseError, Place, VerificationError
from .mlir_client import encoded, location_at

MAX_NESTING = 1000
"""Brackets within brackets that are accepted, also once aliases are written out."""

_STRING = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"')
_NAME = r"[A-Za-z_!][\w.!$-]*"
_UNIFORM = re.compile(rf"!quant(?:\.uniform|<\s*uniform)\s*<\s*({_NAME})")
_CALIBRATED = re.compile(r"!quant(?:\.|<\s*)calibrated\b")
_EXPRESSED = re.compile(rf"\s*(?:<[^>]*>)?\s*:\s*({_NAME})")
_FLOAT = re.compile(r"b?f16|t?f32|f64|f80|f128|f[468]E\dM\d\w*|!.*")  # ! is of an alias
_INTEGER_STORAGE = re.compile(r"([su]?i|u)(\d{1,9})\Z")
_AXES = re.compile(r"\s*(?:<[^>]*>)?\s*:\s*[\w.!$-]+\s*:\s*\{")
_BRACKETS = re.compile(r"[\[({<]|->|[<>]=|[\])}>]")
_ALIAS = re.compile(r"([!#][\w.$-]+)\s*=(?!=)")
_ALIAS_USE = re.compile(r"[!#][\w.$-]+")
_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"([{<>}])"}))
_NO_TOKENS = bytes(sorted({*_NO_BRACKETS} - {*b"=,\n"}))
_ZERO_POINT = re.compile(r":\s*(-?\s*\w+)")


def check_text(text: str, file: str = "-") -> None:
    """Refuse text that upstream's parser would read wrongly without an error.

    Other errors are left to the parser, which has better messages.

    Raises:
        ParseError: a NUL character, or a surrogate, which is no character; or nesting deeper than
            `MAX_NESTING`.
        VerificationError: a storage type that is not an integer of 2 to 32 bits, or a sub-channel
            zero point that does not fit the storage type. Upstream prints the storage of an
            unsigned type as signed, so both readings of its bits are accepted. With TOSA, a type
            without uniform parameters.
    """
    if not text.isascii():
        encoded(text, file)
    if "\0" in text:
        raise ParseError("text has a NUL character", location_at(text, text.index("\0"), file))
    _check_nesting(text, file)
    if "!quant" in text:
        _check_types(without_comments_and_strings(text), file, has_tosa="tosa." in text)


def without_comments_and_strings(text: str) -> str:
    """Blank out comments and strings; every other character keeps its position."""
    blanked: list[str] = []
    position, quote, slashes = 0, text.find('"'), text.find("//")
    while quote >= 0 or slashes >= 0:
        if quote < 0 or 0 <= slashes < quote:
            start, end = slashes, text.find("\n", slashes)
            end = len(text) if end < 0 else end
        else:
            string = _STRING.match(text, quote)
            start, end = string.span() if string else (quote + 1, quote + 1)
        blanked += (text[position:start], " " * (end - start))
        position = end
        quote = text.find('"', end) if 0 <= quote < end else quote
        slashes = text.find("//", end) if 0 <= slashes < end else slashes
    return "".join(blanked) + text[position:]


def _check_nesting(text: str, file: str) -> None:
    """Refuse brackets that are nested more than `MAX_NESTING` deep."""
    depth, subject = 0, "brackets"
    if _may_be_deep(text):
        depth = _nesting_depth(without_comments_and_strings(text))
    if depth <= MAX_NESTING and _has_many_aliases(text):
        depth, subject = _alias_depth(without_comments_and_strings(text)), "aliases"
    if depth > MAX_NESTING:
        raise ParseError(
            f"{subject} are nested {depth} deep, expected at most {MAX_NESTING}", Place(file)
        )


def _has_many_aliases(text: str) -> bool:
    return (
        text.count("!") + text.count("#") > MAX_NESTING
        and sum(1 for _ in _ALIAS.finditer(text)) > MAX_NESTING
    )


def _may_be_deep(text: str) -> bool:
    """False if brackets are not deep, whatever in the text is a string or a comment.

    A bracket there counts too, and may hide one that closes: the depth is that since its least. And
    so may ``>`` and ``=`` with words between them, and ``<=`` counts as one that opens.
    """
    data = text.encode().replace(b"->", b"").translate(None, delete=_NO_TOKENS)
    for token in (b"=>", b">="):
        data = data.replace(token, b"")
    brackets = np.frombuffer(data.translate(None, delete=_NO_BRACKETS), np.uint8)
    steps = np.where(np.isin(brackets, list(b"([{<")), 1, -1)
    depths = np.cumsum(steps)
    return bool(depths.size) and depths.max() - min(depths.min(), 0) > MAX_NESTING


def _nesting_depth(text: str) -> int:
    """The greatest depth of brackets in a text without comments and strings."""
    depth = greatest = 0
    for match in _BRACKETS.finditer(text):
        token = match.group()
        if token in "[({<":
            depth += 1
            greatest = max(greatest, depth)
        elif token in "])}>":
            depth = max(depth - 1, 0)
    return greatest


def _alias_depth(text: str) -> int:
    """The greatest depth of brackets once every alias (``!name = ...``) is written out."""
    definitions = list(_ALIAS.finditer(text))
    ends = [definition.start() for definition in definitions[1:]] + [len(text)]
    depths: dict[str, int] = {}
    for definition, end in zip(definitions, ends, strict=True):
        body = text[definition.end() : end]
        used = (depths.get(name, 0) for name in _ALIAS_USE.findall(body))
        depths[definition.group(1)] = _nesting_depth(body) + max(used, default=0)
    return max(depths.values(), default=0)


def _check_types(text: str, file: str, *, has_tosa: bool) -> None:
    calibrated = _CALIBRATED.search(text) if has_tosa else None
    if calibrated is not None:
        raise VerificationError(
            "quantized type must have uniform parameters, got '!quant.calibrated'; upstream's "
            "verifier of tosa operations crashes on it",
            location_at(text, calibrated.start(), file),
        )
    position = 0
    while match := _UNIFORM.search(text, position):
        position = match.end()
        name = _without_aliases(text, match.group(1))
        integer = _INTEGER_STORAGE.match(name)
        width = int(integer.group(2)) if integer else 0
        if integer is None or not 2 <= width <= 32:
            raise VerificationError(
                f"quantized storage type must be an integer of 2 to 32 bits, got '{name}'; "
                "write for example i4, u4 or i8",
                location_at(text, match.start(1), file),
            )
        expressed = _EXPRESSED.match(text, position)
        if expressed is not None and not _FLOAT.fullmatch(expressed.group(1)):
            raise VerificationError(
                f"expressed type must be f16, bf16, f32 or f64, got '{expressed.group(1)}'",
                location_at(text, expressed.start(1), file),
            )
        axes = _AXES.match(text, position)
        if axes is not None:
            position = _check_sub_channel(text, file, axes.end(), name, width)


def _without_aliases(text: str, name: str) -> str:
    """Follow type aliases (``!name = i8``) to the name that they stand for."""
    seen: set[str] = set()
    while name.startswith("!") and name not in seen:
        seen.add(name)
        definition = re.search(rf"{re.escape(name)}\s*=\s*({_NAME})", text)
        if definition is not None:
            name = definition.group(1)
    return name


def _check_sub_channel(text: str, file: str, position: int, name: str, width: int) -> int:
    """Check the zero points of one sub-channel type; return the position after it."""
    start = text.find("}", position) + 1  # of the axes
    end = text.find(">", start)
    if not start or end < 0:
        return position
    is_unsigned = name.startswith("u")
    low = -(1 << (width - 1))
    high = (1 << width) - 1 if is_unsigned else (1 << (width - 1)) - 1

    def fits(written: str) -> bool:
        value = _integer(written)
        return value is not None and low <= value <= high

    if not all(fits(written) for written in set(_ZERO_POINT.findall(text, start, end))):
        for match in _ZERO_POINT.finditer(text, start, end):
            if not fits(match.group(1)):
                shown = f"0:{high}" if is_unsigned else f"{low}:{high}"
                written = re.sub(r"\s", "", match.group(1))
                raise VerificationError(
                    f"zero point {written} does not fit the storage type {name}, expected a value "
                    f"in {shown}; upstream's parser would cut it without a word",
                    location_at(text, match.start(1), file),
                )
    return end + 1


def _integer(written: str) -> int | None:
    """Return an MLIR integer; None for other text, and beyond 64 bits."""
    match = re.fullmatch(r"(-?)\s*(?:0x([0-9A-Fa-f]+)|(\d+))", written)
    if match is None:
        return None
    sign, hexadecimal, decimal = match.groups()
    digits = (hexadecimal or decimal).lstrip("0") or "0"
    if len(digits) > 20:
        return None
    return int(f"{sign}{digits}", 16 if hexadecimal else 10)
