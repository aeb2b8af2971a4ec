"""Constraints of StableHLO's specification on quantized types, by their numbers (C1, C2, ...)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from ..core._mlir import ir, stablehlo
from .quantized_ops import Body, Instance, Rule, Value


def _differ(what: str, left: Value, right: Value, constraint: str) -> str:
    return (
        f"{left.name} and {right.name} must have one {what}, got {left} and {right} ({constraint})"
    )


def _all_agree_in(what: str, key: Callable[[Value], object], constraint: str) -> Rule:
    """Return the rule that all operands and results that may be quantized agree in `key`."""

    def rule(instance: Instance) -> Iterator[str]:
        first, *remaining = instance.carriers
        for other in remaining:
            if key(other) != key(first):
                yield _differ(what, first, other, constraint)

    return rule


def same_baseline_type(constraint: str = "C1") -> Rule:
    """Agree in everything but scales and zero points (``baseline_element_type``)."""
    return _all_agree_in(
        "storage type, storage range and expressed type", lambda v: v.baseline, constraint
    )


def same_element_type(constraint: str = "C1") -> Rule:
    """Operands and result have one element type, scales and zero points included."""
    return _all_agree_in("element type", lambda v: v.element, constraint)


def results_match_operands(constraint: str) -> Rule:
    """The n-th result has the element type of the n-th operand."""

    def rule(instance: Instance) -> Iterator[str]:
        for operand, result in zip(instance.elements, instance.results, strict=False):
            if operand.element != result.element:
                yield _differ("element type", operand, result, constraint)

    return rule


def add_rule(instance: Instance) -> Iterator[str]:
    """C2 to C7 of ``add``.

    All three are quantized (C2), with one storage type (C3) and one expressed type (C4); the result
    is per-axis exactly if an operand is (C5), along the same dimension (C6, C7).
    """
    lhs, rhs, result = instance.carriers
    for value in (lhs, rhs, result):
        if value.parameters is None:
            yield f"{value.name} must be quantized, got {value} (C2)"
    for other in (rhs, result):
        assert lhs.parameters is not None  # all three are quantized here
        assert other.parameters is not None
        if _storage(lhs) != _storage(other):
            yield _differ("storage type", lhs, other, "C3")
        if lhs.expressed != other.expressed:
            yield _differ("expressed type", lhs, other, "C4")
    if (lhs.is_per_axis or rhs.is_per_axis) != result.is_per_axis:
        yield (
            "the result must be quantized per axis exactly if an operand is, got "
            f"{lhs}, {rhs} and {result} (C5)"
        )
    for value, constraint in ((lhs, "C6"), (rhs, "C7")):
        if value.is_per_axis and value.axis != result.axis:
            yield _differ("quantization dimension", value, result, constraint)


def _storage(value: Value) -> tuple[int, bool] | None:
    """The storage type without its range."""
    if value.parameters is None:
        return None
    return value.parameters.storage.width, value.parameters.storage.signed


def _quantized_together(instance: Instance, labels: Sequence[str]) -> Iterator[str]:
    """Rules shared by ``dot_general`` and ``convolution``, with the numbers of each.

    lhs is quantized exactly if the result is, and rhs is (C14, C28). With a quantized lhs: one
    storage type of lhs and rhs (C17, C31), one expressed type of all (C18, C32), and a per-tensor
    rhs asks for a per-tensor result (C19, C33). Otherwise it is hybrid: the element types of lhs
    and result are the expressed type of rhs (C20, C34).
    """
    together, storage, expressed, granularity, hybrid = labels
    lhs, rhs, result = instance.carriers
    if rhs.parameters is None:
        yield f"{rhs.name} must be quantized, got {rhs} ({together})"
    if (lhs.parameters is None) != (result.parameters is None):
        yield f"{lhs.name} and {result.name} must both be quantized or both not ({together})"
    if lhs.parameters is not None and _storage(lhs) != _storage(rhs):
        yield _differ("storage type", lhs, rhs, storage)
    for value in (lhs, result):
        if value.expressed != rhs.expressed:
            constraint = expressed if lhs.parameters is not None else hybrid
            yield _differ("expressed type", value, rhs, constraint)
    if result.is_per_axis and not rhs.is_per_axis:
        yield (
            f"{result.name} must be quantized per tensor because {rhs.name} is, got {result} "
            f"({granularity})"
        )


def dot_general_rule(instance: Instance) -> Iterator[str]:
    """C14 to C20 of ``dot_general``.

    Rules that it does not share with ``convolution``: zero points of rhs are 0 (C15), and rhs is
    not quantized along a dimension that is contracted (C16).
    """
    yield from _quantized_together(instance, ("C14", "C17", "C18", "C19", "C20"))
    rhs = instance.operands[1]
    assert rhs.parameters is not None  # checked as C14
    if np.any(rhs.parameters.zero_points):
        yield f"the zero point of {rhs.name} must be 0, got {rhs} (C15)"
    numbers = stablehlo.DotDimensionNumbers(instance.attributes["dot_dimension_numbers"])
    contracted = list(numbers.rhs_contracting_dimensions)
    if rhs.axis in contracted:
        yield (
            f"{rhs.name} must not be quantized along a dimension that is contracted, got "
            f"dimension {rhs.axis} (C16)"
        )


def convolution_rule(instance: Instance) -> Iterator[str]:
    """C28 to C34 of ``convolution`` and ``dynamic_conv``.

    Rules that it does not share with ``dot_general``: a per-axis rhs is quantized along the
    kernel's output features (C29), a per-axis result along the output's features (C30).
    """
    yield from _quantized_together(instance, ("C28", "C31", "C32", "C33", "C34"))
    numbers = stablehlo.ConvDimensionNumbers(instance.attributes["dimension_numbers"])
    for value, dimension, what, constraint in (
        (instance.operands[1], numbers.kernel_output_feature_dimension, "kernel", "C29"),
        (instance.results[0], numbers.output_feature_dimension, "output", "C30"),
    ):
        if value.is_per_axis and value.axis != dimension:
            yield (
                f"{value.name} must be quantized along the {what}'s output features, which are "
                f"dimension {dimension}, got dimension {value.axis} ({constraint})"
            )


def moved_axis(instance: Instance) -> Iterator[str]:
    """C1 of ``reshape`` and ``transpose``.

    One element type, except that a per-axis type may be quantized along another dimension.
    """
    operand, result = instance.carriers
    if operand.is_per_axis and result.is_per_axis:
        if _without_axis(operand) != _without_axis(result):
            yield _differ(
                "element type (but for the quantization dimension)", operand, result, "C1"
            )
    elif operand.element != result.element:
        yield _differ("element type", operand, result, "C1")


def _without_axis(value: Value) -> tuple[object, ...]:
    assert value.parameters is not None  # the caller asks for per-axis types only
    p = value.parameters
    return p.storage, p.expressed, p.scales.tobytes(), p.zero_points.tobytes()


def reshape_rule(instance: Instance) -> Iterator[str]:
    """C3 of ``reshape`` and ``dynamic_reshape``.

    The quantized dimension keeps its length, and as many elements lie before it and after it.
    Dynamic extents are not known and not compared.
    """
    operand, result = instance.carriers
    if operand.axis is None or result.axis is None:
        return
    for part, left, right in (
        ("before", (0, operand.axis), (0, result.axis)),
        ("along", (operand.axis, operand.axis + 1), (result.axis, result.axis + 1)),
        ("after", (operand.axis + 1, operand.type.rank), (result.axis + 1, result.type.rank)),
    ):
        sizes = [
            [value.extent(axis) for axis in range(*bounds)]
            for value, bounds in ((operand, left), (result, right))
        ]
        if any(None in size for size in sizes):
            continue
        products = [math.prod(n for n in size if n is not None) for size in sizes]
        if products[0] != products[1]:
            yield (
                f"{operand.name} and {result.name} must have as many elements {part} the "
                f"quantized dimension, got {products[0]} and {products[1]} (C3)"
            )


def transpose_rule(instance: Instance) -> Iterator[str]:
    """C4 of ``transpose``: the quantized dimension moves as the permutation says."""
    operand, result = instance.carriers
    if result.axis is None:
        return
    expected = list(instance.attributes["permutation"])[result.axis]
    if operand.axis != expected:
        yield (
            f"{operand.name} must be quantized along dimension {expected}, from which dimension "
            f"{result.axis} of the result comes, got dimension {operand.axis} (C4)"
        )


def broadcast_rule(instance: Instance) -> Iterator[str]:
    """C1 and C6 of ``broadcast_in_dim`` and ``dynamic_broadcast_in_dim``.

    Per-tensor: one element type. Per-axis: storage and expressed type agree; the result is
    quantized along the dimension to which the operand's goes; scales and zero points agree, each
    repeated if that dimension has length 1.
    """
    operand, result = instance.carriers
    if not (operand.is_per_axis and result.is_per_axis):
        if operand.element != result.element:
            yield _differ("element type", operand, result, "C1")
        return
    before, after = operand.parameters, result.parameters
    assert before is not None
    assert after is not None
    if (before.storage, before.expressed) != (after.storage, after.expressed):
        yield _differ("storage and expressed type", operand, result, "C1")
    assert operand.axis is not None
    expected = list(instance.attributes["broadcast_dimensions"])[operand.axis]
    if result.axis != expected:
        yield (
            f"{result.name} must be quantized along dimension {expected}, to which the operand's "
            f"goes, got dimension {result.axis} (C6)"
        )
    for what, left, right in (
        ("scales", before.scales, after.scales),
        ("zero points", before.zero_points, after.zero_points),
    ):
        if len(left) not in (1, len(right)) or np.any(left != right):
            yield _differ(what, operand, result, "C6")


def promotable(operands: str, bodies: str) -> Rule:
    """Reductions: results may have wider storage than operands (``is_promotable``).

    The element type E of the body is that of the result; its expressed type is the operand's, and
    its storage type has at least as many bits. Scales and zero points may differ: operands are
    converted to E first.

    Args:
        operands: the constraint by which inputs and their initial values (or updates, or source)
            have one element type.
        bodies: the constraint on the type of the body.
    """

    def rule(instance: Instance) -> Iterator[str]:
        count = len(instance.results)
        for number, operand in enumerate(instance.elements):
            first, result = instance.elements[number % count], instance.results[number % count]
            if operand.element != first.element:
                yield _differ("element type", first, operand, operands)
            if (operand.parameters is None) != (result.parameters is None):
                yield f"{operand.name} and {result.name} must both be quantized ({bodies})"
            if operand.parameters is None or result.parameters is None:
                continue
            if operand.expressed != result.expressed:
                yield _differ("expressed type", operand, result, bodies)
            if operand.parameters.storage.width > result.parameters.storage.width:
                yield (
                    f"{result.name} must have a storage type at least as wide as {operand.name}, "
                    f"got {result} and {operand} ({bodies})"
                )

    return rule


def same_computation(instance: Instance) -> Iterator[str]:
    """C7 of ``all_reduce``: there is one computation, so the results have one element type."""
    first, *remaining = instance.results
    for other in remaining:
        if other.element != first.element:
            yield _differ("element type", first, other, "C7")


def cast_rule(quantized: Literal["operand", "result"]) -> Rule:
    """C2 of ``uniform_dequantize`` and ``uniform_quantize``: one expressed type of both sides."""

    def rule(instance: Instance) -> Iterator[str]:
        operand, result = instance.operands[0], instance.results[0]
        value = operand if quantized == "operand" else result
        if value.parameters is None:
            yield f"{value.name} must be quantized, got {value}"
        if operand.expressed != result.expressed:
            yield _differ("expressed type", operand, result, "C2")

    return rule


# -- regions --------------------------------------------------------------------------------------


def reduce_bodies(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """(E0, ..., EN-1, E0, ..., EN-1) to (E0, ..., EN-1), with E of the results."""
    return (Body((*results, *results), tuple(results)),)


def reduce_pair_bodies(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """(E, E) to E, with E of the results."""
    return (Body((results[0], results[0]), (results[0],)),)


def select_and_scatter_bodies(
    operands: Sequence[ir.Type], results: Sequence[ir.Type]
) -> tuple[Body, ...]:
    """``select`` compares elements of the operand, ``scatter`` reduces in those of the result."""
    select = Body((operands[0], operands[0]), None)
    return (select, *reduce_pair_bodies(operands, results))


def map_bodies(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """Bodies of ``map``: the operands' element types to the results'."""
    return (Body(tuple(operands), tuple(results)),)


def compare_bodies(operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> tuple[Body, ...]:
    """(E0, E0, E1, E1, ...) to a predicate."""
    return (Body(tuple(e for operand in operands for e in (operand, operand)), None),)
