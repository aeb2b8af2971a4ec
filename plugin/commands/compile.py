"""``subquant compile``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ..compiler.options import CompileOptions, Emit
from ..errors import SubquantError, UsageError
from ..processes import Limits, prepare
from .console import reproducer_of, say, show_progress, shown_name, source_of, write_output
from .options import compile_options, limit_options, make_compile_options, pop_limits

if TYPE_CHECKING:
    from ..signature import Signature

__all__ = ["command", "compile_model"]


@click.command("compile")
@click.argument("model")
@click.option(
    "-o",
    "output",
    default=None,
    metavar="FILE",
    help="The output; - is standard output.  [default: MODEL.vmfb, or - for text]",
)
@click.option(
    "--emit",
    type=click.Choice(get_args(Emit)),
    default="vmfb",
    show_default=True,
    help="Stop before IREE with mlir or mlirbc.",
)
@click.option(
    "--parameters",
    default=None,
    metavar="FILE",
    help="Write constants of 1 KiB and more to an .irpa file, not into the executable, which then "
    "is run with --parameters model=FILE.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="SCOPE=FILE",
    help="Lay the parameters of a scope out for the kernels that read them: those of a file that "
    "'subquant import' makes, or takes. They go to the file of --parameters; may be repeated.",
)
@compile_options
@limit_options
def command(
    model: str,
    output: str | None,
    emit: Emit,
    parameters: str | None,
    weights: tuple[str, ...],
    **options: Any,
) -> None:
    """Compile MODEL (.mlir text or bytecode, - for standard input) to an IREE executable.

    A .tflite model is taken too, and computed as LiteRT's reference kernels do; and an .onnx model.

    \b
    subquant compile examples/two_layer.mlir -o two_layer.vmfb
    subquant compile wake_word.tflite
    subquant compile model.mlir --target vulkan
    subquant compile model.mlir --emit mlir | less
    subquant compile model.onnx --explain --parameters model.irpa
    subquant compile model.mlir --weights model=model.gguf --parameters model.irpa
    """
    from .calls import parse_parameters

    prepare()
    limits = pop_limits(options)
    if output is None:
        stem = "model" if model == "-" else Path(model).stem
        output = f"{stem}.vmfb" if emit == "vmfb" else "-"
    if "-" not in (model, output) and os.path.realpath(model) == os.path.realpath(output):
        raise UsageError(f"the output '{output}' is the input; give another file with -o")
    if parameters is not None and os.path.realpath(parameters) in map(
        os.path.realpath, (model, output)
    ):
        raise UsageError(f"the parameters '{parameters}' are the input or the output too")
    given = parse_parameters(weights, "--weights")
    if given and parameters is None:
        raise UsageError("--weights needs --parameters FILE, which they are written to")
    data = compile_model(
        model,
        make_compile_options(**options),
        emit=emit,
        output=output,
        parameters=parameters,
        weights=given,
        limits=limits,
    )
    if parameters is not None:
        say(f"wrote {parameters} ({os.path.getsize(parameters):,} bytes)", err=True)
    write_output(output, data)
    if output != "-":
        say(f"wrote {output} ({len(data):,} bytes)", err=True)


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
    """Compile a module and show progress and remarks; a reproducer goes beside the output.

    Args:
        model: the path, or "-" for standard input.
        options: what to compile for.
        emit: as of `compile_to_bytes`.
        output: where the result will be written, if it will.
        source: what was read of the model already.
        check, parameters, weights: as of `compile_to_bytes`.
        limits: what MLIR may take.
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
