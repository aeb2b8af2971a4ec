"""Continuous batching: texts of a batch are those written alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import call, fail_in_one_line, succeed
from gguf_models import TinyModel
from programs import LONG
from subquant.errors import UnsupportedError, UsageError
from subquant.models import load, step_check
from subquant.models.generation import Generation
from subquant.models.interface import STEP_TOKENS
from subquant.models.sampling import Sampling
from subquant.models.step_check import check_batch
from subquant.models.text_batch import TextBatch
from subquant.runtime import Device
from test_drafts import DraftTable
from test_generation import TOKENIZER


class TableModel:
    """A model of tables, with the batches of a program."""

    tokenizer = TOKENIZER

    def __init__(self, context: int) -> None:
        self.context = context
        self.sessions = 0
        self.sizes: list[int] = []

    def session(self) -> DraftTable:
        self.sessions += 1
        return DraftTable(self.context)

    def session_batch(self) -> TableModel:
        return self

    def next(self, sessions: Sequence[DraftTable], tokens: Sequence[int]) -> list[np.ndarray]:
        assert len({id(each) for each in sessions}) == len(sessions)
        self.sizes.append(len(sessions))
        return [each.next(token) for each, token in zip(sessions, tokens, strict=True)]


@pytest.mark.parametrize("count", [0, 1, 3, 30])
@pytest.mark.parametrize("context", [24, 200])
def test_texts_are_those_written_alone(count: int, context: int) -> None:
    rng = np.random.default_rng(count)
    prompts = [rng.integers(3, 300, rng.integers(1, 20)).tolist() for _ in range(count)]
    model: Any = TableModel(context)
    options: Any = {"sampling": Sampling(seed=3, temperature=1.5), "max_tokens": 40}
    texts = list(TextBatch(model, prompts, **options))
    assert sorted(each.number for each in texts) == list(range(count))
    for text in texts:
        alone = Generation(DraftTable(context), TOKENIZER, prompts[text.number], **options)
        assert text.text == "".join(alone)
        assert text.generation.tokens == alone.tokens
        assert text.generation.statistics.end == alone.statistics.end
    assert model.sessions == min(count, STEP_TOKENS)
    assert max(model.sizes, default=0) == min(count, STEP_TOKENS)
    if count == 30:  # texts that ended were replaced
        written = sum(len(each.generation.tokens) for each in texts)
        assert len(model.sizes) < written / 4


# -- a program ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose contractions all have kernels."""
    path = tmp_path_factory.mktemp("batch") / "tiny.gguf"
    return TinyModel("gemma3", ["Q8_0"], blocks=1, context=64).write(path)


@pytest.mark.skipif(not LONG, reason="8 s; batches are compared with single texts without files")
def test_a_file_of_prompts(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven prompts, with the tokens that each has alone; the program has the bits of `next`."""
    monkeypatch.setenv("SUBQUANT_CACHE", str(tmp_path))
    prompts = [f"{'the world ' * number}was {number}" for number in range(11)]
    prompts[5] = "two\nlines"
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in prompts))
    options = ("--model", model_file, "--max-tokens", "12", "--seed", "3")
    result = json.loads(succeed("generate", *options, "--batch", file, "--json").stdout)
    model = load(model_file, steps="batch")
    for text, prompt in zip(result["texts"], prompts, strict=True):
        alone = model.generate(prompt, max_tokens=12, sampling=Sampling(seed=3))
        assert text["text"] == "".join(alone)
        assert text["tokens"] == alone.tokens
        assert text["prompt_tokens"] == alone.statistics.prompt_tokens
    shown = call("generate", *options, "--batch", file)
    texts = "".join(f"[{n}] {each['text']}\n" for n, each in enumerate(result["texts"], 1))
    assert shown.stdout == texts
    assert "11 texts of 11 prompts: " in shown.stderr
    sessions = [model.session() for _ in range(9)]
    with pytest.raises(UsageError, match="there are 9 sessions and 9 tokens, expected as many"):
        model.session_batch().next(sessions, [3] * 9)


@pytest.mark.skipif(not LONG, reason="compiles two programs for Vulkan")
def test_vulkan(model_file: Path, vulkan: Device, tmp_path: Path) -> None:
    """Drafts and batches, which are compared with single tokens there, have the CPU's tokens."""
    texts = ["the world the world the", "and then", "was not the world"]
    expected = []
    for device in ("llvm-cpu", vulkan):
        for steps in ("draft", "batch"):
            model = load(model_file, device=device, steps=steps, cache=tmp_path)
            prompts = [model.encode(text) for text in texts]
            options: Any = {"max_tokens": 20, "sampling": Sampling.greedy()}
            if steps == "batch":
                batch = sorted(TextBatch(model, prompts, **options), key=lambda each: each.number)
                expected.append([each.generation.tokens for each in batch])
            else:
                generations = [model.generate(text, **options) for text in texts]
                assert all("".join(each) for each in generations)
                expected.append([each.tokens for each in generations])
    assert all(tokens == expected[0] for tokens in expected)


def test_programs_with_other_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Batch(TableModel):
        def __init__(self, _: Callable[[], DraftTable]) -> None:
            super().__init__(64)

        def next(self, sessions: Sequence[DraftTable], tokens: Sequence[int]) -> list[np.ndarray]:
            logits = super().next(sessions, tokens)
            logits[3] = logits[3] * np.float32(1 + 2**-20)
            return logits

    monkeypatch.setattr(step_check, "SessionBatch", Batch)
    with pytest.raises(UnsupportedError, match=r"of 1 of 8 tokens .* so batches could change"):
        check_batch(lambda: DraftTable(64))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("name", "content", "arguments", "status", "message"),
    [
        ("a.txt", "a", ("--prompt", "b"), 2, "--batch takes no --prompt"),
        ("a.txt", "a", ("--draft", "ngram"), 2, "--batch takes no --prompt"),
        ("a.txt", "", (), 1, "line 1 of '{}' has no prompt; remove the line"),
        ("a.txt", "a\n\nb\n", (), 1, "line 2 of '{}' has no prompt; remove the line"),
        ("a.jsonl", '"a"\n[1]\n', (), 1, "line 2 of '{}' is no JSON string"),
        ("a.jsonl", '"a"\n' + "[" * 10**5, (), 1, "line 2 of '{}' is no JSON string"),
        ("a.txt", "a\n" + "the " * 99, (), 2, "prompt 2: the "),
    ],
)
def test_wrong_calls(
    model_file: Path,
    tmp_path: Path,
    name: str,
    content: str,
    arguments: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    file = tmp_path / name
    file.write_text(content)
    options = ("generate", "--model", str(model_file), "--batch", str(file), *arguments)
    assert message.format(file) in fail_in_one_line(status, *options)
