"""The command line: what is common to all commands of ``subquant``.

Exit status: 0; 1 for an error in the input (located, no traceback); 2 for a wrong call. Anything
else that is raised is a bug and keeps its traceback. A command is imported when it is called.
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

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "compile": "Compile MODEL (.mlir text or bytecode, - for standard input) to an IREE "
    "executable.",
    "run": "Run a function of EXECUTABLE (.vmfb) on arrays.",
    "exec": "Compile MODEL and run it at once.",
    "opt": "Run passes on MODEL (- for standard input) and print the result, like mlir-opt.",
    "inspect": "Show what is quantized in FILE, how, and how big it is.",
    "import": "Import weights from SOURCE as IREE parameters, with quantized tensors as planes.",
    "quantize": "Quantize the float weights of SOURCE and write them as IREE parameters.",
    "generate": "Write what follows a text, with a language model (.gguf).",
    "perplexity": "Measure how surprised a language model (.gguf) is by a text.",
    "compare": "Compare MODEL (.tflite, .onnx) with a reference, layer by layer.",
    "bench": "Time a function of MODEL, or of an executable (.vmfb), with resident arrays.",
    "cache": "Show what the cache of compilations holds, and remove from it.",
    "conformance": "Run programs with known results on devices; fail if one does worse than "
    "expected.",
    "report": "Show reports of runs (--json), put those of parts together, compare them.",
}
"""The first line of each command's help; `commands` has a file for each."""

_OUTPUT_FAILED = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT, errno.EPIPE, errno.EBADF)


class _Group(click.Group):
    """The commands, imported when called; a `SubquantError` is a message and an exit status."""

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
            near = near_names(args[0], COMMANDS)
            meant = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(error.message + meant, ctx) from None

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
                sys.stdout.flush()  # what fails at the end of Python is nobody's error
        except SubquantError as error:
            report_error(error)
            ctx.exit(error.exit_status)
        except OSError as error:
            if _is_nowhere():
                report_error(InputError("the current folder is not there any more; go to another"))
                ctx.exit(1)
            if error.errno not in _OUTPUT_FAILED:
                raise
            # Nothing more can be written there, the end of the process included.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                report_error(InputError(f"cannot write the output: {error.strerror}"))
            ctx.exit(1)


def _is_nowhere() -> bool:
    """Whether the current folder was removed, so that relative paths lead nowhere."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _versions(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
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
    callback=_versions,
    expose_value=False,
    is_eager=True,
    help="Show the versions of subquant, the bindings and IREE.",
)
def main() -> None:
    """Compile quantized MLIR programs (sub-channel types too) with IREE, and run them.

    \b
    subquant exec model.mlir --input @x.npy        compile and run at once
    subquant compile model.mlir -o model.vmfb      compile
    subquant run model.vmfb --input 4xf32=1,2,3,4  run
    subquant inspect model.mlir                    what is quantized, and how
    subquant import model.gguf                     weights as IREE parameters
    subquant generate --model model.gguf --prompt "The capital of France is"
    """
