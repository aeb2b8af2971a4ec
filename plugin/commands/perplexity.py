"""``subquant perplexity``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from ..errors import counted
from .console import show_progress
from .language_model import load_model, model_options, read_text, text_option
from .shared_options import json_option


@click.command("perplexity")
@model_options
@text_option
@click.option(
    "--chunk",
    type=int,
    metavar="N",
    help="Chunk length in tokens; the second half is scored.  [default: 512]",
)
@json_option("the result")
def command(model: str, path: str, chunk: int | None, as_json: bool, **options: Any) -> None:
    """Compute the perplexity of a text under a language model.

    The text is read in chunks that begin with the model's start token. The perplexity is exp of the
    mean negative log likelihood of the tokens in the second halves, as in llama.cpp's
    llama-perplexity.

    \b
    subquant perplexity --model model.gguf --text page.txt
    subquant perplexity --model Qwen3-0.6B-GPTQ-Int4/ --text page.txt --kv-cache int8
    subquant perplexity --model model.gguf --text page.txt --chunk 128 --json
    """
    text = read_text(path)
    with show_progress(model) as progress:
        loaded = load_model(model, progress, lambda loaded_model: loaded_model.tokenizer, **options)
        from ..models.perplexity import measure_perplexity

        result = measure_perplexity(
            loaded.session(),
            loaded.tokenizer,
            text,
            chunk=chunk,
            progress=lambda number, count, value: progress(
                f"chunk {number} of {count}: {value:.2f}"
            ),
        )
    if as_json:
        click.echo(json.dumps({"model": model, **asdict(result)}))
        return
    click.echo(
        f"perplexity {result.value:.4f} +- {result.error:.4f} ({counted(result.scored, 'token')}, "
        f"{counted(result.chunks, 'chunk')} of {result.chunk})"
    )
