"""The dialect ``subquant``, defined in Python: quantization beyond the ``quant`` operations.

Operations (generic form; each is pure):

``subquant.qcast``, ``subquant.dcast``, ``subquant.scast``
    ``quant.qcast``, ``quant.dcast`` and ``quant.scast``, which also accept unranked tensors with
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
        %y = "subquant.dequantize"(%q, %scales, %zero_points, %offsets)
               {operandSegmentSizes = array<i32: 1, 1, 1, 1>, ...}
             : (tensor<64x128xi4>, tensor<64x4xf16>, tensor<64x4xi4>, tensor<64x4xf16>)
               -> tensor<64x128xf32>

    ``block_sizes`` has one entry for each axis; scales, zero points and offsets have the shape
    ``ceil(shape / block_sizes)``. ``quantized_type`` gives storage, its range and the expressed
    type. Scales and offsets may be of a floating-point type not wider than the expressed type, zero
    points of an integer type not wider than the storage type and of its signedness. A dequantized
    value is::

        real = (storage - zero_point) * scale + offset

    the product rounded to the expressed type, then the sum. A compiler may round once, as a fused
    multiply-add does; where the product is exact (16 bits of a scale and of storage in f32) that is
    the same. Zero points and offsets may be left out; ``operandSegmentSizes`` lists the operands
    that are present (input, scales, zero points, offsets: 1 or 0). Super-blocks nest: scales and
    offsets may be the results of other ``subquant.dequantize``.

``subquant.unpack``
    Integers of few bits from the bytes of one or two planes. ``bits`` has the bits of an integer in
    each plane, the low ones first; the order in the bytes is documented in
    `subquant.numerics.packed_integers`. The result's elements have at least as many bits as the
    planes together; bits above those are 0::

        %q = "subquant.unpack"(%low, %high) {bits = array<i64: 4, 2>}
             : (tensor<8x32xi8>, tensor<8x16xi8>) -> tensor<8x64xi6>

``subquant.block_contraction``
    Contraction with a block-quantized weight; see
    `subquant.dialects.block_contraction`.

``subquant.attention``
    Attention of the queries of some positions to the keys and values of a cache; see
    `subquant.dialects.attention`.

``subquant.subtract_zero_point``
    Storage value minus zero point, as an integer wide enough for it (i32 or i64)::

        %d = "subquant.subtract_zero_point"(%q)
             : (tensor<4x!quant.uniform<u8:f32, 0.5:128>>) -> tensor<4xi32>

``subquant.requantize``, ``subquant.requantize_2`` to ``subquant.requantize_4``
    The storage values of ``quantized_type`` that are nearest to the real ``sum_i scales[i] *
    operand_i``, saturated. Operands are integers of one type (i32 or i64) whose magnitudes are at
    most ``bounds[i]``; ``scales[i]`` has rank 0, or along each axis size 1, the axis' size, or a
    number of blocks that divides it; or it is an array of several attributes, multiplied::

        %s = "subquant.requantize"(%acc) {scales = [dense<0.125> : tensor<f64>],
               bounds = array<i64: 65024>, quantized_type = !quant.uniform<i8:f32, 0.5:3>}
             : (tensor<4xi32>) -> tensor<4xi8>

``subquant.saturate``
    An integer clamped to ``range`` and narrowed to a storage type::

        %s = "subquant.saturate"(%v) {range = array<i64: -128, 127>}
             : (tensor<4xi32>) -> tensor<4xi8>

    These are the steps that ``legalize-quant-to-math`` leaves; the passes ``correct-zero-points``,
    ``lower-requantization`` and ``lower-saturation`` take one each.

``subquant.reduce``, ``subquant.reduce_window``, ``subquant.select_and_scatter``
    StableHLO's operations of the same names, with their attributes and regions, and the semantics
    of the approved RFC "StableHLO quantization for reduction ops": the body (of the last,
    ``scatter``) may compute in another element type of the same kind, wider or narrower, and the
    results have the element type of the inputs again, quantized ones with parameters of their own.
    StableHLO's verifier requires the body's type for the results, no narrower than the inputs'::

        %sum = "subquant.reduce"(%x, %zero) ({
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %0 = stablehlo.add %a, %b : tensor<i32>
          stablehlo.return %0 : tensor<i32>
        }) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>

    IRDL gives all values of a variadic operand one type, so reductions of several tensors have
    names of their own: ``subquant.reduce_2`` to ``subquant.reduce_4``, ``subquant.reduce_window_2``
    to ``subquant.reduce_window_4``. Their operands are the tensors, then the init values.

    Attributes that StableHLO's operation may lack may be left out: ``window_strides``,
    ``base_dilations``, ``window_dilations`` and ``padding``. The pass ``canonicalize-reductions``
    writes them as StableHLO operations with explicit conversions.

The pass ``verify-quantization`` checks the constraints of each operation; IRDL, which defines the
dialect, checks only names and counts.
"""

# Not postponed: the bindings read the field annotations of an operation class as objects.
from typing import Any, Optional, TypeAlias

from ..core._mlir import Operation, Value, ext, ir

AnyOperand: TypeAlias = ext.Operand[Any]
"""An operand of any type, in the definition of an operation."""
AnyResult: TypeAlias = ext.Result[Any]
"""A result of any type, in the definition of an operation."""
AnyAttribute: TypeAlias = Any
"""An attribute, in the definition of an operation."""


class SubquantDialect(ext.Dialect, name="subquant"):
    """Registration of the dialect."""


class QuantizeCast(SubquantDialect.Operation, name="qcast", traits=[ext.Pure]):
    """Real to quantized."""

    input: AnyOperand
    result: AnyResult


class DequantizeCast(SubquantDialect.Operation, name="dcast", traits=[ext.Pure]):
    """Quantized to real."""

    input: AnyOperand
    result: AnyResult


class StorageCast(SubquantDialect.Operation, name="scast", traits=[ext.Pure]):
    """Storage to quantized, or back: a change of type, not of bits."""

    input: AnyOperand
    result: AnyResult


class QuantizeOp(SubquantDialect.Operation, name="quantize", traits=[ext.Pure]):
    """Real to storage, with scales and zero points as operands."""

    input: AnyOperand
    scales: AnyOperand
    block_sizes: AnyAttribute
    quantized_type: AnyAttribute
    result: AnyResult
    zero_points: Optional[AnyOperand] = None  # noqa: UP045  (the wheel looks for Optional)


class DequantizeOp(SubquantDialect.Operation, name="dequantize", traits=[ext.Pure]):
    """Storage to real, with scales, zero points and offsets as operands."""

    input: AnyOperand
    scales: AnyOperand
    block_sizes: AnyAttribute
    quantized_type: AnyAttribute
    result: AnyResult
    zero_points: Optional[AnyOperand] = None  # noqa: UP045  (the wheel looks for Optional)
    offsets: Optional[AnyOperand] = None  # noqa: UP045


class UnpackOp(SubquantDialect.Operation, name="unpack", traits=[ext.Pure]):
    """Integers from planes of bytes."""

    low: AnyOperand
    bits: AnyAttribute
    result: AnyResult
    high: Optional[AnyOperand] = None  # noqa: UP045


class BlockContractionOp(SubquantDialect.Operation, name="block_contraction", traits=[ext.Pure]):
    """Contraction with a block-quantized weight."""

    activations: AnyOperand
    storage: AnyOperand
    scales: AnyOperand
    indexing_maps: AnyAttribute
    block_sizes: AnyAttribute
    quantized_type: AnyAttribute
    result: AnyResult
    zero_points: Optional[AnyOperand] = None  # noqa: UP045
    offsets: Optional[AnyOperand] = None  # noqa: UP045
    storage_high: Optional[AnyOperand] = None  # noqa: UP045


class AttentionOp(SubquantDialect.Operation, name="attention", traits=[ext.Pure]):
    """Attention of queries to the keys and values of a cache."""

    query: AnyOperand
    keys: AnyOperand
    values: AnyOperand
    position: AnyOperand
    scale: AnyAttribute
    window: AnyAttribute
    softcap: AnyAttribute
    result: AnyResult


class SubtractZeroPointOp(SubquantDialect.Operation, name="subtract_zero_point", traits=[ext.Pure]):
    """Quantized to the integer that its scale multiplies."""

    input: AnyOperand
    result: AnyResult


class SaturateOp(SubquantDialect.Operation, name="saturate", traits=[ext.Pure]):
    """A wide integer to storage."""

    input: AnyOperand
    range: AnyAttribute
    result: AnyResult


def _requantize(count: int) -> Any:
    """Define the requantization of a sum of `count` terms."""
    annotations: dict[str, object] = {f"term_{n}": AnyOperand for n in range(count)}
    annotations |= {"scales": AnyAttribute, "bounds": AnyAttribute, "quantized_type": AnyAttribute}
    annotations |= {"result": AnyResult}
    suffix = f"_{count}" if count > 1 else ""
    return type(SubquantDialect.Operation)(
        f"RequantizeOp{suffix}",
        (SubquantDialect.Operation,),
        {"__annotations__": annotations, "__doc__": "A sum of scaled integers.", **_HERE},
        name=f"requantize{suffix}",
        traits=[ext.Pure],
    )


def _reduction(name: str, attribute: str, count: int) -> Any:
    """Define a reduction of `count` tensors: the tensors, then their init values."""
    numbers = range(count)
    annotations: dict[str, object] = {f"input_{n}": AnyOperand for n in numbers}
    annotations |= {f"init_value_{n}": AnyOperand for n in numbers}
    annotations |= {attribute: AnyAttribute}
    annotations |= {f"output_{n}": AnyResult for n in numbers}
    annotations |= {"body": ext.Region}
    namespace = {"__annotations__": annotations, "__doc__": f"StableHLO's {name}.", **_HERE}
    suffix = f"_{count}" if count > 1 else ""
    return type(SubquantDialect.Operation)(
        "".join(part.capitalize() for part in name.split("_")) + f"Op{suffix}",
        (SubquantDialect.Operation,),
        namespace,
        name=name + suffix,
        traits=[ext.Pure],
    )


_HERE = {"__module__": __name__}
MAX_REDUCED = 4
"""The number of tensors that one reduction may take."""
MAX_TERMS = 4
"""The number of terms that one requantization may sum."""

_REQUANTIZE = [_requantize(n + 1) for n in range(MAX_TERMS)]

_REDUCE = [_reduction("reduce", "dimensions", n + 1) for n in range(MAX_REDUCED)]
_REDUCE_WINDOW = [
    _reduction("reduce_window", "window_dimensions", n + 1) for n in range(MAX_REDUCED)
]


class SelectAndScatterOp(SubquantDialect.Operation, name="select_and_scatter", traits=[ext.Pure]):
    """StableHLO's select_and_scatter."""

    operand: AnyOperand
    source: AnyOperand
    init_value: AnyOperand
    output: AnyResult
    select: ext.Region
    scatter: ext.Region


CASTS = ("subquant.qcast", "subquant.dcast", "subquant.scast")
REQUANTIZE = tuple(operation.OPERATION_NAME for operation in _REQUANTIZE)
"""Operation names, by the number of terms less one."""
ATTENTION = "subquant.attention"
BLOCK_CONTRACTION = "subquant.block_contraction"
UNPACK = "subquant.unpack"
DEQUANTIZE = "subquant.dequantize"
OPERAND_OPS = ("subquant.quantize", DEQUANTIZE)
REDUCTIONS = {operation.OPERATION_NAME: "stablehlo.reduce" for operation in _REDUCE}
REDUCTIONS |= {operation.OPERATION_NAME: "stablehlo.reduce_window" for operation in _REDUCE_WINDOW}
REDUCTIONS |= {"subquant.select_and_scatter": "stablehlo.select_and_scatter"}
"""Operation name to the StableHLO operation whose operands, attributes and regions it has."""


def operands_of(op: Operation) -> dict[str, Value]:
    """The operands of an operation that may lack some, by name, as far as they are there."""
    names = _OPERANDS[op.name]
    if SEGMENTS in op.attributes:
        sizes = op.attributes[SEGMENTS]
        names = tuple(name for name, size in zip(names, sizes, strict=True) if size)
    return dict(zip(names, op.operands, strict=False))


SEGMENTS = "operandSegmentSizes"
"""The attribute with the number of operands of each optional group."""
_OPERANDS = {
    "subquant.quantize": ("input", "scales", "zero_points"),
    "subquant.dequantize": ("input", "scales", "zero_points", "offsets"),
    UNPACK: ("low", "high"),
    BLOCK_CONTRACTION: (
        "activations",
        "storage",
        "scales",
        "zero_points",
        "offsets",
        "storage_high",
    ),
}


def load() -> None:
    """Load the dialect into the current context (once for each context)."""
    with ir.Location.unknown():
        SubquantDialect.load()
