"""Features of this machine's CPU, by LLVM's names, from ``/proc/cpuinfo``.

Linux and LLVM name features differently. The tables leave out features that only operating systems
use, or no code.

Sources: LLVM's ``X86TargetParser.cpp`` and ``AArch64Features.td``; Linux's ``cpufeatures.h`` and
``elf_hwcaps.rst``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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
KNOWN_FEATURES = _X86.keys() | _AARCH64.keys()
"""The features that subquant knows, by LLVM's names."""

_CPUINFO = Path("/proc/cpuinfo")
_FLAGS = re.compile(r"(flags|Features)\s*:(.*)")


def simulated_host_cpu() -> str:
    """Return the CPU that stands in for this machine's; "" if none does.

    The environment variable ``SUBQUANT_HOST_CPU`` names it for tests: LLVM's name, and features
    that are added or removed: ``haswell``, ``sapphirerapids,-avx512fp16``. The machine needs all
    instructions of code that it runs.
    """
    return os.environ.get("SUBQUANT_HOST_CPU", "")


def cpuinfo_features() -> frozenset[str] | None:
    """Return the features in ``/proc/cpuinfo``; None if there is no such file."""
    try:
        with _CPUINFO.open() as cpuinfo:  # all cores have equal lines
            match = next(filter(None, map(_FLAGS.match, cpuinfo)), None)
    except OSError:
        return None
    if match is None:
        return None
    names = _X86 if match.group(1) == "flags" else _AARCH64
    flags = set(match.group(2).split())
    return frozenset(llvm for llvm, linux in names.items() if linux in flags)
