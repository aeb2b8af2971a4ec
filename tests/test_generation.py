"""Text generation and perplexity: tokens read and written, reasons for the end.

A small table replaces the model: the next token depends on the last two tokens, and is computed
again by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from subquant.errors import ExecutionError, InputError, UsageError
from subquant.models.generation import Generation
from subquant.models.memory import peak_memory
from subquant.models.perplexity import measure_perplexity
from subquant.models.sampling import Sampling
from subquant.models.tokenizer import Tokenizer
from transformer_oracle import surprises
from vocabularies import scored

PROPERTIES = scored()
TOKENIZER = Tokenizer.from_properties(PROPERTIES)
SIZE = TOKENIZER.size
END = 2


class Table:
    """A session whose logits are a function of the last two tokens."""

    def __init__(self, context: int = 64, seed: int = 0) -> None:
        self.context = context
        self.read: list[int] = []
        self.calls: list[tuple[str, int]] = []
        rng = np.random.default_rng(seed)
        self._first, self._second = rng.normal(0, 2, (2, SIZE, SIZE)).astype(np.float32)

    @property
    def position(self) -> int:
        return len(self.read)

    def reset(self) -> None:
        self.read = []

    def after(self, tokens: Sequence[int]) -> np.ndarray:
        before = tokens[-2] if len(tokens) > 1 else 0
        return self._first[before] + self._second[tokens[-1]]

    def prompt(self, tokens: Sequence[int]) -> np.ndarray:
        self.calls.append(("prompt", len(tokens)))
        if len(self.read) + len(tokens) > self.context:
            raise UsageError("no room")
        self.read += tokens
        return self.after(self.read)

    def next(self, token: int) -> np.ndarray:
        logits = self.prompt([token])
        self.calls[-1] = ("next", 1)
        return logits

    def all_logits(self, tokens: Sequence[int]) -> np.ndarray:
        return np.stack([self.prompt([token]) for token in tokens])


def likeliest(table: Table, prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(table.after(tokens).argmax()))
        if tokens[-1] in TOKENIZER.end_tokens:
            break
    return tokens[len(prompt) :]


def test_the_likeliest_tokens_follow() -> None:
    session = Table()
    prompt = TOKENIZER.encode("hello the")
    generation = Generation(session, TOKENIZER, prompt, sampling=Sampling.greedy(), max_tokens=10)
    assert session.calls == []  # it begins when it is asked to
    pieces = list(generation)
    expected = likeliest(session, prompt, 10)
    assert generation.tokens == expected
    assert "".join(pieces) == TOKENIZER.decode(expected)
    assert session.read == prompt + expected[:-1]
    assert session.calls == [("prompt", len(prompt)), *[("next", 1)] * 9]
    statistics = generation.statistics
    assert (statistics.prompt_tokens, statistics.tokens) == (len(prompt), 10)
    assert statistics.end == "max tokens"
    assert statistics.prompt_rate > 0
    assert statistics.rate == pytest.approx(9 / statistics.seconds)
    assert list(generation) == []


def test_an_end_token_ends_the_text_and_is_no_part_of_it() -> None:
    for seed in range(100):
        session = Table(seed=seed)
        generation = Generation(session, TOKENIZER, [1], sampling=Sampling.greedy())
        text = "".join(generation)
        if generation.statistics.end == "end token":
            break
    assert generation.tokens[-1] in TOKENIZER.end_tokens
    assert text == TOKENIZER.decode(generation.tokens[:-1])
    assert generation.statistics.tokens == len(generation.tokens)


def test_the_context_ends_the_text() -> None:
    session = Table(context=6)
    generation = Generation(session, TOKENIZER, [1, 300, 301], sampling=Sampling.greedy())
    list(generation)
    assert generation.statistics.end == "context"
    assert (session.position, len(generation.tokens)) == (6, 4)  # the last was not read


@pytest.mark.parametrize(("most", "read"), [(0, 3), (1, 3), (2, 4)])
def test_the_most_tokens(most: int, read: int) -> None:
    session = Table()
    generation = Generation(
        session, TOKENIZER, [1, 300, 301], sampling=Sampling.greedy(), max_tokens=most
    )
    list(generation)
    assert (len(generation.tokens), session.position) == (most, read)
    assert generation.statistics.end == "max tokens"
    assert generation.statistics.rate >= 0


def test_a_text_ends_when_it_is_closed() -> None:
    generation = Generation(Table(), TOKENIZER, [1, 300], sampling=Sampling.greedy())
    next(generation)
    generation.close()
    assert list(generation) == []
    assert generation.statistics.end == "closed"


def test_bytes_of_a_character_come_together() -> None:
    """The model writes the four bytes of an emoji; then the first of them, and no more."""
    emoji = TOKENIZER.encode("🙂", start=False)
    written = [*emoji, emoji[0]]

    class Emoji(Table):
        def after(self, tokens: Sequence[int]) -> np.ndarray:
            return np.eye(SIZE, dtype=np.float32)[written[len(tokens) - 1]]

    generation = Generation(Emoji(), TOKENIZER, [1], sampling=Sampling.greedy(), max_tokens=5)
    assert list(generation) == ["🙂", "\ufffd"]


def test_the_seed_is_the_samplings() -> None:
    def text(seed: int) -> str:
        sampling = Sampling(temperature=2.0, seed=seed)
        return "".join(Generation(Table(), TOKENIZER, [1], sampling=sampling, max_tokens=20))

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(10)}) > 1


def test_prompts_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="the prompt has no tokens; expected a text"):
        Generation(Table(), TOKENIZER, [])
    with pytest.raises(UsageError, match="max_tokens is -1, expected 0 or more"):
        Generation(Table(), TOKENIZER, [1], max_tokens=-1)


def test_memory_is_measured() -> None:
    peak = peak_memory()
    assert peak is None or 2**24 < peak < 2**36


# -- perplexity -----------------------------------------------------------------------------------

TEXT = "hello the world, another there  abcd bcd. the world\n\nhere not on. " * 8


@pytest.mark.parametrize("chunk", [4, 13, 40, 64])
def test_perplexity_is_as_defined(chunk: int) -> None:
    tokens = TOKENIZER.encode(TEXT)
    expected = surprises(
        lambda read: [Table().after(read[: n + 1]) for n in range(len(read))],
        (
            [1, *tokens[start + 1 : start + chunk]]
            for start in range(0, len(tokens) - chunk + 1, chunk)
        ),
    )
    steps: list[tuple[int, int, float]] = []
    actual = measure_perplexity(
        Table(), TOKENIZER, TEXT, chunk=chunk, progress=lambda *step: steps.append(step)
    )
    mean = np.mean(expected)
    assert actual.value == pytest.approx(math.exp(mean), rel=1e-6)
    error = math.exp(mean) * np.std(expected) / math.sqrt(len(expected) - 1)
    assert actual.error == pytest.approx(error, rel=1e-5)
    assert actual.scored == len(expected) == actual.chunks * (chunk - chunk // 2 - 1)
    assert (actual.chunk, actual.chunks) == (chunk, len(tokens) // chunk)
    assert [step[:2] for step in steps] == [(n + 1, actual.chunks) for n in range(actual.chunks)]
    assert steps[-1][2] == pytest.approx(actual.value)


def test_a_chunk_is_the_context_at_most() -> None:
    assert measure_perplexity(Table(context=32), TOKENIZER, TEXT).chunk == 32
    with pytest.raises(UsageError, match="the chunk is 33 tokens, expected 4 to the context of 32"):
        measure_perplexity(Table(context=32), TOKENIZER, TEXT, chunk=33)
    with pytest.raises(UsageError, match="the chunk is 3 tokens"):
        measure_perplexity(Table(), TOKENIZER, TEXT, chunk=3)


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(InputError, match="the text has 2 tokens, expected 64 at least; give a"):
        measure_perplexity(Table(), TOKENIZER, "he")


def test_names_of_control_tokens_are_text() -> None:
    session = Table()
    measure_perplexity(session, TOKENIZER, "<end_of_turn>" * 20, chunk=20)
    assert 4 not in session.read


def test_logits_that_are_no_numbers() -> None:
    class Damaged(Table):
        def after(self, tokens: Sequence[int]) -> np.ndarray:
            return np.full(SIZE, np.nan, np.float32)

    with pytest.raises(ExecutionError, match="logits is nan, expected a number"):
        measure_perplexity(Damaged(), TOKENIZER, TEXT)


def test_a_surprise_beyond_all_numbers() -> None:
    class Sure(Table):
        def after(self, tokens: Sequence[int]) -> np.ndarray:
            return np.where(np.arange(SIZE) == 7, np.float32(3e38), np.float32(0))

    actual = measure_perplexity(Sure(), TOKENIZER, TEXT)
    assert actual.value == math.inf
