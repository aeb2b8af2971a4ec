// RUN: subquant opt %s --passes "inline{default-pipeline=},isolate-contraction-operands" | filecheck %s

// IREE writes a function where it is called, and takes what is computed twice for one: then other
// threads read it than those of the sum.

// CHECK-NOT: @sums
// CHECK-LABEL: func.func @main
// CHECK: %[[Y:.+]] = stablehlo.multiply %arg0, %arg0
// CHECK-NOT: stablehlo.multiply
// CHECK: %[[BEHIND:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[Y]])
// CHECK: %[[S:.+]] = stablehlo.reduce(%[[BEHIND]] init: %{{.+}})
// CHECK: %[[ALONE:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[S]])
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[ALONE]]
// CHECK: stablehlo.subtract %[[Y]], %[[B]]
func.func private @sums(%x: tensor<33x17xf32>) -> tensor<17xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.multiply %x, %x : tensor<33x17xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<33x17xf32>, tensor<f32>) -> tensor<17xf32>
  return %s : tensor<17xf32>
}
func.func @main(%x: tensor<33x17xf32>) -> tensor<33x17xf32> {
  %y = stablehlo.multiply %x, %x : tensor<33x17xf32>
  %s = call @sums(%x) : (tensor<33x17xf32>) -> tensor<17xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<17xf32>) -> tensor<33x17xf32>
  %r = stablehlo.subtract %y, %b : tensor<33x17xf32>
  return %r : tensor<33x17xf32>
}
