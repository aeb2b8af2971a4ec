// RUN: subquant opt %s --passes raise-attention | filecheck %s

// CHECK-LABEL: func.func @products(
// CHECK-NEXT: stablehlo.dot_general
// CHECK-NEXT: return
func.func @products(%x: tensor<2x4x8xf32>, %w: tensor<2x8x3xf32>) -> tensor<2x4x3xf32> {
  %0 = stablehlo.dot_general %x, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x4x8xf32>, tensor<2x8x3xf32>) -> tensor<2x4x3xf32>
  return %0 : tensor<2x4x3xf32>
}
