// RUN: subquant opt %s --passes "isolate-contraction-operands" --split-input-file | filecheck %s

// CHECK-LABEL: func.func @conv(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<1x8x8x3xi8>, %[[W:[^:]+]]: tensor<3x3x3x4xf32>, %[[O:[^:]+]]: tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32> {
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[Q]] : tensor<1x8x8x3xi8> to tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[BARRIER:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SITOFP]]) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[CONV_2D_NHWC_HWCF:.+]] = linalg.conv_2d_nhwc_hwcf ins(%[[BARRIER]], %[[W]] : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%[[O]] : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
// CHECK-NEXT: return %[[CONV_2D_NHWC_HWCF]] : tensor<1x6x6x4xf32>
func.func @conv(%q: tensor<1x8x8x3xi8>, %w: tensor<3x3x3x4xf32>, %o: tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32> {
  %f = arith.sitofp %q : tensor<1x8x8x3xi8> to tensor<1x8x8x3xf32>
  %r = linalg.conv_2d_nhwc_hwcf ins(%f, %w : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%o : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  return %r : tensor<1x6x6x4xf32>
}

// -----

// CHECK-LABEL: func.func @pooling(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<1x8x8x3xi8>, %[[Z:[^:]+]]: f32) -> tensor<1x6x6x3xf32> {
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[Q]] : tensor<1x8x8x3xi8> to tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[EMPTY:.+]] = tensor.empty() : tensor<3x3xf32>
// CHECK-NEXT: %[[EMPTY2:.+]] = tensor.empty() : tensor<1x6x6x3xf32>
// CHECK-NEXT: %[[FILL:.+]] = linalg.fill ins(%[[Z]] : f32) outs(%[[EMPTY2]] : tensor<1x6x6x3xf32>) -> tensor<1x6x6x3xf32>
// CHECK-NEXT: %[[BARRIER:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SITOFP]]) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[POOLING_NHWC_MAX:.+]] = linalg.pooling_nhwc_max ins(%[[BARRIER]], %[[EMPTY]] : tensor<1x8x8x3xf32>, tensor<3x3xf32>) outs(%[[FILL]] : tensor<1x6x6x3xf32>) -> tensor<1x6x6x3xf32>
// CHECK-NEXT: return %[[POOLING_NHWC_MAX]] : tensor<1x6x6x3xf32>
func.func @pooling(%q: tensor<1x8x8x3xi8>, %z: f32) -> tensor<1x6x6x3xf32> {
  %f = arith.sitofp %q : tensor<1x8x8x3xi8> to tensor<1x8x8x3xf32>
  %w = tensor.empty() : tensor<3x3xf32>
  %e = tensor.empty() : tensor<1x6x6x3xf32>
  %o = linalg.fill ins(%z : f32) outs(%e : tensor<1x6x6x3xf32>) -> tensor<1x6x6x3xf32>
  %r = linalg.pooling_nhwc_max ins(%f, %w : tensor<1x8x8x3xf32>, tensor<3x3xf32>) outs(%o : tensor<1x6x6x3xf32>) -> tensor<1x6x6x3xf32>
  return %r : tensor<1x6x6x3xf32>
}

// -----

// CHECK: #[[MAP:.+]] = affine_map<(d0, d1) -> (d0 + d1)>
// CHECK: #[[MAP1:.+]] = affine_map<(d0, d1) -> (d1)>
// CHECK: #[[MAP2:.+]] = affine_map<(d0, d1) -> (d0)>
// CHECK-LABEL: func.func @generic_window(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<10xi8>, %[[W:[^:]+]]: tensor<3xf32>, %[[O:[^:]+]]: tensor<8xf32>) -> tensor<8xf32> {
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[Q]] : tensor<10xi8> to tensor<10xf32>
// CHECK-NEXT: %[[BARRIER:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[SITOFP]]) : (tensor<10xf32>) -> tensor<10xf32>
// CHECK-NEXT: %[[GENERIC:.+]] = linalg.generic {indexing_maps = [#[[MAP]], #[[MAP1]], #[[MAP2]]], iterator_types = ["parallel", "reduction"]} ins(%[[BARRIER]], %[[W]] : tensor<10xf32>, tensor<3xf32>) outs(%[[O]] : tensor<8xf32>) {
// CHECK-NEXT: ^bb0(%[[IN:[^:]+]]: f32, %[[IN2:[^:]+]]: f32, %[[OUT:[^:]+]]: f32):
// CHECK-NEXT: %[[MULF:.+]] = arith.mulf %[[IN]], %[[IN2]] : f32
// CHECK-NEXT: %[[ADDF:.+]] = arith.addf %[[OUT]], %[[MULF]] : f32
// CHECK-NEXT: linalg.yield %[[ADDF]] : f32
// CHECK-NEXT: } -> tensor<8xf32>
// CHECK-NEXT: return %[[GENERIC]] : tensor<8xf32>
#in = affine_map<(i, k) -> (i + k)>
#w = affine_map<(i, k) -> (k)>
#out = affine_map<(i, k) -> (i)>
func.func @generic_window(%q: tensor<10xi8>, %w: tensor<3xf32>, %o: tensor<8xf32>) -> tensor<8xf32> {
  %f = arith.sitofp %q : tensor<10xi8> to tensor<10xf32>
  %r = linalg.generic {indexing_maps = [#in, #w, #out], iterator_types = ["parallel", "reduction"]}
      ins(%f, %w : tensor<10xf32>, tensor<3xf32>) outs(%o : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @stablehlo(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<1x8x8x3xi8>, %[[W:[^:]+]]: tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32> {
// CHECK-NEXT: %[[CONVERT:.+]] = stablehlo.convert %[[Q]] : (tensor<1x8x8x3xi8>) -> tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[BARRIER:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[CONVERT]]) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[CONVOLUTION:.+]] = stablehlo.convolution(%[[BARRIER]], %[[W]]) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
// CHECK-NEXT: return %[[CONVOLUTION]] : tensor<1x6x6x4xf32>
func.func @stablehlo(%q: tensor<1x8x8x3xi8>, %w: tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32> {
  %f = stablehlo.convert %q : (tensor<1x8x8x3xi8>) -> tensor<1x8x8x3xf32>
  %r = stablehlo.convolution(%f, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<1x6x6x4xf32>
  return %r : tensor<1x6x6x4xf32>
}

// -----

// A reshape does not end a dispatch.
// CHECK-LABEL: func.func @through_reshapes(
// CHECK-SAME: %[[Q:[^:]+]]: tensor<64x3xi8>, %[[W:[^:]+]]: tensor<3x3x3x4xf32>, %[[O:[^:]+]]: tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32> {
// CHECK-NEXT: %[[SITOFP:.+]] = arith.sitofp %[[Q]] : tensor<64x3xi8> to tensor<64x3xf32>
// CHECK-NEXT: %[[EXPANDED:.+]] = tensor.expand_shape %[[SITOFP]] {{\[\[}}0, 1, 2], [3]] output_shape [1, 8, 8, 3] : tensor<64x3xf32> into tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[BARRIER:.+]] = "iree_tensor_ext.compute_barrier.start"(%[[EXPANDED]]) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
// CHECK-NEXT: %[[CONV_2D_NHWC_HWCF:.+]] = linalg.conv_2d_nhwc_hwcf ins(%[[BARRIER]], %[[W]] : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%[[O]] : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
// CHECK-NEXT: return %[[CONV_2D_NHWC_HWCF]] : tensor<1x6x6x4xf32>
func.func @through_reshapes(%q: tensor<64x3xi8>, %w: tensor<3x3x3x4xf32>, %o: tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32> {
  %f = arith.sitofp %q : tensor<64x3xi8> to tensor<64x3xf32>
  %x = tensor.expand_shape %f [[0, 1, 2], [3]] output_shape [1, 8, 8, 3] : tensor<64x3xf32> into tensor<1x8x8x3xf32>
  %r = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%o : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  return %r : tensor<1x6x6x4xf32>
}
