// RUN: subquant opt %s --passes lower-requantization --split-input-file | filecheck %s
// RUN: subquant opt %s --passes "lower-requantization{requantization=fixed-point}" --split-input-file | filecheck %s --check-prefix FIXED

// 0.7 / 0.5 in 31 bits, and 3.
// FIXED-LABEL: func.func @one_term(
// FIXED: stablehlo.constant dense<1503238554> : tensor<4xi64>
// FIXED: stablehlo.multiply
// FIXED: stablehlo.add
// FIXED: stablehlo.constant dense<30> : tensor<4xi64>
// FIXED: stablehlo.shift_right_arithmetic
// FIXED: stablehlo.constant dense<3> : tensor<4xi64>
// FIXED: %[[V:.+]] = stablehlo.add
// FIXED: "subquant.saturate"(%[[V]]) {range = array<i64: -128, 127>} : (tensor<4xi64>) -> tensor<4xi8>
// CHECK-LABEL: func.func @one_term(
// CHECK: stablehlo.multiply
// CHECK: stablehlo.select
// CHECK: "subquant.saturate"(%{{.+}}) {range = array<i64: -128, 127>} : (tensor<4xi{{.+}}>) -> tensor<4xi8>
func.func @one_term(%acc: tensor<4xi32>) -> tensor<4xi8> {
  %s = "subquant.requantize"(%acc) {scales = [dense<0.7> : tensor<f64>], bounds = array<i64: 65024>, quantized_type = !quant.uniform<i8:f32, 0.5:3>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}

// -----

// The scale is the result's: nothing is multiplied, and what fits is not saturated.
// CHECK-LABEL: func.func @same_scale(
// CHECK-NOT: stablehlo.multiply
// CHECK-NOT: subquant.saturate
// FIXED-LABEL: func.func @same_scale(
// FIXED-NOT: stablehlo.multiply
func.func @same_scale(%acc: tensor<4xi32>) -> tensor<4xi32> {
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 65024>, quantized_type = !quant.uniform<i32:f32, 0.5>} : (tensor<4xi32>) -> tensor<4xi32>
  return %s : tensor<4xi32>
}

// -----

// A bias is rescaled to the accumulator, which is added as it is.
// FIXED-LABEL: func.func @bias(
// FIXED: stablehlo.multiply %arg1
// FIXED: %[[RESCALED:.+]] = stablehlo.shift_right_arithmetic
// FIXED: %[[SUM:.+]] = stablehlo.add %[[RESCALED]], %arg0
// FIXED: "subquant.saturate"(%[[SUM]])
// CHECK-LABEL: func.func @bias(
// CHECK: subquant.saturate
func.func @bias(%acc: tensor<4xi64>, %b: tensor<4xi64>) -> tensor<4xi32> {
  %s = "subquant.requantize_2"(%acc, %b) {scales = [dense<0.5> : tensor<f64>, dense<0.35> : tensor<f64>], bounds = array<i64: 2147483648, 2147483648>, quantized_type = !quant.uniform<i32:f32, 0.5>} : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi32>
  return %s : tensor<4xi32>
}

// -----

// A multiplier for each channel.
// FIXED-LABEL: func.func @channels(
// FIXED: stablehlo.constant dense<[1073741824, 1610612736]> : tensor<2xi64>
func.func @channels(%acc: tensor<4x2xi32>) -> tensor<4x2xi8> {
  %s = "subquant.requantize"(%acc) {scales = [dense<[[0.25, 0.75]]> : tensor<1x2xf64>], bounds = array<i64: 65024>, quantized_type = !quant.uniform<i8:f32, 0.5:3>} : (tensor<4x2xi32>) -> tensor<4x2xi8>
  return %s : tensor<4x2xi8>
}

// -----

// A multiplier for each block: 0.5 / 0.25 and 0.5 / 1.0, twice each.
// FIXED-LABEL: func.func @blocks(
// FIXED: stablehlo.constant dense<1073741824> : tensor<4xi64>
// FIXED: stablehlo.constant dense<[29, 29, 31, 31]> : tensor<4xi64>
// FIXED: stablehlo.constant dense<[1, 1, 2, 2]> : tensor<4xi64>
func.func @blocks(%acc: tensor<4xi32>) -> tensor<4xi8> {
  %s = "subquant.requantize"(%acc) {scales = [dense<0.5> : tensor<f64>], bounds = array<i64: 65024>, quantized_type = !quant.uniform<i8:f32:{0:2}, {0.25:1, 1.0:2}>} : (tensor<4xi32>) -> tensor<4xi8>
  return %s : tensor<4xi8>
}
