// RUN: subquant opt %s --passes lower-block-contractions | filecheck %s

// CHECK-LABEL: func.func @dequantized(
// CHECK-NEXT: subquant.dequantize
// CHECK-NEXT: stablehlo.dot
// CHECK-NEXT: return
func.func @dequantized(%x: tensor<4x8xf32>, %q: tensor<8x2xi8>, %s: tensor<2x2xf32>) -> tensor<4x2xf32> {
  %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 4, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<8x2xi8>, tensor<2x2xf32>) -> tensor<8x2xf32>
  %y = stablehlo.dot %x, %w : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}
