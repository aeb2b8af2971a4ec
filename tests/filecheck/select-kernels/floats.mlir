// RUN: subquant opt %s --passes "select-kernels{instructions=avx2 joined-products=0}" | filecheck %s

// Scale, bias, activation and quantization in f32 follow the sums in their kernel. Each product is rounded before the
// sum; zero point and activation are on integers.
// CHECK: func.func @int8_conv
// CHECK: arith.sitofp
// CHECK: arith.mulf
// CHECK: llvm.call_intrinsic "llvm.arithmetic.fence"
// CHECK: arith.addf
// CHECK-LABEL: func.func @requantized_by_floats(
// CHECK: %[[Q:.*]] = "flow.dispatch"({{.*}}) {entry_points = [@int8_conv::@int8_conv]
// CHECK-SAME: -> tensor<1x16x64xi8>
// CHECK-NOT: stablehlo.convert
// CHECK: return
func.func @requantized_by_floats(%x: tensor<16x64xi8>, %w: tensor<64x64xi8>) -> tensor<16x64xi8> {
  %sums = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<16x64xi8>, tensor<64x64xi8>) -> tensor<16x64xi32>
  %f = stablehlo.convert %sums : (tensor<16x64xi32>) -> tensor<16x64xf32>
  %scale = stablehlo.constant dense<1.0e-3> : tensor<16x64xf32>
  %bias = stablehlo.constant dense<5.0> : tensor<16x64xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<16x64xf32>
  %inverse = stablehlo.constant dense<3.0> : tensor<16x64xf32>
  %zero_point = stablehlo.constant dense<-7.0> : tensor<16x64xf32>
  %low = stablehlo.constant dense<-128.0> : tensor<f32>
  %high = stablehlo.constant dense<127.0> : tensor<f32>
  %0 = stablehlo.multiply %f, %scale : tensor<16x64xf32>
  %1 = stablehlo.add %0, %bias : tensor<16x64xf32>
  %2 = stablehlo.maximum %1, %zero : tensor<16x64xf32>
  %3 = stablehlo.multiply %2, %inverse : tensor<16x64xf32>
  %4 = stablehlo.round_nearest_even %3 : tensor<16x64xf32>
  %5 = stablehlo.add %4, %zero_point : tensor<16x64xf32>
  %6 = stablehlo.clamp %low, %5, %high : (tensor<f32>, tensor<16x64xf32>, tensor<f32>) -> tensor<16x64xf32>
  %y = stablehlo.convert %6 : (tensor<16x64xf32>) -> tensor<16x64xi8>
  return %y : tensor<16x64xi8>
}
