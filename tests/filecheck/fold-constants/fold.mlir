// RUN: subquant opt %s --passes fold-constants | filecheck %s

// CHECK-LABEL: func.func @widen
// CHECK-NEXT: %[[C:.+]] = stablehlo.constant dense<[1, -128, 127]> : tensor<3xi16>
// CHECK-NEXT: return %[[C]]
func.func @widen() -> tensor<3xi16> {
  %c = stablehlo.constant dense<[1, -128, 127]> : tensor<3xi8>
  %0 = stablehlo.convert %c : (tensor<3xi8>) -> tensor<3xi16>
  return %0 : tensor<3xi16>
}

// One constant for a chain; another user of the same keeps it.
// CHECK-LABEL: func.func @chain
// CHECK: %[[C:.+]] = stablehlo.constant dense<{{\[}}[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi8>
// CHECK: %[[D:.+]] = stablehlo.constant dense<{{\[\[}}1.000000e+00, 4.000000e+00, 2.000000e+00, 5.000000e+00, 3.000000e+00, 6.000000e+00]]> : tensor<1x6xf32>
// CHECK-NEXT: return %[[C]], %[[D]]
func.func @chain() -> (tensor<2x3xi8>, tensor<1x6xf32>) {
  %c = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi8>
  %0 = stablehlo.transpose %c, dims = [1, 0] : (tensor<2x3xi8>) -> tensor<3x2xi8>
  %1 = stablehlo.convert %0 : (tensor<3x2xi8>) -> tensor<3x2xi16>
  %2 = stablehlo.optimization_barrier %1 : tensor<3x2xi16>
  %3 = stablehlo.convert %2 : (tensor<3x2xi16>) -> tensor<3x2xf32>
  %4 = stablehlo.reshape %3 : (tensor<3x2xf32>) -> tensor<1x6xf32>
  return %c, %4 : tensor<2x3xi8>, tensor<1x6xf32>
}

// The middle of a chain has a user of its own.
// CHECK-LABEL: func.func @two
// CHECK-DAG: stablehlo.constant dense<[1, 2]> : tensor<2xi16>
// CHECK-DAG: stablehlo.constant dense<[1, 2]> : tensor<2xi32>
// CHECK-NOT: stablehlo.convert
// CHECK: return
func.func @two() -> (tensor<2xi16>, tensor<2xi32>) {
  %c = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
  %0 = stablehlo.convert %c : (tensor<2xi8>) -> tensor<2xi16>
  %1 = stablehlo.convert %0 : (tensor<2xi16>) -> tensor<2xi32>
  return %0, %1 : tensor<2xi16>, tensor<2xi32>
}

// CHECK-LABEL: func.func @convolution
// CHECK: %[[W:.+]] = stablehlo.constant dense<{{\[\[\[}}[1, 5], [3, 7]], {{\[}}[2, 6], [4, 8]]]]> : tensor<1x2x2x2xi32>
// CHECK: stablehlo.convolution(%{{.+}}, %[[W]]) dim_numbers = [b, f, 0, 1]x[0, 1, i, o]->[b, f, 0, 1], window = {pad = {{\[}}[0, 1], [2, 3]]}
func.func @convolution(%x: tensor<1x2x4x4xi32>) -> tensor<1x2x5x8xi32> {
  %c = stablehlo.constant dense<[[[[1, 2]], [[3, 4]]], [[[5, 6]], [[7, 8]]]]> : tensor<2x2x1x2xi16>
  %w = stablehlo.convert %c : (tensor<2x2x1x2xi16>) -> tensor<2x2x1x2xi32>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[0, 1], [2, 3]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x2x4x4xi32>, tensor<2x2x1x2xi32>) -> tensor<1x2x5x8xi32>
  return %0 : tensor<1x2x5x8xi32>
}

// CHECK-LABEL: func.func @unused
// CHECK-NEXT: return
func.func @unused() {
  %c = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
  %d = arith.constant dense<3> : tensor<2xi8>
  return
}
