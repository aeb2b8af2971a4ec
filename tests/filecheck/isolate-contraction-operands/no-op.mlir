// RUN: subquant opt %s --passes isolate-contraction-operands --split-input-file | filecheck %s

// Arguments, constants, fills and what is behind a barrier or a reshape of those: nothing to fuse.
// CHECK-LABEL: func.func @nothing_computed(
// CHECK-COUNT-1: util.optimization_barrier
// CHECK-NOT: _barrier
func.func @nothing_computed(%x: tensor<1x8x8x3xf32>, %flat: tensor<64x3xf32>, %q: tensor<1x8x8x3xi8>, %z: f32) -> (tensor<1x6x6x4xf32>, tensor<1x6x6x4xf32>, tensor<1x6x6x4xf32>) {
  %w = arith.constant dense<1.0> : tensor<3x3x3x4xf32>
  %e = tensor.empty() : tensor<1x6x6x4xf32>
  %o = linalg.fill ins(%z : f32) outs(%e : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %a = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%o : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %y = tensor.expand_shape %flat [[0, 1, 2], [3]] output_shape [1, 8, 8, 3] : tensor<64x3xf32> into tensor<1x8x8x3xf32>
  %b = linalg.conv_2d_nhwc_hwcf ins(%y, %w : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%o : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  %f = arith.sitofp %q : tensor<1x8x8x3xi8> to tensor<1x8x8x3xf32>
  %g = "util.optimization_barrier"(%f) : (tensor<1x8x8x3xf32>) -> tensor<1x8x8x3xf32>
  %c = linalg.conv_2d_nhwc_hwcf ins(%g, %w : tensor<1x8x8x3xf32>, tensor<3x3x3x4xf32>) outs(%o : tensor<1x6x6x4xf32>) -> tensor<1x6x6x4xf32>
  return %a, %b, %c : tensor<1x6x6x4xf32>, tensor<1x6x6x4xf32>, tensor<1x6x6x4xf32>
}

// -----

// An element-wise loop that reads at an offset is no window, and a sum no contraction.
// CHECK-LABEL: func.func @no_contraction(
// CHECK-NOT: _barrier
// CHECK: return
#shifted = affine_map<(i) -> (i + 1)>
#id = affine_map<(i) -> (i)>
#none = affine_map<(i) -> ()>
func.func @no_contraction(%v: tensor<5xi8>, %p: tensor<4xf32>, %t: tensor<f32>) -> (tensor<4xf32>, tensor<f32>) {
  %w = arith.sitofp %v : tensor<5xi8> to tensor<5xf32>
  %s = linalg.generic {indexing_maps = [#shifted, #id], iterator_types = ["parallel"]}
      ins(%w : tensor<5xf32>) outs(%p : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32):
    linalg.yield %x : f32
  } -> tensor<4xf32>
  %r = linalg.generic {indexing_maps = [#id, #none], iterator_types = ["reduction"]}
      ins(%w : tensor<5xf32>) outs(%t : tensor<f32>) {
  ^bb0(%x: f32, %y: f32):
    %z = arith.addf %x, %y : f32
    linalg.yield %z : f32
  } -> tensor<f32>
  return %s, %r : tensor<4xf32>, tensor<f32>
}
