// RUN: subquant opt %s --passes "fuse-block-contractions{explain=true}" --verify-diagnostics

// Each contraction of a dequantized operand that is left alone has its reason.
!blocks = !quant.uniform<i4:f32:{1:2}, {{0.5, 0.25}}>
func.func @quantized_here(%x: tensor<3x4xf32>, %w: tensor<2x4xf32>) -> tensor<3x2xf32> {
  %q = quant.qcast %w : tensor<2x4xf32> to tensor<2x4x!blocks>
  %d = quant.dcast %q : tensor<2x4x!blocks> to tensor<2x4xf32>
  // expected-remark @+1 {{is left alone: the program quantizes its dequantized operand itself, as activations, not as a weight}}
  %y = stablehlo.dot_general %x, %d, contracting_dims = [1] x [1] : (tensor<3x4xf32>, tensor<2x4xf32>) -> tensor<3x2xf32>
  return %y : tensor<3x2xf32>
}
