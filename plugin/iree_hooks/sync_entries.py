"""Functions beside those of a program, for a device that has done what it is asked when it returns.

IREE has a function allocate what it computes into, submit that, and wait, all by fences; and a
caller gets new memory for each result. On a device that runs what is submitted at once
(``local-sync``) fences tell nothing, and take a fifth of the time of a small program. So beside
each public function ``@f`` there are, made where IREE has reached its HAL dialect:

* ``@f$unfenced``, which does the same without fences;
* ``@f$memory``, which takes the arguments of ``@f``, and returns the memory that ``@f`` would have
  allocated (buffers), and then its results (views of that memory);
* ``@f$bound``, which takes the arguments of ``@f``, and then that memory, and computes the results;
* ``@f$record``, which takes the same, and returns commands that do so;
* ``@f$replay``, which takes these commands, and executes them.

The others are there where each result is a view of memory that the function allocates, and nothing
depends on a branch; the last two where the function submits nothing but commands that are recorded
when the program is loaded. Where fences are used otherwise than as here, there are none.

This file imports nothing of the package, which has another MLIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = [
    "BOUND",
    "MEMORY",
    "RECORD",
    "REPLAY",
    "UNFENCED",
    "add_sync_entries",
    "all_in",
    "copy_of",
    "is_made_by",
    "is_public",
    "operations_in",
    "pass_buffers_once",
]

UNFENCED, MEMORY, BOUND = "$unfenced", "$memory", "$bound"
RECORD, REPLAY = "$record", "$replay"
"""What is put after a function's name."""

_FENCE, _BUFFER = "!hal.fence", "!hal.buffer"
_BRANCHES = ("cf.br", "cf.cond_br")
_OPAQUE = "util.optimization_barrier"
_QUEUE = "hal.device.queue."
_ALLOCATES, _FREES = f"{_QUEUE}alloca", f"{_QUEUE}dealloca"
_EXECUTES, _EXECUTES_WITH = f"{_QUEUE}execute", f"{_QUEUE}execute.indirect"
_COMMANDS = 4
"""The operand of the last two that has the commands; what these are executed with follows."""
_SUBMITS = (
    *(_ALLOCATES, _FREES, _EXECUTES, _EXECUTES_WITH),
    *(f"{_QUEUE}copy", f"{_QUEUE}fill", f"{_QUEUE}update"),
)
_NONE = "util.null"
_MAKES_FENCES = ("hal.fence.create", "hal.fence.join")
_WAITS = "hal.fence.await"
_TAKES_FENCES = (*_SUBMITS, *_MAKES_FENCES, _NONE, _WAITS, *_BRANCHES)
_VIEWS = "hal.buffer_view.create"
_CHECKS = ("hal.buffer_view.assert", "hal.buffer.assert")
_READS = "hal.buffer.load"
_CONSTANT = "arith.constant"
_CREATES = "hal.command_buffer.create"
_BUFFERS = {
    _CREATES: (),
    "hal.command_buffer.copy_buffer": (1, 3),
    "hal.command_buffer.execution_barrier": (),
    "hal.command_buffer.fill_buffer": (1,),
    "hal.command_buffer.finalize": (),
}
"""Commands, and which of their operands are buffers, or numbers of bindings: offsets follow."""
_STOPS = "util.status.check_ok"
_COMPUTES = (_QUEUE, "hal.command_buffer.", "hal.buffer.store", _STOPS)


def add_sync_entries(ir: Any, module: Any) -> None:
    """Add the functions to a module.

    Args:
        ir: the bindings of IREE's compiler.
        module: in IREE's HAL dialect.
    """
    pass_buffers_once(ir, module)
    for function in operations_in(module):
        if is_public(function) and _is_known(function):
            name = function.attributes["sym_name"].value
            unfenced = copy_of(ir, function, name + UNFENCED)
            _drop_fences(ir, unfenced)
            if _returns_memory(unfenced):
                _give_memory(ir, copy_of(ir, unfenced, name + MEMORY))
                bound = copy_of(ir, unfenced, name + BOUND)
                _take_memory(ir, bound)
                recorder = _recorder(module, bound)
                if recorder is not None:
                    _record(ir, copy_of(ir, bound, name + RECORD), recorder)
                    _replay(ir, copy_of(ir, bound, name + REPLAY))


def pass_buffers_once(ir: Any, module: Any) -> None:
    """Have no branch pass one buffer to two arguments of a block.

    IREE 3.13 loses such a buffer: where one argument has the register of the buffer itself, nothing
    is copied to it, and the copy to the other argument, the last use of the register, empties it.
    So the second argument gets the buffer by a choice that IREE cannot decide::

        cf.br ^bb1(%a, %a : !hal.buffer, !hal.buffer)

        %is_null = util.cmp.eq %a, %null : !hal.buffer
        %b = arith.select %is_null, %null, %a : !hal.buffer
        cf.br ^bb1(%a, %b : !hal.buffer, !hal.buffer)
    """
    for function in operations_in(module):
        if function.name != "util.func":
            continue
        for op in [each for each in operations_in(function) if each.name in _BRANCHES]:
            passed: set[Any] = set()
            for place, value in enumerate(op.operands):
                if str(value.type) != _BUFFER:
                    continue
                buffer = value
                while is_made_by(buffer.owner, _OPAQUE):
                    buffer = buffer.owner.operands[0]
                if buffer in passed:
                    with ir.InsertionPoint(op), op.location:
                        op.operands[place] = _chosen(ir, buffer)
                passed.add(buffer)


def _chosen(ir: Any, buffer: Any) -> Any:
    """A buffer, as a value of its own."""
    truth = ir.IntegerType.get_signless(1)
    none = ir.Operation.create(_NONE, [buffer.type]).result
    is_null = ir.Operation.create("util.cmp.eq", [truth], [buffer, none]).result
    return ir.Operation.create("arith.select", [buffer.type], [is_null, none, buffer]).result


def operations_in(parent: Any) -> list[Any]:
    """What lies right inside an operation."""
    return [op.operation for block in parent.regions[0].blocks for op in block.operations]


def all_in(parent: Any) -> Iterator[Any]:
    """What lies in an operation, however deep; the inner ones first."""
    for region in parent.regions:
        for block in region.blocks:
            for op in [each.operation for each in block.operations]:
                yield from all_in(op)
                yield op


def is_public(op: Any) -> bool:
    """True for a function that a caller may know; ours have two underscores."""
    attributes = op.attributes
    return (
        op.name == "util.func"
        and "iree.abi.stub" in attributes
        and not attributes["sym_name"].value.startswith("__")
    )


def _is_known(function: Any) -> bool:
    """True if fences are used as here."""
    for op in operations_in(function):
        values = [*op.operands, *op.results]
        has_fences = any(str(value.type) == _FENCE for value in values)
        if list(op.regions) or (has_fences and op.name not in _TAKES_FENCES):
            return False
        if op.name.startswith(_QUEUE) and op.name not in _SUBMITS:
            return False
    return True


def copy_of(ir: Any, function: Any, name: str) -> Any:
    """A copy of a function before it, of which nothing is recorded."""
    made = function.clone(ir.InsertionPoint(function)).operation
    made.attributes["sym_name"] = ir.StringAttr.get(name, function.context)
    if "iree.reflection" in made.attributes:
        del made.attributes["iree.reflection"]
    return made


def _drop_fences(ir: Any, function: Any) -> None:
    """Have a function make no fences, and wait for none."""
    block = function.regions[0].blocks[0]
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown(function.context):
        none = ir.Operation.create(_NONE, results=[ir.Type.parse(_FENCE)]).result
        status = ir.IntegerType.get_signless(32)
        zero = {"value": ir.IntegerAttr.get(status, 0)}
        success = ir.Operation.create(_CONSTANT, results=[status], attributes=zero).result
    for op in operations_in(function):
        if op.name == _STOPS and is_made_by(op.operands[0].owner, _WAITS):
            op.erase()
    for op in operations_in(function):
        if op.name == _WAITS or op.name in _MAKES_FENCES:
            op.result.replace_all_uses_with(success if op.name == _WAITS else none)
            op.erase()


def _returns_memory(function: Any) -> bool:
    """True if a function without branches returns nothing but views of what it allocates."""
    operations = operations_in(function)
    views = [value.owner for value in operations[-1].operands]
    return (
        len(list(function.regions[0].blocks)) == 1
        and not any(op.name == _READS for op in operations)
        and all(
            is_made_by(view, _VIEWS) and is_made_by(view.operands[0].owner, _ALLOCATES)
            for view in views
        )
    )


def is_made_by(owner: Any, name: str) -> bool:
    """True if the owner of a value is an operation of a name; that of an argument is a block."""
    return getattr(owner, "name", None) == name


def _give_memory(ir: Any, function: Any) -> None:
    """Have a function return what it allocates, then its results, and compute nothing."""
    *operations, end = operations_in(function)
    memory = [op.result for op in operations if op.name == _ALLOCATES]
    _return(ir, function, [*memory, *end.operands])
    for op in reversed(operations):
        if op.name.startswith(_COMPUTES) and op.name != _ALLOCATES:
            op.erase()


def _take_memory(ir: Any, function: Any) -> None:
    """Have a function take what it would allocate, after its arguments, and return nothing."""
    *operations, _ = operations_in(function)
    block = function.regions[0].blocks[0]
    for op in operations:
        if op.name == _ALLOCATES:
            op.result.replace_all_uses_with(block.add_argument(op.result.type, op.location))
    _return(ir, function, [])
    for op in reversed(operations):
        if op.name in (_ALLOCATES, _FREES, _VIEWS, *_CHECKS):
            op.erase()


def _recorder(module: Any, function: Any) -> Any:
    """The function whose commands are all that another submits; None if there is none."""
    submitted = [op for op in operations_in(function) if op.name.startswith(_QUEUE)]
    if [op.name for op in submitted] != [_EXECUTES_WITH]:
        return None
    loaded = submitted[0].operands[_COMMANDS].owner
    if not is_made_by(loaded, "util.global.load"):
        return None
    others = operations_in(module)
    for store in (
        op for each in others if each.name == "util.initializer" for op in operations_in(each)
    ):
        stored = store.operands[0].owner if store.name == "util.global.store" else None
        if stored is not None and store.attributes["global"] == loaded.attributes["global"]:
            called = stored.attributes["callee"].value if is_made_by(stored, "util.call") else ""
            for op in others:
                if op.name == "util.func" and op.attributes["sym_name"].value == called:
                    return op if all(map(_is_understood, operations_in(op))) else None
    return None


def _slots(op: Any) -> list[tuple[int, int]]:
    """The operands of a command that are buffers, or numbers of bindings; and their offsets."""
    if op.name == "hal.command_buffer.dispatch":
        sizes = list(op.attributes["operandSegmentSizes"])
        start, count = sum(sizes[:-3]), sizes[-1]
        return [(place, place + count) for place in range(start, start + count)]
    return [(place, place + 1) for place in _BUFFERS.get(op.name, ())]


def _is_understood(op: Any) -> bool:
    """True for a command with buffers where this looks for them, and for what is no command."""
    if not op.name.startswith("hal.command_buffer."):
        return True
    return op.name in (*_BUFFERS, "hal.command_buffer.dispatch") and all(
        str(op.operands[place].type) == "!hal.buffer"
        or is_made_by(op.operands[place].owner, _CONSTANT)
        for place, _ in _slots(op)
    )


def _record(ir: Any, function: Any, recorder: Any) -> None:
    """Have a function record what it executes, with its buffers, and return that."""
    execute = next(op for op in operations_in(function) if op.name == _EXECUTES_WITH)
    given = list(execute.operands)[_COMMANDS + 1 :]
    count = len(given) // 3
    *operations, end = operations_in(recorder)
    made: dict[Any, Any] = {}
    with ir.InsertionPoint(execute), execute.location:
        for op in operations:
            values = [made.get(value, value) for value in op.operands]
            if op.name == _CREATES:
                said = {key: op.attributes[key] for key in op.attributes}
                copy = ir.Operation.create(op.name, [op.result.type], values[:2], said)
            else:
                copy = op.clone().operation
                for place, offset in _slots(op):
                    if str(values[place].type) == "index":
                        number = op.operands[place].owner.attributes["value"].value
                        values[place] = given[number]
                        base = given[count + number]
                        total = ir.Operation.create(
                            "arith.addi", [base.type], [base, values[offset]]
                        )
                        total.move_before(copy)
                        values[offset] = total.result
                for place, value in enumerate(values):
                    copy.operands[place] = value
            made.update(zip(op.results, copy.results, strict=True))
    execute.erase()
    _return(ir, function, [made[value] for value in end.operands])


def _replay(ir: Any, function: Any) -> None:
    """Have a function execute commands that it takes, and nothing else."""
    execute = next(op for op in operations_in(function) if op.name == _EXECUTES_WITH)
    block = function.regions[0].blocks[0]
    commands = block.add_argument(execute.operands[_COMMANDS].type, execute.location)
    with ir.InsertionPoint(execute), execute.location:
        kept = ir.Operation.create(
            _EXECUTES,
            operands=[*list(execute.operands)[:_COMMANDS], commands],
            attributes={"flags": execute.attributes["flags"]},
        )
    execute.erase()
    *operations, _ = operations_in(function)
    for op in reversed(operations):
        if op.name != kept.name and not any(list(result.uses) for result in op.results):
            op.erase()
    for place in reversed(range(len(block.arguments) - 1)):
        block.erase_argument(place)
    _return(ir, function, [])


def _return(ir: Any, function: Any, values: list[Any]) -> None:
    """Have a function return other values, and take the arguments that its block has."""
    end = operations_in(function)[-1]
    with ir.InsertionPoint(end), end.location:
        ir.Operation.create(end.name, operands=values)
    end.erase()
    for said_of_each in ("arg_attrs", "res_attrs", "tied_operands"):
        if said_of_each in function.attributes:
            del function.attributes[said_of_each]
    taken = [argument.type for argument in function.regions[0].blocks[0].arguments]
    with function.context:
        type_ = ir.FunctionType.get(taken, [value.type for value in values])
        function.attributes["function_type"] = ir.TypeAttr.get(type_)
