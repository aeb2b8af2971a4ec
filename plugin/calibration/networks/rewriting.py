"""Rewriting of a float program by a plan: quantized weights, and casts around quantized values.

Static quantization writes each quantized value as its integers, and each weight as a constant of
integers with a scale for each output channel. Before::

    %y = stablehlo.dot_general %x, %w : (tensor<1x64xf32>, tensor<64x10xf32>) -> tensor<1x10xf32>

After::

    %q = stablehlo.uniform_quantize %x : (tensor<1x64xf32>) -> tensor<1x64x!q>
    %dx = stablehlo.uniform_dequantize %q : ...
    %s = "quant.scast"(%i) : (tensor<64x10xi8>) -> tensor<64x10x!w>
    %dw = stablehlo.uniform_dequantize %s : ...
    %y = stablehlo.dot_general %dx, %dw : ...

`legalize-qdq-to-quantized-op` then writes quantized StableHLO where the result is quantized too.
Elsewhere `contract-storage` contracts the integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core._mlir import Operation, Value, ir
from ...dialects.quant import any_type_of, parameters_of, type_of
from ...dialects.stablehlo import DEQUANTIZE, QUANTIZE
from ...emit import like, tensor, with_element
from ...emit import stablehlo as emit_stablehlo
from ...emit import subquant as emit_subquant
from ...emit.constant_values import constant_elements
from ...emit.operation import create, tensor_type, value
from ...emit.parameters import ModuleGlobals
from ...numerics.casts import quantize
from ...numerics.element_types import Array
from ...numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from ...transforms.base import SIGNATURE_ATTRIBUTE
from ...transforms.quantization.math.contraction import Contraction
from .plan import Layer, Plan
from .weights import QuantizedWeight

_SCAST = "quant.scast"
_I32 = StorageType(32, True)
_MAX_TYPE_SCALES = 1 << 12
"""Scales of a weight that its type has, at most: more are an operand, which the archive holds."""


def quantize_values(plan: Plan, parameters: Sequence[QuantizationParameters]) -> dict[Value, Value]:
    """Insert casts of the quantized values; return the dequantized value of each.

    Args:
        parameters: those of each group of the plan.
    """
    dequantized: dict[Value, Value] = {}
    module_globals = ModuleGlobals(plan.function.operation.parent.operation)
    for group, parameter in zip(plan.groups, parameters, strict=True):
        element = type_of(parameter)
        for each in group:
            with _after(each, plan):
                quantized = value(QUANTIZE, [each], with_element(each.type, element))
                dequantized[each] = value(DEQUANTIZE, [quantized], each.type)
            for user, number in plan.quantized_uses.get(each, ()):
                user.operands[number] = dequantized[each]
    group_of = {each: p for g, p in zip(plan.groups, parameters, strict=True) for each in g}
    for op, kind in plan.integer_ops.items():
        if kind in ("move", "choice"):
            _quantize_constants(op, group_of[op.results[0]], module_globals)
        elif kind == "mean":
            _quantize_mean(op, plan.sum_of[op], dequantized, module_globals)
    return dequantized


def _quantize_mean(
    op: Operation,
    total: Operation,
    dequantized: dict[Value, Value],
    module_globals: ModuleGlobals,
) -> None:
    """Sum the integers of a mean, and requantize the sum with the scale divided by the number."""
    source = total.operands[0].owner.operation.operands[0]
    parameters = parameters_of(source.type)
    target = dequantized[op.results[0]].owner.operation.operands[0]
    computed = 0 if constant_elements(op.operands[0], module_globals) is None else 1
    constant = constant_elements(op.operands[1 - computed], module_globals)
    assert parameters is not None  # quantized
    assert constant is not None  # `_is_mean`
    divisor = float(constant.flat[0])
    factor = 1 / divisor if op.name == "stablehlo.divide" else divisor
    i32 = ir.IntegerType.get_signless(32)
    scaled = QuantizationParameters(
        _I32, ExpressedType.F32, (), (), parameters.scales.astype(np.float64) * factor
    )
    with ir.InsertionPoint(op), op.location:
        stored = value(_SCAST, [source], with_element(source.type, ir.IntegerType.get_signless(8)))
        wide = tensor(emit_stablehlo.convert(stored, i32)) - np.int32(parameters.zero_points)
        zero = emit_stablehlo.zero_of(i32)
        result = with_element(total.results[0].type, i32)
        summed = like(total, [wide.value, zero], [result])
        scalar = tensor_type([], i32)
        emit_stablehlo.fill_body(
            summed.regions[0],
            [scalar, scalar],
            lambda *pair: [value("stablehlo.add", pair, scalar)],
        )
        shape = [int(n) for n in op.results[0].type.shape]
        reshaped = emit_stablehlo.reshape(summed.results[0], shape)
        mean = value(_SCAST, [reshaped], with_element(reshaped.type, type_of(scaled)))
        requantized = value(QUANTIZE, [mean], target.type)
    target.replace_all_uses_with(requantized)


def _after(each: Value, plan: Plan) -> ir.InsertionPoint:
    if isinstance(each.owner, ir.Block):
        return ir.InsertionPoint.at_block_begin(plan.block)
    return ir.InsertionPoint.after(each.owner.operation)


def _quantize_constants(
    op: Operation, parameters: QuantizationParameters, module_globals: ModuleGlobals
) -> None:
    """Quantize the constant operands of an operation like its result; infinities saturate."""
    for number, operand in enumerate(op.operands):
        elements = constant_elements(operand, module_globals)
        if elements is not None:
            with ir.InsertionPoint(op), op.location:
                stored = quantize(np.asarray(elements, np.float32), parameters)
                op.operands[number] = _constant(stored, parameters, operand.type)


def dequantize_accumulators(
    layer: Layer, activations: QuantizationParameters, weight: QuantizedWeight
) -> None:
    """Let a layer with a float result dequantize its accumulators once, after an integer bias.

    The sum of accumulators and bias is exact, and has one rounding as a float.
    """
    has_bias = bool(layer.tail) and layer.tail[0].name == "stablehlo.add"
    result = layer.tail[0].results[0] if has_bias else layer.op.results[0]
    axis = Contraction.of(layer.op).right.to_result[layer.weight_axis]
    wide = activations.scales.astype(np.float64) * weight.parameters.scales
    parameters = QuantizationParameters(
        _I32, ExpressedType.F32, (axis,), (1,), wide, granularity="per-axis"
    )
    uses = [(use.owner.operation, use.operand_number) for use in result.uses]
    producer = result.owner.operation
    with ir.InsertionPoint.after(producer), producer.location:
        quantized = value(QUANTIZE, [result], with_element(result.type, type_of(parameters)))
        dequantized = value(DEQUANTIZE, [quantized], result.type)
    for user, number in uses:
        user.operands[number] = dequantized
    if layer.end == result:
        layer.end = dequantized


def quantize_weight(layer: Layer, weight: QuantizedWeight, cast: str) -> None:
    """Replace the weight of a layer by its integers, dequantized by an operation named `cast`."""
    op = layer.op
    with ir.InsertionPoint(op), op.location:
        op.operands[1] = _constant(weight.integers, weight.parameters, op.operands[1].type, cast)


def _constant(
    stored: Array, parameters: QuantizationParameters, type_: ir.Type, cast: str = DEQUANTIZE
) -> Value:
    """Write a constant of integers, and its dequantization."""
    width = parameters.storage.width
    constant = emit_stablehlo.constant(stored, ir.IntegerType.get_signless(width))
    if parameters.granularity == "sub-channel" and parameters.scales.size > _MAX_TYPE_SCALES:
        scales = emit_stablehlo.constant(parameters.scales.astype(np.float16), ir.F16Type.get())
        described = any_type_of(parameters.storage, parameters.expressed)
        return emit_subquant.dequantize(
            constant,
            scales,
            parameters.block_shape(stored.shape),
            ir.TypeAttr.get(described),
            type_.element_type,
        )
    quantized = value(_SCAST, [constant], with_element(type_, type_of(parameters)))
    return value(cast, [quantized], type_)


def return_values(
    function: Operation, values: Sequence[Value], result_count: int | None = None
) -> None:
    """Let a function return values after its results, or after the first `result_count` of them."""
    terminator = list(function.regions[0].blocks[0].operations)[-1].operation
    results = [*list(terminator.operands)[:result_count], *values]
    with ir.InsertionPoint(terminator), terminator.location:
        create("func.return", results)
    terminator.erase()
    added = [each.type for each in values]
    for name in ("function_type", SIGNATURE_ATTRIBUTE):
        if name in function.attributes:
            old = function.attributes[name].value
            type_ = ir.FunctionType.get(
                list(old.inputs), [*list(old.results)[:result_count], *added]
            )
            function.attributes[name] = ir.TypeAttr.get(type_)
