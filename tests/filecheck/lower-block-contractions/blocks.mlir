// RUN: subquant opt %s --passes "verify-quantization,fuse-block-contractions,lower-block-contractions,convert-quantized-to-storage" | filecheck %s

!w = !quant.uniform<i4:f32:{0:32}, {{0.5:1}, {0.25:-2}}>

// The contraction goes over (block, position in block); no tensor of 64x8 reals is made.
// CHECK-LABEL: func.func @contraction
// CHECK-NOT: tensor<64x8xf32>
// CHECK: %[[Q:.*]] = tensor.expand_shape %arg1 {{\[\[}}0, 1], [2]] output_shape [2, 32, 8] : tensor<64x8xi4> into tensor<2x32x8xi4>
// CHECK: %[[X:.*]] = tensor.expand_shape %arg0 {{\[\[}}0], [1, 2]] output_shape [4, 2, 32] : tensor<4x64xf32> into tensor<4x2x32xf32>
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "parallel", "reduction", "reduction"]
// CHECK-SAME: ins(%[[X]], %[[Q]], %{{.*}}, %{{.*}} : tensor<4x2x32xf32>, tensor<2x32x8xi4>, tensor<2xf32>, tensor<2xi4>)
// CHECK: arith.subi
// CHECK: arith.mulf
// CHECK: arith.mulf
// CHECK: arith.addf
// CHECK-NOT: stablehlo
func.func @contraction(%x: tensor<4x64xf32>, %q: tensor<64x8x!w>) -> tensor<4x8xf32> {
  %w = quant.dcast %q : tensor<64x8x!w> to tensor<64x8xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<4x64xf32>, tensor<64x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
