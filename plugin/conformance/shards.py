"""Divide a run into parts that machines without knowledge of each other agree on.

A part (`Shard`) runs whole batches, the same that the undivided run compiles together, so that the
parts give together what it gives, and find the same executables in a cache. Which part has a batch
depends on the cases, the devices and the number of parts alone.

Batches are dealt out by what they cost, the dearest first, each to the part that has least so far:
no part then has more than 4/3 of what the best division gives the fullest one (R. L. Graham,
"Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). Costs are estimates, as
CPU seconds of a compilation; a device that is not in the table has those of a CPU.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .batches import applies, batches_of
from .cases import Case
from .options import Shard

__all__ = ["Plan", "cost_of", "plan_run"]


@dataclass(frozen=True)
class Plan:
    """What a process runs of a run.

    Args:
        chosen: the cases that it runs on each device, in order.
        numbers: what number each result of the whole run has, by device and name of the case.
        shard: the part; None for all.
    """

    chosen: Mapping[str, list[Case]]
    numbers: Mapping[tuple[str, str], int]
    shard: Shard | None = None


def plan_run(cases: Sequence[Case], devices: Sequence[str], shard: Shard | None) -> Plan:
    """Say which cases of a run a part has; all without a part."""
    whole = {device: [case for case in cases if applies(case, device)] for device in devices}
    pairs = [(device, case.name) for device in devices for case in whole[device]]
    numbers = {pair: number for number, pair in enumerate(pairs)}
    if shard is None:
        return Plan(whole, numbers)
    batches = [(device, batch) for device in devices for batch in batches_of(cases, device)]
    costs = [cost_of(batch, device) for device, batch in batches]
    loads = [(0.0, number) for number in range(1, shard.of + 1)]
    mine = set()
    for index in sorted(range(len(batches)), key=lambda index: -costs[index]):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + costs[index], number))
        if number == shard.number:
            device, batch = batches[index]
            mine |= {(device, case.name) for case in batch}
    chosen = {
        device: [case for case in whole[device] if (device, case.name) in mine]
        for device in devices
    }
    return Plan(chosen, numbers, shard)


_MODULE_SECONDS = {"llvm-cpu": 0.5, "vulkan": 0.5, "interpreter": 0.0}
"""What a module takes besides its cases."""

_CASE_SECONDS = {
    "llvm-cpu": {"": 0.2, "convolution": 0.5},
    "vulkan": {"": 0.3, "convolution": 0.6},
    "interpreter": {"": 0.01},
}
"""What a case takes, by operation; the empty name stands for the others."""


def cost_of(batch: Sequence[Case], device: str) -> float:
    """Return about how many seconds a batch takes."""
    kind = device.partition("://")[0]
    kind = kind if kind in _CASE_SECONDS else "llvm-cpu"
    seconds = _CASE_SECONDS[kind]
    return _MODULE_SECONDS[kind] + sum(seconds.get(case.op, seconds[""]) for case in batch)
