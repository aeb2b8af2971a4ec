// RUN: subquant opt %s --passes order-variables | filecheck %s

// The names have the order of the assignments already.
// CHECK: sym_name = "keys"
"util.global"() {sym_name = "keys", is_mutable, initial_value = dense<0> : tensor<4xi8>, type = tensor<4xi8>} : () -> ()
// CHECK: sym_name = "values"
"util.global"() {sym_name = "values", is_mutable, initial_value = dense<0> : tensor<4xi8>, type = tensor<4xi8>} : () -> ()

// CHECK-LABEL: func.func @write(
// CHECK: "util.global.store"(%{{.+}}) {global = @keys}
// CHECK: "util.global.store"(%{{.+}}) {global = @values}
func.func @write(%x: tensor<4xi8>) {
  "util.global.store"(%x) {global = @keys} : (tensor<4xi8>) -> ()
  "util.global.store"(%x) {global = @values} : (tensor<4xi8>) -> ()
  return
}
