"""``subquant compile``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ..batch.models import is_list, is_pattern
from ..compiler.compile_options import CompileOptions, Emit
from ..errors import SubquantError, UsageError, quoted
from ..isolation.client import start_child
from ..isolation.limits import Limits
from .console import reproducer_of, say, show_progress, shown_name, source_of, write_output
from .options import (
    compile_options,
    limit_options,
    make_compile_options,
    parse_parameters,
    pop_limits,
)

if TYPE_CHECKING:
    from ..signature import Signature

__all__ = ["command", "compile_model", "prepare_compiler"]


_MAX_JOBS = 1024


@click.command("compile")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "-o",
    "output",
    default=None,
    metavar="FILE",
    help="Output file, - for standard output; or output folder for several models.  [default: "
    "MODEL.vmfb, or - for text]",
)
@click.option(
    "--emit",
    type=click.Choice(get_args(Emit)),
    default="vmfb",
    show_default=True,
    help="Output format: IREE executable, or the module passed to IREE as text or bytecode.",
)
@click.option(
    "--parameters",
    default=None,
    metavar="FILE",
    help="Write constants of 1 KiB and more to this .irpa file (for several models, to files in "
    "this folder), not to the executable; run that with --parameters model=FILE.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="SCOPE=FILE",
    help="Prepack the weights of a parameter scope for the kernels, from a file that 'subquant "
    "import' reads or writes, into the file of --parameters; may be repeated.",
)
@compile_options
@click.option(
    "--jobs",
    type=click.IntRange(1, _MAX_JOBS),
    metavar="N",
    help="Number of models to compile in parallel.  [default: one a core]",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compile several models on the workers of a Dask scheduler (tcp://HOST:PORT).",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Skip outputs that are up to date, by the contents of model and output, options and "
    "versions.",
)
@click.option(
    "--base",
    metavar="FOLDER",
    help="Folder that output paths of several models are relative to.  [default: the current "
    "folder, or the models' common parent]",
)
@click.option("--json", metavar="FILE", help="Write a JSON report about several models.")
@click.option("--junit", metavar="FILE", help="Write a JUnit XML report about several models.")
@limit_options
def command(
    models: tuple[str, ...],
    output: str | None,
    emit: Emit,
    parameters: str | None,
    weights: tuple[str, ...],
    **options: Any,
) -> None:
    """Compile MODEL (.mlir, .tflite, .onnx; - for standard input) to an IREE executable.

    A .tflite model is computed as by LiteRT's reference kernels (see --semantics).

    \b
    subquant compile examples/two_layer.mlir -o two_layer.vmfb
    subquant compile wake_word.tflite
    subquant compile model.mlir --target vulkan
    subquant compile model.mlir --emit mlir | less
    subquant compile model.onnx --explain --parameters model.irpa
    subquant compile model.mlir --weights model=model.gguf --parameters model.irpa

    Outputs of several models mirror the models' paths in a folder; a model that fails does not stop
    the others. Patterns may be quoted; @FILE lists a path or a pattern a line (@- is standard
    input).

    \b
    subquant compile models/*.mlir "models/**/*.tflite" -o out/ --jobs 4
    subquant compile @models.txt -o out/ --resume --json report.json --junit report.xml
    find models -name "*.onnx" -print0 | subquant compile @- -o out/
    subquant compile "models/**/*.onnx" -o out/ --cluster tcp://scheduler:8786
    """
    prepare_compiler()
    limits = pop_limits(options)
    many = {name: options.pop(name) for name in _BATCH_OPTIONS}
    if _is_batch(models, output, many):
        status = _compile_many(models, output, emit, parameters, weights, limits, many, options)
        click.get_current_context().exit(status)
    (model,) = models
    if output is None:
        stem = "model" if model == "-" else Path(model).stem
        output = f"{stem}.vmfb" if emit == "vmfb" else "-"
    if "-" not in (model, output) and os.path.realpath(model) == os.path.realpath(output):
        raise UsageError(f"the output '{output}' is the input; give another file with -o")
    if parameters is not None and os.path.realpath(parameters) in map(
        os.path.realpath, (model, output)
    ):
        raise UsageError(f"the parameters '{parameters}' are the input or the output too")
    weight_files = parse_parameters(weights, "--weights")
    if weight_files and parameters is None:
        raise UsageError("--weights needs --parameters FILE, the file to write them to")
    data = compile_model(
        model,
        make_compile_options(**options),
        emit=emit,
        output=output,
        parameters=parameters,
        weights=weight_files,
        limits=limits,
    )
    if parameters is not None:
        say(f"wrote {parameters} ({os.path.getsize(parameters):,} bytes)", err=True)
    write_output(output, data)
    if output != "-":
        say(f"wrote {output} ({len(data):,} bytes)", err=True)


_BATCH_OPTIONS = ("base", "jobs", "cluster", "resume", "json", "junit")
"""The options that only apply to several models."""


def _is_batch(models: tuple[str, ...], output: str | None, many: Mapping[str, object]) -> bool:
    """Return whether the outputs go to a folder."""
    if len(models) > 1 or any(many.values()):
        return True
    if output is not None and (output.endswith(("/", os.sep)) or os.path.isdir(output)):
        return True
    return is_list(models[0]) or is_pattern(models[0])


def _compile_many(
    patterns: tuple[str, ...],
    output: str | None,
    emit: Emit,
    parameters: str | None,
    weights: tuple[str, ...],
    limits: Limits,
    many: dict[str, Any],
    options: dict[str, Any],
) -> int:
    """Compile several models; return the exit status."""
    from .compile_many import ManyOptions, compile_models

    if output is None or output == "-":
        named = next(
            (f"--{name} needs" for name in _BATCH_OPTIONS if many[name]), "several models need"
        )
        raise UsageError(f"{named} a folder for the outputs; give it with -o FOLDER/")
    if output.endswith(f".{emit}") and not os.path.isdir(output):
        raise UsageError(
            f"{quoted(output)} is named like a file, and several models, and --json, --junit, "
            "--jobs, --cluster, --resume and --base, need a folder; give it with -o FOLDER/"
        )
    if weights:
        raise UsageError("--weights applies to one model; compile it alone")
    return compile_models(
        patterns,
        output,
        make_compile_options(**options),
        ManyOptions(**many),
        emit=emit,
        parameters=parameters,
        limits=limits,
    )


def prepare_compiler() -> None:
    """Start the child process that compiles, unless the cache may have its result."""
    if not os.environ.get("SUBQUANT_CACHE"):
        start_child()


def compile_model(
    model: str,
    options: CompileOptions,
    *,
    emit: Emit = "vmfb",
    output: str | None = None,
    source: bytes | Path | None = None,
    check: Callable[[Mapping[str, Signature]], object] | None = None,
    parameters: str | None = None,
    weights: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> bytes:
    """Compile a module with progress and remarks; a reproducer is written next to the output.

    Args:
        model: the path, or "-" for standard input.
        options: target, arithmetic and import options.
        emit, check, parameters, weights, limits: as for `compile_to_bytes`.
        output: the path of the output, or None.
        source: the model if it was read already.
    """
    from ..compiler.compilation import compile_to_bytes

    reproducer = reproducer_of(model)
    if output is not None and output != "-":
        reproducer = reproducer_of(output, Path(output).parent)
    with show_progress(f"compile {model}") as progress:
        try:
            return compile_to_bytes(
                source_of(model) if source is None else source,
                options,
                emit=emit,
                reproducer=reproducer,
                progress=progress,
                check=check,
                on_remark=lambda remark: say(str(remark.in_file(shown_name(model))), err=True),
                parameters=parameters,
                weights=weights,
                limits=limits,
            )
        except SubquantError as error:
            raise error.in_file(shown_name(model)) from None
