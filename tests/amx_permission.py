"""Runs of a program in a process that Linux refuses AMX."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

_WITHOUT_PERMISSION = """
    import ctypes, struct, sys
    import numpy as np
    from subquant.runtime import Device, Executable

    # arch_prctl(ARCH_REQ_XCOMP_PERM, ...) fails, as seccomp's filter of a container may have it.
    load, equal, answer = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 3, 158), (load, 0, 0, 16), (equal, 0, 1, 0x1023),
             (answer, 0, 0, 0x00050001), (answer, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(
        22, 2, ctypes.byref(Filter(len(steps), ctypes.addressof(code))), 0, 0
    ):
        sys.exit("no filter")
    assert libc.syscall(158, 0x1023, 18) == -1
    with open("program.vmfb", "rb") as file:
        program = file.read()
    inputs = [np.load(f"input{number}.npy") for number in range(int(sys.argv[1]))]
    for threads in (1, 2):
        actual = Executable(program, Device("llvm-cpu", threads=threads))["main"](*inputs)
        np.save(f"actual{threads}.npy", actual)
"""


def results_without_permission(
    program: bytes, inputs: Sequence[np.ndarray], folder: Path
) -> list[np.ndarray]:
    """Return the results with one and two threads; skip the test where filters are refused."""
    folder.joinpath("program.vmfb").write_bytes(program)
    for number, array in enumerate(inputs):
        np.save(folder / f"input{number}.npy", array)
    command = [sys.executable, "-c", textwrap.dedent(_WITHOUT_PERMISSION), str(len(inputs))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "no filter" in done.stderr:
        pytest.skip("this process may not filter system calls")
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"actual{threads}.npy") for threads in (1, 2)]
