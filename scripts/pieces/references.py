"""Reference runtimes in a process of their own: what crashes there is a refusal here."""

from __future__ import annotations

import importlib
import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_SECONDS = 12
"""The time that a runtime has for a file: less than the 20 seconds of `scripts/fuzz`."""


class Refused(Exception):
    """The reference runtime does not run a file."""


class Reference:
    """A function ``run(files, arrays) -> results`` of a module, called in a child process.

    Args:
        module: the name of the module in this package.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: Any = None
        self._pipe: Any = None

    def __call__(self, *arguments: Any) -> list[np.ndarray]:
        """Return the results; raises Refused."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(self._module, theirs), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(arguments)
            if not self._pipe.poll(_SECONDS):
                raise EOFError
            results, why = self._pipe.recv()
        except (EOFError, OSError):
            self._process.kill()
            self._process.join()
            self._process = None
            raise Refused("the runtime crashes, or takes too long") from None
        if why is not None:
            raise Refused(why)
        return list(results)


def _serve(module: str, pipe: Connection) -> None:
    run = importlib.import_module(f"{__package__}.{module}").run
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((run(*arguments), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))
