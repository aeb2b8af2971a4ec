// RUN: subquant opt %s --passes lower-attention | filecheck %s

// CHECK-LABEL: func.func @products(
// CHECK-NEXT: stablehlo.dot_general
// CHECK-NEXT: return
func.func @products(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}
