"""Programs that are no part of subquant, on the machine that does a task."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...isolation.child import ReportStep
from ...isolation.command import run_supervised

__all__ = ["run_archive"]

_ARCHIVE, _OUTPUT = "program.pyz", "output"


def run_archive(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run an archive of Python (`zipapp`) as a process: a function of a `Task`.

    It and all that it starts end when the task is cancelled, and its temporary folder, in which the
    archive is, goes with it.

    Args:
        arguments: ``arguments``, of the program; a path is added, of the file to write.
        blobs: the archive.
        steps: not called.

    Returns:
        The exit ``status`` and the ``errors`` that it wrote; and the file, if it wrote it.
    """
    command = [sys.executable, {"file": _ARCHIVE}, *arguments["arguments"], {"file": _OUTPUT}]
    done = run_supervised(command, {_ARCHIVE: blobs[0]}, output=_OUTPUT)
    made = [] if done.output is None else [done.output]
    return {"status": done.status, "errors": done.stderr.decode(errors="replace")}, made
