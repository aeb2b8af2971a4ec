// RUN: subquant opt %s --passes fuse-block-contractions --split-input-file | filecheck %s

// One scale for each index of an axis, and real operands.
// CHECK-LABEL: func.func @per_axis(
// CHECK-NOT: block_contraction
!axis = !quant.uniform<i8:f32:1, {0.5, 0.25}>
func.func @per_axis(%x: tensor<4x8xf32>, %q: tensor<8x2x!axis>, %r: tensor<2x3xf32>) -> tensor<4x3xf32> {
  %w = quant.dcast %q : tensor<8x2x!axis> to tensor<8x2xf32>
  %y = stablehlo.dot %x, %w : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %z = stablehlo.dot %y, %r : (tensor<4x2xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
  return %z : tensor<4x3xf32>
}

// -----

// A ragged last block, and a dynamic extent where there are blocks.
// CHECK-LABEL: func.func @ragged(
// CHECK-NOT: block_contraction
func.func @ragged(%x: tensor<4x7xf32>, %q: tensor<7x2xi8>, %s: tensor<2x2xf32>, %d: tensor<4x?xf32>, %p: tensor<8x2xi8>) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
  %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 4, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<7x2xi8>, tensor<2x2xf32>) -> tensor<7x2xf32>
  %y = stablehlo.dot %x, %w : (tensor<4x7xf32>, tensor<7x2xf32>) -> tensor<4x2xf32>
  %v = "subquant.dequantize"(%p, %s) {block_sizes = array<i64: 4, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<8x2xi8>, tensor<2x2xf32>) -> tensor<8x2xf32>
  %z = stablehlo.dot %d, %v : (tensor<4x?xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  return %y, %z : tensor<4x2xf32>, tensor<4x2xf32>
}

// -----

// Activations that the program has rounded are no weight: a product of floats is faster than one by blocks.
// CHECK-LABEL: func.func @rounded_activations(
// CHECK: subquant.dequantize
// CHECK: stablehlo.dot_general
func.func @rounded_activations(%q: tensor<2x4x8xf32>, %k: tensor<4x2x8xf32>) -> tensor<2x4x4xf32> {
  %s = stablehlo.constant dense<5.000000e-01> : tensor<1x1x1xf32>
  %0 = stablehlo.convert %k : (tensor<4x2x8xf32>) -> tensor<4x2x8xi8>
  %1 = stablehlo.transpose %0, dims = [1, 0, 2] : (tensor<4x2x8xi8>) -> tensor<2x4x8xi8>
  %2 = "subquant.dequantize"(%1, %s) {block_sizes = array<i64: 2, 4, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x4x8xi8>, tensor<1x1x1xf32>) -> tensor<2x4x8xf32>
  %y = stablehlo.dot_general %q, %2, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x4xf32>
  return %y : tensor<2x4x4xf32>
}
