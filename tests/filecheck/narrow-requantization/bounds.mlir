// RUN: subquant opt %s --passes narrow-requantization | filecheck %s

!s = !quant.uniform<i32:f32, 0.125>
!y = !quant.uniform<i8:f32, 0.5:3>

// Sums with their own scale, then a bias, then a scale of another unit: the first two are additions,
// and the third knows that there are no more than 65024 + 300.
// CHECK-LABEL: func.func @bias(
// CHECK-SAME: %[[X:[^:]*]]: tensor<4xi32>
// CHECK: %[[B:.*]] = stablehlo.constant dense<[100, -300, 0, 7]>
// CHECK-NOT: subquant.subtract_zero_point
// CHECK: %[[T:.*]] = stablehlo.add %[[X]], %[[B]] : tensor<4xi32>
// CHECK: "subquant.requantize"(%[[T]]) {bounds = array<i64: 65324>
// CHECK-SAME: (tensor<4xi32>) -> tensor<4xi8>
func.func @bias(%x: tensor<4xi32>) -> tensor<4xi8> {
  %a = "subquant.requantize"(%x) {scales = [dense<0.125> : tensor<f64>], bounds = array<i64: 65024>,
      quantized_type = !s} : (tensor<4xi32>) -> tensor<4xi32>
  %q = "subquant.scast"(%a) : (tensor<4xi32>) -> tensor<4x!s>
  %d = "subquant.subtract_zero_point"(%q) : (tensor<4x!s>) -> tensor<4xi64>
  %c = stablehlo.constant dense<[100, -300, 0, 7]> : tensor<4xi32>
  %b = "subquant.scast"(%c) : (tensor<4xi32>) -> tensor<4x!s>
  %e = "subquant.subtract_zero_point"(%b) : (tensor<4x!s>) -> tensor<4xi64>
  %s = "subquant.requantize_2"(%d, %e) {
      scales = [dense<0.125> : tensor<f64>, dense<0.125> : tensor<f64>],
      bounds = array<i64: 2147483648, 2147483648>, quantized_type = !s}
      : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi32>
  %t = "subquant.scast"(%s) : (tensor<4xi32>) -> tensor<4x!s>
  %f = "subquant.subtract_zero_point"(%t) : (tensor<4x!s>) -> tensor<4xi64>
  %y = "subquant.requantize"(%f) {scales = [dense<0.125> : tensor<f64>],
      bounds = array<i64: 2147483648>, quantized_type = !y} : (tensor<4xi64>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}

// Near 1 is not enough where the integers are great: 2**24 * 2**-24 is more than half.
// CHECK-LABEL: func.func @near(
// CHECK: "subquant.requantize"(%{{.*}}) {bounds = array<i64: 16777216>
// CHECK-LABEL: func.func @nearer(
// CHECK-NEXT: return %{{.*}} : tensor<4xi32>
func.func @near(%x: tensor<4xi32>) -> tensor<4xi32> {
  %a = "subquant.requantize"(%x) {scales = [dense<0.12500000745058060> : tensor<f64>],
      bounds = array<i64: 16777216>, quantized_type = !s} : (tensor<4xi32>) -> tensor<4xi32>
  return %a : tensor<4xi32>
}
func.func @nearer(%x: tensor<4xi32>) -> tensor<4xi32> {
  %a = "subquant.requantize"(%x) {scales = [dense<0.12500000745058060> : tensor<f64>],
      bounds = array<i64: 8388000>, quantized_type = !s} : (tensor<4xi32>) -> tensor<4xi32>
  return %a : tensor<4xi32>
}

// A storage range that is left is clamped to.
// CHECK-LABEL: func.func @clamped(
// CHECK: %[[N:.*]] = stablehlo.subtract %{{.*}}, %{{.*}} : tensor<4xi32>
// CHECK: %[[Z:.*]] = stablehlo.add %[[N]], %{{.*}} : tensor<4xi32>
// CHECK: "subquant.saturate"(%[[Z]]) {range = array<i64: -128, 127>}
func.func @clamped(%x: tensor<4xi32>, %z: tensor<4xi32>) -> tensor<4xi8> {
  %y = "subquant.requantize_2"(%x, %z) {
      scales = [dense<0.5> : tensor<f64>, dense<-0.5> : tensor<f64>],
      bounds = array<i64: 255, 255>, quantized_type = !y}
      : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}

// What is rounded to another scale is as much as its bound gives: 100 * 0.25 / 0.125.
// CHECK-LABEL: func.func @again(
// CHECK: "subquant.requantize"(%{{.*}}) {bounds = array<i64: 100>
// CHECK: "subquant.requantize"(%{{.*}}) {bounds = array<i64: 200>
func.func @again(%x: tensor<4xi32>) -> tensor<4xi8> {
  %a = "subquant.requantize"(%x) {scales = [dense<0.25> : tensor<f64>], bounds = array<i64: 100>,
      quantized_type = !s} : (tensor<4xi32>) -> tensor<4xi32>
  %q = "subquant.scast"(%a) : (tensor<4xi32>) -> tensor<4x!s>
  %d = "subquant.subtract_zero_point"(%q) : (tensor<4x!s>) -> tensor<4xi64>
  %y = "subquant.requantize"(%d) {scales = [dense<0.125> : tensor<f64>],
      bounds = array<i64: 2147483648>, quantized_type = !y} : (tensor<4xi64>) -> tensor<4xi8>
  return %y : tensor<4xi8>
}
