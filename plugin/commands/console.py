"""Input and output of commands: files, standard streams, errors and progress.

Results go to standard output, everything else to standard error; color and progress appear on a
terminal only.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ..core.files import read_input, read_stream, reproducer_name, write_atomically, writing
from ..errors import InputError, Remark, SubquantError, printable

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters of terminals, without line breaks and tabs."""


def open_standard_streams() -> None:
    """Open standard streams that are closed, and make each able to print any character.

    Otherwise the next opened file would become a standard stream. Reading or writing a stream that
    was closed then fails with an error; messages to it are dropped. Characters that the locale's
    encoding lacks are written as escapes.
    """
    for handle, (name, mode, access) in enumerate(
        (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    ):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, access)  # gets the lowest free descriptor, this one
            setattr(sys, name, os.fdopen(handle, mode, closefd=False))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if isinstance(stream.buffer, io.RawIOBase):
            # Unbuffered (PYTHONUNBUFFERED), Python drops the rest of a partial write to a full disk
            # and raises no error.
            stream = open(  # noqa: SIM115 - open until the interpreter exits
                stream.fileno(), "w", 1, stream.encoding, stream.errors, closefd=False
            )
            setattr(sys, name, stream)
        if stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def report_error(error: SubquantError) -> None:
    """Print an error as MLIR's tools do, in color on a terminal."""
    head, _, rest = str(error).partition("error: ")
    click.echo(
        click.style(head, bold=True)
        + click.style("error: ", fg="red", bold=True)
        + rest.replace("\nnote: ", "\n" + click.style("note: ", fg="cyan")),
        err=True,
    )


def say(text: str, *, err: bool = False) -> None:
    """Print text with names of files, tensors or functions; control characters are escaped."""
    click.echo(printable(text, keep="\n"), err=err)


def without_controls(text: str) -> str:
    """Return text, with control characters escaped if it goes to a terminal."""
    if not sys.stdout.isatty():
        return text
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


@contextlib.contextmanager
def show_progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner, the current step and the elapsed time, on a terminal only."""
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


@contextlib.contextmanager
def show_bar(title: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show a bar of a count, a state in rich's markup and the elapsed time, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda count, state: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(title), total=total, state="")
        yield lambda count, state: progress.update(task, completed=count, state=state, refresh=True)


@contextlib.contextmanager
def progress_on(command: str, model: str) -> Iterator[Callable[[str], None]]:
    """Show the progress of a command on a model; errors get the model's name."""
    with show_progress(f"{command} {model}") as progress:
        try:
            yield progress
        except SubquantError as error:
            raise error.in_file(shown_name(model)) from None


def remark_printer(model: str) -> Callable[[Remark], None]:
    """Return a function that prints a remark with the model's name."""
    return lambda remark: say(str(remark.in_file(shown_name(model))), err=True)


def shown_name(path: str) -> str:
    """Return the name of an input for errors."""
    return "<stdin>" if path == "-" else path


def reproducer_of(model: str, folder: Path | None = None) -> Path:
    """Return the path of the reproducer of a model."""
    stem = Path("stdin" if model == "-" else model).stem
    return (folder or Path()) / reproducer_name(stem)


def read_model(path: str) -> bytes:
    """Read a file, or standard input for "-"; InputError if it cannot be read."""
    if path != "-":
        return read_input(path)
    try:
        return read_stream(sys.stdin.buffer, "<stdin>")
    except OSError as error:
        raise InputError(f"cannot read '<stdin>': {error.strerror}") from None


def source_of(model: str) -> bytes | Path:
    """Return the path, or for "-" the bytes of standard input, which can be read only once."""
    return read_model(model) if model == "-" else Path(model)


def write_output(path: str, data: bytes) -> None:
    """Write a file atomically, or standard output for "-"; InputError if that fails."""
    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with writing(path):
        write_atomically(path, data)
