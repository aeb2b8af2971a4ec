"""Running a case, in this process or as a command that is killed, and judging how it ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from .case import Case


def write_case(case: Case, folder: Path) -> None:
    """Write the files of an input, and its command."""
    (folder / "command").write_text("subquant " + shlex.join(case.arguments), errors="replace")
    for name, data in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def run_case(case: Case, folder: Path) -> tuple[int, str | None]:
    """Call the command line in this process; return the status and the failure."""
    from subquant.cli import main

    temporary = Path(tempfile.gettempdir())
    before = set(temporary.iterdir())
    printed = os.open(folder / "printed", os.O_RDWR | os.O_CREAT)
    retained, home = [os.dup(stream) for stream in (1, 2)], Path.cwd()
    failure, status = None, 0
    os.chdir(folder)
    try:
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        if case.call is not None:
            status, called = case.call()
            failure = called or None
        else:
            main(case.arguments, prog_name="subquant")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        status, failure = 1, "raised: " + traceback.format_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for stream_number, copy in enumerate(retained, 1):
            os.dup2(copy, stream_number)
            os.close(copy)
        os.close(printed)
        os.chdir(home)
    text = (folder / "printed").read_bytes()
    left = {path for path in set(temporary.iterdir()) - before if path.exists()}
    if failure is None and case.call is None:
        failure = _find_failure(case, folder, status, text, left)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return status, failure


def _find_failure(
    case: Case, folder: Path, status: int, printed: bytes, left: set[Path]
) -> str | None:
    if b"Traceback (most recent call last)" in printed:
        return "a traceback"
    if status not in (0, 1, 2):
        return f"exit status {status}"
    if b"\x1b[2J" in printed:
        return "an escape sequence of the input"
    if left:
        return f"left behind: {', '.join(path.name for path in left)}"
    if case.output is not None and (folder / case.output).exists() != (status == 0):
        return f"exit status {status}, and {case.output} is {'' if status else 'not '}there"
    if status and b"error" not in printed.lower():
        return f"exit status {status} without an error"
    return None


def run_killed(case: Case, folder: Path) -> tuple[int, str | None]:
    """Start the command, send it the signal, check its remains; then run it again."""
    assert case.killed is not None
    number, seconds = case.killed
    temporary, token = Path(tempfile.gettempdir()), f"FUZZ_TOKEN={folder.parent.name}-{time.time()}"
    before = set(temporary.iterdir())
    cache = {"SUBQUANT_CACHE": str(folder.parent / "cache")}
    environment = {**os.environ, **cache, "FUZZ_TOKEN": token.partition("=")[2]}
    command = [sys.executable, "-m", "subquant", *case.arguments]
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=printed, stderr=printed)  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        if process.poll() is None:
            process.send_signal(number)
        status = process.wait(60)
    until = time.monotonic() + 10
    while _processes_with(token) and time.monotonic() < until:
        time.sleep(0.02)
    running = _processes_with(token)
    for number in running:
        os.kill(number, signal.SIGKILL)
    if running:
        return status, f"{len(running)} processes are left"
    left = set(temporary.iterdir()) - before
    if left:
        return status, f"left behind: {', '.join(path.name for path in left)}"
    printed_text = (folder / "printed").read_bytes()
    if b"Traceback (most recent call last)" in printed_text and b"subquant" in printed_text:
        return status, "a traceback"  # and not of Python that is only starting
    names = {path.name for path in folder.iterdir()} - {"command", "printed", *case.files}
    whole = folder / case.output if case.output else folder
    if names - {case.output}:
        return status, f"left behind: {', '.join(sorted(names))}"
    created = whole.read_bytes() if whole.exists() else None
    if status == 0 and created is None:
        return status, "exit status 0, and there is no output"
    environment = {**os.environ, **cache}
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, timeout=120
    )
    if completed.returncode != 0:
        return status, f"afterwards: {completed.stderr.decode(errors='replace')}"
    if created is not None and created != whole.read_bytes():
        return status, "the output is not whole"
    result = subprocess.run([sys.executable, "-m", "subquant", "run", case.output or "", "--input",
                             "2x8xf32=0", "--function", "main"], cwd=folder, capture_output=True,
                            check=False, timeout=120)  # fmt: skip
    if result.returncode != 0:
        return status, f"the executable does not run: {result.stderr.decode(errors='replace')}"
    return status, None


def _processes_with(token: str) -> list[int]:
    """The processes that have the token in their environment."""
    actual = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if token.encode() in path.read_bytes().split(b"\0"):
                actual.append(int(path.parent.name))
    return actual
