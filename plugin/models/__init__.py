"""Language models from GGUF files: programs, sessions, and the text that they give.

>>> from subquant.models import load
>>> model = load("gemma.gguf")                             # doctest: +SKIP
>>> session = model.session()                              # doctest: +SKIP
>>> logits = session.prompt([2, 818, 5279])                # doctest: +SKIP

`configuration` reads what a model is, `transformer` is its forward pass, `module` writes that as a
program, and `loading` keeps what was made of a model.
"""

from .configuration import ARCHITECTURES, Configuration
from .loading import Model, default_cache, emit, load
from .session import Session

__all__ = ["ARCHITECTURES", "Configuration", "Model", "Session", "default_cache", "emit", "load"]
