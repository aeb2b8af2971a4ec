"""Formulas of few elements between other kernels, as calls of kernels that are joined with those.

What lies between the products of one token, its norms, gates and rotations, is some hundred reals
each. IREE makes two dispatches or more of a norm, and a call of a dispatch takes longer than what
it computes. Here sums along the last axes, and what is computed element by element, are kernels of
their own at first, which `joining` makes one of with the rounding before a product, and with small
products. Before::

    %1 = stablehlo.multiply %x, %x : tensor<1x640xf32>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : ...
    %3 = stablehlo.multiply %2, %c : tensor<1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<1xf32>) -> tensor<1x640xf32>
    %5 = stablehlo.divide %x, %4 : tensor<1x640xf32>
    %6:3 = flow.dispatch @round_rows::@round_rows(%5)

After::

    %2 = flow.dispatch @sum::@sum(%x)
    %3 = flow.dispatch @formula::@formula(%2)
    %5 = flow.dispatch @formula_1::@formula_1(%x, %3)
    %6:3 = flow.dispatch @round_rows::@round_rows(%5)

and one dispatch after `joining`. Elements are computed by the same operations in the same order;
sums are of some vectors of partial sums, so that they are rounded otherwise than IREE's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from .._mlir import Operation, Value, ir
from ..emit import Formula, Scalars, scalar
from ..emit.linalg import Extent, constant_index
from ..emit.operation import element_of, erase_unused, is_dynamic
from ..emit.vectors import (
    Vectors,
    broadcast,
    load,
    load_element,
    loop,
    reduced,
    store,
    store_element,
)
from ..numerics.array_functions import convert
from ..numerics.element_types import F32, ElementType
from .constants import is_fixed
from .executables import Binding, Kernel, Library

__all__ = ["write_formulas"]

_MOST_ELEMENTS = 1 << 13
"""Of a result: what has more is worth IREE's threads."""
_AS_LONG, _AS_LONG_OF_FUNCTIONS = 8, 64
"""How many products of bytes take as long as one element of an operation, about."""
_AT_ONCE = 4
"""Vectors of partial sums: a sum takes four cycles, and one begins in each."""
_MOST_OPERATIONS = 32
"""Of a formula; what is behind them is another one."""

_RULES: dict[str, Callable[..., Formula]] = {
    "stablehlo.add": np.add,
    "stablehlo.divide": np.divide,
    "stablehlo.exponential": np.exp,
    "stablehlo.logistic": lambda given: np.float32(1) / (np.float32(1) + np.exp(-given)),
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.subtract": np.subtract,
    "stablehlo.tanh": np.tanh,
}
"""Operations on f32, and how formulas compute them; conversions apart."""
_FUNCTIONS = ("stablehlo.exponential", "stablehlo.logistic", "stablehlo.tanh")
_SHORT = ("stablehlo.add", "stablehlo.multiply", "stablehlo.negate", "stablehlo.subtract")
"""Operations that are done again for each element that reads a result."""
_CONVERT, _REDUCE, _CONSTANT = "stablehlo.convert", "stablehlo.reduce", "stablehlo.constant"
_BROADCAST, _RESHAPE, _SLICE = "stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice"
_VIEWS = (_BROADCAST, _RESHAPE, "stablehlo.reverse", _SLICE)
"""Operations that say where an element is read, in the forms that `_Place` has."""


# -- formulas -------------------------------------------------------------------------------------

_Node: TypeAlias = "_Read | _Apply | str"
"""An element of what is computed; a number as `float.hex` writes it, where -0.0 is not 0.0."""


@dataclass(frozen=True)
class _Read:
    """An operand, read at ``offset + sum_i strides[i] * position[i]``."""

    operand: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Apply:
    """An operation of `_RULES`, or a conversion to an element type."""

    name: str
    given: tuple[_Node, ...]
    element: ElementType = F32


def _reads(node: _Node) -> Iterator[_Read]:
    if isinstance(node, _Read):
        yield node
    elif isinstance(node, _Apply):
        for each in node.given:
            yield from _reads(each)


def _moved(node: _Node, strides: Callable[[tuple[int, ...]], tuple[int, ...]]) -> _Node:
    """A formula whose operands are read with other strides."""
    if isinstance(node, _Read):
        return replace(node, strides=strides(node.strides))
    if isinstance(node, _Apply):
        return replace(node, given=tuple(_moved(each, strides) for each in node.given))
    return node


def _cost(node: _Node) -> int:
    """How many products of bytes take as long as an element."""
    if not isinstance(node, _Apply):
        return 0
    own = _AS_LONG_OF_FUNCTIONS if node.name in _FUNCTIONS else _AS_LONG
    return own + sum(map(_cost, node.given))


@dataclass(frozen=True)
class _Place:
    """Where an element of a tensor is read, of each position of a result.

    Attributes:
        axes: of each axis of the tensor, the axis of the result, None where its extent is 1.
        turned: axes that are read from the end.
    """

    axes: tuple[int | None, ...]
    turned: tuple[bool, ...]

    @classmethod
    def same(cls, rank: int) -> _Place:
        """That of the result itself."""
        return cls(tuple(range(rank)), (False,) * rank)

    def of(self, axes: Sequence[int | None]) -> _Place:
        """That of a tensor, whose axes are such ones of this."""
        return _Place(
            tuple(None if axis is None else self.axes[axis] for axis in axes),
            tuple(axis is not None and self.turned[axis] for axis in axes),
        )

    def behind(self, op: Operation) -> _Place | None:
        """That of the operand of a view; None if this has no form for it."""
        before, after = (_shape(v) for v in (op.operands[0], op.results[0]))
        if op.name == _SLICE:
            return self if before == after else None
        if op.name == _RESHAPE:
            long = [axis for axis, extent in enumerate(after) if extent > 1]
            if [after[axis] for axis in long] != [extent for extent in before if extent > 1]:
                return None
            found = iter(long)
            return self.of([next(found) if extent > 1 else None for extent in before])
        if op.name == _BROADCAST:
            dims = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
            return self.of([axis if n > 1 else None for axis, n in zip(dims, before, strict=True)])
        axes = {int(axis) for axis in op.attributes["dimensions"]}
        return replace(self, turned=tuple(n ^ (i in axes) for i, n in enumerate(self.turned)))

    def read(self, operand: int, shape: Sequence[int], rank: int) -> _Read:
        """How an operand of a shape is read, for a result of so many axes."""
        offset, strides, stride = 0, [0] * rank, math.prod(shape)
        for axis, turned, extent in zip(self.axes, self.turned, shape, strict=True):
            stride //= extent
            if axis is None:
                continue
            strides[axis] += -stride if turned else stride
            offset += (extent - 1) * stride if turned else 0
        return _Read(operand, offset, tuple(strides))


# -- which operations -----------------------------------------------------------------------------


def _shape(value: Value) -> list[int]:
    return [int(extent) for extent in value.type.shape]


def _is_small(value: Value, element: type[ir.Type] = ir.F32Type) -> bool:
    """True for a tensor of f32, or another type, with not many elements, and one at least."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or not isinstance(type_.element_type, element):
        return False
    shape = _shape(value)
    return not any(map(is_dynamic, shape)) and 0 < math.prod(shape) <= _MOST_ELEMENTS


def _is_computed(op: Operation) -> bool:
    """True for what is computed element by element."""
    if op.name == _CONVERT:
        return _is_small(op.operands[0]) and _is_small(op.results[0], ir.F16Type)
    return op.name in _RULES and all(map(_is_small, (*op.operands, *op.results)))


def _is_sum(op: Operation) -> bool:
    """True for a sum from 0 along the last axes."""
    if op.name != _REDUCE or len(op.operands) != 2:
        return False
    if not all(map(_is_small, (*op.operands, *op.results))) or _number(op.operands[1]) != 0:
        return False
    body = op.regions[0].blocks[0]
    inner = [each.operation for each in body.operations]
    if [each.name for each in inner] != ["stablehlo.add", "stablehlo.return"]:
        return False
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    rank = op.operands[0].type.rank
    adds_both = set(inner[0].operands) == set(body.arguments)
    return adds_both and bool(axes) and axes == list(range(rank - len(axes), rank))


def _number(value: Value) -> float | None:
    """The number that each element of a constant is; None for what is none."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != _CONSTANT:
        return None
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    if not isinstance(value.type.element_type, ir.F32Type):
        return None
    return float(attribute.get_splat_value().value)


def _is_read_once(value: Value) -> bool:
    """True if one operation alone reads a value, or a view of it, and once."""
    readers, pending = 0, [value]
    while pending:
        for use in pending.pop().uses:
            op = use.owner.operation
            if op.name in _VIEWS:
                pending.append(op.results[0])
            else:
                readers += 1
            if readers > 1:
                return False
    return readers == 1


def _memory(value: Value) -> Value:
    """The value that has the same elements in the same order, from before it got its shape."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        is_whole = op.name == _SLICE and op.operands[0].type == value.type
        if not is_whole and op.name != _RESHAPE:
            break
        value = op.operands[0]
    return value


@dataclass(frozen=True, eq=False)
class _Formula:
    """What a kernel computes in the place of an operation.

    Attributes:
        op: the operation.
        kernel: what computes its result.
        operands: what that reads.
    """

    op: Operation
    kernel: _FormulaKernel
    operands: tuple[Value, ...]


class _Writer:
    """Writes an operation, with others whose results it alone reads, as a formula."""

    def __init__(self, op: Operation, lanes: int) -> None:
        self._op, self._lanes = op, lanes
        self._operands: list[Value] = []
        self._shape = _shape(op.operands[0])
        self.absorbed: list[Operation] = []

    def write(self) -> _Formula | None:
        """The formula; None if the operation has none."""
        op, place = self._op, _Place.same(len(self._shape))
        is_sum = op.name == _REDUCE
        node = self._node(op.operands[0], place) if is_sum else self._applied(op, place)
        kept = _shape(op.results[0])
        groups = _axes_together(self._shape, list(_reads(node)), len(kept))
        if is_sum and len([group for group in groups if group[0] >= len(kept)]) != 1:
            return None
        sizes = tuple(math.prod(_shape(each)) for each in self._operands)
        kernel = _FormulaKernel(
            tuple(math.prod(self._shape[axis] for axis in group) for group in groups),
            _moved(node, lambda strides: tuple(strides[group[-1]] for group in groups)),
            sizes,
            math.prod(kept),
            element_of(op.results[0].type),
            is_sum,
            self._lanes,
        )
        return _Formula(op, kernel, tuple(self._operands))

    def _applied(self, op: Operation, place: _Place) -> _Apply:
        given = tuple(self._node(operand, place) for operand in op.operands)
        return _Apply(op.name, given, element_of(op.results[0].type))

    def _node(self, value: Value, place: _Place) -> _Node:
        """What an element of a value is, where it is read."""
        number = _number(value)
        while number is None and not isinstance(value.owner, ir.Block) and not is_fixed(value):
            op = value.owner.operation
            if op.name in _VIEWS:
                behind = place.behind(op)
                if behind is None:
                    break
                value, place = op.operands[0], behind
                number = _number(value)
                continue
            if not self._absorbs(op):
                break
            self.absorbed.append(op)
            return self._applied(op, place)
        return self._read(value, place) if number is None else number.hex()

    def _absorbs(self, op: Operation) -> bool:
        """True if an operation is computed where its result is read."""
        if not _is_computed(op) or op.block != self._op.block:
            return False
        is_once = math.prod(_shape(op.results[0])) == math.prod(self._shape)
        if len(self.absorbed) == _MOST_OPERATIONS or not (is_once or op.name in _SHORT):
            return False
        return _is_read_once(op.results[0])

    def _read(self, value: Value, place: _Place) -> _Read:
        memory = _memory(value)
        if memory not in self._operands:
            self._operands.append(memory)
        number = self._operands.index(memory)
        return place.read(number, _shape(value), len(self._shape))


def _axes_together(shape: Sequence[int], reads: Sequence[_Read], end: int) -> list[list[int]]:
    """The axes of a formula that are one for all that it reads.

    Args:
        shape: of what is computed; axes of extent 1 are left out.
        reads: its operands.
        end: axes before this one are kept apart from the others.
    """
    groups: list[list[int]] = []
    for axis, extent in enumerate(shape):
        last = groups[-1][-1] if groups else axis
        is_near = last < axis and (last < end) == (axis < end)
        if extent == 1:
            continue
        if is_near and all(read.strides[last] == read.strides[axis] * extent for read in reads):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def write_formulas(library: Library, lanes: int) -> None:
    """Have kernels compute what is computed between others of one token.

    Args:
        library: has the calls of the others.
        lanes: of f32 in a vector.
    """
    calls = [call.operation for call in library.calls]
    of_a_token = [
        call.operation
        for call in library.calls
        if call.kernel.name == "round_rows" and call.kernel.rows == 1
    ]
    for block in dict.fromkeys(operation.block for operation in of_a_token):
        own = [each for each in calls if each.block == block]
        # From the last to the first: what reads a result is called before that is replaced.
        for formula in _connected(_formulas_of(block, lanes), own):
            op, result = formula.op, formula.op.results[0]
            kernel = formula.kernel
            with ir.InsertionPoint(op), op.location:
                [made] = library.call(kernel, kernel.kernel(), formula.operands, [result.type], 0)
            result.replace_all_uses_with(made)
            erase_unused(op, lambda each: each.name in _ERASED)


_ERASED = (*_RULES, *_VIEWS, _CONVERT, _CONSTANT)


def _formulas_of(block: ir.Block, lanes: int) -> list[_Formula]:
    """The formulas of a block, from the last to the first."""
    found, absorbed = [], set[Operation]()
    for each in reversed([each.operation for each in block.operations]):
        if each in absorbed or not (_is_computed(each) or _is_sum(each)):
            continue
        if is_fixed(each.results[0]):
            continue  # which IREE computes once
        writer = _Writer(each, lanes)
        formula = writer.write()
        if formula is not None:
            found.append(formula)
            absorbed.update(writer.absorbed)
    return found


def _connected(formulas: Sequence[_Formula], calls: Sequence[Operation]) -> list[_Formula]:
    """The formulas that read what calls write, or write what they read; also over others."""
    beside: dict[Operation, set[Operation]] = {}
    operands = {each.op: each.operands for each in formulas}
    operands |= {call: tuple(map(_memory, call.operands)) for call in calls}
    for op, given in operands.items():
        for value in given:
            if not isinstance(value.owner, ir.Block) and value.owner.operation in operands:
                other = value.owner.operation
                beside.setdefault(op, set()).add(other)
                beside.setdefault(other, set()).add(op)
    reached, pending = set(calls), list(calls)
    while pending:
        for other in beside.get(pending.pop(), set()) - reached:
            reached.add(other)
            pending.append(other)
    return [each for each in formulas if each.op in reached]


# -- the kernel -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _FormulaKernel:
    """A formula of each position, or its sums along the last axis.

    Attributes:
        shape: the positions.
        node: what is computed.
        sizes: how many elements operands have.
        count: how many elements the result has.
        result: their type.
        is_sum: sum along the last axis.
        lanes: of f32 in a vector.
    """

    shape: tuple[int, ...]
    node: _Node
    sizes: tuple[int, ...]
    count: int
    result: ElementType
    is_sum: bool
    lanes: int

    def kernel(self) -> Kernel:
        """The kernel: bindings are the operands and the result, with one axis each."""
        bindings = [Binding((size,), F32) for size in self.sizes]
        bindings.append(Binding((self.count,), self.result))
        products = math.prod(self.shape) * (_cost(self.node) + _AS_LONG * self.is_sum)
        name = "sum" if self.is_sum else "formula"
        return Kernel(name, bindings, 1, self._body, 0, products=products)

    @property
    def _together(self) -> int:
        """How many elements of the last axis are computed together."""
        if any(each.strides and each.strides[-1] not in (0, 1) for each in _reads(self.node)):
            return 1
        last = self.shape[-1] if self.shape else 1
        return next((n for n in (self.lanes, 8, 4) if last % n == 0), 1)

    def _body(self, memories: Sequence[Value], _: Value, __: Extent) -> None:
        *operands, result = memories
        outer, last = self.shape[:-1], self.shape[-1] if self.shape else 1
        lanes = self._together
        strides = [math.prod(outer[axis + 1 :]) for axis in range(len(outer))]

        def at(positions: Sequence[Formula]) -> Formula:
            """Where the elements begin that are computed at a position of the outer axes."""
            return _sum(0, zip(positions, strides, strict=True))

        def summed(positions: Sequence[Formula]) -> None:
            many = _AT_ONCE if last % (_AT_ONCE * lanes) == 0 else 1

            def more(place: Value, *so_far: Formula) -> list[Formula]:
                return [
                    total
                    + _Element(operands, lanes, positions, scalar(place) + n * lanes).of(self.node)
                    for n, total in enumerate(so_far)
                ]

            zero = _form(lanes).known(0.0, F32)
            totals = loop(0, last, many * lanes, more, [zero] * many)
            while len(totals) > 1:
                totals = [left + right for left, right in zip(*[iter(totals)] * 2, strict=True)]
            total = reduced("add", totals[0]) if lanes > 1 else totals[0]
            store_element(total, result, [at(positions).value])

        def computed(positions: Sequence[Formula]) -> None:
            first = at(positions) * last

            def of_place(place: Value) -> None:
                element = _Element(operands, lanes, positions, scalar(place)).of(self.node)
                index = [(first + scalar(place)).value]
                if lanes > 1:
                    store(element, result, index)
                else:
                    store_element(element, result, index)

            loop(0, last, lanes, of_place)

        _nested(outer, summed if self.is_sum else computed)


def _nested(
    extents: Sequence[int],
    body: Callable[[Sequence[Formula]], None],
    before: Sequence[Formula] = (),
) -> None:
    """A loop for each axis; the body is called with the positions."""
    if not extents:
        body(before)
        return
    loop(0, extents[0], 1, lambda place: _nested(extents[1:], body, [*before, scalar(place)]))


def _form(lanes: int) -> Scalars:
    return Vectors(lanes) if lanes > 1 else Scalars()


def _sum(offset: int, terms: Iterable[tuple[Formula, int]]) -> Formula:
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
        lanes: how many.
        outer: the position along the axes before the last.
        last: along the last one.
    """

    operands: Sequence[Value]
    lanes: int
    outer: Sequence[Formula]
    last: Formula

    def of(self, node: _Node) -> Formula:
        """What a formula is there."""
        if isinstance(node, _Read):
            return self._read(node)
        if not isinstance(node, _Apply):
            return _form(self.lanes).known(float.fromhex(node), F32)
        given = [self.of(each) for each in node.given]
        return (
            convert(given[0], node.element) if node.name == _CONVERT else _RULES[node.name](*given)
        )

    def _read(self, node: _Read) -> Formula:
        positions = [*self.outer, self.last][-len(node.strides) :] if node.strides else []
        index = _sum(node.offset, zip(positions, node.strides, strict=True)).value
        memory = self.operands[node.operand]
        if self.lanes == 1:
            return load_element(memory, [index])
        if node.strides[-1]:
            return load(memory, [index], self.lanes, F32)
        return broadcast(load_element(memory, [index]), self.lanes)
