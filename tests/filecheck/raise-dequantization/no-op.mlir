// RUN: subquant opt %s --passes raise-dequantization | filecheck %s

// Integers of 32 bits are sums or positions; a conversion alone dequantizes nothing.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: subquant
func.func @others(%a: tensor<4x8xi32>, %m: tensor<4x8xi8>, %s: tensor<f32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = stablehlo.convert %a : (tensor<4x8xi32>) -> tensor<4x8xf32>
  %1 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4x8xf32>
  %3 = stablehlo.convert %m : (tensor<4x8xi8>) -> tensor<4x8xf32>
  return %2, %3 : tensor<4x8xf32>, tensor<4x8xf32>
}
