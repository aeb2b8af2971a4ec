// RUN: subquant opt %s --passes verify-quantization --split-input-file --verify-diagnostics

// Each rule of the pass, in its order.

// expected-error @+1 {{'func.func' op block size 4 along axis 0 must be at most the dimension 2 of argument 0 of shape 2}}
func.func private @block_larger_than_the_dimension(tensor<2x!quant.uniform<i8:f32:{0:4}, {1.0}>>)

// -----

// expected-error @+1 {{quantized dimension 1 must be less than the rank 1 of argument 0 of shape 4}}
func.func private @axis_outside_of_the_rank(tensor<4x!quant.uniform<i8:f32:1, {1.0, 2.0}>>)

// -----

// expected-error @+1 {{quantized dimension 0 of argument 0 is named twice; expected each once}}
func.func private @axis_named_twice(tensor<4x!quant.uniform<i8:f32:{0:2, 0:2}, {1.0, 2.0}>>)

// -----

// expected-error @+1 {{dimension 5 along axis 0 of argument 0 of shape 5 must be divisible by the block size 2; subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block}}
func.func private @ragged(tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)

// -----

// expected-error @+1 {{scales and zero points have the shape 3, expected 2, one for each block of argument 0 of shape 4}}
func.func private @too_many_scales(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)

// -----

// expected-error @+1 {{scales and zero points have the shape 1x2, expected 1x3, one for each block of argument 0 of shape 4x3}}
func.func private @too_few_scales_of_an_axis(tensor<4x3x!quant.uniform<i8:f32:1, {1.0, 2.0}>>)

// -----

// expected-error @+1 {{scales have rank 1, expected the rank 2 of result 0 of shape 1x4}}
func.func private @collapsed_scales() -> tensor<1x4x!quant.uniform<i8:f32:{1:2}, {1.0, 2.0}>>

// -----

// expected-error @+1 {{argument 0 is an unranked tensor with a sub-channel type, which only subquant.qcast, subquant.dcast and subquant.scast accept}}
func.func private @unranked(tensor<*x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>>)

// -----

// expected-error @+1 {{argument 0 is a scalar with a per-axis type; expected a per-tensor type}}
func.func private @scalar(!quant.uniform<i8:f32:0, {1.0, 2.0}>)

// -----

// The zero point is in the storage type, and not in its range.
// expected-error @+1 {{zero point[1] of argument 0 must be in the storage range -7:7, got -8}}
func.func private @zero_point(tensor<4x!quant.uniform<i4<-7:7>:f32:{0:2}, {1.0:7, 2.0:-8}>>)

// -----

// A type inside a region, and the operation that has it.
func.func @in_a_region(%c: i1) {
  scf.if %c {
    // expected-error @below {{'test.make' op result 1 is an unranked tensor with a sub-channel type}}
    %a:2 = "test.make"() : () -> (f32, tensor<*x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>>)
  }
  return
}

// -----

func.func @other_shape(%x: tensor<4xf32>) {
  // expected-error @+1 {{'subquant.qcast' op operand and result must have one shape, got 4 and 2x2}}
  %q = "subquant.qcast"(%x) : (tensor<4xf32>) -> tensor<2x2x!quant.uniform<i8:f32, 1.0>>
  return
}

// -----

func.func @other_storage(%x: tensor<4xi16>) {
  // expected-error @+1 {{'subquant.scast' op storage must have the type 'i8', got 'i16'}}
  %q = "subquant.scast"(%x) : (tensor<4xi16>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>
  return
}

// -----

func.func @scales_of_another_shape(%x: tensor<4x8xf32>, %s: tensor<4x3xf32>) {
  // expected-error @+1 {{'subquant.quantize' op scales have the shape 4x3, expected 4x2, one for each block}}
  %q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 1, 4>, quantized_type = !quant.any<i4:f32>} : (tensor<4x8xf32>, tensor<4x3xf32>) -> tensor<4x8xi4>
  return
}

// -----

func.func @wider_scales(%x: tensor<4xf16>, %s: tensor<1xf32>) {
  // expected-error @+1 {{scales must have a floating-point type not wider than the expressed type 'f16', got 'f32'}}
  %q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 4>, quantized_type = !quant.any<i8:f16>} : (tensor<4xf16>, tensor<1xf32>) -> tensor<4xi8>
  return
}

// -----

func.func @wider_zero_points(%q: tensor<4xi4>, %s: tensor<1xf32>, %z: tensor<1xi8>) {
  // expected-error @+1 {{zero points must have an integer type of 2 to 4 bits, not wider than the storage type, got 'i8'}}
  %x = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 4>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<4xi4>, tensor<1xf32>, tensor<1xi8>) -> tensor<4xf32>
  return
}

// -----

func.func @one_block_size_for_two_axes(%x: tensor<4x8xf32>, %s: tensor<4x2xf32>) {
  // expected-error @+1 {{attribute 'block_sizes' must have an entry for each of the 2 dimensions, got 1}}
  %q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 4>, quantized_type = !quant.any<i4:f32>} : (tensor<4x8xf32>, tensor<4x2xf32>) -> tensor<4x8xi4>
  return
}
