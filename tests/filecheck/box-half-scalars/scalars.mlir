// RUN: subquant opt %s --passes "box-half-scalars" --split-input-file | filecheck %s

// Arguments are extracted on entry, results packed at each return.
// CHECK-LABEL: func.func @halves(
// CHECK-SAME: %[[X:[^:]+]]: tensor<f16>, %[[Y:[^:]+]]: f32, %[[Z:[^:]+]]: tensor<bf16>) -> (tensor<bf16>, tensor<f16>, f32) attributes {subquant.function_type = (f16, f32, bf16) -> (bf16, f16, f32)} {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[Z]][] : tensor<bf16>
// CHECK-NEXT: %[[EXTRACT2:.+]] = tensor.extract %[[X]][] : tensor<f16>
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[EXTRACT2]], %[[EXTRACT2]] : f16
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[EXTRACT]] : tensor<bf16>
// CHECK-NEXT: %[[ELEMENTS2:.+]] = tensor.from_elements %[[ADDF]] : tensor<f16>
// CHECK-NEXT: return %[[ELEMENTS]], %[[ELEMENTS2]], %[[Y]] : tensor<bf16>, tensor<f16>, f32
func.func @halves(%x: f16, %y: f32, %z: bf16) -> (bf16, f16, f32) {
  %s = arith.addf %x, %x : f16
  return %z, %s, %y : bf16, f16, f32
}

// -----

// Private functions keep their scalars.
// CHECK-LABEL: func.func private @inner(
// CHECK-SAME: %[[X:[^:]+]]: f16) -> f16 {
// CHECK-NEXT: return %[[X]] : f16
// CHECK-LABEL: func.func @calls(
// CHECK-SAME: %[[X:[^:]+]]: tensor<f16>) -> tensor<f16> attributes {subquant.function_type = (f16) -> f16} {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[X]][] : tensor<f16>
// CHECK-NEXT: %[[CALL:.+]] = call @inner(%[[EXTRACT]]) : (f16) -> f16
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[CALL]] : tensor<f16>
// CHECK-NEXT: return %[[ELEMENTS]] : tensor<f16>
func.func private @inner(%x: f16) -> f16 {
  return %x : f16
}
func.func @calls(%x: f16) -> f16 {
  %r = call @inner(%x) : (f16) -> f16
  return %r : f16
}

// -----

// CHECK-LABEL: func.func @blocks(
// CHECK-SAME: %[[C:[^:]+]]: i1, %[[X:[^:]+]]: tensor<f16>, %[[Y:[^:]+]]: tensor<f16>) -> tensor<f16> attributes {subquant.function_type = (i1, f16, f16) -> f16} {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[Y]][] : tensor<f16>
// CHECK-NEXT: %[[EXTRACT2:.+]] = tensor.extract %[[X]][] : tensor<f16>
// CHECK-NEXT: cf.cond_br %[[C]], ^bb1, ^bb2
// CHECK-NEXT: ^bb1:
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[EXTRACT2]] : tensor<f16>
// CHECK-NEXT: return %[[ELEMENTS]] : tensor<f16>
// CHECK-NEXT: ^bb2:
// CHECK-NEXT: %[[ELEMENTS2:.+]] = tensor.from_elements %[[EXTRACT]] : tensor<f16>
// CHECK-NEXT: return %[[ELEMENTS2]] : tensor<f16>
func.func @blocks(%c: i1, %x: f16, %y: f16) -> f16 {
  cf.cond_br %c, ^bb1, ^bb2
^bb1:
  return %x : f16
^bb2:
  return %y : f16
}

// -----

// CHECK-LABEL: func.func @returned_as_given(
// CHECK-SAME: %[[X:[^:]+]]: tensor<f16>) -> tensor<f16> attributes {subquant.function_type = (f16) -> f16} {
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[X]][] : tensor<f16>
// CHECK-NEXT: %[[ELEMENTS:.+]] = tensor.from_elements %[[EXTRACT]] : tensor<f16>
// CHECK-NEXT: return %[[ELEMENTS]] : tensor<f16>
func.func @returned_as_given(%x: f16) -> f16 {
  return %x : f16
}
