"""CPU features of a compilation, which the executable records for the check at load time.

IREE's runtime does not check features, and a CPU that lacks an instruction ends the process at it.
Code for ``generic`` needs no features. Without ``/proc/cpuinfo`` nothing is recorded.
"""

from __future__ import annotations

import functools
from typing import Any

from ..core.cpu_features import KNOWN_FEATURES, cpuinfo_features, simulated_host_cpu
from .compile_options import CompileOptions


@functools.cache
def host_features() -> frozenset[str] | None:
    """Return the features of this machine's CPU, by LLVM's names; None if they are unknown."""
    if simulated_host_cpu():
        from .iree_driver import target_features

        return target_features(CompileOptions()) & KNOWN_FEATURES
    return cpuinfo_features()


def simulated_features(
    arguments: dict[str, Any], blobs: list[bytes], steps: object
) -> tuple[list[str], list[bytes]]:
    """Return the features of the CPU ``cpu`` that is simulated: for `runtime`, in a child."""
    from .iree_driver import target_features

    name, _, changes = arguments["cpu"].partition(",")
    flags = (f"--iree-llvmcpu-target-cpu-features={changes}",) if changes else ()
    features = target_features(CompileOptions(target_cpu=name, iree_flags=flags))
    return sorted(features & KNOWN_FEATURES), []


def recorded_features(options: CompileOptions) -> str:
    """Return the features that code may use, separated by commas; errors as `target_features`."""
    if options.target != "llvm-cpu":
        return ""
    if not any(flag.startswith("--iree-llvmcpu-target") for flag in options.iree_flags):
        if options.target_cpu == "generic":
            return ""
        if options.target_cpu == "host":
            return ",".join(sorted(host_features() or ()))
    from .iree_driver import target_features

    return ",".join(sorted(KNOWN_FEATURES & target_features(options)))
