// Rules of quantized types that upstream does not check, on arguments of declarations.

// error @+1:1 VerificationError: 'func.func' op dimension 5 along axis 0 of argument 0 of shape 5 must be divisible by the block size 2; subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block
func.func private @block_does_not_divide(tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op block size 4 along axis 0 must be at most the dimension 2 of argument 0 of shape 2
func.func private @block_exceeds_dimension(tensor<2x!quant.uniform<i8:f32:{0:4}, {1.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op quantized dimension 1 must be less than the rank 1 of argument 0 of shape 4
func.func private @axis_out_of_rank(tensor<4x!quant.uniform<i8:f32:{1:2}, {{1.0, 2.0}}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op quantized dimension 1 must be less than the rank 1 of argument 0 of shape 4
func.func private @per_axis_out_of_rank(tensor<4x!quant.uniform<i8:f32:1, {1.0, 2.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op quantized dimension 0 of argument 0 is named twice; expected each once
func.func private @axis_twice(tensor<4x!quant.uniform<i8:f32:{0:2, 0:2}, {1.0, 2.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 2, expected 3, one for each block of argument 0 of shape 6
func.func private @too_few_scales(tensor<6x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 3, expected 2, one for each block of argument 0 of shape 4
func.func private @too_many_scales(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 1x2, expected 2x1, one for each block of argument 0 of shape 4x4
func.func private @scales_on_another_axis(tensor<4x4x!quant.uniform<i8:f32:{0:2}, {{1.0, 2.0}}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 1x2, expected 2x1, one for each block of argument 0 of shape 4x2
func.func private @scales_transposed(tensor<4x2x!quant.uniform<i8:f32:{0:2, 1:2}, {{1.0, 2.0}}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales have rank 1, expected the rank 2 of argument 0 of shape 4x4; subquant.qcast, subquant.dcast and subquant.scast accept scales without the dimensions of size 1
func.func private @rank_of_scales(tensor<4x4x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 1x2, expected 1x3, one for each block of argument 0 of shape 4x3
func.func private @per_axis_count(tensor<4x3x!quant.uniform<i8:f32:1, {1.0, 2.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 2, expected 1, one for each block of argument 0 of shape 4
func.func private @missing_axis_with_scales(tensor<4x!quant.uniform<i8:f32:{}, {1.0, 2.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op argument 0 of shape 0 has a dimension of size 0 and a sub-channel type
func.func private @empty_dimension(tensor<0x!quant.uniform<i8:f32:{}, {1.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op dimension 5 along axis 1 of argument 0 of shape ?x5 must be divisible by the block size 2; subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block
func.func private @dynamic_is_checked_where_known(tensor<?x5x!quant.uniform<i8:f32:{0:2, 1:2}, {{1.0, 2.0, 3.0}}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 1x3, expected ?x2, one for each block of argument 0 of shape ?x4
func.func private @dynamic_grid(tensor<?x4x!quant.uniform<i8:f32:{0:2, 1:2}, {{1.0, 2.0, 3.0}}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op the zero point of argument 0 must be in the storage range -128:127, got 300
func.func private @zero_point_per_tensor(tensor<4x!quant.uniform<i8:f32, 1.0:300>>)
// -----
// error @+1:1 VerificationError: 'func.func' op zero point[1] of argument 0 must be in the storage range -128:127, got -129
func.func private @zero_point_per_axis(tensor<2x!quant.uniform<i8:f32:0, {1.0, 1.0:-129}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op zero point[1] of argument 0 must be in the storage range -4:3, got 100
func.func private @zero_point_in_narrow_range(tensor<4x!quant.uniform<i8<-4:3>:f32:{0:2}, {1.0:3, 1.0:100}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op zero point[0] of argument 0 must be in the storage range 0:100, got 200
func.func private @zero_point_of_unsigned(tensor<4x!quant.uniform<u8<0:100>:f32:{0:2}, {1.0:200, 1.0}>>)
// -----
// error @+1:1 VerificationError: 'func.func' op the zero point of argument 0 must be in the storage range 0:255, got -1
func.func private @zero_point_negative_unsigned(!quant.uniform<u8:f32, 1.0:-1>)
// -----
// error @+1:1 VerificationError: 'func.func' op the zero point of argument 0 must be in the storage range 3:100, got 0
func.func private @zero_point_below_range(!quant.uniform<i8<3:100>:f32, 1.0>)
// -----
// error @+1:1 VerificationError: 'func.func' op argument 0 is a scalar with a sub-channel type; expected a per-tensor type
func.func private @scalar_with_blocks(!quant.uniform<i8:f32:{0:2}, {1.0}>)
// -----
// error @+1:1 VerificationError: 'func.func' op argument 0 is a scalar with a per-axis type; expected a per-tensor type
func.func private @scalar_with_axis(!quant.uniform<i8:f32:0, {1.0}>)
// -----
// error @+1:1 VerificationError: 'func.func' op argument 0 is an unranked tensor with a sub-channel type, which only subquant.qcast, subquant.dcast and subquant.scast accept
func.func private @unranked(tensor<*x!quant.uniform<i8:f32:{1:2, 3:2}, {{1.0, 2.0}, {3.0, 4.0}}>>)
// -----
// error @+1:1 UnsupportedError: 'func.func' op quantized type must have uniform parameters, got '!quant.any<i8:f32>'; expected !quant.uniform<...>
func.func private @any(tensor<4x!quant.any<i8:f32>>)
// -----
// error @+1:1 UnsupportedError: 'func.func' op quantized type must have uniform parameters, got '!quant.any<i8>'; expected !quant.uniform<...>
func.func private @any_without_expressed_type(tensor<4x!quant.any<i8>>)
// -----
// error @+1:1 UnsupportedError: 'func.func' op quantized type must have uniform parameters, got '!quant.calibrated<f32<-1.000000e+00:1.000000e+00>>'; expected !quant.uniform<...>
func.func private @calibrated(tensor<4x!quant.calibrated<f32<-1.0:1.0>>>)
// -----
// error @+1:1 UnsupportedError: 'func.func' op expressed type must be f16, bf16, f32 or f64, got 'f8E4M3FN'
func.func private @expressed_float8(tensor<4x!quant.uniform<i8:f8E4M3FN, 1.0>>)
// -----
// error @+2:8 ParseError: 'stablehlo.abs' op operand #0 must be ranked tensor of 2/4/8/16/32/64-bit signless integer or 4/6/8/16/32/64-bit float or complex type with 32/64-bit float elements or per-tensor integer quantized values, but got 'tensor<2x4x!quant.uniform<i8:f32:{1:2}, ...>'; StableHLO's operations take no sub-channel types; dequantize operands with quant.dcast, and quantize results with quant.qcast
func.func @sub_channel(%x: tensor<2x4x!quant.uniform<i8:f32:{1:2}, {{1.0, 2.0}}>>) {
  %0 = stablehlo.abs %x : tensor<2x4x!quant.uniform<i8:f32:{1:2}, {{1.0, 2.0}}>>
  return
}
// -----
// error @+1:82 ParseError: scale 2.000000e-09 out of expressed type range [5.960464e-08, 6.550400e+04]
func.func private @scale_underflows_in_f16(tensor<4x!quant.uniform<i8:f16, 2.0e-9>>)
