"""Contractions of linalg: a sum of products, as ``stablehlo.dot_general``.

The body of a contraction adds a product to the element of its result. The product has two sides,
each computed from operands of its own; a side has an axis for each loop that its operands read::

    linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k), (m, n, k) -> (n),
                                     (m, n, k) -> (m, n)]} ins(%x, %q, %s) outs(%init) {
      %0 = arith.sitofp %q0 : i8 to f32
      %1 = arith.mulf %0, %s0 : f32
      %2 = arith.mulf %x0, %1 : f32
      %3 = arith.addf %acc, %2 : f32

    left (m, k): %x               right (n, k): %q * %s

Loops of both sides are batch dimensions, or contracted. Of more than two factors the ones that have
only loops of the weight are multiplied first: ``(x * q) * s`` is computed as ``x * (q * s)``, where
each product rounds once more or less. The bound of the sum, ``(K + 2) * u * sum_k |x[k] * w[k]|``
with the unit roundoff ``u``, holds for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core._mlir import Operation, Value, ir
from ...emit import linalg, stablehlo
from ...emit.operation import producer_named, producer_of, value, with_element, with_shape
from .linalg_loops import Structured, Untranslatable
from .linalg_values import LinalgTranslator

_ADDITIONS = ("arith.addf", "arith.addi")
_PRODUCTS = ("arith.mulf", "arith.muli")


@dataclass(frozen=True)
class LinalgContraction:
    """A contraction of linalg.

    Attributes:
        structured: the operation.
        factors: the scalars of the body that are multiplied.
        tree: the two factors of the last product.
    """

    structured: Structured
    factors: list[Value]
    tree: tuple[Value, Value]

    @classmethod
    def of(cls, op: Operation) -> LinalgContraction | None:
        """The contraction of an operation; None if it sums no products."""
        structured = Structured.of(op)
        if structured is None or structured.outputs != 1:
            return None
        addition = structured.producer(structured.yielded[0])
        if addition is None or addition.name not in _ADDITIONS:
            return None
        last = len(op.operands) - 1
        numbers = [structured.number_of(each) for each in addition.operands]
        if last not in numbers:
            return None
        summand = addition.operands[1 - numbers.index(last)]
        product = structured.producer(summand)
        if (
            product is None
            or product.name not in _PRODUCTS
            or last in structured.operands_of(summand)
        ):
            return None
        return cls(structured, cls._factors(structured, summand), tuple(product.operands))

    @classmethod
    def _factors(cls, structured: Structured, scalar: Value) -> list[Value]:
        op = structured.producer(scalar)
        if op is None or op.name not in _PRODUCTS:
            return [scalar]
        return [factor for each in op.operands for factor in cls._factors(structured, each)]

    @property
    def tensors(self) -> list[Value]:
        """The operands that are multiplied."""
        return list(self.structured.op.operands)[:-1]

    def reaches_integers(self, translator: LinalgTranslator, scalar: Value) -> bool:
        """True if a scalar of the body is computed from narrow integers."""
        operands = self.structured.op.operands
        numbers = self.structured.operands_of(scalar)
        return any(translator.reaches_integers(operands[number]) for number in numbers)

    def sides(self, translator: LinalgTranslator) -> tuple[list[Value], list[Value]]:
        """The factors of the activations and of the weight, which is on the right."""
        left, right = [self.tree[0]], [self.tree[1]]
        if not self._are_sides(left, right):
            left, right = self._grouped(translator)
            if not self._are_sides(left, right):
                raise Untranslatable(
                    "its body does not multiply two operands that are both summed over"
                )
        has_integers = [
            any(self.reaches_integers(translator, each) for each in side) for side in (left, right)
        ]
        return (right, left) if has_integers == [True, False] else (left, right)

    def _grouped(self, translator: LinalgTranslator) -> tuple[list[Value], list[Value]]:
        """The factors in two groups: the second has integers, and factors of only their loops."""
        loops_of = self.structured.loops_of
        integers = [each for each in self.factors if self.reaches_integers(translator, each)]
        if not integers:
            raise Untranslatable("its product has no narrow integers")
        weight, remaining = integers[-1:], [each for each in self.factors if each != integers[-1]]
        own = loops_of(weight[0])
        outside = [each for each in remaining if not loops_of(each) <= own]
        if not outside:  # a vector: the factor that is summed over the most loops
            outside = [max(remaining, key=lambda each: len(loops_of(each) - {*self.parallel}))]
        return outside, [*weight, *(each for each in remaining if each not in outside)]

    @property
    def parallel(self) -> tuple[int, ...]:
        """The loops of the result's axes."""
        return self.structured.parallel

    def _are_sides(self, left: Sequence[Value], right: Sequence[Value]) -> bool:
        """True if no operand is on both sides, and each reduction sums over both."""
        numbers = [set().union(*map(self.structured.operands_of, side)) for side in (left, right)]
        loops = [set().union(*map(self.structured.loops_of, side)) for side in (left, right)]
        every = set(range(self.structured.maps[0].n_dims))
        return (
            not numbers[0] & numbers[1]
            and loops[0] | loops[1] == every
            and loops[0] ^ loops[1] <= {*self.parallel}
        )

    def space(self, side: Sequence[Value]) -> list[int]:
        """The loops of a side, in the order of the axes of the operand that has the most."""
        structured = self.structured
        numbers = sorted(set().union(*map(structured.operands_of, side)))
        orders: list[list[int]] = [
            [term.loop for term in structured.terms(number) if term.loop is not None]
            for number in numbers
        ]
        longest = max(orders, key=len)
        longest = [loop for n, loop in enumerate(longest) if loop not in longest[:n]]
        loops = sorted(set().union(*map(structured.loops_of, side)) - set(longest))
        return [*longest, *loops]

    def emit_side(self, translator: LinalgTranslator, side: Sequence[Value]) -> Value:
        """Emit the product of the factors of a side, with an axis for each loop of `space`."""
        space = self.space(side)
        tensors = [translator.element(self.structured, factor, space) for factor in side]
        product = tensors[0]
        for tensor in tensors[1:]:
            product = value("stablehlo.multiply", [product, tensor], product.type)
        return product

    def emit(
        self, left: Value, right: Value, *, spaces: Sequence[list[int]], element: ir.Type
    ) -> Value:
        """Emit the sum of the products of two sides, with an axis for each of `parallel`."""
        parallel = self.parallel
        both = [loop for loop in spaces[0] if loop in spaces[1]]
        batch = [loop for loop in both if loop in parallel]
        contracted = [loop for loop in both if loop not in parallel]
        free = [loop for space in spaces for loop in space if loop not in both]
        axes = [
            [[space.index(loop) for loop in loops] for space in spaces]
            for loops in (contracted, batch)
        ]
        trip_counts = self.structured.trip_counts
        order = [*batch, *free]
        type_ = with_shape(
            with_element(left.type, element),
            [None if trip_counts[loop] < 0 else trip_counts[loop] for loop in order],
        )
        product = stablehlo.dot_general(left, right, type_, axes[0], axes[1])
        return stablehlo.transpose(product, [order.index(loop) for loop in parallel])

    def with_initial(self, total: Value) -> Value:
        """Add the initial value of the result, unless it is zero, to a sum in its order."""
        op = self.structured.op
        initial, type_ = op.operands[-1], op.results[0].type
        if total.type.rank == type_.rank:
            total = linalg.cast(total, type_)
        elif type_.has_static_shape:  # axes of one element, which no loop has
            total = stablehlo.reshape(total, [int(n) for n in type_.shape])
        else:
            raise Untranslatable("its result has a dynamic shape, and an axis without a loop")
        if _is_zero(initial):
            return total
        return value("stablehlo.add", [initial, total], type_)


def _is_zero(tensor: Value) -> bool:
    """True for a tensor that is filled with zeros."""
    op = producer_of(tensor)
    if op is None:
        return False
    if op.name == "linalg.fill":
        op = producer_named(op.operands[0], "arith.constant")
    if op is None or op.name not in ("arith.constant", "stablehlo.constant"):
        return False
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return False
        attribute = attribute.get_splat_value()
    return bool(getattr(attribute, "value", 1) == 0)
