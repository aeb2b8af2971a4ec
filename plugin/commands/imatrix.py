"""``subquant imatrix``."""

from __future__ import annotations

import os

import click

from ..errors import UsageError, counted
from .console import say, show_progress
from .language_model import read_text, text_option
from .shared_options import threads_option


@click.command("imatrix")
@click.argument("source")
@text_option
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of the text to use, in chunks of 512.  [default: all]",
)
@click.option(
    "-o",
    "--output",
    default="imatrix.gguf",
    show_default=True,
    metavar="FILE",
    help="The output, a GGUF file.",
)
@threads_option
def command(source: str, path: str, tokens: int | None, output: str, threads: int | None) -> None:
    """Write an importance matrix of a language model, as llama.cpp's llama-imatrix does.

    SOURCE is a GGUF file or the folder of a checkpoint. The file has the sums of the squares of the
    inputs of each linear layer of the blocks, for the tokens of the text.

    \b
    subquant imatrix model-f16.gguf --text book.txt
    subquant quantize model-f16.gguf --gguf-type Q4_K --imatrix imatrix.gguf -o model-q4k.gguf
    llama-quantize --imatrix imatrix.gguf model-f16.gguf model-q4k.gguf Q4_K_M
    """
    from ..calibration.importance import input_importance
    from ..formats.imatrix import write_imatrix
    from ..models.source import open_model
    from ..models.text_chunks import DEFAULT_CHUNK, text_chunks

    if not output.endswith(".gguf"):
        raise UsageError(f"the output '{output}' must end in .gguf")
    model = open_model(source)
    length = min(DEFAULT_CHUNK, model.configuration.context)
    least = 1 if tokens is None else max(1, tokens // length)
    chunks = text_chunks(model.tokenizer(), read_text(path), length, "fewer --tokens", least)
    chunks = chunks if tokens is None else chunks[:least]
    with show_progress(source) as progress:
        means, expert_inputs = input_importance(
            model,
            chunks,
            lambda number, count: progress(f"block {number + 1} of {count}"),
            threads,
        )
    inputs = sum(map(len, chunks))
    write_imatrix(output, means, inputs, os.path.basename(path), length, expert_inputs)
    say(f"wrote {output} ({counted(len(means), 'layer')}, {inputs:,} tokens)", err=True)
