// RUN: subquant opt %s --passes lower-saturation | filecheck %s

// CHECK-LABEL: func.func @narrowed(
// CHECK: %[[HIGH:.+]] = stablehlo.constant dense<7> : tensor<4xi64>
// CHECK: %[[LOW:.+]] = stablehlo.minimum %arg0, %[[HIGH]] : tensor<4xi64>
// CHECK: stablehlo.constant dense<-7> : tensor<4xi64>
// CHECK: stablehlo.maximum %[[LOW]]
// CHECK: stablehlo.convert {{.+}} : (tensor<4xi64>) -> tensor<4xi4>
func.func @narrowed(%x: tensor<4xi64>) -> tensor<4xi4> {
  %0 = "subquant.saturate"(%x) {range = array<i64: -7, 7>} : (tensor<4xi64>) -> tensor<4xi4>
  return %0 : tensor<4xi4>
}

// CHECK-LABEL: func.func @unsigned_dynamic(
// CHECK: stablehlo.minimum
// CHECK: stablehlo.maximum
// CHECK: stablehlo.convert {{.+}} : (tensor<?xi32>) -> tensor<?xi8>
func.func @unsigned_dynamic(%x: tensor<?xi32>) -> tensor<?xi8> {
  %0 = "subquant.saturate"(%x) {range = array<i64: 0, 255>} : (tensor<?xi32>) -> tensor<?xi8>
  return %0 : tensor<?xi8>
}

// Nothing has to be truncated from 32 bits to 32.
// CHECK-LABEL: func.func @same_width(
// CHECK-NOT: stablehlo.convert
func.func @same_width(%x: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "subquant.saturate"(%x) {range = array<i64: -5, 2147483647>} : (tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}
