// RUN: subquant opt %s --passes lower-unranked-tensors | filecheck %s

// Shapes of ranked tensors are IREE's to lower, or check-hand-off's to refuse.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[X:[^:]+]]: tensor<?x4xf32>) -> tensor<4x?xf32> {
// CHECK-NEXT: %[[S:.+]] = shape.shape_of %[[X]] : tensor<?x4xf32> -> tensor<2xindex>
// CHECK: %[[R:.+]] = tensor.reshape %[[X]](%{{.+}}) : (tensor<?x4xf32>, tensor<2xindex>) -> tensor<4x?xf32>
// CHECK-NEXT: return %[[R]] : tensor<4x?xf32>
func.func @f(%x: tensor<?x4xf32>) -> tensor<4x?xf32> {
  %s = shape.shape_of %x : tensor<?x4xf32> -> tensor<2xindex>
  %c0 = arith.constant 0 : index
  %n = tensor.extract %s[%c0] : tensor<2xindex>
  %c4 = arith.constant 4 : index
  %d = tensor.from_elements %c4, %n : tensor<2xindex>
  %r = tensor.reshape %x(%d) : (tensor<?x4xf32>, tensor<2xindex>) -> tensor<4x?xf32>
  return %r : tensor<4x?xf32>
}
