"""Files with one piece added (``scripts/fuzz --kinds onnx_pieces``): used, or named in an error."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subquant.errors import UnsupportedError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(scope="module")
def pieces() -> Iterator[Any]:
    sys.path.append(str(SCRIPTS))
    yield importlib.import_module("pieces")
    sys.path.remove(str(SCRIPTS))


@pytest.mark.parametrize(
    ("format_", "count"), [("onnx", 12), ("tflite", 12), ("gguf", 12), ("checkpoints", 60)]
)
@pytest.mark.share(2)
def test_each_piece_is_used_or_named(pieces: Any, format_: str, count: int) -> None:
    module = importlib.import_module(f"pieces.{format_}")
    for number in range(count):
        base, piece = module.draw(random.Random(f"1 {number}"))
        assert pieces.answer(base, piece)[1] == ""


# -- the answers that are wrong -------------------------------------------------------------------


def base_of(pieces: Any, *, program: bytes, computed: float, expected: float | None) -> Any:
    """A file whose program is ``x`` and whose result is 1; a changed file has the arguments'."""

    class File(pieces.Base):
        def program_of(self, files: dict[str, bytes]) -> bytes:
            if files != self.files and not program:
                raise UnsupportedError("has the attribute 'one_more', which is not used")
            return b"x" if files == self.files else program

        def computed_of(self, files: dict[str, bytes]) -> list[Any]:
            return [np.float32(1 if files == self.files else computed)]

        def expected_of(self, files: dict[str, bytes]) -> list[Any]:
            if files != self.files and expected is None:
                raise pieces.Refused("no such thing")
            return [np.float32(1 if files == self.files else expected)]

    return File("file", {"f": b"a"})


@pytest.mark.parametrize(
    ("program", "computed", "expected", "is_unknown", "wrong"),
    [
        (b"x", 1, 1, False, ""),  # without effect
        (b"y", 2, 2, False, ""),  # used
        (b"", 0, 2, True, ""),  # refused by name
        (b"x", 1, 2, False, "silent"),
        (b"x", 1, 1, True, "silent"),
        (b"y", 3, 2, False, "wrong"),
        (b"x", 1, None, False, "accepted"),
    ],
)
def test_an_answer_is_compared_with_the_reference(
    pieces: Any, program: bytes, computed: float, expected: float | None, is_unknown: bool,
    wrong: str,
) -> None:  # fmt: skip
    base = base_of(pieces, program=program, computed=computed, expected=expected)
    piece = pieces.Piece("one more attribute", ("oneMore",), {"f": b"b"}, is_unknown)
    assert pieces.answer(base, piece)[1].partition(":")[0] == wrong


def test_an_error_has_to_name_the_piece(pieces: Any) -> None:
    base = base_of(pieces, program=b"", computed=0, expected=2)
    piece = pieces.Piece("another attribute", ("another",), {"f": b"b"})
    status, wrong = pieces.answer(base, piece)
    assert status == 1
    assert wrong.startswith("unnamed: file: another attribute: ")


def test_a_reference_that_crashes_refuses_the_file(pieces: Any) -> None:
    reference = pieces.Reference("gguf")  # which has no function `run`
    for _ in range(2):
        with pytest.raises(pieces.Refused, match="crashes"):
            reference(b"")
