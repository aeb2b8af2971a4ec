"""llama.cpp: products by its ggml, and whole language models by its Python bindings.

The environment variable ``SUBQUANT_LLAMA`` says where its libraries and bindings are, which
`scripts/bench` builds. Settings are llama.cpp's own, the number of threads and the context aside.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from . import Array, Case, Prepared, Unsupported
from .ggml import Products


def _load() -> Any:
    if "SUBQUANT_LLAMA" not in os.environ:
        raise Unsupported("it is not installed")
    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(os.environ["SUBQUANT_LLAMA"], "bin")
    sys.path.append(os.environ["SUBQUANT_LLAMA"])
    import llama_cpp  # type: ignore[import-not-found]

    return llama_cpp


_llama = _load()


def describe() -> dict[str, str]:
    """The name and the version."""
    return {"name": "llama.cpp", "version": _llama.__version__}


class LanguageModel:
    """A model with a context.

    Args:
        case: ``prompt`` tokens go before what is timed, ``context`` is the room for all.
        tokens: those of the prompt, and after them those that are timed.
        threads: for prompts and tokens.
    """

    def __init__(self, case: Case, tokens: Array, threads: int) -> None:
        parameters = _llama.llama_model_default_params()
        self._model = _llama.llama_model_load_from_file(case["file"].encode(), parameters)
        of_context = _llama.llama_context_default_params()
        of_context.n_ctx, of_context.n_threads, of_context.n_threads_batch = (
            case["context"],
            threads,
            threads,
        )
        self._context = _llama.llama_init_from_model(self._model, of_context)
        self._memory = _llama.llama_get_memory(self._context)
        self._words = _llama.llama_vocab_n_tokens(_llama.llama_model_get_vocab(self._model))
        self._last = case["context"] - 1
        self._prompt = [int(token) for token in tokens[: case["prompt"]]]
        self._timed = [int(token) for token in tokens[case["prompt"] :]]
        self.notes: dict[str, Any] = {"bytes": os.path.getsize(case["file"])}
        self._restart()

    def _restart(self) -> None:
        _llama.llama_memory_clear(self._memory, True)
        self._position = 0
        if self._prompt:
            self._compute(self._prompt)

    def _compute(self, tokens: list[int]) -> None:
        array = (_llama.llama_token * len(tokens))(*tokens)
        batch = _llama.llama_batch_get_one(array, len(tokens))
        if _llama.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp failed to compute the tokens")
        self._position += len(tokens)

    def call(self, copy: int) -> None:
        """As of `Prepared`."""
        if self._position + len(self._timed) > self._last:
            kept = len(self._prompt)
            _llama.llama_memory_seq_rm(self._memory, 0, kept, -1)
            self._position = kept
        self._compute(self._timed)

    def result(self) -> Array:
        """As of `Prepared`."""
        self._restart()
        self._compute(self._timed)
        logits = _llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self._words,)).copy()


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Prepared:
    """As `benchmarks.peers` says."""
    if case["kind"] == "language model":
        return LanguageModel(case, arrays["tokens"], threads)
    if case["kind"] == "block matmul":
        return Products(case["format"], arrays["weights"], arrays["x"], threads, copies)
    raise Unsupported("it has no such operation")
