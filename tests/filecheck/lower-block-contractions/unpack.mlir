// RUN: subquant opt %s --passes "pack-narrow-storage,fuse-block-contractions,lower-block-contractions{unpack=true}" | filecheck %s

// The bytes of a packed weight are unpacked ahead of the loops, which read integers.
// CHECK-LABEL: func.func @packed(
// CHECK-SAME: %[[X:[^: ]+]]: tensor<1x64xf32>, %[[B:[^: ]+]]: tensor<8x32xi8>
// CHECK: %[[Q:[^: ]+]] = "subquant.unpack"(%[[B]]) {bits = array<i64: 4>, {{.*}}} : (tensor<8x32xi8>) -> tensor<8x64xi4>
// CHECK: linalg.generic
// CHECK-NOT: linalg.index
// CHECK: arith.extsi %{{.*}} : i4 to i32
func.func @packed(%x: tensor<1x64xf32>, %q: tensor<8x64xi4>, %s: tensor<8x2xf32>) -> tensor<1x8xf32> {
  %w = "subquant.dequantize"(%q, %s) {block_sizes = array<i64: 1, 32>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<8x64xi4>, tensor<8x2xf32>) -> tensor<8x64xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<1x64xf32>, tensor<8x64xf32>) -> tensor<1x8xf32>
  return %y : tensor<1x8xf32>
}
