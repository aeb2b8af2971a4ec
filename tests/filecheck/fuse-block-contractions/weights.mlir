// RUN: subquant opt %s --passes "fuse-block-contractions" --split-input-file | filecheck %s

// Parameters of a type become operands; the weight is the left or the right operand.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @of_a_type(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<?x8xf32>, %[[ARG1:[^: ]+]]: tensor<8x3x!quant.uniform<{{.*}}>>) -> tensor<?x3xf32> {
// CHECK-NEXT: %[[V0:[^: ]+]] = "subquant.scast"(%[[ARG1]]) : (tensor<8x3x!quant.uniform<{{.*}}>>) -> tensor<8x3xi4>
// CHECK-NEXT: %[[CST:[^: ]+]] = arith.constant dense<{{\[\[}}5.000000e-01], [2.500000e-01]]> : tensor<2x1xf32>
// CHECK-NEXT: %[[CST_0:[^: ]+]] = arith.constant dense<{{\[\[}}1], [-2]]> : tensor<2x1xi4>
// CHECK-NEXT: %[[V1:[^: ]+]] = "subquant.block_contraction"(%[[ARG0]], %[[V0]], %[[CST]], %[[CST_0]]) {block_sizes = array<i64: 4, 3>, indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<?x8xf32>, tensor<8x3xi4>, tensor<2x1xf32>, tensor<2x1xi4>) -> tensor<?x3xf32>
// CHECK-NEXT: return %[[V1]] : tensor<?x3xf32>
!w = !quant.uniform<i4:f32:{0:4}, {{0.5:1}, {0.25:-2}}>
func.func @of_a_type(%x: tensor<?x8xf32>, %q: tensor<8x3x!w>) -> tensor<?x3xf32> {
  %w = quant.dcast %q : tensor<8x3x!w> to tensor<8x3xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<?x8xf32>, tensor<8x3xf32>) -> tensor<?x3xf32>
  return %y : tensor<?x3xf32>
}

// -----

// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d2, d1)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @on_the_left(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<3x8xi8>, %[[ARG1:[^: ]+]]: tensor<3x2xf16>, %[[ARG2:[^: ]+]]: tensor<3x2xi4>, %[[ARG3:[^: ]+]]: tensor<3x2xf32>, %[[ARG4:[^: ]+]]: tensor<8x5xf32>) -> tensor<3x5xf32> {
// CHECK-NEXT: %[[V0:[^: ]+]] = "subquant.block_contraction"(%[[ARG4]], %[[ARG0]], %[[ARG1]], %[[ARG2]], %[[ARG3]]) {block_sizes = array<i64: 1, 4>, indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>, quantized_type = !quant.any<u8<0:63>:f32>} : (tensor<8x5xf32>, tensor<3x8xi8>, tensor<3x2xf16>, tensor<3x2xi4>, tensor<3x2xf32>) -> tensor<3x5xf32>
// CHECK-NEXT: return %[[V0]] : tensor<3x5xf32>
func.func @on_the_left(%q: tensor<3x8xi8>, %s: tensor<3x2xf16>, %z: tensor<3x2xi4>, %o: tensor<3x2xf32>, %x: tensor<8x5xf32>) -> tensor<3x5xf32> {
  %w = "subquant.dequantize"(%q, %s, %z, %o) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 1, 1>, quantized_type = !quant.any<u8<0:63>:f32>} : (tensor<3x8xi8>, tensor<3x2xf16>, tensor<3x2xi4>, tensor<3x2xf32>) -> tensor<3x8xf32>
  %y = stablehlo.dot %w, %x : (tensor<3x8xf32>, tensor<8x5xf32>) -> tensor<3x5xf32>
  return %y : tensor<3x5xf32>
}

// -----

// A window; the left operand is padded before.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1 * 2 + d3 * 2, d4)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d3, d4, d2)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2)>
// CHECK-LABEL: func.func @convolution(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<1x6x4xf32>, %[[ARG1:[^: ]+]]: tensor<3x4x2xi8>, %[[ARG2:[^: ]+]]: tensor<1x2x2xf32>) -> tensor<1x2x2xf32> {
// CHECK-NEXT: %[[CST:[^: ]+]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK-NEXT: %[[V0:[^: ]+]] = stablehlo.pad %[[ARG0]], %[[CST]], low = [0, 1, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<1x6x4xf32>, tensor<f32>) -> tensor<1x7x4xf32>
// CHECK-NEXT: %[[V1:[^: ]+]] = "subquant.block_contraction"(%[[V0]], %[[ARG1]], %[[ARG2]]) {block_sizes = array<i64: 3, 2, 1>, indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<1x7x4xf32>, tensor<3x4x2xi8>, tensor<1x2x2xf32>) -> tensor<1x2x2xf32>
// CHECK-NEXT: return %[[V1]] : tensor<1x2x2xf32>
func.func @convolution(%x: tensor<1x6x4xf32>, %q: tensor<3x4x2xi8>, %s: tensor<1x2x2xf32>) -> tensor<1x2x2xf32> {
  %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 3, 2, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<3x4x2xi8>, tensor<1x2x2xf32>) -> tensor<3x4x2xf32>
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
      window = {stride = [2], pad = [[1, 0]], rhs_dilate = [2]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x6x4xf32>, tensor<3x4x2xf32>) -> tensor<1x2x2xf32>
  return %y : tensor<1x2x2xf32>
}

// -----

// Others use the real weight too: it stays for them.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: func.func @used_twice(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<2x8xf32>, %[[ARG1:[^: ]+]]: tensor<3x8xi8>, %[[ARG2:[^: ]+]]: tensor<3x1xf32>) -> (tensor<2x3xf32>, tensor<3x8xf32>) {
// CHECK-NEXT: %[[V0:[^: ]+]] = "subquant.dequantize"(%[[ARG1]], %[[ARG2]]) {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<3x8xi8>, tensor<3x1xf32>) -> tensor<3x8xf32>
// CHECK-NEXT: %[[V1:[^: ]+]] = "subquant.block_contraction"(%[[ARG0]], %[[ARG1]], %[[ARG2]]) {block_sizes = array<i64: 1, 8>, indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x8xf32>, tensor<3x8xi8>, tensor<3x1xf32>) -> tensor<2x3xf32>
// CHECK-NEXT: return %[[V1]], %[[V0]] : tensor<2x3xf32>, tensor<3x8xf32>
func.func @used_twice(%x: tensor<2x8xf32>, %q: tensor<3x8xi8>, %s: tensor<3x1xf32>) -> (tensor<2x3xf32>, tensor<3x8xf32>) {
  %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 1, 8>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<3x8xi8>, tensor<3x1xf32>) -> tensor<3x8xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  return %y, %w : tensor<2x3xf32>, tensor<3x8xf32>
}
