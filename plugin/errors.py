"""Errors of subquant: one tree, located like MLIR's diagnostics.

::

    SubquantError                 everything that subquant raises on purpose
    +-- UsageError                a call or a command line that makes no sense (exit status 2)
    +-- InputError                the input is wrong (exit status 1)
    |   +-- ParseError            the text or bytecode is not a module
    |   +-- VerificationError     a quantized type or operation breaks a rule
    |   +-- SignatureError        arguments do not fit a function's signature
    +-- UnsupportedError          valid, and nobody lowers it (exit status 1)
    +-- CompilerError             IREE refused or crashed; a reproducer was written (exit status 1)
    +-- ExecutionError            IREE's runtime refused, or a run-time check failed (exit status 1)
    +-- EnvironmentProblem        a package or device is missing or of a wrong version (status 1)

A message has the subject, the expected and the actual value, and advice: ``must be X, got Y; do
Z``, in lower case, without a full stop. With an operation or a location it is rendered
``file:line:col: error: 'dialect.op' op message``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "CompilerError",
    "EnvironmentProblem",
    "ExecutionError",
    "InputError",
    "ParseError",
    "Place",
    "Remark",
    "SignatureError",
    "SubquantError",
    "UnsupportedError",
    "UsageError",
    "VerificationError",
    "counted",
    "error_from_json",
    "error_to_json",
    "expected_name",
    "near_names",
    "place_of",
    "printable",
    "quoted",
]


def printable(text: str, keep: str = "") -> str:
    """Return text with control characters and other invisible characters as escapes.

    Names come from files: of tensors, functions, operations, and of the files themselves. The
    characters in `keep` stay, such as a line break in a text of several lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def quoted(text: str, limit: int = 80) -> str:
    """Return user text for a message: in quotes, on one line, and bounded."""
    short = printable(text if len(text) <= limit else text[:limit])
    return f"'{short}'" if len(text) <= limit else f"'{short}...' ({len(text):,} characters)"


def counted(count: int, noun: str) -> str:
    """Return a number with a noun: ``1 file``, ``1,000 files``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def shape_text(shape: Sequence[int | None]) -> str:
    """Return a shape as ``4x?``, or ``scalar``."""
    return "x".join("?" if n is None else str(n) for n in shape) or "scalar"


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return at most two known names that are similar to an unknown one."""
    import difflib  # seldom needed

    spelled = {each.lower(): each for each in known}
    similar = difflib.get_close_matches(name[:100].lower(), spelled, n=2, cutoff=0.65)
    return [spelled[each] for each in similar]


def expected_name(name: str, known: Iterable[str], kind: str = "one of") -> str:
    """Return advice for an unknown name: similar names, or else all known ones.

    The words `kind`, as ``one of``, are before the list of all names.
    """
    names = list(known)
    similar = near_names(name, names)
    if similar:
        return f"did you mean {' or '.join(quoted(each) for each in similar)}?"
    return f"expected {kind}: {', '.join(printable(each) for each in names) or 'none'}"


@dataclass(frozen=True)
class Place:
    """A location in a source file: name, line and column (from 1; 0 if unknown)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


_FILE_POSITION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


def place_of(location: object) -> Place | None:
    """Return the first file position inside an MLIR location, or None for an unknown one."""
    match = _FILE_POSITION.search(str(location))
    if match is None:
        return None
    return Place(match.group(1), int(match.group(2)), int(match.group(3)))


_NAMED_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')


def name_of_location(location: object) -> str:
    """Return the name of an MLIR location; empty if it has none."""
    match = _NAMED_LOCATION.match(str(location))
    return match.group(1) if match else ""


_MAX_MESSAGE_LENGTH = 4000
"""Characters of a message: a type in a file can have more than 100,000.

A longer message is cut, and its length is named; with fewer, advice at the end is lost.
"""


class SubquantError(Exception):
    """Base of all errors that subquant raises on purpose; cuts messages of over 4,000 characters.

    Args:
        message: the problem, the actual value and advice.
        at: an MLIR operation or operation view, or a `Place`. Its name and location are copied at
            once, because the operation may be erased before the error is shown.
        notes: further lines, each shown as ``note: ...``.
    """

    exit_status = 1

    def __init__(self, message: str, at: Any = None, notes: tuple[str, ...] = ()) -> None:
        self.message = message
        if len(message) > _MAX_MESSAGE_LENGTH:
            self.message = f"{message[:_MAX_MESSAGE_LENGTH]}... ({len(message):,} characters)"
        self.notes = tuple(notes)
        self.place: Place | None = None
        self.op_name: str | None = None
        if isinstance(at, Place):
            self.place = at
        elif at is not None:
            operation = getattr(at, "operation", at)
            self.op_name = str(operation.name)
            self.place = place_of(operation.location)
        super().__init__(str(self))

    def located(self, place: Place | None) -> SubquantError:
        """Set the location of an error that has none."""
        if self.place is None and self.op_name is None:
            self.place = place
            self.args = (str(self),)
        return self

    def in_file(self, file: str) -> SubquantError:
        """Replace the file name "-" of the location (text without a file)."""
        if self.place is not None and self.place.file == "-":
            self.place = Place(file, self.place.line, self.place.column)
            self.args = (str(self),)
        return self

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        name = f"'{self.op_name}' op " if self.op_name else ""
        text = [f"{where}error: {name}{self.message}"]
        text += [f"note: {note}" for note in self.notes]
        return printable("\n".join(text), keep="\n\t")


@dataclass(frozen=True)
class Remark:
    """A remark of a pass about an operation, or of an importer about a model; not an error.

    It reads ``file:line:col: remark: 'dialect.op' op message``, lower case like an error. Without a
    line, `node` names the node of the model that has the operation.
    """

    message: str
    place: Place | None
    op_name: str = ""
    node: str = ""

    @classmethod
    def about(cls, op: Any, message: str) -> Remark:
        """Make a remark on an MLIR operation, whose name and location are copied at once."""
        position = place_of(op.location)
        node = "" if position and position.line else name_of_location(op.location)
        return cls(message, position, str(op.name), node)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Remark:
        """Return the remark of a `dataclasses.asdict` that went through JSON."""
        at = fields["place"]
        position = None if at is None else Place(**at)
        return cls(fields["message"], position, fields["op_name"], fields.get("node", ""))

    def in_file(self, file: str) -> Remark:
        """Replace the file name "-" of the location (text without a file)."""
        if self.place is None or self.place.file != "-":
            return self
        return replace(self, place=Place(file, self.place.line, self.place.column))

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        name = f"'{self.op_name}' op " if self.op_name else ""
        node = f"of {self.node} " if self.node else ""
        return printable(f"{where}remark: {name}{node}{self.message}", keep="\n\t")


class UsageError(SubquantError):
    """A call or a command line that makes no sense."""

    exit_status = 2


class InputError(SubquantError):
    """The input is wrong."""


class ParseError(InputError):
    """The text or bytecode is not a module."""


class VerificationError(InputError):
    """A quantized type or operation breaks a rule."""


class SignatureError(InputError):
    """Arguments do not fit a function's signature."""


class UnsupportedError(SubquantError):
    """The input is valid, and no pattern lowers it."""


class CompilerError(SubquantError):
    """IREE refused or crashed."""


class ExecutionError(SubquantError):
    """IREE's runtime refused, or a run-time check failed."""


class EnvironmentProblem(SubquantError):
    """A package or a device is missing or has the wrong version."""


def error_to_json(error: SubquantError) -> dict[str, Any]:
    """Return an error as JSON values, for `error_from_json`."""
    at = error.place
    return {
        "class": type(error).__name__,
        "message": error.message,
        "place": None if at is None else [at.file, at.line, at.column],
        "op_name": error.op_name,
        "notes": list(error.notes),
    }


def error_from_json(fields: Mapping[str, Any]) -> SubquantError:
    """Return the error that `error_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: the fields are not those of an error.
    """
    error_class = globals()[fields["class"]] if fields["class"] in __all__ else None
    if not (isinstance(error_class, type) and issubclass(error_class, SubquantError)):
        raise ValueError("no error is named so")
    at = None
    if fields["place"] is not None:
        file, line, column = fields["place"]
        at = Place(str(file), int(line), int(column))
    notes = tuple(str(note) for note in fields["notes"])
    error = error_class(str(fields["message"]), at, notes)
    if fields["op_name"] is not None:
        error.op_name = str(fields["op_name"])
        error.args = (str(error),)
    return error
