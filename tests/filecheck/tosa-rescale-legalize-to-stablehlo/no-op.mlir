// RUN: subquant opt %s --passes tosa-rescale-legalize-to-stablehlo | filecheck %s

// Other operations of TOSA, and constants that are not those of a rescale.
// CHECK-LABEL: func.func @other(
// CHECK-NEXT: "tosa.const"
// CHECK-NEXT: tosa.add
func.func @other(%x: tensor<4xi32>) -> tensor<4xi32> {
  %c = "tosa.const"() <{values = dense<1> : tensor<4xi32>}> : () -> tensor<4xi32>
  %r = tosa.add %x, %x : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %r : tensor<4xi32>
}
