// RUN: subquant opt %s --passes check-hand-off | filecheck %s

// Nothing is left, IREE knows its own operations, and nothing can be called from outside.
// CHECK-LABEL: func.func private @private(
// CHECK-SAME: tensor<4xi8>) -> i4 {
// CHECK-LABEL: func.func private @declared(i4) -> tensor<?xf16>
func.func private @private(%x: tensor<4xi8>) -> i4 {
  %y = "util.optimization_barrier"(%x) : (tensor<4xi8>) -> tensor<4xi8>
  %r = arith.constant 1 : i4
  %s = func.call @declared(%r) : (i4) -> tensor<?xf16>
  return %r : i4
}
func.func private @declared(i4) -> tensor<?xf16>
