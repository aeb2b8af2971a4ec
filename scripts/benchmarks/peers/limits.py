"""The kernels of `benchmarks.ceilings`, as a peer that is timed in turn with the others."""

from __future__ import annotations

import numpy as np

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device, Executable

from ..ceilings import Kernel, kernel, request_tiles
from . import HOST, Array, Case, Unsupported, features_of, target_cpu
from .iree import describe
from .subquant import Calls

__all__ = ["HAS_TARGET_CPU", "calls_of", "describe", "prepare"]

HAS_TARGET_CPU = True


def calls_of(made: Kernel, given: Array, threads: int, copies: int, cpu: str = HOST) -> Calls:
    """Calls of a kernel, each with a copy of the bytes that it reads."""
    data = compile_to_bytes(made.text, CompileOptions(target_cpu=cpu))
    main = Executable(data, Device("llvm-cpu", threads=threads))["main"]
    calls = [main.bind(main.put(0, given.view(np.int8))) for _ in range(copies)]
    return Calls(calls, {"work": made.work, "path": made.name})


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Calls:
    """As `benchmarks.peers` says; `case` says which kernel."""
    features = features_of(case)
    if not request_tiles():
        features -= {"amx-int8"}
    made = kernel(case["ceiling"], features)
    if made is None:
        raise Unsupported("no such instruction here")
    given = np.resize(np.arange(251, dtype=np.uint8), made.size)
    given[: len(made.head)] = np.frombuffer(made.head, np.uint8)
    return calls_of(made, given, threads, copies, target_cpu(case))
