"""Elementwise kernel: an expression of each element, or its reduction along the last axis.

Elements of the last axis are vectorized where operands are contiguous along it. A reduction has
four vectors of partial results, which are combined in pairs.

`subquant.kernels.fusion.elementwise_fusion` chooses the operations of an expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import (
    broadcast,
    load,
    load_element,
    loop,
    reduce_lanes,
    store,
    store_element,
)
from ...numerics.array_functions import bits_of
from ...numerics.element_types import F32, U32, ElementType
from .expression import (
    INT8_MACS_PER_OP,
    PARTIAL_RESULTS,
    REDUCTIONS,
    ConstantNode,
    ExpressionBody,
    Node,
    StepResult,
    apply_step,
    form_of,
    linear_index,
)


@dataclass(frozen=True)
class ElementwiseKernel:
    """An expression of each element, or its reduction along the last axis.

    Attributes:
        shape: the shape that the expression is evaluated on.
        operand_sizes, operand_elements: the number of elements, and the element type, of each
            operand.
        result_size, result_element: the number of elements, and the element type, of the result.
        reduction: a name in `REDUCTIONS`; None for none.
        lanes: the f32 lanes of a vector.
    """

    shape: tuple[int, ...]
    expression: ExpressionBody
    operand_sizes: tuple[int, ...]
    operand_elements: tuple[ElementType, ...]
    result_size: int
    result_element: ElementType
    reduction: str | None
    lanes: int

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the operands and the result, flattened."""
        operands = zip(self.operand_sizes, self.operand_elements, strict=True)
        bindings = [Binding((size,), element) for size, element in operands]
        bindings.append(Binding((self.result_size,), self.result_element))
        cost = self.expression.cost() + INT8_MACS_PER_OP * (self.reduction is not None)
        name = REDUCTIONS[self.reduction].kernel_name if self.reduction else "elementwise"
        return Kernel(name, bindings, 1, self._body, 0, macs=math.prod(self.shape) * cost)

    @property
    def _is_max_of_magnitudes(self) -> bool:
        """True for a maximum of f32 magnitudes, which are ordered as their bits, NaN above all.

        An integer maximum is one instruction; that of floats is four, one after the other.
        """
        result = self.expression.result
        if self.reduction != "stablehlo.maximum" or not isinstance(result, StepResult):
            return False
        step = self.expression.steps[result.number]
        return step.name == "stablehlo.abs" and step.element == F32

    def _body(self, memories: Sequence[Value], _: Value, __: DimSize) -> None:
        *operands, result = memories
        outer, last = self.shape[:-1], self.shape[-1] if self.shape else 1
        # Vectors along the last axis; scalars where an operand is not contiguous along it.
        reads = self.expression.reads()
        is_strided = any(read.strides and read.strides[-1] not in (0, 1) for read in reads)
        lanes = next(n for n in ((1,) if is_strided else (self.lanes, 8, 4, 1)) if last % n == 0)
        strides = [math.prod(outer[axis + 1 :]) for axis in range(len(outer))]

        def row_of(positions: Sequence[ArrayLike]) -> ArrayLike:
            """The number of a position of the outer axes."""
            return linear_index(0, zip(positions, strides, strict=True))

        def element(positions: Sequence[ArrayLike], index: ArrayLike) -> ArrayLike:
            evaluation = _Evaluation(operands, self.operand_elements, lanes, positions, index)
            return evaluation.result(self.expression)

        def reduce_row(positions: Sequence[ArrayLike], reduction: str) -> None:
            _, function, kind, neutral = REDUCTIONS[reduction]
            count = PARTIAL_RESULTS if last % (PARTIAL_RESULTS * lanes) == 0 else 1
            uses_bits = self._is_max_of_magnitudes

            def accumulate(index: Value, *carried: ArrayLike) -> list[ArrayLike]:
                indices = [scalar(index) + n * lanes for n in range(len(carried))]
                elements = [element(positions, each) for each in indices]
                if uses_bits:
                    elements = [bits_of(each, U32) for each in elements]
                return list(map(function, carried, elements))

            initial = form_of(lanes).known(neutral, self.result_element)
            if uses_bits:
                initial, kind = form_of(lanes).known(0, U32), "maxui"
            partial = loop(0, last, count * lanes, accumulate, [initial] * count)
            while len(partial) > 1:
                partial = [function(*pair) for pair in zip(*[iter(partial)] * 2, strict=True)]
            total = reduce_lanes(kind, partial[0]) if lanes > 1 else partial[0]
            total = bits_of(total, F32) if uses_bits else total
            store_element(total, result, [row_of(positions).value])

        def compute_row(positions: Sequence[ArrayLike]) -> None:
            first = row_of(positions) * last

            def compute(index: Value) -> None:
                elements = element(positions, scalar(index))
                target = [(first + scalar(index)).value]
                if lanes > 1:
                    store(elements, result, target)
                else:
                    store_element(elements, result, target)

            loop(0, last, lanes, compute)

        reduction = self.reduction
        if reduction is None:
            _loop_nest(outer, compute_row)
        else:
            _loop_nest(outer, lambda positions: reduce_row(positions, reduction))


def _loop_nest(
    sizes: Sequence[int],
    body: Callable[[Sequence[ArrayLike]], None],
    outer: Sequence[ArrayLike] = (),
) -> None:
    """Emit a loop for each axis; the body gets the positions."""
    if not sizes:
        body(outer)
        return
    loop(0, sizes[0], 1, lambda index: _loop_nest(sizes[1:], body, [*outer, scalar(index)]))


@dataclass(frozen=True)
class _Evaluation:
    """The evaluation of an expression at a position, or at ``lanes`` positions of the last axis.

    `outer` is the position along the outer axes, `last` the first position along the last axis.
    """

    operands: Sequence[Value]
    elements: Sequence[ElementType]
    lanes: int
    outer: Sequence[ArrayLike]
    last: ArrayLike

    def result(self, expression: ExpressionBody) -> ArrayLike:
        """Evaluate an expression."""
        results: list[ArrayLike] = []
        for step in expression.steps:
            results.append(apply_step(step, [self._node(each, results) for each in step.operands]))
        return self._node(expression.result, results)

    def _node(self, node: Node, results: Sequence[ArrayLike]) -> ArrayLike:
        if isinstance(node, StepResult):
            return results[node.number]
        if isinstance(node, ConstantNode):
            return form_of(self.lanes).known(node.number, node.element)
        positions = [*self.outer, self.last][-len(node.strides) :] if node.strides else []
        index = linear_index(node.offset, zip(positions, node.strides, strict=True)).value
        memory, element = self.operands[node.operand], self.elements[node.operand]
        if self.lanes == 1:
            return load_element(memory, [index])
        if node.strides[-1]:
            return load(memory, [index], self.lanes, element)
        return broadcast(load_element(memory, [index]), self.lanes)
