// RUN: subquant opt %s --passes "fuse-block-contractions{activations=int8}" --split-input-file | filecheck %s

// Activations share a scale where the weight's scales do.
// CHECK-LABEL: func.func @of_two_blocks(
// CHECK: %[[S:.+]] = "subquant.dequantize"(
// CHECK: "subquant.block_contraction"(%{{.+}}, %{{.+}}, %[[S]]) {activation_block_sizes = array<i64: 1, 16>, activation_type = "int8", block_sizes = array<i64: 1, 8>
func.func @of_two_blocks(%x: tensor<5x32xf32>, %q: tensor<3x32xi4>, %s: tensor<3x4xi6>, %d: tensor<3x2xf16>) -> tensor<5x3xf32> {
  %scales = "subquant.dequantize"(%s, %d) {block_sizes = array<i64: 1, 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u6:f32>} : (tensor<3x4xi6>, tensor<3x2xf16>) -> tensor<3x4xf32>
  %w = "subquant.dequantize"(%q, %scales) {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u4:f32>} : (tensor<3x32xi4>, tensor<3x4xf32>) -> tensor<3x32xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<5x32xf32>, tensor<3x32xf32>) -> tensor<5x3xf32>
  return %y : tensor<5x3xf32>
}

// -----

// A superblock of more than 256 elements.
// CHECK-LABEL: func.func @of_a_row(
// CHECK: "subquant.block_contraction"(
// CHECK-NOT: activation_block_sizes
func.func @of_a_row(%x: tensor<5x512xf32>, %q: tensor<3x512xi4>, %s: tensor<3x4xi8>, %d: tensor<3x1xf32>) -> tensor<5x3xf32> {
  %scales = "subquant.dequantize"(%s, %d) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u8:f32>} : (tensor<3x4xi8>, tensor<3x1xf32>) -> tensor<3x4xf32>
  %w = "subquant.dequantize"(%q, %scales) {block_sizes = array<i64: 1, 128>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u4:f32>} : (tensor<3x512xi4>, tensor<3x4xf32>) -> tensor<3x512xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<5x512xf32>, tensor<3x512xf32>) -> tensor<5x3xf32>
  return %y : tensor<5x3xf32>
}

// -----

// Columns share scales of scales.
// CHECK-LABEL: func.func @of_columns(
// CHECK: "subquant.block_contraction"(
// CHECK-NOT: activation_block_sizes
func.func @of_columns(%x: tensor<5x32xf32>, %q: tensor<4x32xi4>, %s: tensor<4x4xi8>, %d: tensor<1x4xf32>) -> tensor<5x4xf32> {
  %scales = "subquant.dequantize"(%s, %d) {block_sizes = array<i64: 4, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u8:f32>} : (tensor<4x4xi8>, tensor<1x4xf32>) -> tensor<4x4xf32>
  %w = "subquant.dequantize"(%q, %scales) {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<u4:f32>} : (tensor<4x32xi4>, tensor<4x4xf32>) -> tensor<4x32xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<5x32xf32>, tensor<4x32xf32>) -> tensor<5x4xf32>
  return %y : tensor<5x4xf32>
}
