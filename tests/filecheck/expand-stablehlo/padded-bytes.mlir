// RUN: subquant opt %s --passes "expand-stablehlo{separate-bytes=true}" | filecheck %s

// CHECK-LABEL: func.func @inside_words
// CHECK: %[[Y:.*]] = stablehlo.abs
// CHECK: %[[Z:.*]] = stablehlo.optimization_barrier %[[Y]] : tensor<2x8xi8>
// CHECK: stablehlo.pad %[[Z]]
func.func @inside_words(%x: tensor<2x8xi8>, %z: tensor<i8>) -> tensor<2x12xi8> {
  %0 = stablehlo.abs %x : tensor<2x8xi8>
  %1 = stablehlo.pad %0, %z, low = [0, 2], high = [0, 2], interior = [0, 0] : (tensor<2x8xi8>, tensor<i8>) -> tensor<2x12xi8>
  return %1 : tensor<2x12xi8>
}

// At words, rows that are no words, i32, and an argument.
// CHECK-LABEL: func.func @left_alone
// CHECK-NOT: optimization_barrier
func.func @left_alone(%x: tensor<2x8xi8>, %y: tensor<2x8xi32>, %z: tensor<i8>, %zero: tensor<i32>) -> (tensor<2x16xi8>, tensor<2x10xi8>, tensor<2x12xi32>, tensor<2x12xi8>) {
  %0 = stablehlo.abs %x : tensor<2x8xi8>
  %1 = stablehlo.pad %0, %z, low = [0, 4], high = [0, 4], interior = [0, 0] : (tensor<2x8xi8>, tensor<i8>) -> tensor<2x16xi8>
  %2 = stablehlo.pad %0, %z, low = [0, 1], high = [0, 1], interior = [0, 0] : (tensor<2x8xi8>, tensor<i8>) -> tensor<2x10xi8>
  %3 = stablehlo.abs %y : tensor<2x8xi32>
  %4 = stablehlo.pad %3, %zero, low = [0, 2], high = [0, 2], interior = [0, 0] : (tensor<2x8xi32>, tensor<i32>) -> tensor<2x12xi32>
  %5 = stablehlo.pad %x, %z, low = [0, 2], high = [0, 2], interior = [0, 0] : (tensor<2x8xi8>, tensor<i8>) -> tensor<2x12xi8>
  return %1, %2, %4, %5 : tensor<2x16xi8>, tensor<2x10xi8>, tensor<2x12xi32>, tensor<2x12xi8>
}
