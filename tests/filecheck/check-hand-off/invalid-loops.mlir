// RUN: subquant opt %s --passes "check-hand-off{target=vulkan:generic}" --split-input-file --verify-diagnostics

func.func @loops(%x: tensor<4x8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{'linalg.generic' op has loops in another order than its result has axes, which IREE computes wrongly on Vulkan; run isolate-contraction-operands before}}
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<4x8xf32>) outs(%y : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %b, %a : f32
    linalg.yield %s : f32
  } -> tensor<8xf32>
  return %r : tensor<8xf32>
}
