// RUN: subquant opt %s --passes correct-zero-points | filecheck %s

// CHECK-LABEL: func.func @integers(
// CHECK-NEXT: stablehlo.dot_general
// CHECK-NEXT: return
func.func @integers(%x: tensor<2x8xi8>, %w: tensor<8x4xi8>) -> tensor<2x4xi32> {
  %acc = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x8xi8>, tensor<8x4xi8>) -> tensor<2x4xi32>
  return %acc : tensor<2x4xi32>
}
