// RUN: subquant opt %s --passes "lower-packed-storage{containers=32}" | filecheck %s

// Targets without bytes: a loop over the places in each.
// CHECK: #[[MAP:.+]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-LABEL: func.func @nibbles(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<2x3xi8>) -> tensor<2x6xi4> {
// CHECK-NEXT: %[[V0:[^: ]+]] = tensor.empty() : tensor<2x3x2xi8>
// CHECK-NEXT: %[[V1:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]]], iterator_types = ["parallel", "parallel", "parallel"]} ins(%[[ARG0]] : tensor<2x3xi8>) outs(%[[V0]] : tensor<2x3x2xi8>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i8):
// CHECK-NEXT: %[[V4:[^: ]+]] = linalg.index 2 : index
// CHECK-NEXT: %[[V5:[^: ]+]] = arith.index_cast %[[V4]] : index to i8
// CHECK-NEXT: %[[C4_I8:[^: ]+]] = arith.constant 4 : i8
// CHECK-NEXT: %[[V6:[^: ]+]] = arith.muli %[[V5]], %[[C4_I8]] : i8
// CHECK-NEXT: %[[V7:[^: ]+]] = arith.shrui %[[IN]], %[[V6]] : i8
// CHECK-NEXT: %[[C15_I8:[^: ]+]] = arith.constant 15 : i8
// CHECK-NEXT: %[[V8:[^: ]+]] = arith.andi %[[V7]], %[[C15_I8]] : i8
// CHECK-NEXT: linalg.yield %[[V8]] : i8
// CHECK-NEXT: } -> tensor<2x3x2xi8>
// CHECK-NEXT: %[[COLLAPSED:[^: ]+]] = tensor.collapse_shape %[[V1]] {{\[\[}}0], [1, 2]] : tensor<2x3x2xi8> into tensor<2x6xi8>
// CHECK-NEXT: %[[V2:[^: ]+]] = tensor.empty() : tensor<2x6xi4>
// CHECK-NEXT: %[[V3:[^: ]+]] = linalg.generic {indexing_maps = [#[[MAP2]], #[[MAP2]]], iterator_types = ["parallel", "parallel"]} ins(%[[COLLAPSED]] : tensor<2x6xi8>) outs(%[[V2]] : tensor<2x6xi4>) {
// CHECK-NEXT: ^bb0(%[[IN:[^: ]+]]: i8, %[[OUT:[^: ]+]]: i4):
// CHECK-NEXT: %[[V4:[^: ]+]] = arith.trunci %[[IN]] : i8 to i4
// CHECK-NEXT: linalg.yield %[[V4]] : i4
// CHECK-NEXT: } -> tensor<2x6xi4>
// CHECK-NEXT: return %[[V3]] : tensor<2x6xi4>
func.func @nibbles(%b: tensor<2x3xi8>) -> tensor<2x6xi4> {
  %q = "subquant.unpack"(%b) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x3xi8>) -> tensor<2x6xi4>
  return %q : tensor<2x6xi4>
}
