// RUN: subquant opt %s --passes legalize-quant-to-math | filecheck %s

// Operations on integers and reals are left alone.
// CHECK-LABEL: func.func @plain
// CHECK-NEXT: stablehlo.add %arg0, %arg0 : tensor<4xi8>
// CHECK-NEXT: stablehlo.tanh %arg1 : tensor<4xf32>
// CHECK-NEXT: return
func.func @plain(%x: tensor<4xi8>, %y: tensor<4xf32>) {
  %a = stablehlo.add %x, %x : tensor<4xi8>
  %b = stablehlo.tanh %y : tensor<4xf32>
  return
}
