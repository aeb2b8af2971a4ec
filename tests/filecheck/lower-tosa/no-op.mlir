// RUN: subquant opt %s --passes lower-tosa | filecheck %s

// Nothing of TOSA: nothing is folded, and casts stay.
// CHECK-LABEL: func.func @other(
// CHECK: arith.addi
// CHECK: builtin.unrealized_conversion_cast
func.func @other(%x: tensor<4xi32>) -> tensor<4xi32> {
  %zero = arith.constant dense<0> : tensor<4xi32>
  %0 = arith.addi %x, %zero : tensor<4xi32>
  %1 = builtin.unrealized_conversion_cast %0 : tensor<4xi32> to tensor<4xi32>
  return %1 : tensor<4xi32>
}
