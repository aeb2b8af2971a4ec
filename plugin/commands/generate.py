"""``subquant generate``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import UsageError, counted
from ..models.sampling import Sampling
from .console import say, show_progress
from .models import find_model, load_model, model_options, read_text
from .options import options_of

if TYPE_CHECKING:
    from ..models.generation import Generation

__all__ = ["command"]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey; line breaks and tabs are text."""


@click.command("generate")
@model_options
@click.option(
    "--prompt", metavar="TEXT", help="What the text begins with; - reads it from standard input."
)
@click.option(
    "--chat",
    is_flag=True,
    help="The prompt is a question, written as the model's template says; the answer follows.",
)
@click.option("--system", metavar="TEXT", help="What the model is told before, with --chat.")
@click.option(
    "--max-tokens",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    metavar="N",
    help="The most tokens that are written.",
)
@options_of(Sampling)
@click.option(
    "--emit",
    metavar="FOLDER",
    help="Write model.mlir and model.irpa there, for compile and run, in place of a text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the text and the statistics as JSON.")
def command(
    model: str,
    prompt: str | None,
    chat: bool,
    system: str | None,
    max_tokens: int,
    emit: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write what follows a text, with a language model (.gguf).

    The model is compiled when it is used first, and kept in ~/.cache/subquant (or the folder that
    the variable SUBQUANT_CACHE names). Text goes to standard output as it comes, statistics to
    standard error. Ctrl-C ends the text.

    \b
    subquant generate --model model.gguf --prompt "The capital of France is" --max-tokens 16
    subquant generate --model model.gguf --chat --prompt "What is a tensor?" --temperature 0
    subquant generate --model gemma3-270m --prompt - < story.txt
    subquant generate --model model.gguf --emit folder
    """
    sampling = Sampling.pop(options)
    if emit is not None:
        _check_emitted()
        _emit(model, emit, options["context"])
        return
    if prompt is None:
        raise UsageError("there is no prompt; give --prompt TEXT, or --prompt - for standard input")
    if system is not None and not chat:
        raise UsageError("--system is for conversations; add --chat")
    text = read_text("-") if prompt == "-" else prompt
    begun: str | list[dict[str, str]] = text
    if chat:
        begun = [{"role": "system", "content": system}] if system is not None else []
        begun.append({"role": "user", "content": text})
    with show_progress(model) as progress:
        loaded = load_model(model, progress, lambda found: found.encode(begun), **options)
        generation = loaded.generate(begun, sampling=sampling, max_tokens=max_tokens)
        loaded.tokenizer.rest()  # nothing is encoded any more
    pieces: list[str] = []
    try:
        for piece in generation:
            pieces.append(piece)
            if not as_json:
                click.echo(_shown(piece), nl=False)
    except KeyboardInterrupt:
        generation.close()
    written = "".join(pieces)
    if as_json:
        click.echo(json.dumps(_described(model, written, generation)))
    elif not written.endswith("\n"):
        click.echo()
    if not as_json:
        say(_summary(generation), err=True)
    if generation.statistics.end == "closed":
        click.get_current_context().exit(1)


_EMITTED = {"model", "emit", "context"}
"""Options that say what is emitted."""
_LATER = {
    "activations": "it is an option of subquant compile",
    "device": "it is an option of subquant run, and --target one of subquant compile",
    "threads": "it is an option of subquant run",
}


def _check_emitted() -> None:
    """Raise UsageError for an option that changes nothing of what is emitted."""
    context = click.get_current_context()
    for each in context.command.params:
        given = context.get_parameter_source(each.name or "")
        if given is not ParameterSource.COMMANDLINE or each.name in _EMITTED:
            continue
        why = _LATER.get(each.name or "", "it writes no text")
        raise UsageError(f"--emit does not take {each.opts[0]}: {why}; leave {each.opts[0]} out")


def _emit(model: str, emit: str, context: int | None) -> None:
    from ..errors import InputError
    from ..models import emit as emit_model

    folder = Path(emit)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write '{emit}': {error.strerror}") from None
    module, archive = folder / "model.mlir", folder / "model.irpa"
    with show_progress(model) as progress:
        path = find_model(model, progress)
        emit_model(path, module, archive, context=context, progress=progress)
    for file in (module, archive):
        say(f"wrote {file} ({file.stat().st_size:,} bytes)", err=True)


def _shown(text: str) -> str:
    """Text as it is; on a terminal without what that would obey."""
    if not sys.stdout.isatty():
        return text
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


_ENDS = {
    "end token": "the model ended it",
    "max tokens": "ended by --max-tokens",
    "context": "ended by the context",
    "closed": "ended by Ctrl-C",
}


def _summary(generation: Generation) -> str:
    from ..models.memory import peak_memory

    found, peak = generation.statistics, peak_memory()
    memory = "" if peak is None else f"; {peak / 1e6:,.0f} MB of memory"
    return (
        f"{counted(found.prompt_tokens, 'token')} read ({found.prompt_rate:,.1f} a second), "
        f"{found.tokens} written ({found.rate:,.1f} a second), {_ENDS[found.end]}{memory}"
    )


def _described(model: str, text: str, generation: Generation) -> dict[str, Any]:
    from ..models.memory import peak_memory

    found = generation.statistics
    return {
        "model": model,
        "text": text,
        "tokens": generation.tokens,
        "end": found.end,
        "prompt_tokens": found.prompt_tokens,
        "prompt_seconds": found.prompt_seconds,
        "prompt_tokens_per_second": found.prompt_rate,
        "seconds": found.seconds,
        "tokens_per_second": found.rate,
        "peak_memory_bytes": peak_memory(),
    }
