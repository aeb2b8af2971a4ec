"""What computes the cases: one module a peer, imported in a worker of its own.

Each has ``describe()``, which gives its name and version, and ``prepare(case, arrays, threads,
copies)``, which gives a `Prepared` or raises `Unsupported`. `benchmarks.cases` says what is in a
case and its arrays. A module with ``HAS_VULKAN = True`` also computes those of the target
``vulkan``, one with ``READS_GGUF = True`` language models, and one with ``HAS_TARGET_CPU = True``
may be for another CPU than this machine's, the ``target_cpu`` of a case.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = [
    "DOT_PRODUCTS",
    "HOST",
    "Array",
    "Case",
    "Prepared",
    "Unsupported",
    "features_of",
    "target_cpu",
]

Array = np.ndarray[Any, Any]
Case = dict[str, Any]
HOST = "host"
DOT_PRODUCTS = frozenset(("avx512vnni", "avxvnni", "dotprod"))
"""Features of CPUs that add products of bytes without a step that saturates, by LLVM's names."""


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


def target_cpu(case: Case) -> str:
    """The CPU that a case is compiled for, by LLVM's name."""
    return str(case.get("target_cpu", HOST))


def features_of(case: Case) -> frozenset[str]:
    """What that CPU has, by LLVM's names."""
    from subquant.compiler.compile_options import CompileOptions
    from subquant.compiler.cpu_features import recorded_features

    recorded = recorded_features(CompileOptions(target_cpu=target_cpu(case)))
    return frozenset(recorded.split(","))
