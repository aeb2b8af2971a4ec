"""Language models from GGUF files and checkpoints of Hugging Face: sessions and text.

>>> from subquant.models import load
>>> model = load("gemma.gguf")  # or the folder of a checkpoint  # doctest: +SKIP
>>> for piece in model.generate("The capital of France is", max_tokens=8):  # doctest: +SKIP
...     print(piece, end="", flush=True)
 Paris...

`configuration` reads the hyperparameters, `transformer` is the forward pass, `module` writes it as
a program, and `loading` compiles and caches it. `tokenizer` and `chat` turn text into tokens,
`sampling` draws the next token, `generation` and `perplexity` process whole texts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .architectures import ARCHITECTURES as ARCHITECTURES
    from .chat import ChatTemplate as ChatTemplate
    from .configuration import Configuration as Configuration
    from .generation import Generation as Generation
    from .generation import Statistics as Statistics
    from .loading import Model as Model
    from .loading import default_cache as default_cache
    from .loading import emit as emit
    from .loading import load as load
    from .perplexity import Perplexity as Perplexity
    from .perplexity import measure_perplexity as measure_perplexity
    from .sampling import Sampler as Sampler
    from .sampling import Sampling as Sampling
    from .session import Session as Session
    from .session import SessionBatch as SessionBatch
    from .text_batch import TextBatch as TextBatch
    from .tokenizer import TextStream as TextStream
    from .tokenizer import Tokenizer as Tokenizer

_MODULES = {
    "architectures": ("ARCHITECTURES",),
    "chat": ("ChatTemplate",),
    "configuration": ("Configuration",),
    "generation": ("Generation", "Statistics"),
    "loading": ("Model", "default_cache", "emit", "load"),
    "perplexity": ("Perplexity", "measure_perplexity"),
    "sampling": ("Sampler", "Sampling"),
    "session": ("Session", "SessionBatch"),
    "text_batch": ("TextBatch",),
    "tokenizer": ("TextStream", "Tokenizer"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: a template is rendered without IREE."""
        if name in _MODULE_OF:
            return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
