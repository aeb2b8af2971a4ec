"""External programs (Python archives) that a task ships to the machine that runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...isolation.child import ReportStep
from ...isolation.command import run_supervised

_ARCHIVE, _OUTPUT = "program.pyz", "output"


def run_archive(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: ReportStep
) -> tuple[Any, list[bytes]]:
    """Run an archive of Python (`zipapp`) as a process: a function of a `Task`.

    A cancelled task ends it with all processes that it started, and removes its temporary folder.

    Args:
        arguments: ``arguments`` of the program; the path of the output file is appended.
        blobs: the archive.
        steps: not called.

    Returns:
        The exit ``status`` and the ``errors`` that it wrote; and the file, if it wrote it.
    """
    command = [sys.executable, {"file": _ARCHIVE}, *arguments["arguments"], {"file": _OUTPUT}]
    done = run_supervised(command, {_ARCHIVE: blobs[0]}, output=_OUTPUT)
    output = [] if done.output is None else [done.output]
    return {"status": done.status, "errors": done.stderr.decode(errors="replace")}, output
