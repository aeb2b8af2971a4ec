"""The kernels of `benchmarks.ceilings`, as a peer that is timed in turn with the others."""

from __future__ import annotations

import numpy as np
from iree.runtime import HalElementType

from ..ceilings import kernel, request_tiles
from . import Array, Case, Unsupported, features_of, target_cpu
from .iree import Program, describe

__all__ = ["HAS_TARGET_CPU", "describe", "prepare"]

HAS_TARGET_CPU = True


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Program:
    """As `benchmarks.peers` says; `case` says which kernel."""
    features = features_of(case)
    if not request_tiles():
        features -= {"amx-int8"}
    made = kernel(case["ceiling"], features)
    if made is None:
        raise Unsupported("no such instruction here")
    given = np.resize(np.arange(251, dtype=np.uint8), made.size)
    given[: len(made.head)] = np.frombuffer(made.head, np.uint8)
    program = Program(
        made.text,
        [(given, given.shape, HalElementType.SINT_8)],
        np.int32,
        threads,
        copies,
        input_type="none",
        shared=0,
        target_cpu=target_cpu(case),
    )
    program.notes = {"work": made.work, "path": made.name}
    return program
