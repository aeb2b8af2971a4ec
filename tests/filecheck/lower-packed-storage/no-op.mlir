// RUN: subquant opt %s --passes lower-packed-storage | filecheck %s

// Integers that are not packed.
// CHECK-LABEL: func.func @whole(
// CHECK-NOT: linalg.generic
func.func @whole(%q: tensor<4x8xi4>) -> tensor<4x8xi4> {
  return %q : tensor<4x8xi4>
}
