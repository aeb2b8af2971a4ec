// Where a wrong type is found: results, block arguments, signatures, nested regions.

// error @+1:1 VerificationError: 'func.func' op the zero point of argument 1 must be in the storage range -128:127, got 300
func.func private @later_argument(tensor<4xf32>, tensor<4x!quant.uniform<i8:f32, 1.0:300>>)
// -----
// error @+1:1 VerificationError: 'func.func' op the zero point of result 1 must be in the storage range -128:127, got 300
func.func private @result() -> (f32, tensor<4x!quant.uniform<i8:f32, 1.0:300>>)
// -----
// error @+1:1 VerificationError: 'func.func' op dimension 5 along axis 0 of block argument 0 of shape 5 must be divisible by the block size 2; subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block
func.func @definition(%x: tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>) {
  return
}
// -----
// error @+2:8 VerificationError: 'test.make' op the zero point of result must be in the storage range -128:127, got 300
func.func @of_an_operation() {
  %0 = "test.make"() : () -> tensor<4x!quant.uniform<i8:f32, 1.0:300>>
  return
}
// -----
// error @+2:10 VerificationError: 'test.make' op the zero point of result 1 must be in the storage range -128:127, got 300
func.func @second_result_of_an_operation() {
  %0:2 = "test.make"() : () -> (f32, tensor<4x!quant.uniform<i8:f32, 1.0:300>>)
  return
}
// -----
// error @+1:1 VerificationError: 'test.region' op the zero point of block argument 1 must be in the storage range -128:127, got -129
"test.region"() ({
^bb0(%a: f32, %b: !quant.uniform<i8:f32, 1.0:-129>):
  "test.end"() : () -> ()
}) : () -> ()
// -----
// error @+4:12 VerificationError: 'test.make' op the zero point of result must be in the storage range -8:7, got 8
func.func @nested(%c: i1) {
  scf.if %c {
    scf.if %c {
      %0 = "test.make"() : () -> !quant.uniform<i4:f32, 1.0:8>
    }
  }
  return
}
// -----
// error @+4:8 VerificationError: 'test.make' op scales and zero points have the shape 2, expected 3, one for each block of result of shape 3
func.func @branch(%c: i1) {
  cf.br ^next(%c : i1)
^next(%d: i1):
  %0 = "test.make"() : () -> tensor<3x!quant.uniform<i8:f32:0, {1.0, 2.0}>>
  return
}
// -----
// error @+1:1 VerificationError: 'func.func' op scales and zero points have the shape 2, expected 3, one for each block of argument 0 of shape 3
func.func private @inside_a_tuple(tuple<f32, tuple<tensor<3x!quant.uniform<i8:f32:0, {1.0, 2.0}>>>>)
// -----
// error @+1:1 VerificationError: 'func.func' op the zero point of argument 0 must be in the storage range -128:127, got 300
func.func private @inside_a_function_type((!quant.uniform<i8:f32, 1.0:300>) -> ())
// -----
// error @+3:5 VerificationError: 'func.func' op the zero point of argument 0 must be in the storage range -128:127, got 300
module @outer {
  module @inner {
    func.func private @f(!quant.uniform<i8:f32, 1.0:300>)
  }
}
// -----
// error @+2:1 VerificationError: 'func.func' op scales and zero points have the shape 3, expected 2, one for each block of argument 0 of shape 4
!wrong = !quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>
func.func private @through_an_alias(tensor<4x!wrong>)
// -----
// error @+1:1 VerificationError: 'test.function' op the zero point of argument 0 must be in the storage range -128:127, got 300
"test.function"() {function_type = (!quant.uniform<i8:f32, 1.0:300>) -> ()} : () -> ()
// -----
// error @+3:8 VerificationError: 'test.make' op dimension 5 along axis 0 of result of shape 5 must be divisible by the block size 2; subquant.qcast, subquant.dcast and subquant.scast accept a ragged last block
func.func @lenient_for_subquant_only(%x: tensor<5xf32>) {
  %0 = "subquant.qcast"(%x) : (tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>
  %1 = "test.make"() : () -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 4.0}>>
  return
}
