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

READS_GGUF = HAS_TARGET_CPU = True

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


def _use_blas(wanted: bool) -> None:
    """Models that are loaded from now on compute products of `_ROWS` rows and more by OpenBLAS.

    Raises:
        Unsupported: llama.cpp was built without it.
    """
    try:
        backend = _library("libggml-blas.so").ggml_backend_blas_reg
    except OSError as error:
        if wanted:
            raise Unsupported("llama.cpp was built without OpenBLAS") from error
        return
    backend.restype = ctypes.c_void_p
    registry = _library("libggml.so")
    change = registry.ggml_backend_register if wanted else registry.ggml_backend_unload
    change.argtypes = [ctypes.c_void_p]
    change(backend())


def describe() -> dict[str, str]:
    """The name and the version."""
    return {"name": "llama.cpp", "version": _llama.__version__}


class Reader:
    """A model that reads tokens.

    Args:
        path: of its file.
        context: the room for tokens.
        threads: for prompts and tokens.
        repacked: weights lie as llama.cpp's fastest kernels read them.
        blas: products are OpenBLAS's, of the file's weights as floats, so that activations are not
            rounded. Tokens that are read are followed by others, which are forgotten, up to the
            rows that this takes.

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
        self._least = _ROWS if blas else 1
        parameters = _llama.llama_model_default_params()
        parameters.use_extra_bufts = repacked and not blas
        self._model = _llama.llama_model_load_from_file(os.fsencode(path), parameters)
        of_context = _llama.llama_context_default_params()
        of_context.n_ctx = context
        of_context.n_threads = of_context.n_threads_batch = threads
        self._context = _llama.llama_init_from_model(self._model, of_context)
        self._memory = _llama.llama_get_memory(self._context)
        self._vocabulary = _llama.llama_model_get_vocab(self._model)
        self._words = _llama.llama_vocab_n_tokens(self._vocabulary)
        self.position = self._last = 0

    def tokens(self, text: str) -> list[int]:
        """Those of a text, after the one that begins it."""
        data = text.encode()
        room = (_llama.llama_token * (len(data) + 2))()
        count = _llama.llama_tokenize(
            self._vocabulary, data, len(data), room, len(room), True, True
        )
        return list(room[:count])

    def reset(self, kept: int = 0) -> None:
        """Forget all tokens after so many."""
        _llama.llama_memory_seq_rm(self._memory, 0, kept, -1)
        self.position = kept

    def read(self, tokens: Sequence[int], *, all_logits: bool = False) -> None:
        """Read the next tokens."""
        given, following = len(tokens), max(0, self._least - len(tokens))
        batch = _llama.llama_batch_init(given + following, 0, 1)
        batch.n_tokens = given + following
        for place, token in enumerate([*tokens, *[0] * following]):
            batch.token[place], batch.pos[place] = token, self.position + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = all_logits or self._least > 1 or place == given - 1
        failed = _llama.llama_decode(self._context, batch)
        _llama.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama.cpp failed to compute the tokens")
        self.position += given
        self._last = given - 1
        if following:
            _llama.llama_memory_seq_rm(self._memory, 0, self.position, -1)

    def logits(self, place: int | None = None) -> Array:
        """What the last reading says of the token after one of its places, the last by default."""
        found = _llama.llama_get_logits_ith(self._context, self._last if place is None else place)
        return np.ctypeslib.as_array(found, (self._words,)).copy()

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
        return np.stack([self.logits(place) for place in range(len(tokens))])


class LanguageModel:
    """What is timed of a model: tokens that it reads after others.

    Args:
        case: ``prompt`` tokens go before what is timed, ``context`` is the room for all.
        tokens: those of the prompt, and after them those that are timed.
        threads: for prompts and tokens.
    """

    def __init__(self, case: Case, tokens: Array, threads: int) -> None:
        self._reader = Reader(case["file"], case["context"], threads)
        self._last = case["context"]
        self._kept = case["prompt"]
        self._timed = [int(token) for token in tokens[self._kept :]]
        if self._kept:
            self._reader.read([int(token) for token in tokens[: self._kept]])
        self.notes: dict[str, Any] = {"bytes": os.path.getsize(case["file"])}

    def call(self, copy: int) -> None:
        """As of `Prepared`."""
        if self._reader.position + len(self._timed) > self._last:
            self._reader.reset(self._kept)
        self._reader.read(self._timed)

    def result(self) -> Array:
        """As of `Prepared`."""
        self._reader.reset(self._kept)
        self._reader.read(self._timed)
        return self._reader.logits()


def prepare(case: Case, arrays: dict[str, Array], threads: int, copies: int) -> Prepared:
    """As `benchmarks.peers` says.

    Raises:
        Unsupported: it has no such operation, or was built with what the CPU of the case lacks.
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
