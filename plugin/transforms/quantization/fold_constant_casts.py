"""``fold-constant-casts``: compute casts of constants.

IREE would compute each cast at compile time, by a function of its own that goes through the whole
compiler (see `fold-constants`), and no kernel would recognize the weight. The reference arithmetic,
which defines the casts, computes it here. Casts to quantized types are folded, except those that
would grow the module by more than 1 MiB (splats in blocks), and tensors of more than 2**26
elements. Expressed values take four times the memory of their storage, and loops compute them as
they read it, so casts from quantized types are folded up to 16 KiB of results. Casts that
contractions read have been fused into them before.

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

from ...core._mlir import Operation, Value, ir
from ...dialects.dense import dense_of_array
from ...dialects.quant import (
    DCASTS,
    QCASTS,
    expressed_mlir_type,
    parameters_of,
    storage_mlir_type,
)
from ...dialects.stablehlo import DEQUANTIZE, QUANTIZE, STORAGE_WIDTHS
from ...emit import as_quantized, linalg, stablehlo
from ...emit.constant_values import constant_elements, is_constant
from ...emit.operation import erase_unused
from ...emit.parameters import ModuleGlobals
from ...errors import Remark
from ...numerics.casts import dequantize, quantize
from ...numerics.element_types import Array
from ...numerics.parameters import QuantizationParameters
from ..base import UNCHANGED, ModulePass, named
from ..iree_workarounds.fold_constants import MAX_CONSTANT_GROWTH_BYTES
from .math.operands import check_scales

_QUANTIZING = (*QCASTS, QUANTIZE)
_DEQUANTIZING = (*DCASTS, DEQUANTIZE)
_MAX_EXPRESSED_BYTES = 1 << 14
"""Bytes of an expressed constant that replaces a folded cast, at most: 16 KiB.

More make the executable larger, fewer leave casts to compute.
"""
_MAX_ELEMENTS = 1 << 26
"""Elements of a folded cast, at most; more take gigabytes to compute at once."""


@dataclass(frozen=True)
class FoldConstantCasts(ModulePass):
    """Compute casts of constants, which round to nearest even."""

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Rewrite `module`.

        Raises:
            UnsupportedError: a scale that ``lower-quant-casts`` refuses.
        """
        module_globals = ModuleGlobals(module)
        casts = named(module, (*_QUANTIZING, *_DEQUANTIZING))
        changes = [_fold(op, module_globals) for op in casts]
        return None if any(changes) else UNCHANGED


def _fold(op: Operation, module_globals: ModuleGlobals) -> bool:
    source, result = op.operands[0], op.results[0]
    quantizes = op.name in _QUANTIZING
    source_parameters, result_parameters = (parameters_of(v.type, op) for v in (source, result))
    parameters = source_parameters or result_parameters
    if parameters is None or (source_parameters is not None and result_parameters is not None):
        return False  # between quantized types
    if not is_constant(source, module_globals) or not _has_shape(result.type, source.type):
        return False
    count = math.prod(source.type.shape)
    stored_bits, expressed_bits = parameters.storage.width, 8 * parameters.expressed.dtype.itemsize
    if not quantizes:
        is_small = count * expressed_bits <= 8 * _MAX_EXPRESSED_BYTES
    elif _is_splat(source):
        is_small = count * stored_bits <= 8 * MAX_CONSTANT_GROWTH_BYTES
    else:
        is_small = count * (stored_bits - expressed_bits) <= 8 * MAX_CONSTANT_GROWTH_BYTES
    if not is_small or count > _MAX_ELEMENTS:
        return False
    elements = constant_elements(source, module_globals)
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


def _is_splat(value: Value) -> bool:
    op = value.owner.operation
    return "value" in op.attributes and bool(op.attributes["value"].is_splat)


def _quantized(values: Array, parameters: QuantizationParameters, type_: ir.Type) -> Value:
    array = quantize(values, parameters)
    return as_quantized(_constant(array, storage_mlir_type(parameters.storage)), type_)


def _dequantized(integers: Array, parameters: QuantizationParameters, type_: ir.Type) -> Value:
    storage = parameters.storage
    if not storage.signed:
        integers = integers & ((1 << storage.width) - 1)
    element = expressed_mlir_type(parameters.expressed)
    return linalg.cast(_constant(dequantize(integers, parameters), element), type_)


def _constant(array: Array, element: ir.Type) -> Value:
    attribute = dense_of_array(array, element)
    if isinstance(element, ir.IntegerType) and element.width not in STORAGE_WIDTHS:
        return linalg.constant(attribute)
    return stablehlo.constant_of(attribute)
