"""What commands read, write and show: files or standard streams, errors, progress.

Results go to standard output, all else to standard error; colour and progress appear on a terminal
only.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ..core.files import read_input, read_stream, reproducer_name, write_whole
from ..errors import InputError, SubquantError, printable

__all__ = [
    "open_standard_streams",
    "read_model",
    "report_error",
    "reproducer_of",
    "say",
    "show_progress",
    "shown_name",
    "source_of",
    "write_output",
]


def open_standard_streams() -> None:
    """Give this process the standard streams that it was started without, and text that fits them.

    Otherwise the next file that is opened would be one of them. Reading the input, and writing the
    output, then fails as on a file that cannot be; messages go nowhere. Characters that the
    locale's encoding lacks are written as escapes.
    """
    for handle, (name, mode, access) in enumerate(
        (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    ):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, access)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(handle, mode, closefd=False))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if isinstance(stream.buffer, io.RawIOBase):
            # Without buffers (PYTHONUNBUFFERED) Python drops what a full disk does not take at
            # once, and raises no error.
            stream = open(  # noqa: SIM115 - it is open until Python ends
                stream.fileno(), "w", 1, stream.encoding, stream.errors, closefd=False
            )
            setattr(sys, name, stream)
        if stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def report_error(error: SubquantError) -> None:
    """Print an error as MLIR's tools do, in colour on a terminal."""
    head, _, rest = str(error).partition("error: ")
    click.echo(
        click.style(head, bold=True)
        + click.style("error: ", fg="red", bold=True)
        + rest.replace("\nnote: ", "\n" + click.style("note: ", fg="cyan")),
        err=True,
    )


def say(text: str, *, err: bool = False) -> None:
    """Print a line or more in which names of files, tensors or functions may be."""
    click.echo(printable(text, keep="\n"), err=err)


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner, the current step and the time on standard error, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    described = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), described, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(title))
        yield lambda step: progress.update(task, description=printable(f"{title}: {step}"))


def shown_name(path: str) -> str:
    """The name of an input in errors."""
    return "<stdin>" if path == "-" else path


def reproducer_of(model: str, folder: Path | None = None) -> Path:
    """The file that replays what went wrong with a model."""
    stem = Path("stdin" if model == "-" else model).stem
    return (folder or Path()) / reproducer_name(stem)


def read_model(path: str) -> bytes:
    """Read a file, or standard input for "-".

    Raises:
        InputError: it cannot be read.
    """
    if path != "-":
        return read_input(path)
    try:
        return read_stream(sys.stdin.buffer, "<stdin>")
    except OSError as error:
        raise InputError(f"cannot read '<stdin>': {error.strerror}") from None


def source_of(model: str) -> bytes | Path:
    """The bytes of standard input for "-", which can be read once; else the path."""
    return read_model(model) if model == "-" else Path(model)


def write_output(path: str, data: bytes) -> None:
    """Write a file whole, or standard output for "-".

    Raises:
        InputError: the file cannot be written.
    """
    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        write_whole(path, data)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None
