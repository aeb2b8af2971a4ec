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

So is what lies between products of bytes of one row, whose activations are rounded at run time: the
greatest magnitude, the scale and the rounding of a layer were three dispatches beside its product.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...core._mlir import Operation, Value, ir
from ...emit.operation import element_of, erase_unused, is_dynamic, values_read
from ...emit.stablehlo_semantics import comparison_direction, reshape_source
from ...numerics.element_types import BOOL, F16, F32, I8, I16, I32, I64, ElementType
from ..constant_values import is_invariant
from ..cpu.elementwise import (
    BITCAST,
    CONVERT,
    FOLDS,
    FUNCTIONS,
    OF_BITS,
    OF_FLOATS,
    RULES,
    SELECT,
    SHIFTS,
    Apply,
    ElementwiseKernel,
    Node,
    Number,
    Read,
    Result,
    Steps,
)
from ..kernel_table import KernelCall, KernelTable

__all__ = ["fuse_elementwise"]

_MOST_ELEMENTS = 1 << 13
"""Of a result: what has more is worth IREE's threads."""
_MOST_OPERATIONS = 32
"""Of a formula; what is behind them is another one."""

_LONG = (*FUNCTIONS, "stablehlo.divide", "stablehlo.sqrt")
"""Operations that are not done again for each element that reads a result."""
_REDUCE, _COMPARE, _CONSTANT = "stablehlo.reduce", "stablehlo.compare", "stablehlo.constant"
_BROADCAST, _RESHAPE, _SLICE = "stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice"
_VIEWS = (_BROADCAST, _RESHAPE, "stablehlo.reverse", _SLICE)
"""Operations that say where an element is read, in the forms that `_Place` has."""


# -- where elements are read -----------------------------------------------------------------------


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

    def read(self, operand: int, shape: Sequence[int], rank: int) -> Read:
        """How an operand of a shape is read, for a result of so many axes."""
        offset, strides, stride = 0, [0] * rank, math.prod(shape)
        for axis, turned, extent in zip(self.axes, self.turned, shape, strict=True):
            stride //= extent
            if axis is None:
                continue
            strides[axis] += -stride if turned else stride
            offset += (extent - 1) * stride if turned else 0
        return Read(operand, offset, tuple(strides))


# -- which operations -----------------------------------------------------------------------------


def _shape(value: Value) -> list[int]:
    return [int(extent) for extent in value.type.shape]


def _element(value: Value) -> ElementType | None:
    """The element type of a tensor with not many elements, and one at least; None for others."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or str(type_.element_type) not in _ELEMENTS:
        return None
    shape = _shape(value)
    if any(map(is_dynamic, shape)) or not 0 < math.prod(shape) <= _MOST_ELEMENTS:
        return None
    return element_of(type_)


_INTEGERS = (I8, I16, I32, I64)
_STORED = (F32, *_INTEGERS)
"""Of tensors that kernels read; they write f16 too."""
_ELEMENTS = frozenset(map(str, (*_STORED, F16, BOOL)))


def _is_computed(op: Operation) -> bool:
    """True for what is computed element by element."""
    if op.name not in (*RULES, BITCAST, _COMPARE, CONVERT):
        return False
    *given, made = elements = [_element(value) for value in (*op.operands, *op.results)]
    shapes = (
        [_shape(value) for value in (*op.operands, *op.results)] if None not in elements else []
    )
    if not shapes or any(shape != shapes[-1] for shape in shapes):
        return False
    if op.name == CONVERT:
        return (given[0] in (*_STORED, BOOL) and made in _STORED) or (given[0], made) == (F32, F16)
    if op.name == BITCAST:
        return {given[0], made} <= {F32, I32}
    if op.name == _COMPARE:
        return given[0] in _STORED and _is_ordinary(op)
    if op.name == SELECT:
        return made in _STORED
    if op.name in OF_BITS:
        return made in (*_INTEGERS, BOOL)
    if op.name in SHIFTS:
        by = _number(_behind(op.operands[1])[0])
        return made in _INTEGERS and by is not None and 0 <= int(by.text) < made.bits
    return made == F32 if op.name in OF_FLOATS else made in _STORED


def _is_ordinary(op: Operation) -> bool:
    """True for a comparison of floats, or of integers with a sign."""
    if "compare_type" not in op.attributes:
        return True
    return str(op.attributes["compare_type"]).split()[-1].rstrip(">") in ("FLOAT", "SIGNED")


def _fold_of(op: Operation) -> str | None:
    """What is folded along the last axes, from what is computed of no elements; None if nothing."""
    if op.name != _REDUCE or len(op.operands) != 2:
        return None
    if any(_element(value) != F32 for value in (*op.operands, *op.results)):
        return None
    body = op.regions[0].blocks[0]
    inner = [each.operation for each in body.operations]
    names = [each.name for each in inner]
    if len(names) != 2 or names[0] not in FOLDS or names[1] != "stablehlo.return":
        return None
    start = _number(op.operands[1])
    if start is None or float.fromhex(start.text) != FOLDS[names[0]][-1]:
        return None
    axes = sorted(int(axis) for axis in op.attributes["dimensions"])
    rank = op.operands[0].type.rank
    has_both = set(inner[0].operands) == set(body.arguments)
    is_last = bool(axes) and axes == list(range(rank - len(axes), rank))
    return names[0] if has_both and is_last else None


def _number(value: Value) -> Number | None:
    """The number that each element of a constant is; None for what is none."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != _CONSTANT:
        return None
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    if _element(value) not in _STORED:
        return None
    element, number = element_of(value.type), attribute.get_splat_value().value
    return Number(float(number).hex() if element.is_float else str(int(number)), element)


def _readers(value: Value) -> int:
    """How often operations read a value, or a view of it."""
    count, pending = 0, [value]
    while pending:
        for use in pending.pop().uses:
            op = use.owner.operation
            if op.name in _VIEWS:
                pending.append(op.results[0])
            else:
                count += 1
    return count


def _memory(value: Value) -> Value:
    """The value whose buffer holds the elements of a value, in the same order."""
    return reshape_source(value, through_whole_slices=True)


@dataclass(frozen=True, eq=False)
class _Formula:
    """What a kernel computes in the place of an operation.

    Attributes:
        op: the operation.
        kernel: what computes its result.
        operands: what that reads.
        absorbed: other operations that it does.
    """

    op: Operation
    kernel: ElementwiseKernel
    operands: tuple[Value, ...]
    absorbed: tuple[Operation, ...]


class _Writer:
    """Writes an operation, with others whose results it alone reads, as a formula.

    Args:
        op: the operation.
        order: the numbers of operations of its block.
        lanes: of f32 in a vector.
    """

    def __init__(self, op: Operation, order: Mapping[Operation, int], lanes: int) -> None:
        self._op, self._order, self._lanes = op, order, lanes
        self._fold = _fold_of(op)
        self._operands: list[Value] = []
        self._shape = _shape(op.operands[0])
        self._places: dict[Operation, _Place] = {}

    def write(self) -> _Formula | None:
        """The formula; None if the operation has none."""
        op, place = self._op, _Place.same(len(self._shape))
        own = list(op.operands)[:1] if self._fold else list(op.operands)
        self._absorb([(operand, place) for operand in own])
        if self._fold is None:
            self._places[op] = place
        order = sorted(self._places, key=self._order.__getitem__)
        numbers = {each: number for number, each in enumerate(order)}
        steps = tuple(self._step(each, numbers) for each in order)
        wanted = self._node(own[0], place, numbers) if self._fold else Result(len(steps) - 1)
        if any(_element(each) not in _STORED for each in self._operands):
            return None
        formula = Steps(steps, wanted)
        kept = _shape(op.results[0])
        groups = _axes_together(self._shape, formula.reads(), len(kept))
        if self._fold and len([group for group in groups if group[0] >= len(kept)]) != 1:
            return None
        kernel = ElementwiseKernel(
            tuple(math.prod(self._shape[axis] for axis in group) for group in groups),
            formula.moved(lambda strides: tuple(strides[group[-1]] for group in groups)),
            tuple(math.prod(_shape(each)) for each in self._operands),
            tuple(element_of(each.type) for each in self._operands),
            math.prod(kept),
            element_of(op.results[0].type),
            self._fold,
            self._lanes,
        )
        absorbed = tuple(each for each in order if each != op)
        return _Formula(op, kernel, tuple(self._operands), absorbed)

    def _absorb(self, given: Sequence[tuple[Value, _Place]]) -> None:
        """Find the operations that are computed where their results are read, the last first."""
        asked: dict[Operation, list[_Place]] = {}

        def ask(value: Value, place: _Place) -> None:
            value, place = _behind(value, place)
            if not isinstance(value.owner, ir.Block) and value.owner.operation in self._order:
                asked.setdefault(value.owner.operation, []).append(place)

        for value, place in given:
            ask(value, place)
        while asked:
            op = max(asked, key=self._order.__getitem__)
            places = asked.pop(op)
            if self._absorbs(op, places):
                self._places[op] = places[0]
                for operand in op.operands:
                    ask(operand, places[0])

    def _absorbs(self, op: Operation, places: Sequence[_Place]) -> bool:
        """True if an operation is computed where its result is read, all at one place."""
        result = op.results[0]
        if not _is_computed(op) or is_invariant(result) or len(self._places) == _MOST_OPERATIONS:
            return False
        if any(place != places[0] for place in places):
            return False
        if _element(result) == BOOL:  # which no kernel writes
            return True
        is_once = math.prod(_shape(result)) == math.prod(self._shape)
        return (is_once or op.name not in _LONG) and _readers(result) == len(places)

    def _step(self, op: Operation, numbers: Mapping[Operation, int]) -> Apply:
        given = tuple(self._node(operand, self._places[op], numbers) for operand in op.operands)
        name = op.name
        if name == _COMPARE:
            name = comparison_direction(op)
        return Apply(name, given, element_of(op.results[0].type))

    def _node(self, value: Value, place: _Place, numbers: Mapping[Operation, int]) -> Node:
        """What an element of a value is, where it is read."""
        value, place = _behind(value, place)
        number = _number(value)
        if number is not None:
            return number
        if not isinstance(value.owner, ir.Block) and value.owner.operation in numbers:
            return Result(numbers[value.owner.operation])
        memory = _memory(value)
        if memory not in self._operands:
            self._operands.append(memory)
        return place.read(self._operands.index(memory), _shape(value), len(self._shape))


def _behind(value: Value, place: _Place | None = None) -> tuple[Value, _Place]:
    """What views are of, and where it is read."""
    place = place or _Place.same(len(_shape(value)))
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in _VIEWS:
        behind = place.behind(value.owner.operation)
        if behind is None:
            break
        value, place = value.owner.operation.operands[0], behind
    return value, place


def _axes_together(shape: Sequence[int], reads: Sequence[Read], end: int) -> list[list[int]]:
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


def fuse_elementwise(kernels: KernelTable, lanes: int) -> None:
    """Have kernels compute what is computed between others of one token.

    Args:
        kernels: has the calls of the others.
        lanes: of f32 in a vector.
    """
    blocks: dict[ir.Block, list[KernelCall]] = {}
    for call in kernels.calls:
        blocks.setdefault(call.operation.block, []).append(call)
    for block, calls in blocks.items():
        # From the last to the first: what reads a result is called before that is replaced.
        for formula in _formulas_beside(calls, block, lanes):
            op, result = formula.op, formula.op.results[0]
            kernel = formula.kernel
            with ir.InsertionPoint(op), op.location:
                [made] = kernels.call(kernel, kernel.kernel(), formula.operands, [result.type], 0)
            result.replace_all_uses_with(made)
            erase_unused(op, lambda each: each.name in _ERASED)


def _formulas_beside(calls: Sequence[KernelCall], block: ir.Block, lanes: int) -> list[_Formula]:
    """The formulas of a block that are written: beside what rounds or multiplies one row.

    Beside products of bytes all or none: IREE computes what lies between by fewer dispatches than
    pieces of it and kernels in turn.
    """
    kernels = [call.kernel for call in calls]
    own = [call.operation for call in calls]
    if any(each.name == "round_rows" and each.m == 1 for each in kernels):
        return _connected(_formulas_of(block, lanes, (F32, F16)), own)
    products = [each for each in kernels if each.name != "padded_pictures"]
    if not all(each.name == "integer_product" and each.m == 1 for each in products):
        return []
    found = _connected(_formulas_of(block, lanes, (*_STORED, F16)), own)
    done = {op for each in found for op in each.absorbed}
    return [] if _is_between(block, {*own, *(each.op for each in found)}, done) else found


def _is_between(
    block: ir.Block, kernels: Collection[Operation], done: Collection[Operation]
) -> bool:
    """True if kernels read what others compute by way of operations that none of them does."""
    operations = [each.operation for each in block.operations]
    behind = set[Value]()
    for op in operations:
        if op in kernels or not behind.isdisjoint(values_read(op)):
            behind.update(op.results)
    needed = {value for op in kernels for value in values_read(op)}
    for op in reversed(operations):
        if op not in kernels and not needed.isdisjoint(op.results):
            is_done = op in done or op.name in (*_VIEWS, _CONSTANT)
            if not is_done and not behind.isdisjoint(op.results):
                return True
            needed.update(values_read(op))
    return False


_ERASED = (*RULES, *_VIEWS, BITCAST, _COMPARE, CONVERT, _CONSTANT)


def _formulas_of(block: ir.Block, lanes: int, elements: Collection[ElementType]) -> list[_Formula]:
    """The formulas of a block whose results have such elements, from the last to the first."""
    found, absorbed = [], set[Operation]()
    order = {each.operation: number for number, each in enumerate(block.operations)}
    for each in reversed(order):
        if each in absorbed or not (_is_computed(each) or _fold_of(each)):
            continue
        if is_invariant(each.results[0]) or _element(each.results[0]) not in elements:
            continue  # IREE computes what is fixed once
        formula = _Writer(each, order, lanes).write()
        if formula is not None:
            found.append(formula)
            absorbed.update(formula.absorbed)
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
