"""Helpers for modules in IREE's HAL dialect, which the files of this folder share.

The files of this folder import nothing else of the package, because the package has another MLIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FENCE_TYPE, _BUFFER_TYPE = "!hal.fence", "!hal.buffer"
QUEUE = "hal.device.queue."
ALLOCA, DEALLOCA = f"{QUEUE}alloca", f"{QUEUE}dealloca"
EXECUTE, EXECUTE_INDIRECT = f"{QUEUE}execute", f"{QUEUE}execute.indirect"
FENCE_CREATE, FENCE_JOIN, FENCE_AWAIT = "hal.fence.create", "hal.fence.join", "hal.fence.await"
NULL, CHECK_OK, CONSTANT = "util.null", "util.status.check_ok", "arith.constant"
BUFFER_VIEW_CREATE = "hal.buffer_view.create"
BRANCHES = ("cf.br", "cf.cond_br")
OPTIMIZATION_BARRIER = "util.optimization_barrier"


def child_operations(parent: Any) -> list[Any]:
    """Return the operations of the first region of an operation, without nested ones."""
    return [op.operation for block in parent.regions[0].blocks for op in block.operations]


def descendants(parent: Any) -> Iterator[Any]:
    """Yield all operations inside an operation, the innermost first."""
    for region in parent.regions:
        for block in region.blocks:
            for op in [each.operation for each in block.operations]:
                yield from descendants(op)
                yield op


def has_loops(function: Any) -> bool:
    """True if a block of a function can be reached from itself."""
    blocks = list(function.regions[0].blocks)
    following = [[blocks.index(each) for each in list(b.operations)[-1].successors] for b in blocks]
    for start, reached in enumerate(following):
        pending, seen = list(reached), set(reached)
        while pending:
            new = set(following[pending.pop()]) - seen
            seen |= new
            pending += new
        if start in seen:
            return True
    return False


def is_public(op: Any) -> bool:
    """True for a function of the program; functions of subquant begin with two underscores."""
    attributes = op.attributes
    return (
        op.name == "util.func"
        and "iree.abi.stub" in attributes
        and not attributes["sym_name"].value.startswith("__")
    )


def is_result_of(value: Any, name: str) -> bool:
    """True if an operation of a name defines a value; the owner of an argument is a block."""
    return getattr(value.owner, "name", None) == name


def is_buffer(value: Any) -> bool:
    """True for a value that is a buffer."""
    return str(value.type) == _BUFFER_TYPE


def has_fences(op: Any) -> bool:
    """True for an operation with an operand or result that is a fence."""
    return any(str(value.type) == FENCE_TYPE for value in [*op.operands, *op.results])


def clone_function(ir: Any, function: Any, name: str) -> Any:
    """Insert a copy of a function before it, with another name and without reflection."""
    copy = function.clone(ir.InsertionPoint(function)).operation
    copy.attributes["sym_name"] = ir.StringAttr.get(name, function.context)
    if "iree.reflection" in copy.attributes:
        del copy.attributes["iree.reflection"]
    return copy


def set_function_type(ir: Any, function: Any, results: list[Any]) -> None:
    """Set the type of a function: the arguments of its block, and other result types."""
    arguments = [argument.type for argument in function.regions[0].blocks[0].arguments]
    with function.context:
        type_ = ir.FunctionType.get(arguments, results)
        function.attributes["function_type"] = ir.TypeAttr.get(type_)


def separate_branch_buffers(ir: Any, module: Any) -> None:
    """Let no branch pass one buffer to two arguments of a block.

    IREE 3.13 loses this buffer: if one argument has the register of the buffer itself, nothing is
    copied to it, and the copy to the other argument, the last use of the register, empties it.
    `tests/test_loops.py`, `test_iree_still_loses_a_buffer_that_is_carried_twice`, shows it. The
    second argument therefore gets the buffer through a selection that IREE cannot fold, and a
    further one through a selection of that: IREE would merge two selections of one buffer::

        cf.br ^bb1(%a, %a : !hal.buffer, !hal.buffer)

        %is_null = util.cmp.eq %a, %null : !hal.buffer
        %b = arith.select %is_null, %null, %a : !hal.buffer
        cf.br ^bb1(%a, %b : !hal.buffer, !hal.buffer)
    """
    for function in child_operations(module):
        if function.name == "util.func":
            for op in child_operations(function):
                if op.name in BRANCHES:
                    _separate_buffers(ir, op)


def _separate_buffers(ir: Any, branch: Any) -> None:
    """Replace each buffer that a branch has passed before by another SSA value."""
    passed: dict[Any, Any] = {}  # the last value of each buffer
    for index, value in enumerate(branch.operands):
        if not is_buffer(value):
            continue
        buffer = value
        while is_result_of(buffer, OPTIMIZATION_BARRIER):
            buffer = buffer.owner.operands[0]
        if buffer in passed:
            with ir.InsertionPoint(branch), branch.location:
                value = branch.operands[index] = _distinct_value(ir, passed[buffer])
        passed[buffer] = value


def _distinct_value(ir: Any, buffer: Any) -> Any:
    """Return another SSA value of a buffer."""
    i1 = ir.IntegerType.get_signless(1)
    null = ir.Operation.create(NULL, [buffer.type]).result
    is_null = ir.Operation.create("util.cmp.eq", [i1], [buffer, null]).result
    return ir.Operation.create("arith.select", [buffer.type], [is_null, null, buffer]).result
