// RUN: subquant opt %s --passes legalize-constants | filecheck %s

// Elements that are written, also sparse ones.
// CHECK-LABEL: func.func @none(
// CHECK-NEXT: arith.constant dense<1> : tensor<2xi8>
// CHECK-NEXT: arith.constant sparse<0, 1.000000e+00> : tensor<4xf32>
func.func @none() -> (tensor<2xi8>, tensor<4xf32>) {
  %0 = arith.constant dense<1> : tensor<2xi8>
  %1 = arith.constant sparse<[[0]], [1.0]> : tensor<4xf32>
  return %0, %1 : tensor<2xi8>, tensor<4xf32>
}
