"""``subquant generate --batch``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError, UsageError, counted
from ..models.sampling import Sampling
from .console import say, show_progress, without_controls
from .language_model import load_model, read_text

if TYPE_CHECKING:
    from ..models.loading import Model
    from ..models.text_batch import BatchedText


def read_prompts(path: str) -> list[str]:
    """Read prompts: a line each, or a JSON string each if the name ends in ``.jsonl``.

    Raises:
        InputError: as `read_text`; there are no lines, or a line is no JSON string.
    """
    prompts = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    if path.endswith(".jsonl"):
        prompts = [_json_string(path, number, line) for number, line in enumerate(prompts, 1)]
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise InputError(f"line {number} of '{path}' has no prompt; remove the line")
    return prompts


def _json_string(path: str, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, str):
        raise InputError(f"line {number} of '{path}' is no JSON string, such as \"a text\"")
    return value


def generate_batch(
    model: str,
    inputs: Sequence[str | list[dict[str, str]]],
    sampling: Sampling,
    max_tokens: int,
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Write the texts of prompts in the order of the prompts, and statistics.

    Args:
        inputs: prompts, as for `Model.encode`.
        options: the values of `model_options`.
    """
    prompts: list[list[int]] = []

    def encode(checked: Model) -> None:
        for number, each in enumerate(inputs, 1):
            try:
                prompts.append(checked.encode(each))
            except UsageError as error:
                raise UsageError(f"prompt {number}: {error.message}") from None
        checked.tokenizer.rest()

    with show_progress(model) as progress:
        loaded = load_model(model, progress, encode, steps="batch", **options)
    from ..models.text_batch import TextBatch

    start = time.perf_counter()
    texts = TextBatch(loaded, prompts, sampling=sampling, max_tokens=max_tokens)
    ended: dict[int, BatchedText] = {}
    shown = 0
    interrupted = False
    try:
        for text in texts:
            ended[text.number] = text
            while not as_json and shown in ended:
                _show(ended[shown])
                shown += 1
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.perf_counter() - start
    tokens = sum(each.generation.statistics.tokens for each in ended.values())
    if as_json:
        listed = [_to_json(ended[number]) for number in sorted(ended)]
        click.echo(
            json.dumps(
                {
                    "model": model,
                    "texts": listed,
                    "seconds": seconds,
                    "tokens_per_second": tokens / seconds,
                    "calls": texts.calls,
                }
            )
        )
    else:
        read = sum(map(len, prompts))
        say(
            f"{counted(len(ended), 'text')} of {counted(len(prompts), 'prompt')}: "
            f"{counted(read, 'token')} read and {tokens:,} written in {seconds:,.1f} s "
            f"({tokens / seconds:,.1f} written a second)",
            err=True,
        )
    if interrupted:
        click.get_current_context().exit(1)


def _show(text: BatchedText) -> None:
    click.echo(f"[{text.number + 1}] {without_controls(text.text)}")


def _to_json(text: BatchedText) -> dict[str, Any]:
    statistics = text.generation.statistics
    return {
        "prompt": text.number + 1,
        "text": text.text,
        "tokens": text.generation.tokens,
        "end": statistics.end,
        "prompt_tokens": statistics.prompt_tokens,
    }
