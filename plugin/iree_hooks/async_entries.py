"""Asynchronous entry points: variants of functions for Vulkan that signal a fence and do not wait.

Both changes happen after IREE has reached its HAL dialect.

**Allocation.** Functions allocate through the device's allocator, at once. IREE's functions
allocate through a queue, in the order of the work of the device, and free through another queue. In
IREE 3.13 an allocation whose memory is not free yet, and each work item that waits for it, wakes
the thread of the queue (``iree_hal_vulkan_queue_deferred_submission_ready``). This signals a
semaphore with a growing value, and nothing orders the threads that signal it
(``iree_hal_vulkan_queue_signal_wakeup``): two threads do if one call follows another at once, or
one iteration of a loop another. Mesa reports a lost device if the lower value comes after the
higher one. Work that waits only for submitted work wakes no thread.
`tests/test_vulkan_waits.py`, `test_no_function_allocates_from_a_queue`, shows IREE's behavior.

**Fences.** A function that waits itself blocks on a thread of IREE, which can take longer than the
device (`subquant.runtime.open_device`). The variant ``@f$fenced`` of a public function ``@f`` takes
a fence after the arguments; the device signals it, and the caller waits. A function has this
variant if it submits one command buffer, once, and only returns after its wait: no loops.
"""

from __future__ import annotations

from typing import Any

from . import hal_operations as hal
from .entry_names import ASYNC_SUFFIX

_SUBMISSIONS = (hal.EXECUTE, hal.EXECUTE_INDIRECT)
_FENCE_OPERATIONS = (hal.NULL, hal.FENCE_CREATE, hal.FENCE_JOIN, hal.FENCE_AWAIT, *_SUBMISSIONS)
_RETURN_OPERATIONS = (hal.CHECK_OK, hal.CONSTANT, hal.BUFFER_VIEW_CREATE, "util.return")
"""The operations that may follow the wait."""


def add_async_entries(ir: Any, module: Any) -> None:
    """Add asynchronous entry points to a program in IREE's HAL dialect; `ir` is IREE's bindings."""
    hal.separate_branch_buffers(ir, module)
    for function in hal.child_operations(module):
        _allocate_at_once(ir, function)
        if hal.is_public(function) and _submits_once(function):
            entry = hal.clone_function(
                ir, function, function.attributes["sym_name"].value + ASYNC_SUFFIX
            )
            wait = _final_wait(entry)
            if wait is None:
                entry.erase()
            else:
                _take_fence(ir, entry, wait)


def _submits_once(function: Any) -> bool:
    """True if the function submits one command buffer, outside of branches."""
    blocks = list(function.regions[0].blocks)
    unconditional = blocks if len(blocks) == 1 else [blocks[0], blocks[-1]]
    executed_once = [op.operation for block in unconditional for op in block.operations]
    if executed_once[-1].name != "util.return":
        return False
    count = 0
    for op in hal.child_operations(function):
        uses_queue = op.name.startswith(hal.QUEUE)
        if list(op.regions) or (hal.has_fences(op) and op.name not in _FENCE_OPERATIONS):
            return False
        if uses_queue and (op.name not in _FENCE_OPERATIONS or op not in executed_once):
            return False
        if uses_queue and not hal.is_result_of(_signal_fence(op), hal.FENCE_CREATE):
            return False
        count += op.name in _SUBMISSIONS
    return count == 1


def _wait_fence(op: Any) -> Any:
    """Return the fence that a queue operation waits for."""
    return op.operands[2]


def _signal_fence(op: Any) -> Any:
    """Return the fence that a queue operation signals."""
    return op.operands[3]


def _allocate_at_once(ir: Any, function: Any) -> None:
    """Replace queue allocations of a function by allocations, which the last user frees."""
    for op in hal.descendants(function):
        if op.name not in (hal.ALLOCA, hal.DEALLOCA) or not _is_local_fence(_signal_fence(op)):
            continue
        if op.name == hal.ALLOCA:
            device, affinity, _, _, _, memory_type, usage, size = op.operands
            with ir.InsertionPoint(op), op.location:
                type_ = ir.Type.parse("!hal.allocator")
                allocator = ir.Operation.create("hal.device.allocator", [type_], [device]).result
                operands = [allocator, affinity, memory_type, usage, size]
                allocation = ir.Operation.create(
                    "hal.allocator.allocate", [op.result.type], operands
                )
            op.result.replace_all_uses_with(allocation.result)
        signaled = _signal_fence(op).owner
        signaled.result.replace_all_uses_with(_wait_fence(op))
        op.erase()
        signaled.erase()
    for op in hal.descendants(function):
        if op.name == hal.FENCE_JOIN and all(
            hal.is_result_of(fence, hal.NULL) for fence in op.operands
        ):
            op.result.replace_all_uses_with(op.operands[0])
            op.erase()


def _is_local_fence(fence: Any) -> bool:
    """True for a fence that the function creates and only the device signals."""
    users = {use.owner.name for use in fence.uses}
    return hal.is_result_of(fence, hal.FENCE_CREATE) and not any(
        name.startswith("hal.fence.") and name not in (hal.FENCE_JOIN, hal.FENCE_AWAIT)
        for name in users
    )


def _final_wait(function: Any) -> Any:
    """Return the wait for the command buffer; None unless only a return follows it."""
    operations = [op.operation for op in list(function.regions[0].blocks)[-1].operations]
    names = [op.name for op in operations]
    if hal.FENCE_AWAIT not in names:
        return None
    index = len(names) - 1 - names[::-1].index(hal.FENCE_AWAIT)
    wait = operations[index]
    checks = {use.owner.name for use in wait.result.uses}
    fences = list(wait.operands)[1:]
    users = [use.owner.operation for fence in fences for use in fence.uses]
    submissions = [op for op in users if op.name in _SUBMISSIONS]
    waits_for_device = (
        len(fences) == 1
        and len(users) == 2
        and len(submissions) == 1
        and _signal_fence(submissions[0]) == fences[0]
        and hal.is_result_of(_wait_fence(submissions[0]), hal.NULL)
    )
    is_last = set(names[index + 1 :]) <= set(_RETURN_OPERATIONS) and checks <= {hal.CHECK_OK}
    return wait if waits_for_device and is_last else None


def _take_fence(ir: Any, function: Any, wait: Any) -> None:
    """Replace the fence that a function creates and waits for by an argument, without a wait."""
    block = function.regions[0].blocks[0]
    created = wait.operands[1]
    argument = block.add_argument(created.type, function.location)
    for use in list(wait.result.uses):
        use.owner.operation.erase()
    wait.erase()
    created.replace_all_uses_with(argument)
    created.owner.erase()
    if "arg_attrs" in function.attributes:  # there is one for each of the former arguments
        del function.attributes["arg_attrs"]
    hal.set_function_type(ir, function, list(function.attributes["function_type"].value.results))
