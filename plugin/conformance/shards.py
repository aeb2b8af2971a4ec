"""Division of a run into batches and shards, on which independent machines agree.

A batch holds cases of a device that are compiled as one module: IREE's compiler takes most of the
time and starts anew for each module. Batches depend only on the cases of the whole run.

A shard (`Shard`) runs whole batches of the undivided run, so that the shards together have its
results, and find the same executables in a cache. The shard of a batch depends only on the cases,
the devices and the number of shards.

Batches are assigned by decreasing cost, each to the shard with the least total so far (LPT
scheduling): no shard then has more than 4/3 of the fullest one of the best division (R. L. Graham,
"Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). Costs are estimates.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cases import Case
from .options import Shard

BATCH = 12
"""The number of cases that are compiled in one module."""


def applies(case: Case, device: str) -> bool:
    """Return True if a case runs on a device."""
    if case.kind != "run":  # the same for every device: done once
        return device == "llvm-cpu"
    return device != "interpreter" or case.program is None or case.program.interpreted


def batches_of(cases: Sequence[Case], device: str) -> list[tuple[Case, ...]]:
    """Return the cases that apply to a device, in batches.

    Cases of one kind are together: what fails, fails together, and executables stay small.
    """
    by_kind: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if applies(case, device):
            group = (case.kind, case.op if case.program is None else "suite")
            by_kind.setdefault(group, []).append(case)
    return [
        tuple(group[start : start + BATCH])
        for group in by_kind.values()
        for start in range(0, len(group), BATCH)
    ]


@dataclass(frozen=True)
class Plan:
    """Cases that a process runs.

    Args:
        chosen: the cases of each device, in order.
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


_MODULE_SECONDS = 0.8
"""CPU seconds of starting a compiler, for one module."""

_CASE_SECONDS = {
    "convolution": 0.2, "dot_general": 0.2, "reduce": 0.15, "reduce_window": 0.15,
    "batch_norm_inference": 0.5, "batch_norm_training": 0.5, "batch_norm_grad": 0.5,
    "select_and_scatter": 0.4, "scatter": 0.4, "sort": 0.3, "dynamic_pad": 0.3,
    "dynamic_gather": 0.3, "if": 0.3, "case": 0.3, "while": 0.3,
}  # fmt: skip
"""CPU seconds of compiling a case, by operation; `_OTHER_SECONDS` for another operation.

Measured on the suite with an empty cache on llvm-cpu; Vulkan takes a sixth more.
"""

_OTHER_SECONDS = 0.1
"""CPU seconds of compiling a case of an operation that `_CASE_SECONDS` does not list."""
_LIGHT_SECONDS = 0.03
"""CPU seconds of a case that is only lowered or interpreted."""


def cost_of(batch: Sequence[Case], device: str) -> float:
    """Return about how many seconds a batch takes."""
    if device == "interpreter" or batch[0].kind != "run":
        return _LIGHT_SECONDS * len(batch)
    return _MODULE_SECONDS + sum(_CASE_SECONDS.get(case.op, _OTHER_SECONDS) for case in batch)
