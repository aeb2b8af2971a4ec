// RUN: subquant opt %s --passes "convert-quantized-to-storage" --split-input-file | filecheck %s

// Private functions and declarations change with their callers; only the public one records.
// CHECK-LABEL: func.func private @helper(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> {
// CHECK-NEXT: return %[[Q]] : tensor<4xi8>
// CHECK-LABEL: func.func private @elsewhere(
// CHECK-SAME: tensor<4xi8>) -> tensor<4xi8>
// CHECK-LABEL: func.func @calls(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> attributes {subquant.function_type = (tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>} {
// CHECK-NEXT: %[[CALL:.+]] = call @helper(%[[Q]]) : (tensor<4xi8>) -> tensor<4xi8>
// CHECK-NEXT: %[[CALL2:.+]] = call @elsewhere(%[[CALL]]) : (tensor<4xi8>) -> tensor<4xi8>
// CHECK-NEXT: return %[[CALL2]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func private @helper(%q: tensor<4x!q>) -> tensor<4x!q> {
  return %q : tensor<4x!q>
}
func.func private @elsewhere(tensor<4x!q>) -> tensor<4x!q>
func.func @calls(%q: tensor<4x!q>) -> tensor<4x!q> {
  %a = call @helper(%q) : (tensor<4x!q>) -> tensor<4x!q>
  %b = call @elsewhere(%a) : (tensor<4x!q>) -> tensor<4x!q>
  return %b : tensor<4x!q>
}
