// RUN: subquant opt %s --passes lower-tosa-variables | filecheck %s

// CHECK: "util.global"() {initial_value = dense<-128> : tensor<1x2xi8>, is_mutable, sym_name = "stream_0/states", sym_visibility = "private", type = tensor<1x2xi8>} : () -> ()
tosa.variable @"stream_0/states" = dense<-128> : tensor<1x2xi8>
// Without a first value: zeros.
// CHECK: "util.global"() {initial_value = dense<0.000000e+00> : tensor<3xf32>, is_mutable, sym_name = "last"
tosa.variable @last : tensor<3xf32>

// CHECK-LABEL: func.func @step(
// CHECK-SAME: %[[X:[^:]+]]: tensor<1x2xi8>) -> (tensor<1x2xi8>, tensor<3xf32>) {
// CHECK-NEXT: %[[READ:.+]] = "util.global.load"() {global = @"stream_0/states"} : () -> tensor<1x2xi8>
// CHECK-NEXT: "util.global.store"(%[[X]]) {global = @"stream_0/states"} : (tensor<1x2xi8>) -> ()
// CHECK-NEXT: %[[LAST:.+]] = "util.global.load"() {global = @last} : () -> tensor<3xf32>
// CHECK-NEXT: return %[[READ]], %[[LAST]] : tensor<1x2xi8>, tensor<3xf32>
func.func @step(%x: tensor<1x2xi8>) -> (tensor<1x2xi8>, tensor<3xf32>) {
  %0 = tosa.variable_read @"stream_0/states" : tensor<1x2xi8>
  tosa.variable_write @"stream_0/states", %x : tensor<1x2xi8>
  %1 = tosa.variable_read @last : tensor<3xf32>
  return %0, %1 : tensor<1x2xi8>, tensor<3xf32>
}
