"""Child process: serves calls of `subquant.isolation.client` until its parent ends.

**Protocol.** Standard input and output carry frames of JSON and blobs
(`subquant.isolation.supervisor`). The parent reads only data, never a pickle: a child that has read
hostile input is not trusted.

* request: ``{"function": "subquant.module:name", "arguments": {...}, "memory": bytes, "folder":
  path, "cores": count}`` and blobs. The function is called with the arguments, the blobs and a
  `ReportStep`; it returns a JSON value and blobs.
* answer: ``{"step": text, "detail": text}`` when the function reports a step, with a blob for
  output that the parent shows on standard error (no step, if its name is empty); and last one of
  ``{"value": ...}`` with blobs, and ``"last": true`` if the child is too large to keep;
  ``{"error": ...}``, an error of `subquant.errors` as JSON; ``{"exhausted": "memory" or "stack"}``
  for Python's own errors; and ``{"bug": traceback}``.

**Life.** A child ends with its parent, even in a loop of C++, by ``SIGIO``, which Linux sends at
the end of a pipe with ``O_ASYNC``. ``PR_SET_PDEATHSIG`` would end it when only the thread of the
parent ends that started it. The signal has a pipe of its own that carries no data, because a pipe
with unread data has no end. On other systems a child ends after its call, at the end of its
standard input.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from ..errors import SubquantError, error_to_json
from .cancellation import CancellableWork
from .limits import memory_limit, set_time_limit
from .supervisor import receive, send

ReportStep = Callable[..., None]
"""A function that reports a step: its name, how to replay it, and output (both optional)."""

_MAX_IDLE_BYTES = 1 << 30
"""A child with more resident memory than this ends after its call."""


def serve(module: str, lifeline: int | None) -> None:
    """Serve calls until the end of standard input: the main function of a child.

    A first call finds `module` imported. The other end of the pipe `lifeline` is open while the
    parent lives.
    """
    if lifeline is not None:
        _end_with_parent(lifeline)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    os.dup2(2, 1)  # output of C++ is no answer
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    gc.disable()  # an import makes little garbage, and many objects that a collection would visit
    with contextlib.suppress(Exception):  # the first call raises it again, and reports it
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    while (frame := receive(requests)) is not None:
        answer, blobs = _answer(*frame, answers)
        sys.stdout.flush()
        send(answers, answer, blobs)


def _answer(
    request: dict[str, Any], blobs: list[bytes], answers: IO[bytes]
) -> tuple[dict[str, Any], list[bytes]]:
    def report_step(step: str, detail: str = "", output: str = "") -> None:
        send(answers, {"step": step, "detail": detail}, [output.encode()] if output else [])

    try:
        if request["folder"] is not None:
            with contextlib.suppress(OSError):
                os.chdir(request["folder"])
        module, _, name = request["function"].partition(":")
        with memory_limit(request["memory"]), CancellableWork(request["cores"]).active():
            function = getattr(importlib.import_module(module), name)
            value, results = function(request["arguments"], blobs, report_step)
        return {"value": value, "last": _is_large()}, results
    except SubquantError as error:
        return {"error": error_to_json(error)}, []
    except MemoryError:
        return {"exhausted": "memory"}, []
    except RecursionError:
        return {"exhausted": "stack"}, []
    except Exception:
        return {"bug": traceback.format_exc()}, []
    finally:
        set_time_limit(None)


def _is_large() -> bool:
    """True if the resident memory of this process exceeds `_MAX_IDLE_BYTES`."""
    try:
        # `ru_maxrss` would start at the parent's memory.
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:  # not Linux
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > _MAX_IDLE_BYTES


def _end_with_parent(lifeline: int) -> None:
    """Let a signal end this process when the parent's end of a pipe is closed."""
    import fcntl
    import select

    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline, 0)
    if poll.poll(0):  # the parent ended before the signal was requested
        os._exit(1)
