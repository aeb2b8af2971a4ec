"""llama.cpp: products by its ggml, and whole language models by its Python bindings.

The environment variable ``SUBQUANT_LLAMA`` says where its libraries and bindings are, which
`scripts/bench` builds. Settings are llama.cpp's own, the number of threads and the context aside.
OpenBLAS, which it is built with, is used where a `Reader` is asked for it, and nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import Array, Case, Prepared, Unsupported, features_of, target_cpu
from .ggml import Products

HAS_LANGUAGE_MODELS = HAS_TARGET_CPU = True

_FEATURES = {
    **{name: name for name in ("avx2", "fma", "f16c", "bmi2", "neon", "dotprod", "sve", "sme")},
    **{"avxvnni": "avx_vnni", "avx512f": "avx512", "avx512vnni": "avx512_vnni"},
    **{"avx512bf16": "avx512_bf16", "amx-int8": "amx_int8", "i8mm": "matmul_int8"},
}
"""LLVM's name of a feature to that in ``ggml_cpu_has_...``."""

_ROWS = 32
"""Rows of a product that llama.cpp gives to OpenBLAS (``ggml-blas.cpp``), at least."""


def _load() -> Any:
    if "SUBQUANT_LLAMA" not in os.environ:
        raise Unsupported("it is not installed")
    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(os.environ["SUBQUANT_LLAMA"], "bin")
    sys.path.append(os.environ["SUBQUANT_LLAMA"])
    import llama_cpp  # type: ignore[import-not-found]

    return llama_cpp


_llama = _load()
_silent = _llama.llama_log_callback(lambda level, text, data: None)
_llama.llama_log_set(_silent, None)


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(os.path.join(os.environ["LLAMA_CPP_LIB_PATH"], name))


def _use_blas(is_enabled: bool) -> None:
    """Enable or disable OpenBLAS for GEMMs of at least `_ROWS` rows in models loaded later.

    Raises:
        Unsupported: llama.cpp was built without it.
    """
    try:
        backend = _library("libggml-blas.so").ggml_backend_blas_reg
    except OSError as error:
        if is_enabled:
            raise Unsupported("llama.cpp was built without OpenBLAS") from error
        return
    backend.restype = ctypes.c_void_p
    registry = _library("libggml.so")
    change = registry.ggml_backend_register if is_enabled else registry.ggml_backend_unload
    change.argtypes = [ctypes.c_void_p]
    change(backend())


def describe() -> dict[str, str]:
    """Return the name and the version."""
    return {"name": "llama.cpp", "version": _llama.__version__}


class Reader:
    """Model of llama.cpp that reads tokens.

    Args:
        path: the GGUF file.
        context: the maximum number of tokens.
        threads: threads of prompt and token evaluation.
        repacked: repack weights into the layout of llama.cpp's fastest kernels.
        blas: multiply dequantized weights with float activations by OpenBLAS. A short batch is
            padded with tokens to `_ROWS` rows; their cache entries are removed.

    Raises:
        Unsupported: llama.cpp was built without OpenBLAS, which `blas` needs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        context: int,
        threads: int,
        *,
        repacked: bool = True,
        blas: bool = False,
    ) -> None:
        _use_blas(blas)
        self.context = context
        self._min_rows = _ROWS if blas else 1
        parameters = _llama.llama_model_default_params()
        parameters.use_extra_bufts = repacked and not blas
        self._model = _llama.llama_model_load_from_file(os.fsencode(path), parameters)
        context_parameters = _llama.llama_context_default_params()
        context_parameters.n_ctx = context
        context_parameters.n_threads = context_parameters.n_threads_batch = threads
        self._context = _llama.llama_init_from_model(self._model, context_parameters)
        self._memory = _llama.llama_get_memory(self._context)
        self._vocabulary = _llama.llama_model_get_vocab(self._model)
        self._vocabulary_size = _llama.llama_vocab_n_tokens(self._vocabulary)
        self.position = self._last = 0

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, with the token for the beginning of a text first."""
        data = text.encode()
        buffer = (_llama.llama_token * (len(data) + 2))()
        count = _llama.llama_tokenize(
            self._vocabulary, data, len(data), buffer, len(buffer), True, True
        )
        return list(buffer[:count])

    def reset(self, length: int = 0) -> None:
        """Remove all tokens after the first `length` from the cache."""
        _llama.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.position = length

    def read(self, tokens: Sequence[int], *, all_logits: bool = False) -> None:
        """Read the next tokens."""
        count, padding = len(tokens), max(0, self._min_rows - len(tokens))
        batch = _llama.llama_batch_init(count + padding, 0, 1)
        batch.n_tokens = count + padding
        for index, token in enumerate([*tokens, *[0] * padding]):
            batch.token[index], batch.pos[index] = token, self.position + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = all_logits or self._min_rows > 1 or index == count - 1
        failed = _llama.llama_decode(self._context, batch)
        _llama.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama.cpp failed to compute the tokens")
        self.position += count
        self._last = count - 1
        if padding:
            _llama.llama_memory_seq_rm(self._memory, 0, self.position, -1)

    def logits(self, index: int | None = None) -> Array:
        """Return the logits after a token of the last batch, by default after the last one."""
        row = _llama.llama_get_logits_ith(self._context, self._last if index is None else index)
        return np.ctypeslib.as_array(row, (self._vocabulary_size,)).copy()

    def prompt(self, tokens: Sequence[int]) -> Array:
        """Read tokens, and return the logits of the next."""
        self.read(tokens)
        return self.logits()

    def next(self, token: int) -> Array:
        """Read a token, and return the logits of the next."""
        return self.prompt([token])

    def all_logits(self, tokens: Sequence[int]) -> Array:
        """Read tokens, and return the logits after each."""
        self.read(tokens, all_logits=True)
        return np.stack([self.logits(index) for index in range(len(tokens))])


class LanguageModel:
    """Timed evaluation of the tokens after a prompt.

    Args:
        case: ``gguf`` is the file, ``prompt`` the number of tokens before the timed ones,
            ``context`` the maximum.
        tokens: the prompt and the timed tokens.
        threads: threads of prompt and token evaluation.
    """

    def __init__(self, case: Case, tokens: Array, threads: int) -> None:
        self._reader = Reader(case["gguf"], case["context"], threads)
        self._prompt_length = case["prompt"]
        self._timed = [int(token) for token in tokens[self._prompt_length :]]
        if self._prompt_length:
            self._reader.read([int(token) for token in tokens[: self._prompt_length]])
        self.notes: dict[str, Any] = {"bytes": os.path.getsize(case["gguf"])}

    def call(self, copy: int) -> None:
        """See `Prepared`."""
        self._reader.reset(self._prompt_length)
        self._reader.read(self._timed)

    def result(self) -> Array:
        """See `Prepared`."""
        self._reader.reset(self._prompt_length)
        self._reader.read(self._timed)
        return self._reader.logits()


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Prepared:
    """Prepare a case: see `benchmarks.peers`.

    Raises:
        Unsupported: llama.cpp has no such operation, or its build needs features that the CPU
        lacks.
    """
    library, features = _library("libggml-cpu.so"), features_of(case)
    for ours, theirs in _FEATURES.items():
        if ours not in features and getattr(library, f"ggml_cpu_has_{theirs}")():
            raise Unsupported(f"it was built with {ours}, which {target_cpu(case)} lacks")
    if case["kind"] == "language model":
        return LanguageModel(case, arrays["tokens"], threads)
    if case["kind"] == "block matmul":
        return Products(case["format"], arrays["weights"], arrays["x"], threads, copies)
    raise Unsupported("it has no such operation")
