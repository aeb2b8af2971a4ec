// RUN: subquant opt %s --passes "pack-narrow-storage,raise-dequantization" --split-input-file | filecheck %s

// Blocks by a reshape; the packed argument stays packed.
// CHECK-LABEL: func.func @blocks(
// CHECK-SAME: %[[Q:[^: ]+]]: tensor<64x4xi8>, %[[S:[^: ]+]]: tensor<2x8xf32>)
// CHECK-NEXT: %[[I:[^: ]+]] = "subquant.unpack"(%[[Q]])
// CHECK-NEXT: %[[W:[^: ]+]] = "subquant.dequantize"(%[[I]], %[[S]]) {block_sizes = array<i64: 32, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i4:f32>} : (tensor<64x8xi4>, tensor<2x8xf32>) -> tensor<64x8xf32>
// CHECK-NEXT: return %[[W]]
func.func @blocks(%q: tensor<64x8xi4>, %s: tensor<2x8xf32>) -> tensor<64x8xf32> {
  %0 = stablehlo.convert %q : (tensor<64x8xi4>) -> tensor<64x8xf32>
  %1 = stablehlo.reshape %0 : (tensor<64x8xf32>) -> tensor<2x32x8xf32>
  %2 = stablehlo.broadcast_in_dim %s, dims = [0, 2] : (tensor<2x8xf32>) -> tensor<2x32x8xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<2x32x8xf32>
  %w = stablehlo.reshape %3 : (tensor<2x32x8xf32>) -> tensor<64x8xf32>
  return %w : tensor<64x8xf32>
}

// -----

// Stored as blocks: the bytes are reshaped. Zero points are integers, unsigned ones of few bits too.
// CHECK-LABEL: func.func @zero_points(
// CHECK-SAME: %[[Q:[^: ]+]]: tensor<8x2x16xi8>, %[[Z:[^: ]+]]: tensor<8x2x1xui4>, %[[S:[^: ]+]]: tensor<8x2xf16>)
// CHECK-NEXT: %[[B:[^: ]+]] = stablehlo.reshape %[[Q]] : (tensor<8x2x16xi8>) -> tensor<8x32xi8>
// CHECK-NEXT: %[[I:[^: ]+]] = "subquant.unpack"(%[[B]]) {{.*}} -> tensor<8x64xi4>
// CHECK-NEXT: %[[R:[^: ]+]] = stablehlo.reshape %[[Z]] : (tensor<8x2x1xui4>) -> tensor<8x2xui4>
// CHECK-NEXT: %[[N:[^: ]+]] = stablehlo.bitcast_convert %[[R]] : (tensor<8x2xui4>) -> tensor<8x2xi4>
// CHECK-NEXT: %[[W:[^: ]+]] = "subquant.dequantize"(%[[I]], %[[S]], %[[N]]) {block_sizes = array<i64: 1, 32>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<u4:f16>}
// CHECK-NEXT: %[[T:[^: ]+]] = stablehlo.transpose %[[W]], dims = [1, 0] : (tensor<8x64xf16>) -> tensor<64x8xf16>
// CHECK-NEXT: return %[[T]]
func.func @zero_points(%q: tensor<8x2x32xui4>, %z: tensor<8x2x1xui4>, %s: tensor<8x2xf16>) -> tensor<64x8xf16> {
  %0 = stablehlo.convert %q : (tensor<8x2x32xui4>) -> tensor<8x2x32xf16>
  %1 = stablehlo.convert %z : (tensor<8x2x1xui4>) -> tensor<8x2x1xf16>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1, 2] : (tensor<8x2x1xf16>) -> tensor<8x2x32xf16>
  %3 = stablehlo.subtract %0, %2 : tensor<8x2x32xf16>
  %4 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<8x2xf16>) -> tensor<8x2x32xf16>
  %5 = stablehlo.multiply %4, %3 : tensor<8x2x32xf16>
  %6 = stablehlo.reshape %5 : (tensor<8x2x32xf16>) -> tensor<8x64xf16>
  %w = stablehlo.transpose %6, dims = [1, 0] : (tensor<8x64xf16>) -> tensor<64x8xf16>
  return %w : tensor<64x8xf16>
}

// -----

// Offsets that are subtracted, and a constant scale.
// CHECK-LABEL: func.func @offsets(
// CHECK-SAME: %[[Q:[^: ]+]]: tensor<6x8xi8>, %[[O:[^: ]+]]: tensor<8xf32>)
// CHECK-NEXT: %[[S:[^: ]+]] = stablehlo.constant dense<2.500000e-01> : tensor<1x8xf32>
// CHECK-NEXT: %[[R:[^: ]+]] = stablehlo.reshape %[[O]] : (tensor<8xf32>) -> tensor<1x8xf32>
// CHECK-NEXT: %[[N:[^: ]+]] = stablehlo.negate %[[R]] : tensor<1x8xf32>
// CHECK-NEXT: %[[W:[^: ]+]] = "subquant.dequantize"(%[[Q]], %[[S]], %[[N]]) {block_sizes = array<i64: 6, 1>, operandSegmentSizes = array<i32: 1, 1, 0, 1>, quantized_type = !quant.any<i8:f32>}
// CHECK-NEXT: return %[[W]]
func.func @offsets(%q: tensor<6x8xi8>, %o: tensor<8xf32>) -> tensor<6x8xf32> {
  %s = stablehlo.constant dense<0.25> : tensor<6x8xf32>
  %0 = stablehlo.convert %q : (tensor<6x8xi8>) -> tensor<6x8xf32>
  %1 = stablehlo.multiply %0, %s : tensor<6x8xf32>
  %2 = stablehlo.broadcast_in_dim %o, dims = [1] : (tensor<8xf32>) -> tensor<6x8xf32>
  %w = stablehlo.subtract %1, %2 : tensor<6x8xf32>
  return %w : tensor<6x8xf32>
}

// -----

// A weight whose scale is applied after the contraction.
// CHECK-LABEL: func.func @scaled_after(
// CHECK: %[[S:[^: ]+]] = stablehlo.constant dense<1.000000e+00> : tensor<1x1xf32>
// CHECK-NEXT: %[[W:[^: ]+]] = "subquant.dequantize"(%{{.*}}, %[[S]]) {block_sizes = array<i64: 64, 8>, {{.*}}}
// CHECK-NEXT: stablehlo.dot_general %{{.*}}, %[[W]]
func.func @scaled_after(%x: tensor<4x64xf32>, %q: tensor<64x8xi8>, %s: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = stablehlo.convert %q : (tensor<64x8xi8>) -> tensor<64x8xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<4x64xf32>, tensor<64x8xf32>) -> tensor<4x8xf32>
  %2 = stablehlo.multiply %1, %s : tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// Float zero points that are clamped integers of the storage's range need no offsets, others do.
// CHECK-LABEL: func.func @computed_zero_point(
// CHECK: %[[C:[^: ]+]] = stablehlo.clamp {{.*}} : tensor<i32>
// CHECK: %[[Z:[^: ]+]] = stablehlo.convert %{{.*}} : (tensor<1x1xi32>) -> tensor<1x1xi8>
// CHECK: "subquant.dequantize"(%{{.*}}, %{{.*}}, %[[Z]]) {{{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 0>
// CHECK: "subquant.dequantize"({{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 1>
func.func @computed_zero_point(%x: tensor<4x6xf32>, %q: tensor<6x8xi8>, %z: tensor<i32>, %s: tensor<f32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %low = stablehlo.constant dense<-128> : tensor<i32>
  %high = stablehlo.constant dense<127> : tensor<i32>
  %0 = stablehlo.clamp %low, %z, %high : tensor<i32>
  %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<f32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<6x8xf32>
  %3 = stablehlo.convert %q : (tensor<6x8xi8>) -> tensor<6x8xf32>
  %4 = stablehlo.subtract %3, %2 : tensor<6x8xf32>
  %5 = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<6x8xf32>
  %6 = stablehlo.multiply %4, %5 : tensor<6x8xf32>
  %7 = stablehlo.dot %x, %6 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %8 = stablehlo.convert %z : (tensor<i32>) -> tensor<f32>
  %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<6x8xf32>
  %10 = stablehlo.subtract %3, %9 : tensor<6x8xf32>
  %11 = stablehlo.multiply %10, %5 : tensor<6x8xf32>
  %12 = stablehlo.dot %x, %11 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  return %7, %12 : tensor<4x8xf32>, tensor<4x8xf32>
}
