"""How to run a single case again: its program and inputs as files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from .cases import SYMBOL, Case, prepare

__all__ = ["save_case"]


def save_case(case: Case, folder: str | os.PathLike[str], device: str = "llvm-cpu") -> str:
    """Write a case's program and inputs, and return the command that replays it.

    Raises:
        OSError: the folder cannot be written.
    """
    prepared = prepare(case)
    stem = re.sub(r"[^\w.-]+", "_", case.name)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{stem}.mlir").write_text(prepared.text.replace(SYMBOL, "main"))
    if case.kind != "run":
        return f"subquant compile {path / stem}.mlir --emit mlir"
    command = f"subquant exec {path / stem}.mlir"
    command += "" if device in ("llvm-cpu", "interpreter") else " --target vulkan"
    for number, array in enumerate(prepared.inputs):
        np.save(path / f"{stem}.{number}.npy", array, allow_pickle=False)
        command += f" --input @{path / stem}.{number}.npy"
    for number, golden in enumerate(prepared.goldens):
        np.save(path / f"{stem}.expected{number}.npy", golden.value, allow_pickle=False)
        command += f" --expect @{path / stem}.expected{number}.npy"
    return command
