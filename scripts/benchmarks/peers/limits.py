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

__all__ = ["HAS_LANGUAGE_MODELS", "HAS_TARGET_CPU", "calls_of", "describe", "prepare"]

HAS_TARGET_CPU = HAS_LANGUAGE_MODELS = True


def calls_of(ceiling: Kernel, operand: Array, threads: int, copies: int, cpu: str = HOST) -> Calls:
    """Return calls of a kernel, each with its own copy of the operand."""
    data = compile_to_bytes(ceiling.text, CompileOptions(target_cpu=cpu))
    main = Executable(data, Device("llvm-cpu", threads=threads))["main"]
    calls = [main.bind(main.put(0, operand.view(np.int8))) for _ in range(copies)]
    return Calls(calls, {"work": ceiling.work, "path": ceiling.name})


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Calls:
    """Prepare the kernel of a ceiling: see `benchmarks.peers`."""
    features = features_of(case)
    if not request_tiles():
        features -= {"amx-int8"}
    ceiling = kernel(case["ceiling"], features)
    if ceiling is None:
        raise Unsupported("no such instruction here")
    operand = np.resize(np.arange(251, dtype=np.uint8), ceiling.size)
    operand[: len(ceiling.head)] = np.frombuffer(ceiling.head, np.uint8)
    return calls_of(ceiling, operand, threads, copies, target_cpu(case))
