// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

// What is read as it is and in another order.
// CHECK-LABEL: func.func @two_orders(
// CHECK: %[[WIDE:.+]] = stablehlo.convert
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[WIDE]])
// CHECK: stablehlo.transpose %[[APART]]
// CHECK: stablehlo.negate %[[WIDE]]
func.func @two_orders(%x: tensor<12x9xi8>) -> (tensor<9x12xi32>, tensor<12x9xi32>) {
  %0 = stablehlo.convert %x : (tensor<12x9xi8>) -> tensor<12x9xi32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<12x9xi32>) -> tensor<9x12xi32>
  %2 = stablehlo.negate %0 : tensor<12x9xi32>
  return %1, %2 : tensor<9x12xi32>, tensor<12x9xi32>
}

// One order only.
// CHECK-LABEL: func.func @one_order(
// CHECK-NOT: _barrier
// CHECK: return
func.func @one_order(%x: tensor<12x9xi8>) -> (tensor<9x12xi32>) {
  %0 = stablehlo.convert %x : (tensor<12x9xi8>) -> tensor<12x9xi32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<12x9xi32>) -> tensor<9x12xi32>
  return %1 : tensor<9x12xi32>
}

// A sum that is not of rows, of what is repeated.
// CHECK-LABEL: func.func @sum_of_broadcast(
// CHECK: %[[WIDE:.+]] = stablehlo.convert
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[WIDE]])
// CHECK: stablehlo.reduce(%[[APART]]
func.func @sum_of_broadcast(%x: tensor<7x4xi8>, %zero: tensor<i32>) -> tensor<4xi32> {
  %0 = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<7x4xi8>) -> tensor<3x7x4xi8>
  %1 = stablehlo.convert %0 : (tensor<3x7x4xi8>) -> tensor<3x7x4xi32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<3x7x4xi32>, tensor<i32>) -> tensor<4xi32>
  return %2 : tensor<4xi32>
}
