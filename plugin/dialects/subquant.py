"""The dialect ``subquant``, defined in Python: what the ``quant`` operations do not accept.

Operations (generic form; each is pure):

``subquant.qcast``, ``subquant.dcast``, ``subquant.scast``
    As ``quant.qcast``, ``quant.dcast`` and ``quant.scast``, and also on unranked tensors with
    sub-channel types (scales without the dimensions of size 1, RFC "Compile-time scale
    representation for unranked tensors") and with a ragged last block (RFC "Type Constraints",
    note 3: ``ceil(shape / block)`` scales)::

        %q = "subquant.qcast"(%x) : (tensor<*xf32>)
               -> tensor<*x!quant.uniform<i8:f32:{1:2}, {1.0, 2.0}>>

``subquant.quantize``, ``subquant.dequantize``
    Scales and zero points as operands::

        %q = "subquant.quantize"(%x, %scales, %zero_points)
               {block_sizes = array<i64: 1, 32>, quantized_type = !quant.any<i4<-8:7>:f32>}
             : (tensor<64x128xf32>, tensor<64x4xf16>, tensor<64x4xi4>) -> tensor<64x128xi4>
        %y = "subquant.dequantize"(%q, %scales, %zero_points) {...}
             : (tensor<64x128xi4>, tensor<64x4xf16>, tensor<64x4xi4>) -> tensor<64x128xf32>

    ``block_sizes`` has one entry for each axis; scales and zero points have the shape
    ``ceil(shape / block_sizes)``. ``quantized_type`` gives storage, its range and the expressed
    type. Scales may be of a floating-point type not wider than the expressed type, zero points of
    an integer type not wider than the storage type and of its signedness; zero points may be left
    out (all 0). Super-blocks nest: the scales operand may be the result of another
    ``subquant.dequantize``.

What an operation must fulfil is checked by the pass ``verify-quantization``, which says where and
what; IRDL, which defines the dialect, only knows names and counts.
"""

# Not postponed: the bindings read the field annotations of an operation class as objects.
from typing import Any, Optional

from .._mlir import ext, ir

__all__ = [
    "CASTS",
    "OPERAND_OPS",
    "DequantizeCast",
    "DequantizeOp",
    "QuantizeCast",
    "QuantizeOp",
    "StorageCast",
    "load",
]


class SubquantDialect(ext.Dialect, name="subquant"):
    """Registration of the dialect."""


class QuantizeCast(SubquantDialect.Operation, name="qcast", traits=[ext.Pure]):
    """Real to quantized."""

    input: ext.Operand[Any]
    result: ext.Result[Any]


class DequantizeCast(SubquantDialect.Operation, name="dcast", traits=[ext.Pure]):
    """Quantized to real."""

    input: ext.Operand[Any]
    result: ext.Result[Any]


class StorageCast(SubquantDialect.Operation, name="scast", traits=[ext.Pure]):
    """Storage to quantized, or back: a change of type, not of bits."""

    input: ext.Operand[Any]
    result: ext.Result[Any]


class QuantizeOp(SubquantDialect.Operation, name="quantize", traits=[ext.Pure]):
    """Real to storage, with scales and zero points as operands."""

    input: ext.Operand[Any]
    scales: ext.Operand[Any]
    block_sizes: Any
    quantized_type: Any
    result: ext.Result[Any]
    zero_points: Optional[ext.Operand[Any]] = None  # noqa: UP045  (the wheel looks for Optional)


class DequantizeOp(SubquantDialect.Operation, name="dequantize", traits=[ext.Pure]):
    """Storage to real, with scales and zero points as operands."""

    input: ext.Operand[Any]
    scales: ext.Operand[Any]
    block_sizes: Any
    quantized_type: Any
    result: ext.Result[Any]
    zero_points: Optional[ext.Operand[Any]] = None  # noqa: UP045  (the wheel looks for Optional)


CASTS = ("subquant.qcast", "subquant.dcast", "subquant.scast")
OPERAND_OPS = ("subquant.quantize", "subquant.dequantize")


def load() -> None:
    """Load the dialect into the current context (once for each context)."""
    with ir.Location.unknown():
        SubquantDialect.load()
