"""Supervisor: runs a command in a temporary folder, and ends both when the parent ends.

A process that is killed cannot clean up. A command such as ``iree-compile`` is therefore started by
this program, a process between the two. It reads a request, creates the folder, writes the input
files, and waits for the command, or for the end of its own standard input, which is the end of the
parent. Then it kills the command and all that the command started, and removes the folder, which
is ``TMPDIR`` of the command too. If the supervisor was killed as well, the next one removes the
folder: a lock that the supervisor and its descendants hold shows whether it is in use.

`subquant.isolation.command.run_supervised` is the client. The program runs by its path and imports
little, and nothing of subquant, so that it starts within milliseconds. It also has the frames of
`subquant.isolation.child`: the size of a JSON text and the number of blobs, then the size of each
blob, all as 8 bytes, little-endian; then the JSON and the blobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

_MAX_JSON_BYTES = 1 << 31
"""The greatest size of the JSON of a frame in bytes, 2 GiB, and number of its blobs."""
_CHUNK_BYTES = 1 << 20
"""The bytes that are read at a time, 1 MiB."""
_FOLDER = "subquant_"
"""The name of a temporary folder, without its 16 hexadecimal digits."""


class Malformed(Exception):
    """The data is no frame, or the frame no answer."""


def send(stream: IO[bytes], value: Any, blobs: Sequence[bytes] = ()) -> None:
    """Write a frame to an unbuffered stream."""
    text = json.dumps(value).encode()
    sizes = (len(text), len(blobs), *(len(blob) for blob in blobs))
    head = b"".join(size.to_bytes(8, "little") for size in sizes)
    for data in (head + text, *blobs):
        rest = memoryview(data)
        while rest:
            rest = rest[stream.write(rest) :]


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Read a frame; None at the end of the stream.

    Raises:
        Malformed: the data is no frame.
    """
    first = stream.read(1)
    if not first:
        return None
    size, count = _integers(first + _read_exactly(stream, 15))
    if size > _MAX_JSON_BYTES or count > _MAX_JSON_BYTES:
        raise Malformed
    blob_sizes = _integers(_read_exactly(stream, 8 * count))
    text = _read_exactly(stream, size)
    blobs = [_read_exactly(stream, blob_size) for blob_size in blob_sizes]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
    if not isinstance(value, dict):
        raise Malformed
    return value, blobs


def _integers(data: bytes) -> list[int]:
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read `size` bytes in chunks, so that a wrong size reserves no memory."""
    chunks = []
    while size > 0:
        chunk = stream.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise Malformed
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


# -- folders --------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked_folder(parent: str) -> Iterator[str]:
    """Create a temporary folder for a block, after a removal of folders that nobody has locked.

    Raises:
        OSError: it cannot be created.
    """
    _remove_unlocked(parent)
    handle = None
    while handle is None:  # until it is locked before another process removes it
        folder = os.path.join(parent, f"{_FOLDER}{os.urandom(8).hex()}")
        os.mkdir(folder, 0o700)
        handle = _lock(folder, is_new=True)
    os.set_inheritable(handle, True)  # processes that this one starts hold the lock too
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(handle)


def _lock(folder: str, *, is_new: bool = False) -> int | None:
    """Lock a folder, and return its descriptor; None if another process has locked or removed it.

    On a file system without locks, a new folder counts as locked, and an old one as in use.
    """
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
    except BlockingIOError:
        is_locked = False
    except OSError:  # no locks
        is_locked = is_new
    with contextlib.suppress(FileNotFoundError):
        if is_locked and os.path.samestat(os.fstat(handle), os.lstat(folder)):
            return handle
    os.close(handle)
    return None


def _remove_unlocked(parent: str) -> None:
    """Remove folders of this user that no process has locked."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if not re.fullmatch(f"{_FOLDER}[0-9a-f]{{16}}", entry.name):
                continue
            with contextlib.suppress(OSError):
                is_own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                handle = _lock(entry.path) if is_own else None
                if handle is not None:
                    _remove(entry.path)
                    os.close(handle)


def _remove(folder: str) -> None:
    for path, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            entry = os.path.join(path, name)
            with contextlib.suppress(OSError):
                if name in folders and not os.path.islink(entry):
                    os.rmdir(entry)
                else:
                    os.unlink(entry)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


# -- the program ----------------------------------------------------------------------------------


def _main() -> None:
    requests = os.fdopen(0, "rb", buffering=0, closefd=False)
    answers = os.fdopen(1, "wb", buffering=0, closefd=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    with contextlib.suppress(Malformed, BrokenPipeError):
        frame = receive(requests)
        if frame is not None:
            send(answers, *_answer(*frame))


def _answer(request: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Run the command; the blobs of the answer are its standard error and its output file."""
    try:
        with locked_folder(request["folder"]) as folder:
            for name, blob in zip(request["files"], blobs, strict=True):
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(blob)
            command = [
                os.path.join(folder, word["file"]) if isinstance(word, dict) else word
                for word in request["command"]
            ]
            variables = {**os.environ, **request["variables"], "TMPDIR": folder}
            errors = os.path.join(folder, ".stderr")
            status = _run(command, variables, errors)
            results = [errors]
            if request["output"] and os.path.isfile(os.path.join(folder, request["output"])):
                results.append(os.path.join(folder, request["output"]))
            blobs = []
            for path in results:
                with open(path, "rb") as file:
                    blobs.append(file.read())
            return {"status": status}, blobs
    except OSError as error:
        return {"error": f"{error.strerror}: '{error.filename}'"}, []


def _run(command: list[str], variables: dict[str, str], errors: str) -> int:
    """Run a command, and return its exit status; SystemExit if the parent ends."""
    # SIGCHLD writes a byte to a pipe, so that `select` waits for the command and the parent.
    child_ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    process = os.posix_spawn(
        command[0],
        command,
        variables,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT, 0o600),
        ],
        setpgroup=0,
        setsigdef=[signal.SIGPIPE],
    )
    try:
        while True:
            ready, _, _ = select.select([0, child_ended], [], [])
            if 0 in ready:
                sys.exit(1)
            os.read(child_ended, _CHUNK_BYTES)
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
    finally:  # also after a signal to this process
        with contextlib.suppress(OSError):
            os.killpg(process, signal.SIGKILL)


if __name__ == "__main__":
    _main()
