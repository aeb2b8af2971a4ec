"""Agreement of a language model with llama.cpp, from the same file.

    scripts/bench --agreement

Seven engines read a page:

* subquant with int8 activations, and with float activations;
* llama.cpp (int8 activations), with repacked weights and with the file's layout;
* llama.cpp with OpenBLAS: float activations, and one weight tensor at a time dequantized;
* llama.cpp with f32 weights (a temporary file of four times the size), which rounds nothing;
* the forward pass in NumPy with dequantized weights.

Each pair is compared, so that the distance between subquant and llama.cpp can be seen beside the
distances between llama.cpp's own variants:

* Next token: the share of positions with the same argmax, where the second engine's top two logits
  differ by at least 0.1.
* Logits: the cosine at each position.
* Perplexity of the page, ``exp(-mean(log p(token)))`` over all tokens but the first.
* Greedy continuations of ten prompts by 32 tokens: the number of equal ones (not with NumPy).
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
from subquant.models.source import open_model
from subquant.models.tokenizer import Tokenizer

from .language import exact_logits, write_dequantized
from .peers import Array
from .peers.llama import Reader

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
_MIN_LOGIT_GAP = 0.1
"""The least difference of the top two logits at positions whose next token is compared."""
_CHUNK = 64
"""Positions that are computed and compared in one step."""
_CONTEXT = 2048
_FLOAT = "subquant, float activations"
_BLAS = "llama.cpp, OpenBLAS"


class _Engine(Protocol):
    """An engine that reads tokens: a `Session`, or a `Reader`."""

    def reset(self) -> None: ...
    def prompt(self, tokens: Sequence[int]) -> Array: ...
    def next(self, token: int) -> Array: ...
    def all_logits(self, tokens: Sequence[int]) -> Array: ...


@dataclass
class _Prediction:
    """Logits of the next token at one position."""

    logits: Array

    def __post_init__(self) -> None:
        self.logits = self.logits.astype(np.float64)
        second, first = np.sort(np.partition(self.logits, -2)[-2:])
        self.is_clear = first - second > _MIN_LOGIT_GAP
        self.choice = int(self.logits.argmax())
        self.length = float(np.sqrt(self.logits @ self.logits))

    def loss(self, token: int) -> float:
        """``-log p(token)``."""
        return float(np.logaddexp.reduce(self.logits) - self.logits[token])


@dataclass
class _Pair:
    """Comparison of two engines.

    Attributes:
        left, right: the names of the engines.
        clear: the number of positions where the right engine's top logits are apart.
        same: the number of clear positions where the left engine has the same argmax.
        cosines: the cosine of each position.
    """

    left: str
    right: str
    clear: int = 0
    same: int = 0
    cosines: list[float] = field(default_factory=list)

    def add(self, left: _Prediction, right: _Prediction) -> None:
        """Compare one position."""
        if right.is_clear:
            self.clear += 1
            self.same += left.choice == right.choice
        self.cosines.append(float(left.logits @ right.logits) / (left.length * right.length))


def compare(path: Path, threads: int, progress: Callable[[str], None]) -> list[str]:
    """Compare all engines on a page and on prompts, and return the lines of a report."""
    with tempfile.TemporaryDirectory() as folder:
        progress("write weights as floats")
        floats = Path(folder) / "floats.gguf"
        write_dequantized(path, floats)
        return _compare(path, floats, threads, progress)


def _compare(path: Path, floats: Path, threads: int, progress: Callable[[str], None]) -> list[str]:
    source = open_model(path)
    tokenizer = Tokenizer.from_properties(source.properties)
    text = PAGE.read_text()
    tokens = tokenizer.encode(text)
    progress("load")
    reader = Reader(path, _CONTEXT, threads)
    ours = partial(load, path, context=_CONTEXT, threads=threads)
    engines: dict[str, _Engine] = {
        "subquant": ours().session(),
        _FLOAT: ours(activations="float").session(),
        "llama.cpp": reader,
        "llama.cpp, as in the file": Reader(path, _CONTEXT, threads, repacked=False),
        _BLAS: Reader(path, _CONTEXT, threads, blas=True),
        "llama.cpp, float weights": Reader(floats, _CONTEXT, threads),
    }
    progress("compute in NumPy")
    exact = exact_logits(source, tokens[:-1])
    names = [*engines, "NumPy"]
    pairs = [_Pair(*each) for each in itertools.combinations(names, 2)]
    losses = dict.fromkeys(names, 0.0)
    for start in range(0, len(tokens) - 1, _CHUNK):
        progress(f"token {start:,} of {len(tokens):,}")
        chunk, following = tokens[start:-1][:_CHUNK], tokens[start + 1 :]
        logits = {name: engine.all_logits(chunk) for name, engine in engines.items()}
        logits["NumPy"] = exact(start, len(chunk))
        for index, token in enumerate(following[: len(chunk)]):
            predictions = {name: _Prediction(each[index]) for name, each in logits.items()}
            for pair in pairs:
                pair.add(predictions[pair.left], predictions[pair.right])
            for name, each in predictions.items():
                losses[name] += each.loss(token)
    progress("continue")
    prompts = [tokenizer.encode(each) for each in PROMPTS]
    continued = {name: [_continued(engine, each) for each in prompts]
                 for name, engine in engines.items() if name != _BLAS}  # fmt: skip
    continued[_BLAS] = [
        _chosen(engines[_BLAS], *both) for both in zip(prompts, continued[_FLOAT], strict=True)
    ]
    same_text = "the same" if tokens == reader.tokens(text) else "DIFFERENT"
    report = [f"tokens of the page as llama.cpp's: {same_text}, {len(tokens):,}"]
    for name in names:
        report.append(f"perplexity of {name}: {np.exp(losses[name] / (len(tokens) - 1)):.4f}")
    for pair in pairs:
        ratio = np.exp((losses[pair.left] - losses[pair.right]) / (len(tokens) - 1))
        report.append(
            f"{pair.left} beside {pair.right}: next token {pair.same / pair.clear:.2%} of "
            f"{pair.clear:,}, cosine {np.mean(pair.cosines):.5f} (mean) and "
            f"{np.median(pair.cosines):.5f} (median), perplexity {ratio - 1:+.2%}"
            + _same(continued, pair)
        )
    return report


def _same(continued: dict[str, list[list[int]]], pair: _Pair) -> str:
    if pair.right not in continued:
        return ""
    both = zip(continued[pair.left], continued[pair.right], strict=True)
    return f", {sum(a == b for a, b in both)} of {len(PROMPTS)} continuations the same"


def _continued(engine: _Engine, tokens: Sequence[int]) -> list[int]:
    engine.reset()
    logits, continuation = engine.prompt(tokens), []
    while len(continuation) < LENGTH:
        continuation.append(int(logits.argmax()))
        logits = engine.next(continuation[-1])
    return continuation


def _chosen(engine: _Engine, tokens: Sequence[int], guess: Sequence[int]) -> list[int]:
    """Continue greedily with a batch engine: it verifies a guessed continuation in one step.

    Its choices are accepted up to the first one that differs from the guess.
    """
    continuation: list[int] = []
    while len(continuation) < LENGTH:
        engine.reset()
        count = len(continuation)
        likely = guess[count:-1] if continuation == guess[:count] else []
        logits = engine.all_logits([*tokens, *continuation, *likely])
        for index, choice in enumerate(logits[-1 - len(likely) :].argmax(axis=1).tolist()):
            continuation.append(choice)
            if index < len(likely) and choice != likely[index]:
                break
    return continuation
