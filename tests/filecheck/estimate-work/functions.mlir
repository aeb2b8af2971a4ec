// RUN: subquant opt %s --passes "estimate-work{instructions=avx512vnni}" | filecheck %s
// RUN: subquant opt %s --passes "estimate-work{instructions=avx512vnni},legalize-quant-to-math,select-kernels,correct-zero-points,lower-requantization,convert-quantized-to-storage,check-hand-off" | filecheck %s --check-prefix=RECORDED

// 2**21 products of bytes, 460 in a nanosecond; 2**14 sums of 0.05 ns each, and 3 * 2**14 elements
// of arguments and results of 0.02: 4559 + 819 + 983.
// CHECK: func.func @bytes({{.*}} attributes {subquant.work = "6362 1"}
// RECORDED: func.func @bytes({{.*}} subquant.work = "6362 1"
func.func @bytes(%x: tensor<128x128xi8>, %w: tensor<128x128xi8>) -> tensor<128x128xi32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<128x128xi8>, tensor<128x128xi8>) -> tensor<128x128xi32>
  return %y : tensor<128x128xi32>
}

// The same of floats, 10 in a nanosecond, which no kernel multiplies; what is called counts.
// CHECK: func.func @floats({{.*}} attributes {subquant.work = "211518 1"}
func.func @floats(%x: tensor<128x128xf32>, %w: tensor<128x128xf32>) -> tensor<128x128xf32> {
  %y = func.call @multiply(%x, %w)
      : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  return %y : tensor<128x128xf32>
}
// CHECK: func.func private @multiply({{.*}}) -> tensor<128x128xf32> {
func.func private @multiply(%x: tensor<128x128xf32>, %w: tensor<128x128xf32>) -> tensor<128x128xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
  return %y : tensor<128x128xf32>
}

// Zero points are corrected for: a kernel multiplies bytes; 2 * 2**14 differences of 0.01 ns.
// CHECK: func.func @differences({{.*}} attributes {subquant.work = "6689 1"}
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @differences(%x: tensor<128x128x!q>, %w: tensor<128x128x!q>) -> tensor<128x128xi32> {
  %0 = "subquant.subtract_zero_point"(%x) : (tensor<128x128x!q>) -> tensor<128x128xi32>
  %1 = "subquant.subtract_zero_point"(%w) : (tensor<128x128x!q>) -> tensor<128x128xi32>
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0]
      : (tensor<128x128xi32>, tensor<128x128xi32>) -> tensor<128x128xi32>
  return %y : tensor<128x128xi32>
}

// 16 channels apart: 1600 sums of 9 products, 40 in a nanosecond; 1296 sums of 4 of these.
// CHECK: func.func @windows({{.*}} attributes {subquant.work = "567 2"}
func.func @windows(%x: tensor<1x12x12x16xi8>, %w: tensor<3x3x1x16xi8>) -> tensor<1x9x9x16xi32> {
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {} {batch_group_count = 1 : i64, feature_group_count = 16 : i64}
      : (tensor<1x12x12x16xi8>, tensor<3x3x1x16xi8>) -> tensor<1x10x10x16xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %p = "stablehlo.reduce_window"(%y, %zero) <{window_dimensions = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %sum = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %sum : tensor<i32>
  }) : (tensor<1x10x10x16xi32>, tensor<i32>) -> tensor<1x9x9x16xi32>
  return %p : tensor<1x9x9x16xi32>
}

// One row: what takes as long is to read the weight, a megabyte.
// CHECK: func.func @one_row({{.*}} attributes {subquant.work = "63007 1"}
func.func @one_row(%x: tensor<1x1024xi8>, %w: tensor<1024x1024xi8>) -> tensor<1x1024xi32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<1x1024xi8>, tensor<1024x1024xi8>) -> tensor<1x1024xi32>
  return %y : tensor<1x1024xi32>
}
