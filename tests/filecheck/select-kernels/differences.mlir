// RUN: subquant opt %s --passes "select-kernels{instructions=avx2 joined-products=0}" | filecheck %s

// Zero points that are subtracted in 16 bits are corrected for behind a product of 8 bits.
// CHECK-LABEL: func.func @product(
// CHECK: "flow.dispatch"({{.*}}) {entry_points = [@int8_conv
// CHECK-NOT: stablehlo.dot_general
// CHECK: return
func.func @product(%x: tensor<32x64xi8>) -> tensor<32x48xi32> {
  %0 = stablehlo.convert %x : (tensor<32x64xi8>) -> tensor<32x64xi16>
  %c = stablehlo.constant dense<3> : tensor<32x64xi16>
  %1 = stablehlo.subtract %0, %c : tensor<32x64xi16>
  %w = stablehlo.constant dense<200> : tensor<48x64xi16>
  %y = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1]
      : (tensor<32x64xi16>, tensor<48x64xi16>) -> tensor<32x48xi32>
  return %y : tensor<32x48xi32>
}

// A zero point that is broadcast twice.
// CHECK-LABEL: func.func @broadcast(
// CHECK: "flow.dispatch"({{.*}}) {entry_points = [@int8_conv
// CHECK-NOT: stablehlo.dot_general
// CHECK: return
func.func @broadcast(%x: tensor<32x64xi8>) -> tensor<32x48xi32> {
  %0 = stablehlo.convert %x : (tensor<32x64xi8>) -> tensor<32x64xi16>
  %c = arith.constant dense<3> : tensor<i16>
  %line = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i16>) -> tensor<64xi16>
  %all = stablehlo.broadcast_in_dim %line, dims = [1] : (tensor<64xi16>) -> tensor<32x64xi16>
  %1 = stablehlo.subtract %0, %all : tensor<32x64xi16>
  %w = stablehlo.constant dense<100> : tensor<48x64xi16>
  %y = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1]
      : (tensor<32x64xi16>, tensor<48x64xi16>) -> tensor<32x48xi32>
  return %y : tensor<32x48xi32>
}

// Integers without a sign; what is padded with 0 is padded with the zero point.
// CHECK-LABEL: func.func @windows(
// CHECK: "flow.dispatch"({{.*}}) {entry_points = [@int8_conv
// CHECK-NOT: stablehlo.convolution
// CHECK: return
func.func @windows(%x: tensor<1x8x8x16xi8>) -> tensor<1x8x8x16xi32> {
  %0 = stablehlo.convert %x : (tensor<1x8x8x16xi8>) -> tensor<1x8x8x16xi16>
  %m = stablehlo.constant dense<255> : tensor<1x8x8x16xi16>
  %1 = stablehlo.and %0, %m : tensor<1x8x8x16xi16>
  %c = stablehlo.constant dense<120> : tensor<1x8x8x16xi16>
  %2 = stablehlo.subtract %1, %c : tensor<1x8x8x16xi16>
  %z = stablehlo.constant dense<0> : tensor<i16>
  %3 = stablehlo.pad %2, %z, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0]
      : (tensor<1x8x8x16xi16>, tensor<i16>) -> tensor<1x10x10x16xi16>
  %w = stablehlo.constant dense<-100> : tensor<3x3x16x16xi16>
  %y = stablehlo.convolution(%3, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<1x10x10x16xi16>, tensor<3x3x16x16xi16>) -> tensor<1x8x8x16xi32>
  return %y : tensor<1x8x8x16xi32>
}

// A range of more than 8 bits is left alone.
// CHECK-LABEL: func.func @wide(
// CHECK: stablehlo.dot_general
func.func @wide(%x: tensor<32x64xi8>) -> tensor<32x64xi32> {
  %0 = stablehlo.convert %x : (tensor<32x64xi8>) -> tensor<32x64xi16>
  %w = stablehlo.constant dense<300> : tensor<64x64xi16>
  %y = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1]
      : (tensor<32x64xi16>, tensor<64x64xi16>) -> tensor<32x64xi32>
  return %y : tensor<32x64xi32>
}
