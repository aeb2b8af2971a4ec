"""What computes the cases: one module a peer, imported in a worker of its own.

Each has ``describe()``, which gives its name and version, and ``prepare(case, arrays, threads,
copies)``, which gives a `Prepared` or raises `Unsupported`. `benchmarks.cases` says what is in a
case and its arrays. A module with ``HAS_VULKAN = True`` also computes those of the target
``vulkan``, one with ``READS_GGUF = True`` language models.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = ["Array", "Case", "Prepared", "Unsupported"]

Array = np.ndarray[Any, Any]
Case = dict[str, Any]


class Unsupported(Exception):
    """The peer does not compute such a case."""


class Prepared(Protocol):
    """A case, ready to be called."""

    notes: dict[str, Any]
    """What the report says, or the check needs: ``activations`` (how many values along the
    contracted axis share a scale, and how many steps their range has), ``path``, ``bytes``."""

    def call(self, copy: int) -> None:
        """Compute it once, with one of the copies of the weights."""

    def result(self) -> Array:
        """Return what the last call computed."""
