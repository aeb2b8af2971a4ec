// RUN: subquant opt %s --passes lower-tosa-variables | filecheck %s

// Globals that are there, and TOSA without variables.
// CHECK-LABEL: func.func @none(
// CHECK: "util.global.load"() {global = @kept}
// CHECK: tosa.add
"util.global"() {sym_name = "kept", sym_visibility = "private", type = tensor<4xi32>, initial_value = dense<1> : tensor<4xi32>} : () -> ()
func.func @none(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "util.global.load"() {global = @kept} : () -> tensor<4xi32>
  %1 = tosa.add %x, %0 : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %1 : tensor<4xi32>
}
