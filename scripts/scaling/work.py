"""What the tasks of a measurement do, on this machine or on a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from subquant.compiler.compilation import compile_to_bytes

__all__ = ["compile_program", "nothing", "wait"]

Answer = tuple[Any, list[bytes]]


def compile_program(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: Callable[..., None]
) -> Answer:
    """Compile a program with a cache; the blob is its text, and so is the executable."""
    return None, [compile_to_bytes(blobs[0].decode(), cache=arguments["cache"], progress=steps)]


def nothing(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: Callable[..., None]
) -> Answer:
    """Return the blobs that were given."""
    return None, list(blobs)


def wait(
    arguments: Mapping[str, Any], blobs: Sequence[bytes], steps: Callable[..., None]
) -> Answer:
    """Take so many seconds, and no CPU time: what a worker on another machine takes of this one."""
    time.sleep(arguments["seconds"])
    return None, []
