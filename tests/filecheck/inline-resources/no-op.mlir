// RUN: subquant opt %s --passes inline-resources | filecheck %s

// Elements that are written, also sparse ones, and a resource of fewer than 8 bits.
// CHECK-LABEL: func.func @none(
// CHECK-NEXT: arith.constant dense<1> : tensor<2xi8>
// CHECK-NEXT: arith.constant sparse<0, 1.000000e+00> : tensor<4xf32>
// CHECK-NEXT: arith.constant dense_resource<narrow> : tensor<2xi4>
func.func @none() -> (tensor<2xi8>, tensor<4xf32>, tensor<2xi4>) {
  %0 = arith.constant dense<1> : tensor<2xi8>
  %1 = arith.constant sparse<[[0]], [1.0]> : tensor<4xf32>
  %2 = arith.constant dense_resource<narrow> : tensor<2xi4>
  return %0, %1, %2 : tensor<2xi8>, tensor<4xf32>, tensor<2xi4>
}

{-#
  dialect_resources: {
    builtin: {
      narrow: "0x0100000001FF"
    }
  }
#-}
