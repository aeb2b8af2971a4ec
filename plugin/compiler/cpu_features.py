"""What a CPU must have to run an executable: recorded when it is compiled, compared when it loads.

IREE's runtime does not compare, and a CPU that lacks an instruction ends the process at it.
Features are written as LLVM names them, and found in ``/proc/cpuinfo``, whose names differ. Those
are left out that are for operating systems, or that no code uses. Where there is no such file,
nothing is recorded and nothing refused. Code for ``generic`` needs none.

Sources: LLVM's ``X86TargetParser.cpp`` and ``AArch64Features.td``; Linux's ``cpufeatures.h`` and
``elf_hwcaps.rst``.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from .compile_options import CompileOptions
from .targets import simulated_host_cpu

__all__ = ["host_features", "missing_features", "recorded_features"]

_X86 = {
    "sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "pclmul": "pclmulqdq", "sha": "sha_ni",
    "sse4.1": "sse4_1", "sse4.2": "sse4_2", "avxvnni": "avx_vnni", "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert", "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "avx512bitalg": "avx512_bitalg", "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni",
    "avx512vpopcntdq": "avx512_vpopcntdq", "amx-tile": "amx_tile", "amx-int8": "amx_int8",
    **{name: name for name in (
        "ssse3", "sse4a", "popcnt", "movbe", "bmi2", "avx", "avx2", "f16c", "fma", "fma4", "xop",
        "tbm", "adx", "aes", "gfni", "vaes", "vpclmulqdq", "avx512f", "avx512bw", "avx512cd",
        "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi",
    )},
}  # fmt: skip
_AARCH64 = {
    "neon": "asimd", "fullfp16": "asimdhp", "dotprod": "asimddp", "rdm": "asimdrdm",
    "fp16fml": "asimdfhm", "lse": "atomics", "complxnum": "fcma", "jsconv": "jscvt",
    **{name: name for name in ("bf16", "i8mm", "sve", "sve2", "sme", "aes", "sha2", "sha3")},
}  # fmt: skip
"""LLVM's name of a feature to that of Linux."""

_CPUINFO = Path("/proc/cpuinfo")
_FLAGS = re.compile(r"(flags|Features)\s*:(.*)")


@functools.cache
def host_features() -> frozenset[str] | None:
    """Return the features of this machine's CPU, by LLVM's names; None where that is not known."""
    if simulated_host_cpu():
        from .iree_driver import target_features

        return target_features(CompileOptions()) & (_X86.keys() | _AARCH64.keys())
    try:
        with _CPUINFO.open() as lines:  # the first of many equal ones
            found = next(filter(None, map(_FLAGS.match, lines)), None)
    except OSError:
        return None
    if found is None:
        return None
    names, has = (_X86 if found.group(1) == "flags" else _AARCH64), set(found.group(2).split())
    return frozenset(ours for ours, theirs in names.items() if theirs in has)


def recorded_features(options: CompileOptions) -> str:
    """Return the features that a compilation may use, as `missing_features` reads them.

    Raises:
        UsageError: LLVM knows no such CPU.
        EnvironmentProblem: IREE's compiler is not installed.
    """
    if options.target != "llvm-cpu":
        return ""
    if not any(flag.startswith("--iree-llvmcpu-target") for flag in options.iree_flags):
        if options.target_cpu == "generic":
            return ""
        if options.target_cpu == "host":
            return ",".join(sorted(host_features() or ()))
    from .iree_driver import target_features

    known = _X86.keys() | _AARCH64.keys()
    return ",".join(sorted(known.intersection(target_features(options))))


def missing_features(recorded: str) -> list[str]:
    """Return the features of `recorded_features` that this machine's CPU does not have."""
    has = host_features()
    return [] if has is None else [name for name in recorded.split(",") if name and name not in has]
