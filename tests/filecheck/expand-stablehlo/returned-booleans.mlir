// RUN: subquant opt %s --passes "expand-stablehlo{separate-booleans=true}" | filecheck %s

// CHECK-LABEL: func.func @behind_a_sum
// CHECK: %[[T:.*]] = stablehlo.compare
// CHECK-NEXT: %[[U:.*]] = "iree_tensor_ext.compute_barrier.start"(%[[T]])
// CHECK-NEXT: %[[I:.*]] = stablehlo.convert %[[U]] : (tensor<3x4xi1>) -> tensor<3x4xi32>
// CHECK-NEXT: %[[B:.*]] = stablehlo.convert %[[I]] : (tensor<3x4xi32>) -> tensor<3x4xi8>
// CHECK-NEXT: return %[[T]], %[[B]]
func.func @behind_a_sum(%x: tensor<3x2xf32>, %w: tensor<2x4xf32>, %y: tensor<3x4xf32>) -> (tensor<3x4xi1>, tensor<3x4xi8>) {
  %s = stablehlo.dot %x, %w : (tensor<3x2xf32>, tensor<2x4xf32>) -> tensor<3x4xf32>
  %t = stablehlo.compare GT, %s, %y : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xi1>
  %i = stablehlo.convert %t : (tensor<3x4xi1>) -> tensor<3x4xi32>
  %b = stablehlo.convert %i : (tensor<3x4xi32>) -> tensor<3x4xi8>
  return %t, %b : tensor<3x4xi1>, tensor<3x4xi8>
}

// CHECK-LABEL: func.func @behind_none
// CHECK-NOT: iree_tensor_ext
func.func @behind_none(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xi1>, tensor<4xi8>) {
  %t = stablehlo.compare GT, %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %b = stablehlo.convert %t : (tensor<4xi1>) -> tensor<4xi8>
  return %t, %b : tensor<4xi1>, tensor<4xi8>
}

// CHECK-LABEL: func.func @of_more_bits
// CHECK-NOT: iree_tensor_ext
func.func @of_more_bits(%x: tensor<4x2xf32>, %w: tensor<2xf32>, %y: tensor<4xf32>) -> (tensor<4xi1>, tensor<4xi16>) {
  %s = stablehlo.dot %x, %w : (tensor<4x2xf32>, tensor<2xf32>) -> tensor<4xf32>
  %t = stablehlo.compare GT, %s, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %b = stablehlo.convert %t : (tensor<4xi1>) -> tensor<4xi16>
  return %t, %b : tensor<4xi1>, tensor<4xi16>
}
