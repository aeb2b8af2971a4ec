// RUN: subquant opt %s --passes "verify-quantization,select-kernels{instructions=spirv-cpu}" | filecheck %s
// RUN: subquant opt %s --passes "verify-quantization,select-kernels{instructions=spirv}" | filecheck %s --check-prefix GPU

// One executable, whose threads have a loop of their own; no tensor of the 256x256 reals is made,
// and no operation is left of those that would make one.
// CHECK: sym_name = "blockwise_gemm"
// CHECK: pass_pipeline<"iree-codegen-gpu-distribute-scf-for"> workgroup_size = [32, 1, 1]>
// CHECK: iree.gpu.distribute_dim
// CHECK-LABEL: func.func @main(
// CHECK-NOT: tensor<256x256xf32>
// CHECK: "flow.dispatch"
// CHECK-SAME: entry_points = [@blockwise_gemm::@blockwise_gemm]
// CHECK-SAME: -> tensor<8x256xf32>
// CHECK-NOT: tensor<256x256xf32>
// CHECK: return

// On a GPU two workgroups have half of each sum.
// GPU-LABEL: func.func @main(
// GPU: %[[SUMS:.+]] = "flow.dispatch"
// GPU-SAME: -> tensor<8x2x256xf32>
// GPU: stablehlo.reduce(%[[SUMS]] {{.+}} stablehlo.add across dimensions = [1]
func.func @main(%x: tensor<8x256xf32>, %q: tensor<256x256xi8>, %s: tensor<256x8xf32>) -> tensor<8x256xf32> {
  %y = "subquant.block_contraction"(%x, %q, %s) {block_sizes = array<i64: 1, 32>, indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<8x256xf32>, tensor<256x256xi8>, tensor<256x8xf32>) -> tensor<8x256xf32>
  return %y : tensor<8x256xf32>
}
