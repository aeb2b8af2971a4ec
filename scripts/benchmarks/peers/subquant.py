"""Ours, through the public API: weights are constants of the executable, loaded once a copy.

Or they are arguments: of programs of floats, which IREE gets as they are.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import subquant
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.layouts import GgmlTensor
from subquant.models import load
from subquant.ops import linear, trace_function
from subquant.runtime import BoundCall, Device, Executable

from ..blocks import FORMATS
from ..programs import quantized_integers
from . import HOST, Array, Case, Prepared, Unsupported, target_cpu

HAS_VULKAN = HAS_LANGUAGE_MODELS = HAS_MODULES = HAS_TARGET_CPU = True


def describe() -> dict[str, str]:
    """Return the name and the version."""
    return {"name": "subquant", "version": subquant.__version__}


class Calls:
    """Bound calls, one for each copy of the weights."""

    def __init__(self, calls: Sequence[BoundCall], notes: dict[str, Any]) -> None:
        self._calls = calls
        self._result: Any = None
        self.notes = notes

    def call(self, copy: int) -> None:
        """See `Prepared`."""
        self._result = self._calls[copy].invoke()

    def result(self) -> Array:
        """See `Prepared`."""
        return np.asarray(self._result)


class Executables(Calls):
    """Executables of one program, each with the weights in memory of its own."""

    def __init__(
        self,
        source: Any,
        options: CompileOptions,
        x: Array,
        threads: int,
        copies: int,
        weights: Sequence[Array] = (),
    ):
        data, seconds = _compiled(source, options)
        device = Device(options.target, threads=None if options.target == "vulkan" else threads)
        functions = [Executable(data, device)["main"] for _ in range(copies)]
        operands = [functions[0].put(n, each) for n, each in enumerate([x, *weights])]
        super().__init__([each.bind(*operands) for each in functions], {"bytes": len(data)})
        if seconds is not None:
            self.notes["seconds"] = seconds


class LanguageModel:
    """Timed evaluation of the tokens after a prompt, as in the peer ``llama``."""

    def __init__(self, case: Case, tokens: Array, threads: int) -> None:
        model = load(case["file"], context=case["context"], threads=threads)
        self._session = model.session()
        self._prompt_length = case["prompt"]
        self._timed = [int(token) for token in tokens[self._prompt_length :]]
        if self._prompt_length:
            self._session.prompt(tokens[: self._prompt_length])
        self._result: Any = None
        self.notes: dict[str, Any] = {"bytes": os.path.getsize(case["gguf"])}

    def call(self, copy: int) -> None:
        """See `Prepared`."""
        self._session.rewind(self._prompt_length)
        self._result = self._session.prompt(self._timed)

    def result(self) -> Array:
        """See `Prepared`."""
        self._session.rewind(self._prompt_length)
        self.call(0)
        return np.asarray(self._result)


def _compiled(source: Any, options: CompileOptions) -> tuple[bytes, float | None]:
    """Return an executable, and the seconds of its compilation (now, or before it was cached)."""
    steps: list[str] = []
    started = time.perf_counter()
    data = compile_to_bytes(source, options, progress=steps.append)
    seconds: float | None = time.perf_counter() - started
    folder = os.environ.get("SUBQUANT_CACHE")
    if folder is None:
        return data, seconds
    file = Path(folder, "seconds", hashlib.sha256(data).hexdigest())
    if "iree-compile" in steps:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(seconds))
        return data, seconds
    return data, float(file.read_text()) if file.exists() else None


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Prepared:
    """Prepare a case: see `benchmarks.peers`."""
    cpu = target_cpu(case)
    if case["kind"] == "language model":
        if cpu != HOST:
            raise Unsupported("language models are compiled for this machine")
        return LanguageModel(case, arrays["tokens"], threads)
    x = arrays["x"]
    if case["kind"] == "model":
        # LiteRT quantizes the activations of weight-only operators, too.
        options = CompileOptions(target_cpu=cpu, activations="int8")
        return Executables(Path(case["file"]), options, x, threads, copies)
    if case["kind"] in ("module", "network"):
        options = CompileOptions(target_cpu=cpu)
        return Executables(arrays["model"].tobytes(), options, x, threads, copies)
    if case["kind"] != "block matmul":
        source = quantized_integers(case, arrays, has_weight_argument=False)
        return Executables(source, CompileOptions(target_cpu=cpu), x, threads, copies)
    shape = (len(arrays["weights"]), case["depth"])
    weights = GgmlTensor(arrays["weights"].reshape(-1), case["format"], shape)
    module = trace_function(lambda operand: linear(operand, weights), x)
    options = CompileOptions(case["target"], target_cpu=cpu, activations=case["activations"])
    if case["target"] == "vulkan":
        options = replace(options, vulkan_target=Device("vulkan").vulkan_target)
    executables = Executables(module, options, x, threads, copies)
    if case["activations"] == "int8":
        executables.notes["activations"] = {
            "block": FORMATS[case["format"]].size,
            "steps": 254,
        }
    return executables
