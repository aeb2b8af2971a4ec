// Operations of the dialect subquant.

// error @+2:6 VerificationError: 'subquant.qcast' op result must be quantized or a tensor of quantized elements, got 'tensor<4xi8>'
%x = "test.make"() : () -> tensor<4xf32>
%q = "subquant.qcast"(%x) : (tensor<4xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op operand must have the expressed type 'f32', got 'f16'
%x = "test.make"() : () -> tensor<4xf16>
%q = "subquant.qcast"(%x) : (tensor<4xf16>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op operand and result must have one shape, got 4 and 5
%x = "test.make"() : () -> tensor<4xf32>
%q = "subquant.qcast"(%x) : (tensor<4xf32>) -> tensor<5x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op operand and result must have one shape, got 4 and ?
%x = "test.make"() : () -> tensor<4xf32>
%q = "subquant.qcast"(%x) : (tensor<4xf32>) -> tensor<?x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op operand and result must have one shape, got 4 and unranked
%x = "test.make"() : () -> tensor<4xf32>
%q = "subquant.qcast"(%x) : (tensor<4xf32>) -> tensor<*x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op operand and result must have one shape, got scalar and 1
%x = "test.make"() : () -> f32
%q = "subquant.qcast"(%x) : (f32) -> tensor<1x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op scales and zero points have the shape 2, expected 3, one for each block of result of shape 5
%x = "test.make"() : () -> tensor<5xf32>
%q = "subquant.qcast"(%x) : (tensor<5xf32>) -> tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0}>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op scales of result have the shape 2; expected one dimension for each of the 2 quantized dimensions
%x = "test.make"() : () -> tensor<*xf32>
%q = "subquant.qcast"(%x) : (tensor<*xf32>) -> tensor<*x!quant.uniform<i8:f32:{1:2, 3:2}, {1.0, 2.0}>>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op block size 4 along axis 0 must be at most the dimension 3 of result of shape 3
%x = "test.make"() : () -> tensor<3xf32>
%q = "subquant.qcast"(%x) : (tensor<3xf32>) -> tensor<3x!quant.uniform<i8:f32:{0:4}, {1.0}>>
// -----
// error @+2:6 UnsupportedError: 'subquant.qcast' op quantized type must have uniform parameters, got '!quant.any<i8:f32>'; expected !quant.uniform<...>
%x = "test.make"() : () -> tensor<4xf32>
%q = "subquant.qcast"(%x) : (tensor<4xf32>) -> tensor<4x!quant.any<i8:f32>>
// -----
// error @+2:6 VerificationError: 'subquant.dcast' op operand must be quantized or a tensor of quantized elements, got 'tensor<4xi8>'
%q = "test.make"() : () -> tensor<4xi8>
%x = "subquant.dcast"(%q) : (tensor<4xi8>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dcast' op result must have the expressed type 'f16', got 'f32'
%q = "test.make"() : () -> tensor<4x!quant.uniform<i8:f16, 1.0>>
%x = "subquant.dcast"(%q) : (tensor<4x!quant.uniform<i8:f16, 1.0>>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dcast' op operand and result must have one shape, got 4 and 2x2
%q = "test.make"() : () -> tensor<4x!quant.uniform<i8:f32, 1.0>>
%x = "subquant.dcast"(%q) : (tensor<4x!quant.uniform<i8:f32, 1.0>>) -> tensor<2x2xf32>
// -----
// The operand is defined below, which the body of a module allows.
// error @+1:6 UnsupportedError: 'subquant.dcast' op quantized type must have uniform parameters, got '!quant.any<i8>'; expected !quant.uniform<...>
%x = "subquant.dcast"(%q) : (tensor<4x!quant.any<i8>>) -> tensor<4xf32>
%q = "test.make"() : () -> tensor<4x!quant.any<i8>>
// -----
// error @+2:6 VerificationError: 'subquant.scast' op must cast between a storage type and a quantized type, got 'tensor<4xi8>' and 'tensor<4xi8>'
%x = "test.make"() : () -> tensor<4xi8>
%y = "subquant.scast"(%x) : (tensor<4xi8>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.scast' op must cast between a storage type and a quantized type, got '!quant.uniform<i8:f32, 1.000000e+00>' and '!quant.uniform<i8:f32, 2.000000e+00>'
%x = "test.make"() : () -> !quant.uniform<i8:f32, 1.0>
%y = "subquant.scast"(%x) : (!quant.uniform<i8:f32, 1.0>) -> !quant.uniform<i8:f32, 2.0>
// -----
// error @+2:6 VerificationError: 'subquant.scast' op storage must have the type 'i8', got 'i4'
%x = "test.make"() : () -> tensor<4xi4>
%y = "subquant.scast"(%x) : (tensor<4xi4>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.scast' op operand and result must have one shape, got 4 and 3
%x = "test.make"() : () -> tensor<4xi8>
%y = "subquant.scast"(%x) : (tensor<4xi8>) -> tensor<3x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op attribute 'quantized_type' must be a type !quant.any<storage<min:max>:expressed>, got 'i8'
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = i8} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op attribute 'quantized_type' must be a type !quant.any<storage<min:max>:expressed>, got '"i8"'
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = "i8"} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 UnsupportedError: 'subquant.quantize' op quantized type must name an expressed type, got '!quant.any<i8>'; write for example !quant.any<i8:f32>
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 UnsupportedError: 'subquant.quantize' op quantized storage type must be an integer of 2 to 32 bits, got 'f8E4M3FN'; write for example i4, u4 or i8
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<f8E4M3FN:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op real value must be a ranked tensor, got 'tensor<*xf32>'
%x, %s = "test.make"() : () -> (tensor<*xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8:f32>} : (tensor<*xf32>, tensor<2xf32>) -> tensor<*xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op stored value must be a ranked tensor, got 'i8'
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> i8
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op real value must have the expressed type 'f32', got 'f16'
%x, %s = "test.make"() : () -> (tensor<4xf16>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf16>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op stored value must have the storage type 'i8', got 'i4'
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi4>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op operand and result must have one shape, got 4 and 6
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<6xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op attribute 'block_sizes' must have an entry for each of the 1 dimensions, got 2
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 2, 2>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op attribute 'block_sizes' must be array<i64: ...>, got '[2]'
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = [2], quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op block size along axis 0 must be at least 1 and at most 4, got 0
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op block size along axis 1 must be at least 1, got -1
%x, %s = "test.make"() : () -> (tensor<4x?xf32>, tensor<1x?xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 4, -1>, quantized_type = !quant.any<i8:f32>} : (tensor<4x?xf32>, tensor<1x?xf32>) -> tensor<4x?xi8>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op block size along axis 0 must be at least 1 and at most 4, got 5
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<1xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<i64: 5>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<1xf32>) -> tensor<4xi8>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op scales have the shape 2, expected 3, one for each block
%q, %s = "test.make"() : () -> (tensor<5xi8>, tensor<2xf32>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<5xi8>, tensor<2xf32>) -> tensor<5xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op scales must be a ranked tensor, got 'f32'
%q, %s = "test.make"() : () -> (tensor<4xi8>, f32)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 4>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, f32) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op scales must have a floating-point type not wider than the expressed type 'f32', got 'f64'
%q, %s = "test.make"() : () -> (tensor<4xi8>, tensor<2xf64>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf64>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op scales must have a floating-point type not wider than the expressed type 'f16', got 'bf16'
%q, %s = "test.make"() : () -> (tensor<4xi8>, tensor<2xbf16>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f16>} : (tensor<4xi8>, tensor<2xbf16>) -> tensor<4xf16>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op scales must have a floating-point type not wider than the expressed type 'f32', got 'i32'
%q, %s = "test.make"() : () -> (tensor<4xi8>, tensor<2xi32>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xi32>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op zero points have the shape 3, expected 2, one for each block
%q, %s, %z = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>, tensor<3xi8>)
%x = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>, tensor<3xi8>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op zero points must have an integer type of 2 to 8 bits, not wider than the storage type, got 'i16'
%q, %s, %z = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>, tensor<2xi16>)
%x = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>, tensor<2xi16>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op zero points must have an integer type of 2 to 8 bits, not wider than the storage type, got 'f32'
%q, %s, %z = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>, tensor<2xf32>)
%x = "subquant.dequantize"(%q, %s, %z) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
// -----
// error @+2:6 ParseError: 'subquant.dequantize' op attribute "block_sizes" is expected but not provided
%q, %s = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>)
%x = "subquant.dequantize"(%q, %s) {operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>) -> tensor<4xf32>
// -----
// error @+2:6 ParseError: sum of elements in 'operandSegmentSizes' attribute must be equal to the number of operands
%q = "test.make"() : () -> tensor<4xi8>
%x = "subquant.dequantize"(%q) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.qcast' op operand and result must have one shape, got vector<4xf32> and 4
%x = "test.make"() : () -> vector<4xf32>
%q = "subquant.qcast"(%x) : (vector<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op stored value must be a ranked tensor, got 'vector<4xi8>'
%q, %s = "test.make"() : () -> (vector<4xi8>, tensor<2xf32>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (vector<4xi8>, tensor<2xf32>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op scales must be a ranked tensor, got 'vector<2xf32>'
%q, %s = "test.make"() : () -> (tensor<4xi8>, vector<2xf32>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, vector<2xf32>) -> tensor<4xf32>
// -----
// error @+2:6 ParseError: 'operandSegmentSizes' attribute is expected but not provided
%q, %s = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>)
%x = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 2>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op offsets have the shape 3, expected 2, one for each block
%q, %s, %o = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>, tensor<3xf32>)
%x = "subquant.dequantize"(%q, %s, %o) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 1>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>, tensor<3xf32>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.dequantize' op offsets must have a floating-point type not wider than the expressed type 'f32', got 'i8'
%q, %s, %o = "test.make"() : () -> (tensor<4xi8>, tensor<2xf32>, tensor<2xi8>)
%x = "subquant.dequantize"(%q, %s, %o) {block_sizes = array<i64: 2>, operandSegmentSizes = array<i32: 1, 1, 0, 1>, quantized_type = !quant.any<i8:f32>} : (tensor<4xi8>, tensor<2xf32>, tensor<2xi8>) -> tensor<4xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'quantized_type' must be a type !quant.any<storage<min:max>:expressed>, got 'i4'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = i4} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'indexing_maps' must have three maps of the same loops, for activations, storage and result, got '[affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>]'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'indexing_maps' must have three maps of the same loops, for activations, storage and result, got '[affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1) -> (d0, d1)>]'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op storage must be a ranked tensor, got 'tensor<*xi4>'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<*xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<*xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the indexing map of activations must have loops, or sums of two loops times constants, got '(d0, d1, d2) -> (d0, d2 floordiv 2)'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k floordiv 2)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the indexing map of storage must have 2 results, one for each axis, got '(d0, d1, d2) -> (d2)'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the indexing map of storage must have another loop for each axis, got '(d0, d1, d2) -> (d2, d2)'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the indexing map of activations steps over an axis; expected a window
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k * 2)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the indexing map of activations has a window whose first loop is not one of the result alone, or whose second is not one of the storage alone
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, n + k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op loop 3 indexes neither activations nor storage
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k, l) -> (m, k)>, affine_map<(m, n, k, l) -> (n, k)>, affine_map<(m, n, k, l) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op loop 0 is summed over, and does not index the storage
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op axis 1 of storage has the size 8, expected 9, that of loop 2
%x, %q, %s = "test.make"() : () -> (tensor<5x9xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x9xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op axis 1 of activations has the size 8, and its window reaches 9
%x, %q, %s = "test.make"() : () -> (tensor<1x8x4xf32>, tensor<6x3x4xi4>, tensor<6x3x1xf32>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 1, 4>, indexing_maps = [affine_map<(b, o, f, k, c) -> (b, o * 2 + k, c)>, affine_map<(b, o, f, k, c) -> (f, k, c)>, affine_map<(b, o, f, k, c) -> (b, o, f)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<1x8x4xf32>, tensor<6x3x4xi4>, tensor<6x3x1xf32>) -> tensor<1x4x6xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op axis 1 of activations has a window and a dynamic size
%x, %q, %s = "test.make"() : () -> (tensor<1x?x4xf32>, tensor<6x3x4xi4>, tensor<6x3x1xf32>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 1, 4>, indexing_maps = [affine_map<(b, o, f, k, c) -> (b, o * 2 + k, c)>, affine_map<(b, o, f, k, c) -> (f, k, c)>, affine_map<(b, o, f, k, c) -> (b, o, f)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<1x?x4xf32>, tensor<6x3x4xi4>, tensor<6x3x1xf32>) -> tensor<1x4x6xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op axis 1 of storage is a window's and has blocks of 2; expected 1 or 4
%x, %q, %s = "test.make"() : () -> (tensor<1x8x4xf32>, tensor<6x4x4xi4>, tensor<6x2x1xf32>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 2, 4>, indexing_maps = [affine_map<(b, o, f, k, c) -> (b, o + k, c)>, affine_map<(b, o, f, k, c) -> (f, k, c)>, affine_map<(b, o, f, k, c) -> (b, o, f)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<1x8x4xf32>, tensor<6x4x4xi4>, tensor<6x2x1xf32>) -> tensor<1x4x6xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'block_sizes' must be array<i64: ...>, got '4 : i64'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = 4, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'block_sizes' must have an entry for each of the 2 axes of storage, got 1
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op storage must have a static shape, got 'tensor<?x8xi4>'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<?x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<?x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op block size along axis 1 of storage must divide its size 8, got 3
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 3>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op block size along axis 0 of storage must divide its size 3, got 0
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 0, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op scales must have the shape 3x2, one for each block, got 'tensor<3x4xf16>'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x4xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x4xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op offsets must have the shape 3x2, one for each block, got 'tensor<3xf32>'
%x, %q, %s, %e = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>, tensor<3xf32>)
%y = "subquant.block_contraction"(%x, %q, %s, %e) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>, tensor<3xf32>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op storage must have elements of the storage type 'i4', got 'i8'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi8>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi8>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op activations must have a floating-point type not wider than the accumulator type 'f32', got 'f64'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf64>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf64>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op scales must have a floating-point type not wider than the accumulator type 'f32', got 'i8'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xi8>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xi8>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op result must have a floating-point type, got 'i32'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xi32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op zero points must have an integer type of 2 to 4 bits, not wider than the storage type, got 'i8'
%x, %q, %s, %e = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>, tensor<3x2xi8>)
%y = "subquant.block_contraction"(%x, %q, %s, %e) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>, tensor<3x2xi8>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op axis 1 of activations is dynamic, and storage has blocks there
%x, %q, %s = "test.make"() : () -> (tensor<5x?xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<5x?xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op attribute 'bits' must be array<i64: ...> of one of [2], [2, 1], [4], [4, 1], [4, 2], got 'array<i64: 3>'
%l = "test.make"() : () -> (tensor<2x3xi8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 3>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x3xi8>) -> tensor<2x8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op attribute 'bits' must be array<i64: ...> of one of [2], [2, 1], [4], [4, 1], [4, 2], got '4 : i64'
%l = "test.make"() : () -> (tensor<2x3xi8>)
%q = "subquant.unpack"(%l) {bits = 4, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x3xi8>) -> tensor<2x6xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op attribute 'bits' has 2 entries, and there are 1 planes
%l = "test.make"() : () -> (tensor<2x4xi8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4, 2>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x4xi8>) -> tensor<2x8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op attribute 'bits' has 1 entries, and there are 2 planes
%l, %h = "test.make"() : () -> (tensor<2x4xi8>, tensor<2x2xi8>)
%q = "subquant.unpack"(%l, %h) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2x4xi8>, tensor<2x2xi8>) -> tensor<2x8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op low must be a tensor of i8 whose last axis is static, got 'tensor<2x3xi16>'
%l = "test.make"() : () -> (tensor<2x3xi16>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x3xi16>) -> tensor<2x6xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op low must be a tensor of i8 whose last axis is static, got 'tensor<i8>'
%l = "test.make"() : () -> (tensor<i8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<i8>) -> tensor<i8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op high must be a tensor of i8 whose last axis is static, got 'tensor<2x?xi8>'
%l, %h = "test.make"() : () -> (tensor<2x4xi8>, tensor<2x?xi8>)
%q = "subquant.unpack"(%l, %h) {bits = array<i64: 4, 2>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2x4xi8>, tensor<2x?xi8>) -> tensor<2x8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op high must have the shape 2x2, got 'tensor<2x4xi8>'
%l, %h = "test.make"() : () -> (tensor<2x4xi8>, tensor<2x4xi8>)
%q = "subquant.unpack"(%l, %h) {bits = array<i64: 4, 2>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2x4xi8>, tensor<2x4xi8>) -> tensor<2x8xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op low has a last axis of 3 bytes, and its integers of 2 bits would not fill the bytes of the other plane
%l, %h = "test.make"() : () -> (tensor<2x3xi8>, tensor<2x1xi8>)
%q = "subquant.unpack"(%l, %h) {bits = array<i64: 4, 2>, operandSegmentSizes = array<i32: 1, 1>} : (tensor<2x3xi8>, tensor<2x1xi8>) -> tensor<2x6xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op result must have the shape ?x6, got 'tensor<?x7xi8>'
%l = "test.make"() : () -> (tensor<?x3xi8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<?x3xi8>) -> tensor<?x7xi8>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op result must have integers of 4 to 8 bits, got 'i3'
%l = "test.make"() : () -> (tensor<2x3xi8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x3xi8>) -> tensor<2x6xi3>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op result must have integers of 4 to 8 bits, got 'f32'
%l = "test.make"() : () -> (tensor<2x3xi8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<2x3xi8>) -> tensor<2x6xf32>
// -----
// error @+2:6 VerificationError: 'subquant.unpack' op low must be a ranked tensor, got 'tensor<*xi8>'
%l = "test.make"() : () -> (tensor<*xi8>)
%q = "subquant.unpack"(%l) {bits = array<i64: 4>, operandSegmentSizes = array<i32: 1, 0>} : (tensor<*xi8>) -> tensor<2x6xi8>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op has operand 'storage high' without attribute 'plane_bits'
%x, %q, %s, %h = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>, tensor<3x2xi8>)
%y = "subquant.block_contraction"(%x, %q, %s, %h) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>, tensor<3x2xi8>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'plane_bits' must be array<i64: ...> of one of [2], [2, 1], [4], [4, 1], [4, 2], got 'array<i64: 8>'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x4xi8>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, plane_bits = array<i64: 8>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x4xi8>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op storage has 6 bits in its planes, expected a storage type of as many to 8 bits, got i4
%x, %q, %s, %h = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x4xi8>, tensor<3x2xf16>, tensor<3x2xi8>)
%y = "subquant.block_contraction"(%x, %q, %s, %h) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1>, plane_bits = array<i64: 4, 2>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x4xi8>, tensor<3x2xf16>, tensor<3x2xi8>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op axis 1 of storage has the size 16, expected 8, that of loop 2
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi8>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, plane_bits = array<i64: 4>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi8>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op block size along axis 1 of storage must fill bytes of its planes, a multiple of 4, got 2
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x2xi8>, tensor<3x4xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 2>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, plane_bits = array<i64: 2>, quantized_type = !quant.any<i2:f32>} : (tensor<5x8xf32>, tensor<3x2xi8>, tensor<3x4xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'activation_type' must be "float" or "int8", got '"int4"'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, activation_type = "int4", quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'activation_type' must be "float" or "int8", got '8 : i64'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, activation_type = 8, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op attribute 'activation_block_sizes' must be array<i64: ...> of 2 entries, one for each axis of storage, got 'array<i64: 8>'
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, activation_type = "int8", activation_block_sizes = array<i64: 8>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the block size of activations along axis 1 of storage must be that of storage, 4, or a multiple of it that divides 8 where blocks have several elements, got 6
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, activation_type = "int8", activation_block_sizes = array<i64: 1, 6>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.block_contraction' op the block size of activations along axis 0 of storage must be that of storage, 1, or a multiple of it that divides 3 where blocks have several elements, got 3
%x, %q, %s = "test.make"() : () -> (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>)
%y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 4>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, activation_type = "int8", activation_block_sizes = array<i64: 3, 4>, quantized_type = !quant.any<i4:f32>} : (tensor<5x8xf32>, tensor<3x8xi4>, tensor<3x2xf16>) -> tensor<5x3xf32>
// -----
// error @+2:6 VerificationError: 'subquant.quantize' op attribute 'array<ui8: 0>' has another element type than i64
%x, %s = "test.make"() : () -> (tensor<4xf32>, tensor<2xf32>)
%q = "subquant.quantize"(%x, %s) {block_sizes = array<ui8: 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4xf32>, tensor<2xf32>) -> tensor<4xi8>
// -----
// error @+1:1 VerificationError: 'util.global' op must have the attribute 'sym_name', a string
"util.global"() {type = tensor<8xi4>, initial_value = dense<1> : tensor<8xi4>} : () -> ()
// -----
// error @+1:1 VerificationError: 'util.global' op must have the attribute 'type', a type
"util.global"() {sym_name = "w", type = 1 : i64} : () -> ()
// -----
// error @+1:6 VerificationError: 'util.global.load' op must have the attribute 'global', a symbol
%0 = "util.global.load"() : () -> tensor<8xi4>
// -----
// error @+2:1 VerificationError: 'util.global.store' op must have the attribute 'global', a symbol
%0 = "test.make"() : () -> tensor<8xi4>
"util.global.store"(%0) {global = "w"} : (tensor<8xi4>) -> ()
// -----
// error @+2:6 VerificationError: 'subquant.attention' op query must be a tensor of 3 dimensions, got 'tensor<4x8xf32>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op values must be a tensor of 3 dimensions, got 'tensor<*xf16>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<*xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<*xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op query must have elements of f32, and a dynamic first dimension only, got 'tensor<2x4x8xf16>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf16>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf16>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf16>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op query must have elements of f32, and a dynamic first dimension only, got 'tensor<?x?x8xf32>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<?x?x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<?x?x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<?x?x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op keys must have elements of f16, f32 or i8 and static dimensions, got 'tensor<16x2x8xi16>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xi16>, tensor<16x2x8xi16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xi16>, tensor<16x2x8xi16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op keys of i8 must have rows of 10 bytes (int8) for heads of 8 elements, got 8
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xi8>, tensor<16x2x8xi8>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xi8>, tensor<16x2x8xi8>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op values of i8 must have rows of 34 bytes (int8) or 18 bytes (int4) for heads of 32 elements, got 32
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x32xf32>, tensor<16x2x18xi8>, tensor<16x2x32xi8>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x32xf32>, tensor<16x2x18xi8>, tensor<16x2x32xi8>, tensor<i32>) -> tensor<2x4x32xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op values must have the positions and heads of keys, 'tensor<16x2x18xi8>', got 'tensor<16x1x34xi8>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x32xf32>, tensor<16x2x18xi8>, tensor<16x1x34xi8>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x32xf32>, tensor<16x2x18xi8>, tensor<16x1x34xi8>, tensor<i32>) -> tensor<2x4x32xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op keys must have elements of f16, f32 or i8 and static dimensions, got 'tensor<?x2x8xf16>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<?x2x8xf16>, tensor<?x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<?x2x8xf16>, tensor<?x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op values must be of the type of keys, 'tensor<16x2x8xf16>', got 'tensor<16x2x8xf32>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf32>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf32>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op position must be 'tensor<i32>', got 'tensor<1xi32>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<1xi32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<1xi32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op result must be of the type of the query, 'tensor<2x4x8xf32>', got 'tensor<?x4x8xf32>'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<?x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op query and keys must have rows of one length, got 8 and 16
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x16xf16>, tensor<16x2x16xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x16xf16>, tensor<16x2x16xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op heads, rows and context must have elements, got none
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x0x8xf16>, tensor<16x0x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x0x8xf16>, tensor<16x0x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op the heads of the query must be a multiple of those of the keys, got 4 and 3
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x3x8xf16>, tensor<16x3x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x3x8xf16>, tensor<16x3x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op 17 queries are more than the 16 positions of the keys
%q, %k, %v, %p = "test.make"() : () -> (tensor<17x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<17x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<17x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op attribute 'scale' must be a finite number of type f32, got '5.000000e-01 : f64'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f64, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op attribute 'scale' must be a finite number of type f32, got '0x7F800000 : f32'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0x7F800000 : f32, softcap = 0.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op attribute 'softcap' must be a finite number of type f32, got '30 : i64'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 30 : i64, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op attribute 'softcap' must be at least 0, got -1
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = -1.0 : f32, window = 0 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op attribute 'window' must be of type i64, got '4 : i32'
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = 4 : i32} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
// -----
// error @+2:6 VerificationError: 'subquant.attention' op attribute 'window' must be at least 0, got -4
%q, %k, %v, %p = "test.make"() : () -> (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>)
%y = "subquant.attention"(%q, %k, %v, %p) {scale = 0.5 : f32, softcap = 0.0 : f32, window = -4 : i64} : (tensor<2x4x8xf32>, tensor<16x2x8xf16>, tensor<16x2x8xf16>, tensor<i32>) -> tensor<2x4x8xf32>
