// What upstream's parser crashes on, cuts without a word, or refuses.

// error @+1:57 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'f8E4M3FN'; write for example i4, u4 or i8
func.func private @float_blocks(tensor<4x!quant.uniform<f8E4M3FN:f32:{0:2}, {1.0, 2.0}>>)
// -----
// error @+1:61 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'f8E5M2'; write for example i4, u4 or i8
func.func private @float_per_tensor(tensor<4x!quant.uniform<f8E5M2:f32, 1.0>>)
// -----
// error @+1:59 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'f4E2M1FN'; write for example i4, u4 or i8
func.func private @float_per_axis(tensor<2x!quant.uniform<f4E2M1FN:f32:0, {1.0, 2.0}>>)
// -----
// error @+1:54 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'f4E2M1FN'; write for example i4, u4 or i8
func.func private @long_form(tensor<4x!quant<uniform<f4E2M1FN:f32:{0:2}, {1.0, 2.0}>>>)
// -----
// error @+3:3 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'bf16'; write for example i4, u4 or i8
func.func private @comment_inside(tensor<4x!quant.uniform // <i8
  < // i8
  bf16:f32:{0:2}, {1.0, 2.0}>>)
// -----
// error @+3:60 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'f8E4M3FN'; write for example i4, u4 or i8
!s = f8E4M3FN
!storage = !s
func.func private @through_aliases(tensor<4x!quant.uniform<!storage:f32:{0:2}, {1.0, 2.0}>>)
// -----
// error @+1:44 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got '!quant.quantile'; write for example i4, u4 or i8
func.func private @quantile(!quant.uniform<!quant.quantile<i2:f16, {-1.0, -0.5, 0.5, 1.0}>:f32:{0:2}, {1.0}>)
// -----
// error @+1:49 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'index'; write for example i4, u4 or i8
func.func private @index_storage(!quant.uniform<index:f32, 1.0>)
// -----
// error @+1:43 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'i1'; write for example i4, u4 or i8
func.func private @one_bit(!quant.uniform<i1:f32, 1.0>)
// -----
// error @+1:48 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'i64'; write for example i4, u4 or i8
func.func private @wide_storage(!quant.uniform<i64:f32, 1.0>)
// -----
// error @+1:43 VerificationError: quantized storage type must be an integer of 2 to 32 bits, got 'f16'; write for example i4, u4 or i8
"test.attribute"() {type = !quant.uniform<f16:f32:{0:2}, {1.0, 2.0}>} : () -> ()
// -----
// error @+1:74 VerificationError: zero point 300 does not fit the storage type i8, expected a value in -128:127; upstream's parser would cut it without a word
func.func private @cut(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0:5, 1.0:300}>>)
// -----
// error @+1:76 VerificationError: zero point 16 does not fit the storage type u4, expected a value in 0:15; upstream's parser would cut it without a word
func.func private @cut_unsigned(tensor<4x!quant.uniform<u4:f32:{0:2}, {1.0:16, 1.0}>>)
// -----
// error @+1:77 VerificationError: zero point -9 does not fit the storage type i4, expected a value in -8:7; upstream's parser would cut it without a word
func.func private @cut_negative(tensor<4x!quant.uniform<i4:f32:{0:2}, {{1.0:-9}, {1.0}}>>)
// -----
// error @+1:79 VerificationError: zero point 0x1FF does not fit the storage type i8, expected a value in -128:127; upstream's parser would cut it without a word
func.func private @cut_hexadecimal(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0:0x1FF, 1.0}>>)
// -----
// error @+4:5 VerificationError: zero point -300 does not fit the storage type i8, expected a value in -128:127; upstream's parser would cut it without a word
func.func private @cut_spread_over_lines(tensor<4x!quant.uniform<i8
  <-128:127> : f32 : {0:2}, // }>
  {1.0e+0 : // 5
    - 300, 1.0}>>)
// -----
// error @+1:82 VerificationError: zero point 999999999999999999999999999999 does not fit the storage type i32, expected a value in -2147483648:2147483647; upstream's parser would cut it without a word
func.func private @cut_thirty_digits(tensor<4x!quant.uniform<i32:f32:{0:2}, {1.0:999999999999999999999999999999, 1.0}>>)
// -----
// error @+1:82 VerificationError: zero point true does not fit the storage type i8, expected a value in -128:127; upstream's parser would cut it without a word
func.func private @boolean_zero_point(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0:true, 1.0}>>)
// -----
// No crash, no error of ours: comments and strings are not types. The parser's own error follows.
// !quant.uniform<f8E4M3FN:f32:{0:2}, {1.0, 2.0}>
// error @+1:122 ParseError: expected non-function type
"test.string"() {text = "!quant.uniform<f8E4M3FN:f32:{0:2}, {1.0}> \" !quant.uniform<i8:f32:{0:2}, {1.0:300}>"} : () -> (oops)
// -----
// error @+2:75 VerificationError: quantized type must have uniform parameters, got '!quant.calibrated'; upstream's verifier of tosa operations crashes on it
func.func @tosa() {
  %0 = "tosa.const"() {values = dense<1> : tensor<4xi8>} : () -> tensor<4x!quant.calibrated<f32<-1.0:1.0>>>
  return
}
// -----
// error @+1:71 ParseError: scale -1.000000e+00 out of expressed type range [1.401298e-45, 3.402823e+38]
func.func private @negative_scale(tensor<4x!quant.uniform<i8:f32, -1.0>>)
// -----
// error @+1:66 ParseError: scale 0.000000e+00 out of expressed type range [1.401298e-45, 3.402823e+38]
func.func private @zero_scale(tensor<4x!quant.uniform<i8:f32, 0.0>>)
// -----
// error @+1:50 ParseError: illegal quantized dimension: -1
func.func private @negative_axis(tensor<4x!quant.uniform<i8:f32:{-1:2}, {1.0}>>)
// -----
// error @+1:47 ParseError: illegal block size: 0
func.func private @zero_block(tensor<4x!quant.uniform<i8:f32:{0:0}, {1.0}>>)
// -----
// error @+1:90 ParseError: tensor literal is invalid; ranks are not consistent between elements
func.func private @ragged_braces(tensor<4x!quant.uniform<i8:f32:{0:2}, {{1.0, 2.0}, {1.0}}>>)
// -----
// error @+1:65 VerificationError: expressed type must be f16, bf16, f32 or f64, got 'i32'
func.func private @integer_expressed(tensor<4x!quant.uniform<i8:i32, 1.0>>)
// -----
// error @+1:48 ParseError: illegal storage min and storage max: (5:5)
func.func private @empty_range(tensor<4x!quant.uniform<i8<5:5>:f32, 1.0>>)
// -----
// error @+1:66 ParseError: illegal storage type minimum: -9
func.func private @range_exceeds_type(tensor<4x!quant.uniform<i4<-9:7>:f32, 1.0>>)
// -----
// error @+1:54 ParseError: unbalanced '{' character in pretty dialect name
func.func private @unfinished(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0
// -----
// error @+1:39 ParseError: expected '"' in string literal
func.func private @unfinished_string("
// -----
// error @+1:34 ParseError: custom op 'arith.nothing' is unknown
func.func @no_such_operation() { arith.nothing }
// -----
// error @+1:33 ParseError: use of undeclared SSA value name
func.func @undefined() { return %x : i8 }
// -----
// error @+2:1 ParseError: redefinition of attribute alias id 'a'
#a = 1
#a = 2
// -----
// error @+2:43 ParseError: expected '"' in string literal
// note: expected hex string blob for key 'r'
"test.resource"() : () -> ()
{-# dialect_resources: {builtin: {r: "0x04
