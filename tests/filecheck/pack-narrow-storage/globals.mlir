// RUN: subquant opt %s --passes pack-narrow-storage --split-input-file | filecheck %s

// A parameter's file has the bytes.
// CHECK: "util.global"() {initial_value = #flow.parameter.named<"model"::"w"> : tensor<6xi8>, sym_name = "w", sym_visibility = "private", type = tensor<6xi8>} : () -> ()
// CHECK-LABEL: func.func @parameter(
// CHECK-SAME: ) -> tensor<2x8xi3> {
// CHECK-NEXT: %[[V0:[^: ]+]] = "util.global.load"() {global = @w} : () -> tensor<6xi8>
// CHECK-NEXT: %[[V1:[^: ]+]] = stablehlo.slice %[[V0]] [0:4] : (tensor<6xi8>) -> tensor<4xi8>
// CHECK-NEXT: %[[V2:[^: ]+]] = stablehlo.reshape %[[V1]] : (tensor<4xi8>) -> tensor<2x2xi8>
// CHECK-NEXT: %[[V3:[^: ]+]] = stablehlo.slice %[[V0]] [4:6] : (tensor<6xi8>) -> tensor<2xi8>
// CHECK-NEXT: %[[V4:[^: ]+]] = stablehlo.reshape %[[V3]] : (tensor<2xi8>) -> tensor<2x1xi8>
// CHECK-NEXT: %[[V5:[^: ]+]] = "subquant.unpack"(%[[V2]], %[[V4]]) {bits = array<i64: 2, 1>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2x2xi8>, tensor<2x1xi8>) -> tensor<2x8xi3>
// CHECK-NEXT: return %[[V5]] : tensor<2x8xi3>
"util.global"() {initial_value = #flow.parameter.named<"model"::"w"> : tensor<2x8xi3>, sym_name = "w", sym_visibility = "private", type = tensor<2x8xi3>} : () -> ()
func.func @parameter() -> tensor<2x8xi3> {
  %q = "util.global.load"() {global = @w} : () -> tensor<2x8xi3>
  return %q : tensor<2x8xi3>
}

// -----

// CHECK: "util.global"() {initial_value = dense<[33, 127]> : tensor<2xi8>, sym_name = "w", sym_visibility = "private", type = tensor<2xi8>} : () -> ()
// CHECK-LABEL: func.func @constant(
// CHECK-SAME: ) -> tensor<4xi4> {
// CHECK-NEXT: %[[V0:[^: ]+]] = "util.global.load"() {global = @w} : () -> tensor<2xi8>
// CHECK-NEXT: %[[V1:[^: ]+]] = "subquant.unpack"(%[[V0]]) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2xi8>) -> tensor<4xi4>
// CHECK-NEXT: return %[[V1]] : tensor<4xi4>
"util.global"() {initial_value = dense<[1, 2, -1, 7]> : tensor<4xi4>, sym_name = "w", sym_visibility = "private", type = tensor<4xi4>} : () -> ()
func.func @constant() -> tensor<4xi4> {
  %q = "util.global.load"() {global = @w} : () -> tensor<4xi4>
  return %q : tensor<4xi4>
}
