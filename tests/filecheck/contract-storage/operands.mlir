// RUN: subquant opt %s --passes "contract-storage" --split-input-file | filecheck %s

// One zero point and scale on the left, a scale for each N on the right: the product of scales is a constant.
// CHECK-LABEL: func.func @linear(
// CHECK-SAME: %[[X:[^: ]+]]: tensor<4x64xi8>, %[[W:[^: ]+]]: tensor<2x64xi8>)
// CHECK: %[[QX:[^: ]+]] = "subquant.scast"(%[[X]]) : (tensor<4x64xi8>) -> tensor<4x64x!quant.uniform<i8:f32, 1.000000e+00:-3>>
// CHECK-NEXT: %[[DX:[^: ]+]] = "subquant.subtract_zero_point"(%[[QX]])
// CHECK-NEXT: %[[QW:[^: ]+]] = "subquant.scast"(%[[W]]) : (tensor<2x64xi8>) -> tensor<2x64x!quant.uniform<i8:f32, 1.000000e+00>>
// CHECK-NEXT: %[[DW:[^: ]+]] = "subquant.subtract_zero_point"(%[[QW]])
// CHECK-NEXT: %[[A:[^: ]+]] = stablehlo.dot_general %[[DX]], %[[DW]], contracting_dims = [1] x [1] : (tensor<4x64xi32>, tensor<2x64xi32>) -> tensor<4x2xi32>
// CHECK: %[[F:[^: ]+]] = stablehlo.convert %[[A]] : (tensor<4x2xi32>) -> tensor<4x2xf32>
// CHECK: stablehlo.constant dense<[1.250000e-01, 5.000000e-01]> : tensor<2xf32>
// CHECK-NOT: subquant.dequantize
func.func @linear(%x: tensor<4x64xi8>, %w: tensor<2x64xi8>) -> tensor<4x2xf32> {
  %sx = stablehlo.constant dense<5.000000e-01> : tensor<1x1xf32>
  %zx = stablehlo.constant dense<-3> : tensor<1x1xi8>
  %sw = stablehlo.constant dense<[[2.500000e-01], [1.000000e+00]]> : tensor<2x1xf32>
  %0 = "subquant.dequantize"(%x, %sx, %zx) {block_sizes = array<i64: 4, 64>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x64xi8>, tensor<1x1xf32>, tensor<1x1xi8>) -> tensor<4x64xf32>
  %1 = "subquant.dequantize"(%w, %sw) {block_sizes = array<i64: 1, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x64xi8>, tensor<2x1xf32>) -> tensor<2x64xf32>
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

// A transposed weight of u8 with a zero point for each N; computed scales of each row on the left.
// CHECK-LABEL: func.func @transposed(
// CHECK-SAME: %[[X:[^: ]+]]: tensor<4x64xi8>, %[[S:[^: ]+]]: tensor<4x1xf32>, %[[W:[^: ]+]]: tensor<2x64xi8>)
// CHECK: %[[T:[^: ]+]] = stablehlo.transpose %[[W]], dims = [1, 0] : (tensor<2x64xi8>) -> tensor<64x2xi8>
// CHECK-NEXT: "subquant.scast"(%[[T]]) : (tensor<64x2xi8>) -> tensor<64x2x!quant.uniform<u8:f32:1, {1.000000e+00:128,1.000000e+00:7}>>
// CHECK: stablehlo.dot_general {{.*}} contracting_dims = [1] x [0] : (tensor<4x64xi32>, tensor<64x2xi32>) -> tensor<4x2xi32>
// CHECK: stablehlo.multiply
// CHECK: stablehlo.multiply
func.func @transposed(%x: tensor<4x64xi8>, %s: tensor<4x1xf32>, %w: tensor<2x64xi8>) -> tensor<4x2xf32> {
  %sw = stablehlo.constant dense<[[2.500000e-01], [1.000000e+00]]> : tensor<2x1xf32>
  %zw = stablehlo.constant dense<[[-128], [7]]> : tensor<2x1xi8>
  %0 = "subquant.dequantize"(%x, %s) {block_sizes = array<i64: 1, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x64xi8>, tensor<4x1xf32>) -> tensor<4x64xf32>
  %1 = "subquant.dequantize"(%w, %sw, %zw) {block_sizes = array<i64: 1, 64>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<u8:f32>} : (tensor<2x64xi8>, tensor<2x1xf32>, tensor<2x1xi8>) -> tensor<2x64xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<2x64xf32>) -> tensor<64x2xf32>
  %y = stablehlo.dot %0, %2 : (tensor<4x64xf32>, tensor<64x2xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

// A computed zero point: it is multiplied by the sums of the constant weight.
// CHECK-LABEL: func.func @computed_zero_point(
// CHECK: %[[A:[^: ]+]] = stablehlo.dot_general {{.*}} -> tensor<4x2xi32>
// CHECK: stablehlo.constant dense<[6, -4]> : tensor<2xi32>
// CHECK: %[[C:[^: ]+]] = stablehlo.multiply {{.*}} : tensor<4x2xi32>
// CHECK-NEXT: stablehlo.subtract %[[A]], %[[C]] : tensor<4x2xi32>
func.func @computed_zero_point(%x: tensor<4x3xi8>, %s: tensor<4x1xf32>, %z: tensor<4x1xi8>) -> tensor<4x2xf32> {
  %w = stablehlo.constant dense<[[1, 2, 3], [-5, 0, 1]]> : tensor<2x3xi8>
  %sw = stablehlo.constant dense<[[2.500000e-01], [1.000000e+00]]> : tensor<2x1xf32>
  %0 = "subquant.dequantize"(%x, %s, %z) {block_sizes = array<i64: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x3xi8>, tensor<4x1xf32>, tensor<4x1xi8>) -> tensor<4x3xf32>
  %1 = "subquant.dequantize"(%w, %sw) {block_sizes = array<i64: 1, 3>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x3xi8>, tensor<2x1xf32>) -> tensor<2x3xf32>
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x3xf32>, tensor<2x3xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

// A grouped convolution with padding and strides.
// CHECK-LABEL: func.func @grouped(
// CHECK: stablehlo.convolution(%{{[^,]+}}, %{{[^)]+}}) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [2, 2], pad = {{\[\[}}1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x4x8x8xi32>, tensor<6x2x3x3xi32>) -> tensor<1x6x4x4xi32>
func.func @grouped(%x: tensor<1x4x8x8xi8>, %w: tensor<6x2x3x3xi8>, %sw: tensor<6x1x1x1xf32>) -> tensor<1x6x4x4xf32> {
  %sx = stablehlo.constant dense<5.000000e-01> : tensor<1x1x1x1xf32>
  %zx = stablehlo.constant dense<5> : tensor<1x1x1x1xi8>
  %0 = "subquant.dequantize"(%x, %sx, %zx) {block_sizes = array<i64: 1, 4, 8, 8>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<1x4x8x8xi8>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xi8>) -> tensor<1x4x8x8xf32>
  %1 = "subquant.dequantize"(%w, %sw) {block_sizes = array<i64: 1, 2, 3, 3>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<6x2x3x3xi8>, tensor<6x1x1x1xf32>) -> tensor<6x2x3x3xf32>
  %y = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<1x4x8x8xf32>, tensor<6x2x3x3xf32>) -> tensor<1x6x4x4xf32>
  return %y : tensor<1x6x4x4xf32>
}

// -----

// A computed zero point of a convolution is the padding of the storage, and is multiplied by the sums of the weight.
// CHECK-LABEL: func.func @padded(
// CHECK-SAME: %[[X:[^: ]+]]: tensor<1x4x8x8xi8>, %[[Z:[^: ]+]]: tensor<1x1x1x1xi8>
// CHECK: %[[R:[^: ]+]] = stablehlo.reshape %[[Z]] : (tensor<1x1x1x1xi8>) -> tensor<i8>
// CHECK: %[[P:[^: ]+]] = stablehlo.pad %[[X]], %{{.*}}, low = [0, 0, 1, 0], high = [0, 0, 1, 2], interior = [0, 0, 0, 0] : (tensor<1x4x8x8xi8>, tensor<i8>) -> tensor<1x4x10x10xi8>
// CHECK: "subquant.scast"(%[[P]]) : (tensor<1x4x10x10xi8>) -> tensor<1x4x10x10x!quant.uniform<u8:f32, 1.000000e+00>>
// CHECK: %[[A:[^: ]+]] = stablehlo.convolution({{.*}} window = {pad = {{\[\[}}0, 0], [0, 0]]{{.*}} -> tensor<1x2x8x8xi32>
// CHECK: stablehlo.constant dense<[36, -72]> : tensor<2xi32>
// CHECK: %[[C:[^: ]+]] = stablehlo.multiply {{.*}} : tensor<1x2x8x8xi32>
// CHECK: stablehlo.subtract %[[A]], %{{[^ ]+}} : tensor<1x2x8x8xi32>
func.func @padded(%x: tensor<1x4x8x8xi8>, %z: tensor<1x1x1x1xi8>) -> tensor<1x2x8x8xf32> {
  %s = stablehlo.constant dense<5.000000e-01> : tensor<1x1x1x1xf32>
  %w = stablehlo.constant dense<[[[[1]]], [[[-2]]]]> : tensor<2x1x1x1xi8>
  %v = stablehlo.broadcast_in_dim %w, dims = [0, 1, 2, 3] : (tensor<2x1x1x1xi8>) -> tensor<2x4x3x3xi8>
  %0 = "subquant.dequantize"(%x, %s, %z) {block_sizes = array<i64: 1, 4, 8, 8>, operandSegmentSizes = array<i32: 1, 1, 1, 0>, quantized_type = !quant.any<u8:f32>} : (tensor<1x4x8x8xi8>, tensor<1x1x1x1xf32>, tensor<1x1x1x1xi8>) -> tensor<1x4x8x8xf32>
  %1 = "subquant.dequantize"(%v, %s) {block_sizes = array<i64: 2, 4, 3, 3>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x4x3x3xi8>, tensor<1x1x1x1xf32>) -> tensor<2x4x3x3xf32>
  %y = stablehlo.convolution(%0, %1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [0, 2]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x4x8x8xf32>, tensor<2x4x3x3xf32>) -> tensor<1x2x8x8xf32>
  return %y : tensor<1x2x8x8xf32>
}

// -----

// A reshape between the product and its quantization moves behind it, for the kernel's epilogue; the constants that
// the moved operations read are equal in all rows.
// CHECK-LABEL: func.func @reshaped(
// CHECK: %[[F:[^: ]+]] = stablehlo.convert {{.*}} : (tensor<4x2xi32>) -> tensor<4x2xf32>
// CHECK: %[[B:[^: ]+]] = stablehlo.broadcast_in_dim {{.*}}, dims = [1] : (tensor<2xf32>) -> tensor<4x2xf32>
// CHECK: %[[Y:[^: ]+]] = stablehlo.add {{.*}}, %[[B]] : tensor<4x2xf32>
// CHECK: %[[S:[^: ]+]] = stablehlo.constant dense<2.000000e+00> : tensor<4x2xf32>
// CHECK: %[[M:[^: ]+]] = stablehlo.multiply %[[Y]], %[[S]] : tensor<4x2xf32>
// CHECK: %[[Q:[^: ]+]] = stablehlo.convert %[[M]] : (tensor<4x2xf32>) -> tensor<4x2xi8>
// CHECK: %[[R:[^: ]+]] = stablehlo.reshape %[[Q]] : (tensor<4x2xi8>) -> tensor<2x2x2xi8>
// CHECK: stablehlo.multiply %{{.*}}, %{{.*}} : tensor<2x2x2xi8>
func.func @reshaped(%x: tensor<4x64xi8>, %w: tensor<2x64xi8>, %rows: tensor<2x2x2xi8>) -> tensor<2x2x2xi8> {
  %s = stablehlo.constant dense<5.000000e-01> : tensor<1x1xf32>
  %b = stablehlo.constant dense<[1.000000e+00, 3.000000e+00]> : tensor<2xf32>
  %two = stablehlo.constant dense<2.000000e+00> : tensor<f32>
  %0 = "subquant.dequantize"(%x, %s) {block_sizes = array<i64: 4, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<4x64xi8>, tensor<1x1xf32>) -> tensor<4x64xf32>
  %1 = "subquant.dequantize"(%w, %s) {block_sizes = array<i64: 2, 64>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<2x64xi8>, tensor<1x1xf32>) -> tensor<2x64xf32>
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
  %3 = stablehlo.reshape %y : (tensor<4x2xf32>) -> tensor<1x4x2xf32>
  %bias = stablehlo.broadcast_in_dim %b, dims = [2] : (tensor<2xf32>) -> tensor<1x4x2xf32>
  %4 = stablehlo.add %3, %bias : tensor<1x4x2xf32>
  %5 = stablehlo.reshape %4 : (tensor<1x4x2xf32>) -> tensor<2x2x2xf32>
  %6 = stablehlo.broadcast_in_dim %two, dims = [] : (tensor<f32>) -> tensor<2x2x2xf32>
  %7 = stablehlo.multiply %5, %6 : tensor<2x2x2xf32>
  %8 = stablehlo.convert %7 : (tensor<2x2x2xf32>) -> tensor<2x2x2xi8>
  %9 = stablehlo.multiply %8, %rows : tensor<2x2x2xi8>
  return %9 : tensor<2x2x2xi8>
}

// -----

// Both operands are views of one dequantized tensor.
// CHECK-LABEL: func.func @squared(
// CHECK-NOT: subquant.dequantize
// CHECK: stablehlo.dot_general {{.*}} contracting_dims = [1] x [0] : (tensor<4x64xi32>, tensor<64x4xi32>) -> tensor<4x4xi32>
// CHECK-NOT: subquant.dequantize
func.func @squared(%x: tensor<64x4xi8>) -> tensor<4x4xf32> {
  %s = stablehlo.constant dense<5.000000e-01> : tensor<1x1xf32>
  %0 = "subquant.dequantize"(%x, %s) {block_sizes = array<i64: 64, 4>, operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>} : (tensor<64x4xi8>, tensor<1x1xf32>) -> tensor<64x4xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<64x4xf32>) -> tensor<4x64xf32>
  %y = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0] : (tensor<4x64xf32>, tensor<64x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

// -----

// Casts of quantized types, of one scale and of one for each N; u8 with a zero point.
// CHECK-LABEL: func.func @casts(
// CHECK: "subquant.scast"({{.*}}) : (tensor<4x64xi8>) -> tensor<4x64x!quant.uniform<u8:f32, 1.000000e+00:200>>
// CHECK: stablehlo.dot_general {{.*}} -> tensor<4x2xi32>
// CHECK: stablehlo.constant dense<[1.250000e-01, 5.000000e-01]> : tensor<2xf32>
// CHECK-NOT: quant.dcast
// CHECK-NOT: uniform_dequantize
!x = !quant.uniform<u8:f32, 0.5:200>
!w = !quant.uniform<i8:f32:0, {0.25, 1.0}>
func.func @casts(%x: tensor<4x64x!x>, %w: tensor<2x64x!w>) -> tensor<4x2xf32> {
  %0 = quant.dcast %x : tensor<4x64x!x> to tensor<4x64xf32>
  %1 = stablehlo.uniform_dequantize %w : (tensor<2x64x!w>) -> tensor<2x64xf32>
  %y = stablehlo.dot_general %0, %1, contracting_dims = [1] x [1] : (tensor<4x64xf32>, tensor<2x64xf32>) -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

// Casts of quantized types stay as they are where the product does.
// CHECK-LABEL: func.func @batched_casts(
// CHECK-NEXT: quant.dcast
// CHECK-NEXT: quant.dcast
// CHECK-NEXT: stablehlo.dot_general
// CHECK-NEXT: return
!q = !quant.uniform<i8:f32, 0.5:3>
func.func @batched_casts(%x: tensor<2x4x64x!q>, %y: tensor<2x4x64x!q>) -> tensor<2x4x4xf32> {
  %0 = quant.dcast %x : tensor<2x4x64x!q> to tensor<2x4x64xf32>
  %1 = quant.dcast %y : tensor<2x4x64x!q> to tensor<2x4x64xf32>
  %2 = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x64xf32>, tensor<2x4x64xf32>) -> tensor<2x4x4xf32>
  return %2 : tensor<2x4x4xf32>
}
