"""How far a language model says what llama.cpp says, from the same file.

    scripts/bench --agreement MODEL.gguf

* The next token: at positions of a page where llama.cpp's first choice is apart from its second,
  by 0.1 and more, how often ours is the same.
* Logits: the cosine between both at each position.
* Perplexity of the page, ``exp(-mean(log p(token)))``, of all its tokens but the first.
* Greedy continuations of ten prompts by 32 tokens: how many are the same, and the tokens to the
  first that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from subquant.models import load

from .peers import Array
from .peers.llama import Reader

__all__ = ["Agreement", "compare"]

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
"""Logits of llama.cpp's first and second choice, where the next token is compared."""
_PIECE = 64
"""Positions that are computed together."""


@dataclass
class Agreement:
    """What is compared.

    Attributes:
        positions: of the page.
        apart: of these, where llama.cpp's choice is clear.
        same: of those, where ours is the same.
        cosines: of each position.
        losses: sums of ``-log p(token)``, ours and llama.cpp's.
        continuations: for each prompt, how many tokens are the same before one differs.
        is_same_text: both make the same tokens of the page.
    """

    positions: int = 0
    apart: int = 0
    same: int = 0
    cosines: list[float] = field(default_factory=list)
    losses: Array = field(default_factory=lambda: np.zeros(2))
    continuations: list[int] = field(default_factory=list)
    is_same_text: bool = True

    def perplexities(self) -> Array:
        """Ours and llama.cpp's."""
        result: Array = np.exp(self.losses / self.positions)
        return result

    def lines(self) -> list[str]:
        """Return what to print."""
        ours, theirs = self.perplexities()
        equal = sum(count == LENGTH for count in self.continuations)
        return [
            f"tokens of the page: {'the same' if self.is_same_text else 'DIFFERENT'}",
            f"next token: {self.same:,} of {self.apart:,} positions "
            f"({self.same / self.apart:.2%}) where llama.cpp's choice is apart by {_APART}; "
            f"{self.positions:,} positions in all",
            f"cosine of logits: {min(self.cosines):.6f} at least, "
            f"{np.median(self.cosines):.6f} in the middle",
            f"perplexity: {ours:.4f}, llama.cpp {theirs:.4f} ({ours / theirs - 1:+.3%})",
            f"greedy continuations of {LENGTH} tokens: {equal} of {len(self.continuations)} the "
            f"same; equal up to token {', '.join(map(str, self.continuations))}",
        ]


def compare(path: Path, threads: int | None = None) -> Agreement:
    """Compare on a page and on prompts.

    Args:
        path: of a GGUF file.
        threads: of both.
    """
    text = PAGE.read_text()
    found = Agreement()
    peer = Reader(path, 2048, threads or 1)
    model = load(path, context=2048, threads=threads)
    tokens = model.tokenizer.encode(text)
    found.is_same_text = tokens == peer.tokens(text)
    session = model.session()
    read = tokens[:-1]
    for start in range(0, len(read), _PIECE):
        piece, following = read[start : start + _PIECE], tokens[start + 1 :]
        both = session.all_logits(piece), peer.all_logits(piece)
        for ours, theirs, token in zip(*both, following, strict=False):
            _add(found, ours.astype(np.float64), theirs.astype(np.float64), token)
    for prompt in PROMPTS:
        start = model.tokenizer.encode(prompt)
        session.reset()
        mine = _continued(session.prompt(start), session.next)
        peer.reset()
        theirs = _continued(peer.prompt(start), peer.next)
        found.continuations.append(_equal(mine, theirs))
    return found


def _add(found: Agreement, ours: Array, theirs: Array, token: int) -> None:
    first, second = np.sort(np.partition(theirs, -2)[-2:])[::-1]
    found.positions += 1
    if first - second > _APART:
        found.apart += 1
        found.same += int(ours.argmax() == theirs.argmax())
    found.cosines.append(float(ours @ theirs / np.sqrt((ours @ ours) * (theirs @ theirs))))
    found.losses += [np.logaddexp.reduce(each) - each[token] for each in (ours, theirs)]


def _continued(logits: Array, following: Any) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < LENGTH:
        tokens.append(int(logits.argmax()))
        logits = following(tokens[-1])
    return tokens


def _equal(left: Sequence[int], right: Sequence[int]) -> int:
    """How many are the same before one differs."""
    differ = (place for place, pair in enumerate(zip(left, right, strict=True)) if len({*pair}) > 1)
    return next(differ, len(left))
