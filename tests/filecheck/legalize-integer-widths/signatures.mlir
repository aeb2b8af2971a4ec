// RUN: subquant opt %s --passes "legalize-integer-widths" --split-input-file | filecheck %s

// Each width gets the next container; i1 stays.
// CHECK-LABEL: func.func @signature(
// CHECK-SAME: %[[X:[^:]+]]: tensor<4xi8>, %[[Y:[^:]+]]: i16, %[[Z:[^:]+]]: tensor<*xi8>, %[[B:[^:]+]]: i1, %[[W:[^:]+]]: i8, %[[V:[^:]+]]: i64) -> (tensor<4xi8>, i16) attributes {subquant.function_type = (tensor<4xi4>, i12, tensor<*xi2>, i1, i8, i33) -> (tensor<4xi4>, i12)} {
// CHECK-NEXT: return %[[X]], %[[Y]] : tensor<4xi8>, i16
func.func @signature(%x: tensor<4xi4>, %y: i12, %z: tensor<*xi2>, %b: i1, %w: i8, %v: i33) -> (tensor<4xi4>, i12) {
  return %x, %y : tensor<4xi4>, i12
}

// -----

// Private functions do not record their signature.
// CHECK-LABEL: func.func private @inner(
// CHECK-SAME: %[[X:[^:]+]]: i8) -> i8 {
// CHECK-NEXT: return %[[X]] : i8
func.func private @inner(%x: i3) -> i3 {
  return %x : i3
}

// -----

// A signature that was recorded before is kept.
// CHECK-LABEL: func.func @recorded(
// CHECK-SAME: %[[X:[^:]+]]: i8) -> i8 attributes {subquant.function_type = (!quant.uniform<i4:f32, 2.000000e+00>) -> !quant.uniform<i4:f32, 2.000000e+00>} {
// CHECK-NEXT: return %[[X]] : i8
func.func @recorded(%x: i4) -> i4 attributes {subquant.function_type = (!quant.uniform<i4:f32, 2.0>) -> !quant.uniform<i4:f32, 2.0>} {
  return %x : i4
}

// -----

// What nothing in the module computes: declarations, and variables of IREE's.
// CHECK: util.global
// CHECK-SAME: initial_value = dense<[1, -2]> : tensor<2xi8>
// CHECK-SAME: type = tensor<2xi8>
// CHECK-LABEL: func.func private @declared(tensor<3xi8>) -> i16
"util.global"() <{sym_name = "variable", type = tensor<2xi4>, initial_value = dense<[1, -2]> : tensor<2xi4>, is_mutable}> : () -> ()
func.func private @declared(tensor<3xi4>) -> i12
