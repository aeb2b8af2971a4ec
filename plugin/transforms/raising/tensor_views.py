"""Tensors of a program in other shapes, and the numbers of those that are constants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense
from ...emit.operation import is_dynamic
from ...emit.stablehlo_semantics import ELEMENTWISE
from ...numerics.element_types import Array
from ...numerics.views import View
from ..base import NoMatch

__all__ = ["VIEWS", "Part", "is_static", "moved", "part_of", "viewed"]

VIEWS = ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim")
"""Operations that move elements only."""
_ARITHMETIC = ("stablehlo.add", "stablehlo.multiply", "stablehlo.subtract")
"""Operations that are evaluated on constants of integers."""
_DEEPEST = 4
_MOST_NUMBERS = 1 << 16
"""Elements of a constant that are looked at."""


@dataclass(frozen=True)
class Part:
    """A tensor in another shape.

    Attributes:
        root: the tensor; None for a number that no operation of the program has.
        view: which of its elements is where.
        numbers: the elements of a constant that is not large, of a splat only one; else None.
    """

    root: Value
    view: View
    numbers: Array | None = None


def part_of(value: Value, depth: int = 0) -> Part:
    """A value as what it is a view of, through reshapes, transpositions and broadcasts."""
    steps: list[Operation] = []
    root = value
    while True:
        owner = root.owner
        if isinstance(owner, ir.Block) or owner.operation.name not in VIEWS:
            break
        if not is_static(owner.operation.operands[0].type):
            break
        steps.append(owner.operation)
        root = owner.operation.operands[0]
    part = _whole(root, depth)
    for step in reversed(steps):
        found = moved(part, step)
        part = found if isinstance(found, Part) else _whole(step.results[0])
    return part


def _whole(root: Value, depth: int = _DEEPEST) -> Part:
    """A value as it is."""
    shape, owner = [int(n) for n in root.type.shape], root.owner
    if isinstance(owner, ir.Block):
        return Part(root, View.of(shape))
    if owner.operation.name not in CONSTANTS:
        return Part(root, View.of(shape), _computed(owner.operation, shape, depth))
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        return Part(root, View.of(shape))
    if attribute.is_splat:
        return Part(root, View(()).broadcast((), shape), array_of_dense(_single(attribute)))
    numbers = array_of_dense(attribute) if len(attribute) <= _MOST_NUMBERS else None
    return Part(root, View.of(shape), numbers)


def _computed(op: Operation, shape: list[int], depth: int) -> Array | None:
    """The elements of a few integers that are counted, or computed from constants; or None."""
    element = op.results[0].type.element_type
    if not isinstance(element, ir.IntegerType) or np.prod(shape, dtype=np.int64) > _MOST_NUMBERS:
        return None
    if op.name == "stablehlo.iota":
        axis = int(op.attributes["iota_dimension"])
        counted = np.arange(shape[axis]).reshape(
            [-1 if n == axis else 1 for n in range(len(shape))]
        )
        numbers = np.broadcast_to(counted, shape)
    elif op.name in _ARITHMETIC and depth < _DEEPEST:
        operands = [part_of(operand, depth + 1) for operand in op.operands]
        if any(part.numbers is None for part in operands):
            return None
        numbers = ELEMENTWISE[op.name](*map(_elements, operands))
    elif op.name == "stablehlo.convert" and depth < _DEEPEST:
        source = op.operands[0].type.element_type
        is_signed = isinstance(source, ir.IntegerType) and not source.is_unsigned
        part = part_of(op.operands[0], depth + 1) if is_signed else None
        if part is None or part.numbers is None:
            return None
        numbers = _elements(part)
    else:
        return None
    low, high = (0, 1 << element.width) if element.is_unsigned else _signed(element.width)
    return np.asarray(numbers) if low <= numbers.min() and numbers.max() < high else None


def _signed(width: int) -> tuple[int, int]:
    return -(1 << (width - 1)), 1 << (width - 1)


def _elements(part: Part) -> Array:
    assert part.numbers is not None
    return part.numbers.reshape(-1)[part.view.indices()]


def _single(attribute: ir.DenseElementsAttr) -> ir.DenseElementsAttr:
    """The one element of a splat, without axes."""
    type_ = ir.RankedTensorType.get([], attribute.type.element_type)
    return ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value())


def moved(part: Part, op: Operation) -> Part | NoMatch:
    """A part after a reshape, transposition or broadcast."""
    view = viewed(part.view, op)
    return view if isinstance(view, NoMatch) else replace(part, view=view)


def viewed(view: View, op: Operation) -> View | NoMatch:
    """A view after a reshape, transposition or broadcast."""
    shape = [int(n) for n in op.results[0].type.shape]
    if op.name == "stablehlo.transpose":
        return view.transposed([int(axis) for axis in op.attributes["permutation"]])
    if op.name == "stablehlo.broadcast_in_dim":
        places = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
        return view.broadcast(places, shape)
    found = view.reshaped(shape)
    if found is None:
        return NoMatch("reshapes across axes whose extents do not divide each other")
    return found


def is_static(type_: ir.Type) -> bool:
    """True for a ranked tensor of a static shape with elements, and without an encoding."""
    if not isinstance(type_, ir.RankedTensorType) or type_.encoding is not None:
        return False
    return not any(is_dynamic(int(n)) or n == 0 for n in type_.shape)
