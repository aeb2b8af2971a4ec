// RUN: subquant opt %s --passes legalize-constants | filecheck %s

// CHECK-LABEL: func.func @constants(
// CHECK-NEXT: arith.constant dense<[1.000000e+00, -2.000000e+00]> : tensor<2xf32>
// CHECK-NEXT: stablehlo.constant dense<[1, -1, 127]> : tensor<3xi8>
// CHECK-NEXT: arith.constant dense<[false, true, true]> : tensor<3xi1>
// CHECK-NEXT: "tosa.const"() <{values = dense<5> : tensor<2x2xi16>}>
func.func @constants() -> (tensor<2xf32>, tensor<3xi8>, tensor<3xi1>, tensor<2x2xi16>) {
  %0 = arith.constant dense_resource<floats> : tensor<2xf32>
  %1 = stablehlo.constant dense_resource<bytes> : tensor<3xi8>
  %2 = arith.constant dense_resource<booleans> : tensor<3xi1>
  %3 = "tosa.const"() {values = dense_resource<equal> : tensor<2x2xi16>} : () -> tensor<2x2xi16>
  return %0, %1, %2, %3 : tensor<2xf32>, tensor<3xi8>, tensor<3xi1>, tensor<2x2xi16>
}

// CHECK-LABEL: func.func @complex_numbers(
// CHECK-NEXT: %[[RE:.+]] = stablehlo.constant dense<[1.000000e+00, 0x7FC00000]> : tensor<2xf32>
// CHECK-NEXT: %[[IM:.+]] = stablehlo.constant dense<[-0.000000e+00, 1.000000e-01]> : tensor<2xf32>
// CHECK-NEXT: stablehlo.complex %[[RE]], %[[IM]] : tensor<2xcomplex<f32>>
// CHECK-NEXT: stablehlo.constant dense<0.000000e+00> : tensor<3xf64>
// CHECK-NEXT: stablehlo.constant dense<1.000000e+00> : tensor<3xf64>
func.func @complex_numbers() -> (tensor<2xcomplex<f32>>, tensor<3xcomplex<f64>>) {
  %0 = stablehlo.constant dense<[(1.0, -0.0), (0x7FC00000, 0.1)]> : tensor<2xcomplex<f32>>
  %1 = stablehlo.constant dense<(0.0, 1.0)> : tensor<3xcomplex<f64>>
  return %0, %1 : tensor<2xcomplex<f32>>, tensor<3xcomplex<f64>>
}

// CHECK-NOT: dialect_resources
{-#
  dialect_resources: {
    builtin: {
      floats: "0x040000000000803F000000C0",
      bytes: "0x0100000001FF7F",
      booleans: "0x01000000000101",
      equal: "0x020000000500050005000500"
    }
  }
#-}
