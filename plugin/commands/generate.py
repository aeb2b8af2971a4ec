"""``subquant generate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..core.files import writing
from ..errors import UsageError, counted
from ..models.sampling import Sampling
from .console import say, show_progress, without_controls
from .language_model import find_model, load_model, model_options, read_text
from .shared_options import json_option, options_of, pop_values

if TYPE_CHECKING:
    from ..models.generation import Generation
    from ..models.loading import Model


@click.command("generate")
@model_options
@click.option("--prompt", metavar="TEXT", help="The prompt; - reads it from standard input.")
@click.option(
    "--chat",
    is_flag=True,
    help="Send the prompt as a user message, by the model's chat template, and print the answer.",
)
@click.option("--system", metavar="TEXT", help="The system message of --chat.")
@click.option(
    "--max-tokens",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    metavar="N",
    help="Maximum number of generated tokens.",
)
@options_of(Sampling)
@click.option(
    "--draft",
    type=click.Choice(["ngram"]),
    help="Speculative decoding: where the last tokens occurred before, the up to 7 tokens after "
    "them are verified in one call. The text is the same.",
)
@click.option(
    "--prompt-cache",
    metavar="FILE",
    help="File of the prompt's keys and values: read for a prompt that starts alike, then written.",
)
@click.option(
    "--batch",
    metavar="FILE",
    help="File with a prompt on each line (.jsonl: a JSON string), in place of --prompt. 8 texts "
    "are written together; each is the same as if it was written alone.",
)
@click.option(
    "--emit",
    metavar="FOLDER",
    help="Write model.mlir and model.irpa to a folder, for compile and run, instead of text.",
)
@json_option("the text and the statistics")
def command(
    model: str,
    prompt: str | None,
    chat: bool,
    system: str | None,
    max_tokens: int,
    draft: str | None,
    prompt_cache: str | None,
    batch: str | None,
    emit: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text with a language model (.gguf, or a folder).

    A folder is a checkpoint of Hugging Face: config.json, safetensors and tokenizer.json.

    The model is compiled on first use and cached in ~/.cache/subquant (or the folder in the
    variable SUBQUANT_CACHE). Text is streamed to standard output, statistics go to standard error.
    Ctrl-C ends the text.

    \b
    subquant generate --model model.gguf --prompt "The capital of France is" --max-tokens 16
    subquant generate --model model.gguf --chat --prompt "What is a tensor?" --temperature 0
    subquant generate --model Qwen3-0.6B-GPTQ-Int4/ --prompt "The sea is"
    subquant generate --model gemma3-270m --prompt - < story.txt
    subquant generate --model model.gguf --batch prompts.txt --max-tokens 64
    subquant generate --model model.gguf --emit folder
    """
    sampling = Sampling(**pop_values(Sampling, options))
    if emit is not None:
        _check_emit_options()
        _emit(model, emit, context=options["context"], kv_cache=options["kv_cache"])
        return
    if system is not None and not chat:
        raise UsageError("--system needs --chat")
    if batch is not None:
        if prompt is not None or draft is not None or prompt_cache is not None:
            raise UsageError("--batch takes no --prompt, --draft and --prompt-cache; remove these")
        from .generate_batch import generate_batch, read_prompts

        inputs = [_input_of(text, system, chat=chat) for text in read_prompts(batch)]
        generate_batch(model, inputs, sampling, max_tokens, options, as_json=as_json)
        return
    if prompt is None:
        raise UsageError("there is no prompt; add --prompt TEXT, or --prompt - for standard input")
    input_ = _input_of(read_text("-") if prompt == "-" else prompt, system, chat=chat)
    tokens: list[int] = []

    def encode(checked: Model) -> None:
        tokens.extend(checked.encode(input_))
        checked.tokenizer.rest()  # its tables take no memory beside the compiler and the weights

    with show_progress(model) as progress:
        steps = "draft" if draft else "single"
        loaded = load_model(model, progress, encode, steps=steps, **options)
        from ..models.generation import Generation

        file = None
        if prompt_cache is not None:
            file = loaded.prompt_cache(prompt_cache, lambda line: say(f"note: {line}", err=True))
        generation = Generation(
            loaded.text_session(file),
            loaded.tokenizer,
            tokens,
            sampling=sampling,
            max_tokens=max_tokens,
        )
    pieces: list[str] = []
    try:
        for piece in generation:
            pieces.append(piece)
            if not as_json:
                click.echo(without_controls(piece), nl=False)
    except KeyboardInterrupt:
        generation.close()
    output = "".join(pieces)
    if as_json:
        reused = None if file is None else file.reused
        click.echo(json.dumps(_to_json(model, loaded, output, generation, reused)))
    elif not output.endswith("\n"):
        click.echo()
    if not as_json:
        say(_summary(generation, 0 if file is None else file.reused), err=True)
    if generation.statistics.end == "closed":
        click.get_current_context().exit(1)


def _input_of(text: str, system: str | None, *, chat: bool) -> str | list[dict[str, str]]:
    """Return a prompt as text, or as the messages of a conversation."""
    if not chat:
        return text
    messages = [{"role": "system", "content": system}] if system is not None else []
    return [*messages, {"role": "user", "content": text}]


_EMIT_OPTIONS = {"model", "emit", "context", "kv_cache"}
_COMPILE_AND_RUN_OPTIONS = {
    "activations": "it is an option of subquant compile",
    "device": "it is an option of subquant run, and --target one of subquant compile",
    "threads": "it is an option of subquant run",
}


def _check_emit_options() -> None:
    """Raise UsageError for an option that has no effect with --emit."""
    context = click.get_current_context()
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if source is not ParameterSource.COMMANDLINE or each.name in _EMIT_OPTIONS:
            continue
        reason = _COMPILE_AND_RUN_OPTIONS.get(each.name or "", "it generates no text")
        raise UsageError(f"--emit does not take {each.opts[0]}: {reason}; remove {each.opts[0]}")


def _emit(model: str, emit: str, **options: Any) -> None:
    from ..models import emit as emit_model

    folder = Path(emit)
    with writing(emit):
        folder.mkdir(parents=True, exist_ok=True)
    module, archive = folder / "model.mlir", folder / "model.irpa"
    with show_progress(model) as progress:
        path = find_model(model, progress)
        emit_model(path, module, archive, progress=progress, **options)
    for file in (module, archive):
        say(f"wrote {file} ({file.stat().st_size:,} bytes)", err=True)


_ENDS = {
    "end token": "ended by the model",
    "max tokens": "ended by --max-tokens",
    "context": "ended by the context",
    "closed": "ended by Ctrl-C",
}


def _summary(generation: Generation, reused: int) -> str:
    from ..models.memory import peak_memory

    statistics, peak = generation.statistics, peak_memory()
    memory = "" if peak is None else f"; {peak / 1e6:,.0f} MB of memory"
    drafts, drafted = generation.drafts, ""
    if drafts is not None:
        drafted = (
            f"; {drafts.accepted:,} of {counted(drafts.drafted, 'drafted token')} accepted in "
            f"{counted(drafts.calls, 'call')}"
        )
    cached = f", {reused:,} of them from the prompt cache" if reused else ""
    return (
        f"{counted(statistics.prompt_tokens, 'token')} read ({statistics.prompt_rate:,.1f} a "
        f"second{cached}), {statistics.tokens} written ({statistics.rate:,.1f} a second), "
        f"{_ENDS[statistics.end]}{drafted}{memory}"
    )


def _to_json(
    model: str, loaded: Model, text: str, generation: Generation, reused: int | None
) -> dict[str, Any]:
    from ..models.memory import peak_memory

    statistics, drafts = generation.statistics, generation.drafts
    draft_counts = {}
    if drafts is not None:
        draft_counts = {
            "draft_calls": drafts.calls,
            "drafted_tokens": drafts.drafted,
            "accepted_tokens": drafts.accepted,
        }
    return {
        "model": model,
        "text": text,
        "tokens": generation.tokens,
        "end": statistics.end,
        "prompt_tokens": statistics.prompt_tokens,
        "prompt_seconds": statistics.prompt_seconds,
        "prompt_tokens_per_second": statistics.prompt_rate,
        "seconds": statistics.seconds,
        "tokens_per_second": statistics.rate,
        **draft_counts,
        **({} if reused is None else {"reused_tokens": reused}),
        "peak_memory_bytes": peak_memory(),
        "kv_cache": loaded.kv_cache,
        "cache_bytes_per_token": loaded.cache_bytes_per_token,
    }
