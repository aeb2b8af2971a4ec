"""Loops, indexing maps and bodies of linalg's structured operations.

A map's result is a loop (an axis of the iterations), a constant, or a loop divided by a block size:
``k floordiv 32`` reads an axis of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...core._mlir import Operation, Value, indexing_maps, ir
from ..base import producer_of


class Untranslatable(Exception):
    """A structured operation that StableHLO does not express; the message is the reason."""


@dataclass(frozen=True)
class Structured:
    """A structured operation of linalg on tensors: loops, operands by maps, and a body.

    Attributes:
        op: the operation.
        maps: the axes of each operand as terms of loops.
    """

    op: Operation
    maps: list[ir.AffineMap]

    @classmethod
    def of(cls, op: Operation) -> Structured | None:
        """The loops of an operation; None if it has none, or results in memory."""
        if not op.name.startswith("linalg.") or len(op.regions) != 1 or not len(op.results):
            return None
        operations = [each for block in op.regions[0].blocks for each in block.operations]
        if not operations or operations[-1].operation.name != "linalg.yield":
            return None
        maps = indexing_maps(op)
        return cls(op, maps) if len(maps) == len(op.operands) else None

    @property
    def outputs(self) -> int:
        """The number of results."""
        return len(self.op.results)

    @cached_property
    def block(self) -> ir.Block:
        """The body."""
        return self.op.regions[0].blocks[0]

    @cached_property
    def yielded(self) -> list[Value]:
        """The scalars that the body returns."""
        return list(list(self.block.operations)[-1].operation.operands)

    @cached_property
    def parallel(self) -> tuple[int, ...]:
        """The loops of the result's axes."""
        terms = self.terms(len(self.op.operands) - 1)
        return tuple(term.loop for term in terms if term.loop is not None)

    @cached_property
    def is_elementwise(self) -> bool:
        """True if no loop is a reduction, and the results have an axis for each loop."""
        count, outputs = self.maps[0].n_dims, self.maps[-self.outputs :]
        return all(each.is_permutation and each.n_dims == count for each in outputs)

    @cached_property
    def trip_counts(self) -> dict[int, int]:
        """The number of iterations of each loop; negative if dynamic."""
        trip_counts: dict[int, int] = {}
        for number, operand in enumerate(self.op.operands):
            if not isinstance(operand.type, ir.ShapedType):
                continue
            for axis, size in zip(self.maps[number].results, operand.type.shape, strict=True):
                if isinstance(axis, ir.AffineDimExpr):
                    known = trip_counts.get(axis.position, -1)
                    trip_counts[axis.position] = known if known >= 0 else int(size)
        return trip_counts

    def terms(self, number: int) -> list[Term]:
        """The term of each axis of an operand."""
        return [Term.of(each) for each in self.maps[number].results]

    def number_of(self, scalar: Value) -> int | None:
        """The operand that a scalar of the body is an element of; None for other scalars."""
        owner = scalar.owner
        if not isinstance(owner, ir.Block) or owner != self.block:
            return None
        return int(ir.BlockArgument(scalar).arg_number)

    def operands_of(self, scalar: Value) -> set[int]:
        """The numbers of the operands that a scalar of the body is computed from."""
        number = self.number_of(scalar)
        if number is not None:
            return {number}
        producer = self.producer(scalar)
        return set().union(*map(self.operands_of, producer.operands)) if producer else set()

    def loops_of(self, scalar: Value) -> set[int]:
        """The loops that a scalar of the body depends on."""
        terms = [term for n in self.operands_of(scalar) for term in self.terms(n)]
        return {term.loop for term in terms if term.loop is not None}

    def producer(self, scalar: Value) -> Operation | None:
        """The operation of the body that computes a scalar; None for values from outside."""
        op = producer_of(scalar)
        return op if op is not None and op.block == self.block else None


@dataclass(frozen=True)
class Term:
    """The position along an axis: ``loop floordiv divisor``, or a number without a loop."""

    loop: int | None
    divisor: int = 1
    position: int = 0

    @classmethod
    def of(cls, expression: ir.AffineExpr) -> Term:
        """The term of a map's result; `Untranslatable` for sums of loops, and the like."""
        if isinstance(expression, ir.AffineDimExpr):
            return cls(expression.position)
        if isinstance(expression, ir.AffineConstantExpr):
            return cls(None, 1, expression.value)
        if isinstance(expression, ir.AffineFloorDivExpr):
            loop, divisor = expression.lhs, expression.rhs
            is_block = isinstance(loop, ir.AffineDimExpr)
            if is_block and isinstance(divisor, ir.AffineConstantExpr):
                return cls(loop.position, divisor.value)
        raise Untranslatable(f"an operand is read at '{expression}', as by a window")


def elementwise(op: Operation) -> Structured | None:
    """An elementwise structured operation; None for others."""
    try:
        structured = Structured.of(op)
        return structured if structured is not None and structured.is_elementwise else None
    except Untranslatable:
        return None
