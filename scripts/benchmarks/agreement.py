"""How far a language model says what llama.cpp says, from the same file.

    scripts/bench --agreement

Seven sides read a page:

* subquant, which rounds activations to 8 bits, and with activations that stay floats;
* llama.cpp, which rounds them too, and with weights that lie as in the file, in place of the order
  of its fastest kernels;
* llama.cpp with OpenBLAS, which computes with activations that are not rounded (and with weights as
  floats, a tensor at a time);
* llama.cpp with the same weights as floats of 32 bits (a file of four times the size, in the folder
  for temporary files), where it rounds nothing: what its graph says, without its rounding;
* the forward pass in NumPy with weights that are dequantized.

Each pair is compared, so that what ours and llama.cpp differ by stands beside what llama.cpp and
llama.cpp differ by:

* The next token: at positions where the second side's first choice is apart from its second, by 0.1
  and more, how often the first side's choice is the same.
* Logits: the cosine between both at each position.
* Perplexity of the page, ``exp(-mean(log p(token)))``, of all its tokens but the first.
* Greedy continuations of ten prompts by 32 tokens: how many are the same (not of NumPy's).
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from subquant.models import load
from subquant.models.tokenizer import Tokenizer
from subquant.weights.sources import open_weights

from .language import exact_logits, write_dequantized
from .peers import Array
from .peers.llama import Reader

__all__ = ["compare"]

PAGE = Path(__file__).with_name("text") / "alice.txt"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "To boil an egg, first",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "Der schnellste Weg, eine Sprache zu lernen, ist",
    "In 1969, the first human being",
    "List of planets in the solar system:\n1. Mercury\n2.",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water is made of hydrogen and",
)
LENGTH = 32
"""Tokens of a continuation."""
_APART = 0.1
"""Logits of the first and the second choice, where the next token is compared."""
_PIECE = 64
"""Positions that are compared together."""
_CONTEXT = 2048
_FLOAT = "subquant, float activations"
_BLAS = "llama.cpp, OpenBLAS"


class _Side(Protocol):
    """What reads tokens: a `Session`, or a `Reader`."""

    def reset(self) -> None: ...
    def prompt(self, tokens: Sequence[int]) -> Array: ...
    def next(self, token: int) -> Array: ...
    def all_logits(self, tokens: Sequence[int]) -> Array: ...


@dataclass
class _Said:
    """What a side says of the next token at one position."""

    logits: Array

    def __post_init__(self) -> None:
        self.logits = self.logits.astype(np.float64)
        second, first = np.sort(np.partition(self.logits, -2)[-2:])
        self.is_clear = first - second > _APART
        self.choice = int(self.logits.argmax())
        self.length = float(np.sqrt(self.logits @ self.logits))

    def loss(self, token: int) -> float:
        """``-log p(token)``."""
        return float(np.logaddexp.reduce(self.logits) - self.logits[token])


@dataclass
class _Pair:
    """Two sides that are compared.

    Attributes:
        left, right: their names.
        clear: positions where the right side's choice is clear.
        same: of those, where the left side's is the same.
        cosines: of each position.
    """

    left: str
    right: str
    clear: int = 0
    same: int = 0
    cosines: list[float] = field(default_factory=list)

    def add(self, left: _Said, right: _Said) -> None:
        """Compare a position."""
        if right.is_clear:
            self.clear += 1
            self.same += left.choice == right.choice
        self.cosines.append(float(left.logits @ right.logits) / (left.length * right.length))


def compare(path: Path, threads: int, progress: Callable[[str], None]) -> list[str]:
    """Compare on a page and on prompts, and return what to print.

    Args:
        path: of a GGUF file.
        threads: of each side.
        progress: called with a line about each step.
    """
    with tempfile.TemporaryDirectory() as folder:
        progress("write weights as floats")
        floats = Path(folder) / "floats.gguf"
        write_dequantized(path, floats)
        return _compare(path, floats, threads, progress)


def _compare(path: Path, floats: Path, threads: int, progress: Callable[[str], None]) -> list[str]:
    source = open_weights(path)
    tokenizer = Tokenizer.from_properties(source.properties)
    text = PAGE.read_text()
    tokens = tokenizer.encode(text)
    progress("load")
    reader = Reader(path, _CONTEXT, threads)
    ours = partial(load, path, context=_CONTEXT, threads=threads)
    sides: dict[str, _Side] = {
        "subquant": ours().session(),
        _FLOAT: ours(activations="float").session(),
        "llama.cpp": reader,
        "llama.cpp, as in the file": Reader(path, _CONTEXT, threads, repacked=False),
        _BLAS: Reader(path, _CONTEXT, threads, blas=True),
        "llama.cpp, float weights": Reader(floats, _CONTEXT, threads),
    }
    progress("compute in NumPy")
    exact = exact_logits(source, tokens[:-1])
    names = [*sides, "NumPy"]
    pairs = [_Pair(*each) for each in itertools.combinations(names, 2)]
    losses = dict.fromkeys(names, 0.0)
    for start in range(0, len(tokens) - 1, _PIECE):
        progress(f"token {start:,} of {len(tokens):,}")
        piece, following = tokens[start:-1][:_PIECE], tokens[start + 1 :]
        found = {name: side.all_logits(piece) for name, side in sides.items()}
        found["NumPy"] = exact(start, len(piece))
        for place, token in enumerate(following[: len(piece)]):
            said = {name: _Said(each[place]) for name, each in found.items()}
            for pair in pairs:
                pair.add(said[pair.left], said[pair.right])
            for name, each in said.items():
                losses[name] += each.loss(token)
    progress("continue")
    prompts = [tokenizer.encode(each) for each in PROMPTS]
    continued = {name: [_continued(side, each) for each in prompts]
                 for name, side in sides.items() if name != _BLAS}  # fmt: skip
    continued[_BLAS] = [
        _chosen(sides[_BLAS], *both) for both in zip(prompts, continued[_FLOAT], strict=True)
    ]
    same_text = "the same" if tokens == reader.tokens(text) else "DIFFERENT"
    lines = [f"tokens of the page as llama.cpp's: {same_text}, {len(tokens):,}"]
    for name in names:
        lines.append(f"perplexity of {name}: {np.exp(losses[name] / (len(tokens) - 1)):.4f}")
    for pair in pairs:
        ratio = np.exp((losses[pair.left] - losses[pair.right]) / (len(tokens) - 1))
        lines.append(
            f"{pair.left} beside {pair.right}: next token {pair.same / pair.clear:.2%} of "
            f"{pair.clear:,}, cosine {np.mean(pair.cosines):.5f} on average and "
            f"{np.median(pair.cosines):.5f} in the middle, perplexity {ratio - 1:+.2%}"
            + _same(continued, pair)
        )
    return lines


def _same(continued: dict[str, list[list[int]]], pair: _Pair) -> str:
    if pair.right not in continued:
        return ""
    both = zip(continued[pair.left], continued[pair.right], strict=True)
    return f", {sum(a == b for a, b in both)} of {len(PROMPTS)} continuations the same"


def _continued(side: _Side, tokens: Sequence[int]) -> list[int]:
    side.reset()
    logits, found = side.prompt(tokens), []
    while len(found) < LENGTH:
        found.append(int(logits.argmax()))
        logits = side.next(found[-1])
    return found


def _chosen(side: _Side, tokens: Sequence[int], guess: Sequence[int]) -> list[int]:
    """As `_continued`, of a side that reads many tokens in the time of one.

    It reads what is guessed at once, and its choices are taken up to the first that is another.
    """
    found: list[int] = []
    while len(found) < LENGTH:
        side.reset()
        likely = guess[len(found) : -1] if found == guess[: len(found)] else []
        logits = side.all_logits([*tokens, *found, *likely])
        for place, choice in enumerate(logits[-1 - len(likely) :].argmax(axis=1).tolist()):
            found.append(choice)
            if place < len(likely) and choice != likely[place]:
                break
    return found
