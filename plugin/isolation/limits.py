"""Limits of time and memory: `Limits` for users, and the functions that set them in a child."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.option_fields import option
from ..errors import UsageError

_OWN_CONTROL_GROUPS = Path("/proc/self/cgroup")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_WALL_TIME_PER_CPU_TIME = 10
"""A child may take this many times its limit of CPU time, for one that waits forever."""


@dataclass(frozen=True)
class Limits:
    """Limits of a child process that reads and lowers a module.

    Args:
        parse_seconds: CPU time of MLIR's parser, bytecode reader or printer for one module.
        pass_seconds: CPU time of each pass; None for no limit.
        memory_gib: data of the child; by default three quarters of the machine's memory.

    Raises:
        UsageError: a limit is not positive.
    """

    parse_seconds: float = option(20.0, "Limit of the CPU time of MLIR's parser.", "SECONDS")
    pass_seconds: float | None = option(
        None, "Limit of the CPU time of each pass.  [default: no limit]", "SECONDS"
    )
    memory_gib: float | None = option(
        None, "Memory limit of MLIR in GiB.  [default: three quarters of the machine's]", "GIB"
    )

    def __post_init__(self) -> None:
        for name in ("parse_seconds", "pass_seconds", "memory_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1e9:
                raise UsageError(
                    f"option '{name.replace('_', '-')}' must be above 0, and at most 1e9, got "
                    f"{value}"
                )

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes; None if the memory of the machine is unknown."""
        if self.memory_gib is not None:
            return int(self.memory_gib * 2**30)
        memory = machine_memory()
        return None if memory is None else memory // 4 * 3


def machine_memory() -> int | None:
    """Return the bytes of this machine's memory; None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def available_cores() -> int:
    """Return the number of cores that this process may use, by affinity and CPU quota.

    Linux suspends all threads of a container that has used its quota of CPU time, which those of
    more threads than its cores use sooner. A quota of 1.5 cores counts as two.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return os.cpu_count() or 1
    return min([cores, *_cpu_quotas()])


def _cpu_quotas() -> list[int]:
    """Return the quotas of CPU time, in cores, of this process' control groups (cgroup v2)."""
    try:
        text = _OWN_CONTROL_GROUPS.read_text()
    except OSError:
        return []
    prefix = "0::/"
    paths = [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]
    quotas = []
    for path in paths:
        group = _CONTROL_GROUPS / path
        for folder in [group, *group.parents]:
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (folder / "cpu.max").read_text().split()
                if quota != "max":
                    quotas.append(max(1, -(-int(quota) // int(period))))
            if folder == _CONTROL_GROUPS:
                break
    return quotas


@contextlib.contextmanager
def memory_limit(size: int | None) -> Iterator[None]:
    """Limit heaps, stacks and private mappings of this process in the block (``RLIMIT_DATA``)."""
    import resource  # few children need it

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    is_lower = size is not None and (hard == resource.RLIM_INFINITY or size < hard)
    soft = size if size is not None and is_lower else hard
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def set_time_limit(seconds: float | None) -> None:
    """Let a signal end this process, a child, after some time from now; None for no limit.

    ``SIGPROF`` comes after `seconds` of CPU time, which do not depend on the load of the machine,
    and ``SIGALRM`` after ten times that of wall time, for a process that waits forever. No loop in
    C++ can delay the default action of either signal.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds or 0)
    set_wall_time_limit(_WALL_TIME_PER_CPU_TIME * (seconds or 0))


def set_wall_time_limit(seconds: float) -> None:
    """Let ``SIGALRM`` end this process, a child, after some wall time from now."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of a block by `set_time_limit`."""
    set_time_limit(seconds)
    try:
        yield
    finally:
        set_time_limit(None)
