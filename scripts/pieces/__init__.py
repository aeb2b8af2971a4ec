"""Known files with one piece added or changed: it is used, without effect, or named in an error.

A *piece* is a thing that a file format has a place for: an attribute, an optional input, a tensor,
a property, a field that no version of the format has. For each format a module draws a piece of a
valid file, and runs the reference runtime on the changed file. A program that subquant writes
for the file has to compute the same numbers; a program that is refused is refused by an error that
names the piece. So numbers that ignore a piece are found without a list of pieces.
"""

from __future__ import annotations

import abc
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .references import Reference, Refused

__all__ = ["Base", "Piece", "Reference", "Refused", "answer", "choose", "unknown_name", "words"]

Results = list[np.ndarray]
_TOLERANCE = 1e-3
"""The error of reals, relative to the greatest result: devices sum in any order."""
_WORDS = ("zeta", "omega", "quux", "tau", "kappa", "sigma")


@dataclass(frozen=True)
class Piece:
    """A file with one piece added or changed.

    Args:
        what: the piece, for the message of a failure.
        names: an error that has one of them, in any spelling of words, names the piece.
        files: the contents of files, by name; the first is the one that is read.
        is_unknown: no version of the format has the piece, so that only an error is right.
        has_meaning: the numbers are right even if the reference runtime refuses the file.
    """

    what: str
    names: tuple[str, ...]
    files: dict[str, bytes]
    is_unknown: bool = False
    has_meaning: bool = False

    def is_named(self, text: str) -> bool:
        """Return True if an error names the piece."""
        words = _plain(text)
        return any(_plain(name) in words for name in self.names)


def _plain(text: str) -> str:
    """Return letters and digits alone: ``dilationHFactor`` and ``dilation_h_factor`` are one."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def unknown_name(rng: random.Random) -> str:
    """Draw a name that no format knows."""
    return f"{rng.choice(_WORDS)}_{rng.randrange(10_000)}"


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


@dataclass
class Base(abc.ABC):
    """A valid file that subquant and the reference runtime compute alike.

    Args:
        name: of the file's origin, for messages.
        files: see `Piece`.
        arrays: the inputs of the program.
    """

    name: str
    files: dict[str, bytes]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def program(self) -> bytes:
        """The program that subquant writes of the file."""
        return self.program_of(self.files)

    @cached_property
    def expected(self) -> Results:
        """The results of the reference runtime.

        Raises:
            Refused: it does not run the file.
        """
        return self.expected_of(self.files)

    @abc.abstractmethod
    def program_of(self, files: dict[str, bytes]) -> bytes:
        """Return the program that subquant writes; raises SubquantError."""

    @abc.abstractmethod
    def expected_of(self, files: dict[str, bytes]) -> Results:
        """Return the results of the reference runtime; raises Refused."""

    @abc.abstractmethod
    def computed_of(self, files: dict[str, bytes]) -> Results:
        """Return the results of subquant's program; raises SubquantError."""

    def other_references(self, files: dict[str, bytes]) -> list[Results]:
        """Return the results of other reference runtimes, which may be right where one is not."""
        del files
        return []

    @cached_property
    def is_accepted(self) -> bool:
        """True if both subquant and the reference runtime take the file as it is."""
        from subquant.errors import SubquantError

        try:
            return bool(self.program) and bool(self.expected)
        except (SubquantError, Refused):
            return False

    @cached_property
    def is_sound(self) -> bool:
        """True if subquant computes the numbers of the reference runtime for the file as it is."""
        from subquant.errors import SubquantError

        try:
            return agree(self.computed_of(self.files), self.expected)
        except SubquantError:
            return False


def agree(result: Results, expected: Results) -> bool:
    """Return True if results are the same: integers but for a unit, reals within a tolerance."""
    if len(result) != len(expected):
        return False
    return all(_is_close(*each) for each in zip(result, expected, strict=True))


def _is_close(result: np.ndarray, expected: np.ndarray) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if result.dtype.kind in "bOSU":
        return bool((result == expected).all())
    with np.errstate(all="ignore"):
        left, right = result.astype(np.float64), expected.astype(np.float64)
        if result.dtype.kind in "iu":
            return bool((np.abs(left - right) <= 1).all())
        finite = np.isfinite(right)
        if (finite != np.isfinite(left)).any() or not finite.any():
            return bool((finite == np.isfinite(left)).all())
        bound = _TOLERANCE * max(float(np.abs(right[finite]).max()), 1e-6)
        return bool((np.abs(left - right)[finite] <= bound).all())


def check_piece(base: Base, piece: Piece, status: int, printed: str, program: bytes | None) -> str:
    """Return the fault of the answer to a changed file; "" if there is none.

    Args:
        base: the file as it was.
        piece: the changed file.
        status: the exit status of the command that read it.
        printed: the command's messages.
        program: the program that the command wrote, if it did.
    """
    about = f"{base.name}: {piece.what}"
    if status and piece.is_named(printed):
        return ""
    if piece.is_unknown:
        return f"unnamed: {about}: {printed.strip()[:300]}" if status else f"silent: {about}"
    try:
        expected = base.expected_of(piece.files)
    except Refused as error:
        if status or piece.has_meaning or program != base.program:
            return ""  # another program: it is used, and there is nothing to compare it with
        return f"accepted: {about}, which is refused: {str(error)[:200]}"
    if status:
        return f"unnamed: {about}: {printed.strip()[:300]}"
    if program == base.program:
        return "" if agree(base.expected, expected) else f"silent: {about}"
    computed = base.computed_of(piece.files)
    references = (expected, *base.other_references(piece.files))
    if any(agree(computed, each) for each in references) or not base.is_sound:
        return ""
    return f"wrong: {about}"


def answer(base: Base, piece: Piece) -> tuple[int, str]:
    """Return the exit status for a changed file, and the fault of the answer."""
    from subquant.errors import SubquantError

    try:
        program = base.program_of(piece.files)
    except SubquantError as error:
        return 1, check_piece(base, piece, 1, str(error), None)
    return 0, check_piece(base, piece, 0, "", program)


def choose(rng: random.Random, bases: Sequence[Base]) -> Base:
    """Draw a file that subquant and the reference runtime take as it is."""
    start = rng.randrange(len(bases))
    return next(base for base in (*bases[start:], *bases[:start]) if base.is_accepted)
