// What upstream's verifier says of its own operations, with our hint where subquant accepts it.

// error @+2:8 ParseError: tensor containing the sub-channel quantized type must be ranked
// note: subquant.qcast, subquant.dcast and subquant.scast accept unranked tensors
func.func @unranked(%x: tensor<*xf32>) {
  %q = "quant.qcast"(%x) : (tensor<*xf32>) -> tensor<*x!quant.uniform<i8:f32:{1:2, 3:2}, {{1.0, 2.0}, {3.0, 4.0}}>>
  return
}
// -----
// error @+2:8 ParseError: tensor dimension size 5 at axis 0 must be divisible by the corresponding block size 2
// note: subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block
func.func @ragged(%x: tensor<5xf32>) {
  %q = "quant.qcast"(%x) : (tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>
  return
}
// -----
// error @+2:8 ParseError: Rank of scales 3 must match the rank of the tensor 4
// note: subquant.qcast, subquant.dcast and subquant.scast accept scales without the dimensions of size 1
func.func @rfc_case_1_as_written(%x: tensor<6x4x6x4xf32>) {
  %q = "quant.qcast"(%x) : (tensor<6x4x6x4xf32>) -> tensor<6x4x6x4x!quant.uniform<i8<-128:127>:f32:{1:2, 3:2}, {{{1.0:1, 2.0:2}},{{3.0:3, 4.0:4}}}>>
  return
}
// -----
// error @+2:8 ParseError: quantized dimension 1 must be less than tensor rank 1
func.func @axis(%x: tensor<4xf32>) {
  %q = "quant.qcast"(%x) : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32:{1:2}, {1.0, 2.0}>>
  return
}
// -----
// error @+2:8 ParseError: scalar types may not use sub-channel quantization
func.func @scalar(%x: f32) {
  %q = "quant.qcast"(%x) : (f32) -> !quant.uniform<i8:f32:{0:2}, {1.0}>
  return
}
// -----
// error @+2:8 ParseError: expressed type in quantized type expected to match float type
func.func @expressed(%x: tensor<4xf16>) {
  %q = "quant.qcast"(%x) : (tensor<4xf16>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>
  return
}
// -----
// error @+2:8 ParseError: storage type in quantized type expected to match integer type
func.func @storage(%x: tensor<4xi4>) {
  %q = "quant.scast"(%x) : (tensor<4xi4>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>
  return
}
// -----
// error @+2:8 VerificationError: 'quant.qcast' op quantized dimension 0 of result is named twice; expected each once
func.func @accepted_by_upstream(%x: tensor<4xf32>) {
  %q = "quant.qcast"(%x) : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32:{0:2, 0:2}, {1.0, 2.0}>>
  return
}
