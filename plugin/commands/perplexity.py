"""``subquant perplexity``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from ..errors import counted
from .console import show_progress
from .models import load_model, model_options, read_text

__all__ = ["command"]


@click.command("perplexity")
@model_options
@click.option(
    "--text",
    "path",
    required=True,
    metavar="FILE",
    help="The text, UTF-8; - reads it from standard input.",
)
@click.option(
    "--chunk",
    type=int,
    metavar="N",
    help="Tokens that are read at once, of which the second half is scored.  [default: 512]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(model: str, path: str, chunk: int | None, as_json: bool, **options: Any) -> None:
    """Measure how surprised a language model (.gguf) is by a text.

    The text is read in chunks, each with the model's start token; the perplexity is exp of the mean
    surprise of the tokens in the second halves. It is that of llama.cpp's llama-perplexity.

    \b
    subquant perplexity --model model.gguf --text page.txt
    subquant perplexity --model model.gguf --text page.txt --chunk 128 --json
    """
    text = read_text(path)
    with show_progress(model) as progress:
        loaded = load_model(model, progress, lambda found: found.tokenizer, **options)
        from ..models.perplexity import measure_perplexity

        found = measure_perplexity(
            loaded.session(),
            loaded.tokenizer,
            text,
            chunk=chunk,
            progress=lambda number, count, value: progress(
                f"chunk {number} of {count}: {value:.2f}"
            ),
        )
    if as_json:
        click.echo(json.dumps({"model": model, **asdict(found)}))
        return
    click.echo(
        f"perplexity {found.value:.4f} +- {found.error:.4f} ({counted(found.scored, 'token')}, "
        f"{counted(found.chunks, 'chunk')} of {found.chunk})"
    )
