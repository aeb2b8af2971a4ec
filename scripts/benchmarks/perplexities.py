"""Perplexity of GGUF files by llama.cpp beside subquant's.

    scripts/bench --perplexity page.txt model-f16.gguf model-q4k.gguf

Both read the chunks of `subquant perplexity` from the same file, with float activations (llama.cpp
by OpenBLAS), and the formula is the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from subquant.models import load
from subquant.models.perplexity import measure_perplexity
from subquant.models.text_chunks import DEFAULT_CHUNK

from .peers.llama import Reader

_PADDING = 32
"""Tokens that `Reader` may add to a short batch, for which the context needs room."""


def perplexities(text: str, paths: Sequence[Path], threads: int) -> Iterator[str]:
    """Yield a line for each file: both perplexities, and the file's size."""
    for path in paths:
        model = load(path, context=DEFAULT_CHUNK, threads=threads, activations="float")
        reader: Any = Reader(path, DEFAULT_CHUNK + _PADDING, threads, blas=True)
        ours, theirs = (
            measure_perplexity(session, model.tokenizer, text, chunk=DEFAULT_CHUNK).value
            for session in (model.session(), reader)
        )
        size = path.stat().st_size
        yield (
            f"{path.name} ({size:,} bytes): subquant {ours:.4f}, llama.cpp {theirs:.4f} "
            f"({ours / theirs - 1:+.3%})"
        )
