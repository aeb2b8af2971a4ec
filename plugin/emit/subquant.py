"""Operations of the dialect ``subquant`` on weights, each with the operands that it has."""

from __future__ import annotations

from collections.abc import Sequence

from .._mlir import Value, ir
from ..dialects.subquant import BLOCK_CONTRACTION, SEGMENTS
from .operation import integers, value, with_element

__all__ = ["block_contraction", "dequantize"]


def dequantize(
    storage: Value,
    scales: Value,
    block_sizes: Sequence[int],
    quantized_type: ir.TypeAttr,
    expressed: ir.Type,
    zero_points: Value | None = None,
    offsets: Value | None = None,
) -> Value:
    """Reals of storage values.

    Args:
        storage: a ranked tensor.
        scales, zero_points, offsets: one for each block; the last two may be None.
        block_sizes: one for each axis.
        quantized_type: the attribute, ``!quant.any<...>``.
        expressed: the element type of the result.
    """
    operands = [storage, scales, zero_points, offsets]
    return value(
        "subquant.dequantize",
        _given(operands),
        with_element(storage.type, expressed),
        {
            "block_sizes": integers(block_sizes),
            "quantized_type": quantized_type,
            SEGMENTS: _segments(operands),
        },
    )


def block_contraction(
    activations: Value,
    storage: Value,
    scales: Value,
    maps: Sequence[ir.AffineMap],
    block_sizes: Sequence[int],
    quantized_type: ir.TypeAttr,
    result: ir.Type,
    zero_points: Value | None = None,
    offsets: Value | None = None,
) -> Value:
    """Sums of products with a weight in blocks; see `subquant.dialects.block_contraction`."""
    operands = [activations, storage, scales, zero_points, offsets]
    return value(
        BLOCK_CONTRACTION,
        _given(operands),
        result,
        {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
            "block_sizes": integers(block_sizes),
            "quantized_type": quantized_type,
            SEGMENTS: _segments(operands),
        },
    )


def _given(operands: Sequence[Value | None]) -> list[Value]:
    return [operand for operand in operands if operand is not None]


def _segments(operands: Sequence[Value | None]) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get([int(operand is not None) for operand in operands])
