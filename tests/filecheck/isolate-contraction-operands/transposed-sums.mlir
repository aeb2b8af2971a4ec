// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

// A row sum that is read along the first axes, and then moved to others by a transposition.
// CHECK-LABEL: func.func @transposed(
// CHECK: %[[SUM:.+]] = stablehlo.reduce
// CHECK: %[[BARRIER:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SUM]])
// CHECK: stablehlo.broadcast_in_dim %[[BARRIER]]
// CHECK: stablehlo.transpose
func.func @transposed(%x: tensor<2x5x5xi32>, %y: tensor<2x5x8xi32>, %zero: tensor<i32>) -> tensor<5x2x8xi32> {
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x5x5xi32>, tensor<i32>) -> tensor<2x5xi32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x5xi32>) -> tensor<2x5x8xi32>
  %2 = stablehlo.subtract %y, %1 : tensor<2x5x8xi32>
  %3 = stablehlo.transpose %2, dims = [1, 0, 2] : (tensor<2x5x8xi32>) -> tensor<5x2x8xi32>
  return %3 : tensor<5x2x8xi32>
}

// The transposition leaves the first axes, those of the sum, where they are.
// CHECK-LABEL: func.func @in_place(
// CHECK-NOT: _barrier
func.func @in_place(%x: tensor<2x5x5xi32>, %y: tensor<2x5x8x3xi32>, %zero: tensor<i32>) -> tensor<2x5x3x8xi32> {
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x5x5xi32>, tensor<i32>) -> tensor<2x5xi32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x5xi32>) -> tensor<2x5x8x3xi32>
  %2 = stablehlo.subtract %y, %1 : tensor<2x5x8x3xi32>
  %3 = stablehlo.transpose %2, dims = [0, 1, 3, 2] : (tensor<2x5x8x3xi32>) -> tensor<2x5x3x8xi32>
  return %3 : tensor<2x5x3x8xi32>
}
