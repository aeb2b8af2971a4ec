// RUN: subquant opt %s --passes "contract-storage" | filecheck %s

// Only the weight is dequantized: nothing changes.
// CHECK-LABEL: func.func @weight_only(
// CHECK: stablehlo.dot_general %{{[^,]+}}, %{{[^,]+}}, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
func.func @weight_only(%x: tensor<4x64xf32>, %w: tensor<2x64xi8>, %s: tensor<2x1xf32>) -> tensor<4x2xf32> {
  %0 = "subquant.dequantize"(%w, %s) {block_sizes = array<i64: 1, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x64xi8>, tensor<2x1xf32>) -> tensor<2x64xf32>
  %y = stablehlo.dot_general %x, %0, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}
