"""StableHLO reductions with one operation in the body."""

from __future__ import annotations

from collections.abc import Sequence

from ..core._mlir import Value, ir
from .operation import (
    create,
    integers,
    tensor_type,
    value,
)
from .stablehlo import fill_body, zero_of


def reduce(
    operand: Value,
    axes: Sequence[int],
    function: str = "add",
    start: Value | None = None,
    result: ir.Type | None = None,
) -> Value:
    """Reduce a tensor over axes with one operation.

    Args:
        function: the operation of StableHLO that combines two elements.
        start: the initial value, a scalar tensor; zero by default.
        result: the type of the result, if it has an encoding.
    """
    type_ = operand.type
    element = type_.element_type
    scalar = tensor_type([], element)
    sizes = [int(n) for axis, n in enumerate(type_.shape) if axis not in axes]
    reduced = create(
        "stablehlo.reduce",
        [operand, zero_of(element) if start is None else start],
        [tensor_type(sizes, element) if result is None else result],
        {"dimensions": integers(axes)},
        regions=1,
    )
    fill_body(reduced.regions[0], [scalar, scalar], lambda *pair: [
        value(f"stablehlo.{function}", pair, scalar)
    ])  # fmt: skip
    return reduced.results[0]


def reduce_window(
    operand: Value,
    shape: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    function: str,
    start: Value,
) -> Value:
    """Reduce windows of a tensor, without padding.

    Args:
        function: the operation of StableHLO that combines two elements.
    """
    scalar = tensor_type([], operand.type.element_type)
    reduced = create(
        "stablehlo.reduce_window",
        [operand, start],
        [tensor_type(shape, operand.type.element_type)],
        {"window_dimensions": integers(sizes), "window_strides": integers(strides)},
        regions=1,
    )
    fill_body(reduced.regions[0], [scalar, scalar], lambda *pair: [
        value(f"stablehlo.{function}", pair, scalar)
    ])  # fmt: skip
    return reduced.results[0]
