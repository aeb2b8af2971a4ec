"""The kernel of a formula: what is computed of each position, or folded along the last axis.

A formula is operations, each of which reads those before it (`Steps`). An operand is read at an
offset and a stride of each axis of the positions: what is broadcast, reshaped or reversed is read
where it lies. Elements of the last axis are computed side by side in a vector where operands lie so
too. A sum is of four vectors of partial sums, which are added in pairs.

`subquant.kernels.fusion.elementwise_fusion` says which operations become one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, Scalars, scalar
from ...emit.linalg import Extent, constant_index
from ...emit.stablehlo_semantics import COMPARISONS, ELEMENTWISE
from ...emit.vectors import (
    Vectors,
    broadcast,
    load,
    load_element,
    loop,
    reduce_lanes,
    store,
    store_element,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.element_types import F32, U32, ElementType
from ..kernel import Binding, Kernel

__all__ = [
    "BITCAST",
    "CONVERT",
    "FOLDS",
    "FUNCTIONS",
    "OF_BITS",
    "OF_FLOATS",
    "RULES",
    "SELECT",
    "SHIFTS",
    "Apply",
    "ElementwiseKernel",
    "Node",
    "Number",
    "Read",
    "Result",
    "Steps",
]

_AS_LONG, _AS_LONG_OF_FUNCTIONS = 8, 64
"""How many products of bytes take as long as one element of an operation, about."""
_AT_ONCE = 4
"""Vectors of partial results: a sum takes four cycles, and one begins in each."""

OF_FLOATS = (
    *("stablehlo.divide", "stablehlo.exponential", "stablehlo.floor", "stablehlo.logistic"),
    *("stablehlo.round_nearest_even", "stablehlo.sqrt", "stablehlo.tanh"),
)
_OF_NUMBERS = (
    *("stablehlo.abs", "stablehlo.add", "stablehlo.maximum", "stablehlo.minimum"),
    *("stablehlo.multiply", "stablehlo.negate", "stablehlo.subtract"),
)
OF_BITS = ("stablehlo.and", "stablehlo.or", "stablehlo.xor")
SHIFTS = ("stablehlo.shift_left", "stablehlo.shift_right_arithmetic")
BITCAST, CONVERT = "stablehlo.bitcast_convert", "stablehlo.convert"
SELECT = "stablehlo.select"
RULES: dict[str, Callable[..., ArrayLike]] = {
    **{name: ELEMENTWISE[name] for name in (*OF_FLOATS, *_OF_NUMBERS, *OF_BITS, *SHIFTS, SELECT)},
    **COMPARISONS,
}
"""Operations, comparisons by their direction, and how formulas compute them; `_applied` has those
that say what element they compute."""
FUNCTIONS = ("stablehlo.exponential", "stablehlo.logistic", "stablehlo.tanh")
FOLDS: dict[str, tuple[str, Callable[..., ArrayLike], str, float]] = {
    "stablehlo.add": ("sum", np.add, "add", 0.0),
    "stablehlo.maximum": ("greatest", np.maximum, "maximumf", -math.inf),
    "stablehlo.minimum": ("least", np.minimum, "minimumf", math.inf),
}
"""What reductions compute: the name, of two elements, of those of a vector, and of none."""


# -- formulas -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """An operand, read at ``offset + sum_i strides[i] * position[i]``."""

    operand: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Number:
    """A number, as `float.hex` or `int` writes it: -0.0 is not 0.0."""

    text: str
    element: ElementType


@dataclass(frozen=True)
class Result:
    """What an operation of a formula computes, by its number."""

    number: int


Node: TypeAlias = "Read | Number | Result"
"""An element of what is computed."""


@dataclass(frozen=True)
class Apply:
    """An operation: of `RULES`, or what makes another element type of one."""

    name: str
    given: tuple[Node, ...]
    element: ElementType


@dataclass(frozen=True)
class Steps:
    """Operations, in an order in which each reads those before it, and what is wanted of them."""

    steps: tuple[Apply, ...]
    last: Node

    def reads(self) -> list[Read]:
        """The operands, as often as they are read."""
        given = [node for step in self.steps for node in step.given]
        return [node for node in (*given, self.last) if isinstance(node, Read)]

    def moved(self, strides: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Steps:
        """The same, with operands that are read with other strides."""

        def of_node(node: Node) -> Node:
            return replace(node, strides=strides(node.strides)) if isinstance(node, Read) else node

        steps = [replace(each, given=tuple(map(of_node, each.given))) for each in self.steps]
        return Steps(tuple(steps), of_node(self.last))

    def cost(self) -> int:
        """How many products of bytes take as long as an element."""
        names = [step.name for step in self.steps]
        return sum(_AS_LONG_OF_FUNCTIONS if name in FUNCTIONS else _AS_LONG for name in names)


def _applied(step: Apply, given: Sequence[ArrayLike]) -> ArrayLike:
    if step.name == CONVERT:
        return convert(given[0], step.element)
    if step.name == BITCAST:
        return bits_of(given[0], step.element)
    return RULES[step.name](*given)


# -- the kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ElementwiseKernel:
    """A formula of each position, or what is folded of it along the last axis.

    Attributes:
        shape: the positions.
        formula: what is computed.
        sizes, elements: how many elements operands have, and their types.
        count: how many elements the result has.
        result: their type.
        fold: what is folded along the last axis, a name in `FOLDS`.
        lanes: of f32 in a vector.
    """

    shape: tuple[int, ...]
    formula: Steps
    sizes: tuple[int, ...]
    elements: tuple[ElementType, ...]
    count: int
    result: ElementType
    fold: str | None
    lanes: int

    def kernel(self) -> Kernel:
        """The kernel: bindings are the operands and the result, with one axis each."""
        given = zip(self.sizes, self.elements, strict=True)
        bindings = [Binding((size,), element) for size, element in given]
        bindings.append(Binding((self.count,), self.result))
        cost = self.formula.cost() + _AS_LONG * (self.fold is not None)
        name = FOLDS[self.fold][0] if self.fold else "formula"
        products = math.prod(self.shape) * cost
        return Kernel(name, bindings, 1, self._body, 0, macs=products)

    @property
    def _together(self) -> int:
        """How many elements of the last axis are computed together."""
        if any(each.strides and each.strides[-1] not in (0, 1) for each in self.formula.reads()):
            return 1
        last = self.shape[-1] if self.shape else 1
        return next((n for n in (self.lanes, 8, 4) if last % n == 0), 1)

    @property
    def _is_of_magnitudes(self) -> bool:
        """True for the greatest of magnitudes, whose bits are in their order, and NaN's above all.

        One instruction of a cycle in place of four, one after another as often as a vector has
        halves.
        """
        last = self.formula.last
        if self.fold != "stablehlo.maximum" or not isinstance(last, Result):
            return False
        step = self.formula.steps[last.number]
        return step.name == "stablehlo.abs" and step.element == F32

    def _body(self, memories: Sequence[Value], _: Value, __: Extent) -> None:
        *operands, result = memories
        outer, last = self.shape[:-1], self.shape[-1] if self.shape else 1
        lanes = self._together
        strides = [math.prod(outer[axis + 1 :]) for axis in range(len(outer))]

        def at(positions: Sequence[ArrayLike]) -> ArrayLike:
            """Where the elements begin that are computed at a position of the outer axes."""
            return _sum(0, zip(positions, strides, strict=True))

        def element(positions: Sequence[ArrayLike], place: ArrayLike) -> ArrayLike:
            return _Element(operands, self.elements, lanes, positions, place).of(self.formula)

        def folded(positions: Sequence[ArrayLike], fold: str) -> None:
            _, combined, kind, none = FOLDS[fold]
            many = _AT_ONCE if last % (_AT_ONCE * lanes) == 0 else 1
            is_of_magnitudes = self._is_of_magnitudes

            def more(place: Value, *so_far: ArrayLike) -> list[ArrayLike]:
                places = [scalar(place) + n * lanes for n in range(len(so_far))]
                given = [element(positions, each) for each in places]
                if is_of_magnitudes:
                    given = [bits_of(each, U32) for each in given]
                return list(map(combined, so_far, given))

            start = _form(lanes).known(none, F32)
            if is_of_magnitudes:
                start, kind = _form(lanes).known(0, U32), "maxui"
            totals = loop(0, last, many * lanes, more, [start] * many)
            while len(totals) > 1:
                totals = [combined(*pair) for pair in zip(*[iter(totals)] * 2, strict=True)]
            total = reduce_lanes(kind, totals[0]) if lanes > 1 else totals[0]
            store_element(bits_of(total, F32), result, [at(positions).value])

        def computed(positions: Sequence[ArrayLike]) -> None:
            first = at(positions) * last

            def of_place(place: Value) -> None:
                made = element(positions, scalar(place))
                index = [(first + scalar(place)).value]
                if lanes > 1:
                    store(made, result, index)
                else:
                    store_element(made, result, index)

            loop(0, last, lanes, of_place)

        fold = self.fold
        _nested(outer, computed if fold is None else lambda positions: folded(positions, fold))


def _nested(
    extents: Sequence[int],
    body: Callable[[Sequence[ArrayLike]], None],
    before: Sequence[ArrayLike] = (),
) -> None:
    """A loop for each axis; the body is called with the positions."""
    if not extents:
        body(before)
        return
    loop(0, extents[0], 1, lambda place: _nested(extents[1:], body, [*before, scalar(place)]))


def _form(lanes: int) -> Scalars:
    return Vectors(lanes) if lanes > 1 else Scalars()


def _sum(offset: int, terms: Iterable[tuple[ArrayLike, int]]) -> ArrayLike:
    """``offset`` and positions times their strides."""
    total = scalar(constant_index(offset))
    for position, stride in terms:
        if stride:
            total = total + position * stride
    return total


@dataclass(frozen=True)
class _Element:
    """A position, or as many from there on as are computed together.

    Attributes:
        operands: memrefs.
        elements: of them.
        lanes: how many.
        outer: the position along the axes before the last.
        last: along the last one.
    """

    operands: Sequence[Value]
    elements: Sequence[ElementType]
    lanes: int
    outer: Sequence[ArrayLike]
    last: ArrayLike

    def of(self, formula: Steps) -> ArrayLike:
        """What a formula is there."""
        results: list[ArrayLike] = []
        for step in formula.steps:
            results.append(_applied(step, [self._node(each, results) for each in step.given]))
        return self._node(formula.last, results)

    def _node(self, node: Node, results: Sequence[ArrayLike]) -> ArrayLike:
        if isinstance(node, Result):
            return results[node.number]
        if isinstance(node, Number):
            is_float = node.element.is_float
            number = float.fromhex(node.text) if is_float else int(node.text)
            return _form(self.lanes).known(number, node.element)
        positions = [*self.outer, self.last][-len(node.strides) :] if node.strides else []
        index = _sum(node.offset, zip(positions, node.strides, strict=True)).value
        memory, element = self.operands[node.operand], self.elements[node.operand]
        if self.lanes == 1:
            return load_element(memory, [index])
        if node.strides[-1]:
            return load(memory, [index], self.lanes, element)
        return broadcast(load_element(memory, [index]), self.lanes)
