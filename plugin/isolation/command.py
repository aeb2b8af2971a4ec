"""Commands that leave nothing behind: a supervisor ends them, however this process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EnvironmentProblem
from . import supervisor
from .cancellation import current_work
from .client import starting
from .supervisor import Malformed, receive, send

if TYPE_CHECKING:
    import subprocess


@dataclass(frozen=True)
class CommandResult:
    """Exit status of a command (negative for a signal), its standard error and output file."""

    status: int
    stderr: bytes
    output: bytes | None


_SUPERVISORS: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def _forget_all() -> None:
    """Close the pipes of the parent's supervisors in a forked process: they end with the parent."""
    for process in list(_SUPERVISORS):
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.returncode = 0
    _SUPERVISORS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def run_supervised(
    command: Sequence[str | dict[str, str]],
    files: Mapping[str, bytes],
    *,
    output: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a command; its children end and its files are removed, however this process ends.

    Args:
        command: the path of the program and its arguments; ``{"file": name}`` stands for the path
            of a file in the temporary folder.
        files: contents of the input files by name.
        output: the name of the output file.
        variables: environment variables that replace those of this process.

    Raises:
        EnvironmentProblem: the command cannot be started, or its files cannot be written.
        Cancelled: the work of this thread was cancelled.
    """
    import subprocess
    import tempfile

    work = current_work()
    work.check()
    title = os.path.basename(str(command[0]))
    with starting(f"'{title}'"):
        request = {
            "command": list(command),
            "files": list(files),
            "folder": tempfile.gettempdir(),
            "output": output,
            "variables": dict(variables or {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, title],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    assert process.stdin is not None and process.stdout is not None
    _SUPERVISORS.add(process)
    try:
        with work.on_cancel(process.terminate):
            with contextlib.suppress(BrokenPipeError):
                send(process.stdin, request, list(files.values()))
            frame = receive(process.stdout)
    except Malformed:
        frame = None
    finally:
        process.stdin.close()  # the supervisor ends at the end of its input
        process.stdout.close()
        process.wait()
        _SUPERVISORS.discard(process)
    work.check()
    if frame is None:
        status = process.returncode
        raise EnvironmentProblem(f"the supervisor of '{title}' was ended (status {status})")
    fields, blobs = frame
    if "error" in fields:
        raise EnvironmentProblem(f"'{title}' cannot be run: {fields['error']}")
    return CommandResult(fields["status"], blobs[0], blobs[1] if len(blobs) > 1 else None)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block like Ctrl-C, with its children and its files.

    A signal that is ignored (by ``nohup``) or has another handler keeps it.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    replaced = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, end)
                replaced.append(number)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)
