"""``stablehlo.while`` loops that count up by a constant, as ``scf.for`` on the host.

Symptom: each iteration waits for a condition that the device computes (Vulkan); loops may also lose
carried tensors (`carried_tensors`).
Cause: on Vulkan the loops over tensors into which StableHLO operations are lowered run on the
device.
Test: none; `test_counts` in tests/test_loops.py covers it.

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

from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...dialects.dense import constant_array
from ...emit import linalg, stablehlo
from ...emit.operation import create, is_used, number_of
from ...emit.stablehlo_semantics import comparison_direction
from ..base import NoMatch, Replacement, producer_named


@dataclass(frozen=True)
class _Counter:
    """A counter: the number of its carried tensor, its first value, its step, and its end."""

    number: int
    first: int
    step: int
    end: Value

    @property
    def last(self) -> int | None:
        """The counter's value after the last iteration; None if the end is not constant."""
        end = _constant_number(self.end)
        if end is None:
            return None
        return self.first + max(-(-(end - self.first) // self.step), 0) * self.step


def count_on_host(op: Operation) -> Replacement:
    """Rewrite a ``stablehlo.while`` that counts up by a constant as ``scf.for``."""
    count = _counter_of(op)
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
    end = _constant_number(count.end)
    bounds = [
        _scalar(element, count.first),
        linalg.extract(count.end, []) if end is None else _scalar(element, end),
        _scalar(element, count.step),
    ]
    carried = [value for n, value in enumerate(op.operands) if n != count.number]
    loop = create("scf.for", [*bounds, *carried], [v.type for v in carried], regions=1)
    _move_body(op, loop, count.number)
    results = list(loop.results)
    if is_used(counter):
        assert count.last is not None  # checked above
        results.insert(count.number, stablehlo.constant(count.last, element))
    else:
        results.insert(count.number, op.operands[count.number])  # of the same type, unused
    return results


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


def _counter_of(op: Operation) -> _Counter | None:
    """The counter of a loop; None for other conditions than ``<``, computed starts and steps."""
    condition, body = (region.blocks[0] for region in op.regions)
    *constants, end = [operation.operation for operation in condition.operations]
    compare = constants.pop() if constants else end
    if compare.name != "stablehlo.compare" or list(end.operands) != list(compare.results):
        return None
    if any(op.name != "stablehlo.constant" for op in constants):
        return None
    counter, last = compare.operands
    if comparison_direction(compare) != "LT" or not _is_scalar_integer(counter):
        return None
    if counter.owner != condition or last.owner == condition:
        return None
    number = counter.arg_number
    step = _step(body.operations[-1].operands[number], body.arguments[number])
    first = _constant_number(op.operands[number])
    if step is None or first is None:
        return None
    return _Counter(number, first, step, last)


def _step(following: Value, counter: Value) -> int | None:
    """The positive constant that is added to a counter; None for any other update."""
    producer = producer_named(following, "stablehlo.add")
    if producer is None:
        return None
    operands = list(producer.operands)
    if counter not in operands:
        return None
    operands.remove(counter)
    step = _constant_number(operands[0])
    return step if step is not None and step > 0 else None


def _is_scalar_integer(value: Value) -> bool:
    """True for a signed integer tensor of rank 0."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or type_.rank:
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) and element.is_signless and element.width > 1


def _constant_number(value: Value) -> int | None:
    """The number that a constant tensor of rank 0 holds; None for computed values, resources."""
    array = constant_array(value)
    return None if array is None else int(array.reshape(-1)[0])


def _scalar(element: ir.Type, number: int) -> Value:
    return emit.value("arith.constant", [], element, {"value": number_of(element, number)})
