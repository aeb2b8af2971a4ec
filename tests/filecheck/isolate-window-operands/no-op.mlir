// RUN: subquant opt %s --passes isolate-window-operands --split-input-file | filecheck %s

// Arguments, constants, fills and what is behind a barrier or a reshape of those: nothing to fuse.
// CHECK-LABEL: func.func @nothing_computed(
// CHECK-COUNT-1: util.optimization_barrier
// CHECK-NOT: util.optimization_barrier
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

// A contraction has no window, and neither has an element-wise loop that reads at an offset.
// CHECK-LABEL: func.func @no_window(
// CHECK-NOT: util.optimization_barrier
// CHECK: return
#shifted = affine_map<(i) -> (i + 1)>
#id = affine_map<(i) -> (i)>
func.func @no_window(%q: tensor<2x3xi8>, %b: tensor<3x4xf32>, %o: tensor<2x4xf32>, %v: tensor<5xi8>, %p: tensor<4xf32>) -> (tensor<2x4xf32>, tensor<4xf32>) {
  %f = arith.sitofp %q : tensor<2x3xi8> to tensor<2x3xf32>
  %r = linalg.matmul ins(%f, %b : tensor<2x3xf32>, tensor<3x4xf32>) outs(%o : tensor<2x4xf32>) -> tensor<2x4xf32>
  %w = arith.sitofp %v : tensor<5xi8> to tensor<5xf32>
  %s = linalg.generic {indexing_maps = [#shifted, #id], iterator_types = ["parallel"]}
      ins(%w : tensor<5xf32>) outs(%p : tensor<4xf32>) {
  ^bb0(%x: f32, %y: f32):
    linalg.yield %x : f32
  } -> tensor<4xf32>
  return %r, %s : tensor<2x4xf32>, tensor<4xf32>
}
