"""Client of child processes: a crash of C++ in a child is an exception in this process.

C++ that reads hostile input can end its process: by a signal, by ``abort``, by a lack of memory, by
an endless loop. `call` therefore runs a function of subquant in a child and returns its result. If
the child ends without an answer, `ChildEnded` has the exit status, the step and the last output.
`subquant.isolation.child` describes the protocol.

A child starts with its first call, and serves later calls too. It has a session of its own: Ctrl-C
reaches the parent only, which kills the child that it waits for. A forked process has none of its
parent's children, and starts its own. Each thread that calls has a child, up to `MAX_CHILDREN` and
`extra_children`; other threads wait. Another thread can cancel a call
(`subquant.isolation.cancellation`).

Output of a child (of C++, as a rule) goes to an unnamed file: it is the last output if the child
ends, and is shown on standard error after the call otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ..errors import EnvironmentProblem, error_from_json
from .cancellation import current_work
from .child import ReportStep
from .limits import Limits
from .supervisor import Malformed, receive, send

MAX_CHILDREN = 4
"""The greatest number of children, without `extra_children`."""

_MAX_OUTPUT_TAIL = 1 << 16
"""The bytes of a child's last output that an error quotes, 64 KiB."""


@dataclass(eq=False)
class ChildEnded(Exception):
    """The child ended without an answer.

    Args:
        status: its exit status, negative for a signal; None if it gave an invalid answer and was
            killed.
        step: the last step that it reported.
        details: the details of all steps that it reported.
        output_tail: the end of its output.
        exhausted: ``memory`` or ``stack`` if that is known to be the cause.
    """

    status: int | None
    step: str
    details: list[str]
    output_tail: str = ""
    exhausted: str = ""

    @property
    def cause(self) -> str:
        """The name of the signal, or the exit status."""
        if self.status is None:
            return "an answer that makes no sense"
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


# The current folder is no place for imports; all other entries of `sys.path` are.
_MAIN = (
    "import sys\n"
    "sys.path[:] = [entry for entry in sys.path if entry]\n"
    "sys.path += [entry for entry in sys.argv[1:] if entry not in sys.path]\n"
    "from subquant.isolation.child import serve\n"
    "serve({!r}, {!r})\n"
)


@contextlib.contextmanager
def starting(program: str) -> Iterator[None]:
    """Turn an OSError within the block into an EnvironmentProblem: a program cannot be started."""
    try:
        yield
    except OSError as error:  # no temporary folder, or no further process or file
        raise EnvironmentProblem(f"{program} cannot be started: {error.strerror}") from None


class _Child:
    """A child process, which serves one call at a time and imports `module` before the first."""

    def __init__(self, module: str) -> None:
        if not sys.executable:
            raise EnvironmentProblem(
                "MLIR runs in a child process, and sys.executable does not say which Python to "
                "start; set it to one that can import subquant"
            )
        import subprocess
        import tempfile

        with starting("a child process"), contextlib.ExitStack() as stack:
            # Nothing is buffered: a forked process would have a copy of the buffer.
            self._output = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            self._lifeline: IO[bytes] | None = None
            inherited = []
            with contextlib.ExitStack() as parent_copies:
                if sys.platform.startswith("linux"):
                    read_end, write_end = os.pipe()
                    inherited.append(read_end)
                    parent_copies.callback(os.close, read_end)
                    self._lifeline = stack.enter_context(os.fdopen(write_end, "wb", buffering=0))
                main = _MAIN.format(module, inherited[0] if inherited else None)
                self._process = subprocess.Popen(
                    [sys.executable, "-c", main, *filter(os.path.isabs, sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._output,
                    bufsize=0,
                    start_new_session=True,
                    pass_fds=inherited,
                )
            stack.pop_all()
        self.kill = self._process.kill
        _CHILDREN.add(self)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, request: dict[str, Any], blobs: Sequence[bytes], report: ReportStep, is_quiet: bool
    ) -> tuple[Any, list[bytes]]:
        """Send a request and return the value and the blobs; ChildEnded closes the child."""
        assert self._process.stdin is not None and self._process.stdout is not None
        ended = ChildEnded(None, "", [])
        try:
            with contextlib.suppress(BrokenPipeError):  # the next read notices the end
                send(self._process.stdin, request, blobs)
            while (frame := self._receive(ended)) is not None:
                if "step" not in frame[0]:
                    break
                if frame[0]["step"]:
                    ended.step = str(frame[0]["step"])
                    ended.details.append(str(frame[0].get("detail")))
                    report(ended.step)
                for output in frame[1]:
                    _show(output.decode(errors="replace"))
            if frame is not None:
                answer, results = frame
                error = None if "value" in answer else _error_of(answer, ended)
        except BaseException as interruption:
            # The answer is invalid; or after Ctrl-C the next one would be that of this request.
            self.close(kill=True)
            if isinstance(interruption, Malformed):
                raise ended from None
            raise
        if frame is None:
            self._process.wait()
            ended.output_tail = self._read_output()
            ended.status = self.close()
            raise ended
        # Move the output of the child, which waits for a request now, to standard error.
        text = self._read_output()
        if text:
            os.ftruncate(self._output.fileno(), 0)
            os.lseek(self._output.fileno(), 0, os.SEEK_SET)
            if not is_quiet:
                _show(text)
        if answer.get("last") or error is ended:
            self.close(kill=error is ended)
        if error is not None:
            raise error
        return answer["value"], results

    def _receive(self, ended: ChildEnded) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return the next frame; `ended` if the pipe has failed."""
        assert self._process.stdout is not None
        try:
            return receive(self._process.stdout)
        except OSError:
            raise ended from None

    def _read_output(self) -> str:
        handle = self._output.fileno()
        start = max(os.fstat(handle).st_size - _MAX_OUTPUT_TAIL, 0)
        # `pread` does not move the position, which the child shares.
        return os.pread(handle, _MAX_OUTPUT_TAIL, start).decode(errors="replace")

    def close(self, kill: bool = False) -> int | None:
        """End the process, and return its exit status."""
        if kill:
            self._process.kill()
        self.close_files()
        _CHILDREN.discard(self)
        return self._process.wait()

    def close_files(self) -> None:
        for file in (self._process.stdin, self._process.stdout, self._output, self._lifeline):
            if file is not None:
                file.close()


def _show(text: str) -> None:
    """Write output of a child to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(text)


def _error_of(answer: dict[str, Any], ended: ChildEnded) -> Exception:
    """Return the error of an answer, `ended` for an exhausted child; Malformed if it has none."""
    if "exhausted" in answer:
        ended.status, ended.exhausted = 0, str(answer["exhausted"])
        return ended
    if "bug" in answer:
        return RuntimeError(f"in a child process:\n{answer['bug']}")
    try:
        return error_from_json(answer["error"])
    except (KeyError, TypeError, ValueError):
        raise Malformed from None


class _Pool:
    """The children of this process, at most `size` at a time."""

    def __init__(self, size: int = MAX_CHILDREN) -> None:
        self.idle: list[_Child] = []
        self.size = size
        self.changed = threading.Condition()
        self._lent = 0

    def resize(self, difference: int) -> None:
        """Change the size, and close surplus idle children."""
        with self.changed:
            self.size += difference
            self.changed.notify_all()
        self.close_idle(keep=max(self.size, 0))

    def close_idle(self, keep: int = 0) -> None:
        """Close idle children until `keep` are left."""
        with self.changed:
            surplus = [self.idle.pop() for _ in range(len(self.idle) - keep)]
        for child in surplus:
            child.close(kill=True)

    @contextlib.contextmanager
    def child(self, module: str) -> Iterator[_Child]:
        """Lend a living child, which returns to the pool unless it has ended."""
        work = current_work()
        with work.on_cancel(lambda: self.resize(0)), self.changed:
            self.changed.wait_for(lambda: self._lent < self.size or work.is_cancelled)
            work.check()
            self._lent += 1
            child = self.idle.pop() if self.idle else None
        try:
            if child is not None and not child.is_alive:
                child.close()
                child = None
            child = child or _Child(module)
            try:
                with work.on_cancel(child.kill):
                    yield child
            except ChildEnded:
                work.check()
                raise
            finally:
                if child in _CHILDREN:
                    with self.changed:
                        self.idle.append(child)
        finally:
            with self.changed:
                self._lent -= 1
                self.changed.notify()


_CHILDREN: weakref.WeakSet[_Child] = weakref.WeakSet()
_POOL = _Pool()


def _start_anew() -> None:
    """Forget all children in a forked process: they are its parent's."""
    global _POOL
    for child in list(_CHILDREN):
        child.close_files()
        child._process.returncode = 0
    _CHILDREN.clear()
    _POOL = _Pool(_POOL.size)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def start_child() -> None:
    """Start an idle child if there is none, so that it imports MLIR before the first call."""
    with _POOL.changed:
        if not _POOL.idle:
            _POOL.idle.append(_Child("subquant.compiler.mlir_child"))


@contextlib.contextmanager
def extra_children(count: int) -> Iterator[None]:
    """Allow more children at a time within the block."""
    _POOL.resize(count)
    try:
        yield
    finally:
        _POOL.resize(-count)


@atexit.register
def close_idle_children() -> None:
    """Close the children that wait for a call; later calls start others.

    At the end of Python, a child that works for a daemon thread ends with this process.
    """
    _POOL.close_idle()


def call(
    function: str,
    arguments: Mapping[str, Any],
    blobs: Sequence[bytes] = (),
    *,
    steps: ReportStep | None = None,
    limits: Limits | None = None,
    is_quiet: bool = False,
) -> tuple[Any, list[bytes]]:
    """Run a function in a child, and return its JSON value and its blobs.

    Args:
        function: ``subquant.module:name``; it takes the arguments, the blobs and a `ReportStep`.
        steps: called when the function reports a step.
        limits: limits of the child; by default those of `Limits`.
        is_quiet: hide the output of the child.

    Raises:
        ChildEnded: the child crashed, or reached a limit.
        SubquantError: from the function.
        RuntimeError: any other exception of the function; the message has its traceback.
        Cancelled: the work of this thread was cancelled.
    """
    try:
        folder: str | None = os.getcwd()
    except OSError:  # it was removed
        folder = None
    request = {
        "function": function,
        "arguments": arguments,
        "memory": (limits or Limits()).memory_bytes,
        "folder": folder,
        "cores": current_work().cores,
    }
    with _POOL.child(function.partition(":")[0]) as child:
        return child.ask(request, blobs, steps or (lambda step: None), is_quiet)
