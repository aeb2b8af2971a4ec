// RUN: subquant opt %s --passes "select-kernels{instructions=avx2 explain=true}" 2>&1 | filecheck %s

// Reals are multiplied by IREE's loops, unless the weight is laid out once: here it is computed.
// CHECK: remark: 'subquant.block_contraction' op has no kernel: its activations are not quantized to int8 and its weight is not constant
// CHECK: remark: 'subquant.block_contraction' op has no kernel: it is small
// CHECK-NOT: stream.executable
// CHECK-LABEL: func.func @reals(
// CHECK: subquant.block_contraction
func.func @reals(%x: tensor<3x128xf32>, %p: tensor<128x128xi8>, %r: tensor<128x128xi8>, %s: tensor<128x4xf32>) -> tensor<3x128xf32> {
  %q = stablehlo.xor %p, %r : tensor<128x128xi8>
  %y = "subquant.block_contraction"(%x, %q, %s) {
      block_sizes = array<i64: 1, 32>,
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                       affine_map<(m, n, k) -> (m, n)>],
      operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>}
      : (tensor<3x128xf32>, tensor<128x128xi8>, tensor<128x4xf32>) -> tensor<3x128xf32>
  return %y : tensor<3x128xf32>
}

// CHECK-LABEL: func.func @small(
// CHECK: subquant.block_contraction
func.func @small(%x: tensor<3x64xf32>, %q: tensor<8x64xi8>, %s: tensor<8x2xf32>) -> tensor<3x8xf32> {
  %y = "subquant.block_contraction"(%x, %q, %s) {
      activation_type = "int8", block_sizes = array<i64: 1, 32>,
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                       affine_map<(m, n, k) -> (m, n)>],
      operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>}
      : (tensor<3x64xf32>, tensor<8x64xi8>, tensor<8x2xf32>) -> tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}
