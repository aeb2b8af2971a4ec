// RUN: subquant opt %s --passes canonicalize-reductions --split-input-file | filecheck %s

// The example of the RFC: accumulate i8 in i32, give i8 with a scale of its own.
// CHECK-LABEL: func.func @rfc(
// CHECK-SAME: %[[X:[^:]+]]: tensor<5x4x!quant.uniform<u8:f32, 5.000000e-01:128>>, %[[I:[^:]+]]: tensor<!quant
// CHECK-NEXT: %[[WX:.+]] = stablehlo.uniform_quantize %[[X]] {{.*}} -> tensor<5x4x!quant.uniform<i32:f32, 5.000000e-01>>
// CHECK-NEXT: %[[WI:.+]] = stablehlo.uniform_quantize %[[I]] {{.*}} -> tensor<!quant.uniform<i32:f32, 5.000000e-01>>
// CHECK-NEXT: %[[R:.+]] = stablehlo.reduce(%[[WX]] init: %[[WI]]) applies stablehlo.add across dimensions = [1]
// CHECK-NEXT: %[[N:.+]] = stablehlo.uniform_quantize %[[R]] : (tensor<5x!quant.uniform<i32:f32, 5.000000e-01>>) -> tensor<5x!quant.uniform<u8:f32, 2.000000e+00:100>>
// CHECK-NEXT: return %[[N]]
!in = !quant.uniform<u8:f32, 0.5:128>
!accumulator = !quant.uniform<i32:f32, 0.5>
!out = !quant.uniform<u8:f32, 2.0:100>
func.func @rfc(%x: tensor<5x4x!in>, %i: tensor<!in>) -> tensor<5x!out> {
  %0 = "subquant.reduce"(%x, %i) ({
  ^bb0(%a: tensor<!accumulator>, %b: tensor<!accumulator>):
    %s = stablehlo.add %a, %b : tensor<!accumulator>
    stablehlo.return %s : tensor<!accumulator>
  }) {dimensions = array<i64: 1>} : (tensor<5x4x!in>, tensor<!in>) -> tensor<5x!out>
  return %0 : tensor<5x!out>
}

// -----

// The body may be narrower. Nothing to convert: only the name changes.
// CHECK-LABEL: func.func @narrower(
// CHECK: stablehlo.reduce(%{{.+}} init: %{{.+}}) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf16>, tensor<f16>) -> tensor<f16>
// CHECK-NEXT: stablehlo.convert %{{.+}} : (tensor<f16>) -> tensor<f32>
// CHECK-LABEL: func.func @the_same(
// CHECK-NEXT: %[[R:.+]] = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.maximum across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
// CHECK-NEXT: return %[[R]]
func.func @narrower(%x: tensor<8xf32>, %i: tensor<f32>) -> tensor<f32> {
  %0 = "subquant.reduce"(%x, %i) ({
  ^bb0(%a: tensor<f16>, %b: tensor<f16>):
    %s = stablehlo.maximum %a, %b : tensor<f16>
    stablehlo.return %s : tensor<f16>
  }) {dimensions = array<i64: 0>} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func @the_same(%x: tensor<8xf32>, %i: tensor<f32>) -> tensor<f32> {
  %0 = "subquant.reduce"(%x, %i) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Two tensors in windows; every attribute is kept.
// CHECK-LABEL: func.func @windows(
// CHECK: "stablehlo.reduce_window"
// CHECK-SAME: <{base_dilations = array<i64: 2>, padding = dense<1> : tensor<1x2xi64>, window_dilations = array<i64: 1>, window_dimensions = array<i64: 3>, window_strides = array<i64: 2>}>
// CHECK: (tensor<8xi32>, tensor<8xf32>, tensor<i32>, tensor<f32>) -> (tensor<8xi32>, tensor<8xf32>)
// CHECK-NEXT: %[[A:.+]] = stablehlo.convert %{{.+}}#0 : (tensor<8xi32>) -> tensor<8xi8>
// CHECK-NEXT: return %[[A]], %{{.+}}#1
func.func @windows(%x: tensor<8xi8>, %y: tensor<8xf32>, %i: tensor<i8>, %j: tensor<f32>) -> (tensor<8xi8>, tensor<8xf32>) {
  %0:2 = "subquant.reduce_window_2"(%x, %y, %i, %j) ({
  ^bb0(%a: tensor<i32>, %c: tensor<f32>, %b: tensor<i32>, %d: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<i32>
    %t = stablehlo.add %c, %d : tensor<f32>
    stablehlo.return %s, %t : tensor<i32>, tensor<f32>
  }) {window_dimensions = array<i64: 3>, window_strides = array<i64: 2>, base_dilations = array<i64: 2>, window_dilations = array<i64: 1>, padding = dense<[[1, 1]]> : tensor<1x2xi64>}
    : (tensor<8xi8>, tensor<8xf32>, tensor<i8>, tensor<f32>) -> (tensor<8xi8>, tensor<8xf32>)
  return %0#0, %0#1 : tensor<8xi8>, tensor<8xf32>
}
