// Reductions of the dialect subquant: the constraints of the RFC, one case each.

// Operands and results.
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 must be a ranked tensor, got 'tensor<*xi8>'
%x, %i = "test.make"() : () -> (tensor<*xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<*xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 must have integer, floating-point, complex or quantized elements, got 'index'
%x, %i = "test.make"() : () -> (tensor<2x8xindex>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xindex>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op init value 0 must have no axes, got the shape 1
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<1xi8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<1xi8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op init value 0 must have the element type 'i8' of input 0, got 'i16'
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i16>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i16>) -> tensor<2xi8>
// -----
// error @+2:8 VerificationError: 'subquant.reduce_2' op input 1 must have the shape 8, got the shape 9
%x, %y, %i = "test.make"() : () -> (tensor<8xi8>, tensor<9xi8>, tensor<i8>)
%r:2 = "subquant.reduce_2"(%x, %y, %i, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
  stablehlo.return %a, %b : tensor<i32>, tensor<i32>
}) {dimensions = array<i64: 0>} : (tensor<8xi8>, tensor<9xi8>, tensor<i8>, tensor<i8>) -> (tensor<i8>, tensor<i8>)
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op result 0 must have the shape 2, got the shape 3
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<3xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op result 0 must have the element type 'i8' of input 0, got 'i32'; a result of the body's type is what the operation of stablehlo gives
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi32>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op result 0 must have the element type 'i8' of input 0, got 'ui8'; a result of the body's type is what the operation of stablehlo gives
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xui8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op result 0 must have the element type '!quant.uniform<i8:f32, 2.000000e+00:3>' of input 0 but for scale and zero point, got '!quant.uniform<i8<-127:127>:f32, 2.000000e+00:3>'; a result of the body's type is what the operation of stablehlo gives
%x, %i = "test.make"() : () -> (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<!quant.uniform<i32:f32, 1.5:1>>, %b: tensor<!quant.uniform<i32:f32, 1.5:1>>):
  %s = "test.add"(%a, %b) : (tensor<!quant.uniform<i32:f32, 1.5:1>>, tensor<!quant.uniform<i32:f32, 1.5:1>>) -> tensor<!quant.uniform<i32:f32, 1.5:1>>
  stablehlo.return %s : tensor<!quant.uniform<i32:f32, 1.5:1>>
}) {dimensions = array<i64: 1>} : (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>) -> tensor<2x!quant.uniform<i8<-127:127>:f32, 2.0:3>>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op result 0 must have the element type '!quant.uniform<i8:f32, 2.000000e+00:3>' of input 0 but for scale and zero point, got '!quant.uniform<i16:f32, 2.000000e+00:3>'; a result of the body's type is what the operation of stablehlo gives
%x, %i = "test.make"() : () -> (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<!quant.uniform<i32:f32, 1.5:1>>, %b: tensor<!quant.uniform<i32:f32, 1.5:1>>):
  %s = "test.add"(%a, %b) : (tensor<!quant.uniform<i32:f32, 1.5:1>>, tensor<!quant.uniform<i32:f32, 1.5:1>>) -> tensor<!quant.uniform<i32:f32, 1.5:1>>
  stablehlo.return %s : tensor<!quant.uniform<i32:f32, 1.5:1>>
}) {dimensions = array<i64: 1>} : (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>) -> tensor<2x!quant.uniform<i16:f32, 2.0:3>>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op init value 0 must have the element type '!quant.uniform<i8:f32, 2.000000e+00:3>' of input 0, got '!quant.uniform<i8:f32, 1.000000e+00>'
%x, %i = "test.make"() : () -> (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 1.0>>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<!quant.uniform<i32:f32, 1.5:1>>, %b: tensor<!quant.uniform<i32:f32, 1.5:1>>):
  %s = "test.add"(%a, %b) : (tensor<!quant.uniform<i32:f32, 1.5:1>>, tensor<!quant.uniform<i32:f32, 1.5:1>>) -> tensor<!quant.uniform<i32:f32, 1.5:1>>
  stablehlo.return %s : tensor<!quant.uniform<i32:f32, 1.5:1>>
}) {dimensions = array<i64: 1>} : (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 1.0>>) -> tensor<2x!quant.uniform<i8:f32, 2.0:3>>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has a per-axis type; a reduction takes per-tensor types, requantize first
%x, %i = "test.make"() : () -> (tensor<2x8x!quant.uniform<i8:f32:0, {1.0, 2.0}>>, tensor<!quant.uniform<i8:f32, 1.0>>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<!quant.uniform<i32:f32, 1.5:1>>, %b: tensor<!quant.uniform<i32:f32, 1.5:1>>):
  %s = "test.add"(%a, %b) : (tensor<!quant.uniform<i32:f32, 1.5:1>>, tensor<!quant.uniform<i32:f32, 1.5:1>>) -> tensor<!quant.uniform<i32:f32, 1.5:1>>
  stablehlo.return %s : tensor<!quant.uniform<i32:f32, 1.5:1>>
}) {dimensions = array<i64: 1>} : (tensor<2x8x!quant.uniform<i8:f32:0, {1.0, 2.0}>>, tensor<!quant.uniform<i8:f32, 1.0>>) -> tensor<2x!quant.uniform<i8:f32, 2.0:3>>
// -----
// The conversions (B) to (E), and others that the RFC does not have.
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has floating-point elements 'f32' and body takes quantized elements '!quant.uniform<i8:f32, 2.000000e+00:3>'; expected one kind
%x, %i = "test.make"() : () -> (tensor<2x8xf32>, tensor<f32>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<!quant.uniform<i8:f32, 2.0:3>>, %b: tensor<!quant.uniform<i8:f32, 2.0:3>>):
  %s = "test.add"(%a, %b) : (tensor<!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>) -> tensor<!quant.uniform<i8:f32, 2.0:3>>
  stablehlo.return %s : tensor<!quant.uniform<i8:f32, 2.0:3>>
}) {dimensions = array<i64: 1>} : (tensor<2x8xf32>, tensor<f32>) -> tensor<2xf32>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has quantized elements '!quant.uniform<i8:f32, 2.000000e+00:3>' and body takes floating-point elements 'f32'; expected one kind
%x, %i = "test.make"() : () -> (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %s = "test.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  stablehlo.return %s : tensor<f32>
}) {dimensions = array<i64: 1>} : (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>) -> tensor<2x!quant.uniform<i8:f32, 2.0:3>>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has floating-point elements 'f32' and body takes integer elements 'i32'; expected one kind
%x, %i = "test.make"() : () -> (tensor<2x8xf32>, tensor<f32>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xf32>, tensor<f32>) -> tensor<2xf32>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has integer elements 'i8' and body takes floating-point elements 'f32'; expected one kind
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %s = "test.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  stablehlo.return %s : tensor<f32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has boolean elements 'i1' and body takes integer elements 'i32'; expected one kind
%x, %i = "test.make"() : () -> (tensor<2x8xi1>, tensor<i1>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi1>, tensor<i1>) -> tensor<2xi1>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op input 0 has the expressed type 'f32' and body takes 'f16'; expected one expressed type
%x, %i = "test.make"() : () -> (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<!quant.uniform<i32:f16, 1.0>>, %b: tensor<!quant.uniform<i32:f16, 1.0>>):
  %s = "test.add"(%a, %b) : (tensor<!quant.uniform<i32:f16, 1.0>>, tensor<!quant.uniform<i32:f16, 1.0>>) -> tensor<!quant.uniform<i32:f16, 1.0>>
  stablehlo.return %s : tensor<!quant.uniform<i32:f16, 1.0>>
}) {dimensions = array<i64: 1>} : (tensor<2x8x!quant.uniform<i8:f32, 2.0:3>>, tensor<!quant.uniform<i8:f32, 2.0:3>>) -> tensor<2x!quant.uniform<i8:f32, 2.0:3>>
// -----
// Bodies.
// error @+4:3 VerificationError: 'stablehlo.return' op body must return a value for each of 1 tensors, got 2
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  stablehlo.return %a, %b : tensor<i32>, tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op argument 1 of body must have the element type 'i32' of argument 0, got 'i16'
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i16>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i16>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op argument 0 of body must have no axes, got the shape 1
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<1xi32>, %b: tensor<1xi32>):
  %s = "test.add"(%a, %b) : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi32>
  stablehlo.return %s : tensor<1xi32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op body must return the element type 'i32' of its argument 0, got 'i64'
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i64>
  stablehlo.return %s : tensor<i64>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+5:3 VerificationError: 'stablehlo.return' op value 0 must have no axes, got the shape 2
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<2xi32>
  stablehlo.return %s : tensor<2xi32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op body must end in 'stablehlo.return'
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  "test.stop"() : () -> ()
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+5:3 ParseError: 'stablehlo.return' op operand #0 must be variadic of ranked tensor of 4/6/8/16/32/64-bit float or bool or 2/4/8/16/32/64-bit integer or complex type with 32/64-bit float elements or per-tensor integer quantized values or ranked tensor of per-axis integer quantized values or token or memref of 4/6/8/16/32/64-bit float or bool or 2/4/8/16/32/64-bit integer or complex type with 32/64-bit float elements or per-tensor integer quantized values, but got 'i32'
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: i32, %b: i32):
  %s = "test.add"(%a, %b) : (i32, i32) -> i32
  stablehlo.return %s : i32
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op body must be one block with 2 arguments, got 1 arguments
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>):
  %s = "test.add"(%a) : (tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op body must be one block with 2 arguments, got 0 blocks
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
}) {dimensions = array<i64: 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// Attributes.
// error @+2:6 VerificationError: 'subquant.reduce' op attribute 'dimensions' must name axes less than the rank 2, each once, got [2]
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 2>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op attribute 'dimensions' must name axes less than the rank 2, each once, got [1, 1]
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = array<i64: 1, 1>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce' op attribute 'dimensions' must be array<i64: ...>, got 'dense<1> : tensor<1xi64>'
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {dimensions = dense<1> : tensor<1xi64>} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 ParseError: 'subquant.reduce' op attribute "dimensions" is expected but not provided
%x, %i = "test.make"() : () -> (tensor<2x8xi8>, tensor<i8>)
%r = "subquant.reduce"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {} : (tensor<2x8xi8>, tensor<i8>) -> tensor<2xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'window_dimensions' must have a positive entry for each of the 1 axes, got [1, 1]
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 1, 1>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'window_dimensions' must have a positive entry for each of the 1 axes, got [0]
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 0>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'window_strides' must have a positive entry for each of the 1 axes, got [0]
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 1>, window_strides = array<i64: 0>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'base_dilations' must have a positive entry for each of the 1 axes, got [1, 2]
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 1>, base_dilations = array<i64: 1, 2>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'window_dilations' must be array<i64: ...>, got '3 : i64'
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 1>, window_dilations = 3 : i64} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'padding' must be dense<...> : tensor<1x2xi64>, got 'dense<1> : tensor<2x1xi64>'
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 1>, padding = dense<1> : tensor<2x1xi64>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op attribute 'padding' must be dense<...> : tensor<1x2xi64>, got 'dense<1> : tensor<1x2xi32>'
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 1>, padding = dense<1> : tensor<1x2xi32>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op result 0 must have the shape 15, got the shape 8
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 3>, base_dilations = array<i64: 2>, padding = dense<1> : tensor<1x2xi64>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.reduce_window' op result 0 must have the shape 0, got the shape 8
%x, %i = "test.make"() : () -> (tensor<8xi8>, tensor<i8>)
%r = "subquant.reduce_window"(%x, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %s = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %s : tensor<i32>
}) {window_dimensions = array<i64: 9>} : (tensor<8xi8>, tensor<i8>) -> tensor<8xi8>
// -----
// select_and_scatter.
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op source must have the shape 2, got the shape 3
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<3xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<3xi8>, tensor<i8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op source must have the element type 'i8' of operand, got 'i32'
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi32>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi32>, tensor<i8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op init value must have the element type 'i8' of operand, got 'i32'
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i32>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op argument 0 of select must have the element type 'i8' of operand, got 'i32'
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.select"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op select must return 'tensor<i1>', got 'i8'
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i8>
  stablehlo.return %c : tensor<i8>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op operand has integer elements 'i8' and scatter takes floating-point elements 'f32'; expected one kind
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %c = "test.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  stablehlo.return %c : tensor<f32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op scatter must return the element type 'i32' of its argument 0, got 'i64'
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i64>
  stablehlo.return %c : tensor<i64>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op result must have the shape 4, got the shape 5
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<5xi8>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op result must have the element type 'i8' of operand, got 'i32'; a result of the body's type is what the operation of stablehlo gives
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2>, window_strides = array<i64: 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi32>
// -----
// error @+2:6 VerificationError: 'subquant.select_and_scatter' op attribute 'window_dimensions' must have a positive entry for each of the 1 axes, got [2, 2]
%x, %y, %i = "test.make"() : () -> (tensor<4xi8>, tensor<2xi8>, tensor<i8>)
%r = "subquant.select_and_scatter"(%x, %y, %i) ({
^bb0(%a: tensor<i8>, %b: tensor<i8>):
  %c = "test.select"(%a, %b) : (tensor<i8>, tensor<i8>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}, {
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = "test.add"(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  stablehlo.return %c : tensor<i32>
}) {window_dimensions = array<i64: 2, 2>} : (tensor<4xi8>, tensor<2xi8>, tensor<i8>) -> tensor<4xi8>
