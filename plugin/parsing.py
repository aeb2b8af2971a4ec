"""Read modules, with the checks that upstream's parser does not make.

Upstream's parser crashes on a sub-channel type with a storage type that is not an integer, and
cuts a sub-channel zero point that does not fit its storage without a word. Both are found in the
text, before the parser sees it, by `scan_quantized_types`, and end in a located error. Bytecode
has no text to look at: it is first parsed in a process of its own, so that a crash is an error.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ._mlir import ir, translate_errors
from .errors import InputError, ParseError, Place, VerificationError

__all__ = ["parse_bytecode", "parse_file", "parse_text", "scan_quantized_types"]

BYTECODE_MAGIC = b"ML\xefR"
MAX_NESTING = 1000

_SKIP = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|!quant\.uniform\s*<')
_STORAGE = re.compile(r"\s*([A-Za-z_!][A-Za-z0-9_.!]*)")
_INTEGER_STORAGE = re.compile(r"(?:(u)|[si]?i|i)(\d+)\Z")
_AXES = re.compile(r"\s*(?:<[^>]*>)?\s*:\s*[A-Za-z0-9_.!]+\s*:\s*\{")
_TOKEN = re.compile(
    r"//[^\n]*|\s+|[{},>]|"
    r"(?P<scale>[-+]?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?))"
    r"(?:\s*:\s*(?P<zero>[-+]?(?:0x[0-9A-Fa-f]+|\d+)))?"
)


@dataclass(frozen=True)
class _Scan:
    text: str
    file: str

    def place(self, position: int) -> Place:
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        return Place(self.file, line, column)


def scan_quantized_types(text: str, file: str = "-") -> None:
    """Check the sub-channel types in `text` for what upstream's parser gets wrong.

    Anything else that is wrong is left to the parser, which says it better.

    Raises:
        VerificationError: a storage type that is not an integer of 2 to 32 bits, or a zero point
            that does not fit the storage type. The storage of an unsigned type is printed as
            signed by upstream, so both readings of its bits are accepted.
    """
    scan = _Scan(text, file)
    position = 0
    while match := _SKIP.search(text, position):
        position = match.end()
        if not match.group().startswith("!quant"):
            continue
        storage = _STORAGE.match(text, position)
        if storage is None:
            continue
        axes = _AXES.match(text, storage.end())
        name = storage.group(1)
        integer = _INTEGER_STORAGE.match(name)
        if integer is None:
            # Only the sub-channel form crashes; every form is refused, in the same words.
            raise VerificationError(
                f"quantized storage type must be an integer of 2 to 32 bits, got '{name}'; "
                "write for example i4, u4 or i8",
                scan.place(storage.start(1)),
            )
        width = int(integer.group(2))
        if not 2 <= width <= 32:
            raise VerificationError(
                f"quantized storage type must be an integer of 2 to 32 bits, got '{name}'",
                scan.place(storage.start(1)),
            )
        if axes is not None:
            unsigned = name.startswith("u")
            position = _scan_sub_channel(scan, axes.end(), name, width, unsigned)


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
            value = int(match["zero"], 0)
            if not low <= value <= high:
                shown = f"0:{high}" if unsigned else f"{low}:{high}"
                raise VerificationError(
                    f"zero point {value} does not fit the storage type {name}, expected a value "
                    f"in {shown}; upstream's parser would cut it without a word",
                    scan.place(match.start("zero")),
                )
        position = match.end()
    return position


_HINTS = (
    (
        "tensor containing the sub-channel quantized type must be ranked",
        "subquant.qcast, subquant.dcast and subquant.scast accept unranked tensors",
    ),
    (
        "must be divisible by the corresponding block size",
        "subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block",
    ),
    (
        "must match the rank of the tensor",
        "subquant.qcast, subquant.dcast and subquant.scast accept scales without the dimensions of "
        "size 1",
    ),
)
"""What upstream's verifier refuses and a `subquant` operation accepts: message part and hint."""


def parse_text(text: str, context: ir.Context, file: str = "-") -> ir.Module:
    """Parse MLIR text.

    Args:
        text: the module.
        context: a context of `create_context`.
        file: the name that errors show.

    Raises:
        ParseError, VerificationError: with the place of the first error.
    """
    _check_text(text, file)
    with _parsing(context, file):
        return ir.Module.parse(text, context)


def parse_file(path: str | Path, context: ir.Context) -> ir.Module:
    """Parse a file of MLIR text or bytecode.

    Raises:
        InputError: the file cannot be read.
        ParseError, VerificationError: as `parse_text`.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror}") from None
    if data.startswith(BYTECODE_MAGIC):
        return parse_bytecode(data, context, str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ParseError(
            f"'{path}' is neither MLIR bytecode nor UTF-8 text (byte {error.start})"
        ) from None
    _check_text(text, str(path))
    with _parsing(context, str(path)):
        return ir.Module.parseFile(str(path), context)


def parse_bytecode(data: bytes, context: ir.Context, file: str = "-") -> ir.Module:
    """Parse MLIR bytecode, after a trial in a process of its own.

    Bytecode has no text to scan, and a broken file may crash the reader: the trial turns that into
    a `ParseError`.
    """
    program = (
        "import sys\n"
        "from subquant._mlir import create_context, ir\n"
        "with create_context() as context:\n"
        "    ir.Module.parse(sys.stdin.buffer.read(), context)\n"
    )
    trial = subprocess.run(
        [sys.executable, "-c", program], input=data, capture_output=True, check=False
    )
    if trial.returncode < 0:
        raise ParseError(
            f"MLIR's bytecode reader crashed on this file (signal {-trial.returncode}); "
            "write the module again with the tool that made it",
            Place(file),
        )
    with _parsing(context, file):
        return ir.Module.parse(data, context)


def _check_text(text: str, file: str) -> None:
    if "\0" in text:
        raise ParseError("text has a NUL character", _Scan(text, file).place(text.index("\0")))
    depth = _nesting_depth(text)
    if depth > MAX_NESTING:
        raise ParseError(
            f"brackets are nested {depth} deep, expected at most {MAX_NESTING}; upstream's parser "
            "would exhaust its stack",
            Place(file),
        )
    scan_quantized_types(text, file)


def _nesting_depth(text: str) -> int:
    """The greatest depth of brackets in `text` (strings and comments are not looked into)."""
    depth = greatest = 0
    for match in re.finditer(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|[\[({<]|->|[\])}>]', text):
        token = match.group()
        if token in "[({<":
            depth += 1
            greatest = max(greatest, depth)
        elif token in "])}>":
            depth -= 1
    return greatest


@contextlib.contextmanager
def _parsing(context: ir.Context, file: str) -> Iterator[None]:
    with context, translate_errors(ParseError, "cannot parse the module", file, _HINTS):
        yield
