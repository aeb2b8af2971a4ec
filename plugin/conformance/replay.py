"""Commands that replay one case: a run of its own, or its program and inputs from files."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import numpy as np

from .cases import SYMBOL, Case, prepare
from .options import RunOptions

_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")


def replay_command(name: str, device: str, options: RunOptions) -> str:
    """Return the command that runs one case of a run again, quoted for a shell."""
    pattern = _SPECIAL.sub(r"\\\g<0>", name)
    words = ["subquant", "conformance", "--filter", f"^{pattern}$", "--device", device]
    if name.startswith("suite/random/"):
        words += ["--random", str(options.random)]
    if name.startswith(("stablehlo/", "tosa/")) and options.stablehlo is not None:
        words += ["--stablehlo", options.stablehlo]
    if name.startswith("llvm/") and options.llvm is not None:
        words += ["--llvm", options.llvm]
    if options.expected is not None:
        words += ["--expected", options.expected]
    return shlex.join(words)


def save_case(case: Case, folder: str | os.PathLike[str], device: str = "llvm-cpu") -> str:
    """Write a case's program and inputs, or raise OSError; return its replay command, quoted."""
    prepared = prepare(case)
    stem = re.sub(r"[^\w.-]+", "_", case.name)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    program = path / f"{stem}.mlir"
    program.write_text(prepared.text.replace(SYMBOL, "main"))
    if case.kind != "run":
        return shlex.join(["subquant", "compile", str(program), "--emit", "mlir"])
    words = ["subquant", "exec", str(program)]
    if device.partition("://")[0] == "vulkan":
        words += ["--target", "vulkan"]
    if "://" in device:
        words += ["--device", device]
    for number, array in enumerate(prepared.inputs):
        np.save(path / f"{stem}.{number}.npy", array, allow_pickle=False)
        words += ["--input", f"@{path / stem}.{number}.npy"]
    for number, golden in enumerate(prepared.goldens):
        np.save(path / f"{stem}.expected{number}.npy", golden.value, allow_pickle=False)
        words += ["--expect", f"@{path / stem}.expected{number}.npy"]
    return shlex.join(words)
