// RUN: subquant opt %s --passes "select-kernels{instructions=avx2 joined-products=0}" | filecheck %s

// Rows are rounded to 8 bits, a scale and a sum for each block of 32; 64 columns are 8 tiles, 128
// integers of 4 bits in each of the 8 lanes are 4 steps of 4 vectors of 32 bytes.
// CHECK: "stream.executable"
// CHECK: func.func @blockwise_gemm(
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>, vector<8xf32>)
// CHECK-COUNT-24: llvm.call_intrinsic "llvm.x86.avx2.pmadd.ub.sw"
// CHECK-COUNT-3: llvm.call_intrinsic "llvm.x86.avx2.pmadd.wd"
// CHECK-COUNT-3: math.fma
// CHECK: scf.yield
// CHECK: sym_name = "blockwise_gemm", sym_visibility = "private"
// CHECK: func.func @quantize_rows(
// CHECK: vector.reduction <maxui>, {{.*}} into i32
// CHECK-LABEL: func.func @product(
// CHECK-SAME: %[[X:.*]]: tensor<3x128xf32>,
// CHECK: %[[R:.*]]:2 = "flow.dispatch"(%[[X]]) {entry_points = [@quantize_rows::@quantize_rows]
// CHECK-SAME: -> (tensor<3x192xi8>, tensor<3x16xi32>)
// CHECK: %[[Y:.*]] = "flow.dispatch"(%{{.*}}, %{{.*}}, %[[R]]#0, %[[R]]#1) {entry_points = [@blockwise_gemm::@blockwise_gemm]
// CHECK-SAME: (tensor<16x4x128xi8>, tensor<16x4x8xf32>, tensor<3x192xi8>, tensor<3x16xi32>) -> tensor<3x128xf32>
// CHECK: return %[[Y]]
func.func @product(%x: tensor<3x128xf32>, %q: tensor<128x64xi8>, %s: tensor<128x4xf32>) -> tensor<3x128xf32> {
  %y = "subquant.block_contraction"(%x, %q, %s) {
      activation_type = "int8", block_sizes = array<i64: 1, 32>, plane_bits = array<i64: 4>,
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                       affine_map<(m, n, k) -> (m, n)>],
      operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i4:f32>}
      : (tensor<3x128xf32>, tensor<128x64xi8>, tensor<128x4xf32>) -> tensor<3x128xf32>
  return %y : tensor<3x128xf32>
}

// What follows the sums of integers is done by their kernel: a bias, the change of scale, a clamp.
// Floats tell what most sums give; vectors with one that is near a tie are computed in integers.
// CHECK-LABEL: func.func @requantized(
// CHECK: %[[Q:.*]] = "flow.dispatch"({{.*}}) {entry_points = [@int8_conv::@int8_conv]
// CHECK-SAME: -> tensor<1x16x64xi8>
// CHECK-NOT: subquant.requantize
// CHECK-NOT: stablehlo.maximum
// CHECK: return
func.func @requantized(%x: tensor<16x64xi8>, %w: tensor<64x64xi8>) -> tensor<16x64xi8> {
  %sums = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<16x64xi8>, tensor<64x64xi8>) -> tensor<16x64xi32>
  %b = stablehlo.constant dense<5> : tensor<64xi32>
  %bias = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<64xi32>) -> tensor<16x64xi32>
  %all = stablehlo.add %sums, %bias : tensor<16x64xi32>
  %q = "subquant.requantize"(%all) {scales = [dense<0.01> : tensor<f64>],
      bounds = array<i64: 1048581>, quantized_type = !quant.uniform<i8:f32, 0.5:3>}
      : (tensor<16x64xi32>) -> tensor<16x64xi8>
  %zero = stablehlo.constant dense<3> : tensor<16x64xi8>
  %y = stablehlo.maximum %q, %zero : tensor<16x64xi8>
  return %y : tensor<16x64xi8>
}
