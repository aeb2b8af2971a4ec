// RUN: subquant opt %s --passes "verify-quantization,lower-block-contractions" --split-input-file | filecheck %s

// Zero points and offsets, in f16: products are summed in f32, and rounded once.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2, d3) -> (d2)>
// CHECK: #[[MAP3:.+]] = affine_map<(d0, d1, d2, d3) -> (d0, d1)>
// CHECK-LABEL: func.func @half(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<?x8xf16>, %[[ARG1:[^: ]+]]: tensor<3x8xi4>, %[[ARG2:[^: ]+]]: tensor<1x2xf16>, %[[ARG3:[^: ]+]]: tensor<1x2xi4>, %[[ARG4:[^: ]+]]: tensor<1x2xf16>) -> tensor<?x3xf16> {
// CHECK-NEXT: %[[C0:[^: ]+]] = arith.constant 0 : index
// CHECK-NEXT: %[[DIM:[^: ]+]] = tensor.dim %[[ARG0]], %[[C0]] : tensor<?x8xf16>
// CHECK-NEXT: %[[EXPANDED:[^: ]+]] = tensor.expand_shape %[[ARG1]] {{\[\[}}0], [1, 2]] output_shape [3, 2, 4] : tensor<3x8xi4> into tensor<3x2x4xi4>
// CHECK-NEXT: %[[EXPANDED_0:[^: ]+]] = tensor.expand_shape %[[ARG0]] {{\[\[}}0], [1, 2]] output_shape [%[[DIM]], 2, 4] : tensor<?x8xf16> into tensor<?x2x4xf16>
// CHECK-NEXT: %[[COLLAPSED:[^: ]+]] = tensor.collapse_shape %[[ARG2]] {{\[\[}}0, 1]] : tensor<1x2xf16> into tensor<2xf16>
// CHECK-NEXT: %[[COLLAPSED_1:[^: ]+]] = tensor.collapse_shape %[[ARG3]] {{\[\[}}0, 1]] : tensor<1x2xi4> into tensor<2xi4>
// CHECK-NEXT: %[[COLLAPSED_2:[^: ]+]] = tensor.collapse_shape %[[ARG4]] {{\[\[}}0, 1]] : tensor<1x2xf16> into tensor<2xf16>
// CHECK-NEXT: %[[CST:[^: ]+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[V0:[^: ]+]] = tensor.empty(%[[DIM]]) : tensor<?x3xf32>
// CHECK-NEXT: %[[V1:[^: ]+]] = linalg.fill ins(%[[CST]] : f32) outs(%[[V0]] : tensor<?x3xf32>) -> tensor<?x3xf32>
// CHECK-NEXT: %[[V2:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]], #[[MAP2]], #[[MAP2]], #[[MAP3]]], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%[[EXPANDED_0]], %[[EXPANDED]], %[[COLLAPSED]], %[[COLLAPSED_1]], %[[COLLAPSED_2]] : tensor<?x2x4xf16>, tensor<3x2x4xi4>, tensor<2xf16>, tensor<2xi4>, tensor<2xf16>) outs(%[[V1]] : tensor<?x3xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: f16, %[[IN_3:[^: ]+]]: i4, %[[IN_4:[^: ]+]]: f16, %[[IN_5:[^: ]+]]: i4, %[[IN_6:[^: ]+]]: f16, %[[OUT:[^: ]+]]: f32):
// CHECK-NEXT: %[[V4:[^: ]+]] = arith.extf %[[IN]] : f16 to f32
// CHECK-NEXT: %[[V5:[^: ]+]] = arith.extui %[[IN_3]] : i4 to i32
// CHECK-NEXT: %[[V6:[^: ]+]] = arith.extui %[[IN_5]] : i4 to i32
// CHECK-NEXT: %[[V7:[^: ]+]] = arith.subi %[[V5]], %[[V6]] : i32
// CHECK-NEXT: %[[V8:[^: ]+]] = arith.sitofp %[[V7]] : i32 to f32
// CHECK-NEXT: %[[V9:[^: ]+]] = arith.truncf %[[V8]] : f32 to f16
// CHECK-NEXT: %[[V10:[^: ]+]] = arith.mulf %[[V9]], %[[IN_4]] : f16
// CHECK-NEXT: %[[V11:[^: ]+]] = arith.addf %[[V10]], %[[IN_6]] : f16
// CHECK-NEXT: %[[V12:[^: ]+]] = arith.extf %[[V11]] : f16 to f32
// CHECK-NEXT: %[[V13:[^: ]+]] = arith.mulf %[[V4]], %[[V12]] : f32
// CHECK-NEXT: %[[V14:[^: ]+]] = arith.addf %[[OUT]], %[[V13]] : f32
// CHECK-NEXT: linalg.yield %[[V14]] : f32
// CHECK-NEXT: } -> tensor<?x3xf32>
// CHECK-NEXT: %[[V3:[^: ]+]] = stablehlo.convert %[[V2]] : (tensor<?x3xf32>) -> tensor<?x3xf16>
// CHECK-NEXT: return %[[V3]] : tensor<?x3xf16>
func.func @half(%x: tensor<?x8xf16>, %q: tensor<3x8xi4>, %s: tensor<1x2xf16>, %z: tensor<1x2xi4>, %o: tensor<1x2xf16>) -> tensor<?x3xf16> {
  %y = "subquant.block_contraction"(%x, %q, %s, %z, %o) {block_sizes = array<i64: 3, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0>, quantized_type = !quant.any<u4:f16>} : (tensor<?x8xf16>, tensor<3x8xi4>, tensor<1x2xf16>, tensor<1x2xi4>, tensor<1x2xf16>) -> tensor<?x3xf16>
  return %y : tensor<?x3xf16>
}

// -----

// A window indexes the left operand by a sum of loops.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 * 2 + d3 * 2, d4, d5)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d3, d4, d5, d2)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d4, d2)>
// CHECK: #[[MAP3:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2)>
// CHECK-LABEL: func.func @window(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<1x7x4xf32>, %[[ARG1:[^: ]+]]: tensor<3x4x2xi8>, %[[ARG2:[^: ]+]]: tensor<1x2x2xf32>) -> tensor<1x2x2xf32> {
// CHECK-NEXT: %[[EXPANDED:[^: ]+]] = tensor.expand_shape %[[ARG1]] {{\[\[}}0], [1, 2], [3]] output_shape [3, 2, 2, 2] : tensor<3x4x2xi8> into tensor<3x2x2x2xi8>
// CHECK-NEXT: %[[EXPANDED_0:[^: ]+]] = tensor.expand_shape %[[ARG0]] {{\[\[}}0], [1], [2, 3]] output_shape [1, 7, 2, 2] : tensor<1x7x4xf32> into tensor<1x7x2x2xf32>
// CHECK-NEXT: %[[COLLAPSED:[^: ]+]] = tensor.collapse_shape %[[ARG2]] {{\[\[}}0, 1], [2]] : tensor<1x2x2xf32> into tensor<2x2xf32>
// CHECK-NEXT: %[[CST:[^: ]+]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT: %[[V0:[^: ]+]] = tensor.empty() : tensor<1x2x2xf32>
// CHECK-NEXT: %[[V1:[^: ]+]] = linalg.fill ins(%[[CST]] : f32) outs(%[[V0]] : tensor<1x2x2xf32>) -> tensor<1x2x2xf32>
// CHECK-NEXT: %[[V2:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]], #[[MAP3]]], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%[[EXPANDED_0]], %[[EXPANDED]], %[[COLLAPSED]] : tensor<1x7x2x2xf32>, tensor<3x2x2x2xi8>, tensor<2x2xf32>) outs(%[[V1]] : tensor<1x2x2xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: f32, %[[IN_1:[^: ]+]]: i8, %[[IN_2:[^: ]+]]: f32, %[[OUT:[^: ]+]]: f32):
// CHECK-NEXT: %[[V3:[^: ]+]] = arith.extsi %[[IN_1]] : i8 to i32
// CHECK-NEXT: %[[V4:[^: ]+]] = arith.sitofp %[[V3]] : i32 to f32
// CHECK-NEXT: %[[V5:[^: ]+]] = arith.mulf %[[V4]], %[[IN_2]] : f32
// CHECK-NEXT: %[[V6:[^: ]+]] = arith.mulf %[[IN]], %[[V5]] : f32
// CHECK-NEXT: %[[V7:[^: ]+]] = arith.addf %[[OUT]], %[[V6]] : f32
// CHECK-NEXT: linalg.yield %[[V7]] : f32
// CHECK-NEXT: } -> tensor<1x2x2xf32>
// CHECK-NEXT: return %[[V2]] : tensor<1x2x2xf32>
func.func @window(%x: tensor<1x7x4xf32>, %q: tensor<3x4x2xi8>, %s: tensor<1x2x2xf32>) -> tensor<1x2x2xf32> {
  %y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 3, 2, 1>, indexing_maps = [affine_map<(b, o, f, k, c) -> (b, o * 2 + k * 2, c)>, affine_map<(b, o, f, k, c) -> (k, c, f)>, affine_map<(b, o, f, k, c) -> (b, o, f)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<1x7x4xf32>, tensor<3x4x2xi8>, tensor<1x2x2xf32>) -> tensor<1x2x2xf32>
  return %y : tensor<1x2x2xf32>
}
