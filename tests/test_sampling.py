"""Sampling from logits, compared with the definitions computed directly, and its time."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from programs import examples
from subquant.errors import ExecutionError, UsageError
from subquant.models.sampling import Sampler, Sampling

SIZE = 3000


def defined(logits: np.ndarray, sampling: Sampling) -> dict[int, float]:
    """The probability of each token that may be drawn: one step after the other, in f64."""
    x = {token: float(logit) for token, logit in enumerate(logits)}
    order = sorted(x, key=lambda token: (-x[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(np.exp(x[token] - x[order[0]]) for token in order)
    if sampling.top_p < 1:
        retained, reached = [], 0.0
        for token in order:
            retained.append(token)
            reached += np.exp(x[token] - x[order[0]]) / total
            if reached >= sampling.top_p:
                break
        order = retained
    if sampling.min_p:
        order = [t for t in order if x[t] >= x[order[0]] + np.log(sampling.min_p)]
    weights = {t: np.exp((x[t] - x[order[0]]) / sampling.temperature) for t in order}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.1, 0.8, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 40, 1500, SIZE, SIZE + 1]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)
FLAT = Sampling(1.0, 0, 0.95, 0.0)


@settings(max_examples=examples(30))
@given(
    st.integers(0, 2**32), st.sampled_from([0.1, 1.0, 4.0]), st.sampled_from([0, 0.5]), SAMPLINGS
)
@example(0, 0.1, 0, FLAT)  # more than are sorted at first
@example(0, 0.1, 0.5, dataclasses.replace(FLAT, top_k=1500))  # the last of top-k has equals
@example(11594, 4.0, 0, Sampling(0.8, 1500, 0.5, 0.05))  # min-p leaves few tokens
def test_what_may_be_drawn_is_as_defined(
    seed: int, spread: float, steps: float, sampling: Sampling
) -> None:
    logits = np.random.default_rng(seed).normal(0, spread, SIZE).astype(np.float32)
    if steps:
        logits = np.round(logits / np.float32(steps)) * np.float32(steps)
    tokens, probabilities = Sampler(sampling).probabilities(logits)
    expected = defined(logits, sampling)
    if len(tokens) == SIZE:  # in any order
        order = np.lexsort((tokens, -logits[tokens]))
        tokens, probabilities = tokens[order], probabilities[order]
    # At the very edge of top-p, sums in another order may end one token sooner or later.
    assert abs(len(tokens) - len(expected)) <= 1
    same = min(len(tokens), len(expected))
    assert tokens[:same].tolist() == list(expected)[:same]
    np.testing.assert_allclose(probabilities[:same], list(expected.values())[:same], rtol=1e-2)
    if len(tokens) == len(expected):
        np.testing.assert_allclose(probabilities, list(expected.values()), rtol=1e-9)


def test_tokens_come_as_often_as_they_are_likely() -> None:
    """A chi-squared statistic of 9 degrees of freedom is below 27.9 with a probability of 0.999."""
    logits = np.random.default_rng(3).normal(0, 1, 50).astype(np.float32)
    sampling = Sampling(temperature=1.3, top_k=10, top_p=1, min_p=0, seed=7)
    expected = defined(logits, sampling)
    sampler, draws = Sampler(sampling), 20_000
    drawn = [sampler.choose(logits) for _ in range(draws)]
    counts = {token: drawn.count(token) for token in expected}
    assert sum(counts.values()) == draws
    chi = sum((counts[t] - draws * p) ** 2 / (draws * p) for t, p in expected.items())
    assert chi < 27.9


def test_a_seed_draws_the_same_again() -> None:
    logits = np.zeros(100, np.float32)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.choose(logits) for _ in range(20)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)
    assert draws(None) != draws(None)


def test_the_likeliest_is_taken_without_a_temperature() -> None:
    logits = np.array([1, 5, 5, -np.inf], np.float32)
    assert Sampler(Sampling.greedy()).choose(logits) == 1
    tokens, probabilities = Sampler(Sampling.greedy()).probabilities(logits)
    assert (tokens.tolist(), probabilities.tolist()) == ([1], [1.0])
    assert Sampler(Sampling(temperature=1e-300, seed=0)).choose(logits[:2]) == 1


@pytest.mark.parametrize("sampling", [Sampling(seed=0), Sampling.greedy()], ids=["drawn", "greedy"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_logits_that_are_no_numbers(wrong: float, sampling: Sampling) -> None:
    logits = np.zeros(10, np.float32)
    logits[3] = wrong
    with pytest.raises(ExecutionError, match=f"logits is {wrong}, expected a number; the weights"):
        Sampler(sampling).choose(logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.5}, "the temperature is -0.5, expected 0 or more"),
        ({"temperature": float("nan")}, "the temperature is nan"),
        ({"temperature": float("inf")}, "the temperature is inf"),
        ({"top_k": -1}, "top-k is -1, expected 0 or more"),
        ({"top_p": 0.0}, "top-p is 0.0, expected more than 0, and at most 1"),
        ({"top_p": 1.5}, "top-p is 1.5"),
        ({"min_p": 1.5}, "min-p is 1.5, expected 0 to 1"),
        ({"seed": -1}, "the seed is -1, expected 0 or more"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "milliseconds"),
    [
        (Sampling.greedy(), 1),
        (Sampling(seed=0), 5),
        (Sampling(top_k=0, seed=0), 5),
        (Sampling(top_k=0, top_p=1, min_p=0, seed=0), 5),
    ],
    ids=["greedy", "drawn", "drawn from most", "drawn from all"],
)
def test_a_large_vocabulary_takes_milliseconds(sampling: Sampling, milliseconds: float) -> None:
    """The best CPU time of 20 calls is at most twice that of an idle machine."""
    logits = np.random.default_rng(0).normal(0, 3, 262_144).astype(np.float32)
    sampler = Sampler(sampling)
    times = []
    for _ in range(20):
        start = time.process_time()
        sampler.choose(logits)
        times.append(time.process_time() - start)
    assert min(times) < 2e-3 * milliseconds
