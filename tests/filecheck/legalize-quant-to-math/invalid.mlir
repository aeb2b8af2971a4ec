// RUN: subquant opt %s --passes legalize-quant-to-math --split-input-file --verify-diagnostics

!x = !quant.uniform<i8:f32, 0.5:3>
func.func @custom_call(%x: tensor<4x!x>) -> tensor<4x!x> {
  // expected-error @+1 {{'stablehlo.custom_call' op has quantized operands or results, and nothing says what its target does with their scales; dequantize before and quantize after it}}
  %r = "stablehlo.custom_call"(%x) {call_target_name = "f"} : (tensor<4x!x>) -> tensor<4x!x>
  return %r : tensor<4x!x>
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
func.func @tuple(%x: tensor<4x!x>) {
  // expected-error @+1 {{'stablehlo.tuple' op puts quantized values into a tuple, which IREE does not have; pass the values themselves}}
  %r = "stablehlo.tuple"(%x) : (tensor<4x!x>) -> tuple<tensor<4x!x>>
  return
}

// -----

!x = !quant.uniform<i8:f32, 0.5:3>
func.func @real_right(%x: tensor<2x2x!x>, %y: tensor<2x2xf32>) -> tensor<2x2xf32> {
  // expected-error @+1 {{'stablehlo.dot' op has operands of '!quant.uniform<i8:f32, 5.000000e-01:3>' and 'f32' and a result of 'f32'; expected all quantized, or a real left operand and result with a quantized right operand}}
  %r = "stablehlo.dot"(%x, %y) : (tensor<2x2x!x>, tensor<2x2xf32>) -> tensor<2x2xf32>
  return %r : tensor<2x2xf32>
}
