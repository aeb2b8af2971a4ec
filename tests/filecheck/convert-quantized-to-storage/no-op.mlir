// RUN: subquant opt %s --passes convert-quantized-to-storage | filecheck %s

// Without quantized types no signature is recorded.
// CHECK-LABEL: func.func @f(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> {
// CHECK-NEXT: %[[SUM:.+]] = arith.addi %[[X]], %[[X]] : tensor<4xi8>
// CHECK-NEXT: "test.use"(%[[SUM]]) : (tensor<4xi8>) -> ()
func.func @f(%x: tensor<4xi8>) -> tensor<4xi8> {
  %r = arith.addi %x, %x : tensor<4xi8>
  "test.use"(%r) : (tensor<4xi8>) -> ()
  return %r : tensor<4xi8>
}
