// RUN: subquant opt %s --passes legalize-torch | filecheck %s

// Nothing of torch: nothing is folded.
// CHECK-LABEL: func.func @other(
// CHECK: stablehlo.convert
func.func @other() -> tensor<4xi32> {
  %c = stablehlo.constant dense<3> : tensor<4xi8>
  %0 = stablehlo.convert %c : (tensor<4xi8>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
