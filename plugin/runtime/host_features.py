"""CPU features of this machine, compared with those that an executable records."""

from __future__ import annotations

import functools

from ..core.cpu_features import cpuinfo_features, simulated_host_cpu
from ..isolation.client import call


@functools.cache
def host_features() -> frozenset[str] | None:
    """Return the features of this machine's CPU, by LLVM's names; None if they are unknown."""
    cpu = simulated_host_cpu()
    if not cpu:
        return cpuinfo_features()
    features, _ = call("subquant.compiler.iree_driver:simulated_features", {"cpu": cpu})
    return frozenset(features)


def missing_features(recorded: str) -> list[str]:
    """Return the recorded features that this machine's CPU lacks; none if they are unknown."""
    present = host_features()
    return [
        name for name in recorded.split(",") if name and present is not None and name not in present
    ]
