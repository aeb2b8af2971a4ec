"""Speculative decoding by lookup: drafts, texts with and without them, and the check of programs.

The table of `test_generation` replaces the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from subquant.errors import UnsupportedError
from subquant.models.drafts import DraftedSession, NgramTable
from subquant.models.generation import Generation
from subquant.models.interface import STEP_TOKENS
from subquant.models.sampling import Sampling
from subquant.models.step_check import check_verify
from test_generation import TOKENIZER, Table


class DraftTable(Table):
    """A table that verifies drafts; with `changed` the last logits of a call have another bit."""

    vocabulary = 300

    def __init__(self, context: int = 64, seed: int = 0, *, changed: bool = False) -> None:
        super().__init__(context, seed)
        self.changed = changed

    def verify(self, tokens: Sequence[int]) -> np.ndarray:
        assert 1 <= len(tokens) <= STEP_TOKENS
        logits = self.all_logits(tokens)
        if self.changed:
            logits[-1, 0] = np.nextafter(logits[-1, 0], np.float32(9))
        return logits

    def rewind(self, position: int) -> None:
        assert 0 <= position <= len(self.read)
        self.read = self.read[:position]


def draft_of(tokens: Sequence[int], count: int) -> list[int]:
    """The draft by a search from the end of the text."""
    for size in (4, 3, 2):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                extended = list(tokens)
                for index in range(end, end + count):
                    extended.append(extended[index])
                return extended[len(tokens) :]
    return []


@pytest.mark.parametrize("alphabet", [1, 2, 5, 20])
def test_drafts_follow_the_longest_ngram(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    table, tokens = NgramTable(), list[int]()
    drafts = 0
    for _ in range(200):
        token = int(rng.integers(alphabet))
        tokens.append(token)
        table.extend([token])
        for count in (0, 1, 7):
            assert table.draft(count) == draft_of(tokens, count)
        drafts += bool(table.draft(1))
    assert 0 < drafts < 200


class Cycle(DraftTable):
    """A table whose likeliest token repeats the prompt, with exceptions."""

    def after(self, tokens: Sequence[int]) -> np.ndarray:
        noise = super().after(tokens)
        count = len(tokens)
        if count % 23 and count > 9:
            noise[tokens[-9]] += 20
        noise[2] = -99  # the end token
        return noise


@pytest.mark.parametrize("table", [Cycle, DraftTable])
@pytest.mark.parametrize("context", [200, 41])
@pytest.mark.parametrize("sampling", [Sampling.greedy(), Sampling(seed=5, temperature=1.5)])
def test_texts_are_those_without_drafts(table: Any, context: int, sampling: Sampling) -> None:
    prompt = TOKENIZER.encode("hello the world, and there is more")
    generations = []
    plain, inner = table(context), table(context)
    session = DraftedSession(inner)
    for each in (plain, session):
        generation = Generation(each, TOKENIZER, prompt, sampling=sampling, max_tokens=120)
        pieces = list(generation)
        generations.append((pieces, generation.tokens, generation.statistics.end))
    assert generations[0] == generations[1]
    assert session.position == plain.position
    assert inner.read[: session.position] == plain.read
    assert plain.position <= len(inner.read) <= context
    statistics = session.statistics
    assert generation.drafts is statistics
    assert 0 <= statistics.accepted <= statistics.drafted <= statistics.calls * (STEP_TOKENS - 1)
    if table is Cycle and context == 200:
        assert statistics.accepted > 60
        assert statistics.calls < statistics.accepted / 2


def test_drafts_pause_while_none_is_accepted() -> None:
    class Unlike(DraftTable):
        """The text repeats pairs of tokens, with another token after each."""

        def after(self, tokens: Sequence[int]) -> np.ndarray:
            count = len(tokens)
            following = (7, 8, 20 + count)[count % 3]
            return np.eye(300, dtype=np.float32)[following % 300]

    session = DraftedSession(Unlike(400))
    list(Generation(session, TOKENIZER, [1], sampling=Sampling.greedy(), max_tokens=300))
    assert session.statistics.accepted == 0
    assert 4 <= session.statistics.calls <= 16  # of the 99 pairs


def test_a_program_with_other_bits_is_refused() -> None:
    check_verify(DraftTable(128), 0)  # type: ignore[arg-type]
    check_verify(DraftTable(20), 100)  # type: ignore[arg-type]
    message = "the logits of 1 of 8 tokens that are computed together differ .*, so drafts could"
    with pytest.raises(UnsupportedError, match=message):
        check_verify(DraftTable(128, changed=True), 0)  # type: ignore[arg-type]
