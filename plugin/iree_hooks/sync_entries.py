"""Synchronous entry points: variants of functions for a CPU device that computes on submission.

IREE's functions allocate results, submit work and wait, all ordered by fences, and each call gets
new memory for its results. On a device that runs a submission at once (``local-sync``) fences order
nothing and take a fifth of the time of a small program. Each public function ``@f`` therefore gets
variants, after IREE has reached its HAL dialect:

* ``@f$unfenced`` computes the same without fences.
* ``@f$memory`` takes the arguments of ``@f``, and returns the buffers that ``@f`` would allocate,
  then its results, which are views of the buffers.
* ``@f$bound`` takes the arguments of ``@f`` and then these buffers, and computes the results.
* ``@f$record`` takes the same, and returns a command buffer that computes the results.
* ``@f$replay`` takes this command buffer, and executes it.

A function has the last four if each result is a view of memory that it allocates and nothing
depends on a branch, and the last two if it submits only commands that are recorded when the program
is loaded, and reads no variables. A variable that it writes gets memory of its own in each call. A
function has no variant if it uses fences in ways that this file does not know.
"""

from __future__ import annotations

from typing import Any

from . import hal_operations as hal
from .entry_names import (
    ALLOCATE_SUFFIX,
    BOUND_SUFFIX,
    RECORD_SUFFIX,
    REPLAY_SUFFIX,
    SYNC_SUFFIX,
)

_COMMAND_BUFFER = 4
"""The command buffer's index among the operands of ``hal.device.queue.execute.indirect``.

Its bindings follow. The order is that of IREE 3.13: if it changes, variants for recorded calls are
missing, or bind other buffers.
"""
_SUBMISSIONS = (
    *(hal.ALLOCA, hal.DEALLOCA, hal.EXECUTE, hal.EXECUTE_INDIRECT),
    *(f"{hal.QUEUE}copy", f"{hal.QUEUE}fill", f"{hal.QUEUE}update"),
)
_FENCE_SOURCES = (hal.FENCE_CREATE, hal.FENCE_JOIN)
_GLOBAL_LOAD, _GLOBAL_STORE = "util.global.load", "util.global.store"
_FENCE_OPERATIONS = (
    *(*_SUBMISSIONS, *_FENCE_SOURCES, hal.NULL, hal.FENCE_AWAIT, *hal.BRANCHES),
    *(_GLOBAL_LOAD, _GLOBAL_STORE),
)
"""A variable has a fence in a global of its own: that of the call that has written the variable."""
_LOAD = "hal.buffer.load"
_CHECKS = ("hal.buffer_view.assert", "hal.buffer.assert")
_COMMANDS = "hal.command_buffer."
_DISPATCH, _CREATE_COMMANDS = f"{_COMMANDS}dispatch", f"{_COMMANDS}create"
_BUFFER_OPERANDS = {
    _CREATE_COMMANDS: (),
    f"{_COMMANDS}copy_buffer": (1, 3),
    f"{_COMMANDS}execution_barrier": (),
    f"{_COMMANDS}fill_buffer": (1,),
    f"{_COMMANDS}finalize": (),
}
"""Operands of each command of IREE 3.13 that are buffers or numbers of bindings; offsets follow.

If their order changes, recorded calls bind other buffers.
"""
_SIDE_EFFECTS = (hal.QUEUE, _COMMANDS, "hal.buffer.store", hal.CHECK_OK)


def add_sync_entries(ir: Any, module: Any) -> None:
    """Add synchronous entry points to a program in IREE's HAL dialect; `ir` is IREE's bindings."""
    hal.separate_branch_buffers(ir, module)
    for function in hal.child_operations(module):
        if not (hal.is_public(function) and _uses_known_fences(function)):
            continue
        name = function.attributes["sym_name"].value
        sync = hal.clone_function(ir, function, name + SYNC_SUFFIX)
        _remove_fences(ir, sync)
        if not _returns_allocations(sync):
            continue
        _return_buffers(ir, hal.clone_function(ir, sync, name + ALLOCATE_SUFFIX))
        bound = hal.clone_function(ir, sync, name + BOUND_SUFFIX)
        _take_buffers(ir, bound)
        recorder = _recorder(module, bound)
        if recorder is not None:
            _record(ir, hal.clone_function(ir, bound, name + RECORD_SUFFIX), recorder)
            _replay(ir, hal.clone_function(ir, bound, name + REPLAY_SUFFIX))


def _uses_known_fences(function: Any) -> bool:
    """True if only `_FENCE_OPERATIONS` use fences and only `_SUBMISSIONS` use queues.

    A function that loads from a buffer and loops keeps its fences: without them, IREE 3.13 may
    give a constant and an argument of a block one register, which is overwritten before the next
    iteration reads the constant. `tests/test_loops.py`,
    `test_a_constant_beside_an_argument_of_a_block`, shows it.
    """
    loads = any(op.name == _LOAD for op in hal.child_operations(function))
    if loads and hal.has_loops(function):
        return False
    for op in hal.child_operations(function):
        if list(op.regions) or (hal.has_fences(op) and op.name not in _FENCE_OPERATIONS):
            return False
        if op.name.startswith(hal.QUEUE) and op.name not in _SUBMISSIONS:
            return False
    return True


def _remove_fences(ir: Any, function: Any) -> None:
    """Replace the fences of a function by null, and the status of its waits by success."""
    block = function.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown(function.context):
        null = ir.Operation.create(hal.NULL, results=[ir.Type.parse(hal.FENCE_TYPE)]).result
        i32 = ir.IntegerType.get_signless(32)
        zero = {"value": ir.IntegerAttr.get(i32, 0)}
        success = ir.Operation.create(hal.CONSTANT, results=[i32], attributes=zero).result
    for op in hal.child_operations(function):
        if op.name == hal.CHECK_OK and hal.is_result_of(op.operands[0], hal.FENCE_AWAIT):
            op.erase()
    for op in hal.child_operations(function):
        is_fence = op.name in _FENCE_SOURCES or (op.name == _GLOBAL_LOAD and hal.has_fences(op))
        if op.name == hal.FENCE_AWAIT or is_fence:
            op.result.replace_all_uses_with(null if is_fence else success)
            op.erase()


def _returns_allocations(function: Any) -> bool:
    """True if a function without branches returns only views of buffers that it allocates.

    A buffer that it stores as a variable is one that it allocates, too, and has no result.
    """
    operations = hal.child_operations(function)
    variables = _variables(function)
    views = operations[-1].operands
    return (
        len(list(function.regions[0].blocks)) == 1
        and not any(op.name == _LOAD for op in operations)
        and all(hal.is_result_of(buffer, hal.ALLOCA) for buffer in variables)
        and all(
            hal.is_result_of(view, hal.BUFFER_VIEW_CREATE)
            and hal.is_result_of(view.owner.operands[0], hal.ALLOCA)
            and view.owner.operands[0] not in variables
            for view in views
        )
    )


def _variables(function: Any) -> list[Any]:
    """Return the buffers that a function stores as variables: they live longer than a call."""
    return [
        value
        for op in hal.child_operations(function)
        if op.name == _GLOBAL_STORE
        for value in op.operands
        if hal.is_buffer(value)
    ]


def _call_allocations(function: Any) -> list[Any]:
    """Return the allocations of a function for its results, and for memory that it needs itself."""
    variables = _variables(function)
    operations = hal.child_operations(function)
    return [op for op in operations if op.name == hal.ALLOCA and op.result not in variables]


def _return_buffers(ir: Any, function: Any) -> None:
    """Let a function return its allocations and then its results, and compute nothing."""
    *operations, end = hal.child_operations(function)
    allocations = _call_allocations(function)
    _set_returned(ir, function, [*(op.result for op in allocations), *end.operands])
    for op in reversed(operations):
        if op.name.startswith((*_SIDE_EFFECTS, _GLOBAL_STORE)) and op not in allocations:
            op.erase()


def _take_buffers(ir: Any, function: Any) -> None:
    """Replace the allocations of a function by arguments; it returns nothing."""
    *operations, _ = hal.child_operations(function)
    block = function.regions[0].blocks[0]
    allocations = _call_allocations(function)
    for op in allocations:
        op.result.replace_all_uses_with(block.add_argument(op.result.type, op.location))
    _set_returned(ir, function, [])
    for op in reversed(operations):
        is_unused = op.name in (hal.DEALLOCA, hal.BUFFER_VIEW_CREATE, *_CHECKS)
        if is_unused or op in allocations:
            op.erase()


def _recorder(module: Any, function: Any) -> Any:
    """Return the function that records all commands of another one at load time; None if none."""
    submissions = [op for op in hal.child_operations(function) if op.name.startswith(hal.QUEUE)]
    if [op.name for op in submissions] != [hal.EXECUTE_INDIRECT] or _reads_variables(
        module, function
    ):
        return None
    commands = submissions[0].operands[_COMMAND_BUFFER]
    if not hal.is_result_of(commands, _GLOBAL_LOAD):
        return None
    symbol = commands.owner.attributes["global"]
    functions = hal.child_operations(module)
    for initializer in functions:
        if initializer.name != "util.initializer":
            continue
        for store in hal.child_operations(initializer):
            if store.name != _GLOBAL_STORE or store.attributes["global"] != symbol:
                continue
            stored = store.operands[0]
            is_call = hal.is_result_of(stored, "util.call")
            callee = stored.owner.attributes["callee"].value if is_call else ""
            for op in functions:
                if op.name == "util.func" and op.attributes["sym_name"].value == callee:
                    return op if all(map(_is_known_command, hal.child_operations(op))) else None
    return None


def _reads_variables(module: Any, function: Any) -> bool:
    """True if a function reads variables, whose buffers differ between calls."""
    variables = {
        op.attributes["sym_name"].value
        for op in hal.child_operations(module)
        if op.name == "util.global" and "is_mutable" in op.attributes
    }
    return any(
        op.name == _GLOBAL_LOAD and op.attributes["global"].value in variables
        for op in hal.child_operations(function)
    )


def _buffer_slots(op: Any) -> list[tuple[int, int]]:
    """Return the indices of a command's buffer operands, each with the index of its offset."""
    if op.name == _DISPATCH:
        sizes = list(op.attributes["operandSegmentSizes"])
        start, count = sum(sizes[:-3]), sizes[-1]
        return [(index, index + count) for index in range(start, start + count)]
    return [(index, index + 1) for index in _BUFFER_OPERANDS.get(op.name, ())]


def _is_known_command(op: Any) -> bool:
    """False for a command whose buffers `_buffer_slots` does not know."""
    if not op.name.startswith(_COMMANDS):
        return True
    return op.name in (*_BUFFER_OPERANDS, _DISPATCH) and all(
        str(op.operands[index].type) == "!hal.buffer"
        or hal.is_result_of(op.operands[index], hal.CONSTANT)
        for index, _ in _buffer_slots(op)
    )


def _record(ir: Any, function: Any, recorder: Any) -> None:
    """Replace an execution by a recording of its commands with the buffers of its bindings."""
    execute = next(op for op in hal.child_operations(function) if op.name == hal.EXECUTE_INDIRECT)
    bindings = list(execute.operands)[_COMMAND_BUFFER + 1 :]
    count = len(bindings) // 3
    *operations, end = hal.child_operations(recorder)
    copies: dict[Any, Any] = {}
    with ir.InsertionPoint(execute), execute.location:
        for op in operations:
            values = [copies.get(value, value) for value in op.operands]
            if op.name == _CREATE_COMMANDS:
                attributes = {key: op.attributes[key] for key in op.attributes}
                copy = ir.Operation.create(op.name, [op.result.type], values[:2], attributes)
            else:
                copy = op.clone().operation
                for index, offset in _buffer_slots(op):
                    if str(values[index].type) == "index":
                        number = op.operands[index].owner.attributes["value"].value
                        values[index] = bindings[number]
                        base = bindings[count + number]
                        total = ir.Operation.create(
                            "arith.addi", [base.type], [base, values[offset]]
                        )
                        total.move_before(copy)
                        values[offset] = total.result
                for index, value in enumerate(values):
                    copy.operands[index] = value
            copies.update(zip(op.results, copy.results, strict=True))
    execute.erase()
    _set_returned(ir, function, [copies[value] for value in end.operands])


def _replay(ir: Any, function: Any) -> None:
    """Let a function take a command buffer, and only execute it."""
    execute = next(op for op in hal.child_operations(function) if op.name == hal.EXECUTE_INDIRECT)
    block = function.regions[0].blocks[0]
    commands = block.add_argument(execute.operands[_COMMAND_BUFFER].type, execute.location)
    with ir.InsertionPoint(execute), execute.location:
        ir.Operation.create(
            hal.EXECUTE,
            operands=[*list(execute.operands)[:_COMMAND_BUFFER], commands],
            attributes={"flags": execute.attributes["flags"]},
        )
    execute.erase()
    *operations, _ = hal.child_operations(function)
    for op in reversed(operations):
        if op.name != hal.EXECUTE and not any(list(result.uses) for result in op.results):
            op.erase()
    for index in reversed(range(len(block.arguments) - 1)):
        block.erase_argument(index)
    _set_returned(ir, function, [])


def _set_returned(ir: Any, function: Any, values: list[Any]) -> None:
    """Let a function return other values, and set its type to the arguments of its block."""
    end = hal.child_operations(function)[-1]
    with ir.InsertionPoint(end), end.location:
        ir.Operation.create(end.name, operands=values)
    end.erase()
    for attribute in ("arg_attrs", "res_attrs", "tied_operands"):
        if attribute in function.attributes:
            del function.attributes[attribute]
    hal.set_function_type(ir, function, [value.type for value in values])
