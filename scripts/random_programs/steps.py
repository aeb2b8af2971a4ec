"""Elementwise steps of random programs, and their MLIR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]
"""An array of Python integers, or of f32."""


# -- programs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A constant: one number, or one for each N; with axis 0 one for each row or image."""

    numbers: tuple[float, ...]
    element: str
    axis: int = -1


@dataclass(frozen=True)
class Argument:
    """An argument of the function, of the shape of the accumulators."""

    number: int
    element: str


Operand = int | Constant | Argument
"""An integer is a value: 0 the accumulators, ``n + 1`` the result of step ``n``."""


@dataclass(frozen=True)
class Step:
    """An operation.

    Attributes:
        op: StableHLO's name, followed by the direction of a comparison.
        operands: its operands.
        element: the element type of the result.
        table: the table of a ``lookup``; the square weight of a ``dot``; for TOSA's ``rescale``
            double rounding, the zero point, the multipliers and as many shifts.
    """

    op: str
    operands: tuple[Operand, ...]
    element: str
    table: tuple[int, ...] = ()


def steps_text(steps: Sequence[Step], shape: str) -> list[str]:
    """The MLIR of steps; ``%v0`` are the accumulators."""
    operations: list[str] = []
    elements = ["i32", *(step.element for step in steps)]

    def type_of(element: str) -> str:
        return f"tensor<{shape}x{element}>"

    def operand(value: Operand, name: str) -> tuple[str, str]:
        if isinstance(value, int):
            return f"%v{value}", elements[value]
        if isinstance(value, Argument):
            return f"%g{value.number}", value.element
        texts = [_number_text(number, value.element) for number in value.numbers]
        type_ = type_of(value.element)
        if len(texts) == 1:
            operations.append(f"%{name} = stablehlo.constant dense<{texts[0]}> : {type_}")
            return f"%{name}", value.element
        row = f"tensor<{len(texts)}x{value.element}>"
        operations.append(f"%{name}r = stablehlo.constant dense<[{', '.join(texts)}]> : {row}")
        axis = shape.count("x") if value.axis else 0
        operations.append(
            f"%{name} = stablehlo.broadcast_in_dim %{name}r, dims = [{axis}] : ({row}) -> {type_}"
        )
        return f"%{name}", value.element

    for number, step in enumerate(steps, 1):
        operands = [operand(each, f"c{number}_{index}") for index, each in enumerate(step.operands)]
        names = ", ".join(name for name, _ in operands)
        types = (
            f"({', '.join(type_of(element) for _, element in operands)}) -> {type_of(step.element)}"
        )
        op, _, direction = step.op.partition(" ")
        if op == "lookup":
            table = f"tensor<{len(step.table)}x{step.element}>"
            operations.append(f"%t{number} = stablehlo.constant dense<{[*step.table]}> : {table}")
            rank = shape.count("x") + 1
            operations.append(
                f'%v{number} = "stablehlo.gather"(%t{number}, {names}) <{{dimension_numbers = '
                f"#stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], "
                f"index_vector_dim = {rank}>, slice_sizes = array<i64: 1>}}> : "
                f"({table}, {type_of(operands[0][1])}) -> {type_of(step.element)}"
            )
            continue
        if op == "rescale":
            operations += _rescale_lines(number, step, names, type_of)
            continue
        if op == "dot":
            n, rank = int(shape.rpartition("x")[2]), shape.count("x") + 1
            table = f"tensor<{n}x{n}xi8>"
            rows = np.array(step.table).reshape(n, n).tolist()
            operations.append(f"%t{number} = stablehlo.constant dense<{rows}> : {table}")
            operations.append(
                f"%v{number} = stablehlo.dot_general {names}, %t{number}, "
                f"contracting_dims = [{rank - 1}] x [0] : ({type_of('i8')}, {table}) -> "
                f"{type_of('i32')}"
            )
            continue
        text = f'"stablehlo.{op}"({names})'
        if op == "compare":
            text = f"stablehlo.{op} {direction}, {names}"
        operations.append(f"%v{number} = {text} : {types}")
    return operations


def _rescale_lines(
    number: int, step: Step, operand: str, type_of: Callable[[str], str]
) -> list[str]:
    """The MLIR of a ``tosa.rescale`` of i32."""
    is_double, zero, multipliers, shifts = rescaling(step)
    operations = []

    def constant(name: str, numbers: Sequence[int], element: str) -> str:
        type_ = f"tensor<{len(numbers)}x{element}>"
        operations.append(
            f'%{name}{number} = "tosa.const"() <{{values = dense<{[*numbers]}> : {type_}}}> '
            f": () -> {type_}"
        )
        return type_

    types = [constant("m", multipliers, "i32"), constant("k", shifts, "i8")]
    types += [constant("xz", [0], "i32"), constant("rz", [zero], step.element)]
    flags = (
        f"input_unsigned = false, output_unsigned = false, per_channel = "
        f"{str(len(shifts) > 1).lower()}, scale32 = true, rounding_mode = "
        f"{'DOUBLE_ROUND' if is_double else 'SINGLE_ROUND'}"
    )
    operations.append(
        f"%v{number} = tosa.rescale {operand}, %m{number}, %k{number}, %xz{number}, %rz{number} "
        f"{{{flags}}} : ({', '.join([type_of('i32'), *types])}) -> {type_of(step.element)}"
    )
    return operations


def rescaling(step: Step) -> tuple[bool, int, tuple[int, ...], tuple[int, ...]]:
    """Double rounding, zero point, multipliers and shifts of a ``rescale``."""
    is_double, zero, *rest = step.table
    count = len(rest) // 2
    return bool(is_double), zero, tuple(rest[:count]), tuple(rest[count:])


def _number_text(number: float, element: str) -> str:
    if element == "f32":
        return f"0x{np.float32(number).view(np.uint32):08X}"
    if element == "i1":
        return str(bool(number)).lower()
    return str(int(number))
