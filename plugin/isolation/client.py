"""Python in child processes that serve this one: what crashes there is an exception here.

C++ that reads hostile input ends its process: by a signal, by ``abort``, by all of the machine's
memory, by a loop. So it runs in a child, which is started when it is first needed, and kept for
further calls. `call` runs one function there and returns its result; if the child ended instead,
`ChildEnded` says how, at which step, and with which last words. The next call has another child.

**Protocol.** The child's standard input and output carry frames (`subquant.isolation.supervisor`):
  JSON and
blobs. What is read is data (no pickle): the child has run on hostile input, and is not trusted.

* request: ``{"function": "subquant.module:name", "arguments": {...}, "memory": bytes,
  "folder": the current one, "cores": those of the work}``, and blobs. The function takes the
  arguments, the blobs, and a function to report its steps with; it returns a JSON value and blobs.
* answer: ``{"begun": true}`` when the request has come, any number of
  ``{"step": text, "detail": text}``, each sent when a step begins, and then one of
  ``{"value": ...}`` with blobs, and ``"last": true`` if the child has grown too large to keep;
  ``{"error": ...}``, one of `subquant.errors`, as `error_to_json` writes it;
  ``{"exhausted": "memory" or "stack"}``, from Python's own errors; and ``{"bug": traceback}``.

What else the child writes, by C++ as a rule, goes to a file without a name: the last words if it
ends, and otherwise shown on standard error after the call.

**Limits.** The child limits its own data (``RLIMIT_DATA``: heaps, stacks and private mappings, but
not files that are mapped) while it serves a call. `limit_time` ends it by ``SIGPROF`` or
``SIGALRM``, whose default action no loop in C++ can delay.

**Life.** A child ends with its parent, however that ends: an idle one reads the end of the pipe. A
busy one is ended by ``SIGIO``, which Linux sends at the end of a pipe (``O_ASYNC``), and which,
unlike ``PR_SET_PDEATHSIG``, does not come when only the thread that started the child ends. That is
a pipe of its own, which nobody writes to: a writer is not done with its signal when its reader has
what was written. Elsewhere a child ends when its call does. It has a session of its own: Ctrl-C
reaches the parent, which ends the child that it waits for. A process that is forked from the parent
has no children, and starts its own.

**Threads.** Calls at the same time have a child each, up to `MOST` and the `places` that somebody
adds; further ones wait. What a thread does as a piece of `Work` can be cancelled by another thread:
its children and its commands end, and `Cancelled` is raised where it waits for them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from .. import errors
from ..core.option_fields import option
from ..errors import EnvironmentProblem, Place, SubquantError, UsageError
from . import supervisor
from .supervisor import Malformed, receive, send

if TYPE_CHECKING:
    import subprocess  # a child does without: it imports this module too

__all__ = [
    "MOST",
    "Cancelled",
    "ChildEnded",
    "Finished",
    "Limits",
    "Steps",
    "Work",
    "available_cores",
    "call",
    "check_cancelled",
    "close_idle",
    "cores_of_work",
    "end_after",
    "ending_cleanly",
    "error_from_json",
    "error_to_json",
    "limit_time",
    "machine_memory",
    "places",
    "prepare",
    "run_guarded",
    "serve",
    "time_limit",
]

MOST = 4
"""The greatest number of children, without the `places` that are added."""

_LAST_WORDS = 1 << 16

Steps = Callable[..., None]
"""Called with a line about each step, and with what else is known of it."""


@dataclass(frozen=True)
class Limits:
    """How much a child may take.

    Args:
        parse_seconds: of CPU time, of MLIR's parser and bytecode reader on one input, and of its
            printer.
        pass_seconds: of CPU time, of each pass; None for no limit.
        memory_gib: of the child's data; by default three quarters of the machine's memory.

    Raises:
        UsageError: a limit is no positive number.
    """

    parse_seconds: float = option(
        20.0, "How long MLIR may take to read the module, in seconds of CPU time.", "SECONDS"
    )
    pass_seconds: float | None = option(
        None,
        "How long each pass may take, in seconds of CPU time.  [default: no limit]",
        "SECONDS",
    )
    memory_gib: float | None = option(
        None,
        "How much memory MLIR may take, in GiB.  [default: three quarters of the machine's]",
        "GIB",
    )

    def __post_init__(self) -> None:
        for name in ("parse_seconds", "pass_seconds", "memory_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1e9:
                raise UsageError(
                    f"option '{name.replace('_', '-')}' must be above 0, and at most 1e9, got "
                    f"{value}"
                )

    @property
    def memory_bytes(self) -> int | None:
        """The limit in bytes; None where the machine's memory is not known."""
        if self.memory_gib is not None:
            return int(self.memory_gib * 2**30)
        memory = machine_memory()
        return None if memory is None else memory // 4 * 3


def machine_memory() -> int | None:
    """Return the bytes of this machine's memory; None where that is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


class ChildEnded(Exception):
    """The child ended in place of an answer.

    Args:
        status: its exit status, the negative number of a signal; None if it gave no sensible
            answer and was ended here.
        step: the last step that it reported.
        details: what it said of each step.
        words: what it wrote last.
        exhausted: ``memory`` or ``stack`` if that is known to be the cause.
        has_begun: false if it ended before it had the request.
    """

    def __init__(
        self,
        status: int | None,
        step: str,
        details: list[str],
        words: str,
        exhausted: str = "",
        has_begun: bool = True,
    ) -> None:
        super().__init__(f"the child process ended with status {status} at step '{step}'")
        self.status = status
        self.step = step
        self.details = details
        self.words = words
        self.exhausted = exhausted
        self.has_begun = has_begun

    @property
    def cause(self) -> str:
        """The signal's name, or the exit status."""
        if self.status is None:
            return "an answer that makes no sense"
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


# -- work that can be cancelled ------------------------------------------------------------------


class Cancelled(BaseException):
    """The work of this thread was cancelled; no `Exception`, since nobody is to handle it."""


class Work:
    """A piece of work of one thread, which others may cancel.

    Args:
        cores: of this machine that it may take, beside other work; None for all.
    """

    def __init__(self, cores: int | None = None) -> None:
        self.cores = cores
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []

    def cancel(self) -> None:
        """End the children and the commands of the work, and let it have no others."""
        with self._lock:
            self.is_cancelled = True
            for end in self._ends:
                end()
        _POOL.wake()

    def check(self) -> None:
        """Raise Cancelled if it was cancelled."""
        if self.is_cancelled:
            raise Cancelled

    @contextlib.contextmanager
    def doing(self) -> Iterator[None]:
        """Let what this thread does in the block be part of the work."""
        before = _current()
        _THREAD.work = self
        try:
            yield
        finally:
            _THREAD.work = before

    @contextlib.contextmanager
    def _holding(self, end: Callable[[], None]) -> Iterator[None]:
        """Let `cancel` call a function while the block runs, and never afterwards."""
        with self._lock:
            self.check()
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


_THREAD = threading.local()
_FREE = Work()
"""That of threads which nobody cancels."""


def _current() -> Work:
    work: Work = getattr(_THREAD, "work", _FREE)
    return work


def check_cancelled() -> None:
    """Raise Cancelled if the work of this thread was cancelled."""
    _current().check()


def available_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return os.cpu_count() or 1


def cores_of_work() -> int | None:
    """Return how many cores the work of this thread may take; None for all."""
    return _current().cores


# -- errors --------------------------------------------------------------------------------------


def error_to_json(error: SubquantError) -> dict[str, Any]:
    """Return an error as JSON values, for `error_from_json`."""
    place = error.place
    return {
        "class": type(error).__name__,
        "message": error.message,
        "place": None if place is None else [place.file, place.line, place.column],
        "op_name": error.op_name,
        "notes": list(error.notes),
    }


def error_from_json(fields: Mapping[str, Any]) -> SubquantError:
    """Return the error that `error_to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: the fields are not those of an error.
    """
    found = getattr(errors, fields["class"]) if fields["class"] in errors.__all__ else None
    if not (isinstance(found, type) and issubclass(found, SubquantError)):
        raise ValueError("no error is named so")
    place = None
    if fields["place"] is not None:
        file, line, column = fields["place"]
        place = Place(str(file), int(line), int(column))
    error = found(str(fields["message"]), place, tuple(str(note) for note in fields["notes"]))
    if fields["op_name"] is not None:
        error.op_name = str(fields["op_name"])
        error.args = (str(error),)
    return error


class _Exhausted(Exception):
    """The child had not enough of something."""


class _Answered(Exception):
    """The answer is an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _value_of(fields: dict[str, Any], blobs: list[bytes]) -> tuple[Any, list[bytes]]:
    """Return what an answer says.

    Raises:
        _Answered, _Exhausted: it says what went wrong.
        Malformed: it is no answer.
    """
    if "value" in fields:
        return fields["value"], blobs
    if "exhausted" in fields:
        raise _Exhausted(str(fields["exhausted"]))
    if "bug" in fields:
        raise _Answered(RuntimeError(f"in a child process:\n{fields['bug']}"))
    try:
        error = error_from_json(fields["error"])
    except (KeyError, TypeError, ValueError):
        raise Malformed from None
    raise _Answered(error)


# -- the parent's side ----------------------------------------------------------------------------

_HAS_SIGNAL = sys.platform.startswith("linux")
"""There is a signal at the end of a pipe."""

# Names in the current folder are not imported; what else this process can import, the child can.
_MAIN = (
    "import sys\n"
    "sys.path[:] = [entry for entry in sys.path if entry]\n"
    "sys.path += [entry for entry in sys.argv[1:] if entry not in sys.path]\n"
    "from subquant.isolation.client import serve\n"
    "serve({!r}, {!r})\n"
)


@contextlib.contextmanager
def _starting(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # no temporary folder, or no further process or file
        raise EnvironmentProblem(f"{what} cannot be started: {error.strerror}") from None


class _Child:
    """A child process, which serves one call after the other.

    Args:
        module: what it imports at once.
    """

    def __init__(self, module: str) -> None:
        if not sys.executable:
            raise EnvironmentProblem(
                "MLIR runs in a child process, and sys.executable does not say which Python to "
                "start; set it to one that can import subquant"
            )
        import subprocess
        import tempfile

        with _starting("a child process"):
            # Nothing is buffered here: a forked process would have a copy of what is.
            self._words = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
            self._life: IO[bytes] | None = None
            others: list[int] = []
            try:
                if _HAS_SIGNAL:
                    other, own = os.pipe()
                    others, self._life = [other], os.fdopen(own, "wb", buffering=0)
                main = _MAIN.format(module, others[0] if others else None)
                self._process = subprocess.Popen(
                    [sys.executable, "-c", main, *filter(os.path.isabs, sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._words,
                    bufsize=0,
                    start_new_session=True,
                    pass_fds=others,
                )
            except BaseException:
                self._close(self._life, self._words)
                raise
            finally:
                for handle in others:
                    os.close(handle)
        self.has_answered = False
        _CHILDREN.add(self)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, request: dict[str, Any], blobs: Sequence[bytes], steps: Steps, is_quiet: bool
    ) -> tuple[Any, list[bytes]]:
        """Send a request and return the value and the blobs of the answer.

        Raises:
            ChildEnded: there is no answer; the child has been closed.
            SubquantError: the answer is an error.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        step, details, has_begun = "", [], False
        try:
            with contextlib.suppress(BrokenPipeError):  # its end is noticed when it is read from
                send(self._process.stdin, request, blobs)
            while (frame := receive(self._process.stdout)) is not None:
                if "step" in frame[0]:
                    step = str(frame[0]["step"])
                    details.append(str(frame[0].get("detail")))
                    steps(step)
                elif not frame[0].get("begun"):
                    break
                has_begun = True
            if frame is None:
                _wait_if_python_ends()
                self._process.wait()
                words = self._read_words()
                raise ChildEnded(self.close(), step, details, words, has_begun=has_begun)
            self._show_words(is_quiet)
            self.has_answered = True
            if frame[0].get("last"):
                self.close()
            return _value_of(*frame)
        except (Malformed, OSError):
            _wait_if_python_ends()
            self.close(kill=True)
            raise ChildEnded(None, step, details, "") from None
        except _Exhausted as exhausted:
            self.close(kill=True)
            raise ChildEnded(0, step, details, "", str(exhausted)) from None
        except _Answered as answered:
            raise answered.error from None
        except BaseException:  # Ctrl-C: the next answer would not be the next request's
            _wait_if_python_ends()  # or the pipe is closed already
            self.close(kill=True)
            raise

    def _read_words(self) -> str:
        size = os.fstat(self._words.fileno()).st_size
        # The place of writing is the child's too: `read` would move it.
        data = os.pread(self._words.fileno(), _LAST_WORDS, max(size - _LAST_WORDS, 0))
        return data.decode(errors="replace")

    def _show_words(self, is_quiet: bool) -> None:
        """Show on standard error what the child wrote, or forget it; it waits for a request now."""
        handle = self._words.fileno()
        if not os.fstat(handle).st_size:
            return
        words = self._read_words()
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        if sys.stderr is not None and not is_quiet:
            sys.stderr.write(words)

    def close(self, kill: bool = False) -> int | None:
        """End the process, and return its exit status."""
        if kill:
            self._process.kill()
        self._close(self._process.stdin, self._process.stdout, self._words, self._life)
        _CHILDREN.discard(self)
        return self._process.wait()

    @staticmethod
    def _close(*streams: IO[bytes] | None) -> None:
        for stream in streams:
            if stream is not None:
                stream.close()

    def end(self) -> None:
        """End the process; the thread that waits for its answer does the rest."""
        self._process.kill()

    def kill(self) -> None:
        """End the process at the end of Python: a daemon thread may be reading from it."""
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Let go of the parent's child, in a process that is forked from the parent."""
        self._close(self._process.stdin, self._process.stdout, self._words, self._life)
        self._process.returncode = 0


class _Pool:
    """The children of this process.

    Args:
        places: how many there may be at a time.
    """

    def __init__(self, places: int = MOST) -> None:
        self.idle: list[_Child] = []
        self.places = places
        self._lent = 0
        self._changed = threading.Condition()

    def prepare(self, module: str) -> None:
        with self._changed:
            if not self.idle:
                self.idle.append(_Child(module))

    def wake(self) -> None:
        """Let those who wait for a place look whether they were cancelled."""
        with self._changed:
            self._changed.notify_all()

    def add_places(self, count: int) -> None:
        """Have more places, or fewer, and then fewer children that are idle."""
        with self._changed:
            self.places += count
            self._changed.notify_all()
        self.close_idle(keep=max(self.places, 0))

    def close_idle(self, keep: int = 0) -> None:
        """End idle children until there are so many."""
        with self._changed:
            surplus = [self.idle.pop() for _ in range(len(self.idle) - keep)]
        for child in surplus:
            child.close(kill=True)

    @contextlib.contextmanager
    def child(self, module: str) -> Iterator[_Child]:
        """Lend a child that is alive; one that has ended does not come back.

        Raises:
            Cancelled: the work of this thread was cancelled, before or while it has the child.
        """
        work = _current()
        with self._changed:
            self._changed.wait_for(lambda: self._lent < self.places or work.is_cancelled)
            work.check()
            self._lent += 1
            child = self.idle.pop() if self.idle else None
        try:
            if child is not None and not child.is_alive:
                child.close()
                child = None
            child = child or _Child(module)
            try:
                with work._holding(child.end):
                    yield child
            except ChildEnded:
                work.check()
                raise
            finally:
                if child in _CHILDREN:
                    with self._changed:
                        self.idle.append(child)
        finally:
            with self._changed:
                self._lent -= 1
                self._changed.notify()


_CHILDREN: weakref.WeakSet[_Child] = weakref.WeakSet()
_POOL = _Pool()


_is_ending = False


def _close_all() -> None:
    global _is_ending
    _is_ending = True
    for child in list(_CHILDREN):
        if child in _POOL.idle:
            child.close(kill=True)
        else:
            child.kill()


def _wait_if_python_ends() -> None:
    """Let a daemon thread whose child was closed at the end of Python have no error."""
    if _is_ending and threading.current_thread().daemon:
        threading.Event().wait()


def _forget_all() -> None:
    """Start anew in a forked process: the children are its parent's."""
    global _POOL
    for child in list(_CHILDREN):
        child.forget()
    for process in list(_GUARDIANS):
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.returncode = 0
    _CHILDREN.clear()
    _GUARDIANS.clear()
    _POOL = _Pool(_POOL.places)
    _THREAD.work = _FREE


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def prepare(module: str = "subquant.compiler.mlir_child") -> None:
    """Start a child now, for the first call, if there is none: it imports while we do.

    Args:
        module: what it imports.
    """
    _POOL.prepare(module)


@contextlib.contextmanager
def places(count: int) -> Iterator[None]:
    """Let so many children more be there at a time, while the block runs."""
    _POOL.add_places(count)
    try:
        yield
    finally:
        _POOL.add_places(-count)


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, with its children and its files.

    A signal that is ignored, as ``nohup`` has it, or handled by others, stays so.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def close_idle() -> None:
    """End the children that wait for a call; the next calls have others."""
    _POOL.close_idle()


def call(
    function: str,
    arguments: Mapping[str, Any],
    blobs: Sequence[bytes] = (),
    *,
    steps: Steps | None = None,
    limits: Limits | None = None,
    is_quiet: bool = False,
) -> tuple[Any, list[bytes]]:
    """Run a function in a child.

    Args:
        function: ``subquant.module:name``; it takes the arguments, the blobs and a `Steps`.
        arguments: JSON values.
        blobs: bytes.
        steps: called with each step that the function reports, when it does.
        limits: by default those of `Limits`.
        is_quiet: what else the child writes is not shown, unless it ends.

    Returns:
        A JSON value, and bytes.

    Raises:
        ChildEnded: it crashed, or reached a limit.
        SubquantError: from the function.
        RuntimeError: the function raised something else; the message has its traceback.
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
        "cores": cores_of_work(),
    }
    while True:
        with _POOL.child(function.partition(":")[0]) as child:
            is_new = not child.has_answered
            try:
                return child.ask(request, blobs, steps or (lambda step: None), is_quiet)
            except ChildEnded as ended:
                if is_new or ended.has_begun:
                    raise
        # It was ended while it waited, by the system or a person: not by this request.


@dataclass(frozen=True)
class Finished:
    """How a command ended.

    Args:
        status: its exit status, the negative number of a signal.
        stdout: what it wrote.
        stderr: what it wrote there.
        output: the contents of its output file, if it made one.
        in_time: false if its time was over.
    """

    status: int
    stdout: bytes
    stderr: bytes
    output: bytes | None
    in_time: bool


_GUARDIANS: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def run_guarded(
    command: Sequence[str | dict[str, str]],
    files: Mapping[str, bytes],
    *,
    stdin: str | None = None,
    output: str | None = None,
    seconds: float | None = None,
    variables: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command that ends, and whose files are removed, however this process ends.

    Args:
        command: the path of the program, and its arguments; ``{"file": name}`` stands for the path
            of a file in the temporary folder.
        files: what is written there before.
        stdin: the file that is its standard input; by default there is none.
        output: the file that is read when it has ended.
        seconds: its time.
        variables: of its environment, beside those of this process.

    Raises:
        EnvironmentProblem: it cannot be started, or there is no place for its files.
        Cancelled: the work of this thread was cancelled.
    """
    import subprocess
    import tempfile

    work = _current()
    work.check()
    title = os.path.basename(str(command[0]))
    with _starting(f"'{title}'"):
        request = {
            "command": list(command),
            "files": list(files),
            "folder": tempfile.gettempdir(),
            "stdin": stdin,
            "output": output,
            "seconds": seconds,
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
    _GUARDIANS.add(process)
    try:
        with work._holding(process.terminate):
            with contextlib.suppress(BrokenPipeError):
                send(process.stdin, request, list(files.values()))
            frame = receive(process.stdout)
    except Malformed:
        frame = None
    finally:
        process.stdin.close()  # which ends it, if it has not ended
        process.stdout.close()
        process.wait()
        _GUARDIANS.discard(process)
    work.check()
    if frame is None:
        raise EnvironmentProblem(f"what ran '{title}' was ended (status {process.returncode})")
    fields, blobs = frame
    if "error" in fields:
        raise EnvironmentProblem(f"'{title}' cannot be run: {fields['error']}")
    made = blobs[2] if len(blobs) > 2 else None
    return Finished(fields["status"], blobs[0], blobs[1], made, fields["in_time"])


# -- the child's side -----------------------------------------------------------------------------


def serve(module: str, life: int | None) -> None:
    """Serve calls until the parent's end of the pipe is closed: the main function of a child.

    Args:
        module: what is imported before the first call.
        life: the pipe whose other end is open as long as the parent lives; None if there is none.
    """
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what C++ prints is no answer
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    gc.disable()  # importing makes little garbage, and many objects to look through for it
    with contextlib.suppress(Exception):  # of the environment, say: the answer to the first call
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    while (frame := receive(requests)) is not None:
        send(answers, {"begun": True})
        with _ending_with_parent(life):
            answer, blobs = _answer(*frame, answers)
        sys.stdout.flush()
        send(answers, answer, blobs)


def _answer(
    request: dict[str, Any], blobs: list[bytes], answers: IO[bytes]
) -> tuple[dict[str, Any], list[bytes]]:
    def steps(step: str, detail: str = "") -> None:
        send(answers, {"step": step, "detail": detail})

    try:
        if request["folder"] is not None:
            with contextlib.suppress(OSError):
                os.chdir(request["folder"])
        module, _, name = request["function"].partition(":")
        with _memory_limit(request["memory"]), Work(request["cores"]).doing():
            function = getattr(importlib.import_module(module), name)
            value, results = function(request["arguments"], blobs, steps)
        return {"value": value, "last": _has_grown()}, results
    except SubquantError as error:
        return {"error": error_to_json(error)}, []
    except MemoryError:
        return {"exhausted": "memory"}, []
    except RecursionError:
        return {"exhausted": "stack"}, []
    except Exception:
        return {"bug": traceback.format_exc()}, []
    finally:
        limit_time(None)


_LARGEST_IDLE = 1 << 30


def _has_grown() -> bool:
    """True if this process has so much memory that it should not be kept."""
    try:
        # Not `ru_maxrss`, which starts at what the parent had.
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:  # not Linux
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > _LARGEST_IDLE


@contextlib.contextmanager
def _ending_with_parent(life: int | None) -> Iterator[None]:
    """End this process, even in a loop of C++, when the parent's end of a pipe is closed."""
    if life is None:
        yield
        return
    import fcntl
    import select

    flags = fcntl.fcntl(life, fcntl.F_GETFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, flags | os.O_ASYNC)
    ended = select.poll()
    ended.register(life, 0)
    if ended.poll(0):  # before it was asked for
        os._exit(1)
    try:
        yield
    finally:
        fcntl.fcntl(life, fcntl.F_SETFL, flags)


@contextlib.contextmanager
def _memory_limit(size: int | None) -> Iterator[None]:
    try:
        import resource
    except ImportError:  # Windows
        yield
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    soft = resource.RLIM_INFINITY if size is None else size
    if most != resource.RLIM_INFINITY:
        soft = most if soft == resource.RLIM_INFINITY else min(soft, most)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, most))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


_MOST_WAITING = 10


def limit_time(seconds: float | None) -> None:
    """End this process, which is a child, if it takes longer from now on; None: it may.

    It is ended by ``SIGPROF`` after so much CPU time, which is the same on a busy machine, or by
    ``SIGALRM`` after ten times that, when it waits for nothing.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds or 0)
    signal.setitimer(signal.ITIMER_REAL, _MOST_WAITING * (seconds or 0))


def end_after(seconds: float) -> None:
    """End this process, which is a child, if the call takes longer, busy or waiting."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of a block, by `limit_time`."""
    limit_time(seconds)
    try:
        yield
    finally:
        limit_time(None)
