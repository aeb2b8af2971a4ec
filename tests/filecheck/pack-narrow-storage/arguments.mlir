// RUN: subquant opt %s --passes pack-narrow-storage --split-input-file | filecheck %s

// Two elements of the last axis are a byte of the argument; results are not packed.
// CHECK-LABEL: func.func @weight(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<2x32xi8>) -> tensor<2x64xi4> attributes {subquant.function_type = (tensor<2x64xi4>) -> tensor<2x64xi4>} {
// CHECK-NEXT: %[[V0:[^: ]+]] = "subquant.unpack"(%[[ARG0]]) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x32xi8>) -> tensor<2x64xi4>
// CHECK-NEXT: return %[[V0]] : tensor<2x64xi4>
func.func @weight(%q: tensor<2x64xi4>) -> tensor<2x64xi4> {
  return %q : tensor<2x64xi4>
}

// -----

// The bytes of two planes follow one another.
// CHECK-LABEL: func.func @quantized(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<12xi8>) -> tensor<16xi6> attributes {subquant.function_type = (tensor<16x!quant.uniform<u6:f32, 5.000000e-01>>) -> tensor<16xi6>} {
// CHECK-NEXT: %[[V0:[^: ]+]] = stablehlo.slice %[[ARG0]] [0:8] : (tensor<12xi8>) -> tensor<8xi8>
// CHECK-NEXT: %[[V1:[^: ]+]] = stablehlo.slice %[[ARG0]] [8:12] : (tensor<12xi8>) -> tensor<4xi8>
// CHECK-NEXT: %[[V2:[^: ]+]] = "subquant.unpack"(%[[V0]], %[[V1]]) {bits = array<i64: 4, 2>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<8xi8>, tensor<4xi8>) -> tensor<16xi6>
// CHECK-NEXT: %[[V3:[^: ]+]] = "subquant.scast"(%[[V2]]) : (tensor<16xi6>) -> tensor<16x!quant.uniform<u6:f32, 5.000000e-01>>
// CHECK-NEXT: %[[V4:[^: ]+]] = quant.scast %[[V3]] : tensor<16x!quant.uniform<u6:f32, 5.000000e-01>> to tensor<16xi6>
// CHECK-NEXT: return %[[V4]] : tensor<16xi6>
func.func @quantized(%q: tensor<16x!quant.uniform<u6:f32, 0.5>>) -> tensor<16xi6> {
  %s = quant.scast %q : tensor<16x!quant.uniform<u6:f32, 0.5>> to tensor<16xi6>
  return %s : tensor<16xi6>
}

// -----

// CHECK-LABEL: func.func @unsigned(
// CHECK-SAME: %[[ARG0:[^: ]+]]: tensor<1xi8>) -> tensor<4xui2> attributes {subquant.function_type = (tensor<4xui2>) -> tensor<4xui2>} {
// CHECK-NEXT: %[[V0:[^: ]+]] = "subquant.unpack"(%[[ARG0]]) {bits = array<i64: 2>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<1xi8>) -> tensor<4xi2>
// CHECK-NEXT: %[[V1:[^: ]+]] = stablehlo.bitcast_convert %[[V0]] : (tensor<4xi2>) -> tensor<4xui2>
// CHECK-NEXT: return %[[V1]] : tensor<4xui2>
func.func @unsigned(%q: tensor<4xui2>) -> tensor<4xui2> {
  return %q : tensor<4xui2>
}
