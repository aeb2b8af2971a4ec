// RUN: subquant opt %s --passes "verify-quantization,canonicalize-reductions,legalize-quant-to-math,correct-zero-points,lower-requantization,lower-saturation,convert-quantized-to-storage,canonicalize" | filecheck %s

!x = !quant.uniform<i8:f32, 0.5:3>
!y = !quant.uniform<i8:f32, 0.25>
!r = !quant.uniform<i8:f32, 1.0:-1>

// Two differences times their share of the result's step, in one sum, rounded once.
// CHECK-LABEL: func.func @add
// CHECK: %[[X:.*]] = stablehlo.convert %arg0 : (tensor<4xi8>) -> tensor<4xi32>
// CHECK: %[[DX:.*]] = stablehlo.subtract %[[X]], %{{.*}} : tensor<4xi32>
// CHECK: %[[DY:.*]] = stablehlo.convert %arg1 : (tensor<4xi8>) -> tensor<4xi32>
// CHECK: %[[PX:.*]] = stablehlo.multiply %[[DX]], %{{.*}} : tensor<4xi32>
// CHECK: %[[PY:.*]] = stablehlo.multiply %[[DY]], %{{.*}} : tensor<4xi32>
// CHECK: stablehlo.add %[[PX]], %[[PY]] : tensor<4xi32>
// CHECK: stablehlo.shift_right_arithmetic
// CHECK: %[[HIGH:.*]] = stablehlo.minimum
// CHECK: %[[LOW:.*]] = stablehlo.maximum %[[HIGH]]
// CHECK: stablehlo.convert %[[LOW]] : (tensor<4xi32>) -> tensor<4xi8>
func.func @add(%x: tensor<4x!x>, %y: tensor<4x!y>) -> tensor<4x!r> {
  %s = stablehlo.add %x, %y : (tensor<4x!x>, tensor<4x!y>) -> tensor<4x!r>
  return %s : tensor<4x!r>
}

// Storage is contracted; both zero points are corrected by the sums of rows and columns.
// CHECK-LABEL: func.func @dot
// CHECK: %[[DOT:.*]] = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<2x8xi8>, tensor<8x3xi8>) -> tensor<2x3xi32>
// CHECK: %[[WIDE:.*]] = stablehlo.convert %arg0 : (tensor<2x8xi8>) -> tensor<2x8xi32>
// CHECK: %[[ROWS:.*]] = stablehlo.reduce(%[[WIDE]] init: %{{.*}}) applies stablehlo.add across dimensions = [1]
// CHECK: stablehlo.broadcast_in_dim %[[ROWS]], dims = [0] : (tensor<2xi32>) -> tensor<2x3xi32>
// CHECK: %[[OTHER:.*]] = stablehlo.convert %arg1 : (tensor<8x3xi8>) -> tensor<8x3xi32>
// CHECK: %[[COLUMNS:.*]] = stablehlo.reduce(%[[OTHER]] init: %{{.*}}) applies stablehlo.add across dimensions = [0]
// CHECK: stablehlo.broadcast_in_dim %[[COLUMNS]], dims = [1] : (tensor<3xi32>) -> tensor<2x3xi32>
func.func @dot(%x: tensor<2x8x!x>, %y: tensor<8x3x!r>) -> tensor<2x3x!quant.uniform<i32:f32, 0.5>> {
  %s = "stablehlo.dot"(%x, %y)
      : (tensor<2x8x!x>, tensor<8x3x!r>) -> tensor<2x3x!quant.uniform<i32:f32, 0.5>>
  return %s : tensor<2x3x!quant.uniform<i32:f32, 0.5>>
}

// The left operand is padded with its zero point, in storage, with no float.
// CHECK-LABEL: func.func @convolution
// CHECK: %[[ZERO:.*]] = stablehlo.constant dense<3> : tensor<i8>
// CHECK: %[[PADDED:.*]] = stablehlo.pad %arg0, %[[ZERO]], low = [0, 1, 0], high = [0, 1, 0], interior = [0, 1, 0] : (tensor<1x5x2xi8>, tensor<i8>) -> tensor<1x11x2xi8>
// CHECK: stablehlo.convolution(%[[PADDED]], %arg1)
// CHECK-SAME: (tensor<1x11x2xi8>, tensor<3x2x4xi8>) -> tensor<1x9x4xi32>
// CHECK-NOT: f32
// CHECK: return
func.func @convolution(%x: tensor<1x5x2x!x>, %k: tensor<3x2x4x!y>)
    -> tensor<1x9x4x!quant.uniform<i32:f32, 0.125>> {
  %s = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
      window = {pad = [[1, 1]], lhs_dilate = [2]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x5x2x!x>, tensor<3x2x4x!y>) -> tensor<1x9x4x!quant.uniform<i32:f32, 0.125>>
  return %s : tensor<1x9x4x!quant.uniform<i32:f32, 0.125>>
}

// A ratio so near to 1 that no accumulator can tell is no multiplication.
// CHECK-LABEL: func.func @nearly_one
// CHECK: %[[DOT:.*]] = stablehlo.dot_general
// CHECK-NEXT: return %[[DOT]]
func.func @nearly_one(%x: tensor<2x8x!quant.uniform<i8:f32, 0.1>>, %y: tensor<8x3x!quant.uniform<i8:f32, 0.3>>)
    -> tensor<2x3x!quant.uniform<i32:f32, 0.03>> {
  %s = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<2x8x!quant.uniform<i8:f32, 0.1>>, tensor<8x3x!quant.uniform<i8:f32, 0.3>>)
      -> tensor<2x3x!quant.uniform<i32:f32, 0.03>>
  return %s : tensor<2x3x!quant.uniform<i32:f32, 0.03>>
}

// The sum is one of differences; it is saturated once.
// CHECK-LABEL: func.func @sum
// CHECK: %[[SUM:.*]] = stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [1] : (tensor<2x8xi32>, tensor<i32>) -> tensor<2xi32>
// CHECK: stablehlo.add %[[SUM]]
// CHECK: stablehlo.minimum
// CHECK: stablehlo.maximum
func.func @sum(%x: tensor<2x8x!x>, %z: tensor<!x>) -> tensor<2x!x> {
  %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
      : (tensor<2x8x!x>, tensor<!x>) -> tensor<2x!x>
  return %s : tensor<2x!x>
}
