"""Invokers: how a call of IREE's runtime waits for the device, one class for each kind of device.

The functions of an executable share an invoker. Its `invoke` runs a function with a list of
arguments and a list for the results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from ..signature import WorkEstimate
from .cpu_affinity import yielding_to_waker
from .entry_points import async_entries, control_block_setter
from .open_device import OpenDevice
from .worker_threads import WorkerPool

_SHORT_CALL_NANOSECONDS = 200_000
"""Estimated nanoseconds of a call, beyond which it wakes all workers; a wake-up takes 50 us."""


class PlainInvoker:
    """The invoker of functions that wait themselves.

    Attributes:
        invoke: the method of IREE's context, or a wrapper of it.
    """

    def __init__(self, context: Any, device: OpenDevice) -> None:
        self.invoke = yielding_to_waker(context.invoke) if device.has_threads else context.invoke


class PoolInvoker:
    """The invoker of functions on the caller's thread, which wakes parked workers of a pool.

    Args:
        is_long: calls are long enough for parked workers to wake in time.
    """

    def __init__(self, context: Any, pool: WorkerPool, *, is_long: bool) -> None:
        self._run, self._pool = context.invoke, pool
        self._wake = pool.wake_all if is_long else pool.wake

    def invoke(self, function: Any, pushed: Any, popped: Any) -> None:
        """Run a function together with the workers."""
        if self._pool.parked:
            self._wake()
        self._run(function, pushed, popped)


class AsyncInvoker:
    """The invoker of functions that take fences, which waits for the device.

    Args:
        async_external: the names of functions that take a fence to wait for and one to signal,
            which IREE compiles with ``--iree-execution-model=async-external``.
        entries: the asynchronous entry points of `subquant.iree_hooks.async_entries` by the names
            of their functions.
    """

    def __init__(
        self,
        context: Any,
        device: OpenDevice,
        async_external: Collection[str],
        entries: Mapping[str, Any],
    ) -> None:
        self._run, self._async_external, self._entries = context.invoke, async_external, entries
        self._device = device  # the last attribute that is released

    def invoke(self, function: Any, pushed: Any, popped: Any) -> None:
        """Run a function, and wait until the device is done."""
        entry = self._entries.get(function.name)
        if entry is not None:
            self._device.complete(self._submit, entry, pushed, popped)
        elif function.name in self._async_external:
            self._device.complete(self._submit_after, function, pushed, popped)
        else:
            self._run(function, pushed, popped)

    def _submit(self, function: Any, pushed: Any, popped: Any, start: Any, end: Any) -> None:
        pushed.push_ref(end)
        self._run(function, pushed, popped)

    def _submit_after(self, function: Any, pushed: Any, popped: Any, start: Any, end: Any) -> None:
        pushed.push_ref(start)
        self._submit(function, pushed, popped, start, end)


Invoker: TypeAlias = PlainInvoker | PoolInvoker | AsyncInvoker


def invoker_of(
    context: Any,
    module: Any,
    device: OpenDevice,
    pool: WorkerPool | None,
    work: Sequence[WorkEstimate | None],
) -> Invoker:
    """Return the invoker of an executable on a device, with a worker pool or without."""
    if pool is not None:
        pool.call(device, context.invoke, control_block_setter(module))
        is_long = any(each is None or each.nanoseconds > _SHORT_CALL_NANOSECONDS for each in work)
        return PoolInvoker(context, pool, is_long=is_long)
    coarse_fences = ("iree.abi.model", "coarse-fences")  # as IREE records it
    async_external = {
        name
        for name in module.function_names
        if coarse_fences in dict(module.lookup_function(name).reflection).items()
    }
    entries = async_entries(module)
    if not async_external and not entries:
        return PlainInvoker(context, device)
    return AsyncInvoker(context, device, async_external, entries)
