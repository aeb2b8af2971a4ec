"""Rules of casts: between expressed and quantized values, and between parameters.

Source: StableHLO specification, ``uniform_quantize`` and ``uniform_dequantize``.
"""

from __future__ import annotations

from ....core._mlir import Value
from ....dialects.quant import is_quantized, parameters_of
from ....emit import as_quantized, linalg, stored, tensor
from .operands import dequantize_blocks, quantize_blocks, split_blocks
from .rules import QuantizedOperation, lowers


@lowers("stablehlo.uniform_quantize")
def uniform_quantize(op: QuantizedOperation) -> Value:
    """``q = clamp(round(x / s + z))``; of a quantized value, a change of its parameters."""
    type_ = op.op.results[0].type
    source = op.op.operands[0]
    if not is_quantized(source.type):
        return op.quantized(tensor(source), op.target, type_)
    return as_quantized(op.operand(0).in_parameters(op.target).value, type_)


@lowers("stablehlo.uniform_dequantize")
def uniform_dequantize(op: QuantizedOperation) -> Value:
    """``s * (q - z)`` in the expressed type."""
    return op.real(op.dequantized(0))


def quant_qcast(op: QuantizedOperation) -> Value:
    """``quant.qcast`` of any granularity, on a ranked tensor of a static shape."""
    (source,), type_ = op.op.operands, op.op.results[0].type
    target = parameters_of(type_, op.op)
    assert target is not None  # verified before
    value, restore = split_blocks(source, target, op.op)
    storage = quantize_blocks(tensor(value), target, op.op, op.division)
    return as_quantized(restore(storage.value), type_)


def quant_dcast(op: QuantizedOperation) -> Value:
    """``quant.dcast`` of any granularity, on a ranked tensor of a static shape."""
    (operand,), type_ = op.op.operands, op.op.results[0].type
    source = parameters_of(operand.type, op.op)
    assert source is not None  # verified before
    value, restore = split_blocks(stored(operand), source, op.op)
    storage = tensor(value, source.storage.element)
    expressed = dequantize_blocks(storage, source, op.op, op.division)
    return linalg.cast(restore(expressed.value), type_)


STABLEHLO_CASTS = {
    f"{dialect}.{name}": rule
    for dialect in ("quant", "subquant")
    for name, rule in (("qcast", quant_qcast), ("dcast", quant_dcast))
}
"""Rules that lower the casts of ``lower-quant-casts`` to StableHLO operations instead."""
