// RUN: subquant opt %s --passes lower-tosa-rescale | filecheck %s

// CHECK-LABEL: func.func @none(
// CHECK: tosa.mul
func.func @none(%x: tensor<4xi32>) -> tensor<4xi32> {
  %shift = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %0 = tosa.mul %x, %x, %shift : (tensor<4xi32>, tensor<4xi32>, tensor<1xi8>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
