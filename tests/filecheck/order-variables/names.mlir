// RUN: subquant opt %s --passes order-variables | filecheck %s

// CHECK: sym_name = "1.state_10"
"util.global"() {sym_name = "state_10", is_mutable, initial_value = dense<0> : tensor<4xi8>, type = tensor<4xi8>} : () -> ()
// CHECK: sym_name = "0.state_9"
"util.global"() {sym_name = "state_9", is_mutable, type = tensor<4xi8>} : () -> ()
// Variables that no function assigns, and constants, keep their names.
// CHECK: sym_name = "initial"
"util.global"() {sym_name = "initial", is_mutable, type = tensor<4xi8>} : () -> ()
// CHECK: sym_name = "weight"
"util.global"() {sym_name = "weight", initial_value = dense<1> : tensor<4xi8>, type = tensor<4xi8>} : () -> ()

// CHECK: "util.initializer"
// CHECK: "util.global.store"({{.+}}) {global = @initial}
// CHECK: "util.global.store"({{.+}}) {global = @"0.state_9"}
"util.initializer"() ({
  %0 = arith.constant dense<2> : tensor<4xi8>
  "util.global.store"(%0) {global = @initial} : (tensor<4xi8>) -> ()
  "util.global.store"(%0) {global = @state_9} : (tensor<4xi8>) -> ()
  "util.return"() : () -> ()
}) {function_type = () -> ()} : () -> ()

// CHECK-LABEL: func.func @step(
// CHECK: "util.global.load"() {global = @initial}
// CHECK: "util.global.load"() {global = @weight}
// CHECK: "util.global.load"() {global = @"1.state_10"}
// CHECK: "util.global.store"({{.+}}) {global = @"0.state_9"}
// CHECK: "util.global.store"({{.+}}) {global = @"1.state_10"}
func.func @step(%x: tensor<4xi8>) -> (tensor<4xi8>, tensor<4xi8>, tensor<4xi8>) {
  %0 = "util.global.load"() {global = @initial} : () -> tensor<4xi8>
  %1 = "util.global.load"() {global = @weight} : () -> tensor<4xi8>
  %2 = "util.global.load"() {global = @state_10} : () -> tensor<4xi8>
  "util.global.store"(%x) {global = @state_9} : (tensor<4xi8>) -> ()
  "util.global.store"(%1) {global = @state_10} : (tensor<4xi8>) -> ()
  return %0, %1, %2 : tensor<4xi8>, tensor<4xi8>, tensor<4xi8>
}
