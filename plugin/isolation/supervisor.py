"""Run a command in a temporary folder, and let neither outlive the process that asked for it.

A process that is killed cannot clean up after itself. So a command like ``iree-compile`` is started
by this program, a process of its own between the two: it reads a request, makes the folder, writes
the input files into it, and waits for the command, or for the end of its own standard input, which
is the end of the parent. Then it ends the command and all that the command has started, and removes
the folder, in which the command's own temporary files are too. Where it was killed as well, the
next one removes the folder: each is locked, by who made it and what that started, as long as one of
them is there.

`subquant.isolation.client.run_guarded` is the parent's side. The program is run by its path, so
that it starts within milliseconds: it imports little, and nothing of subquant. The form of requests
and answers is here for both: the number of bytes of a JSON text and the number of blobs, the size
of each blob, all as 8 bytes, then the JSON and the blobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

__all__ = ["Malformed", "held_folder", "receive", "send"]

_LARGEST_JSON = 1 << 31
_CHUNK = 1 << 20
_MOMENT = 0.01
_NAME, _DIGITS, _LOCK = "subquant-", 16, ".held"
"""Of a folder, how many hexadecimal digits follow, and what is locked in it."""


class Malformed(Exception):
    """What was read is no frame, or no answer."""


def send(stream: IO[bytes], value: Any, blobs: Sequence[bytes] = ()) -> None:
    """Write a frame to a stream without a buffer."""
    text = json.dumps(value).encode()
    sizes = (len(text), len(blobs), *(len(blob) for blob in blobs))
    head = b"".join(size.to_bytes(8, "little") for size in sizes)
    for part in (head + text, *blobs):
        rest = memoryview(part)
        while rest:
            rest = rest[stream.write(rest) :]


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Read a frame; None at the end of the stream.

    Raises:
        Malformed: anything else than a frame.
    """
    first = stream.read(1)
    if not first:
        return None
    head = first + _exactly(stream, 15)
    size, count = (int.from_bytes(head[start : start + 8], "little") for start in (0, 8))
    if size > _LARGEST_JSON or count > _LARGEST_JSON:
        raise Malformed
    sizes = _exactly(stream, 8 * count)
    text = _exactly(stream, size)
    blobs = [
        _exactly(stream, int.from_bytes(sizes[start : start + 8], "little"))
        for start in range(0, 8 * count, 8)
    ]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return value, blobs


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read so many bytes, in pieces: a size that is wrong reserves no memory."""
    parts = []
    while size > 0:
        part = stream.read(min(size, _CHUNK))
        if not part:
            raise Malformed
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# -- folders --------------------------------------------------------------------------------------


@contextlib.contextmanager
def held_folder(parent: str) -> Iterator[str]:
    """A temporary folder for a block; those of processes that are no more are removed before.

    Raises:
        OSError: it cannot be made.
    """
    _remove_abandoned(parent)
    handle = None
    while handle is None:  # until it is locked before another one finds it, and removes it
        folder = os.path.join(parent, f"{_NAME}{os.urandom(_DIGITS // 2).hex()}")
        os.mkdir(folder, 0o700)
        try:
            handle = _locked(folder, make=True)
        except OSError:
            _remove(folder)
            raise
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(handle)


def _locked(folder: str, *, make: bool = False) -> int | None:
    """Lock a folder, and return what holds it; None if it is another's, or is no more.

    What a process starts inherits it, and holds it too.
    """
    import fcntl

    path = os.path.join(folder, _LOCK)
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if make else 0), 0o600)
    except FileNotFoundError:
        return None
    is_locked = make  # also where a file system has no locks
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if make else fcntl.LOCK_NB))
        is_locked = True
    with contextlib.suppress(FileNotFoundError):
        if is_locked and os.path.samestat(os.fstat(handle), os.lstat(path)):
            os.set_inheritable(handle, True)
            return handle
    os.close(handle)
    return None


def _remove_abandoned(parent: str) -> None:
    """Remove folders of this user that nobody holds."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            digits = entry.name.removeprefix(_NAME)
            is_one = entry.name.startswith(_NAME) and len(digits) == _DIGITS
            if not is_one or not all(digit in "0123456789abcdef" for digit in digits):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if not entry.is_dir(follow_symlinks=False) or status.st_uid != os.geteuid():
                    continue
                handle = _locked(entry.path)
                if handle is not None:
                    _remove(entry.path)
                    os.close(handle)


# -- the program ----------------------------------------------------------------------------------


def _main() -> None:
    requests = os.fdopen(0, "rb", buffering=0, closefd=False)
    answers = os.fdopen(1, "wb", buffering=0, closefd=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    with contextlib.suppress(Malformed, BrokenPipeError):
        frame = receive(requests)
        if frame is not None:
            send(answers, *_run(*frame))


def _run(request: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Do what is asked for; the blobs of the answer are its output, errors, and output file."""
    try:
        with held_folder(request["folder"]) as folder:
            command = [
                os.path.join(folder, word["file"]) if isinstance(word, dict) else word
                for word in request["command"]
            ]
            for name, blob in zip(request["files"], blobs, strict=True):
                _write(os.path.join(folder, name), blob)
            return _wait(command, folder, request)
    except OSError as error:
        return {"error": f"{error.strerror}: '{error.filename}'"}, []


def _wait(
    command: list[str], folder: str, request: dict[str, Any]
) -> tuple[dict[str, Any], list[bytes]]:
    output, errors = os.path.join(folder, ".stdout"), os.path.join(folder, ".stderr")
    stdin = os.path.join(folder, request["stdin"]) if request["stdin"] else os.devnull
    write = os.O_WRONLY | os.O_CREAT
    # Held by the command and all that it starts: it ends with the last of them.
    life, held = os.pipe()
    os.set_inheritable(held, True)
    process = os.posix_spawn(
        command[0],
        command,
        {**os.environ, **request["variables"], "TMPDIR": folder},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, write, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, errors, write, 0o600),
        ],
        setpgroup=0,
        setsigdef=[signal.SIGPIPE],
    )
    os.close(held)
    try:
        status, in_time = _status(process, life, request["seconds"])
    finally:  # also when this process is told to end
        with contextlib.suppress(OSError):
            os.killpg(process, signal.SIGKILL)
    if status is None:
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    found = [_read(output), _read(errors)]
    made = os.path.join(folder, request["output"]) if request["output"] else ""
    if os.path.isfile(made):
        found.append(_read(made))
    return {"status": status, "in_time": in_time}, found


def _status(process: int, life: int, seconds: float | None) -> tuple[int | None, bool]:
    """Wait for the process; return its exit status, None if it runs yet and its time is over.

    Raises:
        SystemExit: the parent has ended.
    """
    end = None if seconds is None else time.monotonic() + seconds
    watched = [0, life]
    while True:
        rest = None if end is None else max(end - time.monotonic(), 0)
        if life not in watched:  # all is closed, so the process ends, or works on without it
            rest = _MOMENT if rest is None else min(rest, _MOMENT)
        ready, _, _ = select.select(watched, [], [], rest)
        if 0 in ready:
            sys.exit(1)  # nobody waits for an answer
        if life in ready:
            watched = [0]
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), True
        if end is not None and time.monotonic() >= end:
            return None, False


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _remove(folder: str) -> None:
    """Remove a folder, what says whose it is last."""
    lock = os.path.join(folder, _LOCK)
    for path, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            inside = os.path.join(path, name)
            with contextlib.suppress(OSError):
                if name in folders and not os.path.islink(inside):
                    os.rmdir(inside)
                elif inside != lock:
                    os.unlink(inside)
    with contextlib.suppress(OSError):
        os.unlink(lock)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


if __name__ == "__main__":
    _main()
