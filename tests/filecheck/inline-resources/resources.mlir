// RUN: subquant opt %s --passes inline-resources | filecheck %s

// CHECK-LABEL: func.func @constants(
// CHECK-NEXT: arith.constant dense<[1.000000e+00, -2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: stablehlo.constant dense<[1, -1, 127]> : tensor<3xi8>
// CHECK-NEXT: "tosa.const"() <{values = dense<5> : tensor<2x2xi16>}>
func.func @constants() -> (tensor<2xf32>, tensor<3xi8>, tensor<2x2xi16>) {
  %0 = arith.constant dense_resource<floats> : tensor<2xf32>
  %1 = stablehlo.constant dense_resource<bytes> : tensor<3xi8>
  %2 = "tosa.const"() {values = dense_resource<equal> : tensor<2x2xi16>} : () -> tensor<2x2xi16>
  return %0, %1, %2 : tensor<2xf32>, tensor<3xi8>, tensor<2x2xi16>
}

// CHECK-NOT: dialect_resources
{-#
  dialect_resources: {
    builtin: {
      floats: "0x040000000000803F000000C0",
      bytes: "0x0100000001FF7F",
      equal: "0x020000000500050005000500"
    }
  }
#-}
