// RUN: subquant opt %s --passes raise-linalg --split-input-file | filecheck %s

// A dequantization and a contraction in two operations; scales of blocks, a reshape between them.
// CHECK-LABEL: func.func @blocks(
// CHECK-SAME: %[[Q:[^: ]+]]: tensor<8x2x32xi4>, %[[S:[^: ]+]]: tensor<8x2xf32>, %[[X:[^: ]+]]: tensor<4x64xf32>)
// CHECK-NEXT: %[[C:[^: ]+]] = stablehlo.convert %[[Q]] : (tensor<8x2x32xi4>) -> tensor<8x2x32xf32>
// CHECK-NEXT: %[[B:[^: ]+]] = stablehlo.broadcast_in_dim %[[S]], dims = [0, 1] : (tensor<8x2xf32>) -> tensor<8x2x32xf32>
// CHECK-NEXT: %[[M:[^: ]+]] = stablehlo.multiply %[[C]], %[[B]] : tensor<8x2x32xf32>
// CHECK-NEXT: %[[W:[^: ]+]] = stablehlo.reshape %[[M]] : (tensor<8x2x32xf32>) -> tensor<8x64xf32>
// CHECK-NEXT: %[[R:[^: ]+]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<8x64xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: return %[[R]]
func.func @blocks(%q: tensor<8x2x32xi4>, %s: tensor<8x2xf32>, %x: tensor<4x64xf32>) -> tensor<4x8xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x2x32xf32>
  %d = linalg.generic {indexing_maps = [affine_map<(n, g, k) -> (n, g, k)>, affine_map<(n, g, k) -> (n, g)>, affine_map<(n, g, k) -> (n, g, k)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%q, %s : tensor<8x2x32xi4>, tensor<8x2xf32>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%q0: i4, %s0: f32, %out: f32):
    %0 = arith.sitofp %q0 : i4 to f32
    %1 = arith.mulf %0, %s0 : f32
    linalg.yield %1 : f32
  } -> tensor<8x2x32xf32>
  %w = tensor.collapse_shape %d [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
  %f = tensor.empty() : tensor<4x8xf32>
  %i = linalg.fill ins(%zero : f32) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<4x64xf32>, tensor<8x64xf32>) outs(%i : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// One operation: scales are converted in their own shape, and then broadcast along blocks. The
// initial value is added.
// CHECK-LABEL: func.func @one(
// CHECK-SAME: %[[X:[^: ]+]]: tensor<4x64xf32>, %[[Q:[^: ]+]]: tensor<8x64xi8>, %[[S:[^: ]+]]: tensor<8x2xf16>, %[[I:[^: ]+]]: tensor<4x8xf32>)
// CHECK-NEXT: %[[U:[^: ]+]] = stablehlo.bitcast_convert %[[Q]] : (tensor<8x64xi8>) -> tensor<8x64xui8>
// CHECK-NEXT: %[[C:[^: ]+]] = stablehlo.convert %[[U]] : (tensor<8x64xui8>) -> tensor<8x64xf32>
// CHECK-NEXT: %[[E:[^: ]+]] = stablehlo.convert %[[S]] : (tensor<8x2xf16>) -> tensor<8x2xf32>
// CHECK-NEXT: %[[B:[^: ]+]] = stablehlo.broadcast_in_dim %[[E]], dims = [0, 1] : (tensor<8x2xf32>) -> tensor<8x2x32xf32>
// CHECK-NEXT: %[[K:[^: ]+]] = stablehlo.reshape %[[B]] : (tensor<8x2x32xf32>) -> tensor<8x64xf32>
// CHECK-NEXT: %[[W:[^: ]+]] = stablehlo.multiply %[[C]], %[[K]] : tensor<8x64xf32>
// CHECK-NEXT: %[[P:[^: ]+]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [1]
// CHECK-NEXT: %[[R:[^: ]+]] = stablehlo.add %[[I]], %[[P]] : tensor<4x8xf32>
// CHECK-NEXT: return %[[R]]
func.func @one(%x: tensor<4x64xf32>, %q: tensor<8x64xi8>, %s: tensor<8x2xf16>, %init: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %q, %s : tensor<4x64xf32>, tensor<8x64xi8>, tensor<8x2xf16>) outs(%init : tensor<4x8xf32>) {
  ^bb0(%x0: f32, %q0: i8, %s0: f16, %acc: f32):
    %0 = arith.uitofp %q0 : i8 to f32
    %1 = arith.extf %s0 : f16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.mulf %x0, %2 : f32
    %4 = arith.addf %acc, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// Integers with zero points: a constant one is part of the type, a computed one is corrected.
// CHECK-LABEL: func.func @integers(
// CHECK-SAME: %[[X:[^: ]+]]: tensor<4x64xi8>, %[[W:[^: ]+]]: tensor<64x8xi8>, %[[Z:[^: ]+]]: i32)
// CHECK-DAG: %[[T:[^: ]+]] = tensor.from_elements %[[Z]] : tensor<i32>
// CHECK-DAG: %[[QX:[^: ]+]] = "subquant.scast"(%[[X]]) : (tensor<4x64xi8>) -> tensor<4x64x!quant.uniform<i8:f32, 1.000000e+00>>
// CHECK-DAG: %[[DX:[^: ]+]] = "subquant.subtract_zero_point"(%[[QX]])
// CHECK-DAG: %[[QW:[^: ]+]] = "subquant.scast"(%[[W]]) : (tensor<64x8xi8>) -> tensor<64x8x!quant.uniform<i8:f32, 1.000000e+00:3>>
// CHECK-DAG: %[[DW:[^: ]+]] = "subquant.subtract_zero_point"(%[[QW]])
// CHECK: %[[P:[^: ]+]] = stablehlo.dot_general %[[DX]], %[[DW]], contracting_dims = [1] x [0] : (tensor<4x64xi32>, tensor<64x8xi32>) -> tensor<4x8xi32>
// CHECK: %[[ZB:[^: ]+]] = stablehlo.broadcast_in_dim %[[T]], dims = [] : (tensor<i32>) -> tensor<4x8xi32>
// CHECK: %[[N:[^: ]+]] = stablehlo.reduce(%[[DW]]
// CHECK: %[[NB:[^: ]+]] = stablehlo.broadcast_in_dim %[[N]], dims = [1]
// CHECK: %[[M:[^: ]+]] = stablehlo.multiply %[[ZB]], %[[NB]] : tensor<4x8xi32>
// CHECK: %[[R:[^: ]+]] = stablehlo.subtract %[[P]], %[[M]] : tensor<4x8xi32>
// CHECK-NEXT: return %[[R]]
func.func @integers(%x: tensor<4x64xi8>, %w: tensor<64x8xi8>, %z: i32) -> tensor<4x8xi32> {
  %zw = arith.constant 3 : i32
  %init = arith.constant dense<0> : tensor<4x8xi32>
  %y = linalg.quantized_matmul ins(%x, %w, %z, %zw : tensor<4x64xi8>, tensor<64x8xi8>, i32, i32) outs(%init : tensor<4x8xi32>) -> tensor<4x8xi32>
  return %y : tensor<4x8xi32>
}

// -----

// A sub-channel cast, with a vector.
// CHECK-LABEL: func.func @cast(
// CHECK: %[[W:[^: ]+]] = quant.dcast
// CHECK-NEXT: %[[R:[^: ]+]] = stablehlo.dot_general %{{.*}}, %[[W]], contracting_dims = [0] x [1] : (tensor<64xf32>, tensor<8x64xf32>) -> tensor<8xf32>
// CHECK-NEXT: return %[[R]]
func.func @cast(%q: tensor<8x64x!quant.uniform<i4:f32:{0:8, 1:32}, {{0.5, 0.25}}>>, %x: tensor<64xf32>) -> tensor<8xf32> {
  %w = quant.dcast %q : tensor<8x64x!quant.uniform<i4:f32:{0:8, 1:32}, {{0.5, 0.25}}>> to tensor<8x64xf32>
  %init = arith.constant dense<0.0> : tensor<8xf32>
  %y = linalg.matvec ins(%w, %x : tensor<8x64xf32>, tensor<64xf32>) outs(%init : tensor<8xf32>) -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// A window is read at sums of loops; the zero point of the image is part of its type.
// CHECK-LABEL: func.func @window(
// CHECK: %[[X:[^: ]+]] = "subquant.subtract_zero_point"(%{{.*}}) : (tensor<1x9x9x4x!quant.uniform<i8:f32, 1.000000e+00:-5>>) -> tensor<1x9x9x4xi32>
// CHECK: %[[W:[^: ]+]] = "subquant.subtract_zero_point"
// CHECK: %[[R:[^: ]+]] = stablehlo.convolution(%[[X]], %[[W]]) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
// CHECK-NEXT: return %[[R]]
func.func @window(%x: tensor<1x9x9x4xi8>, %w: tensor<3x3x4x8xi8>) -> tensor<1x4x4x8xi32> {
  %zx = arith.constant -5 : i32
  %zw = arith.constant 0 : i32
  %init = arith.constant dense<0> : tensor<1x4x4x8xi32>
  %y = linalg.conv_2d_nhwc_hwcf_q {strides = dense<2> : tensor<2xi64>} ins(%x, %w, %zx, %zw : tensor<1x9x9x4xi8>, tensor<3x3x4x8xi8>, i32, i32) outs(%init : tensor<1x4x4x8xi32>) -> tensor<1x4x4x8xi32>
  return %y : tensor<1x4x4x8xi32>
}
