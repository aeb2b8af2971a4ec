"""Peers: one module for each program that computes the cases, imported by its own worker.

A module has ``describe()``, which returns name and version, and ``prepare(case, arrays, threads,
copies)``, which returns a `Prepared` or raises `Unsupported`. `benchmarks.checks` documents cases
and arrays.

Flags of a module:

* ``HAS_VULKAN``: it computes cases of the target ``vulkan``.
* ``HAS_LANGUAGE_MODELS``: it computes these, or is a ceiling of them.
* ``HAS_MODULES``: it computes modules of PyTorch.
* ``HAS_TARGET_CPU``: it compiles for the ``target_cpu`` of a case, which may be another CPU than
  this machine's.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Case = dict[str, Any]
HOST = "host"
DOT_PRODUCTS = frozenset(("avx512vnni", "avxvnni", "dotprod"))
"""CPU features (LLVM's names) whose instructions add products of bytes without saturation."""


class Unsupported(Exception):
    """The peer cannot compute this case."""


class Prepared(Protocol):
    """Prepared case, ready to be called."""

    notes: dict[str, Any]
    """Properties for the report and the check: ``activations`` (elements of K that share a scale,
    and the number of steps of their range), ``path``, ``bytes``."""

    def call(self, copy: int) -> None:
        """Compute the case once, with one of the copies of the weights."""

    def result(self) -> Array:
        """Return the result of the last call."""


def target_cpu(case: Case) -> str:
    """Return the CPU that a case is compiled for (LLVM's name)."""
    return str(case.get("target_cpu", HOST))


def features_of(case: Case) -> frozenset[str]:
    """Return the features of the case's CPU (LLVM's names)."""
    from subquant.compiler.compile_options import CompileOptions
    from subquant.compiler.iree_driver import recorded_features

    recorded = recorded_features(CompileOptions(target_cpu=target_cpu(case)))
    return frozenset(recorded.split(","))
