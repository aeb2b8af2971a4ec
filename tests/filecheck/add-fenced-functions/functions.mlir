// RUN: subquant opt %s --passes add-fenced-functions | filecheck %s

// What users call keeps its signature, and waits.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[X:.+]]: tensor<?x4xi8>, %[[N:.+]]: i32) -> (i32, tensor<?x4xi8>, tensor<4xf32>) attributes {iree.reflection = {subquant.signature = "f"}}
// CHECK: %[[DEVICE:.+]] = "hal.devices.get"(%{{.+}}) : (index) -> !hal.device
// CHECK: %[[DIM:.+]] = tensor.dim %[[X]], %{{.+}} : tensor<?x4xi8>
// CHECK: %[[VIEW:.+]] = "hal.tensor.export"(%[[X]], %[[DIM]]) {source_encoding = tensor<?x4xi8>} : (tensor<?x4xi8>, index) -> !hal.buffer_view
// CHECK: %[[READY:.+]] = "util.null"() : () -> !hal.fence
// CHECK: %[[DONE:.+]] = "hal.fence.create"(%[[DEVICE]]) {flags = 0 : i64} : (!hal.device) -> !hal.fence
// CHECK: %[[R:.+]]:3 = call @f$async(%[[VIEW]], %[[N]], %[[READY]], %[[DONE]])
// CHECK: "hal.fence.await"(%{{.+}}, %[[DONE]]) {flags = 0 : i64} : (i32, !hal.fence) -> i32
// CHECK: %[[EXTENT:.+]] = "hal.buffer_view.dim"(%[[R]]#1) {index = 0 : index} : (!hal.buffer_view) -> index
// CHECK: %[[A:.+]] = "hal.tensor.import"(%[[R]]#1, %[[EXTENT]]) {operandSegmentSizes = array<i32: 1, 1, 0, 0>, target_encoding = tensor<?x4xi8>}
// CHECK: %[[B:.+]] = "hal.tensor.import"(%[[R]]#2) {operandSegmentSizes = array<i32: 1, 0, 0, 0>, target_encoding = tensor<4xf32>}
// CHECK: return %[[R]]#0, %[[A]], %[[B]]

// CHECK-LABEL: func.func private @f$body(
// CHECK: arith.addi
// CHECK: return

// CHECK-LABEL: func.func @f$async(
// CHECK-SAME: %[[X:.+]]: !hal.buffer_view, %[[N:.+]]: i32, %[[READY:.+]]: !hal.fence, %[[DONE:.+]]: !hal.fence) -> (i32, !hal.buffer_view, !hal.buffer_view) attributes {iree.reflection = {iree.abi.model = "coarse-fences"}, no_inline, noinline}
// CHECK: %[[DIM:.+]] = "hal.buffer_view.dim"(%[[X]]) {index = 0 : index} : (!hal.buffer_view) -> index
// CHECK: %[[T:.+]] = "hal.tensor.import"(%[[X]], %[[DIM]], %[[READY]]) {name = "input0", operandSegmentSizes = array<i32: 1, 1, 1, 0>, target_encoding = tensor<?x4xi8>}
// CHECK: %[[R:.+]]:3 = call @f$body(%[[T]], %[[N]])
// Results that are no tensors are there already.
// CHECK: %[[B:.+]]:2 = "hal.tensor.barrier"(%[[R]]#1, %[[R]]#2, %[[DONE]])
// CHECK: %[[EXTENT:.+]] = tensor.dim %[[B]]#0
// CHECK: %[[V0:.+]] = "hal.tensor.export"(%[[B]]#0, %[[EXTENT]]) {name = "output1", source_encoding = tensor<?x4xi8>}
// CHECK: %[[V1:.+]] = "hal.tensor.export"(%[[B]]#1) {name = "output2", source_encoding = tensor<4xf32>}
// CHECK: return %[[R]]#0, %[[V0]], %[[V1]]
func.func @f(%x: tensor<?x4xi8>, %n: i32) -> (i32, tensor<?x4xi8>, tensor<4xf32>) attributes {iree.reflection = {subquant.signature = "f"}} {
  %0 = arith.addi %n, %n : i32
  %1 = arith.constant dense<1.0> : tensor<4xf32>
  return %0, %x, %1 : i32, tensor<?x4xi8>, tensor<4xf32>
}

// A call inside the module waits for nothing.
// CHECK-LABEL: func.func private @g$body(
// CHECK: call @f$body(
// CHECK-LABEL: func.func @g$async(
func.func @g(%x: tensor<?x4xi8>, %n: i32) -> tensor<4xf32> {
  %0:3 = func.call @f(%x, %n) : (tensor<?x4xi8>, i32) -> (i32, tensor<?x4xi8>, tensor<4xf32>)
  return %0#2 : tensor<4xf32>
}
