"""Elementwise expressions of kernels: the operations, and the elements that they read.

An expression is a list of operations, each of which reads those before it (`ExpressionBody`). An
operand is read at an offset, and with a stride for each axis: broadcasts, reshapes and reversals
are not materialized. `elementwise` and `row_program` are kernels that evaluate expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from ...emit import ArrayLike, Scalars, scalar
from ...emit.linalg import constant_index
from ...emit.stablehlo_semantics import COMPARISONS, ELEMENTWISE
from ...emit.vectors import (
    Vectors,
    arithmetic_fence,
)
from ...numerics.array_functions import bits_of, convert
from ...numerics.casts import Cast
from ...numerics.element_types import ElementType
from ...numerics.parameters import ExpressedType, StorageType

INT8_MACS_PER_OP, _INT8_MACS_PER_TRANSCENDENTAL = 8, 64
"""int8 MACs that take about as long as an operation on an element."""
PARTIAL_RESULTS = 4
"""Independent partial results of a reduction: an addition has a latency of four cycles."""

FLOAT_OPS = (
    *("stablehlo.divide", "stablehlo.exponential", "stablehlo.floor", "stablehlo.logistic"),
    *("stablehlo.round_nearest_even", "stablehlo.sqrt", "stablehlo.tanh"),
)
"""Operations of floats alone; those of `_NUMBER_OPS` are of integers, too."""
_NUMBER_OPS = (
    *("stablehlo.abs", "stablehlo.add", "stablehlo.maximum", "stablehlo.minimum"),
    *("stablehlo.multiply", "stablehlo.negate", "stablehlo.subtract"),
)
BITWISE_OPS = ("stablehlo.and", "stablehlo.or", "stablehlo.xor")
SHIFTS = ("stablehlo.shift_left", "stablehlo.shift_right_arithmetic")
BITCAST, CONVERT = "stablehlo.bitcast_convert", "stablehlo.convert"
QUANTIZE, DEQUANTIZE = "subquant.quantize", "subquant.dequantize"
SELECT = "stablehlo.select"
ELEMENT_OPS: dict[str, Callable[..., ArrayLike]] = {
    **{
        name: ELEMENTWISE[name]
        for name in (*FLOAT_OPS, *_NUMBER_OPS, *BITWISE_OPS, *SHIFTS, SELECT)
    },
    **COMPARISONS,
}
"""The functions of elementwise operations; comparisons are named by their direction.

`apply_step` has the casts.
"""
TRANSCENDENTALS = ("stablehlo.exponential", "stablehlo.logistic", "stablehlo.tanh")


class Reduction(NamedTuple):
    """A reduction of f32; additions are of i32, too.

    Attributes:
        kernel_name: the name of a kernel of the reduction alone.
        function: the function of two elements.
        kind: the kind of ``vector.reduction``.
        neutral: the neutral element.
    """

    kernel_name: str
    function: Callable[..., ArrayLike]
    kind: str
    neutral: float


REDUCTIONS = {
    "stablehlo.add": Reduction("sum", np.add, "add", 0.0),
    "stablehlo.maximum": Reduction("greatest", np.maximum, "maximumf", -math.inf),
    "stablehlo.minimum": Reduction("least", np.minimum, "minimumf", math.inf),
}


@dataclass(frozen=True)
class OperandRead:
    """A read of an operand's element ``offset + sum_i strides[i] * position[i]``."""

    operand: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class ConstantNode:
    """A constant, as text of `float.hex` or `int`: -0.0 is not 0.0."""

    text: str
    element: ElementType

    @property
    def number(self) -> float | int:
        """The number."""
        return float.fromhex(self.text) if self.element.is_float else int(self.text)


@dataclass(frozen=True)
class StepResult:
    """The result of a step, by its number."""

    number: int


Node: TypeAlias = "OperandRead | ConstantNode | StepResult"
"""An element that a step reads."""


@dataclass(frozen=True)
class ExpressionStep:
    """An operation of `ELEMENT_OPS`, or a cast, with the element type of its result.

    `storage` is the storage type of a quantization or dequantization.
    """

    name: str
    operands: tuple[Node, ...]
    element: ElementType
    storage: StorageType | None = None


@dataclass(frozen=True)
class ExpressionBody:
    """Steps, each after those that it reads, and the node of the result."""

    steps: tuple[ExpressionStep, ...]
    result: Node

    def reads(self) -> list[OperandRead]:
        """The reads of operands, with repetitions."""
        nodes = [node for step in self.steps for node in step.operands]
        return [node for node in (*nodes, self.result) if isinstance(node, OperandRead)]

    def with_strides(self, strides: Callable[[tuple[int, ...]], tuple[int, ...]]) -> ExpressionBody:
        """Return the expression with a function applied to the strides of each read."""

        def replaced(node: Node) -> Node:
            if not isinstance(node, OperandRead):
                return node
            return replace(node, strides=strides(node.strides))

        steps = [replace(step, operands=tuple(map(replaced, step.operands))) for step in self.steps]
        return ExpressionBody(tuple(steps), replaced(self.result))

    def cost(self) -> int:
        """The int8 MACs that take about as long as an element."""
        return sum(
            _INT8_MACS_PER_TRANSCENDENTAL if step.name in TRANSCENDENTALS else INT8_MACS_PER_OP
            for step in self.steps
        )


def apply_step(step: ExpressionStep, operands: Sequence[ArrayLike]) -> ArrayLike:
    """Emit a step, and return its result."""
    if step.name == CONVERT:
        return convert(operands[0], step.element)
    if step.name == BITCAST:
        return bits_of(operands[0], step.element)
    if step.storage is not None:
        cast = Cast(step.storage, ExpressedType.F32)
        if step.name == QUANTIZE:
            return cast.quantize(*operands)
        stored, scale, *zero_points = operands
        zero_points = [_as_storage(each, step.storage) for each in zero_points]
        real = cast.dequantize(_as_storage(stored, step.storage), scale, *zero_points)
        return arithmetic_fence(real)
    return ELEMENT_OPS[step.name](*operands)


def _as_storage(integers: ArrayLike, storage: StorageType) -> ArrayLike:
    """Integers whose bits are those of a storage type, with its sign."""
    if storage.signed:
        return integers
    return bits_of(integers, ElementType.parse(f"u{integers.element.bits}"))


def form_of(lanes: int) -> Scalars:
    """The form of an element, or of a vector of elements."""
    return Vectors(lanes) if lanes > 1 else Scalars()


def linear_index(offset: int, terms: Iterable[tuple[ArrayLike, int]]) -> ArrayLike:
    """``offset`` plus positions times strides."""
    total = scalar(constant_index(offset))
    for position, stride in terms:
        if stride:
            total = total + position * stride
    return total
