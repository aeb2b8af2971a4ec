// RUN: subquant opt %s --passes isolate-contraction-operands | filecheck %s

// The sum of each row, and what is made of it and the row.
// CHECK-LABEL: func.func @row_and_sum(
// CHECK: %[[SUM:.+]] = stablehlo.reduce
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SUM]])
// CHECK: stablehlo.broadcast_in_dim %[[APART]]
func.func @row_and_sum(%x: tensor<8x64xf32>, %zero: tensor<f32>) -> (tensor<8x64xf32>, tensor<8xf32>) {
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
  %2 = stablehlo.divide %x, %1 : tensor<8x64xf32>
  return %2, %0 : tensor<8x64xf32>, tensor<8xf32>
}

// One result, whatever it is made of.
// CHECK-LABEL: func.func @softmax(
// CHECK-NOT: _barrier
// CHECK: return
func.func @softmax(%x: tensor<8x64xf32>, %zero: tensor<f32>) -> tensor<8x64xf32> {
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.maximum across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<8x64xf32>
  %3 = stablehlo.exponential %2 : tensor<8x64xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
  %6 = stablehlo.divide %3, %5 : tensor<8x64xf32>
  return %6 : tensor<8x64xf32>
}

// Longer rows that a sum and others read: each invocation would have a copy.
// CHECK-LABEL: func.func @long_softmax(
// CHECK: %[[EXP:.+]] = stablehlo.exponential
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[EXP]])
// CHECK: stablehlo.reduce(%[[APART]]
// CHECK: stablehlo.divide %[[APART]]
func.func @long_softmax(%x: tensor<8x640xf32>, %zero: tensor<f32>) -> tensor<8x640xf32> {
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.maximum across dimensions = [1] : (tensor<8x640xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x640xf32>
  %2 = stablehlo.subtract %x, %1 : tensor<8x640xf32>
  %3 = stablehlo.exponential %2 : tensor<8x640xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x640xf32>, tensor<f32>) -> tensor<8xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<8xf32>) -> tensor<8x640xf32>
  %6 = stablehlo.divide %3, %5 : tensor<8x640xf32>
  return %6 : tensor<8x640xf32>
}

// The result of a function that IREE inlines later.
// CHECK-LABEL: func.func @norm_of_call(
// CHECK: %[[ROWS:.+]] = call @rows
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[ROWS]])
// CHECK: stablehlo.multiply %[[APART]], %[[APART]]
// CHECK: stablehlo.divide %[[APART]]
func.func private @rows(tensor<8x640xf32>) -> tensor<8x640xf32>
func.func @norm_of_call(%x: tensor<8x640xf32>, %zero: tensor<f32>) -> tensor<8x640xf32> {
  %0 = call @rows(%x) : (tensor<8x640xf32>) -> tensor<8x640xf32>
  %1 = stablehlo.multiply %0, %0 : tensor<8x640xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x640xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<8xf32>) -> tensor<8x640xf32>
  %4 = stablehlo.divide %0, %3 : tensor<8x640xf32>
  return %4 : tensor<8x640xf32>
}

// A result that is written into another tensor, and one that is not.
// CHECK-LABEL: func.func @padded(
// CHECK: %[[SUM:.+]] = stablehlo.add
// CHECK: %[[LESS:.+]] = stablehlo.negate %[[SUM]]
// CHECK: %[[APART:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[LESS]])
// CHECK: stablehlo.pad %[[APART]]
// CHECK: return {{.+}}, %[[SUM]]
func.func @padded(%x: tensor<8xi32>, %y: tensor<8xi32>, %zero: tensor<i32>) -> (tensor<10xi32>, tensor<8xi32>) {
  %0 = stablehlo.add %x, %y : tensor<8xi32>
  %1 = stablehlo.negate %0 : tensor<8xi32>
  %2 = stablehlo.pad %1, %zero, low = [1], high = [1], interior = [0] : (tensor<8xi32>, tensor<i32>) -> tensor<10xi32>
  return %2, %0 : tensor<10xi32>, tensor<8xi32>
}
