"""Row kernel: expressions and reductions of each row of a matrix, one row after the other.

A softmax or a normalization reduces the last axis, and its elementwise operations read the result
of the reduction for all elements of the row. A *row program* is a list of *stages*: expressions of
each element of the row, expressions of its numbers, and reductions. All stages of a row are
computed before the next row, which keeps its elements in the L1 cache::

    for row in the workgroup's rows:
        for stage in the stages:
            values[stage] = expression(operands[row], values of earlier stages)

Numbers of a row are values, and elements are in scratch memory or in the result. The last two
vectors of a row overlap if its length is no multiple of a vector (softmax and product of 6 x 64 x
100: 65 us; with scalars 81).

`subquant.kernels.fusion.row_fusion` chooses the stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.kernel import Binding, Kernel, items_per_workgroup
from ...emit.linalg import DimSize, constant_index
from ...emit.vectors import (
    broadcast,
    constant_vector,
    load,
    load_element,
    loop,
    quotient,
    reduce_lanes,
    remainder,
    scratch,
    store,
    store_element,
    workgroup_range,
)
from ...numerics.element_types import BOOL, F32, ElementType
from .concatenate import for_vectors
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
class RowStage:
    """A stage of a row program.

    Attributes:
        body: the expression; its reads have a stride for each row axis, and one for the last axis.
        sources: for each operand of the expression, the number of an operand of the kernel, or -1
            minus the number of an earlier stage.
        reduction: a name in `REDUCTIONS`; None for none.
        is_number: True for one value for each row, without a reduction.
        result: the number of the kernel's result that it is written to; None for none.
        element: the element type of its values: f32, or i8 if it is no reduction.
    """

    body: ExpressionBody
    sources: tuple[int, ...]
    reduction: str | None
    is_number: bool
    result: int | None
    element: ElementType = F32

    @property
    def has_elements(self) -> bool:
        """True for a value for each element of the row."""
        return self.reduction is None and not self.is_number


@dataclass(frozen=True)
class RowProgram:
    """Stages of each row.

    Attributes:
        rows: the sizes of the row axes.
        columns: the size of the last axis.
        operand_sizes, operand_elements: the number of elements, and the element type, of each
            operand.
        lanes: the f32 lanes of a vector.
    """

    rows: tuple[int, ...]
    columns: int
    stages: tuple[RowStage, ...]
    operand_sizes: tuple[int, ...]
    operand_elements: tuple[ElementType, ...]
    lanes: int

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are the operands and the results, flattened."""
        operands = zip(self.operand_sizes, self.operand_elements, strict=True)
        bindings = [Binding((size,), element) for size, element in operands]
        count = math.prod(self.rows)
        written = [stage for stage in self.stages if stage.result is not None]
        for stage in sorted(written, key=lambda each: each.result or 0):
            size = count * self.columns if stage.has_elements else count
            bindings.append(Binding((size,), stage.element))
        macs = count * self._row_macs
        return Kernel("row_program", bindings, self._workgroups, self._body, 1, macs=macs)

    @property
    def scratch_bytes(self) -> int:
        """The scratch memory of a row."""
        stages = [each for each in self.stages if each.has_elements and each.result is None]
        return sum(each.element.bits for each in stages) * self.columns // 8

    @property
    def _row_macs(self) -> int:
        """The int8 MACs that take about as long as a row."""
        return sum(
            (1 if stage.is_number else self.columns) * (stage.body.cost() + INT8_MACS_PER_OP)
            for stage in self.stages
        )

    @property
    def _workgroups(self) -> int:
        count = math.prod(self.rows)
        return -(-count // items_per_workgroup(count, self._row_macs))

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        operands = memories[: len(self.operand_sizes)]
        results = memories[len(self.operand_sizes) :]
        buffers = [
            scratch([self.columns], stage.element)
            if stage.has_elements and stage.result is None
            else None
            for stage in self.stages
        ]
        first, end = workgroup_range(scalar(workgroup), self._workgroups, math.prod(self.rows))

        def compute(index: Value) -> None:
            _Row(self, scalar(index), operands, results, buffers).emit()

        loop(first.value, end.value, 1, compute)


_Source: TypeAlias = "ArrayLike | tuple[Value, ArrayLike]"
"""The number of a row, or the memory of its elements and the index of the first one."""


class _Row:
    """The stages of one row."""

    def __init__(
        self,
        program: RowProgram,
        row: ArrayLike,
        operands: Sequence[Value],
        results: Sequence[Value],
        buffers: Sequence[Value | None],
    ) -> None:
        self._program, self._row = program, row
        self._operands, self._results, self._buffers = operands, results, buffers
        self._positions: list[ArrayLike] = []
        for axis in range(len(program.rows)):
            inner = math.prod(program.rows[axis + 1 :])
            position = quotient(row, inner) if inner > 1 else row
            self._positions.append(remainder(position, program.rows[axis]) if axis else position)
        self._values: list[_Source] = []

    def emit(self) -> None:
        """Emit all stages."""
        for stage, buffer in zip(self._program.stages, self._buffers, strict=True):
            result = None if stage.result is None else self._results[stage.result]
            if stage.has_elements:
                first = _zero() if result is None else self._row * self._program.columns
                target = (buffer if result is None else result, first)
                self._write_elements(stage, target)
                self._values.append(target)
                continue
            if stage.reduction is None:
                number = self._element(stage, _zero(), 1)
            else:
                number = self._reduced(stage, stage.reduction)
            self._values.append(number)
            if result is not None:
                store_element(number, result, [self._row.value])

    def _write_elements(self, stage: RowStage, target: tuple[Value, ArrayLike]) -> None:
        memory, first = target

        def write(index: ArrayLike, lanes: int) -> None:
            value = self._element(stage, index, lanes)
            position = [(first + index).value]
            if lanes > 1:
                store(value, memory, position)
            else:
                store_element(value, memory, position)

        for_vectors(self._program.columns, self._lanes(stage), write)

    def _reduced(self, stage: RowStage, reduction: str) -> ArrayLike:
        """Reduce the elements of a row, in several vectors of partial results."""
        _, function, kind, neutral = REDUCTIONS[reduction]
        lanes, columns = self._lanes(stage), self._program.columns
        count = min(PARTIAL_RESULTS, columns // lanes)
        whole = columns // (count * lanes) * count * lanes

        def accumulate(index: Value, *partial: ArrayLike) -> list[ArrayLike]:
            indices = [scalar(index) + number * lanes for number in range(len(partial))]
            elements = [self._element(stage, each, lanes) for each in indices]
            return list(map(function, partial, elements))

        initial = form_of(lanes).known(neutral, F32)
        partial = loop(0, whole, count * lanes, accumulate, [initial] * count)
        whole_vectors = columns // lanes * lanes
        if whole < whole_vectors:
            partial[:1] = loop(
                *(whole, whole_vectors, lanes),
                lambda index, each: [function(each, self._element(stage, scalar(index), lanes))],
                partial[:1],
            )
        if columns % lanes:  # the last vector has elements of the one before, which count once
            last = self._element(stage, scalar(constant_index(columns - lanes)), lanes)
            first_new = lanes - columns % lanes
            is_new = constant_vector([lane >= first_new for lane in range(lanes)], BOOL)
            partial[0] = function(partial[0], np.where(is_new, last, initial))
        while len(partial) > 1:
            pairs = zip(partial[::2], partial[1::2], strict=False)
            rest = partial[-1:] if len(partial) % 2 else []
            partial = [*(function(*pair) for pair in pairs), *rest]
        return reduce_lanes(kind, partial[0]) if lanes > 1 else partial[0]

    def _lanes(self, stage: RowStage) -> int:
        """The lanes of vectors of a stage: 1 where an operand is not contiguous along the row."""
        if any(read.strides[-1] not in (0, 1) for read in stage.body.reads()):
            return 1
        return next(n for n in (self._program.lanes, 8, 4, 1) if n <= self._program.columns)

    def _element(self, stage: RowStage, index: ArrayLike, lanes: int) -> ArrayLike:
        """Evaluate the expression of a stage at an element, or at `lanes` elements."""
        results: list[ArrayLike] = []

        def node_value(node: Node) -> ArrayLike:
            if isinstance(node, StepResult):
                return results[node.number]
            if isinstance(node, ConstantNode):
                return form_of(lanes).known(node.number, node.element)
            source = stage.sources[node.operand]
            if source < 0:
                value = self._values[-1 - source]
                if not isinstance(value, tuple):
                    return broadcast(value, lanes) if lanes > 1 else value
                memory, first = value
                element = self._program.stages[-1 - source].element
                position = (first + index).value
            else:
                memory = self._operands[source]
                element = self._program.operand_elements[source]
                terms = zip([*self._positions, index], node.strides, strict=True)
                position = linear_index(node.offset, terms).value
                if lanes > 1 and not node.strides[-1]:
                    return broadcast(load_element(memory, [position]), lanes)
            if lanes > 1:
                return load(memory, [position], lanes, element)
            return load_element(memory, [position])

        for step in stage.body.steps:
            results.append(apply_step(step, [node_value(each) for each in step.operands]))
        return node_value(stage.body.result)


def _zero() -> ArrayLike:
    """The index 0."""
    return linear_index(0, [])
