"""``fold-constant-casts``: what casts make of constants is a constant.

IREE would compute each such cast when it compiles, by a function of its own that goes through its
whole compiler (`fold-constants` says more), and no kernel would know the weight. The reference
arithmetic, which is what casts mean, computes it here. Casts to quantized types are folded, but for
those that would make the module longer by more than 1 MiB (splats in blocks) and for tensors of
more than 2**26 elements. Reals take four times the memory of what they are computed from, and loops
compute them as they read it, so casts from quantized types are folded where they make 16 KiB at
most. Casts that contractions take have become one with those before.

Before::

    %c = stablehlo.constant dense<[0.5, -3.0]> : tensor<2xf32>
    %q = stablehlo.uniform_quantize %c : (tensor<2xf32>) -> tensor<2x!quant.uniform<i8:f32, 0.5:3>>

After::

    %c = stablehlo.constant dense<[4, -3]> : tensor<2xi8>
    %q = "subquant.scast"(%c) : (tensor<2xi8>) -> tensor<2x!quant.uniform<i8:f32, 0.5:3>>
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import dense_of_array
from ...dialects.quant import expressed_mlir_type, parameters_of, storage_mlir_type
from ...emit import as_quantized, linalg, stablehlo
from ...emit.operation import erase_unused
from ...errors import Remark
from ...kernels.constant_values import constant_elements, is_constant
from ...numerics.casts import dequantize, quantize
from ...numerics.element_types import Array
from ...numerics.parameters import QuantizationParameters
from ..base import UNCHANGED, ModulePass, named
from ..iree_workarounds.fold_constants import MOST_GROWTH
from .math.operands import check_scales

__all__ = ["FoldConstantCasts"]

_QUANTIZING = ("quant.qcast", "subquant.qcast", "stablehlo.uniform_quantize")
_DEQUANTIZING = ("quant.dcast", "subquant.dcast", "stablehlo.uniform_dequantize")
_MOST_REALS = 1 << 14
"""Bytes."""
_MOST_ELEMENTS = 1 << 26
"""More take gigabytes to compute at once."""
_STABLEHLO_WIDTHS = (2, 4, 8, 16, 32)
"""Bits of storage that ``stablehlo.constant`` has."""


@dataclass(frozen=True)
class FoldConstantCasts(ModulePass):
    """Compute what casts make of constants, as they round to nearest even."""

    name: ClassVar[str] = "fold-constant-casts"

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`.

        Raises:
            UnsupportedError: a scale that casts are not lowered with.
        """
        changes = [_fold(op) for op in named(module, (*_QUANTIZING, *_DEQUANTIZING))]
        return None if any(changes) else UNCHANGED


def _fold(op: Operation) -> bool:
    source, result = op.operands[0], op.results[0]
    quantizes = op.name in _QUANTIZING
    of_source, of_result = (parameters_of(each.type, op) for each in (source, result))
    parameters = of_source or of_result
    if parameters is None or (of_source is not None and of_result is not None):
        return False  # between quantized types
    if not is_constant(source) or not _has_shape(result.type, source.type):
        return False
    count = math.prod(source.type.shape)
    made, held = parameters.storage.width, 8 * parameters.expressed.dtype.itemsize
    if not quantizes:
        is_small = count * held <= 8 * _MOST_REALS
    elif _is_splat(source):
        is_small = count * made <= 8 * MOST_GROWTH
    else:
        is_small = count * (made - held) <= 8 * MOST_GROWTH
    elements = constant_elements(source) if is_small and count <= _MOST_ELEMENTS else None
    if elements is None:
        return False
    check_scales(parameters, op)
    with ir.InsertionPoint(op), op.location:
        folded = (_quantized if quantizes else _dequantized)(elements, parameters, result.type)
    result.replace_all_uses_with(folded)
    erase_unused(op)
    return True


def _has_shape(type_: ir.Type, other: ir.Type) -> bool:
    """True if both are tensors of the same static shape."""
    ranked = all(isinstance(each, ir.RankedTensorType) for each in (type_, other))
    return ranked and bool(type_.has_static_shape) and list(type_.shape) == list(other.shape)


def _is_splat(given: Value) -> bool:
    op = given.owner.operation
    return "value" in op.attributes and bool(op.attributes["value"].is_splat)


def _quantized(reals: Array, parameters: QuantizationParameters, type_: ir.Type) -> Value:
    array = quantize(reals, parameters)
    return as_quantized(_constant(array, storage_mlir_type(parameters.storage)), type_)


def _dequantized(integers: Array, parameters: QuantizationParameters, type_: ir.Type) -> Value:
    storage = parameters.storage
    if not storage.signed:
        integers = integers & ((1 << storage.width) - 1)
    reals = dequantize(integers, parameters)
    return linalg.cast(_constant(reals, expressed_mlir_type(parameters.expressed)), type_)


def _constant(array: Array, element: ir.Type) -> Value:
    attribute = dense_of_array(array, element)
    if isinstance(element, ir.IntegerType) and element.width not in _STABLEHLO_WIDTHS:
        return linalg.constant(attribute)
    return stablehlo.constant_of(attribute)
