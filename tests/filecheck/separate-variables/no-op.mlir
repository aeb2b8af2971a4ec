// RUN: subquant opt %s --passes separate-variables | filecheck %s

// CHECK: "util.global"() {initial_value = dense<0> : tensor<4xi8>, is_mutable, sym_name = "state"
// CHECK-NOT: util.initializer
// CHECK: "util.global"() {is_mutable, sym_name = "unset"
"util.global"() {sym_name = "state", is_mutable, initial_value = dense<0> : tensor<4xi8>, type = tensor<4xi8>} : () -> ()
"util.global"() {sym_name = "unset", is_mutable, type = tensor<4xi8>} : () -> ()
"util.global"() {sym_name = "count", is_mutable, initial_value = 0 : i32, type = i32} : () -> ()
"util.global"() {sym_name = "calls", is_mutable, initial_value = 0 : i32, type = i32} : () -> ()

// Complex numbers, which the bindings do not read.
"util.global"() {sym_name = "plane", is_mutable, initial_value = dense<(0.0, 0.0)> : tensor<3xcomplex<f32>>, type = tensor<3xcomplex<f32>>} : () -> ()
"util.global"() {sym_name = "plane_2", is_mutable, initial_value = dense<(0.0, 0.0)> : tensor<3xcomplex<f32>>, type = tensor<3xcomplex<f32>>} : () -> ()
