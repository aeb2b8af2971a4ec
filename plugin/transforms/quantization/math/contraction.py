"""Contractions of quantized values: dot, dot_general, convolution, dynamic_conv.

With storage ``q``, zero points ``z`` and scales ``s`` of the left (1) and right (2) operands, and a
sum over the contracted elements ``k``::

    real = s1 * s2 * acc,    acc = sum_k (q1[k] - z1) * (q2[k] - z2)

``acc`` is an integer: it is a contraction of the two differences
(``subquant.subtract_zero_point``), in i32, or in i64 if the number of products (or a dynamic
number) could overflow i32, and requantized once. ``correct-zero-points`` writes it on storage
values. Differences of more than 17 bits are contracted in two parts each.

A right scale belongs to an axis that is not contracted (C16, C29), which the result has too.

A float left operand with a quantized right one ("hybrid") dequantizes the right one, with f32
accumulators for f16 and bf16.

Source: StableHLO specification, ``dot_general`` (C14 to C20) and ``convolution`` (C27 to C34).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....core._mlir import Operation, Value, ir, stablehlo
from ....dialects.grids import axis_grid
from ....dialects.quant import element_type, is_quantized, parameters_of
from ....dialects.stablehlo import CONTRACTIONS, OPERATIONS, of_category
from ....dialects.windows import dot_axes
from ....emit import Tensors, like, tensor, with_element
from ....emit import stablehlo as emit_stablehlo
from ....emit.casts import Scaled, ScaledSum, split
from ....emit.operation import mlir_type, parse_attribute
from ....errors import UnsupportedError
from ....numerics.array_functions import convert
from ....numerics.element_types import I32, I64, AnyArray, Array, ElementType
from ....numerics.parameters import ExpressedType
from .operands import Operand
from .rules import QuantizedOperation, element_names, lowers

_WINDOWS = tuple(n for n in of_category("contraction") if OPERATIONS[n].reads == "window")
MAX_UNSPLIT_BOUND = 1 << 17
"""Differences from this magnitude on are contracted in two parts, whose products i64 holds."""
_UNKNOWN_PRODUCTS = 1 << 24
"""The number of products that is assumed where it is dynamic."""


@dataclass(frozen=True)
class Side:
    """One operand: the result axes of its axes, and its contracted axes."""

    value: Value
    to_result: dict[int, int]
    contracted: tuple[int, ...]

    def operand_sums(
        self, form: Tensors, constant: Array | None, integers: Callable[[], Value]
    ) -> AnyArray:
        """Sums of the operand over its contracted axes, in the shape of the result.

        Those of a constant are computed here; `integers` writes any other operand in wide integers.
        """
        free = [axis for axis in range(self.value.type.rank) if axis not in self.contracted]
        targets = [self.to_result[axis] for axis in free]
        order = sorted(range(len(targets)), key=targets.__getitem__)
        if constant is not None:
            totals = constant.sum(axis=self.contracted, dtype=np.int64)
            shape = [1] * form.rank
            for axis in order:
                shape[targets[axis]] = totals.shape[axis]
            return totals.transpose(order).reshape(shape)
        reduced = emit_stablehlo.reduce(integers(), sorted(self.contracted))
        transposed = emit_stablehlo.transpose(reduced, order)
        return form.emitted(form.broadcast(transposed, [targets[axis] for axis in order]))


@dataclass(frozen=True)
class Contraction:
    """A dot or convolution of StableHLO."""

    op: Operation
    left: Side
    right: Side
    products: int | None  # for each element of the result; None if dynamic

    @staticmethod
    def of(op: Operation) -> Contraction:
        """The contraction of a StableHLO operation on ranked tensors."""
        return _convolution(op) if op.name in _WINDOWS else _dot(op)

    @property
    def is_window(self) -> bool:
        """True for convolutions."""
        return self.op.name in _WINDOWS

    def create(
        self,
        left: Value,
        right: Value,
        element: ir.Type,
        changed: Mapping[str, ir.Attribute] | None = None,
    ) -> Value:
        """Create the operation on other operands, with another element type of the result."""
        name, attributes = self.op.name, dict(changed or {})
        if name == "stablehlo.dot":
            name = "stablehlo.dot_general"
            attributes["dot_dimension_numbers"] = parse_attribute(
                f"#stablehlo.dot<lhs_contracting_dimensions = [{self.left.contracted[0]}], "
                f"rhs_contracting_dimensions = [{self.right.contracted[0]}]>"
            )
        operands = [left, right, *list(self.op.operands)[2:]]
        type_ = with_element(self.op.results[0].type, element)
        return like(self.op, operands, [type_], attributes, name=name).results[0]


def _dot(op: Operation) -> Contraction:
    left, right = op.operands
    contracted, batch = dot_axes(op)
    sides, next_axis = [], len(batch[0])
    for value, own_contracted, own_batch in zip(op.operands, contracted, batch, strict=True):
        to_result = {axis: position for position, axis in enumerate(own_batch)}
        for axis in range(len(value.type.shape)):
            if axis not in own_contracted and axis not in to_result:
                to_result[axis] = next_axis
                next_axis += 1
        sides.append(Side(value, to_result, tuple(own_contracted)))
    products = _known_product(left, contracted[0]) or _known_product(right, contracted[1])
    return Contraction(op, sides[0], sides[1], products)


def _convolution(op: Operation) -> Contraction:
    left, right = list(op.operands)[:2]
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    output = numbers.output_feature_dimension
    kernel = (*numbers.kernel_spatial_dimensions, numbers.kernel_input_feature_dimension)
    left_side = Side(left, {}, tuple(range(len(left.type.shape))))
    right_side = Side(right, {numbers.kernel_output_feature_dimension: output}, tuple(kernel))
    return Contraction(op, left_side, right_side, _known_product(right, kernel))


def _known_product(value: Value, axes: Sequence[int]) -> int | None:
    """The number of elements along axes; None if one is dynamic."""
    if any(value.type.is_dynamic_dim(axis) for axis in axes):
        return None
    return math.prod(int(value.type.shape[axis]) for axis in axes)


@lowers(*CONTRACTIONS)
def contract(op: QuantizedOperation) -> Value:
    """``s3 * (q3 - z3) = s1 * s2 * sum_k (q1[k] - z1) * (q2[k] - z2)``."""
    for value in (*op.op.operands, *op.op.results):
        if not isinstance(value.type, ir.RankedTensorType):
            raise op.refuse(f"has a value of '{value.type}'; expected ranked tensors")
    sides = [*list(op.op.operands)[:2], op.op.results[0]]
    kinds = [is_quantized(value.type) for value in sides]
    contraction = Contraction.of(op.op)
    if kinds == [True, True, True]:
        return op.nearest(_accumulated(contraction, op.operand(0), op.operand(1)))
    if kinds == [False, True, False]:
        return _hybrid(op, contraction)
    left, right, result = element_names(sides)
    raise op.refuse(
        f"has operands of '{left}' and '{right}' and a result of '{result}'; expected all "
        "quantized, or a real left operand and result with a quantized right operand"
    )


def _hybrid(op: QuantizedOperation, contraction: Contraction) -> Value:
    """``sum_k x[k] * s2 * (q2[k] - z2)``, in the expressed type."""
    left, right = list(op.op.operands)[:2]
    parameters = parameters_of(right.type, op.op)
    assert parameters is not None  # checked by the caller
    expressed = str(element_type(left.type))
    if expressed != parameters.expressed.value:
        raise op.refuse(
            f"has a left operand of '{expressed}' and a right one that stands for "
            f"'{parameters.expressed.value}', expected one type; convert the left operand"
        )
    weight = op.dequantized(1).value
    element = op.op.results[0].type.element_type
    if parameters.expressed not in (ExpressedType.F16, ExpressedType.BF16):
        return contraction.create(left, weight, element)
    return emit_stablehlo.convert(contraction.create(left, weight, ir.F32Type.get()), element)


def _accumulated(contraction: Contraction, left: Operand, right: Operand) -> ScaledSum:
    """The exact sum of products of differences, in units of the expressed values."""
    rank = len(contraction.op.results[0].type.shape)
    scales = []
    for side, operand, name in (
        (contraction.left, left, "left"),
        (contraction.right, right, "right"),
    ):
        for axis in operand.parameters.axes:
            if axis not in side.to_result:
                raise UnsupportedError(
                    f"has a {name} operand with scales along dimension {axis}, which the operation "
                    "sums over or moves a window along; expected one scale, or scales along a free "
                    "dimension (dot_general C16, convolution C29)",
                    contraction.op,
                )
        parameters = operand.parameters
        grid = axis_grid(parameters, parameters.scales, rank, side.to_result)
        scales.append(grid.astype(np.float64))
    count = _UNKNOWN_PRODUCTS if contraction.products is None else contraction.products
    if max(left.bound, right.bound) >= MAX_UNSPLIT_BOUND:
        return ScaledSum(
            tuple(
                _product(contraction, x, y, count, I64, scales)
                for x in _parts_of(left)
                for y in _parts_of(right)
            )
        )
    fits = contraction.products is not None and left.bound * right.bound * count < 1 << 31
    x, y = (Scaled(operand.difference, operand.bound, ()) for operand in (left, right))
    return ScaledSum((_product(contraction, x, y, count, I32 if fits else I64, scales),))


def _parts_of(operand: Operand) -> list[Scaled]:
    """Wide differences in two parts that fit i32."""
    whole = Scaled(operand.difference, operand.bound, ())
    return [Scaled(convert(part.value, I32), part.bound, part.factors) for part in split(whole)]


def _product(
    contraction: Contraction,
    x: Scaled,
    y: Scaled,
    count: int,
    accumulator: ElementType,
    scales: Sequence[Array],
) -> Scaled:
    """The contraction of two integers, in units of the expressed values."""
    acc = contraction.create(x.value.value, y.value.value, mlir_type(accumulator))
    factors = (*scales, *x.factors, *y.factors)
    return Scaled(tensor(acc), x.bound * y.bound * count, factors)
