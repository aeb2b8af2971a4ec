"""Fused dispatches of the dynamic quantization of activations."""

from __future__ import annotations

import re

import numpy as np

from subquant.compiler.compilation import compile_to_bytes
from subquant.runtime import Executable
from test_elementwise_fusion import calls


def rounding_layer(number, x, weight):
    """The MLIR of a layer that quantizes its activations with one scale."""
    depth, columns = weight.shape
    text = """
  %absG = stablehlo.abs %GIVEN : tensor<1xDEPTHxf32>
  %lowG = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %maxG = stablehlo.reduce(%absG init: %lowG) applies stablehlo.maximum across dimensions = [1]
          : (tensor<1xDEPTHxf32>, tensor<f32>) -> tensor<1xf32>
  %peakG = stablehlo.reshape %maxG : (tensor<1xf32>) -> tensor<1x1xf32>
  %noneG = stablehlo.constant dense<0.0> : tensor<1x1xf32>
  %oneG = stablehlo.constant dense<1.0> : tensor<1x1xf32>
  %mostG = stablehlo.constant dense<127.0> : tensor<1x1xf32>
  %isG = stablehlo.compare EQ, %peakG, %noneG : (tensor<1x1xf32>, tensor<1x1xf32>)
         -> tensor<1x1xi1>
  %scaleG = stablehlo.divide %peakG, %mostG : tensor<1x1xf32>
  %stepG = stablehlo.select %isG, %oneG, %scaleG : tensor<1x1xi1>, tensor<1x1xf32>
  %inverseG = stablehlo.divide %mostG, %peakG : tensor<1x1xf32>
  %factorG = stablehlo.select %isG, %noneG, %inverseG : tensor<1x1xi1>, tensor<1x1xf32>
  %allG = stablehlo.broadcast_in_dim %factorG, dims = [0, 1]
          : (tensor<1x1xf32>) -> tensor<1xDEPTHxf32>
  %productG = stablehlo.multiply %GIVEN, %allG : tensor<1xDEPTHxf32>
  %wideG = stablehlo.abs %productG : tensor<1xDEPTHxf32>
  %belowG = stablehlo.floor %wideG : tensor<1xDEPTHxf32>
  %restG = stablehlo.subtract %wideG, %belowG : tensor<1xDEPTHxf32>
  %halfG = stablehlo.constant dense<0.5> : tensor<1xDEPTHxf32>
  %upG = stablehlo.compare GE, %restG, %halfG : (tensor<1xDEPTHxf32>, tensor<1xDEPTHxf32>)
         -> tensor<1xDEPTHxi1>
  %upwardsG = stablehlo.convert %upG : (tensor<1xDEPTHxi1>) -> tensor<1xDEPTHxi32>
  %wholeG = stablehlo.convert %belowG : (tensor<1xDEPTHxf32>) -> tensor<1xDEPTHxi32>
  %sizeG = stablehlo.add %wholeG, %upwardsG : tensor<1xDEPTHxi32>
  %zeroG = stablehlo.constant dense<0.0> : tensor<1xDEPTHxf32>
  %isnegG = stablehlo.compare LT, %productG, %zeroG
            : (tensor<1xDEPTHxf32>, tensor<1xDEPTHxf32>) -> tensor<1xDEPTHxi1>
  %negG = stablehlo.negate %sizeG : tensor<1xDEPTHxi32>
  %signedG = stablehlo.select %isnegG, %negG, %sizeG
             : tensor<1xDEPTHxi1>, tensor<1xDEPTHxi32>
  %bytesG = stablehlo.convert %signedG : (tensor<1xDEPTHxi32>) -> tensor<1xDEPTHxi8>
  %wG = stablehlo.constant dense<WEIGHT> : tensor<DEPTHxCOLUMNSxi8>
  %sumsG = stablehlo.dot_general %bytesG, %wG, contracting_dims = [1] x [0]
           : (tensor<1xDEPTHxi8>, tensor<DEPTHxCOLUMNSxi8>) -> tensor<1xCOLUMNSxi32>
  %realsG = stablehlo.convert %sumsG : (tensor<1xCOLUMNSxi32>) -> tensor<1xCOLUMNSxf32>
  %stepsG = stablehlo.broadcast_in_dim %stepG, dims = [0, 1]
            : (tensor<1x1xf32>) -> tensor<1xCOLUMNSxf32>
  %yG = stablehlo.multiply %realsG, %stepsG : tensor<1xCOLUMNSxf32>"""
    text = re.sub(r"(%[a-zA-Z]+?)G(?!IVEN)\b", rf"\g<1>{number}", text)
    values = {"GIVEN": x, "DEPTH": depth, "COLUMNS": columns, "WEIGHT": weight.tolist()}
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


def rounded_layer(x, weight):
    """The layer in NumPy."""
    peak, most = abs(x).max(1, keepdims=True), np.float32(127)
    with np.errstate(divide="ignore"):
        factor = np.where(peak == 0, np.float32(0), most / peak)
    product = x * factor
    below = np.floor(abs(product))
    size = below.astype(np.int64) + (abs(product) - below >= 0.5)
    integers = np.where(product < 0, -size, size)
    step = np.where(peak == 0, np.float32(1), peak / most)
    return (integers @ weight).astype(np.float32) * step


def test_dynamic_activation_quantization(cpu):
    """Two layers are one dispatch, to the bit."""
    random = np.random.default_rng(6)
    weights = [random.integers(-127, 128, shape) for shape in ((64, 96), (96, 80))]
    layers = rounding_layer(1, "x", weights[0]) + rounding_layer(2, "y1", weights[1])
    text = f"func.func @main(%x: tensor<1x64xf32>) -> tensor<1x80xf32> {{{layers}\n"
    text += "  return %y2 : tensor<1x80xf32>\n}"
    lowered = compile_to_bytes(text, emit="mlir").decode()
    assert calls(lowered) == ["fused"]
    assert lowered.count("math.floor") == 2  # two operations read each
    main = Executable(compile_to_bytes(text)).main
    for x in (random.standard_normal((1, 64)), np.zeros((1, 64)), np.full((1, 64), -0.5)):
        x_f32 = x.astype(np.float32)
        expected = rounded_layer(rounded_layer(x_f32, weights[0]), weights[1])
        np.testing.assert_array_equal(main(x_f32), expected)


def test_the_greatest_magnitude_is_an_integer_maximum(cpu):
    """It takes one instruction for each vector, also with infinities and NaN."""
    weight = np.random.default_rng(7).integers(-127, 128, (128, 64))
    layer = rounding_layer(1, "x", weight)
    types = "(tensor<1x64xf32>, tensor<1xf32>)"
    text = f"func.func @main(%x: tensor<1x128xf32>) -> {types} {{{layer}\n"
    text += f"  return %y1, %max1 : {types[1:-1]}\n}}"
    lowered = compile_to_bytes(text, emit="mlir").decode()
    assert calls(lowered) == ["fused"]
    assert "<maxui>" in lowered
    assert "maximumf" not in lowered
    main = Executable(compile_to_bytes(text)).main
    least = np.finfo(np.float32).tiny
    for index, number in [(0, -3.5), (63, least), (127, -np.inf), (40, -np.nan), (5, 0.0)]:
        x = np.full((1, 128), -least if number != 0 else -0.0, np.float32)
        x[0, index] = number
        _, results = main(x)
        np.testing.assert_array_equal(results, np.abs(x).max(1))
