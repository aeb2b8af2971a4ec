// RUN: subquant opt %s --passes separate-variables | filecheck %s

// The first stays as it is.
// CHECK: "util.global"() {initial_value = dense<0.000000e+00> : tensor<4x8xf16>, is_mutable, sym_name = "keys"
"util.global"() {sym_name = "keys", is_mutable, initial_value = dense<0.0> : tensor<4x8xf16>, type = tensor<4x8xf16>} : () -> ()

// CHECK: "util.global"() {is_mutable, sym_name = "values", type = tensor<4x8xf16>}
// CHECK-NEXT: "util.initializer"() ({
// CHECK: %[[HIDDEN:.+]] = "util.optimization_barrier"(%true)
// CHECK: %[[FIRST:.+]] = arith.constant dense<0.000000e+00> : tensor<4x8xf16>
// CHECK: %[[OTHER:.+]] = arith.constant dense<1.000000e+00> : tensor<4x8xf16>
// CHECK: %[[OWN:.+]] = linalg.generic {{.+}} ins(%[[HIDDEN]], %[[FIRST]], %[[OTHER]]
// CHECK: arith.select
// CHECK: "util.global.store"(%[[OWN]]) {global = @values}
// CHECK: "util.return"()
"util.global"() {sym_name = "values", is_mutable, initial_value = dense<0.0> : tensor<4x8xf16>, type = tensor<4x8xf16>} : () -> ()

// Another value, another type, and what does not change.
// CHECK: "util.global"() {initial_value = dense<1.000000e+00> : tensor<4x8xf16>, is_mutable, sym_name = "ones"
"util.global"() {sym_name = "ones", is_mutable, initial_value = dense<1.0> : tensor<4x8xf16>, type = tensor<4x8xf16>} : () -> ()
// CHECK: "util.global"() {initial_value = dense<0.000000e+00> : tensor<8xf16>, is_mutable, sym_name = "short"
"util.global"() {sym_name = "short", is_mutable, initial_value = dense<0.0> : tensor<8xf16>, type = tensor<8xf16>} : () -> ()
// CHECK: "util.global"() {initial_value = dense<0.000000e+00> : tensor<4x8xf16>, sym_name = "constant"
"util.global"() {sym_name = "constant", initial_value = dense<0.0> : tensor<4x8xf16>, type = tensor<4x8xf16>} : () -> ()

// Numbers that are not all zero are selected instead of zeros.
// CHECK: sym_name = "row"
"util.global"() {sym_name = "row", is_mutable, initial_value = dense<[1, 2]> : tensor<2xi8>, type = tensor<2xi8>} : () -> ()
// CHECK: "util.global"() {is_mutable, sym_name = "other", type = tensor<2xi8>}
// CHECK: arith.constant dense<[1, 2]> : tensor<2xi8>
// CHECK: arith.constant dense<0> : tensor<2xi8>
"util.global"() {sym_name = "other", is_mutable, initial_value = dense<[1, 2]> : tensor<2xi8>, type = tensor<2xi8>} : () -> ()
