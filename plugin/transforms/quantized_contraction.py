"""Contractions of quantized values: dot, dot_general, convolution, dynamic_conv.

With storage ``q``, zero points ``z`` and scales ``s`` of the left (1) and right (2) operands, and a
sum over the contracted elements ``k``::

    real = s1 * s2 * acc,    acc = sum_k (q1[k] - z1) * (q2[k] - z2)

``acc`` is an integer: it is computed as one, in i32, or in i64 where the number of products (or an
unknown one) could overflow i32, and requantized once. The zero points are corrected after a dot
of the storage values (8 bits wide where they have at most 8)::

    acc = dot(q1, q2) - z2 * sum_k q1 - z1 * sum_k q2 + K * z1 * z2

The sums of a constant are computed here and now. With ``zero-points=inside`` the differences
themselves are contracted instead; with ``mixed`` where that leaves the right operand, which is the
larger one where it matters, in its storage type.

Two's complement wraps and unwraps, so only ``acc`` itself has to fit. A convolution pads its left
operand with ``z1``, which stands for 0; each window is then whole, and ``sum_k q2`` is a constant
of the output feature. A right zero point of a convolution is subtracted before.

A right scale belongs to an axis that is not contracted (C16, C29), which the result has too.

A real left operand with a quantized right one ("hybrid") dequantizes the right one, in f32 sums for
f16 and bf16.

Source: StableHLO specification, ``dot_general`` (C14 to C20) and ``convolution`` (C27 to C34).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .._mlir import ir, stablehlo
from ..dialects.dense import array_of_dense, dense_of_array
from ..dialects.quant import element_type, is_quantized, parameters_of
from ..errors import UnsupportedError
from ..numerics.element_types import Array
from ..numerics.parameters import ExpressedType, StorageType
from ..options import ZeroPoints
from .arithmetic import Division
from .base import Builder
from .quantized_values import (
    Operand,
    as_quantized,
    dequantize,
    finish,
    scale_grid,
    zero_point_grid,
)
from .requantization import Requantization, Term, resize
from .tensor_builder import TensorBuilder

__all__ = ["Contraction", "Contractions", "correct_zero_points"]

_HALF = 16  # bits of the parts that wide storage is split into
_MOST_AT_ONCE = 1 << 17  # greater differences are split
_WINDOWS = ("stablehlo.convolution", "stablehlo.dynamic_conv")
_CONSTANTS = ("arith.constant", "stablehlo.constant")


@dataclass(frozen=True)
class Side:
    """One operand: where its axes are in the result, and which of them are contracted."""

    value: Any
    to_result: dict[int, int]
    contracted: tuple[int, ...]


@dataclass(frozen=True)
class Contraction:
    """A dot or convolution, whatever its operation."""

    op: Any
    left: Side
    right: Side
    products: int | None  # for each element of the result; None if not known

    @staticmethod
    def of(op: Any) -> Contraction:
        """The contraction that a StableHLO operation on ranked tensors is."""
        if op.name in _WINDOWS:
            return _convolution(op)
        return _dot(op)

    @property
    def is_window(self) -> bool:
        """True for convolutions."""
        return self.op.name in _WINDOWS

    def create(
        self,
        left: Any,
        right: Any,
        element: ir.Type,
        changed: dict[str, ir.Attribute] | None = None,
    ) -> Any:
        """The operation on other operands, with a result of another element type."""
        type_ = self.op.results[0].type
        attributes = {name: self.op.attributes[name] for name in self.op.attributes}
        name = self.op.name
        if name == "stablehlo.dot":
            name = "stablehlo.dot_general"
            numbers = (
                f"#stablehlo.dot<lhs_contracting_dimensions = [{self.left.contracted[0]}], "
                f"rhs_contracting_dimensions = [{self.right.contracted[0]}]>"
            )
            attributes["dot_dimension_numbers"] = ir.Attribute.parse(numbers)
        return ir.Operation.create(
            name,
            results=[ir.RankedTensorType.get(list(type_.shape), element, type_.encoding)],
            operands=[left, right, *list(self.op.operands)[2:]],
            attributes=attributes | (changed or {}),
        ).results[0]


def _dot(op: Any) -> Contraction:
    left, right = op.operands
    left_rank, right_rank = len(left.type.shape), len(right.type.shape)
    if op.name == "stablehlo.dot":
        contracted: Any = ([left_rank - 1], [0])
        batch: Any = ([], [])
    else:
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        contracted = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
        batch = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
    sides, next_axis = [], len(batch[0])
    for value, rank, own_contracted, own_batch in zip(
        (left, right), (left_rank, right_rank), contracted, batch, strict=True
    ):
        to_result = {axis: position for position, axis in enumerate(own_batch)}
        for axis in range(rank):
            if axis not in own_contracted and axis not in to_result:
                to_result[axis] = next_axis
                next_axis += 1
        sides.append(Side(value, to_result, tuple(own_contracted)))
    products = _known_product(left, contracted[0]) or _known_product(right, contracted[1])
    return Contraction(op, sides[0], sides[1], products)


def _convolution(op: Any) -> Contraction:
    left, right = list(op.operands)[:2]
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    output = numbers.output_feature_dimension
    kernel = (*numbers.kernel_spatial_dimensions, numbers.kernel_input_feature_dimension)
    left_side = Side(left, {}, tuple(range(len(left.type.shape))))
    right_side = Side(right, {numbers.kernel_output_feature_dimension: output}, tuple(kernel))
    return Contraction(op, left_side, right_side, _known_product(right, kernel))


class Contractions:
    """The patterns for contractions."""

    def __init__(
        self,
        division: Division,
        requantization: Requantization,
        zero_points: ZeroPoints | None,
    ) -> None:
        self._division = division
        self._requantization = requantization
        self._zero_points = zero_points

    def legalize(self, op: Any) -> Any:
        """Legalize a ``dot``, ``dot_general``, ``convolution`` or ``dynamic_conv``."""
        _check_ranked(op)
        contraction = Contraction.of(op)
        kinds = [is_quantized(v.type) for v in (*list(op.operands)[:2], op.results[0])]
        if kinds == [True, True, True]:
            return self._integer(contraction)
        if kinds == [False, True, False]:
            return self._hybrid(contraction)
        found = [element_type(v.type) for v in (*list(op.operands)[:2], op.results[0])]
        raise UnsupportedError(
            f"has operands of '{found[0]}' and '{found[1]}' and a result of '{found[2]}'; expected "
            "all quantized, or a real left operand and result with a quantized right operand",
            op,
        )

    # -- kinds ------------------------------------------------------------------------------------

    def _hybrid(self, contraction: Contraction) -> Any:
        op = contraction.op
        left, right = list(op.operands)[:2]
        parameters = parameters_of(right.type, op)
        assert parameters is not None  # the caller has looked
        expressed = str(element_type(left.type))
        if expressed != parameters.expressed.value:
            raise UnsupportedError(
                f"has a left operand of '{expressed}' and a right one that stands for "
                f"'{parameters.expressed.value}', expected one type; convert the left operand",
                op,
            )
        real = dequantize(right, op, self._division)
        b, type_ = Builder(), op.results[0].type
        if parameters.expressed not in (ExpressedType.F16, ExpressedType.BF16):
            return contraction.create(left, real, type_.element_type)
        total = contraction.create(left, real, b.f32)
        return b.op("stablehlo.convert", [total], type_)

    def _integer(self, contraction: Contraction) -> Any:
        op = contraction.op
        left, right = Operand.of(op.operands[0], op), Operand.of(op.operands[1], op)
        target = parameters_of(op.results[0].type, op)
        assert target is not None  # the caller has looked
        rank = len(op.results[0].type.shape)
        for side, operand, name in (
            (contraction.left, left, "left"),
            (contraction.right, right, "right"),
        ):
            for axis in operand.parameters.axes:
                if axis not in side.to_result:
                    raise UnsupportedError(
                        f"has a {name} operand with scales along dimension {axis}, which the "
                        "operation sums over or moves a window along; expected one scale, or "
                        "scales along a free dimension (dot_general C16, convolution C29)",
                        op,
                    )
        scales = scale_grid(left.parameters, rank, contraction.left.to_result) * scale_grid(
            right.parameters, rank, contraction.right.to_result
        )
        products = contraction.products
        terms = []
        for accumulator, bound, factor in self._accumulators(contraction, left, right, products):
            terms.append(Term(accumulator, bound, scales * Fraction(factor)))
        b = TensorBuilder(terms[0].value)
        result = finish(b, terms, target, self._requantization)
        return as_quantized(result, op.results[0].type)

    # -- accumulators -----------------------------------------------------------------------------

    def _accumulators(
        self, contraction: Contraction, left: Operand, right: Operand, products: int | None
    ) -> list[tuple[Any, int, int]]:
        """Integers whose sum, each times its factor, is ``acc``; with bounds and factors."""
        count = (1 << 24) if products is None else products
        bound = left.bound * right.bound * count
        b = Builder()
        if max(left.bound, right.bound) >= _MOST_AT_ONCE:
            return self._split(contraction, left, right, count)
        accumulator = b.i32 if products is not None and bound < 1 << 31 else b.i64
        if self._zero_points is None:
            differences = [
                b.op(
                    "subquant.subtract_zero_point",
                    [value],
                    TensorBuilder(value).type(operand.difference_type),
                )
                for value, operand in zip(contraction.op.operands, (left, right), strict=False)
            ]
            value = contraction.create(differences[0], differences[1], accumulator)
        else:
            value = _corrected(contraction, left, right, accumulator, self._zero_points)
        return [(value, bound, 1)]

    def _split(
        self, contraction: Contraction, left: Operand, right: Operand, count: int
    ) -> list[tuple[Any, int, int]]:
        """Wide storage: contract 16-bit parts of the differences, four times at most."""
        parts = []
        for operand in (left, right):
            b = TensorBuilder(operand.value)
            difference = operand.difference(b)
            type_ = element_type(difference.type)
            amount = b.constant(_HALF, type_)
            mask = b.constant((1 << _HALF) - 1, type_)
            high = b.op("arith.shrsi", [difference, amount], type_)
            low = b.op("arith.andi", [difference, mask], type_)
            high_bound = (operand.bound >> _HALF) + 1
            parts.append(
                [
                    (resize(b, high, b.i32), high_bound, 1 << _HALF),
                    (resize(b, low, b.i32), (1 << _HALF) - 1, 1),
                ]
            )
        i64 = Builder().i64
        return [
            (contraction.create(x, y, i64), x_bound * y_bound * count, x_factor * y_factor)
            for x, x_bound, x_factor in parts[0]
            for y, y_bound, y_factor in parts[1]
        ]


# -- zero points ----------------------------------------------------------------------------------


def correct_zero_points(op: Any, style: ZeroPoints) -> Any:
    """Write a contraction of two ``subquant.subtract_zero_point`` on the storage values.

    Args:
        op: a StableHLO contraction of integers.
        style: where to subtract.

    Returns:
        The accumulator, or None for another operation.
    """
    sources = [value.owner for value in list(op.operands)[:2]]
    for source in sources:
        if isinstance(source, ir.Block) or source.operation.name != "subquant.subtract_zero_point":
            return None
    quantized = [source.operation.operands[0] for source in sources]
    if any(_has_blocks(value) for value in quantized):
        return None
    contraction = Contraction.of(op)
    left, right = (Operand.of(value, op) for value in quantized)
    if max(left.bound, right.bound) >= _MOST_AT_ONCE:
        return None
    accumulator = element_type(op.results[0].type)
    return _corrected(contraction, left, right, accumulator, style)


def _has_blocks(value: Any) -> bool:
    parameters = parameters_of(value.type)
    return parameters is not None and parameters.granularity == "sub-channel"


def _corrected(
    contraction: Contraction,
    left: Operand,
    right: Operand,
    accumulator: ir.Type,
    style: ZeroPoints,
) -> Any:
    """The integer ``acc``."""
    inside = style == "inside" or (style == "mixed" and not _zero_left(right).any())
    if contraction.is_window:
        return _window(contraction, left, right, accumulator, inside)
    return _plain(contraction, left, right, accumulator, inside)


def _zero_left(operand: Operand) -> Array:
    """The zero points that `_narrow` leaves."""
    storage = operand.parameters.storage
    return operand.parameters.zero_points - _shift(storage)


def _of_differences(
    contraction: Contraction, left: Operand, right: Operand, accumulator: ir.Type
) -> Any:
    differences = [
        operand.difference(TensorBuilder(operand.value))
        if _zero_left(operand).any()
        else _narrow(operand)[0]
        for operand in (left, right)
    ]
    return contraction.create(*_common_width(*differences), accumulator)


def _plain(
    contraction: Contraction, left: Operand, right: Operand, accumulator: ir.Type, inside: bool
) -> Any:
    """A dot of the storage, corrected by the sums of rows and columns."""
    if inside:
        return _of_differences(contraction, left, right, accumulator)
    (x, x_shift), (y, y_shift) = _narrow(left), _narrow(right)
    x, y = _common_width(x, y)
    value = contraction.create(x, y, accumulator)
    rank = len(value.type.shape)
    b = TensorBuilder(value)
    x_zero = zero_point_grid(left.parameters, rank, contraction.left.to_result) - x_shift
    y_zero = zero_point_grid(right.parameters, rank, contraction.right.to_result) - y_shift
    for side, operand, source, shift, zero in (
        (contraction.left, left, x, x_shift, y_zero),
        (contraction.right, right, y, y_shift, x_zero),
    ):
        if zero.any():
            sums = _scaled_sums(b, side, operand, source, shift, zero, accumulator)
            value = b.op("arith.subi", [value, sums], accumulator)
    both = x_zero * y_zero
    if both.any():
        if contraction.products is not None:
            count = b.grid(both * contraction.products, accumulator)
        else:
            number = _extent_product(b, contraction.left, accumulator)
            grid = b.grid(both, accumulator)
            count = b.op("arith.muli", [b.broadcast(number, []), grid], accumulator)
        value = b.op("arith.addi", [value, count], accumulator)
    return value


def _window(
    contraction: Contraction, left: Operand, right: Operand, accumulator: ir.Type, inside: bool
) -> Any:
    """A convolution: the left operand padded with its zero point, or both centred."""
    op = contraction.op
    (x, x_shift), (y, y_shift) = _narrow(left), _narrow(right)
    rank = len(op.results[0].type.shape)
    x_zero = zero_point_grid(left.parameters, rank, {}) - x_shift
    y_centred = not (right.parameters.zero_points - y_shift).any()
    dynamic = op.name == "stablehlo.dynamic_conv"
    if not y_centred or (x_zero.any() and (dynamic or inside)):
        return _of_differences(contraction, left, right, accumulator)
    x, y = _common_width(x, y)
    if not x_zero.any():
        return contraction.create(x, y, accumulator)
    padded, changed = _pad(op, x, int(x_zero))
    value = contraction.create(padded, y, accumulator, changed)
    b = TensorBuilder(value)
    sums = _scaled_sums(b, contraction.right, right, y, y_shift, x_zero, accumulator)
    return b.op("arith.subi", [value, sums], accumulator)


def _scaled_sums(
    b: TensorBuilder,
    side: Side,
    operand: Operand,
    narrow: Any,
    shift: int,
    zero: Any,
    accumulator: ir.Type,
) -> Any:
    """Sums of an operand over its contracted axes, times the other's zero points.

    Args:
        b: a builder of the result's shape.
        side: where the operand's axes are in the result.
        operand: the operand.
        narrow: its storage as `_narrow` gives it, widened or not.
        shift: what was subtracted from it.
        zero: the other operand's zero points less its shift, as a grid of the result.
        accumulator: the element type of the result.
    """
    known = _constant_storage(operand)
    if known is not None:
        sums = (known - shift).sum(axis=side.contracted, dtype=np.int64)
        return b.grid(_spread_known(sums, side, b.rank) * zero, accumulator)
    spread = _spread(b, _sum_over(b, narrow, side.contracted, accumulator), side)
    return b.op("arith.muli", [spread, b.grid(zero, accumulator)], accumulator)


def _constant_storage(operand: Operand) -> Array | None:
    """The storage values of a constant operand."""
    owner = operand.value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in _CONSTANTS:
        return None
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    values = array_of_dense(attribute)
    storage = operand.parameters.storage
    return values if storage.signed else values & ((1 << storage.width) - 1)


def _free_axes(side: Side) -> list[int]:
    """Where the axes of sums over the contracted axes are in the result."""
    rank = len(side.value.type.shape)
    return [side.to_result[axis] for axis in range(rank) if axis not in side.contracted]


def _spread_known(sums: Array, side: Side, rank: int) -> Array:
    targets = _free_axes(side)
    order = sorted(range(len(targets)), key=targets.__getitem__)
    shape = [1] * rank
    for axis in order:
        shape[targets[axis]] = sums.shape[axis]
    return sums.transpose(order).reshape(shape)


# -- pieces ---------------------------------------------------------------------------------------


def _check_ranked(op: Any) -> None:
    for value in (*op.operands, *op.results):
        if not isinstance(value.type, ir.RankedTensorType):
            raise UnsupportedError(f"has a value of '{value.type}'; expected ranked tensors", op)


def _known_product(value: Any, axes: Sequence[int]) -> int | None:
    if any(value.type.is_dynamic_dim(axis) for axis in axes):
        return None
    return math.prod(int(value.type.shape[axis]) for axis in axes)


def _narrow(operand: Operand) -> tuple[Any, int]:
    """Storage as signed integers of 8, 16 or 32 bits, and what was subtracted from it."""
    storage, b = operand.parameters.storage, TensorBuilder(operand.value)
    container = ir.IntegerType.get_signless(storage.container_width)
    if storage.width < storage.container_width:
        name = "arith.extsi" if storage.signed else "arith.extui"
        return b.op(name, [operand.value], container), 0
    shift = _shift(storage)
    if not shift:
        return operand.value, 0
    return b.op("arith.xori", [operand.value, b.constant(-shift, container)], container), shift


def _shift(storage: StorageType) -> int:
    """What `_narrow` subtracts from storage values, so that unsigned ones fit signed integers."""
    if storage.signed or storage.width < storage.container_width:
        return 0
    return 1 << (storage.width - 1)


def _common_width(x: Any, y: Any) -> tuple[Any, Any]:
    """Sign-extend the narrower of two tensors of integers to the wider one's element type."""
    elements = [element_type(value.type) for value in (x, y)]
    wide = max(elements, key=lambda element: element.width)
    return resize(TensorBuilder(x), x, wide), resize(TensorBuilder(y), y, wide)


def _sum_over(b: TensorBuilder, value: Any, axes: Sequence[int], element: ir.Type) -> Any:
    """Sum a tensor of integers over axes, in `element`."""
    wide = resize(TensorBuilder(value), value, element)
    zero = b.dense(dense_of_array(np.zeros((), np.int64), element))
    kept = [int(n) for axis, n in enumerate(value.type.shape) if axis not in axes]
    scalar = ir.RankedTensorType.get([], element)
    reduce = ir.Operation.create(
        "stablehlo.reduce",
        results=[ir.RankedTensorType.get(kept, element)],
        operands=[wide, zero],
        attributes={"dimensions": ir.DenseI64ArrayAttr.get(sorted(axes))},
        regions=1,
    )
    location = ir.Location.current
    block = reduce.regions[0].blocks.append(scalar, scalar, arg_locs=[location] * 2)
    with ir.InsertionPoint(block):
        total = ir.Operation.create(
            "stablehlo.add", results=[scalar], operands=list(block.arguments)
        )
        ir.Operation.create("stablehlo.return", operands=[total.results[0]])
    return reduce.results[0]


def _spread(b: TensorBuilder, sums: Any, side: Side) -> Any:
    """Broadcast sums over an operand's contracted axes to the result."""
    targets = _free_axes(side)
    order = sorted(range(len(targets)), key=targets.__getitem__)
    if order != list(range(len(targets))):
        type_ = sums.type
        shape = [int(type_.shape[axis]) for axis in order]
        sums = ir.Operation.create(
            "stablehlo.transpose",
            results=[ir.RankedTensorType.get(shape, type_.element_type)],
            operands=[sums],
            attributes={"permutation": ir.DenseI64ArrayAttr.get(order)},
        ).results[0]
    return b.broadcast(sums, [targets[axis] for axis in order])


def _extent_product(b: TensorBuilder, side: Side, element: ir.Type) -> Any:
    """The number of contracted elements as a tensor of rank 0, known at run time only."""
    scalar, total = ir.RankedTensorType.get([], element), None
    for axis in side.contracted:
        size = ir.Operation.create(
            "stablehlo.get_dimension_size",
            results=[ir.RankedTensorType.get([], b.i32)],
            operands=[side.value],
            attributes={"dimension": ir.IntegerAttr.get(b.i64, axis)},
        ).results[0]
        wide = Builder.op(b, "stablehlo.convert", [size], scalar)
        total = (
            wide if total is None else Builder.op(b, "stablehlo.multiply", [total, wide], scalar)
        )
    return total


def _pad(op: Any, value: Any, zero: int) -> tuple[Any, dict[str, ir.Attribute]]:
    """Write a convolution's padding and left dilation as a pad with the zero point."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = list(numbers.input_spatial_dimensions)
    padding = np.zeros((len(spatial), 2), np.int64)
    if "padding" in op.attributes:
        given = np.array(op.attributes["padding"]).reshape(-1, 2)
        padding = np.broadcast_to(given, padding.shape)
    dilation = [1] * len(spatial)
    if "lhs_dilation" in op.attributes:
        dilation = [int(d) for d in op.attributes["lhs_dilation"]]
    if not padding.any() and all(d == 1 for d in dilation):
        return value, {}
    rank = len(value.type.shape)
    low, high, interior = [0] * rank, [0] * rank, [0] * rank
    shape = [int(extent) for extent in value.type.shape]
    dynamic = ir.ShapedType.get_dynamic_size()
    for axis, (before, after), step in zip(spatial, padding, dilation, strict=True):
        low[axis], high[axis], interior[axis] = int(before), int(after), step - 1
        if shape[axis] != dynamic:
            inner = max((shape[axis] - 1) * step + 1, 0) if shape[axis] else 0
            shape[axis] = inner + int(before) + int(after)
            if shape[axis] <= 0:  # cuts all there is, or more: no window fits
                low[axis], high[axis], shape[axis] = 0, -inner, 0
    b, element = TensorBuilder(value), element_type(value.type)
    constant = b.dense(dense_of_array(np.array(zero, np.int64), element))
    padded = ir.Operation.create(
        "stablehlo.pad",
        results=[ir.RankedTensorType.get(shape, element, value.type.encoding)],
        operands=[value, constant],
        attributes={
            "edge_padding_low": ir.DenseI64ArrayAttr.get(low),
            "edge_padding_high": ir.DenseI64ArrayAttr.get(high),
            "interior_padding": ir.DenseI64ArrayAttr.get(interior),
        },
    ).results[0]
    none = np.zeros((len(spatial), 2), np.int64)
    return padded, {
        "padding": dense_of_array(none, b.i64),
        "lhs_dilation": ir.DenseI64ArrayAttr.get([1] * len(spatial)),
    }
