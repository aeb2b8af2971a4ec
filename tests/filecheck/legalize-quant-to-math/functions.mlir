// RUN: subquant opt %s --passes "verify-quantization,legalize-quant-to-math,convert-quantized-to-storage,canonicalize" | filecheck %s

!x = !quant.uniform<i8:f32, 0.5:3>
!w = !quant.uniform<i32:f32, 0.5:3>
!u = !quant.uniform<u4:f32, 0.5:3>

// A function of 256 values is a table.
// CHECK-LABEL: func.func @table
// CHECK: %[[TABLE:.*]] = stablehlo.constant dense<{{.*}}> : tensor<256xi8>
// CHECK: "stablehlo.gather"(%[[TABLE]],
// CHECK-NOT: f32
// CHECK: return
func.func @table(%x: tensor<4x!x>) -> tensor<4x!x> {
  %r = stablehlo.tanh %x : tensor<4x!x>
  return %r : tensor<4x!x>
}

// One of 2**32 values is computed in the expressed type.
// CHECK-LABEL: func.func @through_float
// CHECK: %[[REAL:.*]] = stablehlo.multiply {{.*}} : tensor<4xf32>
// CHECK: stablehlo.tanh %[[REAL]] : tensor<4xf32>
// CHECK: stablehlo.divide
// CHECK: stablehlo.round_nearest_even
func.func @through_float(%x: tensor<4x!w>) -> tensor<4x!w> {
  %r = stablehlo.tanh %x : tensor<4x!w>
  return %r : tensor<4x!w>
}

// Order is that of the storage; unsigned storage is extended without its sign.
// CHECK-LABEL: func.func @maximum
// CHECK: stablehlo.and %{{.*}}, %[[MASK:.*]] : tensor<4xi32>
// CHECK: stablehlo.maximum %{{.*}}, %{{.*}} : tensor<4xi32>
// CHECK: stablehlo.convert %{{.*}} : (tensor<4xi32>) -> tensor<4xi4>
func.func @maximum(%x: tensor<4x!u>, %y: tensor<4x!u>) -> tensor<4x!u> {
  %r = stablehlo.maximum %x, %y : tensor<4x!u>
  return %r : tensor<4x!u>
}

// CHECK-LABEL: func.func @compare
// CHECK: stablehlo.compare LT, %{{.*}}, %{{.*}}, SIGNED : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
func.func @compare(%x: tensor<4x!x>, %y: tensor<4x!x>) -> tensor<4xi1> {
  %r = stablehlo.compare LT, %x, %y : (tensor<4x!x>, tensor<4x!x>) -> tensor<4xi1>
  return %r : tensor<4xi1>
}

// A weight that is quantized alone is dequantized for a contraction of reals.
// CHECK-LABEL: func.func @hybrid
// CHECK: %[[W:.*]] = stablehlo.multiply %{{.*}}, %{{.*}} : tensor<8x3xf32>
// CHECK: stablehlo.dot_general %arg0, %[[W]], contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
func.func @hybrid(%x: tensor<2x8xf32>, %w: tensor<8x3x!quant.uniform<i8:f32:1, {0.5, 0.25, 2.0}>>)
    -> tensor<2x3xf32> {
  %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<2x8xf32>, tensor<8x3x!quant.uniform<i8:f32:1, {0.5, 0.25, 2.0}>>)
      -> tensor<2x3xf32>
  return %r : tensor<2x3xf32>
}

// What only moves values is left to convert-quantized-to-storage.
// CHECK-LABEL: func.func @moves
// CHECK: %[[R:.*]] = stablehlo.reverse %arg0, dims = [0] : tensor<4xi8>
// CHECK-NEXT: stablehlo.slice %[[R]] [1:3] : (tensor<4xi8>) -> tensor<2xi8>
func.func @moves(%x: tensor<4x!x>) -> tensor<2x!x> {
  %r = stablehlo.reverse %x, dims = [0] : tensor<4x!x>
  %s = stablehlo.slice %r [1:3] : (tensor<4x!x>) -> tensor<2x!x>
  return %s : tensor<2x!x>
}
