"""Loops that count, counted by the host.

A condition that a device computes is waited for in each iteration, and on Vulkan the loops over
tensors that become of StableHLO's operations are a device's. So a ``stablehlo.while`` that counts
up by constants is a loop of the host::

    %r:2 = stablehlo.while(%k = %zero, %h = %x) : tensor<i32>, tensor<2x2xf32>
    cond {
      %p = stablehlo.compare LT, %k, %n
      stablehlo.return %p
    } do {
      %y = ... %k, %h
      %k1 = stablehlo.add %k, %one
      stablehlo.return %k1, %y
    }

becomes ::

    %r = scf.for %i = %c0 to %end step %c1 iter_args(%h = %x) -> (tensor<2x2xf32>) : i32 {
      %k = tensor.from_elements %i : tensor<i32>
      %y = ... %k, %h
      scf.yield %y : tensor<2x2xf32>
    }

Such a loop also hands on fewer tensors than IREE's own, which it may lose (`carried_tensors`).

Source: StableHLO specification, ``while``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Rewriter, Value, ir
from ...dialects.dense import array_of_dense
from ...emit import linalg, stablehlo
from ...emit.operation import create, is_used, number_of
from ..base import NoMatch

__all__ = ["count_on_host"]


@dataclass(frozen=True)
class _Count:
    """What counts: the number of the carried tensor, its first value, its step, and its end."""

    place: int
    first: int
    step: int
    end: Value

    @property
    def last(self) -> int | None:
        """What is left after the last iteration; None where the end is not known."""
        end = _number_of(self.end)
        if end is None:
            return None
        return self.first + max(-(-(end - self.first) // self.step), 0) * self.step


def count_on_host(op: Operation, rewriter: Rewriter) -> NoMatch | None:
    """Write a ``stablehlo.while`` that counts up by a constant as ``scf.for``."""
    count = _count_of(op)
    if count is None:
        return NoMatch("does not count up by a constant")
    counter = op.results[count.place]
    element = counter.type.element_type
    if count.last is None:
        # Beyond the greatest number the count starts anew; by steps of one it ends before.
        if count.step != 1 or is_used(counter):
            return NoMatch("counts to an end that is not known")
    elif count.last >= 1 << (element.width - 1):
        return NoMatch("counts beyond the greatest number")
    known = _number_of(count.end)
    bounds = [
        _scalar(element, count.first),
        linalg.extract(count.end, []) if known is None else _scalar(element, known),
        _scalar(element, count.step),
    ]
    carried = [value for n, value in enumerate(op.operands) if n != count.place]
    loop = create("scf.for", [*bounds, *carried], [v.type for v in carried], regions=1)
    _move_body(op, loop, count.place)
    results = list(loop.results)
    if is_used(counter):
        assert count.last is not None  # checked above
        results.insert(count.place, stablehlo.constant(count.last, element))
    else:
        results.insert(count.place, op.operands[count.place])  # of the type, and not used
    rewriter.replace_op(op, results)
    return None


def _move_body(op: Operation, loop: Operation, place: int) -> None:
    """Move the body of a ``stablehlo.while`` into a ``scf.for`` that does not carry its counter."""
    old = op.regions[1].blocks[0]
    counter = old.arguments[place]
    kept = [argument for n, argument in enumerate(old.arguments) if n != place]
    types = [counter.type.element_type, *(argument.type for argument in kept)]
    block = loop.regions[0].blocks.append(*types, arg_locs=[op.location] * len(types))
    index, *arguments = block.arguments
    with ir.InsertionPoint(block):
        number = linalg.from_elements([index], counter.type)
    for before, after in zip([counter, *kept], [number, *arguments], strict=True):
        before.replace_all_uses_with(after)
    *operations, end = [operation.operation for operation in old.operations]
    for operation in operations:
        block.append(operation)
    with ir.InsertionPoint(block), end.location:
        create("scf.yield", [value for n, value in enumerate(end.operands) if n != place])


def _count_of(op: Operation) -> _Count | None:
    condition, body = (region.blocks[0] for region in op.regions)
    *others, end = [operation.operation for operation in condition.operations]
    compare = others.pop() if others else end
    if compare.name != "stablehlo.compare" or list(end.operands) != list(compare.results):
        return None
    if any(other.name != "stablehlo.constant" for other in others):
        return None
    direction = str(compare.attributes["comparison_direction"])
    counter, last = compare.operands
    if not direction.endswith(" LT>") or counter.owner != condition or not _is_count(counter):
        return None
    if last.owner == condition:
        return None
    place = counter.arg_number
    step = _step(body.operations[-1].operands[place], body.arguments[place])
    first = _number_of(op.operands[place])
    if step is None or first is None:
        return None
    return _Count(place, first, step, last)


def _step(following: Value, counter: Value) -> int | None:
    """The constant greater than zero that is added to a counter; None for anything else."""
    if isinstance(following.owner, ir.Block) or following.owner.operation.name != "stablehlo.add":
        return None
    operands = list(following.owner.operation.operands)
    if counter not in operands:
        return None
    operands.remove(counter)
    step = _number_of(operands[0])
    return step if step is not None and step > 0 else None


def _is_count(value: Value) -> bool:
    """True for a tensor of one signed integer, without axes."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or type_.rank:
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) and element.is_signless and element.width > 1


def _number_of(value: Value) -> int | None:
    """The number that a constant tensor without axes holds."""
    if isinstance(value.owner, ir.Block):
        return None
    producer = value.owner.operation
    if producer.name not in ("arith.constant", "stablehlo.constant"):
        return None
    attribute = producer.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    return int(array_of_dense(attribute).reshape(-1)[0])


def _scalar(element: ir.Type, number: int) -> Value:
    return emit.value("arith.constant", [], element, {"value": number_of(element, number)})
