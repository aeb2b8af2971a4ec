// RUN: subquant opt %s --passes "verify-quantization" --split-input-file | filecheck %s

// Valid types: the module is printed as it is.
// CHECK-LABEL: func.func @every_granularity(
// CHECK-SAME: %[[A:[^:]+]]: !quant.uniform<i8:f32, 2.000000e+00>, %[[B:[^:]+]]: tensor<2x4x!quant.uniform<i8:f32:1, {1.000000e+00,2.000000e+00,3.000000e+00,4.000000e+00}>>, %[[C:[^:]+]]: tensor<2x4x!quant.uniform<i4:f32:{0:1, 1:2}, {{.*}}>>, %[[D:[^:]+]]: tensor<2x?x!quant.uniform<i4:f32:{0:1, 1:2}, {{.*}}>>) {
// CHECK-NEXT: return
!sub = !quant.uniform<i4:f32:{0:1, 1:2}, {{1.0, 2.0}, {3.0, 4.0}}>
func.func @every_granularity(%a: !quant.uniform<i8:f32, 2.0>, %b: tensor<2x4x!quant.uniform<i8:f32:1, {1.0, 2.0, 3.0, 4.0}>>, %c: tensor<2x4x!sub>, %d: tensor<2x?x!sub>) {
  return
}

// -----

// A subquant cast allows a ragged last block, and scales without the dimensions of size 1.
// CHECK-LABEL: func.func @ragged(
// CHECK-SAME: %[[X:[^:]+]]: tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.000000e+00, 2.000000e+00, 3.000000e+00}>> {
// CHECK-NEXT: %[[QCAST:.+]] = "subquant.qcast"(%[[X]]) : (tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.000000e+00, 2.000000e+00, 3.000000e+00}>>
// CHECK-NEXT: return %[[QCAST]] : tensor<5x!quant.uniform<i8:f32:{0:2}, {1.000000e+00, 2.000000e+00, 3.000000e+00}>>
func.func @ragged(%x: tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>> {
  %q = "subquant.qcast"(%x) : (tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>
  return %q : tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>
}

// -----

// CHECK-LABEL: func.func @unranked(
// CHECK-SAME: %[[X:[^:]+]]: tensor<*x!quant.uniform<i8:f32:{1:2}, {1.000000e+00, 2.000000e+00}>>) -> tensor<*xf32> {
// CHECK-NEXT: %[[DCAST:.+]] = "subquant.dcast"(%[[X]]) : (tensor<*x!quant.uniform<i8:f32:{1:2}, {1.000000e+00, 2.000000e+00}>>) -> tensor<*xf32>
// CHECK-NEXT: return %[[DCAST]] : tensor<*xf32>
func.func @unranked(%x: tensor<*x!quant.uniform<i8:f32:{1:2}, {1.0, 2.0}>>) -> tensor<*xf32> {
  %y = "subquant.dcast"(%x) : (tensor<*x!quant.uniform<i8:f32:{1:2}, {1.0, 2.0}>>) -> tensor<*xf32>
  return %y : tensor<*xf32>
}

// -----

// Scales that are narrower than the expressed type, and a ragged last block.
// CHECK-LABEL: func.func @operands(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x6xi4>, %[[S:[^:]+]]: tensor<4x2xf16>, %[[Z:[^:]+]]: tensor<4x2xi4>) -> tensor<4x6xf32> {
// CHECK-NEXT: %[[DEQUANTIZE:.+]] = "subquant.dequantize"(%[[Q]], %[[S]], %[[Z]]) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<4x6xi4>, tensor<4x2xf16>, tensor<4x2xi4>) -> tensor<4x6xf32>
// CHECK-NEXT: return %[[DEQUANTIZE]] : tensor<4x6xf32>
func.func @operands(%q: tensor<4x6xi4>, %s: tensor<4x2xf16>, %z: tensor<4x2xi4>) -> tensor<4x6xf32> {
  %y = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<4x6xi4>, tensor<4x2xf16>, tensor<4x2xi4>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// An extent that is dynamic on one side only may turn out to fit.
// CHECK-LABEL: func.func @dynamic_operands(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<4x?xi4>, %[[S:[^:]+]]: tensor<?x2xf16>, %[[Z:[^:]+]]: tensor<4x?xi4>) -> tensor<4x?xf32> {
// CHECK-NEXT: %[[DEQUANTIZE:.+]] = "subquant.dequantize"(%[[Q]], %[[S]], %[[Z]]) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<4x?xi4>, tensor<?x2xf16>, tensor<4x?xi4>) -> tensor<4x?xf32>
// CHECK-NEXT: return %[[DEQUANTIZE]] : tensor<4x?xf32>
func.func @dynamic_operands(%q: tensor<4x?xi4>, %s: tensor<?x2xf16>, %z: tensor<4x?xi4>) -> tensor<4x?xf32> {
  %y = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 1, 4>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<4x?xi4>, tensor<?x2xf16>, tensor<4x?xi4>) -> tensor<4x?xf32>
  return %y : tensor<4x?xf32>
}
