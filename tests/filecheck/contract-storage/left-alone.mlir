// RUN: subquant opt %s --passes "contract-storage{explain=true}" --verify-diagnostics --split-input-file

// 127 * 255 * 2**17 products do not fit i32.
func.func @overflow(%x: tensor<4x131072xi8>, %w: tensor<2x131072xi8>, %s: tensor<1x1xf32>) -> tensor<4x2xf32> {
  %0 = "subquant.dequantize"(%x, %s) {block_sizes = array<i64: 4, 131072>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x131072xi8>, tensor<1x1xf32>) -> tensor<4x131072xf32>
  %1 = "subquant.dequantize"(%w, %s) {block_sizes = array<i64: 2, 131072>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x131072xi8>, tensor<1x1xf32>) -> tensor<2x131072xf32>
  // expected-remark @+1 {{'stablehlo.dot_general' op does not contract the integers of its operands: 131072 products may overflow i32}}
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x131072xf32>, tensor<2x131072xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

func.func @blocks(%x: tensor<4x64xi8>, %w: tensor<2x64xi8>, %s: tensor<1x1xf32>, %sw: tensor<2x2xf32>) -> tensor<4x2xf32> {
  %0 = "subquant.dequantize"(%x, %s) {block_sizes = array<i64: 4, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x64xi8>, tensor<1x1xf32>) -> tensor<4x64xf32>
  %1 = "subquant.dequantize"(%w, %sw) {block_sizes = array<i64: 1, 32>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x64xi8>, tensor<2x2xf32>) -> tensor<2x64xf32>
  // expected-remark @+1 {{'stablehlo.dot_general' op does not contract the integers of its operands: an operand has scales of blocks}}
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

func.func @summed(%x: tensor<4x64xi8>, %w: tensor<2x64xi8>, %s: tensor<1x64xf32>, %sw: tensor<1x1xf32>) -> tensor<4x2xf32> {
  %0 = "subquant.dequantize"(%x, %s) {block_sizes = array<i64: 4, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x64xi8>, tensor<1x64xf32>) -> tensor<4x64xf32>
  %1 = "subquant.dequantize"(%w, %sw) {block_sizes = array<i64: 2, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x64xi8>, tensor<1x1xf32>) -> tensor<2x64xf32>
  // expected-remark @+1 {{'stablehlo.dot_general' op does not contract the integers of its operands: an operand has scales along an axis that is summed over}}
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}
