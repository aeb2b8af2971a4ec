// RUN: subquant opt %s --passes "convert-quantized-to-storage" --split-input-file | filecheck %s

// Storage casts go, and the signature that was written is kept for the runtime.
// CHECK-LABEL: func.func @casts(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4xi8>) -> tensor<4xi8> attributes {subquant.function_type = (tensor<4x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<4xi8>} {
// CHECK-NEXT: return %[[Q]] : tensor<4xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @casts(%q: tensor<4x!q>) -> tensor<4xi8> {
  %s = quant.scast %q : tensor<4x!q> to tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

// Sub-channel types, scalars and unranked tensors; the storage keeps its width.
// CHECK-LABEL: func.func @moves(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<2x4xi4>, %[[I:[^:]+]]: index) -> (tensor<?x4xi4>, i3, tensor<*xi16>) attributes {subquant.function_type = (tensor<2x4x!quant.uniform<u4:f32:{1:2}, {{.*}}>>, index) -> (tensor<?x4x!quant.uniform<u4:f32:{1:2}, {{.*}}>>, !quant.uniform<i3:f32, 5.000000e-01>, tensor<*x!quant.uniform<i16:f32, 5.000000e-01>>)} {
// CHECK-NEXT: %[[CAST:.+]] = tensor.cast %[[Q]] : tensor<2x4xi4> to tensor<?x4xi4>
// CHECK-NEXT: %[[MAKE:.+]]:2 = "test.make"() : () -> (i3, tensor<*xi16>)
// CHECK-NEXT: return %[[CAST]], %[[MAKE]]#0, %[[MAKE]]#1 : tensor<?x4xi4>, i3, tensor<*xi16>
!sub = !quant.uniform<u4:f32:{1:2}, {{1.0:1, 2.0:2}}>
func.func @moves(%q: tensor<2x4x!sub>, %i: index) -> (tensor<?x4x!sub>, !quant.uniform<i3:f32, 0.5>, tensor<*x!quant.uniform<i16:f32, 0.5>>) {
  %d = tensor.cast %q : tensor<2x4x!sub> to tensor<?x4x!sub>
  %s, %u = "test.make"() : () -> (i3, tensor<*xi16>)
  %p = quant.scast %s : i3 to !quant.uniform<i3:f32, 0.5>
  %v = quant.scast %u : tensor<*xi16> to tensor<*x!quant.uniform<i16:f32, 0.5>>
  return %d, %p, %v : tensor<?x4x!sub>, !quant.uniform<i3:f32, 0.5>, tensor<*x!quant.uniform<i16:f32, 0.5>>
}

// -----

// CHECK-LABEL: func.func @subquant_casts(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<5xi8>) -> tensor<5xi8> attributes {subquant.function_type = (tensor<5x!quant.uniform<i8:f32, 2.000000e+00>>) -> tensor<5x!quant.uniform<i8:f32, 2.000000e+00>>} {
// CHECK-NEXT: return %[[Q]] : tensor<5xi8>
!q = !quant.uniform<i8:f32, 2.0>
func.func @subquant_casts(%q: tensor<5x!q>) -> tensor<5x!q> {
  %s = "subquant.scast"(%q) : (tensor<5x!q>) -> tensor<5xi8>
  %r = "subquant.scast"(%s) : (tensor<5xi8>) -> tensor<5x!q>
  return %r : tensor<5x!q>
}

// -----

// CHECK-LABEL: func.func @slices(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x6xi8>, %[[I:[^:]+]]: index) -> (tensor<4x2xi8>, tensor<24xi8>, i8) attributes {subquant.function_type = (tensor<4x6x!quant.uniform<i8:f32, 2.000000e+00>>, index) -> (tensor<4x2x!quant.uniform<i8:f32, 2.000000e+00>>, tensor<24x!quant.uniform<i8:f32, 2.000000e+00>>, !quant.uniform<i8:f32, 2.000000e+00>)} {
// CHECK-NEXT: %[[EXTRACT_SLICE:.+]] = tensor.extract_slice %[[Q]][0, 2] [4, 2] [1, 1] : tensor<4x6xi8> to tensor<4x2xi8>
// CHECK-NEXT: %[[COLLAPSED:.+]] = tensor.collapse_shape %[[Q]] {{\[\[}}0, 1]] : tensor<4x6xi8> into tensor<24xi8>
// CHECK-NEXT: %[[EXTRACT:.+]] = tensor.extract %[[Q]][%[[I]], %[[I]]] : tensor<4x6xi8>
// CHECK-NEXT: return %[[EXTRACT_SLICE]], %[[COLLAPSED]], %[[EXTRACT]] : tensor<4x2xi8>, tensor<24xi8>, i8
!q = !quant.uniform<i8:f32, 2.0>
func.func @slices(%q: tensor<4x6x!q>, %i: index) -> (tensor<4x2x!q>, tensor<24x!q>, !q) {
  %s = tensor.extract_slice %q[0, 2] [4, 2] [1, 1] : tensor<4x6x!q> to tensor<4x2x!q>
  %c = tensor.collapse_shape %q [[0, 1]] : tensor<4x6x!q> into tensor<24x!q>
  %e = tensor.extract %q[%i, %i] : tensor<4x6x!q>
  return %s, %c, %e : tensor<4x2x!q>, tensor<24x!q>, !q
}

// -----

// Slices and concatenations that keep each quantized dimension whole keep the scales.
// CHECK-LABEL: func.func @whole_axes(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x2xi8>) -> tensor<6x2xi8> attributes {subquant.function_type = (tensor<4x2x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>) -> tensor<6x2x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00}>>} {
// CHECK-NEXT: %[[EXTRACT_SLICE:.+]] = tensor.extract_slice %[[Q]][1, 0] [2, 2] [1, 1] : tensor<4x2xi8> to tensor<2x2xi8>
// CHECK-NEXT: %[[CONCAT:.+]] = tensor.concat dim(0) %[[Q]], %[[EXTRACT_SLICE]] : (tensor<4x2xi8>, tensor<2x2xi8>) -> tensor<6x2xi8>
// CHECK-NEXT: return %[[CONCAT]] : tensor<6x2xi8>
!q = !quant.uniform<i8:f32:1, {1.0, 2.0}>
func.func @whole_axes(%q: tensor<4x2x!q>) -> tensor<6x2x!q> {
  %s = tensor.extract_slice %q[1, 0] [2, 2] [1, 1] : tensor<4x2x!q> to tensor<2x2x!q>
  %c = tensor.concat dim(0) %q, %s : (tensor<4x2x!q>, tensor<2x2x!q>) -> tensor<6x2x!q>
  return %c : tensor<6x2x!q>
}
