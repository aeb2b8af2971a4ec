"""Detection of the format of a weights file, by its first bytes and name; imports no reader."""

from __future__ import annotations

import os

from ..core.files import open_input
from ..errors import InputError

_MAGIC = {b"IRPA": "irpa", b"GGUF": "gguf"}

SUFFIXES = {
    ".irpa": "irpa",
    ".gguf": "gguf",
    ".safetensors": "huggingface",
    ".safetensors.index.json": "huggingface",
}
"""The formats of weights by the ends of names, the longer of two that fit last."""


def weights_format(path: str | os.PathLike[str]) -> str | None:
    """Return "irpa", "gguf" or "huggingface" for a file or folder of weights, else None."""
    if os.path.isdir(path):
        return "huggingface"
    try:
        with open_input(path) as file:
            start = file.read(4)
    except (InputError, OSError):
        start = b""  # the reader raises the error
    name = os.fspath(path).lower()
    by_name = (kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix))
    return _MAGIC.get(start) or next(by_name, None)
