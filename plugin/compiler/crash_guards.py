"""What would crash upstream's parser, found before it sees the text.

Upstream's parser crashes on a sub-channel type with a storage type that is not an integer, and
cuts a sub-channel zero point that does not fit its storage without a word. Both are found in the
text, before the parser sees it, by `scan_quantized_types`, and end in a located error. Bytecode
has no text to look at: it is first parsed in a process of its own (`crashes`), so that a crash is
an error.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

from ..errors import ParseError, Place, VerificationError

__all__ = ["check_text", "crashes", "scan_quantized_types"]

MAX_NESTING = 256
"""Brackets within brackets that are accepted."""

MAX_ALIAS_NESTING = 4096
"""The same once aliases are written out."""

TRIAL_SECONDS = 120
"""How long a process that only parses may take."""

_SKIP = re.compile(r'//[^\n]*|"[^"\\\n]*(?:\\.[^"\\\n]*)*"')
_BRACKETS = re.compile(r"[\[({<]|->|[<>]=|[\])}>]")
_ALIAS = re.compile(r"^\s*([!#][\w.$-]+)\s*=", re.MULTILINE)
_ALIAS_USE = re.compile(r"[!#][\w.$-]+")
_NEGATIONS = re.compile(rf"(?:-\s*){{{MAX_NESTING + 1}}}")
_NAME = r"[A-Za-z_!][\w.!$-]*"
_UNIFORM = re.compile(rf"!quant(?:\.uniform|<\s*uniform)\s*<\s*({_NAME})")
_CALIBRATED = re.compile(r"!quant(?:\.|<\s*)calibrated\b")
_INTEGER_STORAGE = re.compile(r"([su]?i|u)(\d{1,9})\Z")
_AXES = re.compile(r"\s*(?:<[^>]*>)?\s*:\s*[\w.!$-]+\s*:\s*\{")
_COMMENT = re.compile(r"//[^\n]*")
_BROADCAST = re.compile(r"\bdynamic_broadcast_in_dim\b")
_PER_AXIS = re.compile(r"!quant(?:\.uniform|<\s*uniform)\s*<[^{}]*:\s*\d+\s*,\s*\{")
_TOKEN = re.compile(
    r"\s+|[{},>]|"
    r"(?P<scale>-?\s*(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?))"
    r"(?:\s*:\s*(?P<zero>-?\s*(?:0x[0-9A-Fa-f]+|\d+)|true|false))?"
)


@dataclass(frozen=True)
class _Scan:
    text: str
    file: str

    def place(self, position: int) -> Place:
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        return Place(self.file, line, column)


# -- text -----------------------------------------------------------------------------------------


def check_text(text: str, file: str) -> None:
    """Refuse text that upstream's parser crashes on, or reads wrongly without a word.

    Raises:
        ParseError, VerificationError: with the place.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParseError(
            "text has a surrogate, which is no character", _Scan(text, file).place(error.start)
        ) from None
    if "\0" in text:
        raise ParseError("text has a NUL character", _Scan(text, file).place(text.index("\0")))
    plain = _without_comments_and_strings(text)
    if '"' in plain:
        raise ParseError("string is not closed", _Scan(text, file).place(plain.index('"')))
    depth = _nesting_depth(plain)
    if depth > MAX_NESTING:
        raise ParseError(
            f"brackets are nested {depth} deep, expected at most {MAX_NESTING}; upstream's parser "
            "would exhaust its stack",
            Place(file),
        )
    depth = _alias_depth(plain)
    if depth > MAX_ALIAS_NESTING:
        raise ParseError(
            f"aliases are nested {depth} deep, expected at most {MAX_ALIAS_NESTING}; upstream's "
            "parser would exhaust its stack",
            Place(file),
        )
    negations = _NEGATIONS.search(plain)
    if negations is not None:
        raise ParseError(
            f"more than {MAX_NESTING} minus signs in a row; upstream's parser would exhaust its "
            "stack",
            _Scan(text, file).place(negations.start()),
        )
    scan_quantized_types(text, file)
    _check_broadcasts(text, file)


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
    for definition, end in zip(definitions, ends, strict=False):
        body = text[definition.end() : end]
        used = (depths.get(name, 0) for name in _ALIAS_USE.findall(body))
        depths[definition.group(1)] = _nesting_depth(body) + max(used, default=0)
    return max(depths.values(), default=0)


def _check_broadcasts(text: str, file: str) -> None:
    """Refuse a dynamic broadcast whose verifier crashes.

    StableHLO's verifier takes the operand of a ``dynamic_broadcast_in_dim`` with a per-axis result
    for per-axis too, without looking.
    """
    plain = _COMMENT.sub(lambda match: " " * len(match.group()), text)
    if _PER_AXIS.search(plain) is None:
        return
    found = _BROADCAST.search(plain)  # also in the quotes of the generic form
    if found is not None and crashes(text.encode(), file):
        raise ParseError(
            "StableHLO's verifier crashes on this module: a dynamic_broadcast_in_dim with a "
            "per-axis result must have a per-axis operand; requantize before it",
            _Scan(text, file).place(found.start()),
        )


# -- quantized types ------------------------------------------------------------------------------


def scan_quantized_types(text: str, file: str = "-") -> None:
    """Check the sub-channel types in `text` for what upstream's parser gets wrong.

    Anything else that is wrong is left to the parser, which says it better.

    Raises:
        VerificationError: a storage type that is not an integer of 2 to 32 bits, or a zero point
            that does not fit the storage type. The storage of an unsigned type is printed as
            signed by upstream, so both readings of its bits are accepted.
    """
    if "!quant" in text:
        _scan_types(_Scan(_without_comments_and_strings(text), file), has_tosa="tosa." in text)


def _without_comments_and_strings(text: str) -> str:
    """Blank out comments and strings; every other character keeps its position."""
    return _SKIP.sub(lambda match: " " * len(match.group()), text)


def _scan_types(scan: _Scan, has_tosa: bool) -> None:
    calibrated = _CALIBRATED.search(scan.text) if has_tosa else None
    if calibrated is not None:
        raise VerificationError(
            "quantized type must have uniform parameters, got '!quant.calibrated'; upstream's "
            "verifier of tosa operations crashes on it",
            scan.place(calibrated.start()),
        )
    position = 0
    while match := _UNIFORM.search(scan.text, position):
        position = match.end()
        name = _without_aliases(scan.text, match.group(1))
        integer = _INTEGER_STORAGE.match(name)
        width = int(integer.group(2)) if integer else 0
        if integer is None or not 2 <= width <= 32:
            # Only the sub-channel form crashes; every form is refused, in the same words.
            raise VerificationError(
                f"quantized storage type must be an integer of 2 to 32 bits, got '{name}'; "
                "write for example i4, u4 or i8",
                scan.place(match.start(1)),
            )
        axes = _AXES.match(scan.text, position)
        if axes is not None:
            unsigned = name.startswith("u")
            position = _scan_sub_channel(scan, axes.end(), name, width, unsigned)


def _without_aliases(text: str, name: str) -> str:
    """Follow type aliases (``!name = i8``) to the name that they stand for."""
    seen: set[str] = set()
    while name.startswith("!") and name not in seen:
        seen.add(name)
        definition = re.search(rf"{re.escape(name)}\s*=\s*({_NAME})", text)
        if definition is not None:
            name = definition.group(1)
    return name


def _scan_sub_channel(scan: _Scan, position: int, name: str, width: int, unsigned: bool) -> int:
    """Check the zero points of one sub-channel type; return the position after it."""
    text = scan.text
    close = text.find("}", position)
    if close < 0:
        return position
    opening = re.compile(r"[\s,]*").match(text, close + 1)
    assert opening is not None  # the pattern matches the empty string
    position = opening.end()
    low = -(1 << (width - 1))
    high = (1 << width) - 1 if unsigned else (1 << (width - 1)) - 1
    while match := _TOKEN.match(text, position):
        if match.group() == ">":
            return match.end()
        if match["zero"] is not None:
            written = re.sub(r"\s", "", match["zero"])
            value = _integer(written)
            if value is None or not low <= value <= high:
                shown = f"0:{high}" if unsigned else f"{low}:{high}"
                raise VerificationError(
                    f"zero point {written} does not fit the storage type {name}, expected a value "
                    f"in {shown}; upstream's parser would cut it without a word",
                    scan.place(match.start("zero")),
                )
        position = match.end()
    return position


def _integer(written: str) -> int | None:
    """Read an MLIR integer; None for ``true``, ``false`` and what fits no 64-bit integer."""
    digits = written.lstrip("-").lstrip("0")
    if written in ("true", "false") or len(digits) > 20:
        return None
    magnitude = int(digits[1:], 16) if digits.startswith("x") else int(digits or "0")
    return -magnitude if written.startswith("-") else magnitude


# -- a process of its own -------------------------------------------------------------------------

_TRIAL = (
    "import sys; sys.path.remove('')\n"  # not what lies in the current folder
    "from subquant._mlir import ir\n"
    "from subquant.dialects import create_context\n"
    "with create_context() as context:\n"
    "    module = ir.Module.parse(sys.stdin.buffer.read(), context)\n"
    "    module.operation.walk(lambda op: op.name and ir.WalkResult.ADVANCE)\n"
)


def crashes(data: bytes, file: str) -> bool:
    """Parse in a process of its own, and say whether that crashed."""
    try:
        trial = subprocess.run(
            [sys.executable, "-c", _TRIAL],
            input=data,
            capture_output=True,
            check=False,
            timeout=TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ParseError(
            f"MLIR's reader did not finish in {TRIAL_SECONDS} s on this file; write the module "
            "again with the tool that made it",
            Place(file),
        ) from None
    return trial.returncode < 0
