// RUN: subquant opt %s --passes "expand-stablehlo{round_by_addition=true}" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[A:.+]] = stablehlo.abs %arg0 : tensor<8xf32>
// CHECK: %[[SUM:.+]] = stablehlo.add %[[A]], %{{.+}} : tensor<8xf32>
// CHECK: %[[INTEGRAL:.+]] = stablehlo.subtract %[[SUM]], %{{.+}} : tensor<8xf32>
// CHECK: stablehlo.select %{{.+}}, %[[INTEGRAL]], %[[A]]
// CHECK-NOT: round_nearest_even
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %r = stablehlo.round_nearest_even %x : tensor<8xf32>
  return %r : tensor<8xf32>
}

// Other types stay.
// CHECK-LABEL: func.func @wide
// CHECK: stablehlo.round_nearest_even
func.func @wide(%x: tensor<8xf64>) -> tensor<8xf64> {
  %r = stablehlo.round_nearest_even %x : tensor<8xf64>
  return %r : tensor<8xf64>
}
