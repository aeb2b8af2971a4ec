// RUN: subquant opt %s --passes "expand-stablehlo{split-groups=true}" | filecheck %s

// CHECK-LABEL: func.func @layout
// CHECK: %[[X:.*]] = stablehlo.transpose %arg0, dims = [0, 2, 1] : (tensor<2x3x10xi8>) -> tensor<2x10x3xi8>
// CHECK: %[[K:.*]] = stablehlo.transpose %arg1, dims = [2, 1, 0] : (tensor<4x3x5xi8>) -> tensor<5x3x4xi8>
// CHECK: %[[Y:.*]] = stablehlo.convolution(%[[X]], %[[K]]) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f]
// CHECK-SAME: -> tensor<2x6x4xi32>
// CHECK: stablehlo.transpose %[[Y]], dims = [0, 2, 1] : (tensor<2x6x4xi32>) -> tensor<2x4x6xi32>
func.func @layout(%x: tensor<2x3x10xi8>, %k: tensor<4x3x5xi8>) -> tensor<2x4x6xi32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x3x10xi8>, tensor<4x3x5xi8>) -> tensor<2x4x6xi32>
  return %0 : tensor<2x4x6xi32>
}

// CHECK-LABEL: func.func @groups
// CHECK: %[[A:.*]] = stablehlo.convolution{{.*}} : (tensor<2x10x2xf32>, tensor<5x2x3xf32>) -> tensor<2x6x3xf32>
// CHECK: %[[B:.*]] = stablehlo.convolution{{.*}} : (tensor<2x10x2xf32>, tensor<5x2x3xf32>) -> tensor<2x6x3xf32>
// CHECK: stablehlo.concatenate %[[A]], %[[B]], dim = 2
func.func @groups(%x: tensor<2x10x4xf32>, %k: tensor<5x2x6xf32>) -> tensor<2x6x6xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<2x10x4xf32>, tensor<5x2x6xf32>) -> tensor<2x6x6xf32>
  return %0 : tensor<2x6x6xf32>
}

// IREE would take the conversion back into the convolution.
// CHECK-LABEL: func.func @depthwise_of_widened
// CHECK: %[[F:.*]] = stablehlo.convert %arg0
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier %[[F]]
// CHECK: stablehlo.convolution(%[[B]], %arg1)
func.func @depthwise_of_widened(%x: tensor<2x10x4xf16>, %k: tensor<5x1x4xf32>) -> tensor<2x6x4xf32> {
  %f = stablehlo.convert %x : (tensor<2x10x4xf16>) -> tensor<2x10x4xf32>
  %0 = stablehlo.convolution(%f, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 4 : i64} : (tensor<2x10x4xf32>, tensor<5x1x4xf32>) -> tensor<2x6x4xf32>
  return %0 : tensor<2x6x4xf32>
}

// Windows that share no element: the patches of a vision transformer.
// CHECK-LABEL: func.func @patches
// CHECK: %[[P:.*]] = stablehlo.reshape %arg0 : (tensor<2x6x8x3xf32>) -> tensor<2x3x2x2x4x3xf32>
// CHECK: %[[T:.*]] = stablehlo.transpose %[[P]], dims = [0, 1, 3, 2, 4, 5]
// CHECK: %[[R:.*]] = stablehlo.reshape %[[T]] : (tensor<2x3x2x2x4x3xf32>) -> tensor<12x24xf32>
// CHECK: %[[W:.*]] = stablehlo.reshape %arg1 : (tensor<2x4x3x5xf32>) -> tensor<24x5xf32>
// CHECK: stablehlo.dot_general %[[R]], %[[W]], contracting_dims = [1] x [0]
func.func @patches(%x: tensor<2x6x8x3xf32>, %k: tensor<2x4x3x5xf32>) -> tensor<2x3x2x5xf32> {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 4]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x6x8x3xf32>, tensor<2x4x3x5xf32>) -> tensor<2x3x2x5xf32>
  return %0 : tensor<2x3x2x5xf32>
}

// CHECK-LABEL: func.func @no_patches
// CHECK-COUNT-3: stablehlo.convolution
// CHECK-NOT: stablehlo.dot_general
func.func @no_patches(%x: tensor<2x6x8x3xf32>, %k: tensor<2x4x3x5xf32>, %i: tensor<2x6x8x3xi8>, %j: tensor<2x4x3x5xi8>) -> (tensor<2x2x2x5xf32>, tensor<2x3x3x5xf32>, tensor<2x3x2x5xi32>) {
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [3, 4]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x6x8x3xf32>, tensor<2x4x3x5xf32>) -> tensor<2x2x2x5xf32>
  %1 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 4], pad = [[0, 0], [2, 2]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x6x8x3xf32>, tensor<2x4x3x5xf32>) -> tensor<2x3x3x5xf32>
  %2 = stablehlo.convolution(%i, %j) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 4]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x6x8x3xi8>, tensor<2x4x3x5xi8>) -> tensor<2x3x2x5xi32>
  return %0, %1, %2 : tensor<2x2x2x5xf32>, tensor<2x3x3x5xf32>, tensor<2x3x2x5xi32>
}
