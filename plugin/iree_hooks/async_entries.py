"""What is changed of a program for Vulkan where IREE has reached its HAL dialect.

All functions have their memory from the device's allocator, which gives it at once. IREE's have it
from a queue, in the order of what the device does, and give it back to another one. In IREE 3.13
who asks for memory that is not back yet, and what waits for that, has the queue's thread woken
(``iree_hal_vulkan_queue_deferred_submission_ready``). A number that grows is signalled for that,
and nothing orders the threads that do (``iree_hal_vulkan_queue_signal_wakeup``): when a call
follows the last one at once, or one round of a loop the other, two are there. Mesa takes the lower
number after the higher one for a lost device. What waits for nothing that is still to be asked for
wakes nobody.

A function that waits itself waits for a thread of IREE's, which can take longer than the device
does: `subquant.runtime.open_device` says why. So beside a public function ``@f`` there is
``@f$fenced``, that returns before the device is done. After the arguments of ``@f`` it takes a
fence, which the device signals when it is done, and does not wait: its caller does. IREE's tools
take what has a ``$`` in its name for nothing that a user calls. It asks the device for one thing,
to run a command buffer: there is none where a function asks for more than that, for example in a
loop, or does anything when it has waited but return.

This file imports nothing of the package, which has another MLIR.
"""

from __future__ import annotations

from typing import Any

try:
    from .sync_entries import (
        all_in,
        copy_of,
        is_made_by,
        is_public,
        operations_in,
        pass_buffers_once,
    )
except ImportError:  # in a program by itself
    from sync_entries import (  # type: ignore[import-not-found, no-redef]
        all_in,
        copy_of,
        is_made_by,
        is_public,
        operations_in,
        pass_buffers_once,
    )

__all__ = ["FENCED", "add_async_entries"]

FENCED = "$fenced"
"""What is put after a function's name."""

_QUEUE = "hal.device.queue."
_ALLOCATES, _FREES = f"{_QUEUE}alloca", f"{_QUEUE}dealloca"
_SUBMITS = (f"{_QUEUE}execute", f"{_QUEUE}execute.indirect")
_OF_FENCE = "hal.fence."
_NONE, _MAKES, _JOINS = "util.null", f"{_OF_FENCE}create", f"{_OF_FENCE}join"
_WAITS, _STOPS = f"{_OF_FENCE}await", "util.status.check_ok"
_FENCE = "!hal.fence"
_OF_FENCES = (_NONE, _MAKES, _JOINS, _WAITS, *_SUBMITS)
_RETURNS = (_STOPS, "arith.constant", "hal.buffer_view.create", "util.return")
"""What is done after the device."""


def add_async_entries(ir: Any, module: Any) -> None:
    """Add the functions to a module.

    Args:
        ir: the bindings of IREE's compiler.
        module: in IREE's HAL dialect.
    """
    pass_buffers_once(ir, module)
    for function in operations_in(module):
        _allocate_at_once(ir, function)
        if is_public(function) and _is_known(function):
            fenced = copy_of(ir, function, function.attributes["sym_name"].value + FENCED)
            waits = _last_wait(fenced)
            if waits is None:
                fenced.erase()
            else:
                _take_fence(ir, fenced, waits)


def _is_known(function: Any) -> bool:
    """True if the device is asked for one command buffer, once."""
    blocks = list(function.regions[0].blocks)
    ends = blocks if len(blocks) == 1 else [blocks[0], blocks[-1]]
    once = [op.operation for block in ends for op in block.operations]
    if once[-1].name != "util.return":
        return False
    count = 0
    for op in operations_in(function):
        is_asked = op.name.startswith(_QUEUE)
        has_fences = any(str(each.type) == _FENCE for each in [*op.operands, *op.results])
        if list(op.regions) or (has_fences and op.name not in _OF_FENCES):
            return False
        if is_asked and (op.name not in _OF_FENCES or op not in once):
            return False
        if is_asked and not is_made_by(_signalled(op).owner, _MAKES):
            return False
        count += op.name in _SUBMITS
    return count == 1


def _awaited(op: Any) -> Any:
    """The fence that something waits for that a queue is asked for."""
    return op.operands[2]


def _signalled(op: Any) -> Any:
    """The fence that it signals."""
    return op.operands[3]


def _allocate_at_once(ir: Any, function: Any) -> None:
    """Have a function allocate memory by itself, which is freed by who uses it last."""
    for op in all_in(function):
        if op.name not in (_ALLOCATES, _FREES) or not _is_for_waits(_signalled(op)):
            continue
        if op.name == _ALLOCATES:
            device, affinity, _, _, _, memory, usage, size = op.operands
            with ir.InsertionPoint(op), op.location:
                type_ = ir.Type.parse("!hal.allocator")
                allocator = ir.Operation.create("hal.device.allocator", [type_], [device]).result
                given = [allocator, affinity, memory, usage, size]
                made = ir.Operation.create("hal.allocator.allocate", [op.result.type], given)
            op.result.replace_all_uses_with(made.result)
        made = _signalled(op).owner
        made.result.replace_all_uses_with(_awaited(op))
        op.erase()
        made.erase()
    for op in all_in(function):
        if op.name == _JOINS and all(is_made_by(each.owner, _NONE) for each in op.operands):
            op.result.replace_all_uses_with(op.operands[0])
            op.erase()


def _is_for_waits(fence: Any) -> bool:
    """True for a fence that is made here, and that nobody signals but the device."""
    names = {use.owner.name for use in fence.uses}
    return is_made_by(fence.owner, _MAKES) and not any(
        name.startswith(_OF_FENCE) and name not in (_JOINS, _WAITS) for name in names
    )


def _last_wait(function: Any) -> Any:
    """What waits for the command buffer, if that waits for nothing, and only a return is behind."""
    operations = [op.operation for op in list(function.regions[0].blocks)[-1].operations]
    names = [op.name for op in operations]
    if _WAITS not in names:
        return None
    place = len(names) - 1 - names[::-1].index(_WAITS)
    waits = operations[place]
    stops = [use.owner.name for use in waits.result.uses]
    fences = list(waits.operands)[1:]
    users = [use.owner.operation for fence in fences for use in fence.uses]
    submitted = [op for op in users if op.name in _SUBMITS]
    is_of_device = (
        len(fences) == 1
        and len(users) == 2
        and len(submitted) == 1
        and _signalled(submitted[0]) == fences[0]
        and is_made_by(_awaited(submitted[0]).owner, _NONE)
    )
    is_last = set(names[place + 1 :]) <= set(_RETURNS) and set(stops) <= {_STOPS}
    return waits if is_of_device and is_last else None


def _take_fence(ir: Any, function: Any, waits: Any) -> None:
    """Have a function take a fence in the place of the one that it waits for, and not wait."""
    block = function.regions[0].blocks[0]
    made = waits.operands[1]
    done = block.add_argument(made.type, function.location)
    for use in list(waits.result.uses):
        use.owner.operation.erase()
    waits.erase()
    made.replace_all_uses_with(done)
    made.owner.erase()
    if "arg_attrs" in function.attributes:  # one for each that it took before
        del function.attributes["arg_attrs"]
    with function.context:
        taken = [argument.type for argument in block.arguments]
        type_ = ir.FunctionType.get(taken, function.attributes["function_type"].value.results)
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
