"""Operations of the dialect ``subquant`` on weights, each with the operands that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._mlir import ir
from ..dialects.subquant import BLOCK_CONTRACTION, SEGMENTS
from .operation import integers, value, with_element

__all__ = ["block_contraction", "dequantize"]


def dequantize(
    storage: Any,
    scales: Any,
    block_sizes: Sequence[int],
    quantized_type: Any,
    expressed: ir.Type,
    zero_points: Any = None,
    offsets: Any = None,
) -> Any:
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
    activations: Any,
    storage: Any,
    scales: Any,
    maps: Sequence[ir.AffineMap],
    block_sizes: Sequence[int],
    quantized_type: Any,
    result: ir.Type,
    zero_points: Any = None,
    offsets: Any = None,
) -> Any:
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


def _given(operands: Sequence[Any]) -> list[Any]:
    return [operand for operand in operands if operand is not None]


def _segments(operands: Sequence[Any]) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get([int(operand is not None) for operand in operands])
