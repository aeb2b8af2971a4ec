// RUN: subquant opt %s --passes raise-linalg | filecheck %s

// Programs without narrow integers are left as they are.
// CHECK-LABEL: func.func @floats(
// CHECK-NOT: stablehlo
func.func @floats(%x: tensor<4x64xf32>, %w: tensor<64x8xf32>, %s: tensor<8xi32>) -> tensor<4x8xf32> {
  %init = arith.constant dense<0.0> : tensor<4x8xf32>
  %y = linalg.matmul ins(%x, %w : tensor<4x64xf32>, tensor<64x8xf32>) outs(%init : tensor<4x8xf32>) -> tensor<4x8xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%y, %s : tensor<4x8xf32>, tensor<8xi32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%y0: f32, %s0: i32, %out: f32):
    %0 = arith.sitofp %s0 : i32 to f32
    %1 = arith.mulf %y0, %0 : f32
    linalg.yield %1 : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
