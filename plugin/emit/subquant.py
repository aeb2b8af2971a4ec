"""Operations of the dialect ``subquant`` on weights and caches, each with its operands."""

from __future__ import annotations

from collections.abc import Sequence

from ..core._mlir import Value, ir
from ..dialects.subquant import ATTENTION, BLOCK_CONTRACTION, SEGMENTS, UNPACK
from .operation import integer, integers, number_of, value, with_element, with_shape


def dequantize(
    storage: Value,
    scales: Value,
    block_sizes: Sequence[int],
    quantized_type: ir.TypeAttr,
    expressed: ir.Type,
    zero_points: Value | None = None,
    offsets: Value | None = None,
) -> Value:
    """Reals of storage values, with scales, zero points and offsets (or None) of each block."""
    operands = [storage, scales, zero_points, offsets]
    return value(
        "subquant.dequantize",
        _present(operands),
        with_element(storage.type, expressed),
        {
            "block_sizes": integers(block_sizes),
            "quantized_type": quantized_type,
            SEGMENTS: _segments(operands),
        },
    )


def quantize(
    reals: Value,
    scales: Value,
    block_sizes: Sequence[int],
    quantized_type: ir.TypeAttr,
    storage: ir.Type,
) -> Value:
    """Storage values of reals, with zero points of 0; see `dequantize`."""
    attributes = {"block_sizes": integers(block_sizes), "quantized_type": quantized_type}
    result = with_element(reals.type, storage)
    return value("subquant.quantize", [reals, scales], result, attributes)


def unpack(planes: Sequence[Value], bits: Sequence[int], element: ir.Type | None = None) -> Value:
    """Unpack integers, which have `bits` in each plane; the elements are bytes by default."""
    operands = [planes[0], planes[1] if len(planes) > 1 else None]
    *leading, last = (int(n) for n in planes[0].type.shape)
    shape = with_shape(planes[0].type, [*leading, last * 8 // bits[0]])
    result = shape if element is None else with_element(shape, element)
    attributes = {"bits": integers(bits), SEGMENTS: _segments(operands)}
    return value(UNPACK, _present(operands), result, attributes)


def block_contraction(
    activations: Value,
    storage: Sequence[Value],
    scales: Value,
    maps: Sequence[ir.AffineMap],
    block_sizes: Sequence[int],
    quantized_type: ir.TypeAttr,
    result: ir.Type,
    zero_points: Value | None,
    offsets: Value | None,
    plane_bits: Sequence[int] | None,
    activation_type: str | None,
    activation_block_sizes: Sequence[int] | None,
) -> Value:
    """Sums of products with a weight in blocks; see `subquant.dialects.block_contraction`.

    `storage` is the tensor, or the planes of `plane_bits`.
    """
    low, *high = storage
    operands: list[Value | None] = [
        activations,
        low,
        scales,
        zero_points,
        offsets,
        *(high or [None]),
    ]
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        "block_sizes": integers(block_sizes),
        "quantized_type": quantized_type,
        SEGMENTS: _segments(operands),
    }
    if plane_bits is not None:
        attributes["plane_bits"] = integers(plane_bits)
    if activation_type is not None:
        attributes["activation_type"] = ir.StringAttr.get(activation_type)
    if activation_block_sizes is not None:
        attributes["activation_block_sizes"] = integers(activation_block_sizes)
    return value(BLOCK_CONTRACTION, _present(operands), result, attributes)


def attention(
    query: Value,
    keys: Value,
    values: Value,
    position: Value,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
) -> Value:
    """Attention to the keys and values of a cache; see `subquant.dialects.attention`."""
    f32 = ir.F32Type.get()
    attributes = {
        "scale": number_of(f32, scale),
        "window": integer(window),
        "softcap": number_of(f32, softcap),
    }
    if not causal:
        attributes["causal"] = ir.BoolAttr.get(False)
    return value(ATTENTION, [query, keys, values, position], query.type, attributes)


def _present(operands: Sequence[Value | None]) -> list[Value]:
    return [operand for operand in operands if operand is not None]


def _segments(operands: Sequence[Value | None]) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get([int(operand is not None) for operand in operands])
