"""Compilation by iree-compile alone, past the workarounds of subquant."""

from __future__ import annotations

import re
import subprocess

import pytest

from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import compiler_path

FIXED = "IREE is fixed: remove "
"""Start of the message of a test whose IREE limit is gone."""

CPU_FLAGS = (
    "--iree-opt-level=O2",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def compile_bare(module: str | bytes, *flags: str, cpu: str = "host") -> bytes:
    """Compile text or bytecode with iree-compile; CalledProcessError if IREE refuses it.

    Without flags it is compiled for a CPU.
    """
    cpu_flags = (*CPU_FLAGS[:-1], f"--iree-llvmcpu-target-cpu={cpu}")
    command = [compiler_path(), "-", "-o", "-", *(flags or cpu_flags)]
    data = module.encode() if isinstance(module, str) else module
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def assert_refused(
    module: str | bytes, message: bytes, workaround: str, *, cpu: str = "host"
) -> None:
    """Check in the long suite that IREE, of the pinned version, refuses a module with a message."""
    if not LONG:
        return
    try:
        compile_bare(module, cpu=cpu)
    except subprocess.CalledProcessError as error:
        assert message in error.stderr  # noqa: PT017
    else:
        pytest.fail(FIXED + workaround)


def without_barriers(lowered: str, type_: str = "") -> str:
    """Remove the compute barriers of a lowered module, of all tensors or of one type."""
    barrier = r'(%\w+) = "iree_tensor_ext.compute_barrier.start"\((%\w+)\)'
    for after, before in re.findall(barrier + (rf" : \({type_}" if type_ else ""), lowered):
        lowered = re.sub(rf'{after} = "iree_tensor_ext.compute_barrier.start".*', "", lowered)
        lowered = re.sub(rf"{after}\b", before, lowered)
    return lowered


def compile_without_barriers(text: str, *flags: str) -> bytes:
    """Compile for Vulkan without barriers, and without some flags of subquant."""
    options = CompileOptions(target="vulkan")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    remaining = [flag for flag in options.flags if not any(map(flag.startswith, flags))]
    return compile_bare(without_barriers(lowered), *remaining)
