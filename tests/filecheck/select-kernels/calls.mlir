// RUN: subquant opt %s --passes "select-kernels{instructions=avx2}" | filecheck %s

// Rows are rounded to 8 bits, a scale and a sum for each block of 32; 64 columns are 8 tiles, 128
// integers of 4 bits in each of the 8 lanes are 4 steps of 4 vectors of 32 bytes.
// CHECK: "stream.executable"
// CHECK: func.func @block_product(
// CHECK: scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>, vector<8xf32>)
// CHECK-COUNT-24: llvm.call_intrinsic "llvm.x86.avx2.pmadd.ub.sw"
// CHECK-COUNT-3: llvm.call_intrinsic "llvm.x86.avx2.pmadd.wd"
// CHECK-COUNT-3: math.fma
// CHECK: scf.yield
// CHECK: sym_name = "block_product", sym_visibility = "private"
// CHECK: func.func @round_rows(
// CHECK: vector.reduction <maximumf>
// CHECK-LABEL: func.func @product(
// CHECK-SAME: %[[X:.*]]: tensor<3x128xf32>,
// CHECK: %[[R:.*]]:3 = "flow.dispatch"(%[[X]]) {entry_points = [@round_rows::@round_rows]
// CHECK-SAME: -> (tensor<3x128xi8>, tensor<3x4xf32>, tensor<3x4xi32>)
// CHECK: %[[Y:.*]] = "flow.dispatch"(%{{.*}}, %{{.*}}, %[[R]]#0, %[[R]]#1, %[[R]]#2) {entry_points = [@block_product::@block_product]
// CHECK-SAME: (tensor<16x4x128xi8>, tensor<16x4x8xf32>, tensor<3x128xi8>, tensor<3x4xf32>, tensor<3x4xi32>) -> tensor<3x128xf32>
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
