"""What is done: tasks, what came of them, and the function that does one, wherever it is.

**Errors.** What a function raises on purpose (`SubquantError`) is the error of its task, and of no
other. So is its loss: a child process that ended (`ChildEnded`), or too little memory. Anything
else that it raises is a bug: the others are done first, and then the bug ends the run, with the
traceback of where it was, be that another machine.
"""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import EnvironmentProblem, SubquantError, error_from_json, error_to_json, quoted
from ...isolation.cancellation import CancellableWork
from ...isolation.child import ReportStep
from ...isolation.client import ChildEnded

__all__ = [
    "HOST_CPU",
    "LARGEST_WINDOW",
    "Answer",
    "Done",
    "OnStep",
    "Task",
    "done_of",
    "needs_of",
    "perform",
]

HOST_CPU = "host-cpu"
"""The need of a task whose result depends on the CPU: that of a worker must be as the client's."""

LARGEST_WINDOW = 1 << 30
"""Bytes of the blobs of tasks that are taken before their turn has come."""

_ON_CPU = ("llvm-cpu", "interpreter", "local-task", "local-sync")


@dataclass(frozen=True)
class Task:
    """One piece of work, which any machine can do.

    Args:
        name: what people call it; no other of the run is named so.
        function: ``subquant.module:name``. It is called with the arguments, the blobs and a
            `ReportStep` in a thread, so that what may crash or hold Python's lock belongs into a
            child process (`subquant.isolation.client.call`); it returns a JSON value and blobs.
        arguments: JSON values.
        blobs: bytes; those that several tasks have in common are the same object.
        needs: Dask resources that a worker must offer, such as ``{"vulkan": 1}``; here, what this
            machine has is found out by the function.
        wishes: further resources, which it needs only if a worker offers all of them.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]
    blobs: Sequence[bytes] = ()
    needs: Mapping[str, float] = field(default_factory=dict)
    wishes: Mapping[str, float] = field(default_factory=dict)


def needs_of(device: str) -> dict[str, float]:
    """Return the Dask resources of a device, as `Task.needs`: its driver, unless it is the CPU."""
    driver = device.partition("://")[0]
    return {} if driver in _ON_CPU else {driver: 1}


@dataclass(frozen=True)
class Done:
    """What came of a task.

    Args:
        task: the task.
        value: the JSON value that its function returned.
        blobs: the bytes that it returned.
        error: what it raised, or how it was lost; then there is no value.
        seconds: how long it took, without waiting for its turn.
        worker: the address of the one that did it; empty on this machine.
    """

    task: Task
    value: Any = None
    blobs: Sequence[bytes] = ()
    error: SubquantError | None = None
    seconds: float = 0.0
    worker: str = ""


OnStep = Callable[[Task, str], object]
"""Called with each step that a task's function reports, by the thread that takes the results."""


@dataclass(frozen=True)
class Answer:
    """What `perform` returns, which other processes and versions of Python can read.

    Args:
        value: what the function returned.
        blobs: the bytes that it returned.
        error: what it raised on purpose, as `error_to_json` writes it.
        bug: the traceback of anything else.
        seconds: how long it took.
    """

    value: Any = None
    blobs: Sequence[bytes] = ()
    error: dict[str, Any] | None = None
    bug: str = ""
    seconds: float = 0.0


def perform(task: Task, steps: ReportStep, work: CancellableWork) -> Answer:
    """Do a task in this thread.

    Args:
        task: what to do.
        steps: called with each step that the function reports.
        work: what another thread cancels it by.

    Raises:
        Cancelled: the work was cancelled.
    """
    start = time.perf_counter()

    def answer(**fields: Any) -> Answer:
        return Answer(**fields, seconds=time.perf_counter() - start)

    try:
        with work.active():
            module, _, name = task.function.partition(":")
            function = getattr(importlib.import_module(module), name)
            value, blobs = function(task.arguments, task.blobs, steps)
        work.check()
        return answer(value=value, blobs=blobs)
    except SubquantError as error:
        return answer(error=error_to_json(error))
    except ChildEnded as ended:
        message = f"the process that did {quoted(task.name)} ended ({ended.cause})"
        return answer(error=error_to_json(EnvironmentProblem(message)))
    except MemoryError:
        message = f"not enough memory for {quoted(task.name)}"
        return answer(error=error_to_json(EnvironmentProblem(message)))
    except Exception:
        work.check()
        return answer(bug=traceback.format_exc())


def done_of(task: Task, answer: Answer, worker: str = "") -> Done:
    """Return what came of a task that has an answer without a bug."""
    error = None if answer.error is None else error_from_json(answer.error)
    return Done(task, answer.value, answer.blobs, error, answer.seconds, worker)
