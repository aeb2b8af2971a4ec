"""Views of a program's tensors, with the elements of constants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import CONSTANTS, array_of_dense
from ...emit.operation import is_dynamic
from ...emit.stablehlo_semantics import ELEMENTWISE
from ...numerics.element_types import Array
from ..base import NoMatch, producer_named
from .views import View

VIEWS = ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim")
"""Operations that only move elements."""
_ARITHMETIC = ("stablehlo.add", "stablehlo.multiply", "stablehlo.subtract")
"""Operations that are evaluated on constants of integers."""
_MAX_DEPTH = 4
"""Nested operations on constants that are evaluated, at most; deeper ones are not raised."""
_MAX_CONSTANT_ELEMENTS = 1 << 16
"""Elements of a constant that are read, at most; larger ones may not be raised.

Costs compile time.
"""


@dataclass(frozen=True)
class TensorView:
    """A view of a tensor.

    Attributes:
        root: the tensor; None for a number that is no value of the program.
        view: the position of each element in the tensor.
        numbers: the elements of a small constant, of a splat only one; else None.
    """

    root: Value
    view: View
    numbers: Array | None = None


def tensor_view(value: Value, depth: int = 0) -> TensorView:
    """A value as a view of a tensor, through reshapes, transpositions and broadcasts."""
    steps: list[Operation] = []
    root = value
    while (step := producer_named(root, *VIEWS)) and is_static(step.operands[0].type):
        steps.append(step)
        root = step.operands[0]
    view = _whole(root, depth)
    for step in reversed(steps):
        after = moved_view(view, step)
        view = after if isinstance(after, TensorView) else _whole(step.results[0])
    return view


def _whole(root: Value, depth: int = _MAX_DEPTH) -> TensorView:
    """A value as a view of itself."""
    shape, owner = [int(n) for n in root.type.shape], root.owner
    if isinstance(owner, ir.Block):
        return TensorView(root, View.of(shape))
    if owner.operation.name not in CONSTANTS:
        return TensorView(root, View.of(shape), _computed(owner.operation, shape, depth))
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        return TensorView(root, View.of(shape))
    if attribute.is_splat:
        return TensorView(root, View(()).broadcast((), shape), array_of_dense(_single(attribute)))
    numbers = array_of_dense(attribute) if len(attribute) <= _MAX_CONSTANT_ELEMENTS else None
    return TensorView(root, View.of(shape), numbers)


def _computed(op: Operation, shape: list[int], depth: int) -> Array | None:
    """The elements of a small integer ``iota``, or of arithmetic on constants; else None."""
    element = op.results[0].type.element_type
    count = np.prod(shape, dtype=np.int64)
    if not isinstance(element, ir.IntegerType) or count > _MAX_CONSTANT_ELEMENTS:
        return None
    if op.name == "stablehlo.iota":
        axis = int(op.attributes["iota_dimension"])
        along_axis = [-1 if n == axis else 1 for n in range(len(shape))]
        numbers = np.broadcast_to(np.arange(shape[axis]).reshape(along_axis), shape)
    elif op.name in _ARITHMETIC and depth < _MAX_DEPTH:
        operands = [tensor_view(operand, depth + 1) for operand in op.operands]
        if any(view.numbers is None for view in operands):
            return None
        numbers = ELEMENTWISE[op.name](*map(_elements, operands))
    elif op.name == "stablehlo.convert" and depth < _MAX_DEPTH:
        source = op.operands[0].type.element_type
        is_signed = isinstance(source, ir.IntegerType) and not source.is_unsigned
        view = tensor_view(op.operands[0], depth + 1) if is_signed else None
        if view is None or view.numbers is None:
            return None
        numbers = _elements(view)
    else:
        return None
    half = 1 << (element.width - 1)
    low, high = (0, 2 * half) if element.is_unsigned else (-half, half)
    return np.asarray(numbers) if low <= numbers.min() and numbers.max() < high else None


def _elements(view: TensorView) -> Array:
    assert view.numbers is not None
    return view.numbers.reshape(-1)[view.view.indices()]


def _single(attribute: ir.DenseElementsAttr) -> ir.DenseElementsAttr:
    """The one element of a splat, without axes."""
    type_ = ir.RankedTensorType.get([], attribute.type.element_type)
    return ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value())


def moved_view(view: TensorView, op: Operation) -> TensorView | NoMatch:
    """A view after a reshape, transposition or broadcast."""
    strides = moved_strides(view.view, op)
    return strides if isinstance(strides, NoMatch) else replace(view, view=strides)


def moved_strides(view: View, op: Operation) -> View | NoMatch:
    """The strides after a reshape, transposition or broadcast."""
    shape = [int(n) for n in op.results[0].type.shape]
    if op.name == "stablehlo.transpose":
        return view.transposed([int(axis) for axis in op.attributes["permutation"]])
    if op.name == "stablehlo.broadcast_in_dim":
        dims = [int(axis) for axis in op.attributes["broadcast_dimensions"]]
        return view.broadcast(dims, shape)
    reshaped = view.reshaped(shape)
    if reshaped is None:
        return NoMatch("reshapes across axes whose sizes do not divide each other")
    return reshaped


def is_static(type_: ir.Type) -> bool:
    """True for a ranked tensor of a static shape with elements, and without an encoding."""
    if not isinstance(type_, ir.RankedTensorType) or type_.encoding is not None:
        return False
    return not any(is_dynamic(int(n)) or n == 0 for n in type_.shape)
