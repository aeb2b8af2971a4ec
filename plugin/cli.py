"""Entry point of the command line ``subquant``: lists its commands and reports errors.

Exit status: 0 for success, 1 for an error in the input (located, no traceback), 2 for a usage
error. Any other exception is a bug and keeps its traceback. Commands are imported when called.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from .commands.console import open_standard_streams, report_error
from .errors import InputError, SubquantError, near_names

COMMANDS = {
    "compile": "Compile MODEL (.mlir, .tflite, .onnx, .pt2; - for standard input) for IREE.",
    "run": "Run a function of EXECUTABLE (.vmfb; - for standard input) on arrays.",
    "exec": "Compile MODEL and run it.",
    "opt": "Run passes on MODEL (- for standard input) and print the result, like mlir-opt.",
    "inspect": "List the quantized tensors of FILE with their types, scales and sizes.",
    "import": "Convert weights of SOURCE to IREE parameters (.irpa), quantized tensors included.",
    "quantize": "Quantize the float weights of SOURCE (weights, a language model, or a network).",
    "generate": "Generate text with a language model (.gguf, or a folder).",
    "imatrix": "Write an importance matrix of a language model, as llama.cpp's llama-imatrix does.",
    "perplexity": "Compute the perplexity of a text under a language model.",
    "compare": "Compare MODEL (.tflite, .onnx) with a reference, or weights with their ORIGINAL.",
    "bench": "Time a function of MODEL or of an executable (.vmfb), without copies of arrays.",
    "cache": "List, check and remove entries of the compilation cache.",
    "conformance": "Run programs with known results on devices; fail on regressions.",
    "report": "Show, merge and compare JSON reports of compile and conformance.",
}
"""The first sentence of each command's help; `commands` has a module for each."""

_OUTPUT_FAILED = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT, errno.EPIPE, errno.EBADF)


class _Group(click.Group):
    """Command group that imports commands lazily and reports a `SubquantError` as a message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        file = "import_" if cmd_name == "import" else cmd_name  # a keyword
        command: click.Command = importlib.import_module(f".commands.{file}", __package__).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            similar = near_names(args[0], COMMANDS)
            hint = f" Did you mean '{similar[0]}'?" if similar else ""
            raise click.UsageError(error.message + hint, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_standard_streams()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # at the interpreter's exit an error could not be reported
        except SubquantError as error:
            report_error(error)
            ctx.exit(error.exit_status)
        except OSError as error:
            if _is_cwd_removed():
                report_error(InputError("the current folder was removed; change to another"))
                ctx.exit(1)
            if error.errno not in _OUTPUT_FAILED:
                raise
            # Later writes, and the flush at the interpreter's exit, must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                report_error(InputError(f"cannot write the output: {error.strerror}"))
            ctx.exit(1)


def _is_cwd_removed() -> bool:
    """Return whether the current folder was removed, so that no relative path resolves."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _print_versions(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    from . import __version__
    from .core.versions import installed_versions

    click.echo(f"subquant {__version__}")
    for name, version in installed_versions().items():
        click.echo(f"{name} {version or 'not installed'}")
    ctx.exit()


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    callback=_print_versions,
    expose_value=False,
    is_eager=True,
    help="Show the versions of subquant, the bindings and IREE.",
)
def main() -> None:
    """Compile quantized models (MLIR, TensorFlow Lite, ONNX, GGUF) with IREE, and run them.

    \b
    subquant exec model.mlir --input @x.npy        compile and run
    subquant compile model.mlir -o model.vmfb      compile
    subquant run model.vmfb --input 4xf32=1,2,3,4  run
    subquant inspect model.mlir                    list quantized tensors
    subquant import model.gguf                     convert weights to IREE parameters
    subquant generate --model model.gguf --prompt "The capital of France is"
    """
