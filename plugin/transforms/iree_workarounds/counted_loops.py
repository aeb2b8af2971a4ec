"""``stablehlo.while`` loops that count up by a constant, as ``scf.for`` on the host.

Symptom: each iteration waits for a condition that the device computes (Vulkan); loops may also lose
carried tensors (`carried_tensors`).
Cause: on Vulkan the loops over tensors into which StableHLO operations are lowered run on the
device.
Test: none; `test_counts` in tests/test_loops.py covers it.

A loop of one iteration with a kernel takes copies of its tensors: IREE inlines the loop, and
evaluates dispatches of constants, but cannot load a kernel for that ("no executable loader
registered").

Before::

    %r:2 = stablehlo.while(%k = %zero, %h = %x) : tensor<i32>, tensor<2x2xf32>
    cond {
      %p = stablehlo.compare LT, %k, %n
      stablehlo.return %p
    } do {
      %y = ... %k, %h
      %k1 = stablehlo.add %k, %one
      stablehlo.return %k1, %y
    }

After::

    %r = scf.for %i = %c0 to %end step %c1 iter_args(%h = %x) -> (tensor<2x2xf32>) : i32 {
      %k = tensor.from_elements %i : tensor<i32>
      %y = ... %k, %h
      scf.yield %y : tensor<2x2xf32>
    }

Source: StableHLO specification, ``while``.
"""

from __future__ import annotations

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...emit import linalg, stablehlo
from ...emit.loop_counter import LoopCounter, constant_number
from ...emit.operation import create, is_used, number_of
from ..base import NoMatch, Replacement
from .updates_in_place import in_own_buffer


def count_on_host(op: Operation) -> Replacement:
    """Rewrite a ``stablehlo.while`` that counts up by a constant as ``scf.for``."""
    count = LoopCounter.of(op)
    if count is None:
        return NoMatch("does not count up by a constant")
    counter = op.results[count.number]
    element = counter.type.element_type
    if count.last is None:
        # Beyond the greatest number the counter wraps; with steps of one it ends before.
        if count.step != 1 or is_used(counter):
            return NoMatch("counts to an end that is not constant")
    elif count.last >= 1 << (element.width - 1):
        return NoMatch("counts beyond the greatest number")
    end = constant_number(count.end)
    bounds = [
        _scalar(element, count.first),
        linalg.extract(count.end, []) if end is None else _scalar(element, end),
        _scalar(element, count.step),
    ]
    carried = [value for n, value in enumerate(op.operands) if n != count.number]
    if end is not None and count.first < end <= count.first + count.step and _has_kernel(op):
        carried = [in_own_buffer(value) for value in carried]
    loop = create("scf.for", [*bounds, *carried], [v.type for v in carried], regions=1)
    _move_body(op, loop, count.number)
    results = list(loop.results)
    if is_used(counter):
        assert count.last is not None  # checked above
        results.insert(count.number, stablehlo.constant(count.last, element))
    else:
        results.insert(count.number, op.operands[count.number])  # of the same type, unused
    return results


def _has_kernel(op: Operation) -> bool:
    """True if the body of a loop calls a kernel."""
    body = op.regions[1].blocks[0]
    return any(each.operation.name == "flow.dispatch" for each in body.operations)


def _move_body(op: Operation, loop: Operation, counter_number: int) -> None:
    """Move the body of a ``stablehlo.while`` into a ``scf.for`` that does not carry its counter."""
    old = op.regions[1].blocks[0]
    counter = old.arguments[counter_number]
    carried = [argument for n, argument in enumerate(old.arguments) if n != counter_number]
    types = [counter.type.element_type, *(argument.type for argument in carried)]
    block = loop.regions[0].blocks.append(*types, arg_locs=[op.location] * len(types))
    index, *arguments = block.arguments
    with ir.InsertionPoint(block):
        number = linalg.from_elements([index], counter.type)
    for before, after in zip([counter, *carried], [number, *arguments], strict=True):
        before.replace_all_uses_with(after)
    *operations, end = [operation.operation for operation in old.operations]
    for operation in operations:
        block.append(operation)
    with ir.InsertionPoint(block), end.location:
        create("scf.yield", [value for n, value in enumerate(end.operands) if n != counter_number])


def _scalar(element: ir.Type, number: int) -> Value:
    return emit.value("arith.constant", [], element, {"value": number_of(element, number)})
