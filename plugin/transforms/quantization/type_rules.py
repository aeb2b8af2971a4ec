"""Rules of quantized types: scales, zero points, axes and blocks, against the containing tensor.

Source: RFC, "Type Constraints"; StableHLO specification, C5 to C7 of quantized types.
"""

from __future__ import annotations

import math

import numpy as np

from ...core._mlir import Operation, ir
from ...dialects.quant import parameters_of, raw_scales, shape_of
from ...errors import VerificationError, shape_text
from ...numerics.element_types import Array
from ...numerics.parameters import QuantizationParameters


def check_type(type_: ir.Type, op: Operation, what: str, *, lenient: bool) -> None:
    """Check one quantized type with its container.

    Args:
        type_: a quantized type, or a shaped type of quantized elements.
        op: the operation in an error.
        what: the subject of an error ("result", "argument 0").
        lenient: accept a ragged last block, scales without the dimensions of size 1, and an
            unranked container of a sub-channel type.

    Raises:
        VerificationError: a rule is broken.
        UnsupportedError: a type that `parameters_of` does not accept.
    """
    parameters = parameters_of(type_, op)
    assert parameters is not None  # callers pass quantized types only
    _check_values(type_, parameters, op, what)
    _check_axes(parameters, op, what)
    if not isinstance(type_, ir.ShapedType):
        if parameters.granularity != "per-tensor":
            raise VerificationError(
                f"{what} is a scalar with a {parameters.granularity} type; expected a per-tensor "
                "type",
                op,
            )
        return
    if not type_.has_rank:
        if not lenient and parameters.granularity == "sub-channel":
            raise VerificationError(
                f"{what} is an unranked tensor with a sub-channel type, which only subquant.qcast, "
                "subquant.dcast and subquant.scast accept",
                op,
            )
        # Scales have a dimension for each quantized axis, or for each axis.
        rank = parameters.scales.ndim
        if (
            parameters.granularity == "sub-channel"
            and rank != len(parameters.axes)
            and parameters.full_grid_shape(rank) is None
        ):
            raise VerificationError(
                f"scales of {what} have the shape {shape_text(parameters.scales.shape)}; expected "
                f"one dimension for each of the {len(parameters.axes)} quantized dimensions",
                op,
            )
        return
    _check_shape(parameters, shape_of(type_), op, what, lenient)


def _check_values(
    type_: ir.Type, parameters: QuantizationParameters, op: Operation, what: str
) -> None:
    written = raw_scales(type_)
    rounded = parameters.scales.astype(np.float64)
    expressed = parameters.expressed.value
    index = _first(~(_is_scale(written) & _is_scale(rounded)))
    if index is not None:
        subject, got = _subject("scale", index, what), _number(float(written[index]))
        if not _is_scale(written[index]):
            raise VerificationError(f"{subject} must be positive and finite, got {got}", op)
        raise VerificationError(
            f"{subject} must be positive and finite in {expressed}, got {got}, which rounds to "
            f"{_number(float(rounded[index]))}",
            op,
        )
    with np.errstate(over="ignore"):
        finite = np.isfinite(parameters.zero_points.astype(parameters.expressed.dtype))
    if not finite.all():
        zero_point = int(parameters.zero_points[~finite].reshape(-1)[0])
        raise VerificationError(
            f"zero point {zero_point} of {what} is beyond the greatest {expressed} number; "
            "expected a wider expressed type or a smaller zero point",
            op,
        )
    low, high = parameters.storage.minimum, parameters.storage.maximum
    index = _first((parameters.zero_points < low) | (parameters.zero_points > high))
    if index is not None:
        raise VerificationError(
            f"{_subject('zero point', index, what)} must be in the storage range {low}:{high}, got "
            f"{parameters.zero_points[index]}",
            op,
        )


def _is_scale(values: Array) -> Array:
    return np.asarray(np.isfinite(values) & (values > 0))


def _first(wrong: Array) -> tuple[int, ...] | None:
    """The index of the first True; None if there is none."""
    if not wrong.any():
        return None
    return tuple(int(n) for n in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _subject(name: str, index: tuple[int, ...], what: str) -> str:
    return f"{name}{list(index)} of {what}" if index else f"the {name} of {what}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:g}"


def _check_axes(parameters: QuantizationParameters, op: Operation, what: str) -> None:
    seen: set[int] = set()
    for axis, block in zip(parameters.axes, parameters.block_sizes, strict=True):
        if axis < 0:
            raise VerificationError(f"quantized dimension of {what} is negative, got {axis}", op)
        if axis in seen:
            raise VerificationError(
                f"quantized dimension {axis} of {what} is named twice; expected each once", op
            )
        if block < 1:
            raise VerificationError(
                f"block size along axis {axis} of {what} must be at least 1, got {block}", op
            )
        count = max(parameters.scales.shape, default=1)
        if block * count >= 1 << 63:
            raise VerificationError(
                f"block size {block} along axis {axis} of {what} is too large: {count} blocks have "
                "more elements than an index can count",
                op,
            )
        seen.add(axis)


def _check_shape(
    parameters: QuantizationParameters,
    shape: list[int | None],
    op: Operation,
    what: str,
    lenient: bool,
) -> None:
    rank = len(shape)
    tensor = f"{what} of shape {shape_text(shape)}"
    for axis, block in zip(parameters.axes, parameters.block_sizes, strict=True):
        if axis >= rank:
            raise VerificationError(
                f"quantized dimension {axis} must be less than the rank {rank} of {tensor}", op
            )
        size = shape[axis]
        if size is None or parameters.granularity == "per-axis":
            continue
        if block > size:
            raise VerificationError(
                f"block size {block} along axis {axis} must be at most the dimension {size} of "
                f"{tensor}",
                op,
            )
        if size % block and not lenient:
            raise VerificationError(
                f"dimension {size} along axis {axis} of {tensor} must be divisible by the block "
                f"size {block}; subquant.qcast, subquant.dcast and subquant.scast accept a ragged "
                "last block",
                op,
            )
    if parameters.granularity == "per-tensor":
        return
    if any(size == 0 for size in shape) and parameters.granularity == "sub-channel":
        raise VerificationError(f"{tensor} has a dimension of size 0 and a sub-channel type", op)
    grid = parameters.full_grid_shape(rank)
    if parameters.granularity == "sub-channel" and parameters.scales.ndim != rank and not lenient:
        raise VerificationError(
            f"scales have rank {parameters.scales.ndim}, expected the rank {rank} of {tensor}; "
            "subquant.qcast, subquant.dcast and subquant.scast accept scales without the "
            "dimensions of size 1",
            op,
        )
    expected = _expected_grid(parameters, shape)
    if grid is None or any(e is not None and g != e for g, e in zip(grid, expected, strict=True)):
        shown = parameters.scales.shape if grid is None else grid
        raise VerificationError(
            f"scales and zero points have the shape {shape_text(shown)}, expected "
            f"{shape_text(expected)}, one for each block of {tensor}",
            op,
        )


def _expected_grid(parameters: QuantizationParameters, shape: list[int | None]) -> list[int | None]:
    grid: list[int | None] = []
    for axis, size in enumerate(shape):
        block = parameters.block_size_of(axis)
        if block is None:
            grid.append(1)
        else:
            grid.append(None if size is None else -(-size // block))
    return grid
