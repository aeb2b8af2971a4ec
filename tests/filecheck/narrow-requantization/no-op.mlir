// RUN: subquant opt %s --passes narrow-requantization | filecheck %s

// CHECK-LABEL: func.func @integers(
// CHECK-NEXT: stablehlo.add
// CHECK-NEXT: return
func.func @integers(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = stablehlo.add %x, %x : tensor<4xi32>
  return %0 : tensor<4xi32>
}
