// RUN: subquant opt %s --passes check-integer-only | filecheck %s

// Reals before the first quantization and after the last dequantization are the host's.
// CHECK-LABEL: func.func @boundary
// CHECK-NEXT: stablehlo.tanh
// CHECK-NEXT: stablehlo.convert
// CHECK-NEXT: stablehlo.add
// CHECK-NEXT: stablehlo.convert
// CHECK-NEXT: stablehlo.tanh
// CHECK-NEXT: return
func.func @boundary(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xi8>
  %2 = stablehlo.add %1, %1 : tensor<4xi8>
  %3 = stablehlo.convert %2 : (tensor<4xi8>) -> tensor<4xf32>
  %4 = stablehlo.tanh %3 : tensor<4xf32>
  return %4 : tensor<4xf32>
}

// The quotient is made from integers and from a real that integers are made of, and none from it.
// CHECK-LABEL: func.func @beside
// CHECK: stablehlo.divide
func.func @beside(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xi8>
  %1 = stablehlo.convert %0 : (tensor<4xi8>) -> tensor<4xf32>
  %2 = stablehlo.divide %1, %x : tensor<4xf32>
  return %2 : tensor<4xf32>
}
