// RUN: subquant opt %s --passes verify-quantization | filecheck %s

// Nothing is quantized.
// CHECK-LABEL: func.func @f(
// CHECK-NEXT: %[[SUM:.+]] = arith.addi %[[X:.+]], %[[X]] : tensor<4xi8>
// CHECK-NEXT: return %[[SUM]] : tensor<4xi8>
func.func @f(%x: tensor<4xi8>) -> tensor<4xi8> {
  %r = arith.addi %x, %x : tensor<4xi8>
  return %r : tensor<4xi8>
}
