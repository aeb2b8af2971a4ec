"""Tasks, their outcomes, the function that runs a task on any machine, and its part of the cores.

**Errors.** A `SubquantError` is the error of its task alone; so is a child process that ended
(`ChildEnded`), or a lack of memory. Any other exception is a bug: the remaining tasks run first,
then the bug ends the run, with the traceback of the machine where it happened.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import EnvironmentProblem, SubquantError, error_from_json, error_to_json, quoted
from ...isolation.cancellation import CancellableWork
from ...isolation.child import ReportStep
from ...isolation.client import ChildEnded
from ...isolation.command import run_supervised
from ...isolation.limits import available_cores

HOST_CPU = "host-cpu"
"""The need of a task whose result depends on the CPU: the worker's must equal the client's."""

MAX_WINDOW_BYTES = 1 << 30
"""Bytes of the blobs of prefetched tasks, at most: 1 GiB."""

_ON_CPU = ("llvm-cpu", "interpreter", "local-task", "local-sync")


@dataclass(frozen=True)
class Task:
    """Unit of work that any machine can run.

    Args:
        name: the name in messages, unique in a run.
        function: ``subquant.module:name``. It is called with the arguments, the blobs and a
            `ReportStep` in a thread; code that may crash or hold the GIL belongs into a child
            process (`subquant.isolation.client.call`); it returns a JSON value and blobs.
        arguments: JSON values.
        blobs: bytes; tasks that share a blob have the same object.
        needs: Dask resources that a worker must offer, such as ``{"vulkan": 1}``; on this
            machine the function checks them.
        optional_resources: further resources, needed only if a worker offers all of them.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]
    blobs: Sequence[bytes] = ()
    needs: Mapping[str, float] = field(default_factory=dict)
    optional_resources: Mapping[str, float] = field(default_factory=dict)


def needs_of(device: str) -> dict[str, float]:
    """Return the Dask resources of a device, as `Task.needs`: its driver, unless it is the CPU."""
    driver = device.partition("://")[0]
    return {} if driver in _ON_CPU else {driver: 1}


@dataclass(frozen=True)
class Done:
    """Outcome of a task.

    Args:
        value: the JSON value that its function returned.
        blobs: the bytes that it returned.
        error: its exception, or its loss; then there is no value.
        worker: the address of its worker; empty on this machine.
    """

    task: Task
    value: Any = None
    blobs: Sequence[bytes] = ()
    error: SubquantError | None = None
    worker: str = ""


OnStep = Callable[[Task, str], object]
"""Called with each step that a task's function reports, by the thread that takes the results."""


@dataclass(frozen=True)
class Answer:
    """Result of `perform`, readable by other processes and versions of Python.

    It is a `Done` with the error as `error_to_json` writes it, or the traceback of a bug.
    """

    value: Any = None
    blobs: Sequence[bytes] = ()
    error: dict[str, Any] | None = None
    bug: str = ""


def perform(task: Task, steps: ReportStep, work: CancellableWork) -> Answer:
    """Run a task in this thread; Cancelled if the work was cancelled.

    Args:
        work: the handle by which another thread cancels it.
    """
    try:
        with work.active():
            module, _, name = task.function.partition(":")
            function = getattr(importlib.import_module(module), name)
            value, blobs = function(task.arguments, task.blobs, steps)
        work.check()
        return Answer(value, blobs)
    except SubquantError as raised:
        error = raised
    except ChildEnded as ended:
        message = f"the process that did {quoted(task.name)} ended ({ended.cause})"
        error = EnvironmentProblem(message)
    except MemoryError:
        error = EnvironmentProblem(f"not enough memory for {quoted(task.name)}")
    except Exception:
        work.check()
        return Answer(bug=traceback.format_exc())
    return Answer(error=error_to_json(error))


def done_from(task: Task, answer: Answer, worker: str = "") -> Done:
    """Return the outcome of a task from an answer without a bug."""
    error = None if answer.error is None else error_from_json(answer.error)
    return Done(task, answer.value, answer.blobs, error, worker)


def cores_of_each(tasks: int) -> int | None:
    """Return the number of cores for each of several tasks of this machine; None for all."""
    return max(available_cores() // tasks, 1) if tasks > 1 else None


# -- external programs ----------------------------------------------------------------------------

_ARCHIVE, _OUTPUT = "program.pyz", "output"


def run_archive(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run an archive of Python (`zipapp`) as a process: a function of a `Task`.

    A cancelled task ends it with all processes that it started, and removes its temporary folder.

    Args:
        arguments: ``arguments`` of the program; the path of the output file is appended.
        blobs: the archive.

    Returns:
        The exit ``status`` and the ``errors`` that it wrote; and the file, if it wrote it.
    """
    command = [sys.executable, {"file": _ARCHIVE}, *arguments["arguments"], {"file": _OUTPUT}]
    done = run_supervised(command, {_ARCHIVE: blobs[0]}, output=_OUTPUT)
    output = [] if done.output is None else [done.output]
    return {"status": done.status, "errors": done.stderr.decode(errors="replace")}, output
