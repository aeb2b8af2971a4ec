// RUN: subquant opt %s --passes lower-tosa --split-input-file | filecheck %s

// CHECK-LABEL: func.func @shapes(
// CHECK-SAME: %[[X:[^:]+]]: tensor<8xi8>) -> tensor<1x2xi8> {
// CHECK-NOT: tosa
// CHECK-NOT: unrealized_conversion_cast
// CHECK: %[[EXPANDED:.+]] = tensor.expand_shape %[[X]] {{\[\[}}0, 1]] output_shape [4, 2] : tensor<8xi8> into tensor<4x2xi8>
// CHECK-NEXT: %[[SLICE:.+]] = tensor.extract_slice %[[EXPANDED]][3, 0] [1, 2] [1, 1] : tensor<4x2xi8> to tensor<1x2xi8>
// CHECK-NEXT: return %[[SLICE]] : tensor<1x2xi8>
func.func @shapes(%x: tensor<8xi8>) -> tensor<1x2xi8> {
  %s = tosa.const_shape {values = dense<[4, 2]> : tensor<2xindex>} : () -> !tosa.shape<2>
  %from = tosa.const_shape {values = dense<[3, 0]> : tensor<2xindex>} : () -> !tosa.shape<2>
  %size = tosa.const_shape {values = dense<[1, 2]> : tensor<2xindex>} : () -> !tosa.shape<2>
  %0 = tosa.reshape %x, %s : (tensor<8xi8>, !tosa.shape<2>) -> tensor<4x2xi8>
  %1 = builtin.unrealized_conversion_cast %0 : tensor<4x2xi8> to tensor<4x2xi8>
  %2 = tosa.slice %1, %from, %size : (tensor<4x2xi8>, !tosa.shape<2>, !tosa.shape<2>) -> tensor<1x2xi8>
  return %2 : tensor<1x2xi8>
}

// -----

// Zero points stay operands of the contraction.
// CHECK-LABEL: func.func @conv2d(
// CHECK-SAME: %[[X:[^:]+]]: tensor<1x4x4x3xi8>, %[[W:[^:]+]]: tensor<2x1x1x3xi8>
// CHECK: linalg.conv_2d_nhwc_fhwc_q {{.+}} ins(%[[X]], %[[W]], %c-128_i32, %c0_i32 : tensor<1x4x4x3xi8>, tensor<2x1x1x3xi8>, i32, i32) outs(%{{.+}} : tensor<1x4x4x2xi32>) -> tensor<1x4x4x2xi32>
// CHECK-NOT: tosa
func.func @conv2d(%x: tensor<1x4x4x3xi8>, %w: tensor<2x1x1x3xi8>, %b: tensor<2xi32>) -> tensor<1x4x4x2xi32> {
  %xz = "tosa.const"() <{values = dense<-128> : tensor<1xi8>}> : () -> tensor<1xi8>
  %wz = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %0 = tosa.conv2d %x, %w, %b, %xz, %wz {acc_type = i32, dilation = array<i64: 1, 1>, pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 1, 1>} : (tensor<1x4x4x3xi8>, tensor<2x1x1x3xi8>, tensor<2xi32>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x4x4x2xi32>
  return %0 : tensor<1x4x4x2xi32>
}

// -----

// The mean is rescaled with integers.
// CHECK-LABEL: func.func @avg_pool2d(
// CHECK: linalg.pooling_nhwc_sum
// CHECK-NOT: tosa
// CHECK: arith.muli {{.+}} : i64
// CHECK-NOT: tosa
func.func @avg_pool2d(%x: tensor<1x4x4x2xi8>) -> tensor<1x2x2x2xi8> {
  %z = "tosa.const"() <{values = dense<9> : tensor<1xi8>}> : () -> tensor<1xi8>
  %0 = tosa.avg_pool2d %x, %z, %z {acc_type = i32, kernel = array<i64: 2, 2>, pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<1x4x4x2xi8>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x2x2x2xi8>
  return %0 : tensor<1x2x2x2xi8>
}

// -----

// Two phases along each axis are output channels, 12 in all, and interleaved.
// CHECK-LABEL: func.func @transpose_conv2d(
// CHECK: linalg.conv_2d_nhwc_fhwc{{.*}} ins({{.+}} : tensor<1x4x6x2xi8>, tensor<12x2x2x2xi8>{{.*}}) outs(%{{.+}} : tensor<1x3x5x12xi32>)
// CHECK: linalg.transpose
// CHECK: tensor.extract_slice {{.+}}[0, 1, 0, 0] [1, 5, 8, 3]
// CHECK-NOT: tosa
func.func @transpose_conv2d(%x: tensor<1x2x3x2xi8>, %w: tensor<3x4x3x2xi8>, %b: tensor<3xi32>) -> tensor<1x5x8x3xi32> {
  %z = "tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>
  %0 = tosa.transpose_conv2d %x, %w, %b, %z, %z {acc_type = i32, out_pad = array<i64: -1, 0, 0, 1>, stride = array<i64: 2, 2>} : (tensor<1x2x3x2xi8>, tensor<3x4x3x2xi8>, tensor<3xi32>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x5x8x3xi32>
  return %0 : tensor<1x5x8x3xi32>
}
