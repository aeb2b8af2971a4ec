"""Folding of a float program before quantization: padding, and scales after contractions.

A pad with zeros becomes the padding of its convolution. Products and sums with constants of the
output channels after a contraction, as batch normalization has them, become part of the weight and
one bias::

    ((x * w + b) - mean) * gain + shift  =  x * (w * gain) + ((b - mean) * gain + shift)

A contraction whose weight is the left operand gets it as the right one. Rows of a matrix product
with several axes become one, and the elementwise operations after it act on the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Operation, Value, ir, stablehlo
from ...dialects.stablehlo import CONTRACTIONS
from ...dialects.windows import dot_axes, pad_amounts, window_padding
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements, is_constant
from ...emit.operation import producer_named, value, with_shape
from ...emit.parameters import ModuleGlobals
from ...kernels.epilogue.matcher import constant_grid
from ...numerics.element_types import Array
from ...transforms.base import named
from ...transforms.contraction.sink_reshapes import sink_reshapes
from ...transforms.quantization.math.contraction import Contraction

_ROOTS: dict[str, Callable[[Array], Array]] = {
    "stablehlo.rsqrt": lambda x: np.asarray(1 / np.sqrt(x)),
    "stablehlo.sqrt": lambda x: np.asarray(np.sqrt(x)),
}
_AFFINE = tuple(f"stablehlo.{name}" for name in ("add", "subtract", "multiply", "divide"))


def fold_program(module: Operation) -> None:
    """Fold paddings, left weights and affine operations of contractions in `module`."""
    module_globals = ModuleGlobals(module)
    for op in named(module, tuple(_ROOTS)):
        _fold_root(op, module_globals)
    for op in named(module, ("stablehlo.dot_general",)):
        with ir.InsertionPoint(op), op.location:
            _exchange_operands(op, module_globals)
    for op in named(module, ("stablehlo.dot_general",)):
        with ir.InsertionPoint(op), op.location:
            _drop_weight_batch(op, module_globals)
    for op in named(module, ("stablehlo.dot_general",)):
        with ir.InsertionPoint(op), op.location:
            _flatten_rows(op, module_globals)
    for op in named(module, ("stablehlo.convolution",)):
        _fold_padding(op, module_globals)
    for op in named(module, CONTRACTIONS):
        if is_constant(op.operands[1], module_globals):
            _fold_affine(op, module_globals)


def only_use(result: Value) -> tuple[Operation, int] | None:
    """Return the user of a value, and the number of the operand, if there is one use only."""
    uses = list(result.uses)
    return (uses[0].owner.operation, uses[0].operand_number) if len(uses) == 1 else None


def _fold_root(op: Operation, module_globals: ModuleGlobals) -> None:
    """Compute the root of a constant, such as that of a variance."""
    elements = constant_elements(op.operands[0], module_globals)
    if elements is None or elements.dtype != np.float32:
        return
    with np.errstate(all="ignore"), ir.InsertionPoint(op), op.location:
        root = emit_stablehlo.constant(_ROOTS[op.name](elements), op.results[0].type.element_type)
    op.results[0].replace_all_uses_with(root)
    op.erase()


def _drop_weight_batch(op: Operation, module_globals: ModuleGlobals) -> None:
    """Write a product whose weight is equal for all indices of the batch without a batch."""
    left, right = op.operands
    contracted, batch = dot_axes(op)
    if not batch[0] or not is_constant(right, module_globals) or not left.type.has_static_shape:
        return
    weight = constant_elements(right, module_globals)
    assert weight is not None  # constant
    first = weight
    for axis in sorted(batch[1], reverse=True):
        first = first.take(0, axis)
    if not (weight == np.expand_dims(first, tuple(sorted(batch[1])))).all():
        return
    free = [n for n in range(left.type.rank) if n not in batch[0] and n not in contracted[0]]
    order = [*batch[0], *free, *contracted[0]]  # as the result has them
    if order != list(range(left.type.rank)):
        left = emit_stablehlo.transpose(left, order)
    rank, count = left.type.rank, len(contracted[0])
    remaining = [n for n in range(weight.ndim) if n not in batch[1]]
    axes = [list(range(rank - count, rank)), [remaining.index(n) for n in contracted[1]]]
    matrix = emit_stablehlo.constant(first, right.type.element_type)
    product = emit_stablehlo.dot_general(left, matrix, op.results[0].type, axes)
    op.results[0].replace_all_uses_with(product)
    op.erase()


def _exchange_operands(op: Operation, module_globals: ModuleGlobals) -> None:
    """Write a matrix product ``w x`` of a constant ``w`` as ``transpose(x w)``."""
    left, right = op.operands
    (contracted, batch), rank = dot_axes(op), op.results[0].type.rank
    is_left = is_constant(left, module_globals) and not is_constant(right, module_globals)
    if not is_left or batch[0]:
        return
    free = left.type.rank - len(contracted[0])
    order = [*range(rank - free, rank), *range(rank - free)]  # new axes of the result's
    shape = [int(op.results[0].type.shape[axis]) for axis in [*range(free, rank), *range(free)]]
    type_ = with_shape(op.results[0].type, shape)
    product = emit_stablehlo.dot_general(right, left, type_, [contracted[1], contracted[0]])
    op.results[0].replace_all_uses_with(emit_stablehlo.transpose(product, order))
    op.erase()


def _flatten_rows(op: Operation, module_globals: ModuleGlobals) -> None:
    """Write a product ``[..., K] x [K, N]`` as one of matrices, between reshapes."""
    left, right = op.operands
    (contracted, batch), type_ = dot_axes(op), op.results[0].type
    rank, is_static = left.type.rank, type_.has_static_shape and left.type.has_static_shape
    if batch[0] or rank < 3 or right.type.rank != 2 or contracted[0] != [rank - 1]:
        return
    if not is_static or not is_constant(right, module_globals):
        return
    *rows, inputs = (int(n) for n in left.type.shape)
    count, outputs = math.prod(rows), int(type_.shape[rank - 1])
    matrix = emit_stablehlo.reshape(left, [count, inputs])
    flat = with_shape(type_, [count, outputs])
    product = emit_stablehlo.dot_general(matrix, right, flat, [[1], contracted[1]])
    op.results[0].replace_all_uses_with(emit_stablehlo.reshape(product, [*rows, outputs]))
    op.erase()
    sink_reshapes(product, module_globals)


def _fold_padding(op: Operation, module_globals: ModuleGlobals) -> None:
    pad = producer_named(op.operands[0], "stablehlo.pad")
    if pad is None:
        return
    fill = constant_elements(pad.operands[1], module_globals)
    low, high, interior = pad_amounts(pad)
    spatial = _spatial_axes(op)
    unpadded = [axis for axis in range(len(low)) if axis not in spatial]
    if fill is None or fill.item() != 0 or interior.any() or min(*low, *high) < 0:
        return
    if low[unpadded].any() or high[unpadded].any():
        return
    padding = window_padding(op, len(spatial)) + np.stack([low[spatial], high[spatial]], 1)
    i64 = ir.IntegerType.get_signless(64, op.context)
    op.attributes["padding"] = ir.DenseElementsAttr.get(
        np.ascontiguousarray(padding, np.int64), type=i64, context=op.context
    )
    op.operands[0] = pad.operands[0]


def _spatial_axes(op: Operation) -> list[int]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    return list(numbers.input_spatial_dimensions)


@dataclass
class _Affine:
    """The function ``x * gain + shift`` of the output channels."""

    gain: Array
    shift: Array
    has_gain: bool = False

    def then(self, op: Operation, number: int, grid: Array) -> bool:
        """Compose with an operation whose other operand is constant; False for a quotient of it."""
        kind = op.name.removeprefix("stablehlo.")
        if kind == "divide" and number:
            return False
        if kind == "add":
            self.shift = self.shift + grid
        elif kind == "subtract":
            self.shift = grid - self.shift if number else self.shift - grid
            self.gain = -self.gain if number else self.gain
            self.has_gain |= bool(number)
        else:
            factor = grid if kind == "multiply" else 1 / grid
            self.gain, self.shift, self.has_gain = self.gain * factor, self.shift * factor, True
        return True


def _fold_affine(op: Operation, module_globals: ModuleGlobals) -> None:
    """Fold the affine operations after a contraction into its weight and one addition."""
    contraction = Contraction.of(op)
    to_result = contraction.right.to_result
    result = op.results[0]
    if len(to_result) != 1 or str(result.type.element_type) != "f32":
        return
    ((weight_axis, axis),) = to_result.items()
    shape = [int(n) for n in result.type.shape]
    affine, chain, last = _Affine(np.ones(1), np.zeros(1)), list[Operation](), result
    while (use := only_use(last)) is not None and use[0].name in _AFFINE:
        user, number = use
        grid = constant_grid(user.operands[1 - number], shape, axis, module_globals)
        if grid is None or not np.isfinite(grid).all():
            break
        if not affine.then(user, number, grid.astype(np.float64).reshape(-1)):
            break
        chain.append(user)
        last = user.results[0]
    if len(chain) < 2 and not affine.has_gain:
        return
    weight = constant_elements(op.operands[1], module_globals)
    if weight is None:
        return
    spread = [1] * weight.ndim
    spread[weight_axis] = -1
    folded = (weight * affine.gain.reshape(spread)).astype(np.float32)
    if not np.isfinite(folded).all() or not np.isfinite(affine.shift).all():
        return
    with ir.InsertionPoint(op), op.location:
        op.operands[1] = emit_stablehlo.constant(folded, result.type.element_type)
    with ir.InsertionPoint.after(chain[-1]), chain[-1].location:
        total = _with_bias(result, affine.shift, axis, shape)
    last.replace_all_uses_with(total)
    for each in reversed(chain):
        each.erase()


def _with_bias(result: Value, shift: Array, axis: int, shape: Sequence[int]) -> Value:
    vector = np.broadcast_to(shift, shape[axis]).astype(np.float32)
    bias = emit_stablehlo.constant(vector, result.type.element_type)
    spread = emit_stablehlo.broadcast(bias, result.type, [axis])
    return value("stablehlo.add", [result, spread], result.type)
