// RUN: subquant opt %s --passes fold-constants | filecheck %s

// Conversions that round, constants of one number, and what is known at run time only.

// CHECK-LABEL: func.func @rounds
// CHECK: stablehlo.convert
func.func @rounds() -> tensor<2xf16> {
  %c = stablehlo.constant dense<[1.000000e+00, 3.000000e-01]> : tensor<2xf32>
  %0 = stablehlo.convert %c : (tensor<2xf32>) -> tensor<2xf16>
  return %0 : tensor<2xf16>
}

// CHECK-LABEL: func.func @splat
// CHECK: stablehlo.convert
func.func @splat() -> tensor<2xi16> {
  %c = stablehlo.constant dense<7> : tensor<2xi8>
  %0 = stablehlo.convert %c : (tensor<2xi8>) -> tensor<2xi16>
  return %0 : tensor<2xi16>
}

// CHECK-LABEL: func.func @narrows
// CHECK: stablehlo.convert
func.func @narrows() -> tensor<2xi8> {
  %c = stablehlo.constant dense<[1, 300]> : tensor<2xi16>
  %0 = stablehlo.convert %c : (tensor<2xi16>) -> tensor<2xi8>
  return %0 : tensor<2xi8>
}

// CHECK-LABEL: func.func @argument
// CHECK: stablehlo.transpose
func.func @argument(%x: tensor<2x3xi8>) -> tensor<3x2xi8> {
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xi8>) -> tensor<3x2xi8>
  return %0 : tensor<3x2xi8>
}

// A product of matrices: weights stay as they are.
// CHECK-LABEL: func.func @pointwise
// CHECK: [o, i, 0, 1]
func.func @pointwise(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %w = stablehlo.constant dense<[[[[1.000000e+00]], [[2.000000e+00]]], [[[3.000000e+00]], [[4.000000e+00]]]]> : tensor<2x2x1x1xf32>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<2x2x1x1xf32>) -> tensor<1x2x4x4xf32>
  return %0 : tensor<1x2x4x4xf32>
}
