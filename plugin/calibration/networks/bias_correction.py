"""Bias correction: the mean of a layer's outputs stays that of floats.

The rounding of a weight ``w`` to ``w'`` moves the outputs of a layer by ``(w' - w) x``. Inputs
after a ReLU have a mean above 0, so that the outputs of a channel move by a mean, too, which
changes the largest of the logits more often than noise does. The bias takes it up::

    b' = b - sum_k (w'[k] - w[k]) E[x[k]]

``E[x]`` is the mean input of the float network for the calibration inputs, over the positions of
an image, too. Padding counts like other positions.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
section 4.2, with means that are measured.
"""

from __future__ import annotations

import numpy as np

from ...core._mlir import ir, stablehlo
from ...dialects.windows import dot_axes
from ...emit import stablehlo as emit_stablehlo
from ...emit.constant_values import constant_elements
from ...emit.parameters import ModuleGlobals
from ...numerics.element_types import Array
from ...transforms.quantization.math.contraction import Contraction
from .plan import Layer, Plan
from .weights import QuantizedWeight


def corrected_layers(plan: Plan, module_globals: ModuleGlobals) -> list[Layer]:
    """Return the quantized layers that add a bias, of which there is one for each channel."""
    return [layer for layer in plan.layers if _bias_of(layer, module_globals) is not None]


def input_axes(layer: Layer) -> list[int]:
    """Return the axes of the input of a layer along which its mean is taken apart."""
    op = layer.op
    if Contraction.of(op).is_window:
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        return [numbers.input_feature_dimension]
    (contracted, _), _ = dot_axes(op)
    return list(contracted)


def correct_bias(
    layer: Layer,
    weight: Array,
    quantized: QuantizedWeight,
    mean: Array,
    module_globals: ModuleGlobals,
) -> None:
    """Replace the bias of a layer by one that takes up the mean error of its outputs.

    Args:
        layer: one of `corrected_layers`.
        weight: the float values.
        mean: the mean input, float64, with the axes of `input_axes`.
    """
    bias, axis = _bias_of(layer, module_globals), _channel_axis(layer)
    assert bias is not None  # `corrected_layers`
    parameters = quantized.parameters
    spread = [1] * weight.ndim
    spread[layer.weight_axis] = -1
    values = quantized.integers * parameters.scales.astype(np.float64).reshape(spread)
    corrected = (bias - _mean_outputs(layer, values - weight, mean)).astype(np.float32)
    addition, result = layer.tail[0], layer.op.results[0]
    number = 0 if addition.operands[1] == result else 1
    with ir.InsertionPoint(addition), addition.location:
        constant = emit_stablehlo.constant(corrected, result.type.element_type)
        addition.operands[number] = emit_stablehlo.broadcast(constant, result.type, [axis])


def _mean_outputs(layer: Layer, weight: Array, mean: Array) -> Array:
    """Return the outputs of each channel for the mean input, float64."""
    op = layer.op
    if not Contraction.of(op).is_window:
        (_, contracted), _ = dot_axes(op)
        return np.tensordot(mean, weight, (tuple(range(mean.ndim)), tuple(contracted)))
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    axes = numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension
    of_inputs = np.moveaxis(weight, axes, (0, 1)).reshape((*(weight.shape[a] for a in axes), -1))
    groups = mean.reshape((-1, weight.shape[axes[1]]))  # of channels with the same inputs
    outputs = of_inputs.sum(2).reshape((len(groups), -1, weight.shape[axes[1]]))
    result: Array = (outputs @ groups[:, :, None]).reshape(-1)
    return result


def _channel_axis(layer: Layer) -> int:
    """Return the axis of the result that has the channels of the weight."""
    return Contraction.of(layer.op).right.to_result[layer.weight_axis]


def _bias_of(layer: Layer, module_globals: ModuleGlobals) -> Array | None:
    """Return the bias of each channel, float64; None for a layer that adds no such bias."""
    if not layer.is_quantized or not layer.tail or layer.tail[0].name != "stablehlo.add":
        return None
    contraction = Contraction.of(layer.op)
    if len(contraction.right.to_result) != 1:
        return None
    if contraction.is_window and int(layer.op.attributes["batch_group_count"].value) != 1:
        return None
    addition, result = layer.tail[0], layer.op.results[0]
    number = 0 if addition.operands[1] == result else 1
    elements = constant_elements(addition.operands[number], module_globals)
    if elements is None:
        return None
    by_channel = np.moveaxis(elements, _channel_axis(layer), 0)
    by_channel = by_channel.reshape((len(by_channel), -1))
    if not np.isfinite(by_channel).all() or (by_channel != by_channel[:, :1]).any():
        return None
    return by_channel[:, 0].astype(np.float64)
