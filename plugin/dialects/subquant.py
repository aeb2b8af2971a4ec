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

    The zero point is added before rounding, as StableHLO does. With the unit attribute
    ``zero_points_after_rounding`` it is added after rounding, as ONNX does: ties of odd zero points
    differ.

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

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ..core._mlir import Operation, Value, ext, ir


class SubquantDialect(ext.Dialect, name="subquant"):
    """Registration of the dialect."""


_OPERANDS: dict[str, tuple[str, ...]] = {}
"""The names of the operands of each operation, the optional ones last."""


def _define(
    name: str,
    operands: Sequence[str],
    attributes: Sequence[str] = (),
    results: Sequence[str] = ("result",),
    optional: Sequence[str] = (),
    regions: Sequence[str] = (),
) -> str:
    """Define an operation by the names of its fields, and return its name.

    The bindings read the fields from the annotations of a class.
    """
    annotations: dict[str, object] = {
        **dict.fromkeys(operands, ext.Operand[Any]),
        **dict.fromkeys(attributes, Any),
        **dict.fromkeys(results, ext.Result[Any]),
        **dict.fromkeys(regions, ext.Region),
        **dict.fromkeys(optional, Optional[ext.Operand[Any]]),  # noqa: UP045  (the wheel looks for it)
    }
    type(SubquantDialect.Operation)(
        "".join(part.capitalize() for part in name.split("_")) + "Op",
        (SubquantDialect.Operation,),
        {"__annotations__": annotations, "__module__": __name__, **dict.fromkeys(optional)},
        name=name,
        traits=[ext.Pure],
    )
    _OPERANDS[f"subquant.{name}"] = (*operands, *optional)
    return f"subquant.{name}"


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{number}" for number in range(count)]


def _suffixed(name: str, count: int) -> str:
    return f"{name}_{count}" if count > 1 else name


def _define_reduction(name: str, attribute: str, count: int) -> str:
    """Define a reduction of `count` tensors: the tensors, then their init values."""
    operands = [*_numbered("input", count), *_numbered("init_value", count)]
    results = _numbered("output", count)
    return _define(_suffixed(name, count), operands, [attribute], results, regions=["body"])


MAX_REDUCED = 4
"""The number of tensors that one reduction may take."""
MAX_TERMS = 4
"""The number of terms that one requantization may sum."""

CASTS = tuple(_define(name, ["input"]) for name in ("qcast", "dcast", "scast"))
_BLOCKS = ("block_sizes", "quantized_type")
DEQUANTIZE = _define(
    "dequantize", ["input", "scales"], _BLOCKS, optional=["zero_points", "offsets"]
)
OPERAND_OPS = (
    _define("quantize", ["input", "scales"], _BLOCKS, optional=["zero_points"]),
    DEQUANTIZE,
)
UNPACK = _define("unpack", ["low"], ["bits"], optional=["high"])
BLOCK_CONTRACTION = _define(
    "block_contraction",
    ["activations", "storage", "scales"],
    ["indexing_maps", *_BLOCKS],
    optional=["zero_points", "offsets", "storage_high"],
)
ATTENTION = _define(
    "attention", ["query", "keys", "values", "position"], ["scale", "window", "softcap"]
)
_define("subtract_zero_point", ["input"])
_define("saturate", ["input"], ["range"])
REQUANTIZE = tuple(
    _define(
        _suffixed("requantize", count),
        _numbered("term", count),
        ["scales", "bounds", "quantized_type"],
    )
    for count in range(1, MAX_TERMS + 1)
)
"""Operation names, by the number of terms less one."""
ZERO_POINTS_AFTER_ROUNDING = "zero_points_after_rounding"
"""The unit attribute of a requantization that adds its zero points after rounding."""
REDUCTIONS = {
    _define_reduction(name, attribute, count): f"stablehlo.{name}"
    for name, attribute in (("reduce", "dimensions"), ("reduce_window", "window_dimensions"))
    for count in range(1, MAX_REDUCED + 1)
}
REDUCTIONS |= {
    _define(
        "select_and_scatter",
        ["operand", "source", "init_value"],
        results=["output"],
        regions=["select", "scatter"],
    ): "stablehlo.select_and_scatter"
}
"""Operation name to the StableHLO operation whose operands, attributes and regions it has."""

SEGMENTS = "operandSegmentSizes"
"""The attribute with the number of operands of each optional group."""


def operands_of(op: Operation) -> dict[str, Value]:
    """The operands of an operation that may lack some, by name, as far as they are there."""
    names = _OPERANDS[op.name]
    if SEGMENTS in op.attributes:
        sizes = op.attributes[SEGMENTS]
        names = tuple(name for name, size in zip(names, sizes, strict=True) if size)
    return dict(zip(names, op.operands, strict=False))


def load() -> None:
    """Load the dialect into the current context (once for each context)."""
    with ir.Location.unknown():
        SubquantDialect.load()
